"""Formatting of whole programs.

1. The printed text parses to the same tree. Comments and single blank lines are kept.
2. Formatting is idempotent.
"""

from __future__ import annotations

import re

from pylash.lang import tree
from pylash.lang.parsing.parser import parse, read_program
from pylash.lang.printing.comments import Notes, chained
from pylash.lang.printing.expressions import Expressions, quoted
from pylash.lang.printing.layout import HARD, Layout, Line, Nest, Suffix, group, render
from pylash.lang.problems import LashlangError
from pylash.lang.tree import Block, Expression, Statement

WORDS = frozenset(("break", "continue", "while", "finish", "yield", "wake", "fail"))
FIRST_WORD = re.compile(r"[A-Za-z_]+")


def print_program(program: tree.Program) -> str:
    """Return the text of a program."""
    return _Printer(None).program(program)


def format_source(source: str) -> str:
    """Return the formatted source, with its comments.

    Raises:
        LashlangError: The source cannot be parsed.

    """
    cursor, program, comments = read_program(source)
    if cursor.problems:
        raise LashlangError(tuple(cursor.problems), source)
    formatted = _Printer(Notes(cursor, program, comments)).program(program)
    # If formatting would exceed a limit of the language (one more bracket would nest too deeply), keep the source.
    return formatted if _same(parse(formatted).program, program) else source


def _same(one: tree.Program, other: tree.Program) -> bool:
    """Whether two trees of any depth are equal."""
    pending: list[tuple[object, object]] = [(one, other)]
    while pending:
        left, right = pending.pop()
        if type(left) is not type(right):
            return False
        if isinstance(left, tree.Node):
            fields = left.__struct_fields__
            pending.extend((getattr(left, f), getattr(right, f)) for f in fields)
        elif isinstance(left, tuple) and isinstance(right, tuple):
            if len(left) != len(right):
                return False
            pending.extend(zip(left, right, strict=True))
        elif left != right:
            return False
    return True


