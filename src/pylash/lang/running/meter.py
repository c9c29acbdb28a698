"""Counts the resources that a run uses, and checks them against its bounds.

1. `left` is the number of steps until the next check of the bounds; compiled code subtracts from it and calls
   `tick` below zero. Between checks a step costs one subtraction.
2. `used` is the size of everything that the running bodies hold. Code that is about to create a large value
   calls `room` first, so a value beyond the bound is never built.
"""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from math import inf
from typing import Final

import msgspec

from pylash.lang.running.data import (
    MAX_DEPTH,
    List,
    Record,
    RunError,
    Value,
    check_depth,
    measure,
    size_of,
    text_of,
    text_pieces,
    text_size,
)

_BETWEEN_LOOKS: Final = 2048
_LONGEST_TEXT: Final = 24
"""The text of a value is at most this many times its size: that of 5e-324 has 326 characters, its size is 16."""
_SIZED: Final = frozenset({str, List, tuple, Record})


class Bounds(msgspec.Struct, frozen=True):
    """The bounds of one cell or process; `None` means unbounded."""

    steps: int | None
    active_ms: int | None
    memory_bytes: int | None
    frames: int = 1024


CELL_BOUNDS: Final = Bounds(steps=1_000_000, active_ms=30_000, memory_bytes=64 * 2**20)
PROCESS_BOUNDS: Final = Bounds(steps=100_000_000, active_ms=30_000, memory_bytes=512 * 2**20)


class TooLong(Exception):
    """A computation has checked the bounds more often than is allowed on the event loop."""


class Meter:
    """The counters of one run."""

    __slots__ = (
        "_bounds",
        "_deadline",
        "_given",
        "_kept",
        "_now",
        "frames",
        "left",
        "limit",
        "looks",
        "used",
    )

    def __init__(self, bounds: Bounds, now: Callable[[], float]) -> None:
        self._bounds = bounds
        self._now = now
        self._given = 0
        self._kept: list[int] = []
        self.looks: float = inf
        self.left = 0
        self.used = 0
        self.limit = float("inf") if bounds.memory_bytes is None else bounds.memory_bytes
        self.frames = bounds.frames
        self.resume()
        self._give()

    def resume(self) -> None:
        """Start counting computing time: at the start, and after each wait."""
        active = self._bounds.active_ms
        self._deadline = None if active is None else self._now() + active / 1000

    def _give(self) -> None:
        steps = self._bounds.steps
        share = _BETWEEN_LOOKS if steps is None else min(_BETWEEN_LOOKS, steps - self._given)
        self._given += share
        self.left = share

    def tick(self) -> None:
        """Check the bounds; called when `left` is below zero."""
        self.looks -= 1
        if self.looks < 0:
            raise TooLong
        taken = self._given - self.left
        limit = self._bounds.steps
        if limit is not None and taken > limit:
            raise RunError(
                "step_budget_exceeded", f"the program took more than {limit} steps; make it do less"
            )
        if self._deadline is not None and self._now() > self._deadline:
            raise RunError(
                "deadline_exceeded",
                f"the program computed for more than {self._bounds.active_ms} ms without waiting; make it do less",
            )
        self._given = taken
        self._give()

    def state(self) -> tuple[int, int, int, int, int]:
        """Return the counters, for `back`."""
        return self.left, self._given, self.used, self.frames, len(self._kept)

    def back(self, state: tuple[int, int, int, int, int]) -> None:
        """Reset the counters to an earlier `state`."""
        self.left, self._given, self.used, self.frames, kept = state
        del self._kept[kept:]

    def stop(self) -> None:
        """Make a running computation end at its next check of the bounds."""
        self._deadline = -inf

    def steps(self, number: int) -> None:
        """Count some steps."""
        self.left -= number
        if self.left < 0:
            self.tick()

    def toil(self, size: int) -> None:
        """Bring the next check of the clock forward for work on a value of this size that counts no steps."""
        work = size >> 7
        if work:
            self.left -= work
            self._given -= work
            if self.left < 0:
                self.tick()

    def room(self, size: int) -> None:
        """Refuse to create a value of this size if it would exceed the memory bound."""
        if self.used + size > self.limit:
            raise self.full()

    def full(self) -> RunError:
        """Return the error for exceeding the memory bound."""
        return RunError(
            "memory_exceeded",
            f"the program holds more than {self._bounds.memory_bytes} bytes; keep less in its variables",
        )

    def hold(self, value: Value, before: int) -> int:
        """Count the new value of a variable instead of its old one of size `before`; return the new size."""
        kind = type(value)
        if kind is float or kind is bool or value is None:
            size = 8
        elif kind is str:
            size = text_size(value)
        else:
            size, depth = measure(value)
            if depth > MAX_DEPTH:
                check_depth(value)
            if kind is tuple:
                self.toil(size)
        used = self.used + size - before
        if used > self.limit:
            raise self.full()
        self.used = used
        return size

    def text(self, value: Value) -> str:
        """Return the text of a value, if there is room for it."""
        if type(value) is str:
            return value
        size = size_of(value)
        self.toil(size)
        if self.used + size * _LONGEST_TEXT <= self.limit:
            return text_of(value)
        whole = StringIO()
        for piece in text_pieces(value):
            whole.write(piece)
            self.room(whole.tell())
        return whole.getvalue()

    def leaving(self, value: Value) -> None:
        """Refuse a value that leaves the program if it is too deep, or larger than the memory bound."""
        check_depth(value)
        if size_of(value) > self.limit:
            raise self.full()

    def release(self, size: int) -> None:
        """Stop counting a value that a variable no longer holds."""
        self.used -= size

    def keep(self, value: Value) -> Value:
        """Count an operand while the operands after it are evaluated."""
        size = size_of(value)
        self.room(size)
        self.used += size
        self._kept.append(size)
        return value

    def freed(self, operands: int, value: Value) -> Value:
        """Stop counting some operands: the expression that uses them is evaluated to `value`."""
        for _ in range(operands):
            self.used -= self._kept.pop()
        return value

    def returned(self, value: Value) -> None:
        """Refuse a result that nests too deeply."""
        check_depth(value)
        if type(value) is tuple:
            self.toil(size_of(value))

    def too_many_frames(self) -> RunError:
        """Return the error for too many nested calls."""
        return RunError(
            "frame_depth_exceeded",
            f"more than {self._bounds.frames} function calls are nested; recurse less deeply",
        )


def work(value: Value) -> int:
    """Return the steps for a value that a builtin takes or returns: one for every 16 characters or items."""
    return len(value) >> 4 if type(value) in _SIZED else 0
