"""Dry runs: recorded runs are replayed with the code at hand, to learn which of them it would block.

Rule 1. Nothing is executed, nothing is written, and no lease is taken. Recorded effects are answered from the journal,
        and waits from the store if what they wait for is there. All other effects wait here until the run is stopped.
Rule 2. A run is driven by the same machine, driver and drives as on a worker. So a dry run ends where a worker would
        start a new effect, and finds what would block there.
Rule 3. The code between two effects runs: that is what a replay is. It is ended as the code of a parked run is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

import msgspec

from pylash.durable.commands import (
    AwaitProcess,
    AwaitTurn,
    ProcessCommand,
    WaitSignal,
    process_command,
)
from pylash.durable.effects import (
    AwaitEvent,
    AwaitEventOutcome,
    Outcome,
    Process,
    ProcessOutcome,
    Sleep,
    SleepOutcome,
)
from pylash.durable.machines.replay_order import Expected, is_expected
from pylash.durable.machines.run_state import LastWrite, Phase, WriteAnswer
from pylash.durable.processes import (
    Failure,
    Output,
    ProcessEvent,
    ProcessRecord,
    Registration,
    signal_type,
    split_carrier,
    split_target,
)
from pylash.durable.runs import Attached, Fence, JournalEntry, RunState
from pylash.durable.scopes import ExecutionScope, TurnScope, scope_text
from pylash.durable.sessions import TurnCommit
from pylash.durable.stores import Journal
from pylash.durable.waits import Timeout
from pylash.engine.hosts.controller import Execution, JournalController
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.hosts.journal_memory import EffectRequest, JournalMemory
from pylash.engine.runner_parts import Engine
from pylash.engine.runs.driver import end_detached_code
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.loaded_runs import LoadedRun, load_runs
from pylash.engine.runs.programs import Drives, Programs
from pylash.engine.runs.replays import diverged
from pylash.engine.runs.run import LiveRun
from pylash.tasks import TaskOwner
from pylash.values.canonical import decode, encode
from pylash.values.errors import LashError
from pylash.values.process_errors import ProcessSurfaceIncompatible
from pylash.values.turn_errors import TurnModelMissing, TurnToolMissing

T = TypeVar("T")

AT_ONCE: Final = 100
"""How many runs are loaded and replayed together."""

NOT_HERE: Final = (TurnModelMissing, TurnToolMissing, ProcessSurfaceIncompatible)
"""Errors of runs that need something which the app does not have."""

SHOWN: Final = 3
"""How many of the effects that the branches of a run wait at an error names."""

POLL_SECONDS: Final = 0.5
SETTLED_SECONDS: Final = 2.0
"""How long a run that waits at a new effect may take to reach another effect in another task."""
STUCK_SECONDS: Final = 10.0
"""How long the code of a run may take between two effects."""


class Verdict(StrEnum):
    """What a replay has shown."""

    FITS = "fits"
    DIVERGES = "diverges"
    """The run would be blocked."""
    FAILS = "fails"
    """The run would end as failed at once; it has not ended, or not as failed."""
    NOT_LOADED = "not_loaded"
    """The run cannot be replayed here."""


class RecordedRun(msgspec.Struct, frozen=True):
    """A run to replay: its number, ``process`` or another kind, its id for people, target, status, scope, and version."""

    run: int
    kind: str
    id: str
    target: str
    status: RunState
    scope: ExecutionScope
    version: int = 1


class ReplayReport(msgspec.Struct, frozen=True):
    """What the replay of one run has shown.

    ``effects`` counts the recorded effects, ``at`` are the names of the effects at which a run that fits continues. ``code`` and
    ``reason`` are those of the error otherwise. ``passed_over`` are the keys of the recorded effects that the code has passed
    over, and ``new_names`` has the names that it gives to effects by those that are recorded.
    """

    run: RecordedRun
    verdict: Verdict
    effects: int = 0
    at: tuple[str, ...] = ()
    code: str | None = None
    reason: str | None = None
    passed_over: tuple[str, ...] = ()
    new_names: dict[str, str] = {}


class DryRuns:
    """Replays recorded runs of one store, which is open for reading only, with the programs of one app."""

    def __init__(
        self,
        host: JournalHost,
        programs: Programs,
        drives: Callable[[TaskOwner, Endings], Drives],
        engine: object = None,
    ) -> None:
        self.host = host
        self._programs = programs
        # Another engine may have records that are not in the store.
        self._engine = engine if isinstance(engine, Engine) else None
        # The code of runs, and the effects at which they stop. Each serves a task, so that ``is_stopping`` is false.
        self._tasks, self._work_tasks = TaskOwner(), TaskOwner()
        # One for all: a drive knows nothing of dry runs, and finds the run that it ends by its live run.
        self._endings = DryEndings(host)
        self._drives = drives(self._tasks, self._endings)
        for owner in (self._tasks, self._work_tasks):
            owner.serve(_never())

    async def close(self) -> None:
        """End the code that is left."""
        # The code first: work that ended before it would be an answer to it.
        await self._tasks.close()
        await self._work_tasks.close()

    async def replay(
        self, runs: Sequence[RecordedRun], on_progress: Callable[[int], None] = lambda _: None
    ) -> list[ReplayReport]:
        """Replay runs; return a report for each that still exists, in their order.

        ``on_progress`` is called with the number of runs that are done.
        """
        reports: list[ReplayReport] = []
        for start in range(0, len(runs), AT_ONCE):
            batch = runs[start : start + AT_ONCE]
            reports += await self._replay_batch(batch)
            on_progress(start + len(batch))
        return reports

    async def _replay_batch(self, batch: Sequence[RecordedRun]) -> list[ReplayReport]:
        # One read for all. The journal of a run that a worker executes meanwhile is replayed as it was at this read.
        loaded_runs = await self._load(batch)
        dry: dict[int, DryRun] = {}
        reports: dict[int, ReplayReport] = {}
        for run in batch:
            loaded = loaded_runs.get(run.run)
            if loaded is None:
                missing = await self._missing(run)
            elif (unknown := self._unknown_target(loaded)) is not None:
                missing = ReplayReport(run, Verdict.NOT_LOADED, reason=unknown)
            else:
                dry[run.run] = self._begin(run, loaded)
                continue
            if missing is not None:
                reports[run.run] = missing
        await self._watch(dry.values())
        reports |= {number: one.report() for number, one in dry.items()}
        return [reports[run.run] for run in batch if run.run in reports]

    # --- loading ---

    async def _load(self, batch: Sequence[RecordedRun]) -> dict[int, LoadedRun]:
        """Read runs and return them by number; runs that cannot be read are left out."""
        fences = {run.run: Fence(run.run, 0, run.scope) for run in batch}
        processes = [run.run for run in batch if run.kind == "process"]
        loaded = await load_runs(self.host.store, fences, processes)
        for number in processes:
            if number in loaded:
                loaded[number] = await self._with_entries(loaded[number])
        return {number: _without_writes(run) for number, run in loaded.items()}

    async def _with_entries(self, run: LoadedRun) -> LoadedRun:
        """Return a process with the entries in the store, and what its engine has recorded."""
        engine, record = self._engine, run.subject
        assert isinstance(record, ProcessRecord)
        if engine is None or record.registration.carrier != engine.engine:
            return run
        known = run.attached.entries
        more = await engine.read_entries(self.host.store, record)
        entries = {one.key: one for one in more if not _has_outcome(known.get(one.key))}
        attached = msgspec.structs.replace(run.attached, entries={**known, **entries})
        return msgspec.structs.replace(run, attached=attached)

    async def _missing(self, run: RecordedRun) -> ReplayReport | None:
        """Return the report about a run that was not loaded; None if it has ended or continued meanwhile."""
        reason = "its record cannot be read: newer code may have written it"
        if run.kind == "process":
            # ``resume`` leaves out a record that cannot be decoded, and a run that is not its process's any more.
            with suppress(ValueError):
                record = await self.host.store.processes.get(run.id)
                if record is None or record.run != run.run:
                    return None
        return ReplayReport(run, Verdict.NOT_LOADED, reason=reason)

    def _unknown_target(self, loaded: LoadedRun) -> str | None:
        if not isinstance(loaded.subject, ProcessRecord):
            return None
        _, target = split_carrier(loaded.subject.registration.target)
        if self._programs.knows(target):
            return None
        program, version = split_target(target)
        known = map(split_target, self._programs.targets())
        declared = sorted(other for name, other in known if name == program)
        if not declared:
            return f"this app has no {program!r}"
        listed = ", ".join(map(str, declared))
        return f"this app does not declare version {version} of {program!r} (declared: {listed})"

    # --- replaying ---

    def _begin(self, run: RecordedRun, loaded: LoadedRun) -> DryRun:
        dry = DryRun(run, loaded, self.host, self._tasks, self._work_tasks)
        # Before its task begins: the first step may come to the end of the run.
        self._endings.dry_runs[dry.live] = dry
        drive = self._drives.processes if loaded.turn is None else self._drives.turns
        dry.task = self._tasks.start(self._drive(dry, drive.drive(dry.live)))
        return dry

    async def _drive(self, dry: DryRun, driving: Coroutine[Any, Any, Any]) -> None:
        try:
            await driving
        except Exception as error:  # noqa: BLE001 - a bug of ours; other runs go on
            dry.judge(Verdict.NOT_LOADED, error)
        finally:
            # The drive has made its last "write", which was the last use of this entry.
            del self._endings.dry_runs[dry.live]
            dry.live.dispose()

    async def _watch(self, dry_runs: Iterable[DryRun]) -> None:
        """Wait until all have ended; stop those whose code waits for something else than effects."""
        # A run that becomes idle stops itself (``become_idle``). Those polled here wait in a task of their own, which the
        # machine takes for work, or do not wait for effects at all.
        pending = {dry.task: dry for dry in dry_runs}
        while pending:
            done, _ = await asyncio.wait(pending, timeout=POLL_SECONDS)
            for task in done:
                del pending[task]
                if not task.cancelled():
                    task.result()
            stuck = [dry for dry in pending.values() if dry.is_stuck()]
            for dry in stuck:
                dry.stop()
            if stuck:
                ends = [self._tasks.start(end_detached_code(dry.live)) for dry in stuck]
                await asyncio.wait(ends)
            # Code that does not end even now is left to itself: its task is cancelled when the app is closed.
            for dry in stuck:
                if not dry.task.done():
                    del pending[dry.task]


class DryRun:
    """The replay of one run. It is the worker of its run: it grants slots, and stops the run once it is idle."""

    def __init__(
        self,
        run: RecordedRun,
        loaded: LoadedRun,
        host: JournalHost,
        tasks: TaskOwner,
        work_tasks: TaskOwner,
    ) -> None:
        self.run = run
        # Set before anything is awaited.
        self.task: asyncio.Task[None]
        self._controller = DryController(host, loaded.attached, work_tasks)
        memory = self._controller.memory
        self.live = DryLiveRun(loaded, 0, self._controller, memory, self, tasks, work_tasks)
        entries = loaded.attached.entries.values()
        self._effects = sum(is_expected(entry.key, entry.kind) for entry in entries)
        # Written once: the first verdict counts. Code that is stopped unwinds, and may end in any way.
        self._report: ReplayReport | None = None
        # The progress of the replay when it was last polled and had changed, and when that was.
        self._seen: tuple[int, int] = (-1, 0)
        self._seen_at = 0.0

    def report(self) -> ReplayReport:
        """Return what the replay has shown."""
        self.judge(Verdict.FITS)
        assert self._report is not None
        return self._report

    def judge(self, verdict: Verdict, error: BaseException | None = None) -> None:
        """Decide what the replay has shown, unless that is decided."""
        if isinstance(error, LashError):
            self._conclude(verdict, error.code, error.message)
        elif error is not None:
            self._conclude(verdict, reason=f"{type(error).__name__}: {error}")
        else:
            self._conclude(verdict)

    def judge_end(self, end: Output) -> None:
        """Set the verdict for a process that ends, unless there is one."""
        if not isinstance(end, Failure) or self.run.status is RunState.FAILED:
            self._conclude(Verdict.FITS)
        elif end.failure_class == "execution":  # something that it was captured with is missing
            self._conclude(Verdict.NOT_LOADED, end.code, end.message)
        else:
            self._conclude(Verdict.FAILS, end.code, f"{end.failure_class}: {end.message}")

    def _conclude(
        self, verdict: Verdict, code: str | None = None, reason: str | None = None
    ) -> None:
        if self._report is None:
            at = tuple(self._controller.stopped_at) if verdict is Verdict.FITS else ()
            replay = self._controller.memory.replay
            self._report = ReplayReport(
                self.run,
                verdict,
                self._effects,
                at,
                code,
                reason,
                () if replay is None else tuple(replay.passed_over()),
                {old: new for new, old in self.live.root.recorded_names.items()},
            )

    def is_stuck(self) -> bool:
        """Return whether the code has not reached an effect for too long."""
        replay, now = self._controller.memory.replay, asyncio.get_running_loop().time()
        seen = (-1 if replay is None else replay.progress, len(self._controller.stopped_at))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        # Longer than ``HELD_SECONDS``: an effect that is held is refused before.
        limit = SETTLED_SECONDS if self._controller.stopped_at else STUCK_SECONDS
        return now - self._seen_at > limit

    def stop(self) -> None:
        """End the replay: the code waits at new effects, or does not reach any effect."""
        if not self._controller.stopped_at:
            reason = f"its code did not come to an effect within {STUCK_SECONDS:g} s"
            self._conclude(Verdict.NOT_LOADED, reason=reason)
        elif (expected := self._expected()) is not None:
            where = " and ".join(map(repr, self._controller.stopped_at[:SHOWN]))
            self.judge(Verdict.DIVERGES, diverged(self.live, f"waits at {where}", expected))
        else:
            self.judge(Verdict.FITS)
        # After the verdict: closing ends the code, whose last "write" would be one.
        self.live.close()

    def _expected(self) -> Expected | None:
        """Return a recorded effect that would block the next new one, because the code has not requested it by now."""
        # The run is idle, so no recorded outcome is left that could make its code request more. Unchanged code has
        # requested everything by now; code that dropped a branch has not, and is blocked at its next new effect.
        replay = self._controller.memory.replay
        return None if replay is None or self.live.cancelled else replay.expected_at_rest()

    # --- Slots ---

    def take_slot(self, run: LiveRun) -> None:
        """Grant a slot."""
        run.driver.tell(run.machine.slot_granted)

    def give_slot(self) -> None:
        """Do nothing, because the number of slots is not limited."""

    def become_idle(self, run: LiveRun, *, park_now: bool) -> None:  # noqa: ARG002 - all are stopped
        """Stop the run unless it continues at once."""
        # Not now: this is called while a decision is carried out, and the next one may let the code continue.
        asyncio.get_running_loop().call_soon(self._stop_idle, run)

    def _stop_idle(self, run: LiveRun) -> None:
        if run.machine.phase is Phase.IDLE:
            self.stop()

    def become_busy(self, run: LiveRun) -> None:
        """Do nothing: ``_stop_idle`` checks the phase."""

    def forget(self, run: LiveRun) -> None:
        """Do nothing."""


def _without_writes(run: LoadedRun) -> LoadedRun:
    """Return a run without the settings that would make it write to the store."""
    if run.turn is not None:
        # As if it was not claimed: a claimed turn writes its events for listeners in other processes.
        return msgspec.structs.replace(run, turn=msgspec.structs.replace(run.turn, claimed=False))
    assert isinstance(run.subject, ProcessRecord)
    # Without its timeout: the timer of a process whose deadline is over would write a cancel.
    registration = msgspec.structs.replace(run.subject.registration, timeout=None)
    subject = msgspec.structs.replace(run.subject, registration=registration)
    return msgspec.structs.replace(run, subject=subject)


class DryLiveRun(LiveRun):
    """A live run whose writes between two effects are left out: they are repeated by every replay."""

    async def write(self, ask: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - never asked
        """Return nothing: no message is taken from the queue."""
        return cast("T", b"[]")


class DryController(JournalController):
    """Answers from the journal, and lets everything else wait."""

    def __init__(self, host: JournalHost, attached: Attached, tasks: TaskOwner) -> None:
        super().__init__(host, attached.fence.scope)
        # Its own: the memory of the base class would write to the journal of the store.
        self.memory = JournalMemory(cast("Journal", DiscardingJournal()), host.clock, tasks)
        self.memory.adopt(attached)
        # The names of the effects that would execute, or are open.
        self.stopped_at: list[str] = []
        # The signals in the log that no wait of this replay has taken; None until one is waited for.
        self._signals: list[ProcessEvent] | None = None

    def _route(self, execution: Execution) -> Coroutine[Any, Any, Outcome]:
        return self._stop(execution)

    async def _stop(self, execution: Execution) -> Outcome:
        request, _, _, progress = execution
        arrived = await self._arrived(request)
        if arrived is not None:
            return arrived
        # It rests, as an effect does that waits for others: once all do, the machine of the run reports that it is idle.
        self.stopped_at.append(request.envelope.invocation.effect_id)
        progress.rest()
        await _never()
        raise AssertionError

    async def _arrived(self, request: EffectRequest) -> Outcome | None:
        """Return the outcome of an effect that waits for something which is there, or whose time is over."""
        entry = self.memory.entries.get(request.key)
        due = None if entry is None else entry.due
        is_late = due is not None and due <= self.memory.now()
        match request.envelope.command:
            case Sleep():
                return SleepOutcome() if is_late else None
            case AwaitEvent(key=key):
                name = self._host.name_in(key)
                status = (await self._host.store.waits.look([name.id])).get(name.id)
                if status is not None and status.terminal is not None:
                    return AwaitEventOutcome(status.terminal)
                return AwaitEventOutcome(Timeout(still_open=True)) if is_late else None
            case Process(command=command):
                result = await self._answer(process_command(command), due)
                if result is None and is_late:
                    result = {"timeout": True}
                return None if result is None else ProcessOutcome(result)
            case _:
                return None

    async def _answer(self, command: ProcessCommand, due: int | None) -> Any:
        """Return the answer that the registry has for a wait, or None."""
        store = self._host.store
        match command:
            case WaitSignal(name=name):
                if self._signals is None:
                    found = await store.processes.unreceived(self._scope.id)
                    # Another branch may have read them meanwhile, and taken some.
                    self._signals = found if self._signals is None else self._signals
                for signal in self._signals:
                    if signal.type == signal_type(name) and (due is None or signal.at <= due):
                        self._signals.remove(signal)
                        return {"sequence": signal.sequence, "payload": signal.payload}
                return None
            case AwaitProcess(process_id=process):
                outputs = await store.processes.outputs([process])
                return {"output": decode(encode(outputs[process]))} if process in outputs else None
            case AwaitTurn(session_id=session, turn_id=turn):
                text = scope_text(TurnScope(session, turn))
                ended = (await store.sessions.results([text])).get(text)
                return None if ended is None else {"state": ended[0], "result": ended[1]}
            case _:
                return None


class DiscardingJournal:
    """The writes of a memory to its journal, discarded: cancels that would be delivered."""

    async def deliver(
        self,
        fence: Fence,  # noqa: ARG002 - not written
        made: Sequence[JournalEntry],  # noqa: ARG002 - not written
        cancelled: Sequence[JournalEntry],
    ) -> set[str]:
        """Return the keys of all effects, as if each was cancelled."""
        return {entry.key for entry in cancelled}


class DryEndings:
    """The last writes of dry runs: each is a verdict, and nothing is written."""

    def __init__(self, host: JournalHost) -> None:
        self._store = host.store
        self.dry_runs: dict[LiveRun, DryRun] = {}

    async def settle(self, run: LiveRun, end: Output) -> WriteAnswer:
        """Note that the process ends."""
        self.dry_runs[run].judge_end(end)
        return WriteAnswer.NOT_OURS

    async def continue_as(
        self,
        run: LiveRun,
        registration: Registration,  # noqa: ARG002 - not written
        *,
        cancelled: bool,  # noqa: ARG002 - not written
    ) -> WriteAnswer:
        """Note that the process continues as itself."""
        self.dry_runs[run].judge(Verdict.FITS)
        return WriteAnswer.NOT_OURS

    async def commit(self, run: LiveRun, commit: TurnCommit) -> WriteAnswer:  # noqa: ARG002 - not written
        """Note that the turn ends."""
        self.dry_runs[run].judge(Verdict.FITS)
        return WriteAnswer.NOT_OURS

    async def leave(self, run: LiveRun, what: LastWrite) -> WriteAnswer:
        """Note that the run is stopped here, or would be blocked, or that the store had trouble."""
        trouble = run.driver.trouble
        if what is LastWrite.RELEASE:
            self.dry_runs[run].judge(Verdict.FITS)
        elif what is LastWrite.BLOCK and not isinstance(trouble, NOT_HERE):
            self.dry_runs[run].judge(Verdict.DIVERGES, trouble)
        else:
            self.dry_runs[run].judge(Verdict.NOT_LOADED, trouble)
        return WriteAnswer.NOT_OURS

    async def cancel_reason(self, run: LiveRun) -> str | None:
        """Return why a process was cancelled."""
        return await self._store.processes.cancel_reason(run.id)

    async def is_asked_to_end(self, run: LiveRun) -> bool:
        """Return whether a turn was asked to end."""
        return await self._store.sessions.asked_to_end(run.record.run)


def _has_outcome(entry: JournalEntry | None) -> bool:
    return entry is not None and bool(entry.size)


async def _never() -> None:
    await asyncio.get_running_loop().create_future()