class _Printer(Expressions):
    def program(self, program: tree.Program) -> str:
        body = self._lines(program, "", program.items)
        return render([*body, HARD]).lstrip("\n") if body else ""

    # Blocks.

    def _lines(
        self, owner: tree.Node, part: str, items: tuple[tree.Declaration | Statement, ...]
    ) -> list[Layout]:
        """Print items on lines of their own, with comments and blank lines, but no blank line before the first."""
        lines: list[Layout] = []
        apart = False
        for item in items:
            declared = isinstance(item, tree.ProcessDeclaration | tree.FunctionDeclaration)
            for blank, layout in self._with_comments(item):
                if lines:
                    lines += [HARD, HARD] if blank or apart or declared else [HARD]
                apart = declared = False
                lines.append(layout)
            apart = isinstance(item, tree.ProcessDeclaration | tree.FunctionDeclaration)
        if self.notes:
            for comment in self.notes.dangling.get((id(owner), part), []):
                blank = apart or self.notes.blank_before(comment.start)
                lines += [HARD, HARD] if lines and blank else [HARD] if lines else []
                lines.append(comment.text.rstrip())
                apart = False
        return lines

    def _with_comments(self, item: tree.Declaration | Statement) -> list[tuple[bool, Layout]]:
        """Return the comments before a statement and the statement, each with whether a blank line precedes it."""
        layout = self._item(item)
        if self.notes is None:
            return [(False, layout)]
        start = self.notes.start(item)
        found: list[tuple[bool, Layout]] = []
        for comment in self.notes.leading.get(id(item), []):
            # A comment from inside the statement gets no blank line.
            at = min(start, comment.start)
            blank = self.notes.blank_before(at) and (comment.start < start or not found)
            found.append((blank, comment.text.rstrip()))
        inner = bool(found) and self.notes.leading[id(item)][0].start > start
        blank = self.notes.blank_before(start) and not inner
        return [*found, (blank, [layout, *self._behind(item)])]

    def _block(self, owner: tree.Node, part: str, statements: Block) -> Layout:
        if self.notes and self.notes.on_one_line(owner) and _simple(owner):
            if not statements:
                return "{}"
            return ["{", Nest([Line(), *self._lines(owner, part, statements)]), Line(), "}"]
        lines = self._lines(owner, part, statements)
        opening = [Suffix(text) for text in self._around(owner, part)[0]]
        if not (lines or opening):
            return "{}"
        return ["{", *opening, Nest([HARD, *lines] if lines else []), HARD, "}"]

    # Declarations and statements.

    def _item(self, item: tree.Declaration | Statement) -> Layout:
        match item:
            case tree.TypeDeclaration(name=name, type=declared):
                return [f"type {name} = ", self.type(declared)]
            case tree.ProcessDeclaration():
                return group(self._process(item))
            case tree.FunctionDeclaration():
                parameters = self._parameters(item, "parameters", "()", item.parameters)
                head = [f"fn {item.name}", parameters, " -> ", self.type(item.result), " "]
                return group([*head, self._block(item, "body", item.body)])
            case _:
                return self._statement(item)

    def _process(self, item: tree.ProcessDeclaration) -> list[Layout]:
        parts: list[Layout] = [*self._label(item.label), f"process {item.name}"]
        parts.append(self._parameters(item, "parameters", "()", item.parameters))
        if item.signals:
            parts += [" signals ", self._parameters(item, "signals", "{}", item.signals)]
        if item.result:
            parts += [" -> ", self.type(item.result)]
        return [*parts, " ", self._block(item, "body", item.body)]

    def _parameters(
        self, owner: tree.Node, part: str, brackets: str, fields: tuple[tree.Parameter, ...]
    ) -> Layout:
        printed = [(field, [f"{field.name}: ", self.type(field.type)]) for field in fields]
        return self.listed(brackets, printed, owner, part)

    def _label(self, label: tree.Label | None) -> list[Layout]:
        if label is None:
            return []
        more = (
            f", description: {quoted(label.description)}" if label.description is not None else ""
        )
        return [f"@label(title: {quoted(label.title)}{more})", HARD]

    def _statement(self, node: Statement) -> Layout:
        match node:
            case tree.Labelled(label=label, statement=statement):
                return [*self._label(label), self._statement(statement)]
            case tree.Assign():
                steps = [
                    f".{step.name}"
                    if isinstance(step, tree.FieldStep)
                    else ["[", self.item(step.index), "]"]
                    for step in node.steps
                ]
                return [node.name, *steps, " = ", self.value(node.value)]
            case tree.If() | tree.For() | tree.While():
                return group(self._blocked(node))
            case tree.Evaluate(value=value):
                return self._evaluated(value)
            case _:
                return self._worded(node)

    def _blocked(self, node: tree.If | tree.For | tree.While) -> Layout:
        match node:
            case tree.For(name=name, source=source, body=body):
                head: Layout = [f"for {name} in ", self.value(source, "block"), " "]
                return [head, self._block(node, "body", body)]
            case tree.While(test=test, body=body):
                return [
                    "while ",
                    self.item(test, follower="block"),
                    " ",
                    self._block(node, "body", body),
                ]
            case tree.If():
                return self._if(node)

    def _if(self, node: tree.If) -> Layout:
        parts: list[Layout] = []
        while True:
            parts += ["if ", self.item(node.test, follower="block"), " "]
            parts.append(self._block(node, "then", node.then))
            if not node.otherwise:
                return parts
            parts.append(" else ")
            following = node.otherwise[0]
            if not (chained(node.otherwise) and isinstance(following, tree.If)):
                return [*parts, self._block(node, "else", node.otherwise)]
            node = following

    def _worded(self, node: Statement) -> Layout:
        match node:
            case tree.Break() | tree.Continue():
                return type(node).__name__.lower()
            case tree.Finish() | tree.Fail() | tree.Print() | tree.Yield() | tree.Wake():
                return [f"{type(node).__name__.lower()} ", self.value(node.value)]
            case tree.Cancel(handle=handle):
                return ["cancel ", self.item(handle)]
            case tree.Sleep(mode=mode, value=value):
                return [f"sleep {mode} ", self.item(value)]
            case tree.SendSignal(handle=handle, name=name, payload=payload):
                to = "" if name == "signal" else f" {name}"
                receiver = self.item(handle, 8, "name")
                return ["signal run ", receiver, f"{to} with ", self.item(payload)]
            case _:
                raise AssertionError(node)

    def _evaluated(self, value: Expression) -> Layout:
        layout = self.value(value)
        word = FIRST_WORD.match(_first_text(layout))
        if word is None or word.group() not in WORDS:
            return layout
        # At the start of a statement this word would be a keyword.
        self.guarded = _leftmost(value)
        return self.value(value)


def _simple(node: tree.Node) -> bool:
    """Whether each block of a statement has at most one plain statement."""
    match node:
        case tree.If(then=then, otherwise=otherwise):
            rest = _simple(otherwise[0]) if chained(otherwise) else _plain(otherwise)
            return _plain(then) and rest
        case tree.For(body=body) | tree.While(body=body):
            return _plain(body)
        case tree.ProcessDeclaration(body=body) | tree.FunctionDeclaration(body=body):
            return _plain(body)
        case _:
            return False


def _plain(block: Block) -> bool:
    nested = tree.If | tree.For | tree.While | tree.Labelled
    return not block or (len(block) == 1 and not isinstance(block[0], nested))


def _first_text(layout: Layout) -> str:
    while not isinstance(layout, str):
        match layout:
            case list():
                layout = next(part for part in layout if part != "")
            case Nest(inside=inside):
                layout = inside
            case _:
                layout = getattr(layout, "inside", "")
    return layout


def _leftmost(node: Expression) -> Expression:
    while True:
        match node:
            case tree.Binary(left=first) | tree.Conditional(test=first) | tree.Unwrap(value=first):
                node = first
            case tree.Field(base=first) | tree.Index(base=first) | tree.Method(base=first):
                node = first
            case tree.TupleLiteral(items=(first, *_)):
                node = first
            case _:
                return node
