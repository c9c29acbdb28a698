"""The memory of a run on an engine that replays by position.

Rule 1. Nothing is known ahead. The code of the run is executed from its beginning in every attempt, and gets the recorded
        completions in their order; so decisions and deliveries of cancels are made again, with the same result.
Rule 2. A cancel of an effect whose work is in the store is decided there: a wait that has taken its signal keeps it.
        Any other effect that the machine takes for cancellable has no outcome.
Rule 3. Time is that of the last completion: it is recorded, and the same in every attempt.
Rule 4. A run may begin with a seed: entries by key that another journal has recorded. They are as immutable as the journal,
        so what is answered from them is the same in every attempt. The rules of a replay by key hold for them.
Rule 5. Notes and decisions are recorded with the next effects, only for a seed: a replay by position makes them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from pylash.durable.commands import Awaited, process_command
from pylash.durable.effects import AwaitEvent, EffectKind, Envelope, Process
from pylash.durable.machines.replay_order import Expected, ReplayOrder, is_expected
from pylash.durable.machines.run_state import Recorded
from pylash.durable.ports import Clock
from pylash.durable.run_memory import Progress, ProgressOf, unobserved
from pylash.durable.runs import SECOND, Instant, JournalEntry
from pylash.engine.hosts.journal_memory import cancel_code, effect_request
from pylash.engine.records import WITHDRAWN, withdrawn
from pylash.restate.attempt_journal import AttemptJournal
from pylash.restate.stage import Stage
from pylash.values.canonical import decode, encode

IN_STORE: Final = frozenset((EffectKind.PROCESS, EffectKind.AWAIT_EVENT))
"""The kinds of effects whose rows the store keeps itself: it answers them, whether or not they are in the seed."""

CancelWaits = Callable[[str, list[Envelope]], Awaitable[set[str]]]
"""Cancels effects whose work is in the store, as an entry of a name; returns the keys of those that have no outcome."""


class PositionalMemory:
    """The memory of one attempt."""

    looks_ahead = False
    # They are entries of the journal.
    replays_wakes = True
    cancels_tasks = False

    def __init__(self, stage: Stage, journal: AttemptJournal, clock: Clock) -> None:
        self.progress_of: ProgressOf = unobserved
        # Set by the controller before the code begins.
        self.cancel_waits: CancelWaits | None = None
        # Set once the attempt has ended: its tasks are then cancelled, and not by the code.
        self.is_stopping = False
        # What the run began with, by key, and its order until the code has asked for all of it.
        self.seed: dict[str, JournalEntry] = {}
        self.replay: ReplayOrder | None = None
        # The notes and decisions of this attempt that no completed effect has recorded, by key.
        self.notes: dict[str, JournalEntry] = {}
        self._stage = stage
        self._journal = journal
        self._clock = clock
        self._now = Instant(0)
        # When the run began: a sleep in the seed that was due then is over.
        self._began = Instant(0)
        self._started = 0
        # The names of the recorded entries, read when the first patch is asked for during a replay.
        self._names: frozenset[str] | None = None
        # The keys of effects that a cancel has reached in this attempt.
        self._cancelled: set[str] = set()
        # The effects that wait for events. Each reads the store again when its bell rings, with a new bell.
        self._bells: dict[asyncio.Future[None], Progress] = {}

    @property
    def is_replaying(self) -> bool:
        """Whether there are recorded entries that the attempt has not asked for."""
        return self._journal.is_replaying or (self.replay is not None and self.replay.is_behind)

    # --- the seed ---

    def adopt(self, entries: Mapping[str, JournalEntry], until: int, began: Instant) -> None:
        """Take the entries that were started up to a time as the seed of the run."""
        self._began = began
        self.seed = {
            key: _as_of(entry, began) for key, entry in entries.items() if entry.started <= until
        }
        expected = [
            Expected(entry.started, entry.key, entry.kind == EffectKind.DIRECT, entry.label)
            for entry in self.seed.values()
            if is_expected(entry.key, entry.kind)
        ]
        self.replay = ReplayOrder(expected, self.seed) if expected else None
        self._started = max((entry.started for entry in self.seed.values()), default=0)

    def ask(self, key: str) -> JournalEntry | None:
        """Note that the code has come to a key; return its entry in the seed."""
        if self.replay is not None:
            self.replay.ask(key)
            if self.replay.is_over:
                self.replay = None
        return self.seed.get(key)

    def seeded(self, key: str) -> JournalEntry | None:
        """Return the entry of the seed that answers an effect without the engine: a local one that has ended, or a cancelled one."""
        entry = self.seed.get(key)
        if entry is None or not entry.size:
            return None
        is_answer = entry.kind not in IN_STORE or (entry.outcome or b"").startswith(WITHDRAWN)
        return entry if is_answer else None

    def seconds_left(self, entry: JournalEntry) -> float:
        """Return how long a sleep of the seed lasts from the begin of the run."""
        assert entry.due is not None
        return max(0, entry.due - self._began) / SECOND

    def begun(self, key: str) -> bool:
        """Return whether the seed has the effect; otherwise it is not known ahead."""
        return key in self.seed

    def recorded(self, key: str) -> bool:
        """Return whether the effect has ended in the seed; otherwise it is not known ahead."""
        entry = self.seed.get(key)
        if entry is not None and entry.kind == EffectKind.SLEEP and not entry.size:
            return self.seconds_left(entry) <= 0
        return self.seeded(key) is not None

    def record_of(self, key: str) -> Recorded:
        """Return whether a cancel has reached the effect, or it has ended in the seed; other outcomes are not known ahead."""
        if key in self._cancelled:
            return Recorded.CANCELLED
        entry = self.seeded(key)
        if entry is None or entry.outcome is None:
            return Recorded.ELSEWHERE if self.recorded(key) else Recorded.NOTHING
        is_cancel = entry.outcome.startswith(WITHDRAWN)
        return Recorded.CANCELLED if is_cancel else Recorded.OUTCOME

    # --- decisions and notes ---

    def decision(self, key: str) -> Any:
        """Return the decision in the seed; others are made again."""
        entry = self.seed.get(key)
        if entry is None or entry.outcome is None:
            return None
        self.ask(key)
        return decode(entry.outcome)

    def note(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the note in the seed, or a new value: what makes it depends on recorded data only."""
        known = self.decision(key)
        if known is not None:
            return known
        value = make()
        (self.notes[key],) = self.entries_for(key, "now", encode(value))
        return value

    def forget_notes(self, recorded: Iterable[JournalEntry]) -> None:
        """Note that an effect has recorded notes."""
        for entry in recorded:
            self.notes.pop(entry.key, None)

    async def take_patch(self, key: str) -> bool:
        """Take a patch if its mark is recorded, or nothing behind this place is: a mark is an entry of its own."""
        if self._journal.is_replaying:
            if self._names is None:
                recorded = await self._stage.outside(self._journal.recorded)
                self._names = frozenset(one.name for one in recorded)
            # A mark that is not recorded would be refused: something else is recorded at this position.
            if key not in self._names:
                return False
        await self._stage.run(key, _mark)
        return True

    def entries_for(self, key: str, kind: str, data: bytes) -> tuple[JournalEntry, ...]:
        """Return the entry of a write in the store: the engine may make the write again, and finds it."""
        now = self._now
        return (JournalEntry(key, kind, b"", None, data, len(data), started=now, ended=now),)

    # --- cancels ---

    async def deliver(self, key: str, decision: Any, effects: Sequence[Envelope]) -> set[str]:
        """Cancel effects; return the keys of those that have no outcome."""
        (self.notes[key],) = self.entries_for(key, "decision", encode(decision))
        waits = [envelope for envelope in effects if is_wait(envelope)]
        keys = {self._cancel(envelope) for envelope in effects if not is_wait(envelope)}
        if waits:
            assert self.cancel_waits is not None
            # Their rows are in the store, and so are their ends.
            cancelled = await self.cancel_waits(cancels_of(key), waits)
            self._cancelled |= cancelled
            keys |= cancelled
        return keys

    async def withdraw(self, envelope: Envelope) -> bool:
        """Return True: an effect that has not begun can always be cancelled."""
        self._cancel(envelope)
        return True

    def _cancel(self, envelope: Envelope) -> str:
        """Note that an effect is cancelled, whether or not it has begun; return its key."""
        key = _key(envelope)
        self._cancelled.add(key)
        opening = self.ask(key) or effect_request(envelope, key).entry(self.start_time())
        data = withdrawn(cancel_code(opening))
        self.notes[key] = replace(opening, outcome=data, size=len(data), ended=self._now)
        return key

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

    def start_time(self) -> Instant:
        """Return the time at which an effect is started: later than all before, whatever the clocks of workers say."""
        self._started = max(self._clock.now(), self._now + 1, self._started + 1)
        return Instant(self._started)


def _as_of(entry: JournalEntry, began: Instant) -> JournalEntry:
    """Return an entry as it was when the run began: a wait that ended later was open."""
    is_later = entry.kind in IN_STORE and (entry.ended or 0) > began
    return replace(entry, outcome=None, size=0, ended=None) if is_later else entry


async def _mark() -> bytes:
    """Return the result of the entry of a patch."""
    return b"true"


def cancels_of(key: str) -> str:
    """Return the name of the entry that cancels waits: the engine's own, and not an effect."""
    return f"!cancels {key}"


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
