"""A surface for a program with an unknown host: everything that the program uses is assumed to exist.

1. A name is assumed to be a module only if the program never binds it, and a type to be a resource type or
   a data type only if the program does not declare it. The linker checks everything else as usual.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pylash.lang.linking.calls import dotted
from pylash.lang.static_types import BUILT_IN
from pylash.lang.surface import ABILITIES, Surface, surface_of
from pylash.lang.tree import (
    Assign,
    Clause,
    For,
    FunctionDeclaration,
    Method,
    Parameter,
    ProcessDeclaration,
    Program,
    TypeDeclaration,
    TypeName,
    walk,
)

_ANY = {"input": "any", "output": "any"}


def assumed_surface(program: Program) -> Surface:
    """Return a surface with all abilities, and with every module and type that the program seems to use."""
    nodes = list(walk(program))
    bound = {node.name for node in nodes if isinstance(node, Assign | For | Clause | Parameter)}
    declared = {
        node.name
        for node in nodes
        if isinstance(node, TypeDeclaration | ProcessDeclaration | FunctionDeclaration)
    }
    methods = [node for node in nodes if isinstance(node, Method)]
    operations: dict[str, set[str]] = defaultdict(set)
    for method in methods:
        path = dotted(method.base)
        if path is not None and path[0] not in bound | declared | {"trigger", "triggers"}:
            operations[".".join(path)].add(method.name)
    modules = {path: _module(_type_of(path), names) for path, names in operations.items()}
    known = {module["type"] for module in modules.values()}
    unknown = (
        {node.name for node in nodes if isinstance(node, TypeName)} - BUILT_IN - declared - known
    )
    called = {method.name for method in methods}
    for name in sorted(unknown):
        if "." not in name:
            modules[f"{name[:1].lower()}{name[1:]}"] = _module(name, called)
    types = {name: "any" for name in unknown if "." in name}
    return surface_of({"abilities": list(ABILITIES), "modules": modules, "types": types})


def _module(kind: str, operations: Iterable[str]) -> dict[str, Any]:
    return {"type": kind, "operations": {name: {"id": name, **_ANY} for name in sorted(operations)}}


def _type_of(path: str) -> str:
    return "".join(f"{part[:1].upper()}{part[1:]}" for part in path.split("."))
