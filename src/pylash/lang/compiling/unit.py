"""The state that the bodies of one module share while they are compiled."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from pylash.lang.compiling import pycode as py
from pylash.lang.running.frame import Site
from pylash.lang.tree import (
    Await,
    Binary,
    CallBuiltin,
    CallFunction,
    Comprehension,
    For,
    Module,
    Node,
    Operation,
    ReceiverOperation,
    Start,
    Type,
    WaitSignal,
    While,
    walk,
)

_EFFECTS: Final = (Operation, ReceiverOperation, Await, Start, WaitSignal)


class Unit:
    """The shared state of the bodies of one module: node numbers, sites, constants and definitions."""

    def __init__(
        self,
        *,
        numbers: Mapping[int, int],
        sites: Mapping[int, Site],
        arms: Mapping[int, tuple[str, str]],
        resource_types: Mapping[str, str],
        process_values: Mapping[str, dict[str, Any]],
        definitions: Mapping[str, Type],
        traced: bool,
    ) -> None:
        self.numbers = numbers
        self.sites = sites
        self.arms = arms
        self.resource_types = resource_types
        self.process_values = process_values
        self.definitions = definitions
        self.traced = traced
        self.constants: dict[str, Any] = {}
        self.waiting: set[int] = set()
        self.busy: set[int] = set()
        self.functions: dict[str, str] = {}
        self.numeric_functions: Mapping[str, tuple[bool, ...]] = {}
        self.long: frozenset[str] = frozenset()

    def keep(self, value: Any) -> ast.Name:
        """Add a value to the globals of the code, and return the name by which the code reads it."""
        identifier = f"k{len(self.constants)}"
        self.constants[identifier] = value
        return py.name(identifier)


_END: Final = object()


def waiting_nodes(module: Module, long: Container[str]) -> set[int]:
    """Return the nodes of bodies that may have to wait when evaluated, and all nodes that contain them.

    These are effects, comprehensions, and calls of functions that may compute for a long time.
    """

    def waits(node: Node) -> bool:
        if isinstance(node, CallFunction):
            return node.name in long
        return isinstance(node, (*_EFFECTS, Comprehension))

    bodies: list[Node] = [*module.processes, *module.main]
    return {node for body in bodies for node in _around(body, waits)}


def long_functions(module: Module) -> frozenset[str]:
    """Return the functions that may compute for a long time: they loop, or call others."""
    kinds = (For, While, Comprehension, CallFunction)
    return frozenset(
        function.name
        for function in module.functions
        if any(isinstance(node, kinds) for node in walk(function))
    )


def busy_nodes(top: Node) -> set[int]:
    """Return the nodes that may create a large value: calls, sums, and all nodes that contain them."""
    kinds = (*_EFFECTS, CallBuiltin, CallFunction, Comprehension, Binary)
    return _around(top, lambda node: isinstance(node, kinds))


def _around(top: Node, chosen: Callable[[Node], bool]) -> set[int]:
    found: set[int] = set()
    around: list[int] = []
    pending: list[object] = [top]
    while pending:
        at = pending.pop()
        if at is _END:
            around.pop()
        elif isinstance(at, Node):
            around.append(id(at))
            if chosen(at):
                found.update(around)
            pending.append(_END)
            pending.extend(getattr(at, field) for field in at.__struct_fields__ if field != "name")
        elif isinstance(at, tuple):
            pending.extend(at)
    return found
