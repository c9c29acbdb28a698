"""The name, parameters and annotations of a tool's function.

Rule 1. A function that a model could never call is refused.
Rule 2. An annotation with an unknown name stays a string: the name may be defined later.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from pylash.tools.context import ToolContext
from pylash.values.turn_errors import ToolDefinitionInvalid

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_NOT_BY_NAME: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any number of arguments",
}
_ALTERNATIVES: Final = (Annotated, typing.Union, type(int | str))


def tool_name(function: Any, name: str | None) -> str:
    """Return the name of a tool, or refuse an object without one."""
    if isinstance(function, type) or not callable(function):
        raise ToolDefinitionInvalid(function, "it is not a function")
    chosen = getattr(function, "__name__", None) if name is None else name
    if not isinstance(chosen, str):
        raise ToolDefinitionInvalid(function, "it has no name, so pass name=")
    if _NAME.fullmatch(chosen) is None:
        reason = (
            "its name must be up to 64 letters, digits, _ and -, and not begin with a digit or -"
        )
        raise ToolDefinitionInvalid(chosen, f"{reason}; pass another as name=")
    return chosen


def tool_signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    """Return the signature of a function, or refuse one whose parameters cannot be passed by name."""
    inner = innermost(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ToolDefinitionInvalid(name, "it is a generator, and a tool returns one value")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise ToolDefinitionInvalid(name, "its signature cannot be inspected") from None
    for one in signature.parameters.values():
        if one.kind in _NOT_BY_NAME:
            reason = f"its parameter {one.name!r} {_NOT_BY_NAME[one.kind]}, and a model passes arguments by name"
            raise ToolDefinitionInvalid(name, reason)
    if next(iter(signature.parameters), None) == "self":
        raise ToolDefinitionInvalid(name, "it is an unbound method: pass the bound one")
    return signature


def default_of(parameter: inspect.Parameter) -> Any:
    """Return a parameter's default, or ``...`` if it must be given."""
    return ... if parameter.default is parameter.empty else parameter.default


# --- annotations ---


def innermost(function: Any) -> Any:
    """Return the function inside partials, decorators and objects that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - it may be called
    return inspect.unwrap(function)


def hints_of(function: Callable[..., Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations by parameter; one with an unknown name stays a string."""
    inner = innermost(function)
    names = getattr(inner, "__globals__", {})
    resolved = {}
    for name, hint in getattr(inner, "__annotations__", {}).items():
        alone = SimpleNamespace(__annotations__={name: hint})
        try:
            hints = typing.get_type_hints(alone, names, dict(local), include_extras=True)
        except (NameError, AttributeError, SyntaxError, TypeError):
            resolved[name] = str(hint)
        else:
            resolved[name] = hints[name]
    return resolved


def has_unknown(hints: Mapping[str, Any]) -> bool:
    """Return whether any annotation has an unknown name."""
    return any(isinstance(hint, str) for hint in hints.values())


def locals_around(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the local variables of the code that is defining a function: its annotations may name local types."""
    code, frame = getattr(innermost(function), "__code__", ""), inspect.currentframe()
    while frame is not None and not any(one is code for one in frame.f_code.co_consts):
        frame = frame.f_back
    return {} if frame is None else dict(frame.f_locals)


def is_context(hint: Any) -> bool:
    """Return whether an annotation asks for a context: plain, generic, optional, or as a string."""
    if isinstance(hint, str):
        return re.search(r"\bToolContext\b", hint) is not None
    if hint is ToolContext or get_origin(hint) is ToolContext:
        return True
    return get_origin(hint) in _ALTERNATIVES and any(map(is_context, get_args(hint)))


def mentions_struct(hint: Any) -> bool:
    """Return whether an annotation names a msgspec struct, such as Deferred: pydantic does not support them."""
    if isinstance(hint, type) and get_origin(hint) is None:
        return issubclass(hint, msgspec.Struct)
    return any(mentions_struct(one) for one in get_args(hint))
