"""The composition root: wires a store, a clock, a host and a runner together, and decides nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import cached_property, partial
from inspect import isawaitable
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from pylash.durable.commands import ForkProcess
from pylash.durable.ports import Clock, EffectHost, Runner, WatchedClock
from pylash.durable.processes import (
    ExternalInput,
    ProcessFilter,
    ProcessView,
    Registration,
    SessionRef,
    checked_process,
)
from pylash.durable.runs import SECOND, Instant, LeaseTimings, RunState
from pylash.durable.sessions import SessionView, checked_session
from pylash.durable.stores import Store
from pylash.durable.waits import OpenWait, ResolveOutcome, Signer
from pylash.engine.dry_runs import DryRuns
from pylash.engine.hosts.durability import require_durable_stores
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.run_results import RunResults, TurnSource
from pylash.engine.runner_parts import MakesRunner, RunnerParts, collect
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.programs import Drives, Programs
from pylash.engine.system import SystemClock, system_entropy
from pylash.engine.worker.config import Retention, WorkerConfig
from pylash.engine.worker.worker import Worker
from pylash.models.messages import attachment_bytes
from pylash.models.model_names import Models
from pylash.processes.agents import Agent
from pylash.processes.control import ProcessControl
from pylash.processes.declarations import Declarations
from pylash.processes.definition import (
    CODE_ERRORS,
    Definition,
    Prepared,
    ProcessDefinition,
    as_prepared,
)
from pylash.processes.environments import Environment
from pylash.processes.execution import Execution, PythonPrograms
from pylash.processes.exports import export, import_file, write_export
from pylash.processes.forks import fork_registration
from pylash.processes.handles import ProcessHandle
from pylash.processes.operations.context import ProcessContext
from pylash.processes.triggers import SourceGrant, Triggers, TriggerType
from pylash.processes.waits import open_waits, resolve_wait
from pylash.sessions.execution import TurnExecution
from pylash.sessions.forks import check_fork
from pylash.sessions.histories import MAX_MESSAGES, Histories
from pylash.sessions.services import SessionServices
from pylash.sessions.session import Session
from pylash.sessions.subagents import SpawnAgent, run_session_turn
from pylash.stores.store import open_store
from pylash.tasks import TaskOwner
from pylash.tools.catalog import Catalog
from pylash.tools.operation_names import check_trigger_name
from pylash.tools.plugins import PluginFactory, ToolProvider
from pylash.tools.signatures import Shape
from pylash.tools.tool import Tool, ToolOptions, tool
from pylash.turn.asks import SessionOptions, checked_options
from pylash.turn.budgets import TurnBudget
from pylash.turn.histories import History
from pylash.turn.messages import Attachment
from pylash.values.arguments import check_text, check_type, checked_tag, checked_tags
from pylash.values.durations import Duration, micros
from pylash.values.names import MAX_NAME_BYTES, check_name
from pylash.values.process_errors import (
    AppNotOpen,
    ArgumentsInvalid,
    MissingProcessExecutionId,
    NotBlocked,
    NotSupported,
    ProcessUnknown,
)

if TYPE_CHECKING:
    from pylash.workflows.modules import LashlangModule
    from pylash.workflows.workflows import Workflows

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("pylash")

DEFAULT_STORE = "sqlite:///pylash.db"


class OpenParts(NamedTuple):
    """The parts of an app that exist while it is open; its last runs use them while it closes."""

    effects: EffectHost
    services: SessionServices
    template: Registration
    runner: Runner
    process_results: RunResults
    turn_results: RunResults

    def deliver_result(self, run_id: str, output: Any) -> None:
        """Pass the output of a run that ended here to its waiters."""
        self.process_results.deliver(run_id, output)
        self.turn_results.deliver(run_id, output)


class Lash:
    """An app: a store, the processes and sessions that run on it, and a worker.

    >>> app = Lash("sqlite:///agents.db")
    >>> @app.process
    ... async def greet(ctx: ProcessContext[None], name: str) -> str:
    ...     return f"Hello {name}"
    >>> async with app:
    ...     handle = await app.start(greet, name="Ann")
    ...     print(await handle.result())
    """

    def __init__(  # noqa: PLR0913 - the one place where everything is chosen
        self,
        store: str | None = None,
        *,
        model: Any = None,
        instructions: str = "",
        tools: Sequence[Any] = (),
        plugins: Sequence[PluginFactory] = (),
        deps: Any = None,
        host: EffectHost | Callable[[EffectHost], EffectHost] | None = None,
        worker: WorkerConfig | None = WorkerConfig(),  # noqa: B008 - it is frozen
        secret: str | bytes | Sequence[str | bytes] | None = None,
        retention: Retention = Retention(),  # noqa: B008 - it is frozen
        clock: Clock | None = None,
        migrate: bool | None = None,
    ) -> None:
        each = plugins if isinstance(plugins, Sequence) else ()
        check_text("Lash", "instructions", instructions)
        for name, given, kind, wanted in (
            ("worker", worker, WorkerConfig | None, "a WorkerConfig or None"),
            ("retention", retention, Retention, "a Retention"),
            ("host", host, EffectHost | Callable | None, "an EffectHost, a function or None"),
            ("clock", clock, Clock | None, "a Clock or None"),
            ("migrate", migrate, bool | None, "True, False or None"),
            ("plugins", plugins, Sequence, "a list of plugin factories"),
            *(("plugins", one, PluginFactory, "a plugin factory") for one in each),
        ):
            check_type("Lash", name, given, kind, wanted)
        chosen = os.environ.get("PYLASH_MODEL") if model is None else model
        self._models = Models()
        self.catalog = Catalog(chosen, instructions, plugins, self._models.adapt)
        self.definitions = Declarations()
        self.trigger_types: dict[str, TriggerType] = {}
        self.url = store
        self._deps = deps
        self.given_host: Any = host
        self.worker_config = worker
        self.secret = secret
        self._retention = retention
        self._clock = clock
        self._migrate = migrate
        for given in tools:
            self.add_tool(given)
        self._stack: AsyncExitStack | None = None
        self.triggers = Triggers(self)

    # --- declarations: they need no event loop ---

    @overload
    def process(
        self, function: Callable[Concatenate[ProcessContext[Any], P], Awaitable[R]], /
    ) -> ProcessDefinition[P, R]: ...
    @overload
    def process(
        self,
        *,
        name: str | None = None,
        version: int = 1,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        key: Callable[..., str] | str | None = None,
        events: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        block_on: tuple[type[BaseException], ...] = CODE_ERRORS,
    ) -> Callable[
        [Callable[Concatenate[ProcessContext[Any], P], Awaitable[R]]], ProcessDefinition[P, R]
    ]: ...
    def process(  # type: ignore[misc]  # noqa: PLR0913  # options by name; mypy does not see that the first has a default
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        version: int = 1,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        key: Callable[..., str] | str | None = None,
        events: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        block_on: tuple[type[BaseException], ...] = CODE_ERRORS,
    ) -> Any:
        """Make an async function a process of this app.

        ``version``: a process may have several, each with a function of its own; a run keeps the version that it was started with.
        ``timeout`` ends it, ``concurrency`` limits how many execute at once (for each ``key``, which is
        a function of the arguments or a text such as ``"{user}"``). ``events`` declares the events that it may emit:
        the type of each payload, or a ``ProcessEventType``. ``renamed`` has the old and new names of steps, tools, groups and
        agents that were renamed, so that processes which recorded the old ones continue. An exception of ``block_on``
        blocks the process until other code is deployed, instead of failing it.

        >>> @app.process(concurrency=1, key="{user}")
        ... async def sync_mail(ctx: ProcessContext[None], user: str) -> int: ...
        """
        define = partial(
            ProcessDefinition,
            name=name,
            version=version,
            timeout=timeout,
            concurrency=concurrency,
            key=key,
            events=events,
            renamed=renamed,
            block_on=block_on,
        )
        if function is None:
            return lambda decorated: self.process(define(decorated))
        definition = function if isinstance(function, ProcessDefinition) else define(function)
        self.definitions.add(definition)
        return definition

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...
    @overload
    def tool(
        self, function: None = None, /, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Make a function a tool of this app: its signature is the schema, its docstring the description.

        >>> @app.tool(approval=True, retry=Retry(3), timeout="30s")
        ... async def refund(ctx: ToolContext[Deps], order_id: str, cents: int) -> str: ...
        """
        if function is None:
            return lambda decorated: self.add_tool(tool(**options)(decorated))
        return self.add_tool(function)

    def add_tool(self, given: Tool[P, R] | Callable[P, R]) -> Tool[P, R]:
        """Make a tool, or a plain function, a tool of this app."""
        added: Any = self.catalog.add_tool(given)
        return cast("Tool[P, R]", added)

    def use(self, provider: ToolProvider) -> None:
        """Add the tools of a provider."""
        for given in provider.tools():
            self.add_tool(given)

    def model(self, name: str, model: Any) -> None:
        """Register a model under a name, for ``app.session(..., model=name)``.

        It is a ``Provider``, a model object of pydantic-ai, or another name.

        >>> app.model("fast", "openai:gpt-5-mini")
        """
        self.catalog.add_model(check_name("model name", name), model)

    def agent(
        self,
        name: str,
        *,
        instructions: str = "",
        tools: Sequence[Any] | None = None,
        model: Any = None,
        description: str = "",
    ) -> Agent:
        """Declare an agent that a model can start as a subagent, and that ``app.start`` and ``ctx.start`` start as a process.

        >>> researcher = app.agent("researcher", instructions="Find sources.", tools=[search])
        """
        # The ids of subagents begin with the name.
        check_name("agent name", name, limit=MAX_NAME_BYTES // 2)
        check_text("app.agent", "instructions", instructions)
        check_text("app.agent", "description", description)
        options = SessionOptions(
            model=self.catalog.model_name(model),
            instructions=instructions,
            tools=self.catalog.tool_names(tools),
        )
        checked_options("app.agent", options)
        agent = Agent(name, instructions, options.tools, options.model, description)
        self.catalog.agents[name] = agent
        return agent

    def subagents(self, *names: str) -> Tool[..., Any]:
        """Add a ``spawn_agent`` tool with which the model starts these agents as subagents; return it."""
        if not names:
            raise ArgumentsInvalid("app.subagents", "name at least one agent of app.agent")
        return self.catalog.add_tool(SpawnAgent(self.catalog, names))

    def trigger(self, name: str, *, payload: Any = Any, sessions: SourceGrant = False) -> None:
        """Declare a type of event, and the type of its payload.

        ``sessions``: the sources that a program may subscribe to for a session: none (False), all (True), or
        those for which a function of the session id and the source key returns True.

        >>> app.trigger("github.push", payload=Push, sessions=lambda session_id, repo: repo in repos[session_id])
        """
        check_name("trigger type", name)
        if not (callable(sessions) or sessions in (True, False)):
            reason = f"sessions is {sessions!r} and must be True, False or a function"
            raise ArgumentsInvalid(f"trigger {name!r}", reason)
        Shape.declared(payload, f"trigger {name!r}", "payload")
        check_trigger_name(name, self.trigger_types)
        self.trigger_types[name] = TriggerType(name, payload, sessions)

    # --- opening and closing ---

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store and start the worker."""
        if self._stack is not None:
            return
        async with AsyncExitStack() as stack:
            config = self.worker_config or WorkerConfig()
            lease = micros(config.lease)
            renew = lease // 3 if config.renew is None else micros(config.renew)
            journal = await stack.enter_async_context(
                open_host(
                    self.url,
                    secret=self.secret,
                    clock=self._clock,
                    timings=LeaseTimings(ttl=lease, renew_every=renew),
                    migrate=self._migrate,
                )
            )
            self._signer = journal.signer
            given = journal if self.given_host is None else self.given_host
            effects = given(journal) if callable(given) else given
            require_durable_stores(effects, journal.store)
            stack.push_async_callback(self._models.close)
            self._parts = await self._make_parts(stack, journal, effects, config)
            await self._parts.services.environments.keep(self._environment())
            stack.callback(journal.hub.close)
            # After the runner is closed: it takes part in calls that start processes.
            stack.push_async_exit(self._parts.services.control.close)
            await self._start_runner(stack)
            self._stack = stack.pop_all()

    @asynccontextmanager
    async def open_for_replay(self, file: str | Path | None = None) -> AsyncIterator[DryRuns]:
        """Open the store for reading only, to replay recorded runs with the code of this app.

        With the file of an export, the runs are those in it, in a store in memory.

        >>> async with app.open_for_replay() as replays:
        ...     reports = await replays.replay([run])
        """
        if self._stack is not None:
            raise NotSupported("A replay with an open app", "close the app first")
        async with AsyncExitStack() as stack:
            if file is None:
                opening = open_host(self.url, secret=self.secret, clock=self._clock, read_only=True)
            else:
                opening = open_host("memory://", secret=self.secret, member=False)
            journal = await stack.enter_async_context(opening)
            if file is not None:
                await import_file(journal.store, journal.signer, file, for_replay=True)
            stack.push_async_callback(self._models.close)
            config = self.worker_config or WorkerConfig()
            parts = self._parts = await self._make_parts(stack, journal, journal, config)
            stack.push_async_exit(parts.services.control.close)
            programs, drives = self._programs(parts.services)
            dry_runs = DryRuns(journal, programs, drives, self.given_host)
            stack.push_async_callback(dry_runs.close)
            # Without this the code of runs could not use the app, as it can on a worker.
            self._stack = stack
            try:
                yield dry_runs
            finally:
                self._stack = None

    async def _make_parts(
        self,
        stack: AsyncExitStack,
        journal: JournalHost,
        effects: EffectHost,
        config: WorkerConfig,
    ) -> OpenParts:
        """Create the parts that run on the open store, and connect them."""
        store = journal.store
        keep = 0 if config.residency == "active_path_only" else MAX_MESSAGES
        histories = Histories(store.sessions, keep)
        services = SessionServices(
            store, histories, journal.hub, journal.tasks, journal.clock, system_entropy
        )
        services.definitions = self.definitions
        services.catalog = self.catalog
        services.triggers = self.triggers
        services.run_workflow = lambda *given: self._workflows.run(*given)  # noqa: PLW0108 - loaded when used
        services.env = self._environment().ref
        template = Registration(id="", input=ExternalInput(), env=services.env)
        for definition in self.definitions.all_versions():
            await definition.prepare()
        for declared in self.catalog.tools.values():
            await declared.prepare()
        services.deps = await self._open_deps(stack)
        runner = self._make_runner(journal, effects, services, config)
        results = partial(RunResults, services.hub, runs_here=runner.has, tasks=services.tasks)
        process_results = results("process", store.processes)
        services.control = ProcessControl(
            effects, store, services.new_id, runner, process_results.wait, self.definitions.upgrade
        )
        turn_results = results("turn", TurnSource(store.sessions))
        return OpenParts(effects, services, template, runner, process_results, turn_results)

    def _make_runner(
        self,
        journal: JournalHost,
        effects: EffectHost,
        services: SessionServices,
        config: WorkerConfig,
    ) -> Runner:
        programs, drives = self._programs(services)

        def on_end(run_id: str, output: Any) -> None:
            self._parts.deliver_result(run_id, output)

        if isinstance(effects, MakesRunner):
            parts = RunnerParts(journal, programs, drives, config, self._retention, on_end)
            return effects.make_runner(parts)
        return Worker(journal, effects, programs, drives, config, self._retention, on_end)

    def _programs(
        self, services: SessionServices
    ) -> tuple[Programs, Callable[[TaskOwner, Endings], Drives]]:
        """Return the programs of the app, and what creates the drives of a runner."""
        programs = PythonPrograms(services, partial(run_session_turn, services))

        def drives(tasks: TaskOwner, endings: Endings) -> Drives:
            processes = Execution(services, programs, tasks, endings)
            return Drives(processes, TurnExecution(services, endings))

        return programs, drives

    def _environment(self) -> Environment:
        """Return the environment that is captured with the processes of the app."""
        return Environment(self.catalog.model, self.catalog.instructions)

    async def _start_runner(self, stack: AsyncExitStack) -> None:
        runner, store = self._parts.runner, self._parts.services.store
        if self.worker_config is not None:
            await runner.open()
            stack.push_async_callback(runner.close)
        elif not await store.workers.has_any():
            _log.warning(
                "no worker is running on this store: the work of this app waits until one is started"
            )
        if isinstance(self._clock, WatchedClock):
            stack.callback(self._clock.watch(runner.quiet))

    async def _open_deps(self, stack: AsyncExitStack) -> Any:
        """Return the dependencies: a value, or the result of a factory, closed with the app if it is a context manager."""
        made = self._deps() if callable(self._deps) else self._deps
        if isawaitable(made):
            made = await made
        if hasattr(made, "__aenter__"):
            made = await stack.enter_async_context(made)
        return made

    async def close(self) -> None:
        """Close the app: claim no more runs, wait for running ones up to the grace period, and park or release the rest."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    # --- processes ---

    async def start(
        self, target: Definition[P, R] | Prepared[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ProcessHandle[R]:
        """Start a process; the same id with the same input again is the same process.

        Cancellation: atomic.

        >>> handle = await app.start(onboarding.options(id="onboard-ann"), user="ann")
        """
        parts = self._use("start")
        starting = self._start(as_prepared(target), args, kwargs, parts.template)
        return await parts.services.control.complete(starting)

    async def _start(
        self,
        chosen: Prepared[Any, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inherited: Registration,
        plugin_options: Mapping[str, Any] | None = None,
    ) -> ProcessHandle[Any]:
        """Start a process for the app or for a session, whose originator, wake target and environment it gets.

        Raises ProcessNotVisible if a session starts a process again that was started for another one.
        """
        parts = self._parts
        if chosen.attached:
            reason = "attached=True is for a process that another one starts with ctx.start"
            raise ArgumentsInvalid("app.start", reason)
        await chosen.definition.prepare()
        new_id = parts.services.new_id
        command = chosen.command(args, kwargs, new_id, inherited, plugin_options)
        control, registration = parts.services.control, command.registration
        await check_fork(self.store, registration)
        await control.perform_in_call(command)
        if isinstance(inherited.originator, SessionRef) and registration.holder is not None:
            await control.check_visible(registration.holder, [registration.id])
        return self._handle(registration.id, chosen.definition)

    @overload
    def process_handle(self, process_id: str) -> ProcessHandle[Any]: ...
    @overload
    def process_handle(
        self, process_id: str, process: Definition[Any, R] | Prepared[Any, R]
    ) -> ProcessHandle[R]: ...
    def process_handle(self, process_id: str, process: Any = None) -> ProcessHandle[Any]:
        """Return the handle of a process; ``process`` is its definition, or an agent, which types the result.

        >>> handle = app.process_handle("onboard-ann", onboarding)  # ProcessHandle[str]
        >>> draft = await handle.result()
        """
        self._use("process_handle")
        checked_process(process_id)
        return self._handle(
            process_id, None if process is None else as_prepared(process).definition
        )

    async def processes(
        self,
        *,
        status: RunState | str | None = None,
        name: str | None = None,
        tag: str | None = None,
        since: datetime | Duration | None = None,
        before: datetime | Duration | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[ProcessView]:
        """Return processes, the newest first.

        ``name`` is that of a process in any of its versions, of a tool, or of a process in a Lashlang module. ``tag`` is
        one that it was started with. ``since`` and ``before`` limit
        when it was started: a time, or how long ago. ``after`` continues a list: the id of the last process of the page before. Processes
        that are started meanwhile change no later page.

        >>> page = await app.processes(name="order", status="failed", since="1d", limit=20)
        >>> following = await app.processes(name="order", status="failed", since="1d", limit=20, after=page[-1].id)
        """
        clock = self._use("processes").services.clock
        if status is not None and status not in list(RunState):
            known = ", ".join(RunState)
            raise ArgumentsInvalid(
                "app.processes", f"there is no status {status!r} (known: {known})"
            )
        _check_limit("app.processes", limit)
        if name is not None:
            check_name("process name", name)
        if after is not None:
            checked_process(after)
        wanted = ProcessFilter(
            statuses=() if status is None else (RunState(status).value,),
            name=name,
            tag=None if tag is None else checked_tag(tag),
            since=_moment(since, clock.now()),
            before=_moment(before, clock.now()),
            after=after,
        )
        return await self.store.processes.listed(wanted, limit)

    async def retry(self, process_id: str) -> None:
        """Continue a blocked process."""
        services = self._use("retry").services
        checked_process(process_id)
        record = await self.store.processes.get(process_id)
        if record is None:
            raise ProcessUnknown(process_id)
        if not await self.store.runs.retry(record.run, services.new_id()):
            view = await self.store.processes.view(process_id)
            # A process without a worker for its target is shown as blocked, and has nothing to retry.
            if view is None or view.status is not RunState.BLOCKED:
                raise NotBlocked(process_id, record.run_state)

    async def fork_process(
        self,
        process_id: str,
        *,
        from_effect: str | None = None,
        id: str | None = None,  # noqa: A002 - as in options
    ) -> ProcessHandle[Any]:
        """Start a process with the effects that another recorded before ``from_effect`` (None: all of them)."""
        services = self._use("fork_process").services
        checked_process(process_id)
        if id is None:
            new_id = f"{process_id[:MAX_NAME_BYTES]}-fork-{services.new_id()}"
        else:
            new_id = check_name("process id", id, error=MissingProcessExecutionId)
        await services.control.complete(self._fork(process_id, from_effect, new_id))
        return self._handle(new_id)

    async def _fork(self, process_id: str, from_effect: str | None, new_id: str) -> None:
        store, control = self._parts.services.store, self._parts.services.control
        record = await store.processes.get(process_id)
        if record is not None:
            await collect(self.given_host, store, record)
        registration, keys = await fork_registration(store, process_id, from_effect, new_id)
        await control.perform_in_call(ForkProcess(process_id, registration, tuple(keys)))

    # --- exports ---

    async def export_process(
        self,
        process_id: str,
        path: str | Path,
        *,
        children: bool = False,
        redact: bool = False,
        keep_secrets: bool = False,
    ) -> None:
        """Write a process with its log and its journal to a file, for ``import_process`` and ``pylash.testing.replay``.

        ``children`` adds the processes and sessions that it started or waited for. ``redact`` leaves out all recorded values, and
        ``keep_secrets`` none; otherwise those that look like secrets are left out. Keys of waits are never written.

        >>> await app.export_process("order-7", "order-7.json")
        """
        parts = self._use("export_process")
        checked_process(process_id)
        reading = partial(export, parts.services.store, process_id=process_id, children=children)
        kept = partial(reading, redact=redact, keep_secrets=keep_secrets)
        await write_export(path, kept(engine=self.given_host))

    async def export_session(
        self,
        session_id: str,
        path: str | Path,
        *,
        children: bool = False,
        redact: bool = False,
        keep_secrets: bool = False,
    ) -> None:
        """Write a session with its messages and turns to a file; the options are those of ``export_process``.

        >>> await app.export_session("chat-42", "chat-42.json")
        """
        parts = self._use("export_session")
        checked_session(session_id)
        reading = partial(export, parts.services.store, session_id=session_id, children=children)
        kept = partial(reading, redact=redact, keep_secrets=keep_secrets)
        await write_export(path, kept(engine=self.given_host))

    async def import_process(self, path: str | Path) -> ProcessHandle[Any]:
        """Add the process in a file to the store, where it goes on; raises ImportConflict if its id is taken.

        >>> handle = await app.import_process("order-7.json")
        """
        services = self._use("import_process").services
        importing = partial(import_file, services.store, self._signer, path, kind="process")
        found = await importing(engine=self.given_host, now=services.clock.now())
        return self._handle(found.id)

    async def import_session(self, path: str | Path) -> Session:
        """Add the session in a file to the store, where it goes on; raises ImportConflict if its id is taken.

        >>> session = await app.import_session("chat-42.json")
        """
        services = self._use("import_session").services
        importing = partial(import_file, services.store, self._signer, path, kind="session")
        found = await importing(engine=self.given_host, now=services.clock.now())
        return self.session(found.id)

    # --- Lashlang ---

    async def lashlang(self, source: str) -> LashlangModule:
        """Link a Lashlang program against the app's tools, and store it, so that its processes can be started.

        Raises LashlangError; its ``errors`` have the problems and their positions.

        >>> module = await app.lashlang("process greet(who: str) { finish 'Hello ' + who }")
        >>> handle = await app.start(module["greet"], who="Ann")
        """
        self._use("lashlang")
        if not isinstance(source, str):
            raise ArgumentsInvalid("app.lashlang", "the program must be a string")
        return await self._workflows.module(source)

    def trace_lashlang(self, sink: Callable[[dict[str, Any]], None]) -> None:
        """Call sink for every node that Lashlang programs execute in this app.

        Each event has a ``key``: the same key is the same event, also after a restart.

        >>> app.trace_lashlang(print)
        """
        self._workflows.add_sink(sink)

    def workflows(self) -> list[Tool[..., Any]]:
        """Add tools with which the model checks, starts, signals, lists and cancels Lashlang workflows; return them."""
        known = self.catalog.tools
        return [known.get(one.name) or self.add_tool(one) for one in self._workflows.tools()]

    # --- sessions ---

    def session(  # noqa: PLR0913 - the options of a session
        self,
        id: str,  # noqa: A002 - the public name
        *,
        model: Any = None,
        instructions: str | None = None,
        tools: Sequence[Any] | None = None,
        mode: Literal["standard", "code"] = "standard",
        language: Literal["lashlang", "python"] = "lashlang",
        budget: TurnBudget | None = None,
        history: History | None = None,
        plugin_options: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
    ) -> Session:
        """Return the handle of a session; its first use creates the session. Changed options apply from the next turn.

        ``tags`` are texts that ``app.sessions(tag=…)`` finds it by, from its next turn; None leaves those that it has.
        ``mode`` and ``language`` accept only their defaults: models act by calling tools.

        >>> session = app.session("chat-42")
        """
        parts = self._use("session")
        options = SessionOptions(
            model=self.catalog.model_name(model),
            instructions=instructions,
            tools=self.catalog.tool_names(tools),
            mode=mode,
            language=language,
            budget=budget,
            history=history,
            plugin_options=plugin_options,
            tags=None if tags is None else checked_tags("app.session", tags),
        )
        checked_options("app.session", options)
        # Without a worker, other apps run the session with their own catalogs.
        if self.worker_config is not None:
            self.catalog.check(options)
        return Session(id, options, parts.services, parts.runner, parts.turn_results, self._start)

    async def sessions(
        self, *, tag: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[SessionView]:
        """Return sessions, those that were created last first; with ``tag``, those that have it.

        ``after`` continues a list: the id of the last session of the page before. Sessions that are created meanwhile change no later page.

        >>> page = await app.sessions(limit=20)
        >>> following = await app.sessions(limit=20, after=page[-1].id)
        """
        self._use("sessions")
        _check_limit("app.sessions", limit)
        if after is not None:
            checked_session(after)
        if tag is not None:
            checked_tag(tag)
        return await self.store.sessions.listed(limit, after, tag)

    async def attachment(self, found: Attachment | str) -> bytes:
        """Return the bytes of an attachment, or of its ``ref``.

        >>> picture = await app.attachment(result.attachments[0])
        """
        return await attachment_bytes(found, self._use("attachment").services.store.attachments)

    # --- waits ---

    async def waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits, oldest first: approvals, deferred tools, signals, custom ones."""
        parts = self._use("waits")
        if session_id is not None:
            checked_session(session_id)
        return await open_waits(parts.effects, self.store.processes, session_id)

    async def resolve(
        self, key: str, value: Any = None, *, error: str | None = None, by: str | None = None
    ) -> ResolveOutcome:
        """Resolve a wait with a value or an error. The first resolution wins.

        Raises WaitKeyInvalid for a text that is not a key; a key of an unknown wait gives ``unknown_or_revoked``.
        Cancellation: atomic.

        >>> await app.resolve(wait.key, True)
        """
        parts = self._use("resolve")
        if by is not None:
            check_name("name in by=", by)
        control = parts.services.control
        return await control.complete(resolve_wait(control, key, value, error, by))

    # --- internals ---

    @property
    def store(self) -> Store:
        """The open store."""
        return self.services.store

    @property
    def services(self) -> SessionServices:
        """The objects that the parts of the app share."""
        return self._opened().services

    @property
    def running(self) -> SessionServices:
        """The same, also while the app closes and its last runs end."""
        return self._parts.services

    @property
    def effect_host(self) -> EffectHost:
        """The host of all effects: the given one, or the journal of the store."""
        return self._parts.effects

    @property
    def template(self) -> Registration:
        """The registration that every process of the app inherits."""
        return self._parts.template

    @property
    def runner(self) -> Runner:
        """The runner in this process; it executes nothing if the app has ``worker=None``."""
        return self._opened().runner

    @cached_property
    def _workflows(self) -> Workflows:
        from pylash.workflows.workflows import (  # noqa: PLC0415 - the language is loaded when used
            Workflows,
        )

        return Workflows(self)

    def _opened(self) -> OpenParts:
        if self._stack is None:
            raise AppNotOpen
        return self._parts

    def _use(self, name: str) -> OpenParts:
        """Return the parts of the open app for a method, or refuse a call inside a process."""
        parts = self._opened()
        parts.services.refuse_inside_process(name)
        return parts

    def _handle(
        self, process_id: str, definition: Definition[Any, Any] | None = None
    ) -> ProcessHandle[Any]:
        result = None if definition is None else definition.arguments.result
        return ProcessHandle(process_id, self._parts.services, result)


@asynccontextmanager
async def open_host(
    store: str | None = None,
    *,
    secret: str | bytes | Sequence[str | bytes] | None = None,
    clock: Clock | None = None,
    timings: LeaseTimings | None = None,
    migrate: bool | None = None,
    member: bool = True,
    read_only: bool = False,
) -> AsyncIterator[JournalHost]:
    """Open a store and a durable effect host over it.

    ``store`` defaults to ``PYLASH_STORE`` or else ``sqlite:///pylash.db``, ``secret`` to
    ``PYLASH_SECRET`` or the one the store made for itself; of several secrets the first signs and all
    verify. A given ``clock`` becomes the store's clock too. ``member=False`` is for tools that only read
    the store and resolve waits: the host does not join the workers and executes nothing; ``migrate=False`` leaves the
    database as it is. ``read_only`` does both, and refuses every write.

    >>> async with open_host("sqlite:///agents.db") as host:
    ...     controller = host.scoped(ProcessScope("nightly"))
    """
    opened = await open_store(
        store_url(store),
        clock=clock or SystemClock(),
        entropy=system_entropy,
        migrate=migrate,
        simulated=clock is not None,
        read_only=read_only,
    )
    try:
        given = (os.environ.get("PYLASH_SECRET") or opened.secret) if secret is None else secret
        host = JournalHost(
            opened,
            clock=clock or SystemClock(),
            entropy=system_entropy,
            signer=Signer(_secrets(given)),
            timings=timings,
        )
        await host.open(member=member and not read_only)
        try:
            yield host
        finally:
            await host.close()
    finally:
        await opened.close()


def store_url(store: str | None = None) -> str:
    """Return the store to open if one is named, or else ``PYLASH_STORE`` or ``sqlite:///pylash.db``."""
    return os.environ.get("PYLASH_STORE") or DEFAULT_STORE if store is None else store


def _moment(given: datetime | Duration | None, now: Instant) -> Instant | None:
    """Return the time that is meant: a given one, or so long before now."""
    if given is None:
        return None
    if isinstance(given, datetime):
        return Instant(round(given.timestamp() * SECOND))
    return Instant(now - micros(given))


def _check_limit(method: str, limit: Any) -> None:
    if not isinstance(limit, int) or limit < 1:
        raise ArgumentsInvalid(method, f"limit={limit!r} is not a number of at least 1")


def _secrets(secret: str | bytes | Sequence[str | bytes]) -> list[bytes]:
    several = [secret] if isinstance(secret, str | bytes) else secret
    return [one.encode() if isinstance(one, str) else one for one in several]
