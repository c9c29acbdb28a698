"""Changing lists and records in place where this has no visible effect on other variables.

Every variable that a body changes by path has a token. A list or record whose `owner` is that token can be
reached through that variable only: it was copied for the variable, and the body drops the token as soon as
a list or record that may share parts with it is stored elsewhere. So a loop that changes one item after
another copies once, and two variables never share a value that can change.
"""

from __future__ import annotations

from typing import Any

from pylash.lang.running.data import (
    MAX_DEPTH,
    SCALARS,
    Image,
    List,
    Record,
    RunError,
    Value,
    kind_of,
    measure,
    real_depth,
    size_of,
    text_of,
    text_size,
    too_deep,
)
from pylash.lang.running.meter import Meter, work

Step = tuple[bool, Value]
"""Whether it is a `.field`, and the field or index."""


def pushed(meter: Meter, value: Value, token: object, item: Value) -> List:
    """Return the list with the item added, in place if the token owns it, and count it."""
    if type(value) is not List:
        raise RunError("invalid_argument", f"`push` needs a list, found a {kind_of(value)}")
    try:
        mine = value if value.owner is token else _copied(value, token)
    except AttributeError:
        mine = _copied(value, token)
    length = len(mine)
    meter.left -= (length >> 4) + ((length + 1) >> 4)
    if type(item) is float:
        grown = 16
    else:
        meter.left -= work(item)
        size, depth = measure(item)
        grown = 8 + size
        if depth >= mine.depth:
            mine.depth = depth + 1
    if meter.left < 0:
        meter.tick()
    whole, used = mine.size + grown, meter.used
    if used + whole > meter.limit:
        raise meter.full()
    mine.append(item)
    mine.size = whole
    meter.used = used + grown
    return mine


def _copied(value: Any, token: object) -> Any:
    size, depth = measure(value)
    copy = type(value)(value)
    copy.size, copy.depth, copy.owner = size, depth, token
    if type(value) is Record and hasattr(value, "handle"):
        copy.handle = value.handle
    return copy


def assigned(
    meter: Meter, root: Value, token: object, steps: tuple[Step, ...], value: Value
) -> Value:
    """Return the root with the value stored at the end of the steps, in place as far as the token owns it.

    The growth of the root is counted.
    """
    at = root
    key: Any = None
    mine: list[Any] = []
    for is_field, wanted in steps:
        if mine:
            parent = mine[-1]
            if type(parent) is Record and key not in parent:
                raise _missing(key)
            at = parent[key]
        kind = type(at)
        if kind is List and not is_field:
            inner: Any = _position(at, wanted)
        elif kind is Record:
            inner = wanted if is_field else record_key(wanted)
        else:
            raise _unchangeable(at, is_field, wanted)
        try:
            own = at if at.owner is token else _copied(at, token)
        except AttributeError:
            own = _copied(at, token)
        if own is not at and mine:
            mine[-1][key] = own
        mine.append(own)
        key = inner
    return _stored(meter, mine, key, value)


def _stored(meter: Meter, mine: list[Any], key: Any, value: Value) -> Value:
    last = mine[-1]
    size, depth = (8, 0) if type(value) is float else measure(value)
    if type(last) is Record and key not in last:
        grown = text_size(key) - 8 + size
    else:
        before = last[key]
        grown = size - (8 if type(before) is float else size_of(before))
    if meter.used + grown > meter.limit:
        raise meter.full()
    if depth + len(mine) > MAX_DEPTH and real_depth(value) + len(mine) > MAX_DEPTH:
        raise too_deep()
    last[key] = value
    meter.used += grown
    for container in reversed(mine):
        container.size += grown
        depth += 1
        container.depth = max(container.depth, depth)
    return mine[0]


def _missing(key: Any) -> RunError:
    return RunError(
        "missing_assignment_path",
        f"there is no field `{key}` to assign into; assign a record to it first",
    )


def _unchangeable(value: Value, is_field: bool, key: Value) -> RunError:
    if type(value) is tuple or type(value) is Image:
        return RunError("immutable_value", f"a {kind_of(value)} can't be changed; build a new one")
    place = f"field `{key}` of" if is_field else "an item of"
    return RunError("cannot_assign", f"cannot assign to {place} a {kind_of(value)}")


def _position(value: List, index: Value) -> int:
    position = list_position(index)
    if not -len(value) <= position < len(value):
        raise RunError(
            "index_out_of_bounds",
            f"index {position} is out of bounds: the list has {len(value)} items; use push to add",
        )
    return position


def record_key(key: Value) -> str:
    """Return the key with which a record is indexed."""
    if type(key) not in SCALARS:
        raise RunError("cannot_index", f"cannot index a record by a {kind_of(key)}")
    return text_of(key)


def list_position(index: Value) -> int:
    """Return the position with which a list, tuple or text is indexed."""
    if type(index) is float and index.is_integer():
        return int(index)
    found = text_of(index) if type(index) is float else f"a {kind_of(index)}"
    raise RunError("index_not_integer", f"an index must be an integer, found {found}")
