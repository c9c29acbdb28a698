"""Docstrings of tools: the descriptions of a tool and of its parameters for the model.

Rule 1. The description is the text before the first section.
Rule 2. A section that cannot be parsed is left out; it is never an error.

Parameters may be listed in the style of Google, NumPy or Sphinx.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

_PARAMETERS: Final = frozenset({"args", "arguments", "parameters", "params"})
_OTHERS: Final = ("returns", "return", "yields", "raises", "examples", "example", "notes", "note")
_HEADER: Final = re.compile(rf"({'|'.join((*_PARAMETERS, *_OTHERS))}):", re.IGNORECASE)
_UNDERLINE: Final = re.compile(r"-{3,}\s*")
_FIELD: Final = re.compile(r":(param|parameter|arg|type|returns?|rtype|raises?)\b[^:]*:")
_GOOGLE: Final = re.compile(r"(\w+)\s*(?:\(.*?\)\s*)?:\s*(.*)")
_NUMPY: Final = re.compile(r"(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_SPHINX: Final = re.compile(r":(?:param|parameter|arg)\s([^:]*):\s*(.*)")
_WORD: Final = re.compile(r"\w+")


class ToolDoc(msgspec.Struct, frozen=True):
    """The descriptions of a function and of its parameters."""

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> ToolDoc:
    r"""Return the descriptions in a docstring.

    >>> read_docstring("Find an order.\n\nArgs:\n    order_id: Its number.").parameters
    {'order_id': 'Its number.'}
    """
    lines = inspect.cleandoc(text or "").splitlines()
    starts = [n for n in range(len(lines)) if _starts_section(lines, n)]
    description = lines[: starts[0]] if starts else lines
    found: dict[str, str] = {}
    for start, end in pairwise((*starts, len(lines))):
        for name, described in _section(lines[start:end]):
            found.setdefault(name, " ".join(described.split()))
    return ToolDoc("\n".join(description).strip(), {k: v for k, v in found.items() if v})


def _starts_section(lines: Sequence[str], n: int) -> bool:
    line = lines[n].rstrip()
    underlined = n + 1 < len(lines) and _UNDERLINE.fullmatch(lines[n + 1]) is not None
    headed = bool(_HEADER.fullmatch(line) or _FIELD.match(line))
    return headed or (underlined and line != "" and not line[0].isspace())


def _section(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the parameters that a section describes."""
    field = _SPHINX.match(lines[0])
    names = [] if field is None else field[1].split()[-1:]  # a type may precede the name
    if field is not None and names and _WORD.fullmatch(names[0]):
        yield names[0], " ".join((field[2], *_until_blank(lines[1:])))
    elif lines[0].strip().rstrip(":").lower() in _PARAMETERS:
        numpy = not lines[0].rstrip().endswith(":")
        yield from _numpy(lines[2:]) if numpy else _google(lines[1:])


def _until_blank(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not line.strip():
            return
        yield line


def _google(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield entries such as ``name (type): text``; deeper lines continue the text."""
    for block in _blocks(lines, inside=True):
        if (entry := _GOOGLE.fullmatch(block[0].strip())) is not None:
            yield entry[1], " ".join((entry[2], *block[1:]))


def _numpy(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield entries such as ``name : type`` with the text below them."""
    for block in _blocks(lines, inside=False):
        if (entry := _NUMPY.fullmatch(block[0].strip())) is not None:
            for name in entry[1].split(","):
                yield name.strip(), " ".join(block[1:])


def _blocks(lines: Sequence[str], *, inside: bool) -> Iterator[list[str]]:
    """Yield each line at the first line's depth with the deeper lines below it.

    With ``inside`` a line that is not indented at all ends the section.
    """
    block: list[str] = []
    depth = next((_depth(line) for line in lines if line.strip()), 0)
    for line in filter(str.strip, lines):
        if inside and _depth(line) == 0:
            break
        if _depth(line) <= depth and block:
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
