"""The journal of a run in memory, and what the run does to its own effects.

Rule 1. Decisions and cancels are written before any code learns of them.
Rule 2. An entry in ``entries`` is in the store, or is a note that the next write takes along. So whatever is
        answered from memory survives a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from pylash.durable.effects import EffectKind, Envelope
from pylash.durable.machines.replay_order import Expected, ReplayOrder, is_expected
from pylash.durable.machines.run_state import Recorded
from pylash.durable.ports import Clock
from pylash.durable.run_memory import Progress, ProgressOf, unobserved
from pylash.durable.runs import SECOND, Attached, Instant, JournalEntry
from pylash.durable.stores import Journal
from pylash.engine.records import WITHDRAWN, withdrawn
from pylash.tasks import TaskOwner
from pylash.values.canonical import check_size, decode, digest_for_difference, encode
from pylash.values.names import storable
from pylash.values.process_errors import ProcessSignalWaitCancelled

T = TypeVar("T")


class EffectRequest(msgspec.Struct):
    """A request of an effect: its envelope, its key, and the canonical command that its hash covers."""

    envelope: Envelope
    key: str
    canonical: bytes
    digest: bytes

    def entry(
        self, started: int, outcome: bytes | None = None, ended: int | None = None
    ) -> JournalEntry:
        """Return the entry of this effect, open unless it has an outcome."""
        return JournalEntry(
            self.key,
            self.envelope.command.kind,
            self.digest,
            digest_for_difference(self.canonical),
            outcome,
            0 if outcome is None else len(outcome),
            None,
            None,
            started,
            ended,
            None if (label := self.envelope.invocation.label) is None else storable(label),
        )


def effect_request(envelope: Envelope, key: str) -> EffectRequest:
    """Return what an envelope asks for under key."""
    canonical = check_size(envelope.canonical(), 1)
    return EffectRequest(envelope, key, canonical, hashlib.sha256(canonical).digest())


class JournalMemory:
    """The journal of one run in memory: its records, and its effects in flight.

    ``entries`` has every entry that is known to be in the store, and the notes that will be. The controller writes it,
    and ``attached``. ``replay`` is the order of what a claimed run recorded, until its code has requested all of it.
    """

    looks_ahead = True
    replays_wakes = False
    cancels_tasks = False

    def __init__(self, journal: Journal, clock: Clock, tasks: TaskOwner) -> None:
        # The run and its fence; None until the first effect attaches it.
        self.attached: Attached | None = None
        self.entries: dict[str, JournalEntry] = {}
        self.replay: ReplayOrder | None = None
        # Set once, by the driver of the run before its code begins. Callers outside a run report to a table of their own.
        self.progress_of: ProgressOf = unobserved
        self._journal = journal
        self._clock = clock
        self._tasks = tasks
        # The latest start of a recorded effect. Later effects start after it, even if the clocks of workers differ.
        self._started = 0
        # When the store's time was ``attached.now``, by our monotonic clock.
        self._attached_at = 0.0
        # Notes that are in ``entries`` and in no write yet. The lock is held during a write that has some.
        self._notes: list[JournalEntry] = []
        self._writing_notes = asyncio.Lock()
        # The effects under way, by key. ``end`` of a stopped effect may come after ``begin`` of the next with its key.
        self._under_way: dict[str, EffectRequest] = {}
        # The effects that wait for others. Each reads the store again when its bell rings, with a new bell.
        self._bells: dict[asyncio.Future[None], Progress] = {}

    @property
    def is_replaying(self) -> bool:
        """Whether there are recorded effects that the code has not reached."""
        return self.replay is not None and self.replay.is_behind

    @property
    def is_stopping(self) -> bool:
        """Whether tasks here are cancelled because the host closes or the event loop ends."""
        return self._tasks.is_stopping

    def observe(self, progress_of: ProgressOf) -> None:
        """Report the progress of every effect to the receiver that ``progress_of`` returns for its key."""
        self.progress_of = progress_of

    def attach(self, attached: Attached) -> None:
        """Load the records of a run that this worker owns."""
        self._attached_at = self._clock.monotonic()
        self.entries = dict(attached.entries)
        self._started = max((entry.started for entry in self.entries.values()), default=0)
        self.attached = attached

    def adopt(self, attached: Attached) -> None:
        """Load the records of a claimed run: its code replays all of them."""
        self.attach(attached)
        expected = [
            Expected(entry.started, entry.key, entry.kind == EffectKind.DIRECT, entry.label)
            for entry in self.entries.values()
            if is_expected(entry.key, entry.kind)
        ]
        self.replay = ReplayOrder(expected, self.entries) if expected else None

    def ask(self, key: str) -> None:
        """Note that the code has reached the effect of a key."""
        if self.replay is not None:
            self.replay.ask(key)
            if self.replay.is_over:
                self.replay = None

    def start_time(self) -> Instant:
        """Return the time at which an effect is started: unique in the run, and later than all before."""
        self._started = max(self._clock.now(), self._started + 1)
        return Instant(self._started)

    def wake(self) -> None:
        """Let every effect that waits for an event read the store again."""
        # A bell rings once, so all of them leave the table now. An effect that reads again registers a new one.
        bells, self._bells = self._bells, {}
        for bell, progress in bells.items():
            if not bell.done():
                progress.stir()  # at once: a run that has something to do must not be parked
                bell.set_result(None)

    def recorded(self, key: str) -> bool:
        """Return whether the effect of key has ended; a sleep has when it is due."""
        entry = self.entries.get(key)
        if entry is None or entry.size:
            return entry is not None
        return entry.kind == EffectKind.SLEEP and entry.due is not None and entry.due <= self.now()

    def record_of(self, key: str) -> Recorded:
        """Return what is recorded under the key of an effect that the code requests now."""
        entry = self.entries.get(key)
        if entry is None:
            return Recorded.NOTHING
        if entry.outcome is None:
            return Recorded.ELSEWHERE if self.recorded(key) else Recorded.NOTHING
        is_cancel = entry.outcome.startswith(WITHDRAWN)
        return Recorded.CANCELLED if is_cancel else Recorded.OUTCOME

    def begun(self, key: str) -> bool:
        """Return whether the effect of key was started, in any execution of the run."""
        return key in self.entries

    def note(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the value recorded under key, or make one that is recorded with the next effect."""
        entry = self.entries.get(key)
        if entry is not None and entry.outcome is not None:
            self.ask(key)
            return decode(entry.outcome)
        # Not written yet: it counts only for effects that are recorded after it, so it is written with the first of them.
        value = make()
        (entry,) = self.entries_for(key, "now", encode(value))
        self._notes.append(entry)
        self.entries[key] = entry
        return value

    async def write_with_notes(self, write: Callable[[Sequence[JournalEntry]], Awaitable[T]]) -> T:
        """Return the result of a write of an effect, which writes the notes in the same transaction.

        The effect may depend on them. Without it they must not be in the store: other code may execute the run next, and
        record something else behind a patch that would be taken.
        """
        if self._notes or self._writing_notes.locked():
            # An effect that finds the list empty may still depend on notes that another one is writing.
            async with self._writing_notes:
                notes, self._notes = self._notes, []
                if notes:
                    try:
                        return await write(notes)
                    except BaseException:
                        # The next write takes them. If they are in the store nevertheless, they stay as they are.
                        self._notes = [*notes, *self._notes]
                        raise
        return await write(())

    def decision(self, key: str) -> Any:
        """Return the decision that is recorded under key, or None."""
        entry = self.entries.get(key)
        if entry is None or entry.outcome is None:
            return None
        self.ask(key)
        return decode(entry.outcome)

    async def take_patch(self, key: str) -> bool:
        """Return True, which is recorded with the next effect, before anything can depend on it."""
        return bool(self.note(key, lambda: True))

    def entries_for(self, key: str, kind: str, data: bytes) -> tuple[JournalEntry, ...]:
        """Return the entries that a write to the store must contain for ``decision(key)`` to return data."""
        now = self._clock.now()
        return (JournalEntry(key, kind, b"", None, data, len(data), started=now, ended=now),)

    async def deliver(self, key: str, decision: Any, effects: Sequence[Envelope]) -> set[str]:
        """Record a decision under key, and effects under way as cancelled; return those that were cancelled.

        An effect that has an outcome by then keeps it.
        """
        assert self.attached is not None
        fence = self.attached.fence
        # The store looks for outcomes among its effects only; one that is written with a message is known here.
        cancelled = [
            _cancelled(self, envelope, self._clock.now())
            for envelope in effects
            if not self.recorded(str(envelope.invocation.replay_key))
        ]
        made = self.entries_for(key, "decision", encode(decision))
        delivered = await self.write_with_notes(
            lambda notes: self._journal.deliver(fence, (*notes, *made), cancelled)
        )
        # Only now: code gets its outcomes from ``entries``, so they must be in the store before.
        for entry in (*made, *(one for one in cancelled if one.key in delivered)):
            self.entries[entry.key] = entry
        return delivered

    async def withdraw(self, envelope: Envelope) -> bool:
        """Record an effect as cancelled before it began; False if it has an outcome."""
        assert self.attached is not None
        key = envelope.invocation.replay_key
        assert key is not None
        self.ask(key)
        if self.recorded(key):
            return False
        fence, entry = self.attached.fence, _cancelled(self, envelope, self._clock.now())
        delivered = await self.write_with_notes(
            lambda notes: self._journal.deliver(fence, notes, [entry])
        )
        if key in delivered:
            self.entries[key] = entry
        return key in delivered

    # --- effects under way ---

    def begin(self, request: EffectRequest) -> None:
        """Note that an effect is under way."""
        self._under_way[request.key] = request

    def end(self, request: EffectRequest) -> None:
        """Note that an effect is not under way any more; after it was stopped, it may have been begun again."""
        if self._under_way.get(request.key) is request:
            del self._under_way[request.key]

    def bell(self, progress: Progress) -> asyncio.Future[None]:
        """Return a future that completes when the run is woken; take it before looking, so that no wake-up is missed."""
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bells[bell] = progress
        return bell

    def drop_bell(self, bell: asyncio.Future[None]) -> None:
        """Remove a bell that is not waited for any more."""
        self._bells.pop(bell, None)

    def open_waits(self) -> list[str]:
        """Return the ids of the waits that effects in flight wait for."""
        known = (self.entries.get(key) for key in self._under_way)
        return [entry.wait for entry in known if entry is not None and entry.wait is not None]

    def now(self) -> Instant:
        """Return the time of the store, estimated with our monotonic clock."""
        assert self.attached is not None
        # Not our wall clock, which may differ from the store's: due times are compared with this. Rounded and not cut
        # off: the difference of two floats can be a little too small, and what is due now would be due in 1 µs.
        passed = self._clock.monotonic() - self._attached_at
        return Instant(self.attached.now + round(passed * SECOND))


def _cancelled(memory: JournalMemory, envelope: Envelope, now: Instant) -> JournalEntry:
    """Return the entry of an effect that is cancelled, whether or not it has begun."""
    key = envelope.invocation.replay_key
    assert key is not None
    # An effect that was open keeps the time of its start: that is its place in the order of a replay.
    opening = memory.entries.get(key) or effect_request(envelope, key).entry(memory.start_time())
    data = withdrawn(cancel_code(opening))
    return replace(opening, outcome=data, size=len(data), ended=now)


def cancel_code(entry: JournalEntry) -> str:
    """Return the code in the record of an effect that is cancelled."""
    waits_for_signal = entry.wait is not None and entry.wait.startswith("signal:")
    return ProcessSignalWaitCancelled.default_code if waits_for_signal else "cancelled"
