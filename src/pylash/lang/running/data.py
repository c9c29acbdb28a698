"""The values of a running program.

1. Numbers are always `float` and truth values always `bool`; an `int` occurs only in JSON and as a position.
2. A list or record is never changed while another variable or value can reach it. To change one in place, a
   variable marks its own copy with its token (`owner`); see `owned.py`.
3. Size and depth of a list or record are computed once and stored in it.
4. Nothing nests deeper than `MAX_DEPTH`: a deeper value is refused when it is assigned to a variable or
   leaves the program.
5. A handle is a record that carries the mark `handle`. Programs cannot set the mark, and JSON does not contain it:
   it is set by `process_handle`, and in arguments for the ids that their sender lists as handles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from decimal import Decimal
from math import isinf, isnan
from typing import Any, Final, NamedTuple

MAX_DEPTH: Final = 64
TRIGGER_EVENT: Final = "$lash_trigger_event"
"""`{TRIGGER_EVENT: true}` among the inputs of a registration is replaced by the event."""
LARGEST_INTEGER: Final = 2.0**53
_SHORT: Final = 8
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class RunError(Exception):
    """An error of a running program; `at` is its node, if the line of the failing code does not give it."""

    def __init__(
        self, kind: str, message: str, at: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.at = at
        self.hint = hint


class List(list[Any]):
    """A list of the language."""

    __slots__ = ("depth", "owner", "size")
    size: int
    depth: int
    owner: object


class Record(dict[str, Any]):
    """A record of the language: keys keep their insertion order."""

    __slots__ = ("depth", "handle", "owner", "size")
    size: int
    depth: int
    owner: object
    handle: str
    """The id of the process if the record is a handle. Only the runtime sets it; copies keep it."""


class Image(NamedTuple):
    """A reference to an attachment."""

    id: Any
    mime: Any
    label: Any
    size: Any
    width: Any
    height: Any


class Resource(NamedTuple):
    """The right to use the module `alias`, of resource type `type`."""

    type: str
    alias: str


Value = Any
"""One of the kinds below. Compiled code distinguishes them by exact type, which is fast."""
_KINDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "bool",
    float: "number",
    str: "string",
    List: "list",
    tuple: "tuple",
    Record: "record",
    Image: "image",
    Resource: "resource",
}
CONTAINERS: Final = frozenset({List, Record, tuple})
SCALARS: Final = frozenset({type(None), bool, float, str})


def kind_of(value: Value) -> str:
    """Return the name of a value's kind for messages."""
    return _KINDS[type(value)]


# Sizes and depths.


