"""Tools: functions that a model may call.

Rule 1. The docstring is the description and the signature is the JSON Schema; nothing is said twice.
Rule 2. What can never work is refused where the tool is defined, in one sentence.
Rule 3. A tool is called with arguments that were checked; what it returns is plain JSON, an
        attachment, or a promise that an outsider will answer.

Names that are not defined yet, and pydantic when it is not loaded yet, are waited for until
``prepare``.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

import msgspec

from pylash.runtime.process_steps import Retry
from pylash.runtime.signatures import Shape
from pylash.runtime.tool_annotations import (
    default_of,
    has_unknown,
    hints_of,
    innermost,
    is_context,
    locals_around,
    mentions_struct,
    tool_name,
    tool_signature,
)
from pylash.runtime.tool_arguments import Field, Parameters
from pylash.runtime.tool_context import Deferred, ToolContext
from pylash.runtime.tool_docs import ToolDoc, read_docstring
from pylash.runtime.user_code import called
from pylash.tasks import in_thread
from pylash.turn import Attachment, ToolManifest
from pylash.values import (
    ArgumentsInvalid,
    Duration,
    NotSupported,
    ResultInvalid,
    ToolDefinitionInvalid,
    ToolTimeout,
    refuse,
    seconds,
)

P = ParamSpec("P")
R = TypeVar("R")

Approval = bool | str | Callable[..., bool | str | Awaitable[bool | str]]
"""Whether a person must agree: always, never, for a reason, or as a function of the arguments says."""

Scheduling = Literal["parallel", "serial"]
"""Whether a tool may run beside the other calls of its batch."""

APPROVAL_TIMEOUT: Final[Duration] = "7d"
"""How long a person may take to agree to a call, unless the tool says otherwise."""

_NOT_YET: Final = frozenset({"class-not-fully-defined", "undefined-annotation"})


class ToolOptions(TypedDict, total=False):
    """What may be said of a tool beside its function; ``Tool`` has the defaults."""

    name: str | None
    module: str
    approval: Approval
    approval_timeout: Duration
    retry: Retry | None
    timeout: Duration | None
    scheduling: Scheduling
    once: bool
    reconcile: Callable[..., Any] | None
    projection: str | None


class Tool(Generic[P, R]):
    """A function that a model may call. Calling it yourself calls the plain function.

    >>> @tool(approval=True)
    ... async def refund(order_id: str, cents: int) -> str:
    ...     '''Give money back.'''
    ...     return f"{cents} cents are on their way"
    """

    def __init__(  # noqa: PLR0913 - these are the public names of options
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        module: str = "tools",
        approval: Approval = False,
        approval_timeout: Duration | msgspec.UnsetType = msgspec.UNSET,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        scheduling: Scheduling = "parallel",
        once: bool = False,
        reconcile: Callable[..., Any] | None = None,
        projection: str | None = None,
    ) -> None:
        self.function = function
        self.name = tool_name(function, name)
        self.module = module
        self.approval = approval
        self.approval_timeout = (
            APPROVAL_TIMEOUT
            if isinstance(approval_timeout, msgspec.UnsetType)
            else approval_timeout
        )
        self.retry = retry
        self.timeout = timeout
        self.scheduling = scheduling
        self.once = once
        self.reconcile = reconcile
        self.projection = projection
        self.__name__ = self.name
        self.__doc__ = innermost(function).__doc__
        self.__wrapped__ = function
        self._signature = tool_signature(function, self.name)
        self._hints = hints_of(function, {})
        if has_unknown(self._hints):
            self._hints = hints_of(function, locals_around(function))
        self._prepared = False
        self._refuse_options(approval_timeout)
        self._check_early()

    def __repr__(self) -> str:
        return f"Tool({self.id!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function."""
        return self.function(*args, **kwargs)

    @property
    def id(self) -> str:
        """Its name with its module, such as ``tools.lookup``."""
        return f"{self.module}.{self.name}"

    @property
    def description(self) -> str:
        """What the docstring says before its sections."""
        return self._doc.description

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the parameters that a model gives."""
        return self._parameters.schema

    @property
    def result_schema(self) -> dict[str, Any]:
        """The JSON Schema of what it returns; empty if that is anything."""
        if self._result.is_plain:
            return {}
        schema: dict[str, Any] = self._result.written_schema()
        return schema

    @property
    def manifest(self) -> ToolManifest:
        """The tool as a model sees it."""
        return ToolManifest(self.name, self.description, self.schema, self.id)

    async def prepare(self) -> None:
        """Load what is needed to check arguments and result, once."""
        if self._prepared:
            return
        if "pydantic" in sys.modules:
            self._parameters.schema  # noqa: B018 - made once, and refused if it cannot be
        else:
            await in_thread(lambda: self._parameters.schema)
        try:
            await self._result.prepare(self.name)
        except ArgumentsInvalid:
            shown = inspect.formatannotation(self._result.annotation)
            reason = f"what it returns ({shown}) has no JSON"
            raise ToolDefinitionInvalid(self.name, reason) from None
        self._prepared = True

    def load(self, arguments: Any) -> dict[str, Any]:
        """Return what a model sent as Python values, by parameter.

        ``arguments`` is an object, a text of JSON, or None for none. Raises ToolArgumentsInvalid.
        """
        return self._parameters.load(arguments)

    def dump(self, arguments: Mapping[str, Any]) -> Any:
        """Return loaded arguments as plain JSON again."""
        return self._parameters.dump(arguments)

    async def asks_approval(self, arguments: Mapping[str, Any]) -> bool | str:
        """Return whether a person must agree to a call with loaded arguments, or the reason why."""
        if not callable(self.approval):
            return self.approval
        await self.prepare()
        whole = {**self._parameters.defaults(), **arguments}
        taken = _taken(self.approval, whole)
        args, kwargs = ((whole,), {}) if taken is None else ((), taken)
        answer = await called(self.approval, args, kwargs)
        if not isinstance(answer, bool | str):
            reason = f"its approval gave {answer!r} instead of True, False or a reason"
            raise ToolDefinitionInvalid(self.name, reason)
        return answer or False

    async def call(self, ctx: ToolContext[Any], arguments: Mapping[str, Any]) -> Any:
        """Call the function with loaded arguments; return plain JSON, a Deferred or an Attachment.

        Raises ToolTimeout, and whatever the function raises. Cancellation: reaches an async function;
        a plain one runs on in its thread, and its result is dropped.
        """
        await self.prepare()
        defaults = self._parameters.defaults()
        given = {**defaults, **arguments, **dict.fromkeys(self._contexts, ctx)}
        value = await self._limited(given)
        return value if isinstance(value, Deferred | Attachment) else self._plain(value)

    async def _limited(self, given: dict[str, Any]) -> Any:
        limit = None if self.timeout is None else seconds(self.timeout)
        try:
            async with asyncio.timeout(limit) as scope:
                return await called(self.function, (), given)
        except TimeoutError:
            if not scope.expired() or limit is None:
                raise
            raise ToolTimeout(self.name, limit) from None

    def _plain(self, value: Any) -> Any:
        """Return a result as plain JSON; what is not annotated is written as well as it can be."""
        if not self._result.is_plain:
            return self._result.dump_result(value, self.name)
        from pydantic_core import to_jsonable_python  # noqa: PLC0415 - costly

        try:
            plain = to_jsonable_python(value, fallback=msgspec.to_builtins)
        except (ValueError, TypeError) as error:
            raise ResultInvalid(self.name, str(error).rstrip(".")) from None
        refuse(plain)
        return plain

    # --- what the function takes and returns ---

    @cached_property
    def _doc(self) -> ToolDoc:
        return read_docstring(self.__doc__)

    @property
    def _known_hints(self) -> Mapping[str, Any]:
        """The annotations, with what may have been defined since."""
        if not has_unknown(self._hints):
            return self._hints
        known = {name: hint for name, hint in self._hints.items() if not isinstance(hint, str)}
        return {**hints_of(self.function, {}), **known}

    @cached_property
    def _contexts(self) -> list[str]:
        """The parameters that are given by us."""
        hints = self._known_hints
        return [name for name in self._signature.parameters if is_context(hints.get(name))]

    @cached_property
    def _result(self) -> Shape:
        hint = self._known_hints.get("return", Any)
        return Shape(Any if isinstance(hint, str) or mentions_struct(hint) else hint)

    @cached_property
    def _parameters(self) -> Parameters:
        fields = {
            name: Field(self._annotation(name), default_of(one), self._doc.parameters.get(name))
            for name, one in self._signature.parameters.items()
            if name not in self._contexts
        }
        return Parameters(self.name, fields)

    def _annotation(self, name: str) -> Any:
        hint = self._known_hints.get(name, Any)
        if isinstance(hint, str):
            reason = f"the annotation {hint!r} of its parameter {name!r} means nothing here"
            raise ToolDefinitionInvalid(self.name, reason)
        return hint

    # --- what is refused at definition ---

    def _refuse_options(self, approval_timeout: Duration | msgspec.UnsetType) -> None:
        for name, given in (("once", self.once), ("reconcile", self.reconcile is not None)):
            if given:  # a promise that nobody would keep
                what = f"{name}= of tool {self.name!r}"
                raise NotSupported(
                    what, "make the call idempotent with ctx.idempotency_key instead"
                )
        for trouble, reason in self._troubles():
            if trouble:
                raise ToolDefinitionInvalid(self.name, reason)
        if self.approval is False and approval_timeout is not msgspec.UNSET:
            reason = f"its approval_timeout={approval_timeout!r} does nothing without approval="
            raise ToolDefinitionInvalid(self.name, reason)
        for duration in (self.timeout, self.approval_timeout):
            if duration is not None:
                seconds(duration)

    def _troubles(self) -> tuple[tuple[bool, str], ...]:
        blank = isinstance(self.approval, str) and not self.approval.strip()
        agreed = isinstance(self.approval, bool | str) or callable(self.approval)
        known = ", ".join(self._signature.parameters) or "none"
        return (
            (
                not isinstance(self.module, str)
                or not all(map(str.isidentifier, self.module.split("."))),
                f"its module {self.module!r} is no name such as 'tools'",
            ),
            (
                self.scheduling not in get_args(Scheduling),
                f"its scheduling is {self.scheduling!r} and must be 'parallel' or 'serial'",
            ),
            (
                self.retry is not None and not isinstance(self.retry, Retry),
                f"its retry is {self.retry!r} and must be such as Retry(3)",
            ),
            (
                blank or not agreed,
                f"its approval is {self.approval!r} and must be True, False, a reason or a function",
            ),
            (
                self.projection is not None and self.projection not in self._signature.parameters,
                f"its projection {self.projection!r} is none of its parameters ({known})",
            ),
        )

    def _check_early(self) -> None:
        """Refuse now what pydantic cannot describe, if that costs little and all names are known."""
        if "pydantic" not in sys.modules or has_unknown(self._hints):
            return
        try:
            self._parameters.schema  # noqa: B018 - made once, and refused if it cannot be
        except ToolDefinitionInvalid as error:
            if getattr(error.__cause__, "code", None) not in _NOT_YET:
                raise
            del self.__dict__["_parameters"]


@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R]: ...
@overload
def tool(
    function: None = None, /, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool of a function, with or without options.

    >>> @tool
    ... async def lookup(order_id: str) -> dict:
    ...     '''Find an order.'''

    >>> @tool(name="refund_order", approval="money leaves", retry=Retry(3), timeout="30s")
    ... def refund(order_id: str, cents: int) -> str: ...
    """
    if function is None:
        return lambda given: Tool(given, **options)
    return Tool(function, **options)


def as_tool(given: Tool[..., Any] | Callable[..., Any]) -> Tool[..., Any]:
    """Return a tool as it is, and a function as a tool."""
    return given if isinstance(given, Tool) else Tool(given)


def _taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments that a function has parameters for, or None if it takes them as one."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return dict(arguments)
    if len(parameters) == 1 and not parameters.keys() & arguments.keys():
        return None
    return {name: value for name, value in arguments.items() if name in parameters}
