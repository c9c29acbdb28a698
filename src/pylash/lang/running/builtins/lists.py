"""Builtins on lists and records."""

from __future__ import annotations

from math import isnan
from typing import Any

from pylash.lang.running.builtins.counting import (
    builtin,
    integer_argument,
    length_of,
    sequence_argument,
    text_argument,
    wrong,
)
from pylash.lang.running.data import (
    SCALARS,
    List,
    Record,
    RunError,
    Value,
    kind_of,
    size_of,
)
from pylash.lang.running.meter import Meter
from pylash.lang.running.operators import holds, same


@builtin
def _len(meter: Meter, value: Value) -> float:
    return float(length_of("len", value))


@builtin
def empty(meter: Meter, value: Value) -> bool:
    return length_of("empty", value) == 0


@builtin
def keys(meter: Meter, value: Value) -> List:
    if value is None:
        return List()
    if type(value) is not Record:
        raise wrong("keys", "a record", value)
    return List(value)


@builtin
def values(meter: Meter, value: Value) -> List:
    if value is None:
        return List()
    if type(value) is not Record:
        raise wrong("values", "a record", value)
    return List(value.values())


@builtin
def contains(meter: Meter, whole: Value, item: Value) -> bool:
    kind = type(whole)
    if whole is None:
        return False
    if kind is List or kind is tuple:
        return holds(meter, whole, item)
    if kind is str:
        return meter.text(item) in whole
    if kind is Record:
        return text_argument("contains", item) in whole
    raise wrong("contains", "a text, list or record", whole)


@builtin
def push(meter: Meter, whole: Value, item: Value) -> List:
    if type(whole) is not List:
        raise wrong("push", "a list", whole)
    meter.room(size_of(whole) + 8 + size_of(item))
    return List([*whole, item])


@builtin
def _slice(meter: Meter, whole: Value, start: Value, end: Value) -> Value:
    if type(whole) is not str and type(whole) is not List and type(whole) is not tuple:
        raise wrong("slice", "a text or list", whole)
    first = None if start is None else integer_argument("slice", start)
    last = None if end is None else integer_argument("slice", end)
    part = whole[first:last]
    return part if type(part) is str else List(part)


@builtin
def unique(meter: Meter, whole: Value) -> List:
    found = List()
    seen: set[object] = set()
    for item in sequence_argument("unique", whole):
        # Scalars are compared as (kind, value); other values one by one, and each comparison counts.
        if type(item) in SCALARS:
            mark = (type(item), item)
            if mark in seen and not (type(item) is float and isnan(item)):
                continue
            seen.add(mark)
        else:
            meter.steps(len(found) >> 4)
            if any(same(meter, item, other) for other in found):
                continue
        found.append(item)
    return found


@builtin
def reverse(meter: Meter, whole: Value) -> List:
    return List(reversed(sequence_argument("reverse", whole)))


@builtin
def sort(meter: Meter, whole: Value) -> List:
    return _sorted(meter, "sort", list(sequence_argument("sort", whole)), None)


@builtin
def sort_by(meter: Meter, whole: Value, path: Value) -> List:
    if type(path) is not str:
        raise wrong("sort_by", "the path of a field as text", path)
    items = list(sequence_argument("sort_by", whole))
    return _sorted(meter, "sort_by", items, [_at_path(item, path) for item in items])


def _at_path(item: Value, path: str) -> Value:
    at = item
    for name in path.split("."):
        if type(at) is not Record or name not in at:
            raise RunError(
                "invalid_argument", f"`sort_by` found an item without the field `{path}`"
            )
        at = at[name]
    return at


def _sorted(meter: Meter, name: str, items: list[Value], by: list[Value] | None) -> List:
    marks = items if by is None else by
    _comparable(name, marks)
    meter.steps(len(items) >> 4)
    order = [_order(mark) for mark in marks]
    return List(items[at] for at in sorted(range(len(items)), key=order.__getitem__))


def _comparable(name: str, items: list[Value]) -> None:
    kinds = {type(item) for item in items}
    if len(kinds) > 1 or not kinds <= SCALARS:
        found = " and a ".join(sorted({kind_of(item) for item in items}))
        raise RunError(
            "not_comparable",
            f"`{name}` can't order a {found}; it orders numbers, or texts, or bools",
        )


def _order(item: Value) -> tuple[bool, Any]:
    if item is None:
        return (False, 0)
    return (True, 0.0) if type(item) is float and isnan(item) else (False, item)


@builtin
def _min(meter: Meter, whole: Value) -> Value:
    return min(_candidates("min", whole), key=_order)


@builtin
def _max(meter: Meter, whole: Value) -> Value:
    return max(_candidates("max", whole), key=_order)


def _candidates(name: str, whole: Value) -> list[Value]:
    items = list(sequence_argument(name, whole))
    if not items:
        raise RunError("empty_sequence", f"`{name}` needs at least one item, the list is empty")
    _comparable(name, items)
    return items
