"""The static map of an entry: what it can touch, and under which choices.

1. Every id of a site that a trace can name is in the map, under the same id.
2. A map is drawn from what an artifact says; nothing is run and nobody is asked.
3. Text in pictures is escaped: a label is written by whoever wrote the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from pylash.lang.artifacts import Artifact
from pylash.lang.map_pictures import mermaid, svg
from pylash.lang.sites import KINDS, EntryKind, arms, entry_id, node_id, sites
from pylash.lang.tree import (
    Block,
    Conditional,
    Fail,
    Finish,
    If,
    Label,
    Labelled,
    Node,
    Operation,
    ProcessDeclaration,
    ReceiverOperation,
    SendSignal,
    Sleep,
    Start,
    WaitSignal,
)
from pylash.values import Misuse

_EDGES: Final = {
    "resource_operation": "calls",
    "child_process": "starts",
    "sleep": "sleeps",
    "wait": "waits",
    "signal": "signals",
    "process_event": "emits",
    "terminal": "terminates",
    "branch": "branches",
    "step": "steps",
}


class MapNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A site, an arm, an entry or a resource."""

    id: str
    kind: str
    label: str
    title: str | None = None
    description: str | None = None


class MapEdge(msgspec.Struct, frozen=True):
    """How one node leads to another."""

    source: str = msgspec.field(name="from")
    to: str
    label: str


class ExecutionMap(msgspec.Struct, frozen=True):
    """The map of main or of a process."""

    module_ref: str
    entry: EntryKind
    entry_name: str
    nodes: list[MapNode]
    edges: list[MapEdge]

    def to_dict(self) -> dict[str, Any]:
        """Return the map as plain JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def to_mermaid(self) -> str:
        """Return the map as a Mermaid flowchart."""
        return mermaid(self.to_dict())

    def to_svg(self) -> str:
        """Return the map as a picture that stands alone."""
        return svg(self.to_dict())


class ProcessNotExported(Misuse):
    """A module has no process of that name."""

    def __init__(self, name: str, known: list[str]) -> None:
        shown = ", ".join(map(repr, known)) or "none at all"
        super().__init__(f"The module has no process {name!r}: it has {shown}.")


def static_map(artifact: Artifact, process: str | None = None) -> ExecutionMap:
    """Return the map of a process of a module, or of its main."""
    declared = {each.name: each for each in artifact.canonical.processes}
    if process is None:
        return _Drawing(artifact.module_ref, declared).main(artifact.canonical.main)
    if process not in declared:
        raise ProcessNotExported(process, list(declared))
    return _Drawing(artifact.module_ref, declared).process(declared[process])


class _Drawing:
    """A map while it is drawn."""

    def __init__(self, module_ref: str, declared: dict[str, ProcessDeclaration]) -> None:
        self.module_ref = module_ref
        self.declared = declared
        self.nodes: dict[str, MapNode] = {}
        self.edges: list[MapEdge] = []
        self.ids: dict[int, str] = {}

    def main(self, block: Block) -> ExecutionMap:
        entry = MapNode(entry_id(self.module_ref, "main", "main"), "main", "main")
        return self._entry("main", entry, block)

    def process(self, declared: ProcessDeclaration) -> ExecutionMap:
        return self._entry("process", self._process_node(declared), declared.body)

    def _entry(self, kind: EntryKind, entry: MapNode, block: Block) -> ExecutionMap:
        self.entry = (kind, entry.label)
        self.nodes[entry.id] = entry
        self.ids = sites(self.module_ref, kind, entry.label, block)
        pending: list[tuple[object, str]] = [(block, entry.id)]
        while pending:
            at, parent = pending.pop()
            if isinstance(at, tuple):
                pending.extend((item, parent) for item in reversed(at))
            elif isinstance(at, Node):
                pending.extend(reversed(list(self._visit(at, parent))))
        nodes = list(self.nodes.values())
        return ExecutionMap(self.module_ref, kind, entry.label, nodes, self.edges)

    def _process_node(self, declared: ProcessDeclaration) -> MapNode:
        id_ = entry_id(self.module_ref, "process", declared.name)
        return MapNode(id_, "process", declared.name, *_titles(declared.label))

    def _visit(self, node: Node, parent: str) -> Iterator[tuple[object, str]]:
        """Draw a node; yield what is below it, each with its parent in the map."""
        kind = KINDS.get(type(node))
        if kind not in _EDGES:
            yield from ((getattr(node, name), parent) for name in node.__struct_fields__)
            return
        id_ = self.ids[id(node)]
        label = node.label if isinstance(node, Labelled) else None
        self._draw(MapNode(id_, kind, _label(node), *_titles(label)), parent, _EDGES[kind])
        match node:
            case If(test, then, otherwise) | Conditional(test, then, otherwise):
                yield test, parent
                yield from zip((then, otherwise), self._arms(id_), strict=True)
            case Labelled(_, statement):
                yield statement, id_
            case _:
                self._draw_target(node, id_)
                yield from ((getattr(node, name), parent) for name in node.__struct_fields__)

    def _draw(self, node: MapNode, origin: str, label: str) -> None:
        self.nodes.setdefault(node.id, node)
        self.edges.append(MapEdge(origin, node.id, label))

    def _arms(self, branch: str) -> tuple[str, str]:
        for id_, label in zip(arms(branch), ("then", "else"), strict=True):
            self._draw(MapNode(id_, "branch_arm", label), branch, label)
        return arms(branch)

    def _draw_target(self, node: Node, origin: str) -> None:
        """Draw what an operation uses, or what a start starts."""
        match node:
            case Operation(path):
                self._draw_resource("path", path, origin)
            case ReceiverOperation(_, type_):
                self._draw_resource("type", type_, origin)
            case Start(name):
                self._draw(self._process_node(self.declared[name]), origin, "child")

    def _draw_resource(self, found_by: str, name: str, origin: str) -> None:
        id_ = node_id("resource", self.module_ref, *self.entry, found_by, name)
        self._draw(MapNode(id_, "resource", name), origin, "uses")


def _titles(label: Label | None) -> tuple[str | None, str | None]:
    return (None, None) if label is None else (label.title, label.description)


def _label(node: Node) -> str:
    match node:
        case Operation(name=name) | ReceiverOperation(name=name):
            return name
        case Start(process=name):
            return f"start {name}"
        case Sleep(mode):
            return f"sleep {mode}"
        case WaitSignal(name):
            return f"wait signal {name}"
        case SendSignal(name=name):
            return f"signal run {name}"
        case Labelled(label):
            return label.title
    return _WORDS.get(type(node)) or type(node).__name__.lower()


_WORDS: Final = {If: "if", Conditional: "if", Finish: "result", Fail: "failure"}
