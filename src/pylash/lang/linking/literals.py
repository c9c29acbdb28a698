"""Checks of string literals where the type allows only certain texts."""

from __future__ import annotations

from typing import NamedTuple

from pylash.lang.static_types import ANY, DICT, STR, Types
from pylash.lang.tree import (
    EnumType,
    ListLiteral,
    ListType,
    Node,
    RecordLiteral,
    RecordType,
    Text,
    TupleLiteral,
    Type,
)


class WrongLiteral(NamedTuple):
    """A literal and the texts that are allowed in its place."""

    node: Text
    allowed: tuple[str, ...]


def wrong_literal(types: Types, node: Node, expected: Type) -> WrongLiteral | None:
    """Return the first literal of node that the expected type does not list."""
    heads = types.members(expected)
    match node:
        case Text(value):
            return _wrong_text(node, value, heads)
        case RecordLiteral():
            return _wrong_field(types, node, heads)
        case ListLiteral(items) | TupleLiteral(items):
            lists = [head for head in heads if isinstance(head, ListType)]
            if len(lists) == 1:
                found = (wrong_literal(types, item, lists[0].item) for item in items)
                return next((each for each in found if each), None)
    return None


def _wrong_text(node: Text, value: str, heads: tuple[Type, ...]) -> WrongLiteral | None:
    allowed = tuple(text for head in heads if isinstance(head, EnumType) for text in head.members)
    if not allowed or value in allowed or ANY in heads or STR in heads:
        return None
    return WrongLiteral(node, allowed)


def _wrong_field(types: Types, node: RecordLiteral, heads: tuple[Type, ...]) -> WrongLiteral | None:
    records = [head for head in heads if isinstance(head, RecordType)]
    if len(records) != 1 or DICT in heads:
        return None
    expected = {field.key: field.type for field in records[0].fields}
    for field in node.fields:
        if field.key in expected and (
            found := wrong_literal(types, field.value, expected[field.key])
        ):
            return found
    return None
