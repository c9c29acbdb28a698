"""Checks of values against types and schemas. Both checks return the path of the first problem.

A value conforms if its JSON does: numbers that are not finite are null in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

from pylash.lang import tree
from pylash.lang.running.data import (
    CONTAINERS,
    Image,
    List,
    Record,
    Resource,
    Value,
    equal,
    from_json,
    measure,
    quoted,
    shown,
    to_json,
)

_MAX_SHOWN: Final = 80
_DEEP: Final = 3


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
    found = quoted(value[: _MAX_SHOWN + 1]) if type(value) is str else value
    return f"{path} must be {wanted}, found {shown(found, _MAX_SHOWN)}"


def nonconforming_schema(value: Value, schema: Value) -> str | None:
    """Return where and why the value does not conform to the JSON schema of a type value, or None."""
    return _against_schema(value, schema, "$", {})


Known = dict[tuple[int, int, str], str | None]
"""Results for nested values by type and path: nested unions repeat the same checks many times."""
Check = Callable[[Any, Any, str, Known], str | None]


def _choice(
    check: Check, value: Value, choices: Iterable[Any], path: str, known: Known
) -> str | None:
    problems: list[str] = []
    deep = type(value) in CONTAINERS and measure(value)[1] >= _DEEP
    for choice in choices:
        key = (id(value), id(choice), path)
        problem = known[key] if key in known else check(value, choice, path, known)
        if deep:
            known[key] = problem
        if problem is None:
            return None
        problems.append(problem)
    # The member with the deepest path is the one that the value resembles most.
    deepest = max(problems, key=lambda p: len(p.split(" ", 1)[0]))
    return deepest if not deepest.startswith(f"{path} ") else _wrong(path, "another type", value)


def _against_schema(value: Value, schema: Value, path: str, known: Known) -> str | None:
    if type(schema) is not Record:
        return None
    if type(choices := schema.get("anyOf")) is List and choices:
        return _choice(_against_schema, value, choices, path, known)
    if type(members := schema.get("enum")) is List and not any(
        equal(value, item) for item in members
    ):
        return _wrong(path, f"one of {shown(members)}", value)
    name = schema.get("type")
    if type(name) is str and name in _SIMPLE and not _SIMPLE[name](value):
        return _wrong(path, f"{_article(name)} {name}", value)
    if type(value) in {List, tuple} and "items" in schema:
        for position, item in enumerate(value):
            if problem := _against_schema(item, schema["items"], f"{path}[{position}]", known):
                return problem
    return _fields(value, schema, path, known) if type(value) is Record else None


def _fields(value: Record, schema: Record, path: str, known: Known) -> str | None:
    required = schema.get("required")
    for key in required if type(required) is List else ():
        if type(key) is str and key not in value:
            return f"{path}.{key} is missing the field {key}"
    properties = schema.get("properties")
    for key, inner in (properties if type(properties) is Record else Record()).items():
        if key in value and (problem := _against_schema(value[key], inner, f"{path}.{key}", known)):
            return problem
    return None


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeio" else "a"


def nonconforming(
    value: Value,
    wanted: tree.Type,
    definitions: Mapping[str, tree.Type],
    modules: Mapping[str, str],
) -> str | None:
    """Return where and why a value of the language does not conform to a type, or None.

    `definitions` are the declared and data types by name, `modules` the resource type of each module path
    of the surface. Any other name is a host type.
    """
    return _Conforming(definitions, modules).problem(value, wanted, "$", {})


class _Conforming(NamedTuple):
    definitions: Mapping[str, tree.Type]
    modules: Mapping[str, str]

    def problem(  # noqa: PLR0911 (one for each form)
        self, value: Value, wanted: tree.Type, path: str, known: Known
    ) -> str | None:
        match wanted:
            case tree.UnionType(members):
                return _choice(self.problem, value, members, path, known)
            case tree.EnumType(members):
                if type(value) is str and value in members:
                    return None
                return _wrong(path, f"one of {', '.join(map(quoted, members))}", value)
            case tree.ListType(item):
                if type(value) is not List and type(value) is not tuple:
                    return _wrong(path, "a list", value)
                for position, inner in enumerate(value):
                    if problem := self.problem(inner, item, f"{path}[{position}]", known):
                        return problem
                return None
            case tree.RecordType(fields):
                return self._record(value, fields, path, known)
            case tree.TypeName(name):
                return self._name(value, name, path, known)

    def _record(
        self, value: Value, fields: tuple[tree.TypeField, ...], path: str, known: Known
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
            elif problem := self.problem(record[field.key], field.type, at, known):
                return problem
        return None

    def _name(self, value: Value, name: str, path: str, known: Known) -> str | None:
        if name == "any":
            return None
        if name in _NAMED:
            fits = _SIMPLE[_NAMED[name]](value)
            return None if fits else _wrong(path, f"{_article(name)} {name}", value)
        if name in self.definitions:
            return self.problem(value, self.definitions[name], path, known)
        return None if _is_special(value, name, self.modules) else _wrong(path, f"a {name}", value)


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
