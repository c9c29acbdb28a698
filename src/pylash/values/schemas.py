"""Checks of plain values against JSON Schema, for the keywords that declarations use.

Rule 1. An unknown keyword is not checked and refuses nothing.
Rule 2. No value makes a check raise or loop forever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, Final

_SHOWN: Final = 80
"""How many characters of a value an error message shows."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_BOUNDS: Final[dict[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (ge, "at least"),
    "maximum": (le, "at most"),
    "exclusiveMinimum": (gt, "more than"),
    "exclusiveMaximum": (lt, "less than"),
}
_LENGTHS: Final[dict[str, tuple[type[Sized], Callable[[Any, Any], bool], str]]] = {
    "minLength": (str, ge, "at least {} long"),
    "maxLength": (str, le, "at most {} long"),
    "minItems": (list, ge, "of at least {} items"),
    "maxItems": (list, le, "of at most {} items"),
    "minProperties": (dict, ge, "of at least {} names"),
    "maxProperties": (dict, le, "of at most {} names"),
}


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a check: the whole schema, the path in the value, the references followed so far."""

    root: Any
    path: str
    followed: frozenset[str] = frozenset()

    def inside(self, step: str) -> _Place:
        return _Place(self.root, self.path + step)

    def following(self, reference: str) -> _Place:
        return _Place(self.root, self.path, self.followed | {reference})


def schema_trouble(value: Any, schema: Any, path: str = "$") -> str | None:
    """Return the first mismatch between value and schema, or None if the value is valid.

    >>> schema_trouble({"age": "7"}, {"properties": {"age": {"type": "integer"}}})
    "$.age is '7', not of type integer"
    """
    try:
        return _trouble(value, schema, _Place(schema, path))
    except RecursionError:
        return f"{path} is nested too deeply"


def _trouble(value: Any, schema: Any, place: _Place) -> str | None:
    if not isinstance(schema, dict):
        return f"nothing fits at {place.path}" if schema is False else None
    return next((t for check in _CHECKS for t in check(value, schema, place) if t), None)


# --- one check per group of keywords; each yields the mismatches it finds ---

_Troubles = Iterator[str | None]


def _reference(value: Any, schema: dict[str, Any], place: _Place) -> _Troubles:
    reference = schema.get("$ref")
    # A reference that leads back to itself without a step into the value constrains nothing.
    if isinstance(reference, str) and reference not in place.followed:
        yield _trouble(value, _resolve_reference(reference, place.root), place.following(reference))


def _resolve_reference(reference: str, root: Any) -> Any:
    """Return the part of root that a local reference names, or None, which accepts every value, if there is none."""
    start, *steps = reference.split("/")
    found = root if start == "#" else None
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _type(value: Any, schema: dict[str, Any], place: _Place) -> _Troubles:
    types = schema.get("type")
    wanted = [types] if isinstance(types, str) else types or []
    if wanted and not any(_TYPES[name](value) for name in wanted if name in _TYPES):
        yield f"{place.path} is {_shown(value)}, not of type {' or '.join(wanted)}"


def _choice(value: Any, schema: dict[str, Any], place: _Place) -> _Troubles:
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield f"{place.path} is {_shown(value)}, not one of {schema['enum']!r}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{place.path} is {_shown(value)}, not {schema['const']!r}"


def _size(value: Any, schema: dict[str, Any], place: _Place) -> _Troubles:
    for word, (fits, phrase) in _BOUNDS.items():
        if word in schema and _is_number(value) and not fits(value, schema[word]):
            yield f"{place.path} is {_shown(value)}, not {phrase} {schema[word]!r}"
    for word, (kind, fits, phrase) in _LENGTHS.items():
        if word in schema and isinstance(value, kind) and not fits(len(value), schema[word]):
            yield f"{place.path} is {_shown(value)}, not {phrase.format(schema[word])}"


def _pattern(value: Any, schema: dict[str, Any], place: _Place) -> _Troubles:
    pattern = schema.get("pattern")
    if isinstance(value, str) and isinstance(pattern, str) and not _matches_pattern(pattern, value):
        yield f"{place.path} is {_shown(value)}, not like {pattern!r}"


# Classes of characters inside a set, and operations on sets, which Python reads as characters.
_OTHER_DIALECT: Final = re.compile(r"\[[^]]*?(\[|&&|--|~~)")
_UNICODE_CLASS: Final = re.compile(r"\\[wWbB]")


def _matches_pattern(pattern: str, value: str) -> bool:
    """Return whether a text matches, or may match: pydantic uses the expressions of Rust, which differ from Python's."""
    if _OTHER_DIALECT.search(pattern):
        return True
    # A combining mark is a part of a word for Rust only.
    if not value.isascii() and _UNICODE_CLASS.search(pattern):
        return True
    try:
        return re.search(pattern, value) is not None
    except re.error:  # not a pattern of Python's dialect
        return True


def _combination(value: Any, schema: dict[str, Any], place: _Place) -> _Troubles:
    for one in schema.get("allOf", ()):
        yield _trouble(value, one, place)
    # pydantic writes ``oneOf`` for a tagged union, also if a value fits several of its alternatives.
    for word in ("anyOf", "oneOf"):
        troubles = [_trouble(value, one, place) for one in schema.get(word, ())]
        if troubles and None not in troubles:
            yield _nearest([t for t in troubles if t], value, place)


def _nearest(troubles: list[str], value: Any, place: _Place) -> str:
    """Return the mismatch of the only alternative whose outer type matches, or a mismatch with all alternatives."""
    inner = [t for t in troubles if not t.startswith(f"{place.path} is ")]
    if len(inner) == 1:
        return inner[0]
    return f"{place.path} is {_shown(value)} and fits none of the alternatives"


def _names(value: Any, schema: dict[str, Any], place: _Place) -> _Troubles:
    if not isinstance(value, dict):
        return
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{place.path}.{name} is missing"
    properties = schema.get("properties", {})
    for name, part in value.items():
        inner = properties.get(name, schema.get("additionalProperties"))
        if inner is False:
            yield f"{place.path}.{name} is not expected"
        yield _trouble(part, inner, place.inside(f".{name}"))


def _items(value: Any, schema: dict[str, Any], place: _Place) -> _Troubles:
    if not isinstance(value, list):
        return
    first = schema.get("prefixItems", [])
    for number, part in enumerate(value):
        inner = first[number] if number < len(first) else schema.get("items")
        if inner is False:
            yield f"{place.path}[{number}] is not expected"
        yield _trouble(part, inner, place.inside(f"[{number}]"))


_CHECKS: Final = (_reference, _type, _choice, _size, _pattern, _combination, _names, _items)

# --- values ---


def _same(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal as JSON, where true differs from 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
