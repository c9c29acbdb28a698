"""Calls of builtins: arguments are checked, and work is counted.

1. One step is counted for every 16 characters or items of each argument and of the result. For a result
   that could be large this is done before it is created, and so is the check that there is room for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from pylash.lang.running.data import (
    SCALARS,
    List,
    Record,
    RunError,
    Value,
    kind_of,
    number_text,
    size_of,
    text_of,
)
from pylash.lang.running.meter import Meter, work

Builtin = Callable[..., Value]
BUILTINS: Final[dict[str, Builtin]] = {}
"""The builtins by name; each is called with the meter and the arguments."""


def builtin(function: Builtin) -> Builtin:
    """Register a function as a builtin under its name, and count the arguments and result of each call."""

    @functools.wraps(function)
    def counted(meter: Meter, *arguments: Value) -> Value:
        steps = sum(map(work, arguments))
        if steps:
            meter.steps(steps)
        result = function(meter, *arguments)
        if type(result) is not float and type(result) is not bool:
            steps = work(result)
            if steps:
                meter.steps(steps)
                meter.room(size_of(result))
        return result

    BUILTINS[function.__name__.strip("_")] = counted
    return counted


def wrong(name: str, wanted: str, value: Value) -> RunError:
    """Return the error for an argument of a wrong kind."""
    return RunError("invalid_argument", f"`{name}` needs {wanted}, found a {kind_of(value)}")


def text_argument(name: str, value: Value) -> str:
    """Return the text of a scalar."""
    if type(value) is str:
        return value
    if type(value) in SCALARS:
        return text_of(value)
    raise wrong(name, "a text", value)


def sequence_argument(name: str, value: Value) -> Any:
    """Return a list or tuple."""
    if type(value) is List or type(value) is tuple:
        return value
    raise wrong(name, "a list", value)


def integer_argument(name: str, value: Value) -> int:
    """Return a number that must be whole."""
    if type(value) is float and value.is_integer():
        return int(value)
    found = number_text(value) if type(value) is float else f"a {kind_of(value)}"
    raise RunError("invalid_argument", f"`{name}` needs an integer, found {found}")


def length_of(name: str, value: Value) -> int:
    """Return the length of a text, list or record; null has the length 0."""
    if value is None:
        return 0
    if type(value) in {str, List, tuple, Record}:
        return len(value)
    raise wrong(name, "a text, list or record", value)
