"""Layout of expressions and types, with possible line breaks.

1. Parentheses are printed only where the tree needs them, so that the printed text nests no deeper than
   the source; tuples, strings and numbers keep the author's spelling, if there is a source.
2. Outside brackets a line is broken only where the break does not end the statement: after an operator or
   a comma, before `?` and `:`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

from pylash.lang import tree
from pylash.lang.parsing.expressions import LOWEST, NEGATION, PRECEDENCE, SUM
from pylash.lang.printing.comments import Notes
from pylash.lang.printing.layout import HARD, IfBroken, Layout, Line, Nest, Suffix, group
from pylash.lang.tree import Expression, Type

WHOLE, UNARY, POSTFIX, PRIMARY = 0, 7, 8, 9
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

# What follows an expression: an operator that `within` would take as its own, a block, a name.
Follower = Literal["", "arithmetic", "block", "name"]


class Expressions:
    """Prints expressions; `notes` has the author's spelling."""

    def __init__(self, notes: Notes | None) -> None:
        self.notes = notes
        # A name at the start of a statement that would be a keyword there.
        self.guarded: Expression | None = None

    def value(self, node: Expression, follower: Follower = "") -> Layout:
        """Print an expression where a tuple needs no parentheses."""
        if not (isinstance(node, tree.TupleLiteral) and self._bare(node)):
            return self.item(node, WHOLE, follower)
        *items, last = node.items
        parts: list[Layout] = []
        for item in items:
            parts += [self.item(item), ",", Line()]
        first, *rest = [*parts, self.item(last, WHOLE, follower)]
        return group([first, Nest(rest)])

    def _bare(self, node: tree.TupleLiteral) -> bool:
        if self.notes is None or len(node.items) < 2:
            return False
        start, end = self.notes.spans[id(node)]
        return self.notes.brackets.closing.get(start) != end - 1

    def item(self, node: Expression, level: int = WHOLE, follower: Follower = "") -> Layout:
        """Print an expression that must bind at least as tightly as `level`."""
        if _level(node, level, follower) < level or node is self.guarded:
            self.guarded = None
            return ["(", self._plain(node, WHOLE, ""), ")"]
        return self._plain(node, level, follower)

    def _plain(self, node: Expression, level: int, follower: Follower) -> Layout:  # noqa: PLR0911
        match node:
            case tree.Conditional():
                return self._conditional(node, follower)
            case tree.Binary():
                return self._binary(node, follower)
            case tree.Negate():
                return ["-", self.item(node.value, UNARY, follower)]
            case tree.Not():
                loose = level <= NEGATION
                inner = self.item(node.value, NEGATION if loose else UNARY, follower)
                return ["not " if loose else "!", inner]
            case tree.Await():
                return self._await(node, follower)
            case tree.WaitSignal():
                return self._wait(node, follower)
            case tree.Unwrap() | tree.Field() | tree.Index() | tree.Method():
                return self._postfixed(node, level, follower)
            case _:
                return self._primary(node, follower)

    def _conditional(self, node: tree.Conditional, follower: Follower) -> Layout:
        arms = [Line(), "? ", self.item(node.then), Line(), ": "]
        arms.append(self.item(node.otherwise, WHOLE, follower))
        return group([self.item(node.test, LOWEST), Nest(arms)])

    def _binary(self, node: tree.Binary, follower: Follower) -> Layout:
        """Print a whole chain of operators of one level without recursion: it may be long."""
        level = PRECEDENCE[node.operator]
        between: Follower = "arithmetic" if level >= SUM else ""
        chain: list[tree.Binary] = []
        left: Expression = node
        while isinstance(left, tree.Binary) and PRECEDENCE[left.operator] == level:
            chain.append(left)
            left = left.left
        rest: list[Layout] = []
        for binary in reversed(chain):
            behind = follower if binary is node else between
            rest += [f" {binary.operator}", Line(), self.item(binary.right, level + 1, behind)]
        # The first operand is printed last: comments are looked up by node, so the order does not matter.
        return group([self.item(left, level, between), Nest(rest)])

    def _await(self, node: tree.Await, follower: Follower) -> Layout:
        if _ends_in_mark(node.value):
            return ["await (", self.item(node.value), ")"]
        return ["await ", self.item(node.value, UNARY, follower)]

    def _wait(self, node: tree.WaitSignal, follower: Follower) -> Layout:
        name = "" if node.name == "signal" else f" {node.name}"
        if node.within is None:
            return f"wait signal{name}"
        return [f"wait signal{name} within ", self.item(node.within, SUM, follower)]

    def _postfixed(self, node: Expression, level: int, follower: Follower) -> Layout:
        steps: list[tree.Unwrap | tree.Field | tree.Index | tree.Method] = []
        base = node
        while isinstance(base, tree.Unwrap | tree.Field | tree.Index | tree.Method):
            steps.append(base)
            base = base.value if isinstance(base, tree.Unwrap) else base.base
        if level <= UNARY and _awaited(node):
            return [self.item(base, UNARY, follower), "?" * len(steps)]
        parts: list[Layout] = [self.item(base, PRIMARY)]
        if isinstance(base, tree.Number) and isinstance(steps[-1], tree.Field | tree.Method):
            parts = ["(", *parts, ")"]  # the `.` would become part of the number
        parts.extend(self._step(step) for step in reversed(steps))
        return parts

    def _step(self, step: tree.Unwrap | tree.Field | tree.Index | tree.Method) -> Layout:
        match step:
            case tree.Unwrap():
                return "?"
            case tree.Field(name=name):
                return f".{name}"
            case tree.Index(index=index):
                return ["[", self.item(index), "]"]
            case tree.Method(name=name):
                return [f".{name}", self._arguments(step, step.arguments)]

    def _arguments(self, node: tree.Node, arguments: tuple[Expression, ...]) -> Layout:
        """Print arguments; the bracket of a single literal stays next to that of the call."""
        literal = tree.RecordLiteral | tree.ListLiteral | tree.Comprehension
        hugged = len(arguments) == 1 and isinstance(arguments[0], literal)
        if hugged and not self._commented(node, "items", arguments):
            return ["(", self.item(arguments[0]), ")"]
        printed = [(argument, self.item(argument)) for argument in arguments]
        return self.listed("()", printed, node)

    def _primary(self, node: Expression, follower: Follower) -> Layout:
        match node:
            case tree.Null():
                return "null"
            case tree.Bool(value=truth):
                return "true" if truth else "false"
            case tree.Number() | tree.Text():
                return self._scalar(node)
            case tree.Name(name=name) | tree.Variable(name=name):
                # Before a block or a name these two would be parsed as something else.
                mistaken = (name, follower) in (("Type", "block"), ("start", "name"))
                return f"({name})" if mistaken else name
            case tree.Group(value=value):
                return group(["(", Nest([Line(""), self.item(value)]), Line(""), ")"])
            case tree.Call(name=name, arguments=arguments):
                return [name, self._arguments(node, arguments)]
            case _:
                return self._composed(node)

    def _composed(self, node: Expression) -> Layout:
        match node:
            case tree.ListLiteral(items=items):
                return self._sequence("[]", items, node)
            case tree.TupleLiteral(items=items):
                return self._sequence("()", items, node)
            case tree.RecordLiteral(fields=fields):
                pairs = [(f, [f"{key(f.key)}: ", self.item(f.value)]) for f in fields]
                return self.listed("{}", pairs, node)
            case tree.Comprehension():
                return self._comprehension(node)
            case tree.TypeLiteral(type=declared):
                return ["Type ", self.type(declared)]
            case tree.Start(process=process, arguments=arguments):
                named = [(a, [f"{a.name}: ", self.item(a.value)]) for a in arguments]
                return [f"start {process}", self.listed("()", named, node)]
            case _:
                raise TypeError(f"a linked tree is not printed: {type(node).__name__}")

    def _scalar(self, node: tree.Number | tree.Text) -> str:
        if isinstance(node, tree.Number):
            return self.notes.spelling(node) if self.notes else number(node.value)
        if self.notes:
            spelling = self.notes.spelling(node)
            if spelling[0] in "rR" or spelling[:3] in ('"""', "'''") or "\n" in spelling:
                return spelling
        return quoted(node.value)

    def _sequence(
        self,
        brackets: str,
        items: tuple[Expression, ...],
        node: tree.ListLiteral | tree.TupleLiteral,
    ) -> Layout:
        printed = [(item, self.item(item)) for item in items]
        plain = all(isinstance(layout, str) and len(layout) < 20 for _, layout in printed)
        if len(items) > 8 and plain and not self._commented(node, "items", items):
            return self._filled(brackets, [layout for _, layout in printed])
        single = brackets == "()" and len(items) == 1
        return self.listed(brackets, printed, node, single=single)

    def _filled(self, brackets: str, items: list[Layout]) -> Layout:
        """Print many short items, as many on a line as fit there."""
        between = [group([Line(), item, ","], alone=True) for item in items[1:-1]]
        last = group([Line(), items[-1]], alone=True)
        inside = [Line(""), items[0], ",", *between, last, IfBroken(",")]
        return group([brackets[0], Nest(inside), Line(""), brackets[1]])

    def _comprehension(self, node: tree.Comprehension) -> Layout:
        inside: list[Layout] = [Line(""), self.item(node.element)]
        for clause in node.clauses:
            inside += [Line(), f"for {clause.name} in ", self.item(clause.source)]
            for condition in clause.conditions:
                inside += [Line(), "if ", self.item(condition)]
        return group(["[", Nest(inside), Line(""), "]"])

    def listed(
        self,
        brackets: str,
        items: Sequence[tuple[tree.Node, Layout]],
        owner: tree.Node,
        part: str = "items",
        *,
        single: bool = False,
    ) -> Layout:
        """Print items in brackets, with commas and comments."""
        opening, dangling = self._around(owner, part)
        if not (items or opening or dangling):
            return brackets
        pad = " " if brackets == "{}" else ""
        inside: list[Layout] = []
        for index, (node, layout) in enumerate(items):
            last = index == len(items) - 1
            inside += [Line(" " if index else pad), *self._before(node), layout]
            inside += [IfBroken(",") if last and not single else ",", *self._behind(node)]
        for comment in dangling:
            inside += [HARD, comment]
        parts: list[Layout] = [brackets[0], *map(Suffix, opening), Nest(inside)]
        return group([*parts, HARD if dangling else Line(pad), brackets[1]])

    def _around(self, owner: tree.Node, part: str) -> tuple[list[str], list[str]]:
        """Return the comments after the opening bracket and before the closing one."""
        if self.notes is None:
            return [], []
        at = (id(owner), part)
        opening = self.notes.opening.get(at, [])
        dangling = self.notes.dangling.get(at, [])
        return [c.text.rstrip() for c in opening], [c.text.rstrip() for c in dangling]

    def _before(self, node: tree.Node) -> list[Layout]:
        comments = self.notes.leading.get(id(node), []) if self.notes else []
        return [part for comment in comments for part in (comment.text.rstrip(), HARD)]

    def _behind(self, node: tree.Node) -> list[Layout]:
        comments = self.notes.trailing.get(id(node), []) if self.notes else []
        return [Suffix(comment.text.rstrip()) for comment in comments]

    def _commented(self, owner: tree.Node, part: str, items: tuple[tree.Node, ...]) -> bool:
        around = any(self._around(owner, part))
        return around or any(self._before(item) or self._behind(item) for item in items)

    # Types.

    def type(self, node: Type) -> Layout:
        """Print a type."""
        match node:
            case tree.TypeName(name=name):
                return name
            case tree.EnumType(members=members):
                texts = ", ".join(map(quoted, members))
                lone = len(members) == 1 and not self._spelled_out(node)
                return texts if lone else f"enum[{texts}]"
            case tree.ListType(item=item):
                return ["list[", self.type(item), "]"]
            case tree.RecordType(fields=fields):
                printed = [(f, [f"{key(f.key)}: ", self.type(f.type), _mark(f)]) for f in fields]
                return self.listed("{}", printed, node)
            case tree.UnionType(members=union):
                first, *rest = map(self.type, union)
                return group([first, Nest([part for m in rest for part in (" |", Line(), m)])])

    def _spelled_out(self, node: tree.EnumType) -> bool:
        return self.notes is not None and self.notes.spelling(node).startswith("enum")


