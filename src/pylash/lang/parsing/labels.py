"""Parsing of labels."""

from __future__ import annotations

from pylash.lang.parsing.cursor import Cursor
from pylash.lang.parsing.declared_types import text_of
from pylash.lang.parsing.tokens import Token
from pylash.lang.tree import Label

FIELDS = ("title", "description")


def read_label(cursor: Cursor) -> Label:
    """Read `@label(…)` and the line breaks after it."""
    start = cursor.take()
    cursor.expect("label")
    found: dict[str, str] = {}

    def field() -> None:
        name = cursor.name("`title` or `description`")
        cursor.expect(":")
        if cursor.token.kind != "string":
            cursor.unexpected("a text")
        text = text_of(cursor.take())
        if name.text not in FIELDS:
            message = f"a label has no field `{name.text}`, only `title` and `description`"
            cursor.note("invalid_label", message, name)
        elif name.text in found:
            cursor.note("invalid_label", f"the label's field `{name.text}` is given twice", name)
        else:
            found[name.text] = text

    before = len(cursor.problems)
    cursor.bracketed("(", ")", lambda: cursor.listed(")", field))
    if "title" not in found and len(cursor.problems) == before:
        hint = '`@label(title: "What happens here")`'
        _invalid(cursor, "a label needs a `title`", start, hint)
    label = cursor.node(start, Label(found.get("title", ""), found.get("description")))
    while cursor.at("end of line"):
        cursor.take()
    return label


def check_labelled(cursor: Cursor, label: Token) -> None:
    """Check that a statement or process follows the label."""
    if cursor.at("@"):
        cursor.fail("invalid_label", "a statement has at most one label", cursor.token)
    if cursor.at("end of input", "}", ";"):
        cursor.fail("invalid_label", "no statement or process follows this label", label)
    if cursor.at("type", "fn") and cursor.following().kind == "name":
        _invalid(cursor, "only statements and processes have labels", label, None)


def _invalid(cursor: Cursor, message: str, start: Token, hint: str | None) -> None:
    width = len("@label") if cursor.source.startswith("@label", start.start) else 1
    cursor.note("invalid_label", message, start, hint, width)
