"""Room on Python's stack for programs and trees that nest deep."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_DEEP: Final = 30_000
"""Frames of Python calling Python take no C stack; this many fit any tree or call the language allows."""


def deep(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that may recurse further than Python's limit allows."""
    limit = sys.getrecursionlimit()
    if limit >= _DEEP:
        return function(*args, **kwargs)
    sys.setrecursionlimit(_DEEP)
    try:
        return function(*args, **kwargs)
    finally:
        sys.setrecursionlimit(limit)
