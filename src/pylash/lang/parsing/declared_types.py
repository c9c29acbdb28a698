"""Parsing of types."""

from __future__ import annotations

from pylash.lang.parsing.cursor import Cursor
from pylash.lang.parsing.hints import NO_DEFAULTS
from pylash.lang.parsing.tokens import Token
from pylash.lang.static_types import SPELLINGS
from pylash.lang.tree import (
    EnumType,
    ListType,
    Parameter,
    RecordType,
    Type,
    TypeField,
    TypeName,
    UnionType,
)


def read_type(cursor: Cursor) -> Type:
    """Read a type: one term, or several with `|` between them."""
    start = cursor.token
    members = [_term(cursor)]
    while cursor.accept("|"):
        members.append(_term(cursor))
    return members[0] if len(members) == 1 else cursor.node(start, UnionType(tuple(members)))


def read_fields(cursor: Cursor, opening: str, closing: str, what: str) -> tuple[Parameter, ...]:
    """Read parameters or signals in their brackets."""

    def field() -> Parameter:
        if opening == "{" and cursor.at("with", "within"):
            cursor.unexpected(f"{what} with another name")
        name = cursor.name(what)
        hint = f"every {what.removeprefix('a ')} has a type: `{name.text}: any`"
        cursor.expect(":", f"write `{name.text}: type | null`" if cursor.at("?") else hint)
        declared = read_type(cursor)
        if cursor.at("="):
            cursor.unexpected(f"`,` or `{closing}`", NO_DEFAULTS)
        return cursor.node(name, Parameter(name.text, declared))

    return cursor.bracketed(opening, closing, lambda: cursor.listed(closing, field))


def read_record_type(cursor: Cursor) -> RecordType:
    """Read a record type in its braces."""
    start = cursor.token
    seen: set[str] = set()

    def field() -> TypeField:
        token = cursor.token
        key = read_key(cursor, "a field")
        if key in seen:
            cursor.note("duplicate_type_field", f"the field `{key}` is declared twice", token)
        seen.add(key)
        cursor.expect(":", f"write `{key}: type?`" if cursor.at("?") else None)
        declared = read_type(cursor)
        optional = cursor.accept("?") is not None
        return cursor.node(token, TypeField(key, declared, optional))

    fields = cursor.bracketed("{", "}", lambda: cursor.listed("}", field))
    return cursor.node(start, RecordType(fields))


def read_key(cursor: Cursor, what: str) -> str:
    """Read a name, a reserved word or a string."""
    if cursor.token.kind == "string":
        return text_of(cursor.take())
    return cursor.field(what).text


def text_of(string: Token) -> str:
    """Return the value of a string token."""
    assert isinstance(string.value, str)
    return string.value


def _term(cursor: Cursor) -> Type:
    start = cursor.token
    if start.kind == "string":
        cursor.take()
        return cursor.node(start, EnumType((text_of(start),)))
    if start.text == "{":
        return read_record_type(cursor)
    if start.text == "null":
        cursor.take()
        return cursor.node(start, TypeName("null"))
    if start.kind != "name":
        cursor.unexpected("a type")
    cursor.take()
    if cursor.at("[") and start.text in ("enum", "list"):
        return _enum(cursor, start) if start.text == "enum" else _list(cursor, start)
    return _named(cursor, start)


def _enum(cursor: Cursor, start: Token) -> EnumType:
    def member() -> str:
        if cursor.token.kind != "string":
            cursor.unexpected("a text")
        return text_of(cursor.take())

    def members() -> tuple[str, ...]:
        return (member(), *(cursor.listed("]", member) if cursor.accept(",") else ()))

    return cursor.node(start, EnumType(cursor.bracketed("[", "]", members)))


def _list(cursor: Cursor, start: Token) -> ListType:
    item = cursor.bracketed("[", "]", lambda: read_type(cursor), single=True)
    return cursor.node(start, ListType(item))


def _named(cursor: Cursor, start: Token) -> TypeName:
    path = [start.text]
    while cursor.accept("."):
        path.append(cursor.name("the rest of the type's name").text)
    name = ".".join(path)
    return cursor.node(start, TypeName(SPELLINGS.get(name, name)))
