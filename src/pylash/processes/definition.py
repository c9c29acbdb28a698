"""Definitions of processes: their functions, and the options of a start.

A process is identified by its name and version: any app may start it, any worker that declares this version may run it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from string import Formatter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
)

import msgspec

from pylash.durable.commands import StartProcess
from pylash.durable.processes import (
    EngineInput,
    EventType,
    ProcessInput,
    Registration,
    SessionRef,
    SessionTurnInput,
    Slot,
    ToolCallInput,
)
from pylash.durable.sessions import checked_session
from pylash.processes.event_types import DeclaredEvents
from pylash.tools.annotations import hints_of
from pylash.tools.signatures import ANY, Arguments, Signature, signature_of
from pylash.tools.tool import Tool
from pylash.values.arguments import check_flag, checked_tags
from pylash.values.durations import Duration, micros
from pylash.values.errors import DurationInvalid
from pylash.values.names import check_name, storable
from pylash.values.process_errors import (
    ArgumentsInvalid,
    EffectOutsideStep,
    MissingProcessExecutionId,
    NameTaken,
    NotAProcess,
    ProcessContextMissing,
)

if TYPE_CHECKING:
    from pylash.processes.operations.context import ProcessContext

P = ParamSpec("P")
R = TypeVar("R")


CODE_ERRORS: Final = (
    NameError,
    AttributeError,
    TypeError,
    ImportError,
    SyntaxError,
    ArgumentsInvalid,
    DurationInvalid,
    NameTaken,
    EffectOutsideStep,
)
"""Exceptions that are nearly always mistakes in the code: a process that raises one is blocked, and can be continued.

