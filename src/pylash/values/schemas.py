"""Checking plain values against JSON Schemas: the part of them that declarations use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def schema_trouble(value: Any, schema: Any, path: str = "$") -> str | None:
    """Return the first way in which value does not fit schema, or None if it fits.

    >>> schema_trouble({"age": "7"}, {"properties": {"age": {"type": "integer"}}})
    "$.age is '7', not of type integer"
    """
    if not isinstance(schema, dict):
        return f"nothing fits at {path}" if schema is False else None
    if (trouble := _own_trouble(value, schema, path)) is not None:
        return trouble
    if isinstance(value, dict):
        return _object_trouble(value, schema, path)
    if isinstance(value, list) and "items" in schema:
        troubles = (schema_trouble(v, schema["items"], f"{path}[{n}]") for n, v in enumerate(value))
        return next(filter(None, troubles), None)
    return None


def _own_trouble(value: Any, schema: dict[str, Any], path: str) -> str | None:
    types = schema.get("type")
    wanted = [types] if isinstance(types, str) else types or []
    if wanted and not any(_TYPES[name](value) for name in wanted if name in _TYPES):
        return f"{path} is {value!r}, not of type {' or '.join(wanted)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{path} is {value!r}, not one of {schema['enum']!r}"
    if "const" in schema and value != schema["const"]:
        return f"{path} is {value!r}, not {schema['const']!r}"
    if "anyOf" in schema and all(schema_trouble(value, one, path) for one in schema["anyOf"]):
        return f"{path} is {value!r} and fits none of the alternatives"
    return None


def _object_trouble(value: dict[str, Any], schema: dict[str, Any], path: str) -> str | None:
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path}.{name} is missing"
    properties = schema.get("properties", {})
    for name, part in value.items():
        inner = properties.get(name, schema.get("additionalProperties"))
        if inner is False:
            return f"{path}.{name} is not expected"
        if (trouble := schema_trouble(part, inner, f"{path}.{name}")) is not None:
            return trouble
    return None
