"""Attaching comments to nodes.

1. Comments belong to statements and to items in brackets: before one, after one on the same line, or
   after the opening bracket or before the closing one.
2. A comment inside such a node moves before it. No comment is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pylash.lang import tree
from pylash.lang.parsing.cursor import Cursor
from pylash.lang.parsing.tokens import SPACE, Comment


class Container(NamedTuple):
    """A block or a bracket with several items, each of which can have comments."""

    start: int
    end: int
    owner: int
    part: str
    children: tuple[tree.Node, ...]


class Notes:
    """The comments and blank lines of a source, and the author's spelling where there are alternatives."""

    def __init__(self, cursor: Cursor, program: tree.Program, comments: list[Comment]) -> None:
        self.source = cursor.source
        self.spans = cursor.spans
        self.leading: defaultdict[int, list[Comment]] = defaultdict(list)
        self.trailing: defaultdict[int, list[Comment]] = defaultdict(list)
        self.opening: defaultdict[tuple[int, str], list[Comment]] = defaultdict(list)
        self.dangling: defaultdict[tuple[int, str], list[Comment]] = defaultdict(list)
        self.brackets = _Brackets(cursor)
        if comments:
            self._place(program, comments)

    def spelling(self, node: tree.Node) -> str:
        """Return the source text of a node."""
        start, end = self.spans[id(node)]
        return self.source[start:end]

    def on_one_line(self, node: tree.Node) -> bool:
        """Whether a node is written on one line."""
        return "\n" not in self.spelling(node)

    def blank_before(self, offset: int) -> bool:
        """Whether an empty line precedes this offset."""
        end = offset
        while offset and self.source[offset - 1] in SPACE:
            offset -= 1
        return self.source.count("\n", offset, end) > 1

    def start(self, node: tree.Node) -> int:
        """Return where a node begins, its label included."""
        if isinstance(node, tree.ProcessDeclaration) and node.label:
            node = node.label
        return self.spans[id(node)][0]

    def _place(self, program: tree.Program, comments: list[Comment]) -> None:
        whole = Container(-1, len(self.source), id(program), "", program.items)
        containers = sorted([whole, *self._containers(program)])
        around: list[Container] = []
        following = 0
        for comment in comments:
            while following < len(containers) and containers[following].start < comment.start:
                around.append(containers[following])
                following += 1
            while around[-1].end <= comment.start:
                around.pop()
            self._attach(comment, around[-1])

    def _attach(self, comment: Comment, container: Container) -> None:
        children = container.children
        key = (container.owner, container.part)
        after = bisect_right([self.start(child) for child in children], comment.start)
        before = children[after - 1] if after else None
        if before and comment.start < self.spans[id(before)][1]:
            self.leading[id(before)].append(comment)
        elif before and self._same_line(self.spans[id(before)][1], comment):
            self.trailing[id(before)].append(comment)
        elif before is None and container.part and self._same_line(container.start, comment):
            self.opening[key].append(comment)
        elif after < len(children):
            self.leading[id(children[after])].append(comment)
        else:
            self.dangling[key].append(comment)

    def _same_line(self, offset: int, comment: Comment) -> bool:
        return "\n" not in self.source[offset : comment.start]

    def _containers(self, program: tree.Program) -> Iterator[Container]:
        for node in tree.walk(program):
            start, end = self.spans[id(node)]
            match node:
                case tree.ListLiteral(items=children) | tree.TupleLiteral(items=children):
                    if self.brackets.closing.get(start) == end - 1:
                        yield Container(start, end - 1, id(node), "items", children)
                case tree.RecordLiteral(fields=fields):
                    yield Container(start, end - 1, id(node), "items", fields)
                case tree.RecordType(fields=declared):
                    yield Container(start, end - 1, id(node), "items", declared)
                case tree.Call() | tree.Method() | tree.Start():
                    opening = self.brackets.opening[end - 1]
                    yield Container(opening, end - 1, id(node), "items", node.arguments)
                case _:
                    yield from self._blocks(node)

    def _blocks(self, node: tree.Node) -> Iterator[Container]:
        start, _ = self.spans[id(node)]
        match node:
            case tree.For(body=body) | tree.While(body=body):
                yield self._last(node, "body", body)
            case tree.If(test=test, then=then, otherwise=otherwise):
                opening = self.brackets.first("{", self.spans[id(test)][1])
                closing = self.brackets.closing[opening]
                yield Container(opening, closing, id(node), "then", then)
                if otherwise and not chained(otherwise):
                    yield self._last(node, "else", otherwise)
            case tree.ProcessDeclaration() | tree.FunctionDeclaration():
                opening = self.brackets.first("(", start)
                closing = self.brackets.closing[opening]
                yield Container(opening, closing, id(node), "parameters", node.parameters)
                if isinstance(node, tree.ProcessDeclaration) and node.signals:
                    opening = self.brackets.first("{", closing)
                    closing = self.brackets.closing[opening]
                    yield Container(opening, closing, id(node), "signals", node.signals)
                yield self._last(node, "body", node.body)
            case _:
                pass

    def _last(self, node: tree.Node, part: str, children: tuple[tree.Node, ...]) -> Container:
        """Return the block whose brace ends the node."""
        closing = self.spans[id(node)][1] - 1
        return Container(self.brackets.opening[closing], closing, id(node), part, children)


class _Brackets:
    """The positions of the brackets of a source, and their pairs."""

    def __init__(self, cursor: Cursor) -> None:
        self.closing: dict[int, int] = {}
        self.opening: dict[int, int] = {}
        self.starts: dict[str, list[int]] = {"(": [], "[": [], "{": []}
        opened: list[int] = []
        for token in cursor.tokens:
            if token.kind != "mark":
                continue
            if token.text in self.starts:
                self.starts[token.text].append(token.start)
                opened.append(token.start)
            elif token.text in (")", "]", "}"):
                opening = opened.pop()
                self.closing[opening] = token.start
                self.opening[token.start] = opening

    def first(self, bracket: str, offset: int) -> int:
        """Return the position of the first such bracket from the offset on."""
        starts = self.starts[bracket]
        return starts[bisect_right(starts, offset - 1)]


def chained(otherwise: tree.Block) -> bool:
    """Whether this is an `else if`."""
    return len(otherwise) == 1 and isinstance(otherwise[0], tree.If)
