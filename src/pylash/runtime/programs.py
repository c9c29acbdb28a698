"""Programs: the functions that processes run, and what is captured with a start.

Rule 1. A process is its name and its signature: any app may start it, any worker that knows the name
        may run it.
Rule 2. What a worker needs it rebuilds from the captured environment, never from who started it.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from string import Formatter
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import msgspec

from pylash.durable import (
    LASHLANG,
    SESSION_TURN,
    TURN_TARGET,
    Clock,
    CustomWait,
    EffectHost,
    EffectKind,
    EngineInput,
    Entropy,
    ExternalInput,
    Instant,
    JournalEntry,
    LashlangInput,
    ProcessCommand,
    ProcessOutcome,
    ProcessSignal,
    Registration,
    SessionRef,
    SessionTurnInput,
    Slot,
    StartProcess,
    Store,
    ToolCallInput,
    WaitIdentity,
    WaitName,
    checked_identity,
    checked_session,
    command_of,
    expect,
)
from pylash.runtime.branches import CURRENT
from pylash.runtime.catalog import Catalog
from pylash.runtime.context import ProcessContext
from pylash.runtime.controller import Awaited, look
from pylash.runtime.executors import RegistryWork
from pylash.runtime.feeds import Feeds
from pylash.runtime.handles import ChildHandle
from pylash.runtime.histories import Histories
from pylash.runtime.inline import InlineHost
from pylash.runtime.journal import JournalHost
from pylash.runtime.records import answer
from pylash.runtime.runs import LiveRun
from pylash.runtime.signatures import Arguments, Shape, Signature, signature_of
from pylash.runtime.tools import Tool
from pylash.values import (
    AppInsideProcess,
    ArgumentsInvalid,
    AwaitEventUnknownOrRevoked,
    Duration,
    MissingProcessExecutionId,
    NotAProcess,
    ProcessRecoveryFailed,
    check_name,
    encode,
    micros,
    storable,
)

P = ParamSpec("P")
R = TypeVar("R")

POLL_SECONDS: Final = 0.05
"""How often a host without a journal asks for a signal or a child: nobody wakes it."""


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is captured with a start: options by name, never objects."""

    model: str | None = None
    instructions: str = ""
    plugins: tuple[str, ...] = ()

    @property
    def body(self) -> bytes:
        """The environment as it is stored."""
        return encode(self)

    @property
    def ref(self) -> str:
        """The name under which it is stored: the hash of its content."""
        return hashlib.sha256(self.body).hexdigest()


class Definition(Generic[P, R]):
    """Something that runs as a process, by its name."""

    name: str
    timeout: int | None = None

    @property
    def arguments(self) -> Arguments:
        """What it takes and returns."""
        raise NotImplementedError

    def input(self, arguments: dict[str, Any]) -> EngineInput | LashlangInput:
        """Return what a process of it is registered with."""
        raise NotImplementedError

    def signals(self) -> dict[str, Any] | None:
        """Return the JSON Schemas of the signals it takes, by name; None takes any."""
        return None

    async def prepare(self) -> None:
        """Load what is needed to check arguments and result, once."""

    def slot(self, arguments: Mapping[str, Any]) -> Slot | None:  # noqa: ARG002 - none by default
        """Return the concurrency key of a start."""
        return None

    def slot_template(self) -> Slot | None:
        """Return the concurrency key of starts whose arguments come later; it must be a text."""
        return None

    def options(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the public name
        wake: str | None = None,
        delay: Duration | None = None,
        attached: bool = False,
    ) -> Prepared[P, R]:
        """Return the process with options for one start.

        >>> await app.start(onboarding.options(id="onboard-ann", delay="1h"), user="ann")
        """
        if id is not None:
            check_name("process id", id, error=MissingProcessExecutionId)
        if wake is not None:
            checked_session(wake)
        return Prepared(self, id, wake, 0 if delay is None else micros(delay), attached)


