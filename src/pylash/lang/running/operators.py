"""Operators, fields and indexes. Compiled code calls these where it does not know the types of the operands."""

from __future__ import annotations

from collections.abc import Iterable
from math import copysign, fmod, inf, isnan, nan

from pylash.lang.running.data import (
    CONTAINERS,
    Image,
    List,
    Record,
    RunError,
    Value,
    equal,
    kind_of,
    number_of,
    shown,
    size_of,
    text_size,
)
from pylash.lang.running.meter import Meter
from pylash.lang.running.owned import list_position, record_key


def add(meter: Meter, left: Value, right: Value) -> Value:
    """`+`: joins texts if either side is text, joins lists or tuples, or adds numbers."""
    if type(left) is float and type(right) is float:
        return left + right
    if type(left) is str or type(right) is str:
        first, second = meter.text(left), meter.text(right)
        length = len(first) + len(second)
        # A character takes at most four bytes: they are counted only near the bound.
        if meter.used + 4 * length + 16 > meter.limit:
            meter.room(text_size(first) + text_size(second) - 16)
        if length > 15:
            meter.steps(length >> 4)
        return first + second
    sequences = (List, tuple)
    if type(left) in sequences and type(right) in sequences:
        if type(left) is not type(right):
            raise RunError(
                "cannot_concatenate", f"cannot concatenate a {kind_of(left)} and a {kind_of(right)}"
            )
        meter.room(size_of(left) + size_of(right))
        meter.steps((len(left) + len(right)) >> 4)
        return List([*left, *right]) if type(left) is List else left + right
    return _number(meter, left) + _number(meter, right)


def _number(meter: Meter, value: Value) -> float:
    if type(value) is float:
        return value
    if type(value) is str:
        meter.toil(len(value))
    return number_of(value)


def same(meter: Meter, left: Value, right: Value) -> bool:
    """`==`, which takes time proportional to the size of the values."""
    kind = type(left)
    if kind is not type(right):
        return False
    if kind in CONTAINERS or kind is str:
        size = min(size_of(left), size_of(right))
        if size > meter.limit:
            raise meter.full()
        meter.toil(size)
    return equal(left, right)


def holds(meter: Meter, whole: Iterable[Value], item: Value) -> bool:
    """Return whether an item is among others."""
    if type(item) is str:  # in Python, too, a str equals only a str
        return item in whole
    if type(item) not in CONTAINERS:
        return any(equal(item, other) for other in whole)
    return any(same(meter, item, other) for other in whole)


def subtract(meter: Meter, left: Value, right: Value) -> float:
    """`-`."""
    return _number(meter, left) - _number(meter, right)


def multiply(meter: Meter, left: Value, right: Value) -> float:
    """`*`."""
    return _number(meter, left) * _number(meter, right)


def divide(meter: Meter, left: Value, right: Value) -> float:
    """`/`, which never fails: a division by zero is infinite or NaN."""
    dividend, divisor = _number(meter, left), _number(meter, right)
    if divisor:
        return dividend / divisor
    if isnan(dividend) or dividend == 0.0:
        return nan
    return copysign(inf, dividend) * copysign(1.0, divisor)


def remainder(meter: Meter, left: Value, right: Value) -> float:
    """`%`, with the sign of the dividend."""
    dividend, divisor = _number(meter, left), _number(meter, right)
    try:
        return fmod(dividend, divisor)
    except ValueError:
        return nan


def negate(meter: Meter, value: Value) -> float:
    """Unary `-`."""
    return -_number(meter, value)


def less(meter: Meter, left: Value, right: Value) -> bool:
    """`<`: two texts by code point, anything else as numbers."""
    if type(left) is str and type(right) is str:
        meter.toil(min(len(left), len(right)))
        return left < right
    return _number(meter, left) < _number(meter, right)


def at_most(meter: Meter, left: Value, right: Value) -> bool:
    """`<=`."""
    if type(left) is str and type(right) is str:
        meter.toil(min(len(left), len(right)))
        return left <= right
    return _number(meter, left) <= _number(meter, right)


def contains(meter: Meter, item: Value, whole: Value) -> bool:
    """`in`."""
    kind = type(whole)
    if whole is None:
        return False
    if kind is List or kind is tuple:
        return holds(meter, whole, item)
    if type(item) is str and (kind is str or kind is Record):
        meter.toil(len(item) + len(whole))
        return item in whole
    raise RunError(
        "invalid_membership", f"cannot search for a {kind_of(item)} in a {kind_of(whole)}"
    )


def field(value: Value, name: str) -> Value:
    """`value.name`."""
    if type(value) is Record:
        return value.get(name)
    if value is None:
        return None
    if type(value) is Image and name in Image._fields:
        return getattr(value, name)
    raise RunError("cannot_read_field", f"cannot read field `{name}` of a {kind_of(value)}")


def index(value: Value, at: Value) -> Value:
    """`value[at]`."""
    kind = type(value)
    if kind is List or kind is tuple or kind is str:
        try:
            return value[list_position(at)]
        except IndexError:
            return None
    if kind is Record:
        return value.get(record_key(at))
    if value is None:
        return None
    raise RunError("cannot_index", f"cannot index a {kind_of(value)}")


def unwrap(value: Value) -> Value:
    """`value?`: the value of a successful result."""
    if type(value) is Record and type(value.get("ok")) is bool:
        if not value["ok"]:
            hint = "without `?` the result has `.ok` and `.error`"
            raise RunError("unwrap_failed", shown(value.get("error"), 2000), hint=hint)
        if "value" in value:
            return value["value"]
    raise RunError(
        "not_a_result", f"`?` needs a result with `ok` and `value`, found a {kind_of(value)}"
    )


def iterated(value: Value) -> Iterable[Value]:
    """Return the items that a loop iterates over."""
    if type(value) is List or type(value) is tuple:
        return value
    raise RunError(
        "not_iterable",
        f"cannot iterate over a {kind_of(value)}: only lists and tuples can be iterated",
    )


def greater(meter: Meter, left: Value, right: Value) -> bool:
    """`>`."""
    if type(left) is str and type(right) is str:
        meter.toil(min(len(left), len(right)))
        return left > right
    return _number(meter, left) > _number(meter, right)


def at_least(meter: Meter, left: Value, right: Value) -> bool:
    """`>=`."""
    if type(left) is str and type(right) is str:
        meter.toil(min(len(left), len(right)))
        return left >= right
    return _number(meter, left) >= _number(meter, right)
