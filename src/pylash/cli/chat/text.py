"""Text for terminals, without a terminal: escaped, measured, wrapped and cut.

Rule 1. Text of models, tools and other people goes through ``clean`` before anything else.
Rule 2. Widths are cells of the screen, not characters.
Rule 3. ``wrapped`` is stable: more text at the end changes only the last row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pylash.values.canonical import write
from pylash.values.texts import cells, printable

PROMPT: Final = "› "
TAB: Final = "    "
NARROWEST: Final = 24
"""The smallest width of a column of sentences."""


def clean(text: str) -> str:
    """Return text with control characters escaped, keeping its lines.

    >>> clean("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    lines = text.replace("\r", "").replace("\t", TAB).split("\n")
    return "\n".join(map(printable, lines))


def one_line(text: str) -> str:
    """Return clean text on one line, with runs of whitespace replaced by one blank."""
    return " ".join(clean(text).split())


def fitting(text: str, width: int) -> str:
    """Return the longest prefix of a text that fits; the rest is not examined."""
    if text[: width + 1].isascii():
        return text[:width]
    used = 0
    for place, char in enumerate(text):
        used += cells(char)
        if used > width:
            return text[:place]
    return text


_PIECES: Final = re.compile(r"\S+|\s+")
_MARGIN: Final = re.compile(r"\s*(?:(?:[-*•]|\d+[.)]) +)?")


def wrapped(line: str, width: int) -> list[str]:
    """Return one line of text as rows that fit, broken between words where possible.

    Further rows of indented text and of list items are indented to where the text begins.
    """
    margin = _MARGIN.match(line)
    # Leave room for one wide character.
    hang = " " * min(cells(margin[0]) if margin else 0, width // 2, max(0, width - 2))
    rows, row = [], ""
    for piece in _PIECES.findall(line):
        if cells(row) + cells(piece) > width and not piece.isspace() and row.strip():
            rows.append(row.rstrip())
            row = hang
        row += piece
        while cells(row) > width and not piece.isspace():
            head = fitting(row, width) or row[0]
            rows.append(head)
            row = hang + row[len(head) :]
    return [*rows, row]


def in_columns(pairs: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return pairs as rows: side by side, or below each other if the width is too small."""
    left = max(cells(name) for name, _ in pairs) + 2
    rows: list[str] = []
    for name, about in pairs:
        if width - left < NARROWEST:
            rows += [name, *wrapped(f"    {about}", width)]
        else:
            first, *others = wrapped(about, width - left)
            rows += [f"{name:{left}}{first}", *(" " * left + other for other in others)]
    return rows


def shown_value(value: Any) -> str:
    """Return a JSON value on one line."""
    return one_line(write(value).decode())


def shown_call(tool: str | None, arguments: Any) -> str:
    """Return a call in Python syntax.

    >>> shown_call("lookup", {"order": "17"})
    'lookup(order="17")'
    """
    if not isinstance(arguments, dict):
        given = "" if arguments is None else shown_value(arguments)
    else:
        given = ", ".join(f"{one_line(name)}={shown_value(arguments[name])}" for name in arguments)
    return f"{one_line(tool or 'tool')}({given})"


def shown_seconds(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
