"""The memory of a run on an engine that replays by position.

Rule 1. Nothing is known ahead. The code of the run is executed from its beginning in every attempt, and gets the recorded
        completions in their order; so decisions and deliveries of cancels are made again, with the same result.
Rule 2. A cancel of an effect whose work is in the store is decided there: a wait that has taken its signal keeps it.
        Any other effect that the machine takes for cancellable has no outcome.
Rule 3. Time is that of the last completion: it is recorded, and the same in every attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pylash.durable.commands import Awaited, process_command
from pylash.durable.effects import AwaitEvent, Envelope, Process
from pylash.durable.machines.run_state import Recorded
from pylash.durable.run_memory import Progress, ProgressOf, unobserved
from pylash.durable.runs import Instant, JournalEntry

CancelWaits = Callable[[str, list[Envelope]], Awaitable[set[str]]]
"""Cancels effects whose work is in the store, as an entry of a name; returns the keys of those that have no outcome."""


class PositionalMemory:
    """The memory of one attempt."""

    looks_ahead = False
    # They are entries of the journal.
    replays_wakes = True
    replay = None
    cancels_tasks = False

    def __init__(self, is_replaying: Callable[[], bool]) -> None:
        self.progress_of: ProgressOf = unobserved
        # Set by the controller before the code begins.
        self.cancel_waits: CancelWaits | None = None
        # Set once the attempt has ended: its tasks are then cancelled, and not by the code.
        self.is_stopping = False
        self._is_replaying = is_replaying
        self._now = Instant(0)
        # The keys of effects that a cancel has reached in this attempt.
        self._cancelled: set[str] = set()
        # The effects that wait for events. Each reads the store again when its bell rings, with a new bell.
        self._bells: dict[asyncio.Future[None], Progress] = {}

    @property
    def is_replaying(self) -> bool:
        """Whether there are recorded entries that the attempt has not asked for."""
        return self._is_replaying()

    def begun(self, key: str) -> bool:  # noqa: ARG002 - as for all keys
        """Return False: not known ahead."""
        return False

    def recorded(self, key: str) -> bool:  # noqa: ARG002 - as for all keys
        """Return False: not known ahead."""
        return False

    def record_of(self, key: str) -> Recorded:
        """Return whether a cancel has reached the effect; an outcome is not known ahead."""
        return Recorded.CANCELLED if key in self._cancelled else Recorded.NOTHING

    # --- decisions and notes ---

    def decision(self, key: str) -> Any:  # noqa: ARG002 - as for all keys
        """Return None: decisions are made again."""
        return None

    def note(self, key: str, make: Callable[[], Any]) -> Any:  # noqa: ARG002 - as for all keys
        """Return a new value: what makes it depends on recorded data only."""
        return make()

    def entries_for(self, key: str, kind: str, data: bytes) -> tuple[JournalEntry, ...]:
        """Return the entry of a write in the store: the engine may make the write again, and finds it."""
        now = self._now
        return (JournalEntry(key, kind, b"", None, data, len(data), started=now, ended=now),)

    # --- cancels ---

    async def deliver(self, key: str, decision: Any, effects: Sequence[Envelope]) -> set[str]:  # noqa: ARG002
        """Cancel effects; return the keys of those that have no outcome."""
        waits = [envelope for envelope in effects if is_wait(envelope)]
        keys = {_key(envelope) for envelope in effects if not is_wait(envelope)}
        if waits:
            assert self.cancel_waits is not None
            keys |= await self.cancel_waits(key, waits)
        self._cancelled |= keys
        return keys

    async def withdraw(self, envelope: Envelope) -> bool:
        """Return True: an effect that has not begun can always be cancelled."""
        self._cancelled.add(_key(envelope))
        return True

    # --- effects in flight ---

    def observe(self, progress_of: ProgressOf) -> None:
        """Report the progress of every effect to what ``progress_of`` returns for its key."""
        self.progress_of = progress_of

    def wake(self) -> None:
        """Let every effect that waits for an event read the store again."""
        # A bell rings once, so all of them leave the table now. An effect that reads again registers a new one.
        bells, self._bells = self._bells, {}
        for bell, progress in bells.items():
            if not bell.done():
                progress.stir()
                bell.set_result(None)

    def bell(self, progress: Progress) -> asyncio.Future[None]:
        """Return a future that completes when the run is woken; take it before reading, so that no wake-up is missed."""
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bells[bell] = progress
        return bell

    def drop_bell(self, bell: asyncio.Future[None]) -> None:
        """Remove a bell that is not waited for any more."""
        self._bells.pop(bell, None)

    def open_waits(self) -> list[str]:
        """Return no waits: every effect that waits reads the store itself when the run is woken."""
        return []

    # --- time ---

    def now(self) -> Instant:
        """Return the time of the last completion."""
        return self._now

    def advance(self, now: int) -> None:
        """Note the time of a completion."""
        self._now = Instant(max(self._now, now))


def is_wait(envelope: Envelope) -> bool:
    """Return whether an effect waits in the store: for a signal, an answer, or the end of another run."""
    match envelope.command:
        case AwaitEvent():
            return True
        case Process(command=command):
            return isinstance(process_command(command), Awaited)
        case _:
            return False


def _key(envelope: Envelope) -> str:
    return str(envelope.invocation.replay_key)
