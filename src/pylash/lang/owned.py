"""Changing lists and records in place, where nobody can tell.

Every variable that a body changes by path has a token. A list or record whose `owner` is that token can be
reached through that variable alone: it was copied for the variable, and the body forgets the token as soon
as a list or record that may share with it is kept elsewhere. So a loop that changes one place after
another copies once, and values still never alias.
"""

from __future__ import annotations

from typing import Any

from pylash.lang.data import (
    SCALARS,
    Image,
    List,
    Record,
    RunError,
    Value,
    kind_of,
    measure,
    size_of,
    text_of,
)
from pylash.lang.meter import Meter, work

Step = tuple[bool, Value]
"""Whether it is a `.field`, and the field or index."""


def pushed(meter: Meter, value: Value, token: object, item: Value) -> List:
    """Return the list with the item added, in place if the token owns it."""
    if type(value) is not List:
        raise RunError("invalid_argument", f"`push` needs a list, found a {kind_of(value)}")
    length = len(value)
    meter.steps((length >> 4) + ((length + 1) >> 4) + work(item))
    size, depth = measure(item)
    meter.room(measure(value)[0] + 8 + size)
    grown: List = _own(value, token)
    grown.append(item)
    grown.size += 8 + size
    if depth >= grown.depth:
        grown.depth = depth + 1
    return grown


def _own(value: Any, token: object) -> Any:
    if getattr(value, "owner", None) is token:
        return value
    size, depth = measure(value)
    copy = type(value)(value)
    copy.size, copy.depth, copy.owner = size, depth, token
    return copy


def assigned(root: Value, token: object, steps: tuple[Step, ...], value: Value) -> Value:
    """Return the root with the value stored at the end of the steps, in place as far as the token owns it."""
    size, depth = measure(value)
    owned: list[Any] = [_own(_changeable(root, steps[0]), token)]
    keys = [_key(root, steps[0])]
    for step in steps[1:]:
        parent, key = owned[-1], keys[-1]
        if type(parent) is Record and key not in parent:
            raise RunError(
                "missing_assignment_path",
                f"there is no field `{key}` to assign into; assign a record to it first",
            )
        child = _changeable(parent[key], step)
        keys.append(_key(child, step))
        mine = _own(child, token)
        parent[key] = mine
        owned.append(mine)
    last, key = owned[-1], keys[-1]
    if type(last) is Record and key not in last:
        grown = len(key.encode("utf-8", "surrogatepass")) + 8 + size
    else:
        grown = size - size_of(last[key])
    last[key] = value
    for level, container in enumerate(reversed(owned), 1):
        container.size += grown
        container.depth = max(container.depth, depth + level)
    return owned[0]


def _changeable(value: Value, step: Step) -> Value:
    kind = type(value)
    if kind is Record or (kind is List and not step[0]):
        return value
    if kind is tuple or kind is Image:
        raise RunError("immutable_value", f"a {kind_of(value)} can't be changed; build a new one")
    field = f" field `{step[1]}` of" if step[0] else ""
    raise RunError("cannot_assign", f"cannot assign to{field or ' a place in'} a {kind_of(value)}")


def _key(value: Value, step: Step) -> Any:
    is_field, key = step
    if is_field:
        return key
    if type(value) is Record:
        return record_key(key)
    position = list_position(key)
    if not -len(value) <= position < len(value):
        raise RunError(
            "index_out_of_bounds",
            f"index {position} is out of bounds: the list has {len(value)} items; use push to add",
        )
    return position


def record_key(key: Value) -> str:
    """Return the text by which a record is indexed."""
    if type(key) not in SCALARS:
        raise RunError("cannot_index", f"cannot index a record by a {kind_of(key)}")
    return text_of(key)


def list_position(index: Value) -> int:
    """Return the position by which a list, tuple or text is indexed."""
    if type(index) is float and index.is_integer():
        return int(index)
    found = text_of(index) if type(index) is float else f"a {kind_of(index)}"
    raise RunError("index_not_integer", f"an index must be an integer, found {found}")
