"""Structured answers: the tool that a model calls to give one, and how an answer is parsed.

Providers accept only objects as the arguments of a call: a value of another type is the argument
``result`` of the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pylash.turn.requests import ToolManifest
from pylash.values.schemas import schema_trouble

FINAL_RESULT: Final = "final_result"
"""The tool by which a model may give a structured answer."""
_INNER: Final = "result"
_FENCED: Final = re.compile(r"```(?:json\b|\w*\n)?(.*)```", re.DOTALL | re.IGNORECASE)


def final_tool(schema: Any) -> ToolManifest:
    """Return the tool by which a model gives an answer that matches a schema."""
    return ToolManifest(FINAL_RESULT, "Give the final answer.", _as_object(schema))


def called_answer(arguments: Any, schema: Any) -> tuple[Any, str | None]:
    """Return the answer in the arguments of such a call, and its problem, if any."""
    wanted = _as_object(schema)
    trouble = schema_trouble(arguments, wanted)
    inner = wanted is not schema and isinstance(arguments, Mapping)
    return (arguments.get(_INNER) if inner else arguments), trouble


def spoken_answer(text: str, schema: Any) -> tuple[Any, str | None]:
    """Return the answer in a text, and its problem, if any."""
    try:
        value = _json_in(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = text.strip()  # valid if the schema accepts a string
        trouble = schema_trouble(value, schema)
        return value, None if trouble is None else "the answer is no JSON"
    if _as_object(schema) is not schema and isinstance(value, dict) and set(value) == {_INNER}:
        # Providers that accept only objects are asked for this form.
        return called_answer(value, schema)
    return value, schema_trouble(value, schema)


def _as_object(schema: Any) -> Any:
    """Return a schema of objects: the given one, or one that wraps it."""
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
    """Return the JSON in an answer, which may be in a code fence with text around it."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        if (fenced := _FENCED.search(text)) is None:
            raise
        return msgspec.json.decode(fenced[1])
