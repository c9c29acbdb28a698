"""Whether a value is what a type or a schema asks for. Both answer with the path of the first problem.

A value conforms as its JSON would: what is no finite number is null there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from pylash.lang import tree
from pylash.lang.running.data import (
    Image,
    List,
    Record,
    Resource,
    Value,
    equal,
    from_json,
    quoted,
    text_of,
    to_json,
)

_MAX_SHOWN: Final = 80


def _is_integer(value: Value) -> bool:
    return type(value) is float and value.is_integer()


_SIMPLE: Final[Mapping[str, Callable[[Value], bool]]] = {
    "string": lambda value: type(value) is str,
    "integer": _is_integer,
    "number": lambda value: type(value) is float and isfinite(value),
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None or (type(value) is float and not isfinite(value)),
    "array": lambda value: type(value) is List or type(value) is tuple,
    "object": lambda value: type(value) in {Record, Image, Resource},
}
_PROCESS: Final = (
    "$lash_process",
    "process_name",
    "module_ref",
    "process_ref",
    "required_surface_ref",
)
_NAMED: Final = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "null": "null",
    "dict": "object",
}


def _wrong(path: str, wanted: str, value: Value) -> str:
    shown = quoted(value) if type(value) is str else text_of(value)
    if len(shown) > _MAX_SHOWN:
        shown = f"{shown[:_MAX_SHOWN]}…"
    return f"{path} must be {wanted}, found {shown}"


def nonconforming_schema(value: Value, schema: Value, path: str = "$") -> str | None:
    """Return where and why the value does not conform to a JSON schema as type values hold it."""
    if type(schema) is not Record:
        return None
    if type(choices := schema.get("anyOf")) is List and choices:
        problems = [nonconforming_schema(value, choice, path) for choice in choices]
        return None if None in problems else _closest(problems, path, value)
    if type(members := schema.get("enum")) is List and not any(
        equal(value, item) for item in members
    ):
        return _wrong(path, f"one of {text_of(members)}", value)
    name = schema.get("type")
    if type(name) is str and name in _SIMPLE and not _SIMPLE[name](value):
        return _wrong(path, f"{_article(name)} {name}", value)
    if type(value) in {List, tuple} and "items" in schema:
        for position, item in enumerate(value):
            if problem := nonconforming_schema(item, schema["items"], f"{path}[{position}]"):
                return problem
    if type(value) is Record:
        return _fields(value, schema, path)
    return None


def _fields(value: Record, schema: Record, path: str) -> str | None:
    required = schema.get("required")
    for key in required if type(required) is List else ():
        if key not in value:
            return f"{path}.{text_of(key)} is missing the field {text_of(key)}"
    properties = schema.get("properties")
    for key, inner in (properties if type(properties) is Record else Record()).items():
        if key in value and (problem := nonconforming_schema(value[key], inner, f"{path}.{key}")):
            return problem
    return None


def _closest(problems: list[str | None], path: str, value: Value) -> str:
    # The deepest path is that of the member which the value resembles most.
    deepest = max((p for p in problems if p), key=lambda p: len(p.split(" ", 1)[0]))
    return deepest if not deepest.startswith(f"{path} ") else _wrong(path, "another type", value)


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeio" else "a"


def nonconforming(
    value: Value,
    wanted: tree.Type,
    definitions: Mapping[str, tree.Type],
    modules: Mapping[str, str],
    path: str = "$",
) -> str | None:
    """Return where and why a value of the language does not conform to a type.

    `definitions` are the declared and data types by name, `modules` the resource type of each module path
    of the surface. Any other name is a host type.
    """
    match wanted:
        case tree.UnionType(members):
            problems = [
                nonconforming(value, member, definitions, modules, path) for member in members
            ]
            return None if None in problems else _closest(problems, path, value)
        case tree.EnumType(members):
            known = type(value) is str and value in members
            return (
                None if known else _wrong(path, f"one of {', '.join(map(quoted, members))}", value)
            )
        case tree.ListType(item):
            if type(value) is not List and type(value) is not tuple:
                return _wrong(path, "a list", value)
            for position, inner in enumerate(value):
                if problem := nonconforming(
                    inner, item, definitions, modules, f"{path}[{position}]"
                ):
                    return problem
            return None
        case tree.RecordType(fields):
            return _conforming_record(value, fields, definitions, modules, path)
        case tree.TypeName(name):
            return _conforming_name(value, name, definitions, modules, path)


def _conforming_record(
    value: Value,
    fields: tuple[tree.TypeField, ...],
    definitions: Mapping[str, tree.Type],
    modules: Mapping[str, str],
    path: str,
) -> str | None:
    record = value if type(value) is Record else None
    if record is None and type(value) in {Image, Resource}:
        record = from_json(to_json(value), shapes=False)
    if record is None:
        return _wrong(path, "a record", value)
    for field in fields:
        at = f"{path}.{field.key}"
        if field.key not in record:
            if not field.optional:
                return f"{at} is missing the field {field.key}"
        elif problem := nonconforming(record[field.key], field.type, definitions, modules, at):
            return problem
    return None


def _conforming_name(
    value: Value,
    name: str,
    definitions: Mapping[str, tree.Type],
    modules: Mapping[str, str],
    path: str,
) -> str | None:
    if name == "any":
        return None
    if name in _NAMED:
        return (
            None
            if _SIMPLE[_NAMED[name]](value)
            else _wrong(path, f"{_article(name)} {name}", value)
        )
    if name in definitions:
        return nonconforming(value, definitions[name], definitions, modules, path)
    if _is_special(value, name, modules):
        return None
    return _wrong(path, f"a {name}", value)


def _is_special(value: Any, name: str, modules: Mapping[str, str]) -> bool:
    if type(value) is Resource:
        return value.type == name and modules.get(value.alias) == name
    if type(value) is not Record:
        return False
    if name == "Process":
        return tuple(value) == _PROCESS and value["$lash_process"] is True
    if name == "TriggerHandle":
        return value.get("type") == "trigger_handle"
    return (
        set(value) == {"$lash_host_type", "$lash_host_value"} and value["$lash_host_type"] == name
    )