def text_size(text: str) -> int:
    """Return the size of a text: 16 plus its bytes in UTF-8."""
    return 16 + (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")))


def size_of(value: Value) -> int:
    """Return the size of a value that counts against the memory bound."""
    kind = type(value)
    if kind is List or kind is Record:
        try:
            return int(value.size)
        except AttributeError:
            value.size, value.depth = known = _measured(value, None)
            return known[0]
    if kind is str:
        return text_size(value)
    return measure(value)[0] if kind is tuple or kind is Image else 8


def measure(value: Value, tuples: dict[int, tuple[int, int]] | None = None) -> tuple[int, int]:
    """Return size and depth of a value, and store them in each list or record.

    A tuple cannot store them: `tuples` has those of the tuples measured in this call, which may be shared.
    """
    kind = type(value)
    if kind is List or kind is Record:
        try:
            return value.size, value.depth
        except AttributeError:
            value.size, value.depth = known = _measured(value, tuples)
            return known
    if kind is tuple:
        tuples = {} if tuples is None else tuples
        known = tuples.get(id(value)) or _measured(value, tuples)
        if known[1] > 1 or len(value) > _SHORT:
            tuples[id(value)] = known
        return known
    if kind is Image:
        return 16 + sum(map(size_of, value)), 0
    return (text_size(value) if kind is str else 8), 0


def _measured(value: Value, tuples: dict[int, tuple[int, int]] | None) -> tuple[int, int]:
    size, depth = 16, 0
    if type(value) is Record:
        keys = "".join(value)
        size += len(keys) if keys.isascii() else text_size(keys) - 16
        items: Iterable[Any] = value.values()
    else:
        items = value
    for item in items:
        known = type(item)
        if known is float:
            size += 16
        elif known is str:
            size += 24 + len(item) if item.isascii() else 8 + text_size(item)
        else:
            inner, below = measure(item, tuples)
            size += 8 + inner
            depth = max(depth, below)
    return size, depth + 1


def real_depth(value: Value, known: dict[int, int] | None = None) -> int:
    """Return the exact depth of a value: changes in place only ever raise the stored depth.

    `known` has the depths of the values seen in this call, which may be shared.
    """
    if type(value) not in CONTAINERS:
        return 0
    known = {} if known is None else known
    if id(value) not in known:
        items = value.values() if type(value) is Record else value
        known[id(value)] = 1 + max((real_depth(item, known) for item in items), default=0)
    return known[id(value)]


def check_depth(value: Value) -> None:
    """Refuse a value that nests too deeply to leave or enter a program."""
    if measure(value)[1] > MAX_DEPTH and real_depth(value) > MAX_DEPTH:
        raise too_deep()


def too_deep() -> RunError:
    """Return the error for a value that nests too deeply."""
    return RunError(
        "value_too_deep",
        f"a value nests more than {MAX_DEPTH} lists, tuples or records; make it flatter",
    )


# Truth, equality, numbers and text.


def truth(value: Value) -> bool:
    """Return whether a value counts as true: as in Python, except for NaN."""
    if type(value) is float:
        return value != 0.0 and not isnan(value)
    return bool(value)


def equal(left: Value, right: Value) -> bool:
    """Return whether two values of any depth are equal; values of different kinds never are."""
    kind = type(left)
    if kind is not type(right):
        return False
    if kind is List or kind is tuple:
        return len(left) == len(right) and all(map(equal, left, right))
    if kind is Record:
        return len(left) == len(right) and all(
            key in right and equal(item, right[key]) for key, item in left.items()
        )
    return bool(left == right)


def number_of(value: Value) -> float:
    """Return the number that an operator converts a value to."""
    if type(value) is float:
        return value
    if value is None or type(value) is bool:
        return 1.0 if value else 0.0
    if type(value) is str:
        trimmed = value.strip()
        if not trimmed:
            return 0.0
        if _NUMBER.fullmatch(trimmed):
            return float(trimmed)
        raise RunError("expected_number", f"expected a number, found the text `{shown(trimmed)}`")
    raise RunError("expected_number", f"expected a number, found a {kind_of(value)}")


def number_text(number: float) -> str:
    """Return the shortest decimal that is read as the same number, without an exponent."""
    if number.is_integer() and -1e16 < number < 1e16:
        return str(int(number))
    if isnan(number):
        return "NaN"
    if isinf(number):
        return "inf" if number > 0 else "-inf"
    shortest = repr(number)
    return format(Decimal(shortest), "f") if "e" in shortest else shortest


def text_of(value: Value) -> str:
    """Return the text of a value, as `+` and `to_string` produce it."""
    if type(value) is str:
        return value
    if type(value) is float:
        return number_text(value)
    if type(value) is tuple:
        items = [quoted(item) if type(item) is str else text_of(item) for item in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    return _json_text(value)


quoted: Final[Callable[[str], str]] = json.JSONEncoder(ensure_ascii=False).encode
"""Return a text in quotes, as in JSON."""


def text_pieces(value: Value) -> Iterator[str]:
    """Yield the text of a value in pieces: the text may be far larger than the value."""
    if type(value) is not tuple:
        yield from _json_pieces(value) if type(value) in CONTAINERS else (text_of(value),)
        return
    yield "("
    for position, item in enumerate(value):
        if position:
            yield ", "
        yield from (quoted(item),) if type(item) is str else text_pieces(item)
    yield ",)" if len(value) == 1 else ")"


def _json_pieces(value: Value) -> Iterator[str]:
    if type(value) is Record:
        yield "{"
        for position, key in enumerate(sorted(value)):
            yield f"{',' if position else ''}{quoted(key)}:"
            yield from _json_pieces(value[key])
        yield "}"
    elif type(value) is List or type(value) is tuple:
        yield "["
        for position, item in enumerate(value):
            if position:
                yield ","
            yield from _json_pieces(item)
        yield "]"
    else:
        yield _json_text(value)


def shown(value: Value, most: int = 120) -> str:
    """Return the beginning of a value's text, for messages."""
    text = ""
    for piece in text_pieces(value):
        text += piece[: most + 1]
        if len(text) > most:
            return f"{text[:most]}…"
    return text


def _json_text(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return number_text(value) if abs(value) < float("inf") else "null"
        case str():
            return quoted(value)
        case Record():
            return (
                "{"
                + ",".join(f"{quoted(key)}:{_json_text(value[key])}" for key in sorted(value))
                + "}"
            )
        case Image() | Resource():
            return _json_text(from_json(to_json(value), shapes=False))
        case _:
            return "[" + ",".join(map(_json_text, value)) + "]"


# Handles of processes.


def process_handle(process_id: str) -> Record:
    """Return the handle of a process."""
    made = Record(__handle__="process", id=process_id)
    made.handle = process_id
    return made


def handle_id(value: Value) -> str | None:
    """Return the process of a handle; None for any other value, also for a record that only looks like a handle."""
    process_id = getattr(value, "handle", None)
    return process_id if process_id is not None and shaped_id(value) == process_id else None


def shaped_id(value: Any) -> str | None:
    """Return the id in a record, or in JSON, that has the form of a handle."""
    if isinstance(value, dict) and value.get("__handle__") == "process":
        found = value.get("id")
        return found if isinstance(found, str) else None
    return None


def handle_ids(value: Value) -> tuple[str, ...]:
    """Return the processes whose handles are in a value, at any depth."""
    found: set[str] = set()
    _add_handles(value, found)
    return tuple(sorted(found))


def _add_handles(value: Value, found: set[str]) -> None:
    kind = type(value)
    if kind is Record and (process_id := handle_id(value)) is not None:
        found.add(process_id)
    if kind in CONTAINERS:
        for item in value.values() if kind is Record else value:
            if type(item) in CONTAINERS:
                _add_handles(item, found)


# To and from JSON.


def to_json(value: Value) -> Any:
    """Return a value as plain JSON data."""
    kind = type(value)
    if kind is float:
        if value.is_integer():
            return int(value) if abs(value) <= LARGEST_INTEGER else value
        return value if abs(value) < float("inf") else None
    if kind is List or kind is tuple:
        return [to_json(item) for item in value]
    if kind is Record:
        return {key: to_json(item) for key, item in value.items()}
    if kind is Image:
        return {"type": "image", **{k: to_json(v) for k, v in value._asdict().items()}}
    if kind is Resource:
        return {"__resource__": True, "type": value.type, "alias": value.alias}
    return value


def shared_json(data: Any, made: dict[int, Any] | None = None, level: int = 0) -> Any:
    """Return the value of JSON data that pylash built; objects that are shared in it are shared in the value."""
    made = {} if made is None else made
    if type(data) not in {dict, list}:
        return data
    if level == MAX_DEPTH:
        raise too_deep()
    if id(data) not in made:
        made[id(data)] = (
            Record({key: shared_json(item, made, level + 1) for key, item in data.items()})
            if type(data) is dict
            else List([shared_json(item, made, level + 1) for item in data])
        )
    return made[id(data)]


def from_json(
    data: Any, *, shapes: bool = True, handles: Collection[str] | None = frozenset()
) -> Any:
    """Return the value of plain JSON data; with `shapes`, JSON of images and resources becomes such values.

    `handles` are the processes whose handles may be in the data; the caller knows where the data comes from.
    None means every process: an older version stored arguments without a list of the handles in them.
    """
    value = _decoded(data, shapes, MAX_DEPTH)
    if handles is None or handles:
        _mark_handles(value, handles)
    measure(value)
    return value


def _mark_handles(value: Value, handles: Collection[str] | None) -> None:
    if type(value) is Record:
        process_id = shaped_id(value)
        if process_id is not None and (handles is None or process_id in handles):
            value.handle = process_id
    if type(value) in CONTAINERS:
        for item in value.values() if type(value) is Record else value:
            _mark_handles(item, handles)


def _decoded(data: Any, shapes: bool, levels: int) -> Any:
    if data is None or isinstance(data, bool | str):
        return data
    if isinstance(data, int | float):
        try:
            return float(data)
        except OverflowError:
            return float("inf") if data > 0 else float("-inf")
    if levels == 0:
        raise too_deep()
    if isinstance(data, dict):
        shape = _shaped(data) if shapes else None
        if shape is not None:
            return shape
        return Record({key: _decoded(item, shapes, levels - 1) for key, item in data.items()})
    return List([_decoded(item, shapes, levels - 1) for item in data])


_IMAGE: Final = frozenset(("type", *Image._fields))


def _shaped(data: dict[str, Any]) -> Image | Resource | None:
    if data.get("__resource__") is True and data.keys() == {"__resource__", "type", "alias"}:
        kind, alias = data["type"], data["alias"]
        return Resource(kind, alias) if isinstance(kind, str) and isinstance(alias, str) else None
    if data.get("type") == "image" and data.keys() == _IMAGE:
        return Image(*(_decoded(data[field], False, 1) for field in Image._fields))
    return None