The last four are of ctx: values that a parameter does not take, a name that ``renamed=`` has as an old one, and work that belongs into a step.
"""


class Definition(Generic[P, R]):
    """A program that runs as a process, by its name."""

    name: str
    timeout: int | None = None

    @property
    def arguments(self) -> Arguments:
        """Its parameters and its result."""
        raise NotImplementedError

    def input(self, arguments: dict[str, Any]) -> ProcessInput:
        """Return the input that a process of it is registered with."""
        raise NotImplementedError

    def input_of(
        self,
        process_id: str,  # noqa: ARG002 - for those whose input depends on it
        arguments: dict[str, Any],
        plugin_options: Mapping[str, Any] | None,  # noqa: ARG002 - for those that build a session
    ) -> ProcessInput:
        """Return the input of one process; ``plugin_options`` are those of the session or process that starts it."""
        return self.input(arguments)

    def event_types(self) -> tuple[EventType, ...] | None:
        """Return the types of the events that it emits; None emits any."""
        return None

    def signals(self) -> dict[str, Any] | None:
        """Return the JSON Schemas of the signals it takes, by name; None takes any."""
        return None

    async def prepare(self) -> None:
        """Prepare the checks of arguments and result, once."""

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
        label: str | None = None,
        tags: Sequence[str] = (),
    ) -> Prepared[P, R]:
        """Return the process with options for one start; ``label`` is shown to people in lists, which ``tags`` filter.

        >>> await app.start(onboarding.options(id="onboard-ann", delay="1h", label="Ann Lee"), user="ann")
        >>> await app.start(onboarding.options(tags=["customer:7"]), user="ann")
        >>> await app.processes(tag="customer:7")
        """
        if id is not None:
            check_name("process id", id, error=MissingProcessExecutionId)
        if wake is not None:
            checked_session(wake)
        if label is not None:
            check_name("process label", label)
        check_flag(f"{self.name}.options", "attached", attached)
        pause = 0 if delay is None else micros(delay)
        given = checked_tags(f"{self.name}.options", tags)
        return Prepared(self, id, wake, pause, attached, label, given)


class ProcessDefinition(Definition[P, R]):
    """An async function that runs as a process.

    >>> @app.process
    ... async def greet(ctx: ProcessContext[None], name: str) -> str:
    ...     return f"Hello {name}"
    """

    def __init__(  # noqa: PLR0913 - options by name
        self,
        function: Callable[Concatenate[ProcessContext[Any], P], Awaitable[R]],
        *,
        name: str | None = None,
        version: int = 1,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        key: Callable[..., str] | str | None = None,
        events: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        block_on: tuple[type[BaseException], ...] = CODE_ERRORS,
    ) -> None:
        call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004 - an object with this method can be called
        if not inspect.iscoroutinefunction(call):
            raise NotAProcess(function)
        self.function = function
        named = str(getattr(function, "__name__", "process")) if name is None else name
        self.name = check_name("process name", named)
        self.version = self._checked_version(version)
        self._check_context()
        self.timeout = None if timeout is None else micros(timeout)
        self._check_slot(concurrency, key)
        self._concurrency = concurrency
        self._key = key
        owner = f"process {self.name!r}"
        self.events = None if events is None else DeclaredEvents(owner, events)
        self._renamed = self._checked_renamed(renamed)
        self.block_on = self._checked_errors(block_on)
        self._prepared = False
        self.__doc__ = function.__doc__

    def _checked_version(self, version: Any) -> int:
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            reason = f"version={version!r} is not a whole number of at least 1"
            raise ArgumentsInvalid(f"process {self.name!r}", reason)
        return version

    def _check_context(self) -> None:
        """Refuse a function whose first parameter cannot take a context: it would get one in place of an argument."""
        first = next(iter(inspect.signature(self.function).parameters.values()), None)
        if first is None:
            raise ProcessContextMissing(self.name, "it has no parameters")
        if first.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            raise ProcessContextMissing(self.name, f"{first.name!r} is passed by name")
        annotation = hints_of(self.function, {}).get(first.name)
        if not _takes_context(annotation):
            shown = getattr(annotation, "__name__", str(annotation))
            raise ProcessContextMissing(self.name, f"{first.name!r} is a {shown}")

    def _checked_renamed(self, renamed: Any) -> dict[str, str]:
        owner = f"process {self.name!r}"
        if not isinstance(renamed, Mapping | None):
            raise ArgumentsInvalid(owner, f"renamed={renamed!r} is not a dict of old and new names")
        names = dict(renamed or {})
        for name in (*names, *names.values()):
            check_name("name in renamed=", name)
        if len({*names.values(), *names}) < 2 * len(names):
            reason = (
                "renamed= has a name twice: give each old name one new name that is not an old one"
            )
            raise ArgumentsInvalid(owner, reason)
        return names

    @cached_property
    def recorded_names(self) -> dict[str, str]:
        """The recorded name of each name that has replaced it."""
        return {new: old for old, new in self._renamed.items()}

    def _checked_errors(self, block_on: Any) -> tuple[type[BaseException], ...]:
        if not isinstance(block_on, tuple) or not all(
            isinstance(one, type) and issubclass(one, BaseException) for one in block_on
        ):
            reason = f"block_on={block_on!r} is not a tuple of exception classes"
            raise ArgumentsInvalid(f"process {self.name!r}", reason)
        return block_on

    def _check_slot(self, concurrency: Any, key: Any) -> None:
        limited = isinstance(concurrency, int) and not isinstance(concurrency, bool)
        reason = None
        if concurrency is not None and not (limited and concurrency >= 1):
            reason = f"concurrency={concurrency!r} is not a number of at least 1"
        elif key is not None and concurrency is None:
            reason = f"key={key!r} has no effect without concurrency="
        elif not (key is None or isinstance(key, str) or callable(key)):
            reason = f"key={key!r} is neither a string such as '{{user}}' nor a function"
        elif isinstance(key, str):
            reason = self._key_problem(key)
        if reason is not None:
            raise ArgumentsInvalid(f"process {self.name!r}", reason)

    def _key_problem(self, key: str) -> str | None:
        """Return why a template is not a concurrency key of the process; None if it is one."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
            return None
        known = [one.name for one in parameters]
        try:
            fields = [name for _, name, _, _ in Formatter().parse(key) if name is not None]
        except ValueError as error:
            return f"key={key!r} is not a template such as '{{user}}': {error}"
        for field in fields:
            if re.split(r"[.\[]", field, maxsplit=1)[0] not in known:
                listed = ", ".join(known) or "none"
                return f"key={key!r} names {field!r}, which is not one of its parameters ({listed})"
        return None

    def __repr__(self) -> str:
        version = "" if self.version == 1 else f", version={self.version}"
        return f"ProcessDefinition({self.name!r}{version})"

    def __call__(self, ctx: ProcessContext[Any], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Call the function as a part of another process."""
        return self.function(ctx, *args, **kwargs)

    @cached_property
    def signature(self) -> Signature:
        """Its parameters and its result."""
        return signature_of(self.function, f"process {self.name!r}")

    @property
    def arguments(self) -> Arguments:
        """Its parameters and its result."""
        return self.signature

    def input(self, arguments: dict[str, Any]) -> EngineInput:
        """Return the input that a process of it is registered with."""
        return EngineInput("python", self.name, arguments).of_version(self.version)

    async def prepare(self) -> None:
        """Prepare the checks of arguments and result, once."""
        if not self._prepared:
            await self.signature.prepare()
            if self.events is not None:
                await self.events.prepare()
            self._prepared = True

    def event_types(self) -> tuple[EventType, ...] | None:
        """Return the types of the events that it emits; None emits any."""
        return None if self.events is None else self.events.captured()

    def slot(self, arguments: Mapping[str, Any]) -> Slot | None:
        """Return the concurrency key of a start."""
        if self._concurrency is None:
            return None
        key, text = self._key, ""
        try:
            if isinstance(key, str):
                text = key.format(**{**self.signature.defaults(), **arguments})
            elif key is not None:
                text = key(**arguments)
        except KeyError as error:
            reason = f"its concurrency key {key!r} needs the argument {error}"
            raise ArgumentsInvalid(f"process {self.name!r}", reason) from None
        return Slot(storable(f"{self.name}:{text}"), self._concurrency)

    def slot_template(self) -> Slot | None:
        """Return the concurrency key of starts whose arguments come later; it must be a text."""
        if self._concurrency is None:
            return None
        if callable(self._key):
            reason = "its concurrency key is a function, and a subscription needs a string such as '{user}'"
            raise ArgumentsInvalid(f"process {self.name!r}", reason)
        name = self.name.replace("{", "{{").replace("}", "}}")
        return Slot(f"{name}:{self._key or ''}", self._concurrency)


def _takes_context(annotation: Any) -> bool:
    """Return whether a parameter may be a context: everything that is not clearly the type of something else."""
    from pylash.processes.operations.context import (  # noqa: PLC0415 - it imports this module
        ProcessContext,
    )

    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kind = get_origin(annotation) or annotation
    # Contexts may fulfil a protocol that they do not inherit. Any is a class since Python 3.11.
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return issubclass(ProcessContext, kind) or issubclass(kind, ProcessContext)


class ToolProcess(Definition[..., Any]):
    """A call of a tool that runs as a process. ``plugin`` has the tool, if the app itself has not."""

    def __init__(self, tool: Tool[..., Any], plugin: str | None) -> None:
        self.name = tool.name
        self._tool = tool
        self._plugin = plugin

    def __repr__(self) -> str:
        return f"ToolProcess({self.name!r})"

    @property
    def arguments(self) -> ToolArguments:
        """The tool's parameters."""
        return ToolArguments(self._tool)

    def input(self, arguments: dict[str, Any]) -> ToolCallInput:
        """Return the input that a process of it is registered with."""
        return ToolCallInput(self.name, arguments, self._plugin or msgspec.UNSET)

    async def prepare(self) -> None:
        """Prepare the checks of arguments and result, once."""
        await self._tool.prepare()


class ToolArguments:
    """The parameters of a tool, given by name; its result is plain JSON."""

    result: Final = ANY

    def __init__(self, tool: Tool[..., Any]) -> None:
        self._tool = tool

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a start as plain JSON; refuse those that do not fit."""
        if args:
            raise ArgumentsInvalid(f"tool {self._tool.name!r}", "give its arguments by name")
        plain: dict[str, Any] = self._tool.dump(self._tool.load(kwargs))
        return plain

    def dump_one(self, name: str, value: Any) -> Any:
        """Return one argument as plain JSON."""
        return ANY.dump(value, f"$.{name}")

    def check_names(self, names: Iterable[str]) -> None:
        """Do nothing: arguments are checked when they are all known."""


class Prepared(msgspec.Struct, Generic[P, R], frozen=True):
    """A process with options for one start."""

    definition: Definition[P, R]
    process_id: str | None = None
    wake: str | None = None
    delay: int = 0
    attached: bool = False
    label: str | None = None
    tags: tuple[str, ...] = ()

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
        plugin_options: Mapping[str, Any] | None = None,
    ) -> StartProcess:
        """Return the command that starts it; ``inherited`` is the registration of the parent or the app."""
        arguments = self.definition.arguments.dump(args, kwargs)
        wake_target = inherited.wake_target if self.wake is None else SessionRef(self.wake)
        process_id = f"{self.name}-{new_id()}" if self.process_id is None else self.process_id
        given = self.definition.input_of(process_id, arguments, plugin_options)
        registration = Registration(
            id=process_id,
            input=given,
            event_types=self.definition.event_types(),
            signals=self.definition.signals(),
            originator=inherited.originator if self.wake is None else SessionRef(self.wake),
            wake_target=wake_target,
            env=None if isinstance(given, SessionTurnInput) else inherited.env,
            parent=inherited.parent,
            attached=self.attached,
            timeout=None if (limit := self.definition.timeout) is None else limit + self.delay,
            slot=self.definition.slot(arguments),
            label=self.label,
            tags=self.tags,
        )
        return StartProcess(registration, self.delay, registration.holder)

    def template(
        self, constants: Mapping[str, Any], inherited: Registration, session_id: str | None
    ) -> Registration:
        """Return the registration that a subscription starts: without an id, its constants checked."""
        if self.process_id is not None or self.attached:
            given = "attached" if self.process_id is None else "id"
            reason = f"each event starts its own process, so the option {given}= has no effect"
            raise ArgumentsInvalid("triggers.register", reason)
        signature = self.definition.arguments
        arguments = {name: signature.dump_one(name, value) for name, value in constants.items()}
        session = None if session_id is None else SessionRef(session_id)
        wake = session if self.wake is None else SessionRef(self.wake)
        return Registration(
            id="",
            input=self.definition.input(arguments),
            event_types=self.definition.event_types(),
            signals=self.definition.signals(),
            originator=session or inherited.originator,
            wake_target=wake,
            env=inherited.env,
            timeout=self.definition.timeout,
            slot=self.definition.slot_template(),
            label=self.label,
            tags=self.tags,
        )


def as_prepared(target: object) -> Prepared[Any, Any]:
    """Return a process with its options for one start; refuses an object that is not a process."""
    if isinstance(target, Prepared):
        return target
    if isinstance(target, Definition):
        return Prepared(target)
    raise NotAProcess(target)