def _mark(field: tree.TypeField) -> str:
    return "?" if field.optional else ""


def _level(node: Expression, level: int, follower: Follower) -> int:
    """Return how tightly a node binds in its context."""
    match node:
        case tree.Conditional():
            return WHOLE
        case tree.Binary(operator=operator):
            return PRECEDENCE[operator]
        case tree.Not() if level <= NEGATION:
            return NEGATION
        case tree.WaitSignal() if node.within and follower == "arithmetic":
            return WHOLE - 1
        case tree.Not() | tree.Negate() | tree.Await() | tree.WaitSignal():
            return UNARY
        case tree.Unwrap() | tree.Field() | tree.Index() | tree.Method():
            return POSTFIX
        case _:
            return PRIMARY


def _awaited(node: Expression) -> bool:
    """Whether this is an `await` that question marks follow."""
    while isinstance(node, tree.Unwrap):
        node = node.value
    return isinstance(node, tree.Await)


def _ends_in_mark(node: Expression) -> bool:
    """Whether a question mark at the end of an operand would be parsed as that of the `await` before it."""
    while isinstance(node, tree.Negate | tree.Not):
        node = node.value
    return isinstance(node, tree.Unwrap)


def key(text: str) -> str:
    """Return the key of a field as source text: with quotes only if it needs them."""
    return text if NAME.fullmatch(text) else quoted(text)


def quoted(text: str) -> str:
    """Return a text as a string literal, with the quotes that need fewer escapes."""
    quote = "'" if '"' in text and "'" not in text else '"'
    escapes = ESCAPES | {quote: f"\\{quote}"}
    return quote + "".join(escapes.get(char, char) for char in text) + quote


def number(value: float) -> str:
    """Return a number as source text, without an exponent."""
    written = format(Decimal(repr(value)), "f")
    return written.removesuffix(".0")
