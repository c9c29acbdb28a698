"""Running a process of a Lashlang module: its effects as effects of its run.

Rule 1. The key of an effect is the language's, without the prefix that names the process: keys are unique in a run
        anyway. The prefix contains the process's seed, so that a fork finds the effects recorded before it.
Rule 2. A failure of a tool is data for the program; an error of the run itself is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from pylash.durable.commands import (
    AppendEvent,
    AwaitProcess,
    By,
    CancelProcess,
    ProcessCommand,
    SignalProcess,
    StartProcess,
    WaitSignal,
)
from pylash.durable.effects import Process, ProcessOutcome, Sleep, expect
from pylash.durable.machines.run_state import CancelState
from pylash.durable.processes import (
    OUTPUTS,
    Aborted,
    Failure,
    LashlangInput,
    Registration,
    Success,
)
from pylash.durable.seeds import digest
from pylash.engine.executors import process_executor, sleep_executor
from pylash.engine.runs.branch_groups import BranchGroup
from pylash.engine.runs.branches import Branch, own_branch
from pylash.engine.runs.driver import Detached
from pylash.engine.runs.run import LiveRun
from pylash.lang import (
    Artifact,
    Host,
    HostCall,
    HostFailed,
    Refused,
    StartProblem,
    Surface,
    Surroundings,
    bad_arguments,
    run_process,
    signal_schemas,
    startable,
)
from pylash.lang import Registration as WorkflowRegistration
from pylash.processes.operations.tool_calls import ProcessCallSite
from pylash.processes.services import Services
from pylash.processes.triggers import TriggerType
from pylash.processes.waits import signal_wait
from pylash.tools.catalog import Catalog
from pylash.values.canonical import decode, encode, write
from pylash.values.errors import LashError
from pylash.values.process_errors import (
    ProcessNotVisible,
    ProcessSurfaceIncompatible,
    WorkflowFailed,
)
from pylash.workflows.modules import modules_of, process_input
from pylash.workflows.trigger_operations import TriggerOperations

T = TypeVar("T")

_TRIGGERS: Final = ("triggers_register", "triggers_list", "triggers_cancel")

Sink = Callable[[dict[str, Any]], None]
"""Receives the execution events of Lashlang programs."""


class Offered(NamedTuple):
    """The parts of an app that a program uses: its surface, its tools, its types of triggers, and the sink of its events."""

    surface: Surface
    catalog: Catalog
    triggers: Mapping[str, TriggerType]
    sink: Sink | None


async def run_workflow(
    services: Services,
    run: LiveRun,
    given: LashlangInput,
    made: Artifact | StartProblem,
    offered: Offered,
) -> Any:
    """Run a process of a module from its start, over its recorded effects; return its result."""
    if isinstance(made, StartProblem):
        raise WorkflowFailed(made.code, made.message)
    problem = startable(_registration(given), made, offered.surface, modules_of(offered.surface))
    if problem is not None:
        if problem.code == "process_surface_incompatible":
            run.give_up(ProcessSurfaceIncompatible(given.process_name, problem.message))
        raise WorkflowFailed(problem.code, problem.message)
    host = WorkflowHost(services, run, made, offered)
    traced = offered.sink is not None
    modules = modules_of(offered.surface)
    surroundings = Surroundings(host, modules, traced, host.yield_control, asyncio.to_thread)
    try:
        ended = await run_process(
            made,
            given.process_name,
            given.arguments,
            surroundings,
            services.clock.monotonic,
            process_id=run.seed,
            handles=None if given.handles is UNSET else given.handles,
        )
    except asyncio.CancelledError as cancel:
        if run.cancelled and run.is_cancelled_here():
            cause = cancel.__cause__
            why = {"error": cause.message} if isinstance(cause, LashError) else {}
            host.trace({"event": "execution_finished", "status": "cancelled", **why})
        raise
    if ended.failure is not None:
        raise WorkflowFailed(ended.failure.code, ended.failure.message, ended.failure.raw)
    return ended.value


def _registration(given: LashlangInput) -> WorkflowRegistration:
    refs = (given.module_ref, given.process_ref, given.required_surface_ref)
    return WorkflowRegistration(*refs, given.process_name, given.arguments)


class WorkflowHost(Host):
    """Performs the effects of one process."""

    def __init__(self, services: Services, run: LiveRun, made: Artifact, offered: Offered) -> None:
        self._services = services
        self._run = run
        self._artifact = made
        self._offered = offered.surface
        self._catalog = offered.catalog
        self._sink = offered.sink
        self._prefix = f"process:{run.seed}:"
        self._triggers = TriggerOperations(
            services, run, made, offered.surface, offered.triggers, self._child_registration
        )
        self._names: dict[str, str] = {}
        """The names of the processes that this one started, by id, for labels."""
        self._attachments: set[str] = set()
        """References of bytes that tools of this process stored."""

    @property
    def _by(self) -> By:
        """The session that the program works for."""
        return self._run.process.registration.holder or UNSET

    def _branch(self) -> Branch:
        return own_branch(self._run, "lashlang")

    def _local_key(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    async def yield_control(self) -> None:
        """Let other tasks run during a long computation; raises if the run was detached or is to be cancelled."""
        await asyncio.sleep(0)
        if self._run.closed:
            raise Detached
        is_noted = self._run.machine.cancel is CancelState.NOTED
        if is_noted and not self._run.memory.is_replaying:
            raise asyncio.CancelledError

    # --- operations ---

    async def call(self, calls: Sequence[HostCall]) -> Sequence[Mapping[str, Any]]:
        """Call the tools behind the operations, all at once."""
        if len(calls) == 1:
            return [await self._call_operation(calls[0])]
        branch = self._branch()
        group = BranchGroup(self._run, branch, branch.take("batch"))
        for call in calls:
            group.start(self._call_operation(call))
        return await group.all()

    async def _call_operation(self, call: HostCall) -> Mapping[str, Any]:
        try:
            return {"ok": True, "value": await self._operation_value(call)}
        except LashError as error:
            return {"ok": False, "error": error.message if error.data is None else error.data}

    async def _operation_value(self, call: HostCall) -> Any:
        operation = self._offered.modules[call.path].operations.get(call.operation)
        if operation is None:  # another module of the resource's type has it
            raise HostFailed(f"the module `{call.path}` has no operation `{call.operation}`")
        if operation.id in _TRIGGERS:
            return await self._triggers.perform(call, self._local_key(call.key))
        branch = self._branch()
        tool = self._catalog.tool(operation.id)
        # A call without arguments, unless the tool has a parameter of that name.
        is_empty = call.payload == {"args": []} and "args" not in tool.schema["properties"]
        arguments = {} if is_empty else call.payload
        place = (branch, branch.take(self._local_key(call.key)))
        site = ProcessCallSite(self._run, self._services, place, tool.name, self._attachments)
        return await site.call(tool, arguments)

    # --- other processes ---

    async def start(
        self,
        key: str,
        process_id: str,
        process: str,
        args: dict[str, Any],
        handles: tuple[str, ...],
    ) -> str:
        """Start another process of the module and return its id."""
        made, run = self._artifact, self._run
        if not self._is_recorded(key):
            problem = bad_arguments(made, process, args, modules_of(self._offered))
            if problem is not None:
                raise Refused(problem)
        registration = replace(
            self._child_registration(process, process_input(made, process, args, handles)),
            id=process_id,
            parent="",  # the store sets it: a fork has a different id than the process it was forked from
        )
        command = StartProcess(registration, grant=registration.holder)
        if run.process.registration.recorded_id is not None:
            own = replace(registration, id=f"lash-{digest(run.id, process_id)[:16].hex()}")
            command = replace(command, registration=own, recorded=registration)
        answer = await self._refuse_on_error(self._perform(key, command, f"start {process}"))
        # Not the id of the command: a fork may have taken over the start of another child.
        started: str = answer["id"]
        self._names[started] = process
        return started

    async def await_process(self, key: str, process_id: str) -> Mapping[str, Any]:
        """Wait for a process to end."""
        command = AwaitProcess(process_id, by=self._by)
        try:
            answer = await self._perform(key, command, self._label("await", process_id))
        except ProcessNotVisible:
            return {"ok": False, "error": f"there is no process {process_id}"}
        except LashError as error:
            return {"ok": False, "error": error.message}
        match OUTPUTS.decode(encode(answer["output"])):
            case Success(value=value):
                return {"ok": True, "value": value}
            case Failure(message=message):
                return {"ok": False, "error": message}
            case Aborted(reason=reason):
                return {"ok": False, "error": reason or "the process was cancelled"}

    async def cancel(self, key: str, process_id: str) -> None:
        """Cancel a process; does nothing if it has ended or does not exist."""
        command = CancelProcess(process_id, by=self._by)
        try:
            await self._perform(key, command, self._label("cancel", process_id))
        except LashError:
            return

    async def send_signal(self, key: str, process_id: str, name: str, payload: Any) -> None:
        """Signal a process; the registry refuses a signal that it does not declare."""
        command = SignalProcess(process_id, name, key, payload, by=self._by)
        try:
            await self._refuse_on_error(self._perform(key, command, f"signal {name}"))
        except ProcessNotVisible:
            raise Refused(f"there is no process {process_id}") from None

    def _child_registration(self, process: str, given: LashlangInput) -> Registration:
        """Return the registration, still without an id, of a process that acts for the same session."""
        parent = self._run.process.registration
        return Registration(
            id="",
            input=given,
            signals=signal_schemas(self._artifact, process),
            originator=parent.originator,
            wake_target=parent.wake_target,
            env=parent.env,
        )

    def _label(self, word: str, process_id: str) -> str:
        return f"{word} {self._names.get(process_id, process_id)}"

    def _is_recorded(self, key: str) -> bool:
        return self._run.memory.recorded(self._branch().key(self._local_key(key)))

    # --- time and events ---

    async def sleep(self, key: str, *, ms: int | None = None, until: int | None = None) -> None:
        """Sleep; after a restart only the remaining time is waited."""
        branch = self._branch()
        full_key = branch.key(branch.take(self._local_key(key)))
        if until is not None:
            started = self._run.memory.note(f"{full_key}:now", self._run.memory.now) // 1000
            ms = max(0, until - started)
        label = "sleep" if until is None else _sleep_label(until)
        command = Sleep(ms or 0, retry=until is not None)
        await self._run.effect(branch, full_key, label, command, sleep_executor())

    async def wait_signal(self, key: str, name: str, within: int | None) -> tuple[bool, Any]:
        """Take the oldest signal of the name."""
        timeout = None if within is None else within / 1000
        answer = await self._perform(key, WaitSignal(name), name, timeout)
        return (False, None) if answer.get("timeout") else (True, answer["payload"])

    async def event(self, key: str, kind: str, payload: dict[str, Any]) -> None:
        """Append to the process's log."""
        event_key = self._local_key(key).removeprefix("event:")
        command = AppendEvent("", kind, payload, event_key)
        await self._fail_host_on_error(self._perform(key, command, kind.removeprefix("process.")))

    def print(self, value: Any) -> None:
        """Never called: the parser refuses ``print`` outside cells."""
        raise AssertionError(value)

    def trace(self, event: dict[str, Any]) -> None:
        """Send an event to the sink, with the process it belongs to."""
        if self._sink is not None:
            given = self._run.process.registration.input
            assert isinstance(given, LashlangInput)
            about = {"subject": self._run.id, "module_ref": given.module_ref, "entry": "process"}
            self._sink({**about, "entry_name": given.process_name, **event})

    # --- commands ---

    async def _perform(
        self, key: str, command: ProcessCommand, label: str, timeout: float | None = None
    ) -> Any:
        branch = self._branch()
        full_key = branch.key(branch.take(self._local_key(key)))
        local = process_executor(self._services.registry_work(self._run, full_key), timeout)
        work = Process(decode(write(command)))
        with signal_wait(self._run, full_key, command):
            outcome = await self._run.effect(branch, full_key, label, work, local)
        return expect(outcome, ProcessOutcome).result

    async def _refuse_on_error(self, work: Awaitable[T]) -> T:
        """Return the result of work; raise its failure as Refused."""
        try:
            return await work
        except ProcessNotVisible:
            raise
        except LashError as error:
            raise Refused(error.message) from error

    async def _fail_host_on_error(self, work: Awaitable[T]) -> T:
        """Return the result of work; raise its failure as HostFailed."""
        try:
            return await work
        except LashError as error:
            raise HostFailed(error.message) from error


def _sleep_label(until: int) -> str:
    try:
        return (
            f"sleep until {datetime.fromtimestamp(until / 1000, UTC).isoformat(timespec='seconds')}"
        )
    except (OverflowError, ValueError, OSError):
        return "sleep until"
