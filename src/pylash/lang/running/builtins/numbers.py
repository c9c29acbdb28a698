"""Builtins on numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pylash.lang.running.builtins.counting import (
    builtin,
    integer_argument,
    sequence_argument,
    wrong,
)
from pylash.lang.running.data import (
    List,
    RunError,
    Value,
)
from pylash.lang.running.meter import Meter

_RANGE_LIMIT: Final = 1_000_000


@builtin
def ceil_div(meter: Meter, dividend: Value, divisor: Value) -> float:
    first, second = integer_argument("ceil_div", dividend), integer_argument("ceil_div", divisor)
    return float(-(-first // _nonzero("ceil_div", second)))


@builtin
def floor_div(meter: Meter, dividend: Value, divisor: Value) -> float:
    first, second = integer_argument("floor_div", dividend), integer_argument("floor_div", divisor)
    return float(first // _nonzero("floor_div", second))


def _nonzero(name: str, divisor: int) -> int:
    if divisor == 0:
        raise RunError("division_by_zero", f"`{name}` can't divide by zero")
    return divisor


@builtin
def _range(meter: Meter, *numbers: Value) -> List:
    return List(map(float, _steps(meter, numbers)))


def counted_range(meter: Meter, *numbers: Value) -> Iterator[float]:
    """Return the numbers of `range` for a loop, without a list of them; the steps are the same."""
    steps = _steps(meter, numbers)
    meter.steps(len(steps) >> 4)
    return map(float, steps)


def _steps(meter: Meter, numbers: tuple[Value, ...]) -> range:
    whole = [integer_argument("range", number) for number in numbers]
    if len(whole) == 3 and whole[2] == 0:
        raise RunError("invalid_argument", "`range` needs a step other than 0")
    steps = range(*whole)
    # The ends may be any doubles, and `len` of a range fails beyond `sys.maxsize`.
    items = (
        max(0, -((steps.start - steps.stop) // steps.step)) if steps.step > 0 else _downward(steps)
    )
    if items > _RANGE_LIMIT:
        raise RunError(
            "range_too_large", f"`range` of {items} items is too large: at most {_RANGE_LIMIT}"
        )
    meter.room(16 + 16 * items)
    return steps


def _downward(steps: range) -> int:
    return max(0, -((steps.stop - steps.start) // -steps.step))


@builtin
def _sum(meter: Meter, whole: Value) -> float:
    total = 0.0
    for item in sequence_argument("sum", whole):
        if type(item) is not float:
            raise wrong("sum", "a list of numbers", item)
        total += item
    return total