class ProcessDefinition(Definition[P, R]):
    """An async function that runs as a process.

    >>> @app.process
    ... async def greet(ctx: ProcessContext[None], name: str) -> str:
    ...     return f"Hello {name}"
    """

    def __init__(
        self,
        function: Callable[Concatenate[ProcessContext[Any], P], Awaitable[R]],
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        key: Callable[..., str] | str | None = None,
    ) -> None:
        call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004 - an object may be called
        if not inspect.iscoroutinefunction(call) or not inspect.signature(function).parameters:
            raise NotAProcess(function)
        self.function = function
        named = str(getattr(function, "__name__", "process")) if name is None else name
        self.name = check_name("process name", named)
        self.timeout = None if timeout is None else micros(timeout)
        self._refuse_slot(concurrency, key)
        self._concurrency = concurrency
        self._key = key
        self._prepared = False
        self.__doc__ = function.__doc__

    def _refuse_slot(self, concurrency: Any, key: Any) -> None:
        limited = isinstance(concurrency, int) and not isinstance(concurrency, bool)
        reason = None
        if concurrency is not None and not (limited and concurrency >= 1):
            reason = f"concurrency={concurrency!r} is no number of at least 1"
        elif key is not None and concurrency is None:
            reason = f"key={key!r} does nothing without concurrency="
        elif not (key is None or isinstance(key, str) or callable(key)):
            reason = f"key={key!r} is neither a text such as '{{user}}' nor a function"
        elif isinstance(key, str):
            reason = self._key_trouble(key)
        if reason is not None:
            raise ArgumentsInvalid(f"process {self.name!r}", reason)

    def _key_trouble(self, key: str) -> str | None:
        """Return why a text is no concurrency key of the process, if so: it may name its parameters."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
            return None
        known = [one.name for one in parameters]
        try:
            fields = [name for _, name, _, _ in Formatter().parse(key) if name is not None]
        except ValueError as error:
            return f"key={key!r} is no text such as '{{user}}': {error}"
        for field in fields:
            if re.split(r"[.\[]", field, maxsplit=1)[0] not in known:
                listed = ", ".join(known) or "none"
                return f"key={key!r} names {field!r}, which is none of its parameters ({listed})"
        return None

    def __repr__(self) -> str:
        return f"ProcessDefinition({self.name!r})"

    def __call__(self, ctx: ProcessContext[Any], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Call the function as a part of another process."""
        return self.function(ctx, *args, **kwargs)

    @cached_property
    def signature(self) -> Signature:
        """What the process takes and returns."""
        return signature_of(self.function, f"process {self.name!r}")

    @property
    def arguments(self) -> Arguments:
        """What it takes and returns."""
        return self.signature

    def input(self, arguments: dict[str, Any]) -> EngineInput:
        """Return what a process of it is registered with."""
        return EngineInput("python", self.name, arguments)

    async def prepare(self) -> None:
        """Load what is needed to check arguments and result, once."""
        if not self._prepared:
            await self.signature.prepare()
            self._prepared = True

    def slot(self, arguments: Mapping[str, Any]) -> Slot | None:
        """Return the concurrency key of a start."""
        if self._concurrency is None:
            return None
        try:
            text = self._slot_text(arguments)
        except KeyError as error:
            reason = f"its concurrency key {self._key!r} needs the argument {error}"
            raise ArgumentsInvalid(f"process {self.name!r}", reason) from None
        return Slot(storable(f"{self.name}:{text}"), self._concurrency)

    def _slot_text(self, arguments: Mapping[str, Any]) -> str:
        if self._key is None:
            return ""
        if isinstance(self._key, str):
            defaults = self.signature.defaults()
            return self._key.format(**{**defaults, **arguments})
        return self._key(**arguments)

    def slot_template(self) -> Slot | None:
        """Return the concurrency key of starts whose arguments come later; it must be a text."""
        if self._concurrency is None:
            return None
        if callable(self._key):
            reason = "its concurrency key is a function, and a subscription needs a text such as '{user}'"
            raise ArgumentsInvalid(f"process {self.name!r}", reason)
        name = self.name.replace("{", "{{").replace("}", "}}")
        return Slot(f"{name}:{self._key or ''}", self._concurrency)


