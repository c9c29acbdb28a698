"""Tools: functions that a model may call.

Rule 1. The docstring is the description and the signature is the JSON Schema.
Rule 2. A definition that can never work is refused at once.
Rule 3. A tool is called with checked arguments and returns plain JSON, an attachment, or a Deferred.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
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

from pylash.engine.retries import Retry
from pylash.engine.user_code import call_function
from pylash.tools.annotations import innermost, tool_name
from pylash.tools.context import Deferred, ToolContext
from pylash.tools.tool_function import ToolFunction
from pylash.turn.asks import ToolPolicy
from pylash.turn.messages import Attachment
from pylash.turn.requests import ToolManifest
from pylash.values.canonical import refuse
from pylash.values.durations import Duration, seconds
from pylash.values.process_errors import NotSupported, ResultInvalid
from pylash.values.turn_errors import ToolDefinitionInvalid, ToolTimeout

P = ParamSpec("P")
R = TypeVar("R")

Approval = bool | str | Callable[..., bool | str | Awaitable[bool | str]]
"""Whether a person must approve a call: always, never, always with a reason, or decided by a function."""

Scheduling = Literal["parallel", "serial"]
"""Whether a call may run in parallel with the other calls of its batch."""

APPROVAL_TIMEOUT: Final[Duration] = "7d"
"""The default time limit of an approval."""


class ToolOptions(TypedDict, total=False):
    """The options of a tool; ``Tool`` has the defaults."""

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

    once: Final = False
    reconcile: Final = None
    """Both options are refused: they are not implemented."""

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
        self.projection = projection
        self.__name__ = self.name
        self.__doc__ = innermost(function).__doc__
        self.__wrapped__ = function
        self._declared = ToolFunction(function, self.name)
        for option, given in (("once", once), ("reconcile", reconcile is not None)):
            if given:
                what = f"{option}= of tool {self.name!r}"
                raise NotSupported(
                    what, "make the call idempotent with ctx.idempotency_key instead"
                )
        self._check_options()
        if approval is False and approval_timeout is not msgspec.UNSET:
            reason = f"its approval_timeout={approval_timeout!r} has no effect without approval="
            raise ToolDefinitionInvalid(self.name, reason)
        self._declared.check_early()

    def __repr__(self) -> str:
        return f"Tool({self.id!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function."""
        return self.function(*args, **kwargs)

    @cached_property
    def id(self) -> str:
        """Its name with its module, such as ``tools.lookup``."""
        return f"{self.module}.{self.name}"

    @property
    def description(self) -> str:
        """The docstring up to its first section."""
        return self._declared.doc.description

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the parameters that a model passes."""
        return self._declared.parameters.schema

    @property
    def result_schema(self) -> dict[str, Any]:
        """The JSON Schema of its result; empty if any value fits."""
        result = self._declared.result
        schema: dict[str, Any] = {} if result.is_plain else result.serialized_schema()
        return schema

    @property
    def manifest(self) -> ToolManifest:
        """The tool as a model sees it."""
        return ToolManifest(self.name, self.description, self.schema, self.id)

    def manifest_among(self, offered: Collection[Tool[..., Any]]) -> ToolManifest:  # noqa: ARG002 - for those that name them
        """Return the tool as a model sees it that may call the ``offered`` tools."""
        return self.manifest

    async def prepare(self) -> None:
        """Prepare the checks of arguments and result, once."""
        await self._declared.prepare()

    def load(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments of a call as Python values, by parameter.

        ``arguments`` is an object, a text of JSON, or None for none. Raises ToolArgumentsInvalid.
        """
        return self._declared.parameters.load(arguments)

    def dump(self, arguments: Mapping[str, Any]) -> Any:
        """Return loaded arguments as plain JSON again."""
        return self._declared.parameters.dump(arguments)

    @cached_property
    def policy(self) -> ToolPolicy:
        """The options that decide which effects a call has: a turn captures them."""
        return ToolPolicy(
            approval=False if callable(self.approval) else self.approval,
            asks=callable(self.approval),
            serial=self.scheduling == "serial",
            retry=None if self.retry is None else self.retry.policy,
        )

    async def asks_approval(self, arguments: Mapping[str, Any]) -> bool | str:
        """Return whether a call with these loaded arguments needs an approval, or the reason for it."""
        if not callable(self.approval):
            return self.approval
        await self.prepare()
        whole = {**self._declared.parameters.defaults(), **arguments}
        taken = _accepted_arguments(self.approval, whole)
        args, kwargs = ((whole,), {}) if taken is None else ((), taken)
        answer = await call_function(self.approval, args, kwargs)
        if not isinstance(answer, bool | str):
            reason = f"its approval returned {answer!r} instead of True, False or a reason"
            raise ToolDefinitionInvalid(self.name, reason)
        return answer or False

    async def call(self, ctx: ToolContext[Any], arguments: Mapping[str, Any]) -> Any:
        """Call the function with loaded arguments; return plain JSON, a Deferred or an Attachment.

        Raises ToolTimeout, and whatever the function raises. Cancellation: reaches an async function;
        a plain one runs on in its thread, and its result is dropped.
        """
        given = {
            **self._declared.parameters.defaults(),
            **arguments,
            **dict.fromkeys(self._declared.contexts, ctx),
        }
        limit = None if self.timeout is None else seconds(self.timeout)
        try:
            async with asyncio.timeout(limit) as scope:
                value = await call_function(self.function, (), given)
        except TimeoutError:
            if not scope.expired() or limit is None:
                raise
            raise ToolTimeout(self.name, limit) from None
        if isinstance(value, Deferred | Attachment):
            return value
        result = self._declared.result
        return self._plain(value) if result.is_plain else result.dump_result(value, self.name)

    def _plain(self, value: Any) -> Any:
        """Return a result without an annotation as plain JSON, as far as pydantic or msgspec can convert it."""
        from pydantic_core import to_jsonable_python  # noqa: PLC0415 - slow to import

        try:
            plain = to_jsonable_python(value, fallback=msgspec.to_builtins)
        except (ValueError, TypeError) as error:
            raise ResultInvalid(self.name, str(error).rstrip(".")) from None
        refuse(plain)
        return plain

    # --- checks of a definition ---

    def _check_options(self) -> None:
        module, approval = self.module, self.approval
        names = module.split(".") if isinstance(module, str) else ["", ""]
        blank = isinstance(approval, str) and not approval.strip()
        known = ", ".join(self._declared.signature.parameters) or "none"
        for fits, reason in (
            (
                all(map(str.isidentifier, names)),
                f"its module {module!r} is not a name such as 'tools'",
            ),
            (
                self.scheduling in get_args(Scheduling),
                f"its scheduling is {self.scheduling!r} and must be 'parallel' or 'serial'",
            ),
            (
                self.retry is None or isinstance(self.retry, Retry),
                f"its retry is {self.retry!r} and must be a Retry, such as Retry(3)",
            ),
            (
                not blank and (isinstance(approval, bool | str) or callable(approval)),
                f"its approval is {approval!r} and must be True, False, a reason or a function",
            ),
            (
                self.projection is None or self.projection in self._declared.signature.parameters,
                f"its projection {self.projection!r} is not one of its parameters ({known})",
            ),
        ):
            if not fits:
                raise ToolDefinitionInvalid(self.name, reason)
        for duration in (self.timeout, self.approval_timeout):
            if duration is not None:
                seconds(duration)


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


def _accepted_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the arguments that a function has parameters for, or None if its only parameter takes them all."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return dict(arguments)
    if len(parameters) == 1 and not parameters.keys() & arguments.keys():
        return None
    return {name: value for name, value in arguments.items() if name in parameters}
