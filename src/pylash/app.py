"""The composition root: wires a store, a clock, a host and a worker together, and decides nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property, partial
from inspect import isawaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from pylash.declarations import Declarations
from pylash.durable import (
    Clock,
    EffectHost,
    ExternalInput,
    LashlangInput,
    LeaseTimings,
    ProcessView,
    Registration,
    ResolveOutcome,
    RunState,
    Signer,
    Store,
    checked_process,
    checked_session,
)
from pylash.models import Models
from pylash.runtime import (
    Catalog,
    Definition,
    Environment,
    Histories,
    JournalHost,
    LiveRun,
    Observers,
    OpenWait,
    PluginFactory,
    Prepared,
    ProcessDefinition,
    ProcessHandle,
    PythonPrograms,
    Retention,
    Services,
    Session,
    SystemClock,
    Tool,
    Triggers,
    TriggerType,
    TurnEnds,
    TurnExecution,
    Worker,
    WorkerConfig,
    attachment_bytes,
    fork_registration,
    open_waits,
    play_session_turn,
    prepared,
    require_durable_stores,
    resolve_wait,
    system_entropy,
)
from pylash.stores import SqlStore, open_store
from pylash.turn import Attachment, History, SessionOptions, TurnBudget, checked_options
from pylash.values import (
    MAX_NAME_BYTES,
    AppNotOpen,
    ArgumentsInvalid,
    MissingProcessExecutionId,
    NotBlocked,
    ProcessUnknown,
    check_name,
    micros,
)

if TYPE_CHECKING:
    from pylash.workflows import LashlangModule, Workflows

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("pylash")

DEFAULT_STORE = "sqlite:///pylash.db"


class Lash(Declarations):
    """An app: a store, what runs on it, and a worker.

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
        host: EffectHost | None = None,
        worker: WorkerConfig | None = WorkerConfig(),  # noqa: B008 - it is frozen
        secret: str | bytes | Sequence[str | bytes] | None = None,
        retention: Retention = Retention(),  # noqa: B008 - it is frozen
        clock: Clock | None = None,
        migrate: bool | None = None,
    ) -> None:
        each = plugins if isinstance(plugins, Sequence) else ()
        for name, given, kind, wanted in (
            ("instructions", instructions, str, "a text"),
            ("worker", worker, WorkerConfig | None, "a WorkerConfig or None"),
            ("retention", retention, Retention, "a Retention"),
            ("host", host, EffectHost | None, "an EffectHost or None"),
            ("clock", clock, Clock | None, "a Clock or None"),
            ("migrate", migrate, bool | None, "True, False or None"),
            ("plugins", plugins, Sequence, "a list of plugin factories"),
            *(("plugins", one, PluginFactory, "a plugin factory") for one in each),
        ):
            if not isinstance(given, kind):
                raise ArgumentsInvalid("Lash", f"{name}={given!r} is not {wanted}")
        chosen = os.environ.get("PYLASH_MODEL") if model is None else model
        self._models = Models()
        super().__init__(Catalog(chosen, instructions, plugins, self._models.adapt))
        self.url = store
        self._deps = deps
        self._given_host = host
        self.worker_config = worker
        self.secret = secret
        self._retention = retention
        self._clock = clock
        self._migrate = migrate
        for given in tools:
            self.add_tool(given)
        self._stack: AsyncExitStack | None = None
        self.triggers = Triggers(self)

    # --- opening and closing ---

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store and start the worker."""
        if self._stack is not None:
            return
        async with AsyncExitStack() as stack:
            config = self.worker_config or WorkerConfig()
            lease = micros(config.lease)
            renew = lease // 3 if config.renew is None else micros(config.renew)
            self._journal = await stack.enter_async_context(
                open_host(
                    self.url,
                    secret=self.secret,
                    clock=self._clock,
                    timings=LeaseTimings(ttl=lease, renew_every=renew),
                    migrate=self._migrate,
                )
            )
            self.effect_host: EffectHost = self._given_host or self._journal
            require_durable_stores(self.effect_host, self._journal.store.durability)
            await self._wire(stack, config)
            self._stack = stack.pop_all()

    async def _wire(self, stack: AsyncExitStack, config: WorkerConfig) -> None:
        """Put together what runs on the open store."""
        host, clock = self._journal, self._journal.clock
        stack.push_async_callback(self._models.close)
        self._services = Services(host.store, host, self.effect_host, clock, system_entropy)
        self._services.definitions = self._definitions
        self._services.catalog = self._catalog
        if config.residency == "active_path_only":
            self._services.histories = Histories(host.store.sessions, keep=0)
        self._services.emit_trigger = self._emit
        self._services.check_trigger = self.triggers.payload
        self._services.run_workflow = self._run_workflow
        environment = Environment(self._catalog.model, self._catalog.instructions)
        self._services.env = environment.ref
        self._template = Registration(id="", input=ExternalInput(), env=environment.ref)
        await host.store.envs.put(environment.ref, environment.body)
        for definition in self._definitions.values():
            await definition.prepare()
        for declared in self._catalog.tools.values():
            await declared.prepare()
        self._services.deps = await self._made_deps(stack)
        programs = PythonPrograms(self._services, play_session_turn)
        turns = partial(TurnExecution, self._services)
        self._worker = Worker(host, self.effect_host, programs, turns, config, self._retention)
        here = self._worker.runs_here
        self._observers = Observers(host.store, here, host.tasks)
        ends = TurnEnds(host.store.sessions)
        self._turn_observers = Observers(host.store, here, host.tasks, ends, "turn")
        self._worker.told = self._told
        stack.callback(self._observers.close)
        stack.callback(self._turn_observers.close)
        if self.worker_config is not None:
            await self._worker.open()
            stack.push_async_callback(self._worker.close)
        elif isinstance(host.store, SqlStore) and not await host.store.inspection.has_workers():
            _log.warning(
                "no worker is running on this store: what this app asks for waits until one does"
            )
        if (watch := getattr(self._clock, "watch", None)) is not None:
            stack.callback(watch(self._worker.quiet))

    async def _made_deps(self, stack: AsyncExitStack) -> Any:
        """Return the dependencies: a value, or what a factory makes for as long as we are open."""
        made = self._deps() if callable(self._deps) else self._deps
        if isawaitable(made):
            made = await made
        if hasattr(made, "__aenter__"):
            made = await stack.enter_async_context(made)
        return made

    async def close(self) -> None:
        """Drain: claim nothing more, wait the grace, park or release the rest."""
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
        services = self._use("start")
        chosen = prepared(target)
        if chosen.attached:
            reason = "attached=True is for a process that another one starts with ctx.start"
            raise ArgumentsInvalid("app.start", reason)
        await chosen.definition.prepare()
        command = chosen.command(args, kwargs, services.new_id, self._template)
        await self._worker.start(command, is_new=chosen.process_id is None)
        return self._handle(command.registration.id, chosen.definition)

    @overload
    def process_handle(self, process_id: str) -> ProcessHandle[Any]: ...
    @overload
    def process_handle(
        self, process_id: str, process: ProcessDefinition[Any, R]
    ) -> ProcessHandle[R]: ...
    def process_handle(
        self, process_id: str, process: ProcessDefinition[Any, Any] | None = None
    ) -> ProcessHandle[Any]:
        """Return the handle of a process; ``process`` says what its result is."""
        self._use("process_handle")
        checked_process(process_id)
        return self._handle(process_id, process)

    async def processes(
        self, *, status: RunState | str | None = None, limit: int = 100
    ) -> list[ProcessView]:
        """Return processes, the newest first."""
        self._use("processes")
        if status is not None and status not in list(RunState):
            known = ", ".join(RunState)
            raise ArgumentsInvalid(
                "app.processes", f"there is no status {status!r} (known: {known})"
            )
        if not isinstance(limit, int) or limit < 1:
            raise ArgumentsInvalid("app.processes", f"limit={limit!r} is no number of at least 1")
        wanted = None if status is None else RunState(status).value
        return await self.store.processes.listed(wanted, limit)

    async def retry(self, process_id: str) -> None:
        """Let a blocked process go on."""
        services = self._use("retry")
        checked_process(process_id)
        record = await self.store.processes.get(process_id)
        if record is None:
            raise ProcessUnknown(process_id)
        if not await self.store.runs.retry(record.run, services.new_id()):
            view = await self.store.processes.view(process_id)
            if (
                view is None or view.status is not RunState.BLOCKED
            ):  # else it waits for a worker only
                raise NotBlocked(process_id, record.run_state)

    async def fork_process(
        self,
        process_id: str,
        *,
        from_effect: str | None = None,
        id: str | None = None,  # noqa: A002 - as in options
    ) -> ProcessHandle[Any]:
        """Start a process with what another recorded before an effect (None: everything it did)."""
        services = self._use("fork_process")
        checked_process(process_id)
        if id is None:
            new_id = f"{process_id[:MAX_NAME_BYTES]}-fork-{services.new_id()}"
        else:
            new_id = check_name("process id", id, error=MissingProcessExecutionId)
        registration, keys = await fork_registration(self.store, process_id, from_effect, new_id)
        await self.store.processes.fork(process_id, registration, keys)
        return self._handle(registration.id)

    # --- Lashlang ---

    async def lashlang(self, source: str) -> LashlangModule:
        """Link a Lashlang program against the app's tools, and store it: its processes can be started.

        Raises LashlangError, whose ``errors`` say what is wrong and where.

        >>> module = await app.lashlang("process greet(who: str) { finish 'Hello ' + who }")
        >>> handle = await app.start(module["greet"], who="Ann")
        """
        self._use("lashlang")
        if not isinstance(source, str):
            raise ArgumentsInvalid("app.lashlang", "the program must be a text")
        return await self._workflows.module(source)

    def trace_lashlang(self, sink: Callable[[dict[str, Any]], None]) -> None:
        """Tell sink what Lashlang programs do, node by node; nobody else hears of it.

        Each event has a ``key``: the same key is the same event, also after a restart.

        >>> app.trace_lashlang(print)
        """
        self._workflows.add_sink(sink)

    def workflows(self) -> list[Tool[..., Any]]:
        """Give the model tools to check, start, signal, list and cancel Lashlang workflows; return them."""
        known = self._catalog.tools
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
    ) -> Session:
        """Return a conversation: a handle, made by the first use. Other options hold from the next turn.

        ``mode`` and ``language`` are refused unless they are as given here: models act by calling tools.

        >>> session = app.session("chat-42")
        """
        self._use("session")
        options = SessionOptions(
            model=self._catalog.named_model(model),
            instructions=instructions,
            tools=self._catalog.named_tools(tools),
            mode=mode,
            language=language,
            budget=budget,
            history=history,
            plugin_options=plugin_options,
        )
        checked_options("app.session", options)
        if self.worker_config is not None:  # else others run it, and know what there is
            self._catalog.check(options)
        return Session(id, options, self._services, self._worker, self._turn_observers)

    async def attachment(self, found: Attachment | str) -> bytes:
        """Return the bytes of an attachment, or of its ``ref``.

        >>> picture = await app.attachment(result.attachments[0])
        """
        return await attachment_bytes(found, self._use("attachment").store.attachments)

    # --- waits ---

    async def waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits, oldest first: approvals, deferred tools, signals, custom ones."""
        self._use("waits")
        if session_id is not None:
            checked_session(session_id)
        return await open_waits(self._journal, self.effect_host, session_id)

    async def resolve(
        self, key: str, value: Any = None, *, error: str | None = None, by: str | None = None
    ) -> ResolveOutcome:
        """Answer a wait, with a value or an error. The first answer wins.

        Cancellation: atomic.

        >>> await app.resolve(wait.key, True)
        """
        self._use("resolve")
        if by is not None:
            check_name("name in by=", by)
        return await resolve_wait(self._journal, self.effect_host, key, value, error, by)

    # --- inside ---

    @property
    def store(self) -> Store:
        """The open store."""
        self._opened()
        return self._journal.store

    @property
    def services(self) -> Services:
        """What the parts of the app share."""
        self._opened()
        return self._services

    @property
    def running(self) -> Services:
        """What the parts of the app share, also while it closes and the last runs end."""
        return self._services

    @property
    def catalog(self) -> Catalog:
        """What the app has by name."""
        return self._catalog

    @property
    def template(self) -> Registration:
        """What every process of this app is registered with."""
        return self._template

    @property
    def trigger_types(self) -> dict[str, TriggerType]:
        """The declared types of events."""
        return self._types

    def _told(self, run_id: str, output: Any) -> None:
        self._observers.tell(run_id, output)
        self._turn_observers.tell(run_id, output)

    async def _emit(self, emitted: Any, key: str) -> None:
        """Emit what a tool emitted, once."""
        await self.triggers.emit_recorded(emitted, key)

    @cached_property
    def _workflows(self) -> Workflows:
        from pylash.workflows import Workflows  # noqa: PLC0415 - the language is loaded when it is used

        return Workflows(self)

    async def _run_workflow(self, run: LiveRun, given: LashlangInput) -> Any:
        return await self._workflows.run(run, given)

    def _opened(self) -> None:
        if self._stack is None:
            raise AppNotOpen

    def _use(self, name: str) -> Services:
        self._opened()
        self._services.outside(name)
        return self._services

    def _handle(
        self, process_id: str, definition: Definition[Any, Any] | None = None
    ) -> ProcessHandle[Any]:
        result = None if definition is None else definition.arguments.result
        return ProcessHandle(process_id, self._services, self._observers, result)