class Prepared(Generic[P, R]):
    """A process with options for one start."""

    def __init__(
        self,
        definition: Definition[P, R],
        process_id: str | None = None,
        wake: str | None = None,
        delay: int = 0,
        attached: bool = False,
    ) -> None:
        self.definition = definition
        self.process_id = process_id
        self.wake = wake
        self.delay = delay
        self.attached = attached

    @property
    def name(self) -> str:
        """The process's name."""
        return self.definition.name

    def command(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        new_id: Callable[[], str],
        inherited: Registration,
    ) -> StartProcess:
        """Return the command that starts it, with what it inherits."""
        arguments = self.definition.arguments.dump(args, kwargs)
        wake_target = inherited.wake_target if self.wake is None else SessionRef(self.wake)
        registration = Registration(
            id=f"{self.name}-{new_id()}" if self.process_id is None else self.process_id,
            input=self.definition.input(arguments),
            signals=self.definition.signals(),
            originator=inherited.originator if self.wake is None else SessionRef(self.wake),
            wake_target=wake_target,
            env=inherited.env,
            parent=inherited.parent,
            attached=self.attached,
            timeout=None if (limit := self.definition.timeout) is None else limit + self.delay,
            slot=self.definition.slot(arguments),
        )
        return StartProcess(registration, self.delay)

    def template(
        self, constants: Mapping[str, Any], inherited: Registration, session_id: str | None
    ) -> Registration:
        """Return what a subscription starts, still without an id, and with its constants checked."""
        if self.process_id is not None or self.attached:
            given = "attached" if self.process_id is None else "id"
            reason = (
                f"every event starts a process of its own, so {given}= of its options does nothing"
            )
            raise ArgumentsInvalid("triggers.register", reason)
        signature = self.definition.arguments
        arguments = {name: signature.dump_one(name, value) for name, value in constants.items()}
        session = None if session_id is None else SessionRef(session_id)
        wake = session if self.wake is None else SessionRef(self.wake)
        return Registration(
            id="",
            input=self.definition.input(arguments),
            signals=self.definition.signals(),
            originator=session or inherited.originator,
            wake_target=wake,
            env=inherited.env,
            timeout=self.definition.timeout,
            slot=self.definition.slot_template(),
        )


def prepared(target: object) -> Prepared[Any, Any]:
    """Return target with its options, or refuse what is no process."""
    if isinstance(target, Prepared):
        return target
    if isinstance(target, Definition):
        return Prepared(target)
    raise NotAProcess(target)


