"""The port of a run's memory: the records of one run, and the delivery of its cancels.

Rule 1. Nothing above this port checks which host executes a run: hosts differ in the answers of their memory.
Rule 2. A look-ahead is a question about an effect that the code has not reached. False means "not recorded,
        or not known ahead", so the caller then executes the effect, and the boundary answers.
Rule 3. Where a cancel lands is recorded data: it is written before any code is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pylash.durable.effects import Envelope
from pylash.durable.machines.replay_order import ReplayOrder
from pylash.durable.machines.run_state import Recorded
from pylash.durable.runs import Instant, JournalEntry

if TYPE_CHECKING:
    from pylash.durable.ports import Clock


class LookAhead(Protocol):
    """Questions of a run about effects that its code has not reached."""

    @property
    def looks_ahead(self) -> bool:
        """Whether these questions can be answered; an engine that replays by position cannot."""
        ...

    @property
    def replays_wakes(self) -> bool:
        """Whether wake-ups reach the run at the same place in every execution."""
        ...

    @property
    def is_replaying(self) -> bool:
        """Whether there are recorded effects that the code has not reached."""
        ...

    def begun(self, key: str) -> bool:
        """Return whether the effect of key was started, in any execution of the run."""
        ...

    def recorded(self, key: str) -> bool:
        """Return whether the effect of key has ended; a sleep has when it is due."""
        ...


class Progress(Protocol):
    """Reports of a host about one effect while it executes it."""

    def rest(self, due: int | None = None) -> None:
        """Report that the effect waits until due, or for an event from outside."""
        ...

    def stir(self) -> None:
        """Report that the effect may continue."""
        ...

    def recording(self) -> None:
        """Report that the outcome is being written or read: from now on the effect cannot be cancelled."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether the effect was cancelled, or its last caller has left."""
        ...


class Unobserved:
    """Discards reports."""

    is_stopped = False

    def rest(self, due: int | None = None) -> None:
        """Do nothing."""

    def stir(self) -> None:
        """Do nothing."""

    def recording(self) -> None:
        """Do nothing."""


ProgressOf = Callable[[str], Progress]
"""Returns the receiver of reports about the effect of a key. It is called when the effect begins."""


def unobserved(key: str) -> Progress:  # noqa: ARG001 - as for all keys
    """Return a receiver that discards reports."""
    return Unobserved()


class RunMemory(LookAhead, Protocol):
    """The records of one run, and its effects in flight."""

    def record_of(self, key: str) -> Recorded:
        """Return what is recorded under the key of an effect that the code requests now.

        An engine that replays by position can answer this too: ELSEWHERE while it replays, NOTHING after that.
        """
        ...

    @property
    def replay(self) -> ReplayOrder | None:
        """The recorded effects that the code has not requested; None if nothing new has to wait for them.

        An engine that replays by position has none: it refuses every difference itself.
        """
        ...

    # --- decisions and notes ---

    def decision(self, key: str) -> Any:
        """Return the decision that is recorded under key, or None."""
        ...

    def note(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the value recorded under key, or make one that is recorded with the next effect."""
        ...

    async def take_patch(self, key: str) -> bool:
        """Return whether a patch is taken that is not recorded, in a place that ``replay`` does not hold back.

        If it is, that is recorded before any later effect. An engine that replays by position refuses it while it replays.
        """
        ...

    def entries_for(self, key: str, kind: str, data: bytes) -> tuple[JournalEntry, ...]:
        """Return the entries that a write to the store must contain for ``decision(key)`` to return data."""
        ...

    # --- cancels ---

    @property
    def cancels_tasks(self) -> bool:
        """Whether cancels are delivered by cancelling the tasks of branches, because effects cannot be cancelled."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether tasks are cancelled because the host closes or the event loop ends."""
        ...

    async def deliver(self, key: str, decision: Any, effects: Sequence[Envelope]) -> set[str]:
        """Record a decision under key, and effects in flight as cancelled; return the keys of the cancelled ones.

        An effect that already has an outcome keeps it.
        """
        ...

    async def withdraw(self, envelope: Envelope) -> bool:
        """Record an effect as cancelled before it began; False if it has an outcome."""
        ...

    # --- effects in flight ---

    def observe(self, progress_of: ProgressOf) -> None:
        """Report the progress of every effect to the receiver that ``progress_of`` returns for its key."""
        ...

    def wake(self) -> None:
        """Let every effect that waits for an event check again."""
        ...

    def open_waits(self) -> list[str]:
        """Return the ids of the waits that effects in flight wait for."""
        ...

    def now(self) -> Instant:
        """Return the time of the clock that sleeps and the deadline of the run use."""
        ...


class NullMemory:
    """The memory of a run on a host that records nothing: cancels are delivered through tasks.

    A host that reports progress asks ``progress_of`` for the receiver. Unreported effects count as work until they end.
    """

    looks_ahead = False
    replays_wakes = False
    is_replaying = False
    replay = None
    cancels_tasks = True
    is_stopping = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.progress_of: ProgressOf = unobserved

    def begun(self, key: str) -> bool:  # noqa: ARG002 - as for all keys
        """Return False: nothing is recorded."""
        return False

    def recorded(self, key: str) -> bool:  # noqa: ARG002 - as for all keys
        """Return False: nothing is recorded."""
        return False

    def record_of(self, key: str) -> Recorded:  # noqa: ARG002 - as for all keys
        """Return that nothing is recorded."""
        return Recorded.NOTHING

    def decision(self, key: str) -> Any:  # noqa: ARG002 - as for all keys
        """Return None: nothing is recorded."""
        return

    def note(self, key: str, make: Callable[[], Any]) -> Any:  # noqa: ARG002 - as for all keys
        """Return a new value."""
        return make()

    async def take_patch(self, key: str) -> bool:  # noqa: ARG002 - as for all keys
        """Return True: nothing is recorded."""
        return True

    def entries_for(self, key: str, kind: str, data: bytes) -> tuple[JournalEntry, ...]:  # noqa: ARG002
        """Return no entries: nothing reads them."""
        return ()

    async def deliver(self, key: str, decision: Any, effects: Sequence[Envelope]) -> set[str]:  # noqa: ARG002
        """Return no effects: the run cancels tasks instead."""
        return set()

    async def withdraw(self, envelope: Envelope) -> bool:  # noqa: ARG002 - as for all effects
        """Return True: an effect that has not started can always be cancelled."""
        return True

    def observe(self, progress_of: ProgressOf) -> None:
        """Keep the receivers. Their reports do not matter: a run without a record is never parked."""
        self.progress_of = progress_of

    def wake(self) -> None:
        """Do nothing: effects that wait for an event poll."""

    def open_waits(self) -> list[str]:
        """Return no waits: those of such a host are not in the store."""
        return []

    def now(self) -> Instant:
        """Return the time."""
        return self._clock.now()
