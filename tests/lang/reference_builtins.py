"""The builtins of the reference, a line or a few for each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from tests.lang.reference import Wrong, depth, entered, equal, number, scalar, sequence, text

BUILTINS: dict[str, Callable[..., Any]] = {}


def builtin(function: Callable[..., Any]) -> Callable[..., Any]:
    BUILTINS[function.__name__.strip("_")] = function
    return function


def need(holds: bool, kind: str = "invalid_argument") -> None:
    if not holds:
        raise Wrong(kind)


def written(value: Any) -> str:
    need(scalar(value))
    return text(value)


def listed(value: Any) -> list[Any]:
    need(sequence(value))
    return list(value)


def whole(value: Any) -> int:
    need(type(value) is float and value.is_integer())
    return int(value)


def bare(name: str, act: Callable[..., Any], *kinds: Callable[[Any], Any]) -> None:
    BUILTINS[name] = lambda *given: act(*(k(g) for k, g in zip(kinds, given, strict=True)))


bare("trim", str.strip, written)
bare("lower", str.lower, written)
bare("upper", str.upper, written)
bare("starts_with", str.startswith, written, written)
bare("ends_with", str.endswith, written, written)
bare("reverse", lambda items: items[::-1], listed)
bare("replace", str.replace, written, written, written)


def sized(value: Any) -> Any:
    need(value is None or type(value) in (str, list, tuple, dict))
    return () if value is None else value


bare("len", lambda value: float(len(value)), sized)
bare("empty", lambda value: len(value) == 0, sized)


def record(value: Any) -> dict[str, Any]:
    need(value is None or type(value) is dict)
    return value or {}


bare("keys", list, record)
bare("values", lambda value: list(value.values()), record)
BUILTINS["to_string"] = text


@builtin
def to_float(value: Any) -> float:
    need(scalar(value))
    return number(value)


@builtin
def to_int(value: Any) -> float:
    found = to_float(value)
    need(math.isfinite(found), "expected_number")
    return float(math.trunc(found))


@builtin
def json_parse(value: Any) -> Any:
    def refuse(_: str) -> Any:
        raise ValueError

    try:
        data = json.loads(written(value), parse_constant=refuse, parse_int=float)
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Wrong("invalid_json") from None
    need(depth(entered(data)) <= 64, "value_too_deep")
    return entered(data)


@builtin
def contains(held: Any, item: Any) -> bool:
    if held is None:
        return False
    if sequence(held):
        return any(equal(item, other) for other in held)
    need(type(held) in (str, dict))
    return (text(item) if type(held) is str else written(item)) in held


@builtin
def grep_text(value: Any, needle: Any) -> list[Any]:
    value, needle = written(value), written(needle)
    need(needle != "")
    found = []
    for at, ended in enumerate(value.split("\n"), 1):
        line = ended.removesuffix("\r")
        if needle in line:
            start = line.index(needle)
            found.append({"line": float(at), "text": line, "match": needle})
            found[-1] |= {"start": float(start), "end": float(start + len(needle))}
    return found


@builtin
def split(value: Any, separator: Any) -> list[str]:
    value, separator = written(value), written(separator)
    return value.split(separator) if separator else list(value)


@builtin
def join(items: Any, separator: Any) -> str:
    separator = written(separator)
    return str(separator.join(map(written, listed(items))))


@builtin
def floor_div(a: Any, b: Any) -> float:
    a, b = whole(a), whole(b)
    need(b != 0, "division_by_zero")
    return float(a // b)


@builtin
def ceil_div(a: Any, b: Any) -> float:
    a, b = whole(a), whole(b)
    need(b != 0, "division_by_zero")
    return float(-(-a // b))


@builtin
def push(items: Any, item: Any) -> list[Any]:
    need(type(items) is list)
    return [*items, item]


@builtin
def _slice(value: Any, a: Any, b: Any) -> Any:
    need(type(value) in (str, list, tuple))
    a, b = (None if each is None else whole(each) for each in (a, b))
    return value[a:b] if type(value) is str else list(value[a:b])


@builtin
def find(value: Any, needle: Any, start: Any = 0.0) -> float | None:
    value, needle, start = written(value), written(needle), whole(start)
    need(start >= 0)
    at = -1 if start > len(value) else value.find(needle, start)
    return None if at < 0 else float(at)


@builtin
def _format(template: Any, *arguments: Any) -> str:
    need(type(template) is str)
    pieces = re.split(r"(\{\{|\}\}|\{[0-9]*\})", template)
    need(not any("{" in piece or "}" in piece for piece in pieces[::2]), "invalid_format")
    places = [piece[1:-1] for piece in pieces[1::2] if piece not in ("{{", "}}")]
    need(len({place == "" for place in places}) <= 1, "invalid_format")
    numbers = [int(place) if place else at for at, place in enumerate(places)]
    need(set(numbers) == set(range(len(arguments))), "invalid_format")
    texts = iter([text(arguments[at]) for at in numbers])
    braces = {"{{": "{", "}}": "}"}
    return "".join(
        piece if at % 2 == 0 else braces[piece] if piece in braces else next(texts)
        for at, piece in enumerate(pieces)
    )


@builtin
def _range(*given: Any) -> list[float]:
    numbers = [whole(each) for each in given]
    need(len(numbers) < 3 or numbers[2] != 0)
    found = range(*numbers)
    try:
        long = len(found) > 1_000_000
    except OverflowError:
        long = True
    need(not long, "range_too_large")
    return [float(each) for each in found]


def ranked(items: list[Any]) -> list[Any]:
    """Check that items can be ordered."""
    need(len({type(item) for item in items}) <= 1 and all(map(scalar, items)), "not_comparable")
    return items


def rank(item: Any) -> Any:
    none = type(item) is float and math.isnan(item)
    return (none, 0 if none or item is None else item)


@builtin
def sort(items: Any) -> list[Any]:
    return sorted(ranked(listed(items)), key=rank)


@builtin
def sort_by(items: Any, path: Any) -> list[Any]:
    need(type(path) is str)
    marks = []
    for item in listed(items):
        at = item
        for name in path.split("."):
            need(type(at) is dict and name in at)
            at = at[name]
        marks.append(at)
    ranked(marks)
    order = sorted(range(len(marks)), key=lambda at: rank(marks[at]))
    return [list(items)[at] for at in order]


@builtin
def _min(items: Any) -> Any:
    need(listed(items) != [], "empty_sequence")
    return min(ranked(listed(items)), key=rank)


@builtin
def _max(items: Any) -> Any:
    need(listed(items) != [], "empty_sequence")
    return max(ranked(listed(items)), key=rank)


@builtin
def _sum(items: Any) -> float:
    total = 0.0
    for item in listed(items):
        need(type(item) is float)
        total += item
    return total


@builtin
def unique(items: Any) -> list[Any]:
    found: list[Any] = []
    for item in listed(items):
        if not any(equal(item, other) for other in found):
            found.append(item)
    return found
