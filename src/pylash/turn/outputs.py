"""Structured answers: what a model is asked to call, and how what it gives is read.

A provider takes only objects as the arguments of a call: an answer of another kind is asked for as the
``result`` of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pylash.turn.requests import ToolManifest
from pylash.values import schema_trouble

FINAL_RESULT: Final = "final_result"
"""The tool by which a model may give a structured answer."""
_INNER: Final = "result"
_FENCED: Final = re.compile(r"```(?:json\b|\w*\n)?(.*)```", re.DOTALL | re.IGNORECASE)


def final_tool(schema: Any) -> ToolManifest:
    """Return the tool by which a model gives an answer that fits a schema."""
    return ToolManifest(FINAL_RESULT, "Give the final answer.", _as_object(schema))


def called_answer(arguments: Any, schema: Any) -> tuple[Any, str | None]:
    """Return the answer in the arguments of such a call, and what is wrong with it."""
    wanted = _as_object(schema)
    trouble = schema_trouble(arguments, wanted)
    inner = wanted is not schema and isinstance(arguments, Mapping)
    return (arguments.get(_INNER) if inner else arguments), trouble


def spoken_answer(text: str, schema: Any) -> tuple[Any, str | None]:
    """Return the answer in a text, and what is wrong with it."""
    try:
        value = _json_in(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = text.strip()  # a word is one that fits if words are asked for
        trouble = schema_trouble(value, schema)
        return value, None if trouble is None else "the answer is no JSON"
    if _as_object(schema) is not schema and isinstance(value, dict) and set(value) == {_INNER}:
        return called_answer(
            value, schema
        )  # as it is asked for by providers that take objects only
    return value, schema_trouble(value, schema)


def _as_object(schema: Any) -> Any:
    """Return a schema of objects: the given one, or of objects that have what it describes."""
    if not isinstance(schema, Mapping) or schema.get("type") == "object":
        return schema
    inner = {name: part for name, part in schema.items() if name != "$defs"}
    wrapped: dict[str, Any] = {
        "type": "object",
        "properties": {_INNER: inner},
        "required": [_INNER],
        "additionalProperties": False,
    }
    return {**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped


def _json_in(text: str) -> Any:
    """Return the JSON of an answer, which may stand in a code fence with words around it."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        if (fenced := _FENCED.search(text)) is None:
            raise
        return msgspec.json.decode(fenced[1])
