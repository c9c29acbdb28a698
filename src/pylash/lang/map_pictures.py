"""Pictures of maps: Mermaid text, and SVG.

1. Every node has its own row, below its parent and indented; so the lines of the tree never cross, and
   the picture has the structure of the program.
2. Nodes that several others refer to (resources, started processes) are in a column at the right.
3. Texts of a program are escaped.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Final

_SHAPES: Final = {
    "process": ("([", "])"),
    "main": ("([", "])"),
    "branch": ("{", "}"),
    "terminal": ("((", "))"),
    "resource": ("[(", ")]"),
    "wait": ("{{", "}}"),
    "sleep": ("{{", "}}"),
}


def mermaid(drawn: dict[str, Any]) -> str:
    """Return a map as a Mermaid flowchart."""
    names = {node["id"]: f"n{index}" for index, node in enumerate(drawn["nodes"])}
    lines = ["flowchart TD"]
    for node in drawn["nodes"]:
        left, right = _SHAPES.get(node["kind"], ("[", "]"))
        lines.append(f'  {names[node["id"]]}{left}"{_mermaid_text(_caption(node))}"{right}')
    lines += [
        f"  {names[edge['from']]} -->|{edge['label']}| {names[edge['to']]}"
        for edge in drawn["edges"]
    ]
    return "\n".join(lines) + "\n"


def _mermaid_text(text: str) -> str:
    """Escape special characters as entities: Mermaid interprets quotes, markup and Markdown in labels."""
    return re.sub(r"[^\w .,:/-]", lambda found: f"#{ord(found[0])};", _one_line(text))


def _caption(node: dict[str, Any]) -> str:
    title = node.get("title")
    return node["label"] if title in (None, node["label"]) else f"{node['label']}: {title}"


def _one_line(text: str) -> str:
    """Return text on one line, without characters that XML does not allow."""
    return "".join(" " if _is_unfit(char) else char for char in text)


def _is_unfit(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in "\ufffe\uffff"


# SVG

_ROW: Final = 40
_BOX: Final = 26
_INDENT: Final = 92
_MARGIN: Final = 16
_LANE: Final = 12
_LONGEST: Final = 48
_SHARED: Final = ("uses", "child")
_COLOURS: Final = {
    "process": ("#1d3557", "#ffffff"),
    "main": ("#1d3557", "#ffffff"),
    "resource_operation": ("#d8ecff", "#0b3d66"),
    "resource": ("#e9ecef", "#343a40"),
    "child_process": ("#dcd6f7", "#3c2a80"),
    "branch": ("#fff1c9", "#6b4e00"),
    "branch_arm": ("#fffaf0", "#6b4e00"),
    "step": ("#e3f6e5", "#14532d"),
    "result": ("#d3f0d8", "#14532d"),
    "failure": ("#ffdfe0", "#8a1c22"),
}
_COLOUR: Final = ("#f3e8dc", "#5a3a16")
_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#868e96"/></marker></defs>'
)


class _Layout:
    """The position of each node of a map: the tree at the left, one row per node; shared nodes at the right."""

    def __init__(self, drawn: dict[str, Any]) -> None:
        self.nodes = {node["id"]: node for node in drawn["nodes"]}
        self.entry = drawn["nodes"][0]["id"]
        self.tree = [edge for edge in drawn["edges"] if edge["label"] not in _SHARED]
        self.links = [edge for edge in drawn["edges"] if edge["label"] in _SHARED]
        self.corner: dict[str, tuple[int, int]] = {}
        self._place_tree()
        self.gutter = max(self._right(id_) for id_ in self.corner) + 2 * _LANE
        shared = dict.fromkeys(edge["to"] for edge in self.links)
        self.lanes = {id_: self.gutter + _LANE * index for index, id_ in enumerate(shared)}
        self._place_shared()
        self.width = max(self._right(id_) for id_ in self.corner) + _MARGIN
        self.height = max(y for _, y in self.corner.values()) + _BOX + _MARGIN

    def _place_tree(self) -> None:
        below: dict[str, list[str]] = {}
        for edge in self.tree:
            below.setdefault(edge["from"], []).append(edge["to"])
        pending = [(self.entry, 0)]
        while pending:
            id_, depth = pending.pop()
            self.corner[id_] = (_MARGIN + depth * _INDENT, _MARGIN + len(self.corner) * _ROW)
            pending.extend((child, depth + 1) for child in reversed(below.get(id_, [])))

    def _place_shared(self) -> None:
        """Put each shared node at the right, in the row of the first node that refers to it."""
        column = self.gutter + _LANE * (len(self.lanes) + 1)
        for edge in sorted(self.links, key=lambda edge: self.corner[edge["from"]][1]):
            self.corner.setdefault(edge["to"], (column, self.corner[edge["from"]][1]))

    def wide(self, id_: str) -> int:
        """Return the width of a node's box."""
        return 24 + round(7.7 * _columns(_shown(self.nodes[id_])))

    def _right(self, id_: str) -> int:
        return self.corner[id_][0] + self.wide(id_)

    def elbow(self, edge: dict[str, str]) -> str:
        """Return the line of the tree that leads to a node."""
        x, y = self.corner[edge["from"]]
        to_x, to_y = self.corner[edge["to"]]
        return f"M{x + 14} {y + _BOX}V{to_y + _BOX // 2}H{to_x - 2}"

    def link(self, edge: dict[str, str]) -> str:
        """Return the line that leads through the gutter to a shared node, or back to the entry."""
        y = self.corner[edge["from"]][1] + _BOX // 2
        to_x, to_y = self.corner[edge["to"]]
        end = self._right(edge["to"]) + 2 if edge["to"] == self.entry else to_x - 2
        return f"M{self._right(edge['from'])} {y}H{self.lanes[edge['to']]}V{to_y + _BOX // 2}H{end}"


