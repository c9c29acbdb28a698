"""One attempt of a run: its code on a stage, from its beginning to its end or its suspension.

Rule 1. What an attempt reads from the store, and what its order of effects depends on, is an entry of the journal: the
        request to cancel and the wake-ups of the run. The rest is immutable, or read for the last write only.
Rule 2. An attempt takes the run in the store before anything else. What an earlier attempt writes from then on is refused.
Rule 3. The run is parked in the store before the engine suspends it, so that a wake-up rings its bell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from pylash.durable.machines.run_decisions import Write
from pylash.durable.machines.run_state import CodeEnd, DetachReason, LastWrite, WriteAnswer
from pylash.durable.ports import Clock
from pylash.durable.processes import Failure, Output, ProcessRecord, Registration
from pylash.durable.runs import Attached, Fence, Instant, JournalEntry
from pylash.durable.scopes import ExecutionScope
from pylash.durable.sessions import SessionRecord, TurnCommit, TurnRecord
from pylash.durable.stores import Taken
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.loaded_runs import LoadedRun, LoadedTurn
from pylash.engine.runs.outside import Outside
from pylash.engine.runs.programs import Drives
from pylash.engine.runs.run import LiveRun
from pylash.engine.store_answers import STORE_AWAY_SECONDS
from pylash.engine.worker.endings import StoreEndings
from pylash.restate.attempt_journal import AttemptJournal, EngineRefused, is_internal
from pylash.restate.controller import JournaledCalls, StageController, Wakes, until_answered
from pylash.restate.memory import PositionalMemory
from pylash.restate.stage import Stage, new_stage
from pylash.tasks import TaskOwner
from pylash.values.errors import LashError, LeaseLost, StoreError

T = TypeVar("T")

BEGIN: Final = "!begin"
WATCH: Final = "!watch"


class AttemptEnd(StrEnum):
    """How an attempt ended that was not suspended."""

    OVER = "over"
    """The run has ended, or continues as another one."""
    BLOCKED = "blocked"
    """The run needs a person or a deployment."""
    AGAIN = "again"
    """The engine executes the run again soon."""


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the store had for the run: the result of the entries ``!begin`` and ``!watch``."""

    now: int
    wake_seq: int
    cancel: bool = False
    # The run was parked, under this number of wake-ups; its bell rings at the next one.
    parked: bool = False
    # The session of a turn when it began: its options may change before the next turn.
    session: SessionRecord | None = None
    # When the last entry of the seed was started, 0 if the run began without one. What the store has from later on was
    # recorded by this run.
    seed: int = 0
    # Whether messages were queued for the turn.
    queued: bool = False


_SEEN = msgspec.json.Decoder(Seen)


