"""Builtins that turn one kind of value into another."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from math import isfinite, trunc
from typing import Any, Final

from pylash.lang.running.builtins.counting import (
    builtin,
    text_argument,
    wrong,
)
from pylash.lang.running.conforming import nonconforming_schema
from pylash.lang.running.data import (
    MAX_DEPTH,
    SCALARS,
    Record,
    RunError,
    Value,
    from_json,
    kind_of,
    number_of,
    number_text,
    size_of,
    too_deep,
)
from pylash.lang.running.meter import Meter


@builtin
def to_string(meter: Meter, value: Value) -> str:
    return meter.text(value)


@builtin
def to_int(meter: Meter, value: Value) -> float:
    number = _number("to_int", value)
    if not isfinite(number):
        raise RunError(
            "expected_number", f"`to_int` needs a finite number, found {number_text(number)}"
        )
    return float(trunc(number))


@builtin
def to_float(meter: Meter, value: Value) -> float:
    return _number("to_float", value)


def _number(name: str, value: Value) -> float:
    if type(value) not in SCALARS:
        raise wrong(name, "a number or text", value)
    return number_of(value)


_LEVELS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_STRINGS: Final = re.compile(r'"[^"]*"?')


@builtin
def json_parse(meter: Meter, value: Value) -> Value:
    text = text_argument("json_parse", value)
    # Escapes are removed first, so a string ends at the next quote or at the end: the search never backtracks.
    bare = _STRINGS.sub("0", text.replace("\\\\", "").replace('\\"', ""))
    meter.room(16 * bare.count(",") + 16 * (bare.count("[") + bare.count("{")))
    brackets = map(_LEVELS.__getitem__, re.findall(r"[\[\]{}]", bare))
    if max(accumulate(brackets), default=0) > MAX_DEPTH:
        raise too_deep()
    try:
        data = json.loads(text, parse_int=float, parse_constant=_not_json)
        text.encode()
        return from_json(_whole(data))
    except (ValueError, RecursionError) as error:
        raise RunError(
            "invalid_json", f"`json_parse` was given text that is not JSON: {error}"
        ) from None


def _not_json(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _whole(data: Any) -> Any:
    # A lone surrogate can be written in JSON, but it is not Unicode text.
    json.dumps(data, ensure_ascii=False).encode()
    return data


@builtin
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
    meter.leaving(value)
    meter.toil(size_of(value))
    reason = nonconforming_schema(value, wanted["$lash_type"])
    if reason is not None:
        raise RunError("validation_failed", reason)
    return value