class Services:
    """What contexts and handles need of the app."""

    def __init__(
        self,
        store: Store,
        host: JournalHost,
        effects: EffectHost,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.store = store
        self.deps: Any = None
        self.catalog = Catalog(None, "", ())
        self.feeds = Feeds()
        self.histories = Histories(store.sessions)
        self.tasks = host.tasks
        self.env = ""
        self.emit_trigger: Callable[[Any, str], Awaitable[None]] = _no_triggers
        self.check_trigger: Callable[[str, Any], Any] = lambda _, payload: payload
        self.definitions: dict[str, ProcessDefinition[Any, Any]] = {}
        self.run_workflow: Callable[[LiveRun, LashlangInput], Awaitable[Any]] = _no_workflows
        self._host = host
        self._effects = effects
        self._clock = clock
        self._entropy = entropy

    def new_id(self) -> str:
        """Return a new id; ids sort by time, so that indexes grow at one end.

        Nothing tells two equal ids apart, so there are enough random bits (48) that none are drawn in one millisecond.
        """
        return f"{self._clock.now() // 1000:x}{self._entropy(6).hex()}"

    def now(self) -> Instant:
        """Return the time."""
        return self._clock.now()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._clock.monotonic()

    def outside(self, name: str) -> None:
        """Refuse what must not be used inside a process."""
        if CURRENT.get() is not None:
            raise AppInsideProcess(name)

    # --- what contexts ask ---

    def ride(self, run: LiveRun, key: str) -> int:
        """Return the time, recorded with the next effect."""
        if run.journal is None:
            return self._clock.now()
        at: int = run.journal.ride(key, self._clock.now)
        return at

    def wait_key(self, run: LiveRun, wait: WaitIdentity) -> str:
        """Return the signed key of a wait of a run."""
        epoch = run.process.state.epoch
        if isinstance(self._effects, InlineHost):
            return self._effects.key(run.scope, wait)
        return self._host.signer.sign(WaitName(run.scope, checked_identity(wait), epoch))

    def turn_wait_key(self, run: LiveRun, wait: WaitIdentity, generation: int) -> str:
        """Return the signed key of a wait of a turn."""
        if isinstance(self._effects, InlineHost):
            return self._effects.key(run.scope, wait)
        return self._host.signer.sign(WaitName(run.scope, checked_identity(wait), generation))

    def wait_name(self, key: str) -> str:
        """Return what people call the wait of a key."""
        signer = self._effects if isinstance(self._effects, InlineHost) else self._host
        name = signer.name_in(key)
        match name.wait:
            case CustomWait(key=text):
                return text
            case ProcessSignal(signal_name=text):
                return text
            case _:
                raise AwaitEventUnknownOrRevoked

    def child(
        self,
        run: LiveRun,
        target: object,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        seed: str,
    ) -> tuple[StartProcess, Shape]:
        """Return the command that starts a process from another, which it inherits from."""
        chosen = prepared(target)
        inherited = msgspec.structs.replace(run.process.registration, parent=run.id)
        command = chosen.command(args, kwargs, lambda: seed, inherited)
        return command, chosen.definition.arguments.result

    def child_handle(
        self, ctx: ProcessContext[Any], process_id: str, result: Shape
    ) -> ChildHandle[Any]:
        """Return the handle of a process for the process that started it."""
        return ChildHandle(process_id, ctx, result)

    def tool(self, name: str) -> Tool[..., Any]:
        """Return a tool."""
        return self.catalog.tool(name)

    def arguments(self, run: LiveRun, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return new arguments for a run's program."""
        given = run.process.registration.input
        if not isinstance(given, EngineInput):
            raise NotAProcess(run.id)
        return self.definitions[given.program].signature.dump((), arguments)

    def registry_work(self, run: LiveRun, key: str) -> RegistryWork:
        """Return what asks the registry for controllers that have none of their own."""
        return lambda command, timeout: self._asked(run, key, command, timeout)

    async def _asked(
        self, run: LiveRun, key: str, command: ProcessCommand, timeout: int | None
    ) -> Any:
        entry = JournalEntry(key, "process", b"", started=self._clock.now())
        while isinstance(command, Awaited):
            stands, _ = await look(self.store, run.fence, entry, command, timeout)
            if stands.outcome is not None:
                return expect(answer(stands.outcome, EffectKind.PROCESS), ProcessOutcome).result
            await self._clock.sleep(POLL_SECONDS)
        return await self.store.processes.perform(command_of(run.id, command))


Play = Callable[[Services, LiveRun, SessionTurnInput], Awaitable[Any]]
"""Plays one turn of a child session in a process's run."""


class PythonPrograms:
    """What a worker of this app can run: its processes, its tools, and what runs elsewhere."""

    def __init__(self, services: Services, play: Play) -> None:
        self._services = services
        self._play = play
        self._environments: set[str] = set()

    def targets(self) -> list[str]:
        """Return the targets that are known here."""
        python = (f"python:{name}" for name in self._services.definitions)
        tools = (f"tool:{name}" for name in self._services.catalog.tools)
        return sorted((*python, *tools, "external", LASHLANG, TURN_TARGET, SESSION_TURN))

    def knows(self, target: str) -> bool:
        """Return whether target is known here."""
        engine, _, name = target.partition(":")
        if engine == "python":
            return name in self._services.definitions
        if engine == "tool":
            return name in self._services.catalog.tools
        return target in ("external", LASHLANG, TURN_TARGET, SESSION_TURN)

    async def check(self, registration: Registration) -> None:
        """Refuse a process whose captured environment is missing or damaged."""
        if isinstance(registration.input, ExternalInput) or registration.env in self._environments:
            return
        if registration.env is None:
            raise ProcessRecoveryFailed(registration.id, "it is missing a captured execution env")
        body = await self._services.store.envs.get(registration.env)
        if body is None:
            raise ProcessRecoveryFailed(registration.id, "its captured execution env is gone")
        if hashlib.sha256(body).hexdigest() != registration.env:
            raise ProcessRecoveryFailed(registration.id, "its captured execution env is damaged")
        self._environments.add(registration.env)

    async def run(self, run: LiveRun) -> Any:
        """Run the process's program; return its result as plain JSON."""
        match run.process.registration.input:
            case EngineInput(program=program, arguments=arguments):
                definition = self._services.definitions[program]
                ctx: ProcessContext[Any] = ProcessContext(run, self._services)
                await definition.prepare()
                given = definition.signature.load(arguments)
                value = await definition.function(ctx, **given)
                return definition.signature.dump_result(value)
            case ToolCallInput(tool=tool, arguments=arguments):
                ctx = ProcessContext(run, self._services)
                return await ctx.call_tool(tool, **arguments)
            case LashlangInput() as workflow:
                return await self._services.run_workflow(run, workflow)
            case SessionTurnInput() as turn:
                return await self._play(self._services, run, turn)
            case ExternalInput(metadata=metadata):
                return {"metadata": metadata}


async def _no_workflows(_: LiveRun, given: LashlangInput) -> Any:
    """Refuse: there is no app around."""
    raise NotAProcess(given)


async def _no_triggers(emitted: Any, key: str) -> None:
    """Emit nothing: there is no app around."""