class StageCalls:
    """Calls of the store on the real loop, and work beside the run that ends with the attempt."""

    def __init__(self, stage: Stage, journaled: JournaledCalls) -> None:
        self._stage = stage
        self._journaled = journaled
        self._loop = asyncio.get_running_loop()
        self._work: set[asyncio.Task[Any]] = set()

    async def call(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Make a call; nothing else happens on the stage meanwhile."""
        return await self._stage.outside(ask)

    async def record(self, key: str, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        """Make a write as an entry of the journal."""
        return await self._journaled.run(key, partial(until_answered, ask))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task on the real loop, also from the stage."""
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    def close(self) -> None:
        """Cancel the tasks that are left."""
        for task in tuple(self._work):
            task.cancel()


class StageRun(LiveRun):
    """A run whose code is executed on a stage."""

    def __init__(self, calls: StageCalls, *given: Any) -> None:
        self._calls = calls
        super().__init__(*given)

    @property
    def outside(self) -> Outside:
        """How its code reaches the store."""
        return self._calls

    async def end_code(self, end: CodeEnd, *, asked_to_end: bool = False) -> Write | None:
        """Note that the code has ended; a turn that was asked to end and cannot go on is given up."""
        if asked_to_end:
            # Not executed again, even if only a tool is missing: the cancel comes after the recorded part, so that every
            # attempt would come to the missing tool first.
            self.machine.state.ending.reason = DetachReason.CANNOT_REPLAY
        return await super().end_code(end, asked_to_end=asked_to_end)


class StageEndings:
    """The last writes of an attempt, made outside the stage: they are safe to repeat, and their answers decide nothing."""

    def __init__(self, stage: Stage, journal: AttemptJournal, endings: StoreEndings) -> None:
        self._stage = stage
        self._journal = journal
        self._endings = endings
        # What the last write was; None before it.
        self.end: AttemptEnd | None = None
        # Why the run may not end: its recorded execution had passed this place.
        self.refusal: EngineRefused | None = None

    async def settle(self, run: LiveRun, end: Output) -> WriteAnswer:
        """Write how a process ended."""
        how = f"ends with {end.code}: {end.message}" if isinstance(end, Failure) else "ends"
        if await self._is_too_early(run, how):
            return WriteAnswer.NOT_OURS
        return await self._write(partial(self._endings.settle, run, end), AttemptEnd.OVER)

    async def _is_too_early(self, run: LiveRun, how: str) -> bool:
        """Return whether a run ends where its recorded execution had passed, unless it was asked to end."""
        if run.cancelled or not self._journal.is_replaying:
            return False
        # The engine's own entries do not count: the watch of a run may have recorded one after its last effect.
        recorded, position = (
            await self._stage.outside(self._journal.recorded),
            self._journal.position,
        )
        if all(is_internal(one.name) for one in recorded[position:]):
            return False
        self.refusal = EngineRefused("the code ends too early", None, position, how)
        return True

    async def continue_as(
        self, run: LiveRun, registration: Registration, *, cancelled: bool
    ) -> WriteAnswer:
        """Write that a process goes on with a fresh run."""
        if await self._is_too_early(run, "continues as a new run"):
            return WriteAnswer.NOT_OURS
        write = partial(self._endings.continue_as, run, registration, cancelled=cancelled)
        return await self._write(write, AttemptEnd.OVER)

    async def commit(self, run: LiveRun, commit: TurnCommit) -> WriteAnswer:
        """Write the end of a turn."""
        # One that is given up was asked to end.
        if not commit.fresh and await self._is_too_early(run, "ends"):
            return WriteAnswer.NOT_OURS
        return await self._write(partial(self._endings.commit, run, commit), AttemptEnd.OVER)

    async def leave(self, run: LiveRun, what: LastWrite) -> WriteAnswer:
        """Write that a run which has not ended is blocked; any other is executed again by the engine."""
        if what is not LastWrite.BLOCK:
            self.end = AttemptEnd.AGAIN
            return WriteAnswer.WRITTEN
        return await self._write(partial(self._endings.leave, run, what), AttemptEnd.BLOCKED)

    async def cancel_reason(self, run: LiveRun) -> str | None:
        """Return why a process was cancelled."""
        return await self._stage.outside(partial(self._endings.cancel_reason, run))

    async def is_asked_to_end(self, run: LiveRun) -> bool:
        """Return whether a turn was asked to end."""
        return await self._stage.outside(partial(self._endings.is_asked_to_end, run))

    async def _write(
        self, write: Callable[[], Awaitable[WriteAnswer]], end: AttemptEnd
    ) -> WriteAnswer:
        answer = await self._stage.outside(write)
        self.end = end if answer is WriteAnswer.WRITTEN else AttemptEnd.AGAIN
        return answer


class Activity:
    """What the watch of a run reacts to: hints, and how long all branches of the run have been waiting.

    The stage reports to it, and the watch reads it on the real loop.
    """

    def __init__(self, clock: Clock, park_after: float) -> None:
        self._clock = clock
        self._park_after = park_after
        # Set by every change of the hint and of the time below; the watch clears it before it reads them.
        self._changed = asyncio.Event()
        self._is_hinted = False
        # Whether a hint came that the code has not been told of: the watch may have taken it, and not returned yet.
        self.is_untold = False
        # When all branches began to wait; None while one of them does not.
        self._idle_since: float | None = None

    def hint(self) -> None:
        """Note that something may have happened to the run."""
        self._is_hinted = self.is_untold = True
        self._changed.set()

    def take_hint(self) -> bool:
        """Return whether a hint came since this was last asked."""
        is_hinted, self._is_hinted = self._is_hinted, False
        return is_hinted

    def park_at_once(self) -> None:
        """Let the run be parked as soon as all branches wait."""
        self._park_after = 0.0
        self._changed.set()

    def become_idle(self) -> None:
        """Note that all branches wait."""
        self._idle_since = self._clock.monotonic()
        self._changed.set()

    def become_busy(self) -> None:
        """Note that a branch does not wait any more."""
        self._idle_since = None
        self._changed.set()

    @property
    def is_idle_enough(self) -> bool:
        """Whether the run may be parked."""
        seconds = self._until_parked()
        return seconds is not None and seconds <= 0

    async def wait(self) -> None:
        """Wait until a hint comes, or it may be time to park the run."""
        self._changed.clear()
        if not (self._is_hinted or self.is_idle_enough):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_parked()):
                    await self._changed.wait()

    def _until_parked(self) -> float | None:
        """Return the seconds until the run may be parked; None while a branch of it does not wait."""
        if self._idle_since is None:
            return None
        return self._park_after - (self._clock.monotonic() - self._idle_since)


