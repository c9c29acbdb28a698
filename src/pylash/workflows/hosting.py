"""Running a process of a Lashlang module: its effects as effects of its run.

1. The key of an effect is the language's, without the part that names the process: the run has that.
   That part is the process's seed, so that a fork finds what was recorded before it.
2. What a tool does wrong is the program's data; what goes wrong with the run itself passes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from pylash.durable import (
    OUTPUTS,
    SESSION_KEYS,
    Aborted,
    AppendEvent,
    AwaitProcess,
    CancelProcess,
    EventBinding,
    Failure,
    LashlangInput,
    Process,
    ProcessCommand,
    ProcessOutcome,
    Registration,
    SessionRef,
    SignalProcess,
    Sleep,
    StartProcess,
    Subscription,
    Success,
    ValueBinding,
    WaitSignal,
    expect,
    session_key,
    unquoted_session_key,
)
from pylash.lang import (
    TRIGGER_EVENT,
    Artifact,
    Host,
    HostCall,
    HostFailed,
    InvalidTrigger,
    Refused,
    StartProblem,
    Surface,
    Surroundings,
    bad_arguments,
    run_process,
    signal_schemas,
    startable,
    subscription,
)
from pylash.lang import Registration as WorkflowRegistration
from pylash.runtime import (
    Branch,
    BranchGroup,
    Detached,
    LiveRun,
    ProcessContext,
    ProcessToolCall,
    Services,
    TriggerType,
    own_branch,
    process_executor,
    sleep_executor,
)
from pylash.values import (
    LashError,
    ProcessSurfaceIncompatible,
    TriggerSourceNotGranted,
    WorkflowFailed,
    check_name,
    decode,
    encode,
    stable_hash,
    write,
)
from pylash.workflows.modules import modules_of, process_input
from pylash.workflows.surfaces import source_type

T = TypeVar("T")

_TRIGGERS: Final = ("triggers_register", "triggers_list", "triggers_cancel")

Sink = Callable[[dict[str, Any]], None]
"""Takes the execution events of Lashlang programs."""


class Offered(NamedTuple):
    """What an app gives a program: its surface, its types of triggers, and the sink of its events."""

    surface: Surface
    triggers: Mapping[str, TriggerType]
    sink: Sink | None


async def run_workflow(
    services: Services,
    run: LiveRun,
    given: LashlangInput,
    made: Artifact | StartProblem,
    offered: Offered,
) -> Any:
    """Run a process of a module from its start, over what is recorded of it; return its result."""
    if isinstance(made, StartProblem):
        raise WorkflowFailed(made.code, made.message)
    problem = startable(_wanted(given), made, offered.surface, modules_of(offered.surface))
    if problem is not None:
        if problem.code == "process_surface_incompatible":
            run.give_up(ProcessSurfaceIncompatible(given.process_name, problem.message))
        raise WorkflowFailed(problem.code, problem.message)
    host = WorkflowHost(services, run, made, offered)
    traced = offered.sink is not None
    modules = modules_of(offered.surface)
    around = Surroundings(host, modules, traced, host.breathe, asyncio.to_thread)
    try:
        ended = await run_process(
            made,
            given.process_name,
            given.arguments,
            around,
            services.monotonic,
            process_id=run.seed,
            handles=None if given.handles is UNSET else given.handles,
        )
    except asyncio.CancelledError:
        if run.cancelled and run.is_cancelled_here():
            host.trace({"event": "execution_finished", "status": "cancelled"})
        raise
    if ended.failure is not None:
        raise WorkflowFailed(ended.failure.code, ended.failure.message, ended.failure.raw)
    return ended.value


def _wanted(given: LashlangInput) -> WorkflowRegistration:
    refs = (given.module_ref, given.process_ref, given.required_surface_ref)
    return WorkflowRegistration(*refs, given.process_name, given.arguments)


class WorkflowHost(Host):
    """Performs the effects of one process."""

    def __init__(self, services: Services, run: LiveRun, made: Artifact, offered: Offered) -> None:
        self._services = services
        self._run = run
        self._artifact = made
        self._offered = offered.surface
        self._triggers = {source_type(name): one for name, one in offered.triggers.items()}
        self._sink = offered.sink
        self._prefix = f"process:{run.seed}:"
        self._context: ProcessContext[Any] = ProcessContext(run, services)
        self._names: dict[str, str] = {}
        """The names of processes started here, for people."""

    def _branch(self) -> Branch:
        return own_branch(self._run, "lashlang")

    def _short(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    async def breathe(self) -> None:
        """Let others run; end here if the process is to end, and computes for long."""
        await asyncio.sleep(0)
        if self._run.closed:
            raise Detached
        if self._run.root.cancelling and not self._run.replaying:
            raise asyncio.CancelledError

    # Operations.

    async def call(self, calls: Sequence[HostCall]) -> Sequence[Mapping[str, Any]]:
        """Call the tools behind the operations, all at once."""
        if len(calls) == 1:
            return [await self._called(calls[0])]
        branch = self._branch()
        group = BranchGroup(self._run, branch, branch.take("batch"))
        for call in calls:
            group.start(self._called(call))
        return await group.all()

    async def _called(self, call: HostCall) -> Mapping[str, Any]:
        try:
            return {"ok": True, "value": await self._value(call)}
        except LashError as error:
            return {"ok": False, "error": error.message if error.data is None else error.data}

    async def _value(self, call: HostCall) -> Any:
        operation = self._offered.modules[call.path].operations.get(call.operation)
        if operation is None:  # another module of the resource's type has it
            raise HostFailed(f"the module `{call.path}` has no operation `{call.operation}`")
        if operation.id in _TRIGGERS:
            return await self._trigger(call, self._short(call.key))
        branch = self._branch()
        tool = self._services.tool(operation.id)
        # A call without arguments, unless the tool has a parameter of that name.
        is_empty = call.payload == {"args": []} and "args" not in tool.schema["properties"]
        arguments = {} if is_empty else call.payload
        part = branch.take(self._short(call.key))
        made = ProcessToolCall(self._run, self._services, branch, part, tool, tool.name)
        return await made.result(arguments)

    # Other processes.

    async def start(
        self,
        key: str,
        process_id: str,
        process: str,
        args: dict[str, Any],
        handles: tuple[str, ...],
    ) -> None:
        """Start another process of the module."""
        made = self._artifact
        if not self._is_recorded(key):
            problem = bad_arguments(made, process, args, modules_of(self._offered))
            if problem is not None:
                raise Refused(problem)
        registration = replace(
            self._heir(process, process_input(made, process, args, handles)),
            id=process_id,
            parent="",  # whoever starts it: of a fork that is another than the first time
        )
        await self._refusable(self._ask(key, StartProcess(registration), f"start {process}"))
        self._names[process_id] = process

    async def _foreign(self, key: str, process_id: str) -> bool:
        """Tell whether a program of a session reaches for what its session neither started nor was granted."""
        mine = self._run.process.registration.originator
        if not isinstance(mine, SessionRef) or self._is_recorded(key):
            return False
        with self._run.guarded():
            record = await self._services.store.processes.get(process_id)
            if record is None or record.registration.originator == mine:
                return False
            held = await self._services.store.processes.grants(mine)
        return all(grant.process_id != process_id for grant in held)

    async def await_process(self, key: str, process_id: str) -> Mapping[str, Any]:
        """Wait for a process to end."""
        if await self._foreign(key, process_id):
            return {"ok": False, "error": f"there is no process {process_id}"}
        try:
            answer = await self._ask(
                key, AwaitProcess(process_id), self._named("await", process_id)
            )
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
        """Ask a process to end; one that has, or never was, is left alone."""
        if await self._foreign(key, process_id):
            return
        try:
            await self._ask(key, CancelProcess(process_id), self._named("cancel", process_id))
        except LashError:
            return

    async def send_signal(self, key: str, process_id: str, name: str, payload: Any) -> None:
        """Signal a process; the registry refuses what it does not declare."""
        if await self._foreign(key, process_id):
            raise Refused(f"there is no process {process_id}")
        command = SignalProcess(process_id, name, key, payload)
        await self._refusable(self._ask(key, command, f"signal {name}"))

    def _heir(self, process: str, given: LashlangInput) -> Registration:
        """Return the registration, still without an id, of a process that acts for whom this one does."""
        parent = self._run.process.registration
        return Registration(
            id="",
            input=given,
            signals=signal_schemas(self._artifact, process),
            originator=parent.originator,
            wake_target=parent.wake_target,
            env=parent.env,
        )

    def _named(self, word: str, process_id: str) -> str:
        return f"{word} {self._names.get(process_id, process_id)}"

    def _is_recorded(self, key: str) -> bool:
        journal = self._run.journal
        return journal is not None and journal.recorded(self._branch().key(self._short(key)))

    # Time and events.

    async def sleep(self, key: str, *, ms: int | None = None, until: int | None = None) -> None:
        """Sleep; a restart waits only for the rest."""
        branch = self._branch()
        whole = branch.key(branch.take(self._short(key)))
        if until is not None:
            started = self._services.ride(self._run, f"{whole}:now") // 1000
            ms = max(0, until - started)
        label = "sleep" if until is None else _shown(until)
        command = Sleep(ms or 0, retry=until is not None)
        await self._run.effect(branch, whole, label, command, sleep_executor())

    async def wait_signal(self, key: str, name: str, within: int | None) -> tuple[bool, Any]:
        """Take the oldest signal of the name."""
        timeout = None if within is None else within / 1000
        answer = await self._ask(key, WaitSignal(name), name, timeout)
        return (False, None) if answer.get("timeout") else (True, answer["payload"])

    async def event(self, key: str, kind: str, payload: dict[str, Any]) -> None:
        """Append to the process's log."""
        number = self._short(key).removeprefix("event:")
        command = AppendEvent("", kind, payload, number)
        await self._possible(self._ask(key, command, kind.removeprefix("process.")))

    def print(self, value: Any) -> None:
        """Refuse: only cells print, and the parser says so."""
        raise AssertionError(value)

    def trace(self, event: dict[str, Any]) -> None:
        """Tell the sink, unless it was told when this was first executed."""
        if self._sink is not None:
            given = self._run.process.registration.input
            assert isinstance(given, LashlangInput)
            about = {"subject": self._run.id, "module_ref": given.module_ref, "entry": "process"}
            self._sink({**about, "entry_name": given.process_name, **event})

    # Triggers.

    async def _trigger(self, call: HostCall, key: str) -> Any:
        register = partial(self._register, call.handles)  # no part of what is recorded and compared
        operations: dict[str, Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]]
        operations = {"register": register, "list": self._list, "cancel": self._unregister}
        step = self._context.options(key=key).step
        return await step(operations[call.operation], dict(call.payload))

    @property
    def _session(self) -> str | None:
        """The session that owns the triggers registered here."""
        target = self._run.process.registration.wake_target
        return None if target is None else target.session_id

    def _stored_keys(self, key: str) -> list[str]:
        """Return the keys under which a trigger of the owner may be stored: today's first."""
        owner = self._session
        if owner is None:
            return [] if key.startswith(SESSION_KEYS) else [key]
        found = [session_key(owner, key), unquoted_session_key(owner, key)]
        return list(dict.fromkeys(found))

    async def _stored_key(self, key: str) -> str:
        """Return the key under which a trigger of the owner is stored, or is to be."""
        keys = self._stored_keys(key)
        if not keys:
            message = f"the key {key!r} begins with {SESSION_KEYS!r}: only keys of sessions do"
            raise InvalidTrigger(message)
        if len(keys) > 1:
            with self._run.guarded():
                listed = await self._services.store.triggers.listed(self._session)
            stored = {view.subscription.key for view in listed}
            return next((one for one in keys if one in stored), keys[0])
        return keys[0]

    async def _check_granted(self, type_: TriggerType, source_key: str) -> None:
        """Refuse a source that the app has not granted to the sessions that this process acts for."""
        registration = self._run.process.registration
        acting = (registration.originator, registration.wake_target)
        for session in dict.fromkeys(
            one.session_id for one in acting if isinstance(one, SessionRef)
        ):
            if not await type_.grants(session, source_key):
                raise TriggerSourceNotGranted(session, type_.name, source_key)

    async def _register(self, handles: tuple[str, ...], payload: dict[str, Any]) -> Any:
        try:
            return await self._registered(handles, payload)
        except InvalidTrigger as error:
            raise LashError(error.message, code=error.code) from None

    async def _registered(self, handles: tuple[str, ...], payload: dict[str, Any]) -> Any:
        wanted = subscription(payload, self._offered.trigger_sources, "")
        type_, source_key = self._triggers[wanted.source_type], _source_key(wanted.source)
        await self._check_granted(type_, source_key)
        key = await self._stored_key(check_name("trigger key", wanted.key))
        target = wanted.target["process_name"]  # of this module: the linker saw to it
        template = self._heir(target, process_input(self._artifact, target, {}, handles))
        inputs = {
            name: EventBinding() if value == {TRIGGER_EVENT: True} else ValueBinding(value)
            for name, value in wanted.inputs.items()
        }
        made = Subscription(
            key=key,
            type=type_.name,
            source=source_key,
            template=template,
            inputs=inputs,
            session_id=self._session,
            name=wanted.name,
        )
        with self._run.guarded():
            await self._services.store.triggers.register(made)
        return wanted.with_id(_handle_id(key)).handle()

    async def _list(self, payload: dict[str, Any]) -> Any:
        with self._run.guarded():
            views = await self._services.store.triggers.listed(self._session)
        found = [view.subscription for view in views]
        return [
            self._handle(one, one.template.input)
            for one in found
            if one.session_id == self._session
            and isinstance(one.template.input, LashlangInput)
            and payload.get("name") in (None, one.name)
            and payload.get("source_type") in (None, source_type(one.type))
            and (payload.get("target") or {}).get("process_ref")
            in (None, one.template.input.process_ref)
        ]

    def _handle(self, found: Subscription, given: LashlangInput) -> dict[str, Any]:
        return {
            "type": "trigger_handle",
            "id": _handle_id(found.key),
            "key": self._own_name(found.key),
            "name": found.name,
            "source_type": source_type(found.type),
            "target": given.process_name,
        }

    def _own_name(self, stored: str) -> str:
        """Return what the owner calls a trigger."""
        for prefix in self._stored_keys(""):
            if stored.startswith(prefix):
                return stored.removeprefix(prefix)
        return stored  # the app registered it

    async def _unregister(self, payload: dict[str, Any]) -> Any:
        key, cancel = str(payload["key"]), self._services.store.triggers.cancel_owned
        with self._run.guarded():
            found = [await cancel(one, self._session) for one in self._stored_keys(key)]
        return {"key": key, "cancelled": any(found)}

    # Commands.

    async def _ask(
        self, key: str, command: ProcessCommand, label: str, timeout: float | None = None
    ) -> Any:
        branch = self._branch()
        whole = branch.key(branch.take(self._short(key)))
        local = process_executor(self._services.registry_work(self._run, whole), timeout)
        outcome = await self._run.effect(
            branch, whole, label, Process(decode(write(command))), local
        )
        return expect(outcome, ProcessOutcome).result

    async def _refusable(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except LashError as error:
            raise Refused(error.message) from error

    async def _possible(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except LashError as error:
            raise HostFailed(error.message) from error


def _shown(until: int) -> str:
    try:
        return (
            f"sleep until {datetime.fromtimestamp(until / 1000, UTC).isoformat(timespec='seconds')}"
        )
    except (OverflowError, ValueError, OSError):
        return "sleep until"


def _source_key(source: Any) -> str:
    """Return the key of a source. Its record may come from anywhere, so it is checked here."""
    key = source.get("source_key") if isinstance(source, dict) else None
    if not isinstance(key, str):
        raise InvalidTrigger(f"the source_key of a trigger source must be text, not {key!r}")
    return key


def _handle_id(key: str) -> str:
    return f"trigger-{stable_hash(key).hex()[:32]}"
