"""The state of a store after the torture test, and its defects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pylash import Lash
from pylash.durable.processes import ProcessEvent, ProcessRecord, fold
from pylash.durable.scopes import scope_from_text
from pylash.stores.operation import Operation, Statement, Steps
from pylash.values.canonical import decode, encode
from tests.crash.torture_plan import (
    Block,
    Child,
    Emit,
    Plan,
    Stamp,
    Step,
    all_blocks,
    child_id,
    everyone,
    fits,
    may_be_cancelled,
    names_in,
    ops_of,
    undisturbed,
)

_RUNS = """
select id, scope, state, reason, at, wake_seq, owner, fence, attempts from pylash_runs order by id"""

_EFFECTS = """
select e.run, e.key, e.kind, e.label, e.command, coalesce(e.outcome, w.terminal), e.wait, e.due,
       e.started, e.ended
from pylash_effects e left join pylash_waits w on w.id = e.wait order by e.started, e.key"""

_SIGNALS = """
select process, type, taken from pylash_process_events where taken is not null
order by process, sequence"""


class Execution(msgspec.Struct):
    """One execution of a step, as far as it came."""

    pid: int
    started: float
    started_at: int
    ended: float | None = None


class Run(msgspec.Struct):
    """A run's row."""

    id: int
    scope: str
    state: str
    reason: str | None
    at: int | None
    wake_seq: int
    owner: str | None
    fence: int
    attempts: int

    @property
    def process(self) -> str:
        """The id of its process; a run that was continued has a number after it."""
        return str(getattr(scope_from_text(self.scope.partition("#")[0]), "id", ""))


