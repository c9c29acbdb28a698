"""Builtins on texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pylash.lang.running.builtins.counting import (
    builtin,
    integer_argument,
    sequence_argument,
    text_argument,
    wrong,
)
from pylash.lang.running.data import (
    List,
    Record,
    RunError,
    Value,
    text_size,
)
from pylash.lang.running.meter import Meter


@builtin
def trim(meter: Meter, value: Value) -> str:
    return text_argument("trim", value).strip()


@builtin
def lower(meter: Meter, value: Value) -> str:
    return text_argument("lower", value).lower()


@builtin
def upper(meter: Meter, value: Value) -> str:
    return text_argument("upper", value).upper()


@builtin
def starts_with(meter: Meter, value: Value, prefix: Value) -> bool:
    return text_argument("starts_with", value).startswith(text_argument("starts_with", prefix))


@builtin
def ends_with(meter: Meter, value: Value, suffix: Value) -> bool:
    return text_argument("ends_with", value).endswith(text_argument("ends_with", suffix))


@builtin
def grep_text(meter: Meter, value: Value, needle: Value) -> List:
    text, wanted = text_argument("grep_text", value), text_argument("grep_text", needle)
    if not wanted:
        raise RunError(
            "invalid_argument", "`grep_text` needs a text to search for, found an empty text"
        )
    found = List()
    size = 16
    for number, line in enumerate(_lines(text), 1):
        bare = line.removesuffix("\r")
        start = bare.find(wanted)
        if start >= 0:
            match = {"line": float(number), "text": bare, "match": wanted}
            found.append(Record(match, start=float(start), end=float(start + len(wanted))))
            size += 150 + len(bare) + len(wanted)
            meter.room(size)
    return found


def _lines(text: str) -> Iterator[str]:
    # One line at a time: all lines together may exceed the memory bound.
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


@builtin
def split(meter: Meter, value: Value, separator: Value) -> List:
    text, between = text_argument("split", value), text_argument("split", separator)
    parts = text.count(between) + 1 if between else len(text)
    meter.room(24 * parts + text_size(text) - len(between) * (parts - 1))
    return List(text.split(between) if between else text)


@builtin
def join(meter: Meter, whole: Value, separator: Value) -> str:
    between = text_argument("join", separator)
    items = sequence_argument("join", whole)
    parts = [text_argument("join", item) for item in items]
    meter.room(sum(map(len, parts)) + len(between) * len(parts))
    return between.join(parts)


@builtin
def replace(meter: Meter, value: Value, old: Value, new: Value) -> str:
    text, before, after = (
        text_argument("replace", value),
        text_argument("replace", old),
        text_argument("replace", new),
    )
    grown = text.count(before) * (len(after) - len(before))
    meter.room(len(text) + max(0, grown))
    return text.replace(before, after)


@builtin
def find(meter: Meter, value: Value, needle: Value, start: Value = 0.0) -> float | None:
    text, wanted = text_argument("find", value), text_argument("find", needle)
    first = integer_argument("find", start)
    if first < 0:
        raise RunError("invalid_argument", f"`find` needs a start of at least 0, found {first}")
    at = text.find(wanted, first) if first <= len(text) else -1
    return None if at < 0 else float(at)


_PIECES: Final = re.compile(r"\{\{|\}\}|\{([0-9]*)\}|[{}]|[^{}]+")


@builtin
def _format(meter: Meter, template: Value, *arguments: Value) -> str:
    if type(template) is not str:
        raise wrong("format", "a template text", template)
    return "".join(_formatted(meter, template, [meter.text(argument) for argument in arguments]))


def _formatted(meter: Meter, template: str, texts: list[str]) -> Iterator[str]:
    used: set[int] = set()
    numbered: bool | None = None
    size = 0
    for piece in _PIECES.finditer(template):
        text = piece.group()
        if text in {"{", "}"}:
            raise _bad_format(f"a lone `{text}`; write `{text}{text}` for the character")
        if text in {"{{", "}}"}:
            text = text[0]
        elif text[0] == "{":
            if numbered is not None and numbered != bool(piece.group(1)):
                raise _bad_format("both `{}` and numbered placeholders; use one kind only")
            numbered = bool(piece.group(1))
            at = int(piece.group(1)) if numbered and len(piece.group(1)) < 9 else len(used)
            if at >= len(texts) or len(piece.group(1)) >= 9:
                raise _bad_format(f"no argument for `{text}`")
            used.add(at)
            text = texts[at]
        size += len(text)
        meter.room(size)
        yield text
    if len(used) < len(texts):
        raise _bad_format(f"{len(texts)} arguments, of which it uses {len(used)}")


def _bad_format(what: str) -> RunError:
    return RunError("invalid_format", f"the template of `format` has {what}")