def svg(drawn: dict[str, Any]) -> str:
    """Return a map as a self-contained SVG picture."""
    layout = _Layout(drawn)
    size = f'width="{layout.width}" height="{layout.height}"'
    name = html.escape(_one_line(f"Map of {drawn['entry']} {drawn['entry_name']}"))
    opened = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {layout.width} {layout.height}" '
        f'role="img" aria-label="{name}" font-family="system-ui, sans-serif" font-size="13">'
    )
    background = f'<rect {size} fill="#ffffff"/>'
    boxes = (_box(layout, id_) for id_ in layout.corner)
    return "\n".join([opened, _TIP, background, *_lines(layout), *boxes, "</svg>", ""])


def _lines(layout: _Layout) -> Iterator[str]:
    for edge in layout.links:
        yield (
            f'<path d="{layout.link(edge)}" fill="none" stroke="#adb5bd" stroke-dasharray="4 3" '
            'marker-end="url(#tip)"/>'
        )
    for edge in layout.tree:
        x, y = layout.corner[edge["from"]][0] + 20, layout.corner[edge["to"]][1] + _BOX // 2 - 4
        yield (
            f'<path d="{layout.elbow(edge)}" fill="none" stroke="#868e96" marker-end="url(#tip)"/>'
            f'<text x="{x}" y="{y}" font-size="11" fill="#6c757d">{edge["label"]}</text>'
        )


def _box(layout: _Layout, id_: str) -> str:
    node = layout.nodes[id_]
    x, y = layout.corner[id_]
    kind = node["label"] if node["kind"] == "terminal" else node["kind"]
    fill, ink = _COLOURS.get(kind, _COLOUR)
    told = "\n".join(filter(None, (node["kind"], _caption(node), node.get("description"))))
    radius = 13 if node["kind"] in ("process", "main", "terminal") else 5
    return (
        f'<g><title>{_svg_text(told)}</title><rect x="{x}" y="{y}" width="{layout.wide(id_)}" '
        f'height="{_BOX}" rx="{radius}" fill="{fill}" stroke="{ink}" stroke-opacity="0.35"/>'
        f'<text x="{x + 11}" y="{y + 17}" fill="{ink}">{_svg_text(_shown(node))}</text></g>'
    )


def _shown(node: dict[str, Any]) -> str:
    text = _caption(node)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _svg_text(text: str) -> str:
    return html.escape("\n".join(map(_one_line, text.split("\n"))))


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
