"""The world of one case: its processes, their logs and their effects.

1. Nothing here is random and no real clock is read, but for the computing time that `active_ms` bounds.
2. Every body, a cell or a process, reaches the world through its own `Body`, which records each effect.
3. A process ends once; its terminal event is the last in its log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from pylash.lang.artifacts import Artifact, encode_artifact
from pylash.lang.running.execution import run_process
from pylash.lang.running.hosts import HostCall, Refused, Surroundings
from pylash.lang.running.meter import Bounds
from pylash.lang.starting import (
    Registration,
    StartProblem,
    bad_signal,
    registration,
    startable,
    stored,
)
from pylash.lang.surface import Surface
from pylash.testing.lashlang.host import Operations
from pylash.testing.lashlang.journal import Journal, plain
from pylash.testing.lashlang.scheduler import Cancelled, Job, Promise, Scheduler

FOREIGN = "t-1"
"""A process outside the case, which accepts every signal and never ends."""

Outcome = dict[str, Any]
"""One of `finish`, `fail`, `cancelled`, and for cells `continue`, `error`; with what belongs to it."""


class Event(NamedTuple):
    """An event in the log of the process `on`."""

    on: str
    type: str
    payload: Any
    key: str


class Waiter(NamedTuple):
    """A wait for a signal."""

    name: str
    taken: Promise


@dataclass(eq=False)
class Process:
    """A process that was started."""

    id: str
    registration: Registration
    artifact: Artifact
    body: Body
    outcome: Outcome | None = None
    signals: list[tuple[str, Any]] = field(default_factory=list)
    waits: Waiter | None = None
    ended: Promise = field(default_factory=Promise)
    job: Job | None = None
    cancelled: bool = False


class World:
    """Everything that outlives a body."""

    def __init__(self, surface: Surface, process_bounds: Bounds) -> None:
        self.scheduler = Scheduler()
        self.surface = surface
        self.modules = {path: module.type for path, module in surface.modules.items()}
        self.operations = Operations(self.scheduler, dict(surface.trigger_sources))
        self.artifacts: dict[str, bytes] = {}
        self.processes: dict[str, Process] = {}
        self.log: list[Event] = []
        self.prints: list[Any] = []
        self.sleeps: list[int] = []
        self.queued: list[str] = []
        self.bodies: list[Body] = []
        self.process_bounds = process_bounds

    def store(self, artifact: Artifact) -> None:
        """Keep an artifact by its reference."""
        self.artifacts[artifact.module_ref] = encode_artifact(artifact)

    def start(
        self, process_id: str, wanted: Registration, early: Sequence[tuple[str, Any]] = ()
    ) -> StartProblem | None:
        """Start a process with signals that came before, or return why it cannot start."""
        if process_id in self.processes or process_id == FOREIGN:
            return None
        artifact = stored(self.artifacts.get(wanted.module_ref), wanted.module_ref)
        if isinstance(artifact, StartProblem):
            return artifact
        problem = startable(wanted, artifact, self.surface, self.modules)
        if problem is not None:
            return problem
        body = Body(self, f"process:{process_id}", artifact, wanted.process_name)
        process = Process(process_id, wanted, artifact, body)
        body.process = process
        self.bodies.append(body)
        self.processes[process_id] = process
        for name, payload in early:
            self.signal_from_outside(process_id, name, payload)
        process.job = self.scheduler.spawn(self._drive(process))
        return None

    async def _drive(self, process: Process) -> None:
        try:
            process.body.notice()
            outcome = await performed(process, process.body, self.process_bounds)
        except Cancelled:
            outcome = {"cancelled": "the process was cancelled"}
            process.body.trace({"event": "execution_finished", "status": "cancelled"})
        process.outcome = outcome
        event, payload = _terminal(outcome)
        self.log.append(Event(process.id, event, payload, f"process:{process.id}:outcome"))
        self.scheduler.keep(process.ended, _result(outcome))

    def cancel(self, process_id: str) -> None:
        """Ask a process to end: where it waits, or at its next effect."""
        process = self.processes.get(process_id)
        if process is None or process.outcome is not None:
            return
        process.cancelled = True
        assert process.job is not None  # it was started
        self.scheduler.cancel(process.job)

    def signal(self, process_id: str, name: str, payload: Any, signal_id: str) -> None:
        """Append a signal to a process, and pass it to a waiter.

        Raises Refused: the process does not take it.
        """
        if process_id != FOREIGN:
            self._deliver(process_id, name, payload)
        key = f"process:{process_id}:signal.{name}:{signal_id}"
        self.log.append(Event(process_id, f"signal.{name}", payload, key))

    def signal_from_outside(self, process_id: str, name: str, payload: Any) -> None:
        """Send a signal from outside the case; errors are ignored."""
        try:
            self.signal(process_id, name, payload, f"outside-{len(self.log)}")
        except Refused:
            return

    def _deliver(self, process_id: str, name: str, payload: Any) -> None:
        process = self.processes.get(process_id)
        if process is None or process.outcome is not None:
            raise Refused(f"signal `{name}`: process `{process_id}` is unknown or has ended")
        problem = bad_signal(
            process.artifact, process.registration.process_name, name, payload, self.modules
        )
        if problem is not None:
            raise Refused(problem)
        if (
            process.waits is not None
            and process.waits.name == name
            and not process.waits.taken.kept
        ):
            self.scheduler.keep(process.waits.taken, [True, payload])
        else:
            process.signals.append((name, payload))


async def performed(process: Process, body: Body, bounds: Bounds) -> Outcome:
    """Run a process through this body; return how it ended."""
    wanted = process.registration
    ended = await run_process(
        process.artifact,
        wanted.process_name,
        msgspec.json.decode(plain(wanted.args)),
        body.around(),
        perf_counter,
        process_id=process.id,
        handles=wanted.handles,
        bounds=bounds,
    )
    if ended.failure is None:
        return {"finish": ended.value}
    return {"fail": msgspec.to_builtins(ended.failure)}


def _terminal(outcome: Outcome) -> tuple[str, Any]:
    match outcome:
        case {"finish": value}:
            return "process.completed", {"value": value}
        case {"fail": failure}:
            return "process.failed", failure
        case _:
            return "process.cancelled", {"message": outcome["cancelled"]}


def _result(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case {"finish": value}:
            return {"ok": True, "value": value}
        case {"fail": failure}:
            return {"ok": False, "error": failure["message"]}
        case _:
            return {"ok": False, "error": outcome["cancelled"]}


class Body:
    """The host as one cell or process sees it."""

    def __init__(
        self,
        world: World,
        scope: str,
        artifact: Artifact,
        entry: str | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.scope = scope
        self.journal = journal or Journal()
        self.traced: list[dict[str, Any]] = []
        self.process: Process | None = None
        self._world = world
        self._artifact = artifact
        self._entry = entry

    def around(self) -> Surroundings:
        """Return the context of an execution of this body."""
        return Surroundings(self, self._world.modules, traced=True)

    async def call(self, calls: Sequence[HostCall]) -> Sequence[dict[str, Any]]:
        """Perform operations, all at once."""

        async def perform() -> list[Any]:
            self.notice()
            answers = [self._world.operations.begin(call) for call in calls]
            return [await answer for answer in answers]

        requests = {call.key: [call.path, call.operation, call.payload] for call in calls}
        return await self.journal.batch(requests, perform)

    async def start(
        self,
        key: str,
        process_id: str,
        process: str,
        args: dict[str, Any],
        handles: tuple[str, ...],
    ) -> str:
        """Start a process of the same module and return its id."""

        async def perform() -> None:
            wanted = registration(self._artifact, process, args, handles)
            problem = self._world.start(process_id, wanted)
            if problem is not None:
                raise Refused(problem.message)

        await self._effect(key, ["start", process_id, process, args], perform)
        return process_id

    async def await_process(self, key: str, process_id: str) -> dict[str, Any]:
        """Wait for the end of a process."""

        async def perform() -> Any:
            process = self._world.processes.get(process_id)
            if process is not None:
                return await process.ended
            if process_id == FOREIGN:
                await Promise()
            return {"ok": False, "error": f"there is no process `{process_id}`"}

        result: dict[str, Any] = await self._effect(key, ["await", process_id], perform)
        return result

    async def cancel(self, key: str, process_id: str) -> None:
        """Ask a process to end."""

        async def perform() -> None:
            self._world.cancel(process_id)

        await self._effect(key, ["cancel", process_id], perform)

    async def sleep(self, key: str, *, ms: int | None = None, until: int | None = None) -> None:
        """Wait for a time."""

        async def perform() -> None:
            now = self._world.scheduler.now
            due = max(now, until if until is not None else now + (ms or 0))
            self._world.sleeps.append(due - now)
            if due > now:
                await self._timer(due)

        await self._effect(key, ["sleep", ms, until], perform)

    def _timer(self, due: int, value: Any = None, promise: Promise | None = None) -> Promise:
        waited = promise or Promise()
        scheduler = self._world.scheduler
        scheduler.at(due, lambda: scheduler.keep(waited, value))
        return waited

    async def wait_signal(self, key: str, name: str, within: int | None) -> tuple[bool, Any]:
        """Take the oldest signal of a name, or wait for one."""
        taken, payload = await self._effect(
            key, ["wait", name, within], lambda: self._take(name, within)
        )
        return taken, payload

    async def _take(self, name: str, within: int | None) -> Any:
        process = self.process
        assert process is not None  # the parser lets only processes wait for signals
        for position, (sent, payload) in enumerate(process.signals):
            if sent == name:
                del process.signals[position]
                return [True, payload]
        waiter = Waiter(name, Promise())
        if within is not None:
            self._timer(self._world.scheduler.now + within, [False, None], waiter.taken)
        process.waits = waiter
        result = await waiter.taken
        process.waits = None
        return result

    async def send_signal(self, key: str, process_id: str, name: str, payload: Any) -> None:
        """Send a signal to a process."""

        async def perform() -> None:
            self._world.signal(process_id, name, payload, key)

        await self._effect(key, ["signal", process_id, name, payload], perform)

    async def event(self, key: str, kind: str, payload: dict[str, Any]) -> None:
        """Append an event to the log of this process."""

        async def perform() -> None:
            assert self.process is not None  # the parser lets only processes yield and wake
            self._world.log.append(Event(self.process.id, kind, payload, key))
            if kind == "process.wake":
                self._world.queued.append(payload["text"])

        await self._effect(key, ["event", kind, payload], perform)

    def print(self, value: Any) -> None:
        """Keep an observation."""
        self._world.prints.append(msgspec.json.decode(plain(value)))

    def trace(self, event: dict[str, Any]) -> None:
        """Keep an event of the trace."""
        of = {
            "subject": self.scope.partition(":")[2],
            "module_ref": self._artifact.module_ref,
            "entry": "main" if self._entry is None else "process",
            "entry_name": self._entry or "main",
        }
        self.traced.append({**of, **event})

    async def _effect(self, key: str, request: Any, perform: Callable[[], Awaitable[Any]]) -> Any:
        async def noticing() -> Any:
            self.notice()
            return await perform()

        return await self.journal.effect(key, request, noticing)

    def notice(self) -> None:
        """End here if the process is to end."""
        if self.process is not None and self.process.cancelled:
            raise Cancelled
