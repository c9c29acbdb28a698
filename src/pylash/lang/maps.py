"""The static map of an entry (main or a process): its effects, and the branches that lead to them.

1. Every site that a trace can mention is in the map, under the same id.
2. A map is made from the artifact alone; nothing is run.
3. Text in pictures is escaped: labels come from the author of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

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
from pylash.values.process_errors import ProcessNotInModule

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
    """A connection from one node to another."""

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
        """Return the map as a self-contained SVG picture."""
        return svg(self.to_dict())


def static_map(artifact: Artifact, process: str | None = None) -> ExecutionMap:
    """Return the map of a process of a module, or of its main."""
    declared = {each.name: each for each in artifact.canonical.processes}
    if process is None:
        return _Drawing(artifact.module_ref, declared).main(artifact.canonical.main)
    if process not in declared:
        raise ProcessNotInModule(process, ", ".join(declared) or "none")
    return _Drawing(artifact.module_ref, declared).process(declared[process])


class _Todo(NamedTuple):
    """A node or block that is to be drawn, and the parent of the nodes inside it."""

    at: object
    parent: str
    operands_drawn: bool = False


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
        pending: list[_Todo] = [_Todo(block, entry.id)]
        while pending:
            pending.extend(reversed(list(self._visit(pending.pop()))))
        nodes = list(self.nodes.values())
        return ExecutionMap(self.module_ref, kind, entry.label, nodes, self.edges)

    def _process_node(self, declared: ProcessDeclaration) -> MapNode:
        id_ = entry_id(self.module_ref, "process", declared.name)
        return MapNode(id_, "process", declared.name, *_titles(declared.label))

    def _visit(self, todo: _Todo) -> Iterator[_Todo]:
        """Draw a node; yield the nodes to draw next, each with its parent in the map."""
        at, parent, operands_drawn = todo
        if isinstance(at, tuple):
            yield from (_Todo(item, parent) for item in at)
        elif isinstance(at, Node):
            kind = KINDS.get(type(at))
            if kind not in _EDGES:
                yield from (_Todo(each, parent) for each in _operands(at))
            elif operands_drawn:
                yield from self._site(at, kind, parent)
            else:
                yield from (_Todo(each, parent) for each in _operands(at))
                yield _Todo(at, parent, operands_drawn=True)

    def _site(self, node: Node, kind: str, parent: str) -> Iterator[_Todo]:
        id_ = self.ids[id(node)]
        label = node.label if isinstance(node, Labelled) else None
        self._draw(MapNode(id_, kind, label_of(node), *_titles(label)), parent, _EDGES[kind])
        match node:
            case If(_, then, otherwise) | Conditional(_, then, otherwise):
                for arm, (below, name) in zip(
                    arms(id_), ((then, "then"), (otherwise, "else")), strict=True
                ):
                    self._draw(MapNode(arm, "branch_arm", name), id_, name)
                    yield _Todo(below, arm)
            case Labelled(_, statement):
                yield _Todo(statement, id_)
            case Operation(path):
                self._draw_resource("path", path, id_)
            case ReceiverOperation(_, type_):
                self._draw_resource("type", type_, id_)
            case Start(name):
                self._draw(self._process_node(self.declared[name]), id_, "child")

    def _draw(self, node: MapNode, origin: str, label: str) -> None:
        self.nodes.setdefault(node.id, node)
        self.edges.append(MapEdge(origin, node.id, label))

    def _draw_resource(self, found_by: str, name: str, origin: str) -> None:
        id_ = node_id("resource", self.module_ref, *self.entry, found_by, name)
        self._draw(MapNode(id_, "resource", name), origin, "uses")


def _operands(node: Node) -> Iterator[object]:
    """Yield the parts that are evaluated before a node has its effect: they are drawn in order of execution."""
    match node:
        case If(test) | Conditional(test):
            yield test
        case Labelled():
            return
        case _:
            yield from (getattr(node, name) for name in node.__struct_fields__)


def _titles(label: Label | None) -> tuple[str | None, str | None]:
    return (None, None) if label is None else (label.title, label.description)


def label_of(node: Node) -> str:
    """Return the label of a site for people."""
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
