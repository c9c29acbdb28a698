"""Texts on a terminal: their width, and which characters may be shown.

Rule 1. Text of a user, a model or a tool never controls the terminal: control characters, and those
        that change the direction of a line, are shown as escapes.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_CONTROL_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_DIRECTION_MARKS: Final = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_JOINERS: Final = frozenset("\u200b\u200c\u200d\ufeff")


def printable(text: str) -> str:
    r"""Return text on one line, with control characters escaped.

    >>> printable("red\x1b[31m")
    'red\\x1b[31m'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in _DIRECTION_MARKS or unicodedata.category(character) in _CONTROL_CATEGORIES:
        return character.encode("unicode_escape").decode()
    return character


def cells(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if (
        unicodedata.combining(character)
        or character in _JOINERS
        or "\ufe00" <= character <= "\ufe0f"
    ):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clipped(text: str, width: int) -> str:
    """Return text in at most the given number of columns, with an ellipsis if it was cut."""
    if cells(text) <= width:
        return text
    kept, room = "", width - 1
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        kept += character
    return f"{kept}…" if width > 0 else ""


def padded(text: str, width: int) -> str:
    """Return text padded to the given number of columns; a longer text stays as it is."""
    return text + " " * (width - cells(text))