@asynccontextmanager
async def open_host(
    store: str | None = None,
    *,
    secret: str | bytes | Sequence[str | bytes] | None = None,
    clock: Clock | None = None,
    timings: LeaseTimings | None = None,
    migrate: bool | None = None,
    member: bool = True,
) -> AsyncIterator[JournalHost]:
    """Open a store and a durable effect host over it.

    ``store`` defaults to ``PYLASH_STORE`` or else ``sqlite:///pylash.db``, ``secret`` to
    ``PYLASH_SECRET`` or the one the store made for itself; of several secrets the first signs and all
    verify. A ``clock`` of your own becomes the store's clock too. ``member=False`` is for tools that look
    and answer: they run nothing, and with ``migrate=False`` nothing is set up for them either.

    >>> async with open_host("sqlite:///agents.db") as host:
    ...     controller = host.scoped(ProcessScope("nightly"))
    """
    opened = await open_store(
        store_url(store),
        clock=clock or SystemClock(),
        entropy=system_entropy,
        migrate=migrate,
        simulated=clock is not None,
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
        await host.open(member=member)
        try:
            yield host
        finally:
            await host.close()
    finally:
        await opened.close()


def store_url(store: str | None = None) -> str:
    """Return the store to open if one is named, or else ``PYLASH_STORE`` or ``sqlite:///pylash.db``."""
    return os.environ.get("PYLASH_STORE") or DEFAULT_STORE if store is None else store


def _secrets(secret: str | bytes | Sequence[str | bytes]) -> list[bytes]:
    several = [secret] if isinstance(secret, str | bytes) else secret
    return [one.encode() if isinstance(one, str) else one for one in several]
