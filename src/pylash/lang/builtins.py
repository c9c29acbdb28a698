"""The 33 functions that every program has.

1. Nothing is changed in place; every sequence that comes back is a list, also where a tuple went in.
2. A step is counted for every 16 characters or items of each argument and of the result, before a result
   that could be large is made; likewise there must be room for it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from math import isfinite, isnan, trunc
from typing import Any, Final

from pylash.lang.conforming import nonconforming_schema
from pylash.lang.data import (
    MAX_DEPTH,
    SCALARS,
    List,
    Record,
    RunError,
    Value,
    equal,
    from_json,
    kind_of,
    number_of,
    number_text,
    size_of,
    text_of,
    text_size,
    too_deep,
)
from pylash.lang.meter import Meter, work

Builtin = Callable[..., Value]
BUILTINS: Final[dict[str, Builtin]] = {}
"""Each by its name; called with the meter and the arguments."""

_RANGE_LIMIT: Final = 1_000_000


def _builtin(function: Builtin) -> Builtin:
    @functools.wraps(function)
    def counted(meter: Meter, *arguments: Value) -> Value:
        steps = sum(map(work, arguments))
        if steps:
            meter.steps(steps)
        result = function(meter, *arguments)
        if type(result) is not float and type(result) is not bool:
            steps = work(result)
            if steps:
                meter.steps(steps)
                meter.room(size_of(result))
        return result

    BUILTINS[function.__name__.strip("_")] = counted
    return counted


def _wrong(name: str, wanted: str, value: Value) -> RunError:
    return RunError("invalid_argument", f"`{name}` needs {wanted}, found a {kind_of(value)}")


def _text(name: str, value: Value) -> str:
    if type(value) is str:
        return value
    if type(value) in SCALARS:
        return text_of(value)
    raise _wrong(name, "a text", value)


def _sequence(name: str, value: Value) -> Any:
    if type(value) is List or type(value) is tuple:
        return value
    raise _wrong(name, "a list", value)


def _integer(name: str, value: Value) -> int:
    if type(value) is float and value.is_integer():
        return int(value)
    found = number_text(value) if type(value) is float else f"a {kind_of(value)}"
    raise RunError("invalid_argument", f"`{name}` needs an integer, found {found}")


def _length(name: str, value: Value) -> int:
    if value is None:
        return 0
    if type(value) in {str, List, tuple, Record}:
        return len(value)
    raise _wrong(name, "a text, list or record", value)


# Sizes and parts.


@_builtin
def _len(meter: Meter, value: Value) -> float:
    return float(_length("len", value))


@_builtin
def empty(meter: Meter, value: Value) -> bool:
    return _length("empty", value) == 0


@_builtin
def keys(meter: Meter, value: Value) -> List:
    if value is None:
        return List()
    if type(value) is not Record:
        raise _wrong("keys", "a record", value)
    return List(value)


@_builtin
def values(meter: Meter, value: Value) -> List:
    if value is None:
        return List()
    if type(value) is not Record:
        raise _wrong("values", "a record", value)
    return List(value.values())


@_builtin
def contains(meter: Meter, whole: Value, item: Value) -> bool:
    kind = type(whole)
    if whole is None:
        return False
    if kind is List or kind is tuple:
        return any(equal(item, other) for other in whole)
    if kind is str:
        return text_of(item) in whole
    if kind is Record:
        return _text("contains", item) in whole
    raise _wrong("contains", "a text, list or record", whole)


@_builtin
def push(meter: Meter, whole: Value, item: Value) -> List:
    if type(whole) is not List:
        raise _wrong("push", "a list", whole)
    meter.room(size_of(whole) + 8 + size_of(item))
    return List([*whole, item])


@_builtin
def _slice(meter: Meter, whole: Value, start: Value, end: Value) -> Value:
    if type(whole) is not str and type(whole) is not List and type(whole) is not tuple:
        raise _wrong("slice", "a text or list", whole)
    first = None if start is None else _integer("slice", start)
    last = None if end is None else _integer("slice", end)
    part = whole[first:last]
    return part if type(part) is str else List(part)


@_builtin
def unique(meter: Meter, whole: Value) -> List:
    found = List()
    seen: set[object] = set()
    for item in _sequence("unique", whole):
        # Scalars are equal as (kind, value); the rest is compared one by one, and each comparison counts.
        if type(item) in SCALARS:
            mark = (type(item), item)
            if mark in seen and not (type(item) is float and isnan(item)):
                continue
            seen.add(mark)
        else:
            meter.steps(len(found) >> 4)
            if any(equal(item, other) for other in found):
                continue
        found.append(item)
    return found


@_builtin
def reverse(meter: Meter, whole: Value) -> List:
    return List(reversed(_sequence("reverse", whole)))


# Conversions.


@_builtin
def to_string(meter: Meter, value: Value) -> str:
    # Quotes and escapes at most double what is there, control characters aside.
    meter.room(size_of(value))
    return text_of(value)


@_builtin
def to_int(meter: Meter, value: Value) -> float:
    number = _number("to_int", value)
    if not isfinite(number):
        raise RunError(
            "expected_number", f"`to_int` needs a finite number, found {number_text(number)}"
        )
    return float(trunc(number))


@_builtin
def to_float(meter: Meter, value: Value) -> float:
    return _number("to_float", value)


def _number(name: str, value: Value) -> float:
    if type(value) not in SCALARS:
        raise _wrong(name, "a number or text", value)
    return number_of(value)


_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


@_builtin
def json_parse(meter: Meter, value: Value) -> Value:
    text = _text("json_parse", value)
    bare = _STRINGS.sub("0", text)
    meter.room(16 * bare.count(",") + 16 * (bare.count("[") + bare.count("{")))
    deepest = level = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        level += 1 if bracket in "[{" else -1
        deepest = max(deepest, level)
    if deepest > MAX_DEPTH:
        raise too_deep()
    try:
        data = json.loads(text, parse_constant=_not_json)
        text.encode()
        return from_json(_whole(data))
    except (ValueError, RecursionError) as error:
        raise RunError(
            "invalid_json", f"`json_parse` was given text that is not JSON: {error}"
        ) from None


def _not_json(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _whole(data: Any) -> Any:
    # A lone half of a character can be written in JSON, but it is not Unicode text.
    json.dumps(data, ensure_ascii=False).encode()
    return data


@_builtin
def validate(meter: Meter, value: Value, wanted: Value) -> Value:
    if (
        type(wanted) is not Record
        or list(wanted) != ["$lash_type"]
        or type(wanted["$lash_type"]) is not Record
    ):
        raise RunError(
            "not_a_type",
            f"`validate` needs a type value, found a {kind_of(wanted)}; write Type {{ … }}",
        )
    reason = nonconforming_schema(value, wanted["$lash_type"])
    if reason is not None:
        raise RunError("validation_failed", reason)
    return value


# Texts.


@_builtin
def trim(meter: Meter, value: Value) -> str:
    return _text("trim", value).strip()


@_builtin
def lower(meter: Meter, value: Value) -> str:
    return _text("lower", value).lower()


@_builtin
def upper(meter: Meter, value: Value) -> str:
    return _text("upper", value).upper()


@_builtin
def starts_with(meter: Meter, value: Value, prefix: Value) -> bool:
    return _text("starts_with", value).startswith(_text("starts_with", prefix))


@_builtin
def ends_with(meter: Meter, value: Value, suffix: Value) -> bool:
    return _text("ends_with", value).endswith(_text("ends_with", suffix))


@_builtin
def grep_text(meter: Meter, value: Value, needle: Value) -> List:
    text, wanted = _text("grep_text", value), _text("grep_text", needle)
    if not wanted:
        raise RunError(
            "invalid_argument", "`grep_text` needs something to look for, found an empty text"
        )
    found = List()
    size = 16
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.removesuffix("\r")
        start = bare.find(wanted)
        if start >= 0:
            match = {"line": float(number), "text": bare, "match": wanted}
            found.append(Record(match, start=float(start), end=float(start + len(wanted))))
            size += 150 + len(bare) + len(wanted)
            meter.room(size)
    return found


@_builtin
def split(meter: Meter, value: Value, separator: Value) -> List:
    text, between = _text("split", value), _text("split", separator)
    parts = text.count(between) + 1 if between else len(text)
    meter.room(24 * parts + text_size(text) - len(between) * (parts - 1))
    return List(text.split(between) if between else text)


@_builtin
def join(meter: Meter, whole: Value, separator: Value) -> str:
    between = _text("join", separator)
    items = _sequence("join", whole)
    parts = [_text("join", item) for item in items]
    meter.room(sum(map(len, parts)) + len(between) * len(parts))
    return between.join(parts)


@_builtin
def replace(meter: Meter, value: Value, old: Value, new: Value) -> str:
    text, before, after = _text("replace", value), _text("replace", old), _text("replace", new)
    grown = text.count(before) * (len(after) - len(before))
    meter.room(len(text) + max(0, grown))
    return text.replace(before, after)


@_builtin
def find(meter: Meter, value: Value, needle: Value, start: Value = 0.0) -> float | None:
    text, wanted = _text("find", value), _text("find", needle)
    first = _integer("find", start)
    if first < 0:
        raise RunError("invalid_argument", f"`find` needs a start of at least 0, found {first}")
    at = text.find(wanted, first) if first <= len(text) else -1
    return None if at < 0 else float(at)


_PIECES: Final = re.compile(r"\{\{|\}\}|\{([0-9]*)\}|[{}]|[^{}]+")


@_builtin
def _format(meter: Meter, template: Value, *arguments: Value) -> str:
    if type(template) is not str:
        raise _wrong("format", "a template text", template)
    return "".join(_formatted(meter, template, [text_of(argument) for argument in arguments]))


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
                raise _bad_format("both `{}` and numbered places; use one of them")
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


# Numbers.


@_builtin
def ceil_div(meter: Meter, dividend: Value, divisor: Value) -> float:
    first, second = _integer("ceil_div", dividend), _integer("ceil_div", divisor)
    return float(-(-first // _nonzero("ceil_div", second)))


@_builtin
def floor_div(meter: Meter, dividend: Value, divisor: Value) -> float:
    first, second = _integer("floor_div", dividend), _integer("floor_div", divisor)
    return float(first // _nonzero("floor_div", second))


def _nonzero(name: str, divisor: int) -> int:
    if divisor == 0:
        raise RunError("division_by_zero", f"`{name}` can't divide by zero")
    return divisor


@_builtin
def _range(meter: Meter, *numbers: Value) -> List:
    return List(map(float, _steps(meter, numbers)))


def counted_range(meter: Meter, *numbers: Value) -> Iterator[float]:
    """Return the numbers of `range` for a loop that keeps no list of them; it costs the same steps."""
    steps = _steps(meter, numbers)
    meter.steps(len(steps) >> 4)
    return map(float, steps)


def _steps(meter: Meter, numbers: tuple[Value, ...]) -> range:
    whole = [_integer("range", number) for number in numbers]
    if len(whole) == 3 and whole[2] == 0:
        raise RunError("invalid_argument", "`range` needs a step other than 0")
    steps = range(*whole)
    # Its ends are any doubles, and Python cannot take the length of a range beyond its own integers.
    items = (
        max(0, -((steps.start - steps.stop) // steps.step)) if steps.step > 0 else _downward(steps)
    )
    if items > _RANGE_LIMIT:
        raise RunError(
            "range_too_large", f"`range` of {items} items is too large: at most {_RANGE_LIMIT}"
        )
    meter.room(16 + 16 * items)
    return steps


def _downward(steps: range) -> int:
    return max(0, -((steps.stop - steps.start) // -steps.step))


@_builtin
def _sum(meter: Meter, whole: Value) -> float:
    total = 0.0
    for item in _sequence("sum", whole):
        if type(item) is not float:
            raise _wrong("sum", "a list of numbers", item)
        total += item
    return total


# Order.


@_builtin
def sort(meter: Meter, whole: Value) -> List:
    return _sorted(meter, "sort", list(_sequence("sort", whole)), None)


@_builtin
def sort_by(meter: Meter, whole: Value, path: Value) -> List:
    if type(path) is not str:
        raise _wrong("sort_by", "the path of a field as text", path)
    items = list(_sequence("sort_by", whole))
    return _sorted(meter, "sort_by", items, [_at_path(item, path) for item in items])


def _at_path(item: Value, path: str) -> Value:
    at = item
    for name in path.split("."):
        if type(at) is not Record or name not in at:
            raise RunError(
                "invalid_argument", f"`sort_by` found an item without the field `{path}`"
            )
        at = at[name]
    return at


def _sorted(meter: Meter, name: str, items: list[Value], by: list[Value] | None) -> List:
    marks = items if by is None else by
    _comparable(name, marks)
    meter.steps(len(items) >> 4)
    order = [_order(mark) for mark in marks]
    return List(items[at] for at in sorted(range(len(items)), key=order.__getitem__))


def _comparable(name: str, items: list[Value]) -> None:
    kinds = {type(item) for item in items}
    if len(kinds) > 1 or not kinds <= SCALARS:
        found = " and a ".join(sorted({kind_of(item) for item in items}))
        raise RunError(
            "not_comparable",
            f"`{name}` can't order a {found}; it orders numbers, or texts, or bools",
        )


def _order(item: Value) -> tuple[bool, Any]:
    if item is None:
        return (False, 0)
    return (True, 0.0) if type(item) is float and isnan(item) else (False, item)


@_builtin
def _min(meter: Meter, whole: Value) -> Value:
    return min(_candidates("min", whole), key=_order)


@_builtin
def _max(meter: Meter, whole: Value) -> Value:
    return max(_candidates("max", whole), key=_order)


def _candidates(name: str, whole: Value) -> list[Value]:
    items = list(_sequence(name, whole))
    if not items:
        raise RunError("empty_sequence", f"`{name}` needs at least one item, the list is empty")
    _comparable(name, items)
    return items
