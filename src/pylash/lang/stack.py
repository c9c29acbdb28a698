"""A higher recursion limit for programs and trees that nest deeply."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_DEEP: Final = 30_000
"""Calls from Python to Python use no C stack; this limit suffices for any tree or call that the language allows."""
_inside: Final[list[int]] = []
"""The limits found on entry by the calls in progress. All threads share one limit: the last call restores it."""


def deep(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that may recurse deeper than Python's default limit."""
    _inside.append(sys.getrecursionlimit())
    if _inside[-1] < _DEEP:
        sys.setrecursionlimit(_DEEP)
    try:
        return function(*args, **kwargs)
    finally:
        if len(_inside) == 1 and _inside[0] < _DEEP:
            sys.setrecursionlimit(_inside[0])
        del _inside[-1]
