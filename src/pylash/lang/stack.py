"""Room on Python's stack for programs and trees that nest deep."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_DEEP: Final = 30_000
"""Frames of Python calling Python take no C stack; this many fit any tree or call the language allows."""
_inside: Final[list[int]] = []
"""The limits that those who are inside found. Python has one for all threads: the last one puts it back."""


def deep(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that may recurse further than Python's limit allows."""
    _inside.append(sys.getrecursionlimit())
    if _inside[-1] < _DEEP:
        sys.setrecursionlimit(_DEEP)
    try:
        return function(*args, **kwargs)
    finally:
        if len(_inside) == 1 and _inside[0] < _DEEP:
            sys.setrecursionlimit(_inside[0])
        del _inside[-1]
