"""Loops as Python.

1. Python limits the nesting of loops in a function: a loop that is nested deeper becomes a function, which
   changes the variables of the body, and reports to its caller if the body must return.
2. When a loop ends, for any reason, its variable has the value again that it had before the loop.
"""

from __future__ import annotations

import ast
from typing import Final

from pylash.lang.compiling import pycode as py
from pylash.lang.compiling.effects import Effects
from pylash.lang.compiling.inference import Known, mutable_variables, variables_of
from pylash.lang.compiling.unit import Unit
from pylash.lang.tree import Assign, Block, Expression, For, Node, Variable, While, walk

_DEEPEST: Final = 8
"""Python allows 20 nested blocks; a loop of main is two blocks, and the body itself is one."""


class Loops(Effects):
    """Compiles the loops of one body."""

    def __init__(self, unit: Unit, kind: str, block: Block, known: Known) -> None:
        super().__init__(unit, in_function=kind == "function", known=known)
        self._kind = kind
        self._block = block
        self._numeric = known.variables
        self._mutable = mutable_variables(block)
        self._around = 0
        self._apart_level = 0
        self.labels = 0
        """How many labelled statements enclose the current one, in traced executions."""
        self.labels_in_loop = 0
        self.shared: set[int] = set()
        """The variables that functions inside the body bind."""

    def statements(self, block: Block, *, result: bool = False, taken: int = 0) -> list[ast.stmt]:
        """Return the Python statements of a block."""
        raise NotImplementedError

    def hold(self, variable: str, value: Expression | None) -> list[ast.stmt]:
        """Bind the variable to the value in `r`, and count the value's size."""
        raise NotImplementedError

    # Leaving.

    def leave_labels(self, number: int) -> list[ast.stmt]:
        """Report that control leaves labelled statements."""
        return [ast.Expr(py.method("h", "close_steps", py.constant(number)))] if number else []

    def returned(self, value: ast.expr) -> list[ast.stmt]:
        """Return from the body."""
        if self._apart_level:
            value = py.tuple_of([value])
        if not self.labels:
            return [ast.Return(value)]
        return [py.assign("r", value), *self.leave_labels(self.labels), ast.Return(py.name("r"))]

    # Loops.

    def loop(self, node: For | While) -> list[ast.stmt]:
        """Return the Python statements of a loop."""
        if self._around >= _DEEPEST:
            return self._loop_apart(node)
        labels, self.labels_in_loop = self.labels_in_loop, 0
        self._around += 1
        made = self._for(node) if isinstance(node, For) else self._while(node)
        self._around -= 1
        self.labels_in_loop = labels
        return made

    def _loop_apart(self, node: For | While) -> list[ast.stmt]:
        slots = sorted({self.slot(name) for name in _bound(node)})
        self.shared.update(slots)
        around, self._around = self._around, 0
        self._apart_level += 1
        body = [py.at(each, self.line(node)) for each in self.loop(node)]
        self._apart_level -= 1
        self._around = around
        names = {f"{kind}{slot}" for slot in slots for kind in self._kinds(slot)}
        names |= {f"t{self.slot(name)}" for name in variables_of(node) & self._mutable}
        identifier, ended = self.fresh(), self.fresh()
        outer: list[ast.stmt] = [ast.Nonlocal(sorted(names))] if names else []
        function = py.function(identifier, [], [*outer, *body], asynchronous=not self._in_function)
        self._definitions[0].append(function)
        call: ast.expr = py.call(identifier)
        value: ast.expr = py.name(ended)
        if not self._apart_level:
            value = ast.Subscript(value, py.constant(0), py.load)
        is_over = py.compare(py.name(ended), ast.IsNot(), py.constant(None))
        return [
            py.assign(ended, call if self._in_function else py.awaited(call)),
            py.branch(is_over, [ast.Return(value)]),
        ]

    def _kinds(self, slot: int) -> str:
        name = next(name for name, number in self._slots.items() if number == slot)
        return "v" if name in self._numeric else "vst" if name in self._mutable else "vs"

    def _iteration(self, loop: For | While) -> list[ast.stmt]:
        return self.statements(loop.body, taken=1) if loop.body else self.count(1, loop)

    def _while(self, node: While) -> list[ast.stmt]:
        return [ast.While(self.test(node.test), self._iteration(node), [])]

    def _for(self, node: For) -> list[ast.stmt]:
        source = self.fresh()
        variable = self.local(node.name)
        shared = sorted(self.slot(name) for name in variables_of(node.source) & self._mutable)
        begin: list[ast.stmt] = [
            py.at(py.assign(source, self.iterated(node.source)), self.line(node.source)),
            *(py.assign(f"t{slot}", py.constant(None)) for slot in shared),
        ]
        done = [self.let_go()] if self.is_kept(node.source) else []
        if node.name in self._numeric:
            target, bind = variable, list[ast.stmt]()
        else:
            target, bind = "r", self.hold(node.name, None)
        inner = [*bind, *self._iteration(node)]
        loop = ast.For(ast.Name(target, py.store), py.name(source), inner, [])
        if not self._seen_outside(node):
            return [*begin, loop, *done]
        before, bound = self.fresh(), self.fresh()
        remember = ast.Try(
            [py.assign(before, py.name(variable)), py.assign(bound, py.constant(True))],
            [ast.ExceptHandler(py.name("NameError"), None, [py.assign(bound, py.constant(False))])],
            [],
            [],
        )
        back: list[ast.stmt] = [py.assign(variable, py.name(before))]
        gone: list[ast.stmt] = [
            py.assign(variable, py.constant(None)),
            ast.Delete([ast.Name(variable, ast.Del())]),
        ]
        restore: list[ast.stmt] = [py.branch(py.name(bound), back, gone)]
        if node.name not in self._numeric:
            # The value that the loop variable hides still counts, so the loop's items are counted from zero.
            size, hidden = f"s{self.slot(node.name)}", self.fresh()
            begin += [py.assign(hidden, py.name(size)), py.assign(size, py.constant(0))]
            restore.append(ast.Expr(py.method("m", "release", py.name(size))))
            restore.append(py.assign(size, py.name(hidden)))
        if self._kind == "main":
            return [*begin, remember, ast.Try([loop], [], [], restore), *done]
        return [*begin, remember, loop, *restore, *done]

    def _seen_outside(self, loop: For) -> bool:
        if self._kind == "main":
            return True
        return mentions(self._block, loop.name) > mentions((loop,), loop.name)


def _bound(node: Node) -> set[str]:
    return {inner.name for inner in walk(node) if isinstance(inner, Assign | For)}


def mentions(block: Block, name: str) -> int:
    """Return how often statements mention or bind a variable."""
    found = 0
    for statement in block:
        for node in walk(statement):
            if isinstance(node, Variable | Assign | For) and node.name == name:
                found += 1
    return found
