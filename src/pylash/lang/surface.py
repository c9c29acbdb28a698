"""The surface that a host offers to programs: abilities, modules of operations, types, constructors, trigger sources.

1. A program has effects only through the surface that it was linked against.
2. A required surface is the part of it that a module uses. It is hashed, so its form never changes.
3. Every surface has the module `triggers`; programs may use it if its ability is enabled.
4. An undeclared name in a type of the surface is opaque: it is compatible with itself and `any`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from pylash.lang.parsing.parser import parse_type
from pylash.lang.problems import LashlangError
from pylash.lang.static_types import (
    ANY,
    BOOL,
    DICT,
    FLOAT,
    INT,
    NULL,
    STR,
    Types,
    bounded,
    reached,
)
from pylash.lang.tree import EnumType, ListType, RecordType, Type, TypeField
from pylash.values.process_errors import SurfaceInvalid

Ability = Literal["processes", "sleep", "process_signals", "triggers", "label_annotations"]
ABILITIES: Final[tuple[Ability, ...]] = get_args(Ability)
"""All abilities."""

TRIGGERS: Final = "Triggers"
"""The type of the module `triggers`, whose operations have special rules."""


class OperationSurface(msgspec.Struct, frozen=True):
    """An operation: the id of its tool, its input type and its output type."""

    id: str
    input: Type
    output: Type
    description: str = ""


class ModuleSurface(msgspec.Struct, frozen=True):
    """A module: its resource type and its operations by name."""

    type: str
    operations: dict[str, OperationSurface]


class ConstructorSurface(msgspec.Struct, frozen=True):
    """A constructor of host values of `type`."""

    input: Type
    type: str


class Surface(msgspec.Struct, frozen=True):
    """Everything that a host offers, by qualified names."""

    abilities: frozenset[Ability]
    modules: dict[str, ModuleSurface]
    types: dict[str, Type]
    constructors: dict[str, ConstructorSurface]
    trigger_sources: dict[str, Type]

    def operations_of(self, resource_type: str) -> dict[str, OperationSurface]:
        """Return the operations of all modules of that type."""
        return {
            name: operation
            for module in self.modules.values()
            if module.type == resource_type
            for name, operation in module.operations.items()
        }

    def resource_types(self) -> set[str]:
        """Return the types of the modules."""
        return {module.type for module in self.modules.values()}

    def host_types(self) -> set[str]:
        """Return the opaque types: of constructors and of trigger sources."""
        return {each.type for each in self.constructors.values()} | self.trigger_sources.keys()


class RequiredModule(msgspec.Struct, frozen=True):
    """The used part of a module: its operations as id, input and output."""

    type: str
    operations: dict[str, tuple[str, str, str]]


class RequiredSurface(msgspec.Struct, frozen=True):
    """The part of the surface that a module uses; types are text."""

    abilities: tuple[str, ...]
    modules: dict[str, RequiredModule]
    resource_types: dict[str, dict[str, tuple[str, str]]]
    types: dict[str, str]
    constructors: dict[str, tuple[str, str]]
    trigger_sources: dict[str, str]


class _OperationDocument(msgspec.Struct):
    id: str
    input: str = "any"
    output: str = "any"
    description: str = ""


class _ModuleDocument(msgspec.Struct):
    type: str
    operations: dict[str, _OperationDocument]


class _ConstructorDocument(msgspec.Struct):
    input: str
    type: str


class _Document(msgspec.Struct):
    abilities: list[Ability] = []
    modules: dict[str, _ModuleDocument] = {}
    types: dict[str, str] = {}
    constructors: dict[str, _ConstructorDocument] = {}
    trigger_sources: dict[str, str] = {}


_HANDLE: Final = "{ type: str, id: str, key: str, name: str | null, source_type: str, target: str }"
_TRIGGERS: Final = _ModuleDocument(
    TRIGGERS,
    {
        "register": _OperationDocument("triggers_register"),
        "list": _OperationDocument(
            "triggers_list",
            "{ target: Process?, name: str?, source_type: str? }",
            "list[TriggerHandle]",
        ),
        "cancel": _OperationDocument(
            "triggers_cancel", "{ key: str }", "{ key: str, cancelled: bool }"
        ),
    },
)


def surface_of(document: Mapping[str, Any]) -> Surface:
    """Return the surface that a JSON document describes. Raises SurfaceInvalid."""
    try:
        read = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise SurfaceInvalid("the document", str(error)) from error
    modules = {"triggers": _TRIGGERS, **read.modules}
    types = {"TriggerHandle": _HANDLE, **read.types}
    made = Surface(
        abilities=frozenset(read.abilities),
        modules={path: _module(path, module) for path, module in modules.items()},
        types={name: _type(f"the type {name}", text) for name, text in types.items()},
        constructors={
            path: ConstructorSurface(_type(f"the input of {path}", each.input), each.type)
            for path, each in read.constructors.items()
        },
        trigger_sources={
            name: _type(f"the event of {name}", text) for name, text in read.trigger_sources.items()
        },
    )
    for problem in _problems(made):
        raise problem
    return made


def _module(path: str, module: _ModuleDocument) -> ModuleSurface:
    return ModuleSurface(
        module.type,
        {
            name: OperationSurface(
                each.id,
                _type(f"the input of {path}.{name}", each.input),
                _type(f"the output of {path}.{name}", each.output),
                each.description,
            )
            for name, each in module.operations.items()
        },
    )


def _type(where: str, text: str) -> Type:
    try:
        return parse_type(text)
    except LashlangError as error:
        raise SurfaceInvalid(where, f"{text!r} is not a type, {error.errors[0].message}") from error


def _problems(made: Surface) -> Iterator[SurfaceInvalid]:
    for name in made.types:
        if name in reached(name, made.types):
            yield SurfaceInvalid(f"the type {name}", "it is defined in terms of itself")
    first: dict[tuple[str, str], tuple[str, OperationSurface]] = {}
    for path, module in made.modules.items():
        for name, operation in module.operations.items():
            other, before = first.setdefault((module.type, name), (path, operation))
            if (before.input, before.output) != (operation.input, operation.output):
                yield SurfaceInvalid(
                    f"{other}.{name} and {path}.{name}",
                    f"both are operations of {module.type} but have different types",
                )


# Types from the JSON schemas of tools.


def type_of_schema(schema: Mapping[str, Any] | bool) -> Type:
    """Return the type of a JSON schema, or `any` if types cannot express it.

    Closed objects become record types, other objects `dict`.
    """
    definitions = {} if isinstance(schema, bool) else schema
    return bounded(_Schemas(definitions).type_of(schema))


class _Schemas:
    """The types of one schema and of the schemas it refers to; a recursive reference is `any`."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.types = Types({})
        self.named: dict[str, Type] = {}

    def type_of(self, schema: Any) -> Type:  # noqa: PLR0911 - a line a form
        if not isinstance(schema, Mapping):
            return ANY
        match schema:
            case {"$ref": str(reference)}:
                return self._referred(reference)
            case {"anyOf": list(some)} | {"oneOf": list(some)} if some:
                return self.types.union(map(self.type_of, some))
            case {"allOf": [one]}:
                return self.type_of(one)
            case {"enum": list(values)} if values:
                return self.types.union(_type_of_values(values))
            case {"const": value}:
                return self.types.union(_type_of_values([value]))
            case {"type": list(kinds)} if kinds:
                return self.types.union(self.type_of({**schema, "type": kind}) for kind in kinds)
            case {"type": str(kind)}:
                return self._kind(kind, schema)
        return ANY

    def _kind(self, kind: str, schema: Mapping[str, Any]) -> Type:
        if kind == "array":
            items = [
                *schema.get("prefixItems", ()),
                schema.get("items", not schema.get("prefixItems")),
            ]
            return ListType(
                self.types.union(self.type_of(each) for each in items if each is not False)
            )
        if kind == "object":
            return self._object(schema)
        return _KINDS.get(kind, ANY)

    def _object(self, schema: Mapping[str, Any]) -> Type:
        if schema.get("additionalProperties") is not False:
            return DICT
        required = schema.get("required", ())
        return RecordType(
            tuple(
                TypeField(key, self.type_of(each), key not in required)
                for key, each in schema.get("properties", {}).items()
            )
        )

    def _referred(self, reference: str) -> Type:
        if reference not in self.named:
            self.named[reference] = ANY
            self.named[reference] = self.type_of(self._target(reference))
        return self.named[reference]

    def _target(self, reference: str) -> Any:
        at: Any = self.root if reference.startswith("#") else None
        for step in reference.split("/")[1:]:
            at = (
                at.get(step.replace("~1", "/").replace("~0", "~"))
                if isinstance(at, Mapping)
                else None
            )
        return at


_KINDS: Final = {"string": STR, "integer": INT, "number": FLOAT, "boolean": BOOL, "null": NULL}


def _type_of_values(values: list[Any]) -> Iterator[Type]:
    """Yield the types of the values that a schema lists."""
    if texts := tuple(value for value in values if isinstance(value, str)):
        yield EnumType(texts)
    for value in values:
        if not isinstance(value, str):
            yield NULL if value is None else ANY