class Effect(msgspec.Struct):
    """A recorded effect."""

    run: int
    key: str
    kind: str
    label: str | None
    command: bytes | None
    outcome: bytes | None
    wait: str | None
    due: int | None
    started: int
    ended: int | None

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was cancelled."""
        return (self.outcome or b"").startswith(b'{"type":"cancelled"')


class Findings:
    """Everything there is after a torture."""

    def __init__(
        self, app: Lash, roots: dict[str, Plan], killed: dict[int, float], log: Path
    ) -> None:
        self.roots = roots
        self.plans = everyone(roots)
        self.records: dict[str, ProcessRecord] = {}
        self.events: dict[str, list[ProcessEvent]] = {}
        self.effects: defaultdict[str, list[Effect]] = defaultdict(list)
        self.signals: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        self.runs: defaultdict[str, list[Run]] = defaultdict(list)
        self.executions: defaultdict[str, dict[str, list[Execution]]] = defaultdict(dict)
        self._cancellable = may_be_cancelled(roots)
        self._app = app
        self._killed = killed
        self._log = log

    async def load(self) -> None:
        """Read the store and the log of executions."""
        processes = self._app.store.processes
        for view in await self._app.processes(limit=10 * len(self.plans)):
            record = await processes.get(view.id)
            assert record is not None
            self.records[view.id] = record
            self.events[view.id] = await processes.events(view.id, limit=100_000)
        of_run = {}
        for row in await self._rows(_RUNS):
            run = Run(*row)
            of_run[run.id] = run.process
            self.runs[run.process].append(run)
        for row in await self._rows(_EFFECTS):
            self.effects[of_run[row[0]]].append(Effect(*row))
        numbers = {record.number: process for process, record in self.records.items()}
        for number, kind, taken in await self._rows(_SIGNALS):
            self.signals[numbers[number]].append((kind, taken))
        self._read_log()

    async def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        def steps() -> Steps[list[tuple[Any, ...]]]:
            return (yield Statement(sql)).rows

        store: Any = self._app.store
        rows: list[tuple[Any, ...]] = await store.driver.run(
            Operation("look", steps, read_only=True)
        )
        return rows

    def _read_log(self) -> None:
        for line in self._log.read_text().splitlines():
            kind, process, step, pid, at, now = line.split()
            known = self.executions[process].setdefault(step, [])
            if kind == "S":
                known.append(Execution(int(pid), float(at), int(now)))
            else:
                latest = next(one for one in reversed(known) if one.pid == int(pid))
                latest.ended = float(at)

    # --- what is wrong ---

    def complaints(self) -> list[tuple[str, str]]:
        """Return every process that is not as it should be, and why."""
        unborn = [
            (process, "was never started") for process in self.roots if process not in self.records
        ]
        return unborn + [
            (process, complaint)
            for process in sorted(self.records)
            for complaint in self._wrong(process)
        ]

    def _wrong(self, process: str) -> Iterator[str]:
        yield from self._wrong_end(process)
        yield from self._wrong_log(process)
        yield from self._wrong_signals(process)
        yield from self._wrong_children(process)
        if self.plans[process].cancel != "force":
            yield from self._wrong_cleanups(process)
        for step, executions in self.executions[process].items():
            yield from self._wrong_executions(process, step, executions)

    def _wrong_end(self, process: str) -> Iterator[str]:
        record = self.records[process]
        output: Any = record.state.output
        if output is None:
            yield f"has not ended: {record.run_state} {record.reason or ''}"
            return
        end = (
            [record.state.status, output.value]
            if record.state.status == "completed"
            else [record.state.status]
        )
        allowed = [undisturbed(self.plans[process])]
        if process in self._cancellable:
            allowed.append(["cancelled"])
        if not any(fits(one, end) for one in allowed):
            yield f"ended as {end} ({output}) instead of {allowed}"
        if record.run_state.value != record.state.status:
            yield f"its run is {record.run_state}, its log says {record.state.status}"

    def _wrong_log(self, process: str) -> Iterator[str]:
        events = self.events[process]
        if [event.sequence for event in events] != list(range(1, len(events) + 1)):
            yield f"its log has gaps: {[event.sequence for event in events]}"
        if (folded := fold(events)) != self.records[process].state:
            yield f"its row is {self.records[process].state}, its log says {folded}"
        said = Counter(event.payload for event in events if event.type == "said")
        done = Counter(
            _command(effect)["command"]["payload"]
            for effect in self.effects[process]
            if effect.label == "emit said" and effect.outcome and not effect.is_withdrawn
        )
        if said != done or any(count > 1 for count in said.values()):
            yield f"it said {said}, recorded is {done}"
        if self.records[process].state.status == "completed":
            sure = {
                op.at
                for epoch in self.plans[process].epochs
                for op in epoch.ops
                if isinstance(op, Emit)
            }
            if missing := sure - set(said):
                yield f"it never said {missing}"

    def _wrong_signals(self, process: str) -> Iterator[str]:
        taken: defaultdict[str, list[int]] = defaultdict(list)
        for kind, mark in self.signals[process]:
            taken[kind].append(mark)
        received: Counter[str] = Counter()
        for effect in self.effects[process]:
            if (
                effect.wait is not None
                and effect.wait.startswith("signal:")
                and b'"sequence"' in (effect.outcome or b"")
            ):
                received[f"signal.{effect.label}"] += 1
        for kind, marks in taken.items():
            if marks != sorted(marks, reverse=True):
                yield f"{kind} was not received in order: {marks}"
            if sum(marks) != received[kind]:
                yield f"{kind} was taken {sum(marks)} times and received {received[kind]} times"

    def _wrong_children(self, process: str) -> Iterator[str]:
        for op in ops_of(self.plans[process]):
            if not isinstance(op, Child):
                continue
            child = child_id(process, op.at)
            started = [
                effect
                for effect in self.effects[process]
                if effect.outcome and not effect.is_withdrawn and _starts(effect, child)
            ]
            if len(started) != (child in self.records):
                yield f"its child {child} was started {len(started)} times"

    def _wrong_cleanups(self, process: str) -> Iterator[str]:
        effects = self.effects[process]
        touched = {effect.label for effect in effects} | set(self.executions[process])
        for number, block in enumerate(all_blocks(self.plans[process])):
            if not block.cleans:
                continue
            found = [one for one in effects if one.label == block.cleanup and not one.is_withdrawn]
            begun = bool(touched & names_in(block)) or number == 0
            if len(found) != begun:
                yield f"{block.cleanup} was recorded {len(found)} times"
            elif found:
                yield from self._wrong_order(block, found[0], touched)

    def _wrong_order(
        self, block: Block, cleanup: Effect, touched: set[str | None]
    ) -> Iterator[str]:
        """Complain about what happened in a block after the point where it was left."""
        reached = _command(cleanup)["input"]["args"][1]
        for number, op in enumerate(block.ops):
            names = {op.at} | {name for inner in _blocks(op) for name in names_in(inner)}
            if number > reached and touched & names:
                yield f"{op.at} was begun although {block.at} was left at {reached}"
            if number < reached and isinstance(op, Step | Stamp) and op.at not in touched:
                yield f"{op.at} was not done although {block.at} was left at {reached}"

    def _wrong_executions(
        self, process: str, step: str, executions: list[Execution]
    ) -> Iterator[str]:
        """Complain about executions that no kill excuses."""
        recorded = [one for one in self.effects[process] if one.label == step]
        excused = 0
        for one in executions:
            killed = self._killed.get(one.pid)
            later = [other.started for other in executions if other.started > one.started]
            if killed is not None and one.started <= killed and (not later or killed <= later[0]):
                excused += 1
        # One that was forced to end has an attempt that nobody recorded.
        forced = self.plans[process].cancel == "force"
        attempts = len(recorded) + forced if recorded else 1
        if len(executions) - excused > attempts:
            yield f"{step} was executed {len(executions)} times, {attempts} attempts, {excused} killed"
        for effect in recorded:
            if b'"type":"returned"' in (effect.outcome or b"") and effect.ended is not None:
                late = [other for other in executions if other.started_at > effect.ended]
                if late:
                    yield f"{step} was executed after its result was recorded: {late}"

    # --- showing ---

    def stuck(self) -> str:
        """Say which processes have not ended."""
        open_ones = [
            process for process, record in self.records.items() if record.state.output is None
        ]
        first = "\n\n".join(self.shown(process) for process in open_ones[:3])
        return f"{len(open_ones)} processes have not ended: {open_ones}\n{first}"

    def shown(self, process: str) -> str:
        """Return the rows and the timeline of a process."""
        lines = [f"--- {process}", encode(self.plans[process]).decode()]
        if (record := self.records.get(process)) is not None:
            lines += [str(record.state), *map(str, self.runs[process])]
        times: list[tuple[int, str]] = []
        times += [
            (event.at, f"event {event.sequence} {event.type} {event.payload}")
            for event in self.events.get(process, ())
        ]
        for one in self.effects[process]:
            outcome = (one.outcome or b"").decode()[:150]
            said = f"{one.kind} {one.key} [{one.label}] {outcome} due={one.due} ended={one.ended}"
            times.append((one.started, f"effect run={one.run} {said}"))
        for step, executions in self.executions[process].items():
            for done in executions:
                killed = self._killed.get(done.pid)
                times.append(
                    (
                        done.started_at,
                        f"execution {step} by {done.pid} {done.started:.3f} to {done.ended} killed={killed}",
                    )
                )
        return "\n".join([*lines, *(f"{at} {text}" for at, text in sorted(times))])


def _blocks(op: Any) -> list[Block]:
    return [*getattr(op, "blocks", []), *([op.body] if hasattr(op, "body") else [])]


def _command(effect: Effect) -> Any:
    """Return the command of an effect."""
    assert effect.command is not None
    return decode(effect.command)["command"]


def _starts(effect: Effect, child: str) -> bool:
    return (effect.label or "").startswith("start ") and f'"id":"{child}"'.encode() in (
        effect.outcome or b""
    )