class Attempt:
    """Executes one attempt of a run."""

    def __init__(
        self,
        host: JournalHost,
        journal: AttemptJournal,
        drives: Callable[[TaskOwner, Endings], Drives],
        park_after: float,
        ring: Callable[[str], Awaitable[None]],
        is_open: Callable[[], bool],
    ) -> None:
        self.stage = new_stage(journal)
        self.memory = PositionalMemory(self.stage, journal, host.clock)
        self.run: LiveRun | None = None
        self._host = host
        self._journal = journal
        self._ring = ring
        self._calls = StageCalls(self.stage, JournaledCalls(self.stage, host.store.attachments))
        self._tasks = TaskOwner()
        self._endings = StageEndings(self.stage, journal, StoreEndings(host.store, is_open))
        self._drives = drives(self._tasks, self._endings)
        self._activity = Activity(host.clock, park_after)
        # The wake-ups of the run that the watch knows, and the token of its fence; None before it watches.
        self.known: tuple[int, int] | None = None
        # Whether the row of the run is parked, by this attempt.
        self._is_parked = False
        # Set on the stage while the run is busy; a parked run that becomes busy is watched again.
        self._busy: asyncio.Event | None = None

    # --- the run's engine, as its driver uses it ---

    def take_slot(self, run: LiveRun) -> None:
        """Grant a slot at once: the engine limits how many attempts it executes."""
        run.driver.tell(run.machine.slot_granted)

    def give_slot(self) -> None:
        """Do nothing: there is no limit here."""

    def become_idle(self, run: LiveRun, *, park_now: bool) -> None:  # noqa: ARG002 - keys are held in the store
        """Note that the run may be parked."""
        assert self._busy is not None
        self._busy.clear()
        self._activity.become_idle()

    def become_busy(self, run: LiveRun) -> None:  # noqa: ARG002 - there is one run
        """Note that the run must not be parked any more."""
        assert self._busy is not None
        self._busy.set()
        self._activity.become_busy()

    def forget(self, run: LiveRun) -> None:
        """Do nothing: the attempt ends with the run."""

    # --- the attempt ---

    @property
    def scope(self) -> ExecutionScope:
        """The scope of the run that is executed."""
        return self._taken.fence.scope

    def hint(self) -> None:
        """Let the watch of the run read the store: something may have happened to it."""
        self._activity.hint()

    def drain(self) -> None:
        """Suspend the run as soon as it waits: the worker closes."""
        self._activity.park_at_once()

    def stop(self) -> None:
        """End the attempt: the engine continues the run later, or elsewhere."""
        if self.run is not None:
            self.run.close()

    async def execute(
        self,
        taken: Taken,
        loaded: LoadedRun,
        explain: Callable[[EngineRefused], Awaitable[LashError | None]],
    ) -> AttemptEnd:
        """Execute the attempt on the real loop. ``loaded``: the process or turn as it is in the store now.

        ``explain`` returns why the run is blocked if the engine refuses the attempt; None if the run goes on otherwise. Raises
        EngineRefused in that case, and Suspended.
        """
        self._taken = taken

        async def on_refused(refusal: EngineRefused) -> bool:
            trouble = await explain(refusal)
            if trouble is None or self.run is None:
                return False
            self.run.close(trouble)  # its drive writes what becomes of it
            return True

        try:
            return await self.stage.drive(self._main(loaded), self._close, on_refused)
        finally:
            self._calls.close()

    def _close(self) -> None:
        """Tell the code that its execution is over."""
        self.memory.is_stopping = True
        if self.run is not None and not self.run.closed:
            self.run.close()

    async def _main(self, loaded: LoadedRun) -> AttemptEnd:
        """Execute the code of the run on the stage."""
        self._busy = asyncio.Event()
        self._busy.set()
        seen = _SEEN.decode(await self.stage.run(BEGIN, partial(self._begin, loaded)))
        self.memory.advance(seen.now)
        if seen.seed:
            entries = await self.stage.outside(self._read_entries)
            self.memory.adopt(entries, seen.seed, Instant(seen.now))
        wakes = Wakes(self._take_news, self._tell_woken)
        controller = StageController(self._host, self.stage, self.memory, self._taken.fence, wakes)
        began = loaded_at(loaded, seen, self._taken.fence)
        tasks = (self._tasks, self._tasks)
        given = (began, seen.wake_seq, controller, self.memory, self, *tasks)
        run = self.run = StageRun(self._calls, *given)
        self._tasks.serve(self._watch(run, seen))
        drive = self._drives.processes if run.turn is None else self._drives.turns
        try:
            await drive.drive(run)
        finally:
            run.dispose()
        if self._endings.refusal is not None:
            raise self._endings.refusal
        return self._endings.end or AttemptEnd.AGAIN

    async def _begin(self, loaded: LoadedRun) -> bytes:
        """Return what the run begins with; it was read with ``wake_seq``, so a later request wakes the run."""
        subject, turn = loaded.subject, loaded.turn
        seen = Seen(self._host.clock.now(), self._taken.wake_seq, is_asked_to_end(subject))
        if turn is not None:
            seen = replace(seen, session=turn.session, queued=turn.stirred)
        elif self._taken.moves or (
            isinstance(subject, ProcessRecord) and subject.registration.origins
        ):
            # It was moved, imported or forked. It has recorded nothing itself yet: what is there is its seed.
            recorded = (await self._read_entries()).values()
            seen = replace(seen, seed=max((entry.started for entry in recorded), default=0))
        return msgspec.json.encode(seen)

    async def _read_entries(self) -> dict[str, JournalEntry]:
        """Read what the store has recorded for the process, on the real loop."""
        run = self._taken.fence.run
        resume = partial(self._host.store.processes.resume, [run])
        return (await until_answered(resume))[run].entries

    async def _look(self, subject: ProcessRecord | TurnRecord, wake_seq: int) -> Seen:
        """Read the request to cancel. ``wake_seq`` was read before, so that a request that comes later wakes the run again."""
        store = self._host.store
        if isinstance(subject, ProcessRecord):
            asked, _ = await store.processes.look(subject.id)
        else:
            asked = await store.sessions.asked_to_end(subject.run)
        return Seen(self._host.clock.now(), wake_seq, bool(asked))

    # --- wake-ups and parking ---

    def _take_news(self) -> bool:
        """Return whether the record of an effect is to tell the turn that it was woken; on the real loop."""
        if self.run is None or self.run.turn is None:
            return False
        is_untold, self._activity.is_untold = self._activity.is_untold, False
        return is_untold

    def _tell_woken(self) -> None:
        """Tell the run what the record of an effect says, on the stage."""
        if self.run is not None:
            self.run.driver.tell(self.run.machine.woken)

    async def _watch(self, run: LiveRun, seen: Seen) -> None:
        """Report wake-ups to the run, on the stage, until the attempt ends."""
        wake_seq, was_parked = seen.wake_seq, False
        assert self._busy is not None
        while not run.closed:
            bell_id, bell = self.stage.bell()
            look = partial(self._look_out, run.record, wake_seq, bell_id, was_parked=was_parked)
            seen = _SEEN.decode(await self.stage.run(WATCH, look))
            self.memory.advance(seen.now)
            was_parked = seen.parked
            if was_parked:
                await self._until_rung(bell, partial(self._park_again, wake_seq, bell_id))
                continue
            bell.cancel()
            wake_seq = seen.wake_seq
            self._activity.is_untold = False
            run.driver.tell(run.machine.woken)
            if seen.cancel:
                run.driver.tell(run.machine.cancel_seen)
            run.driver.tell(run.machine.looked, wake_seq)

    async def _until_rung(
        self, bell: asyncio.Future[bytes], park_again: Callable[[], Awaitable[bool]]
    ) -> None:
        """Wait until the bell of a parked run rings, or it is busy by itself: one of its timers is due."""
        assert self._busy is not None
        busy = asyncio.get_running_loop().create_task(self._busy.wait())
        self._journal.suspend(park_again)
        try:
            await asyncio.wait((bell, busy), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._journal.resume()
            busy.cancel()
            bell.cancel()

    async def _park_again(self, wake_seq: int, bell: str) -> bool:
        """Park the run in the store before it is suspended, unless this attempt did; return whether it is parked.

        An earlier attempt had parked it, and this one has taken it since. A run that was woken meanwhile is told so.
        """
        if self._is_parked:
            return True
        lookout = Lookout(self._host, self._taken.fence, wake_seq)
        self._is_parked = await until_answered(partial(lookout.park, bell))
        if not self._is_parked:
            self._activity.hint()  # it was woken: the next watch reads how often
            await self._ring(bell)
        return self._is_parked

    async def _look_out(
        self,
        subject: ProcessRecord | TurnRecord,
        wake_seq: int,
        bell: str,
        *,
        was_parked: bool,
    ) -> bytes:
        """Wait on the real loop until the run is woken, or it is parked because nothing happens.

        ``was_parked``: it was parked before, and is to count as executed again if this attempt has parked it.
        """
        taken, self.known = self._taken, (wake_seq, self._taken.fence.token)
        if taken.wake_seq > wake_seq:  # it was read when this attempt took the run
            assert taken.subject is not None
            seen = Seen(self._host.clock.now(), taken.wake_seq, is_asked_to_end(taken.subject))
            return msgspec.json.encode(seen)
        lookout = Lookout(self._host, taken.fence, wake_seq)
        must_read = was_parked = was_parked and self._is_parked
        while True:
            try:
                if self._activity.take_hint() or must_read:
                    now_at = await lookout.read(was_parked=was_parked)
                    self._is_parked = False
                    must_read = was_parked = False
                    if now_at != wake_seq:
                        return msgspec.json.encode(await self._look(subject, now_at))
                if self._activity.is_idle_enough and self._journal.may_suspend:
                    if await lookout.park(bell):
                        self._is_parked = True
                        now = self._host.clock.now()
                        return msgspec.json.encode(Seen(now, wake_seq, parked=True))
                    must_read = True
            except LeaseLost:
                raise
            except StoreError:  # away for the moment
                must_read = True
                await asyncio.sleep(STORE_AWAY_SECONDS)
            if not must_read:
                await self._activity.wait()


def loaded_at(loaded: LoadedRun, seen: Seen, fence: Fence) -> LoadedRun:
    """Return a run as it was when it began: whatever changed since is not in its record, and must not be in its state."""
    attached = Attached(fence, Instant(seen.now))
    subject = loaded.subject
    if isinstance(subject, ProcessRecord):
        state = replace(subject.state, cancel=int(seen.cancel))
        return LoadedRun(replace(subject, state=state), attached)
    assert seen.session is not None
    # Its messages are in the record of its effects, and in the store only when it ends.
    turn = LoadedTurn(seen.session, stirred=seen.queued)
    return LoadedRun(replace(subject, cancel=seen.cancel), attached, turn)


def is_asked_to_end(subject: ProcessRecord | TurnRecord) -> bool:
    """Return whether a process or turn had a request to cancel when it was read."""
    return bool(subject.state.cancel if isinstance(subject, ProcessRecord) else subject.cancel)


class Lookout:
    """Reads and parks the row of a run for one watch."""

    def __init__(self, host: JournalHost, fence: Fence, wake_seq: int) -> None:
        self._host = host
        self._fence = fence
        self._wake_seq = wake_seq

    async def read(self, *, was_parked: bool) -> int:
        """Return the number of wake-ups of the run; one that was parked counts as executed again."""
        runs, fence = self._host.store.runs, self._fence
        if was_parked:
            return await runs.unpark(fence, self._host.membership.worker)
        found = (await runs.wake_seqs([fence.run])).get(fence.run)
        if found is None or found[1] != fence.token:
            raise LeaseLost(fence.name)
        return found[0]

    async def park(self, bell: str) -> bool:
        """Park the run; False if it was woken since its wake-ups were read."""
        return await self._host.store.runs.park(self._fence, self._wake_seq, None, bell)
