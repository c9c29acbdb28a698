"""Operations, awaits, starts and waits as Python: each becomes a call of the frame `h`."""

from __future__ import annotations

import ast

from pylash.lang.compiling import pycode as py
from pylash.lang.compiling.expressions import Expressions
from pylash.lang.running.data import List, Record
from pylash.lang.running.frame import Leaf, Shape
from pylash.lang.tree import (
    Await,
    Expression,
    ListLiteral,
    Operation,
    ReceiverOperation,
    RecordLiteral,
    Start,
    TupleLiteral,
    Unwrap,
    WaitSignal,
)


class Effects(Expressions):
    """Compiles effects."""

    def effect(self, node: Expression) -> ast.expr:
        """Return the Python expression for a node that has an effect."""
        match node:
            case Operation() | ReceiverOperation():
                return py.awaited(py.method("h", "operate", self.site(node), self._pending(node)))
            case Await(ListLiteral() | TupleLiteral() | RecordLiteral()):
                return self._aggregate(node)
            case Await(Operation() | ReceiverOperation() as call):
                return self.expr(call)
            case Await(value):
                return py.awaited(py.method("h", "await_value", self.site(node), self.expr(value)))
            case Start(process, arguments):
                given = self.record([(argument.name, argument.value) for argument in arguments])
                return py.awaited(
                    py.method("h", "start", self.site(node), py.constant(process), given)
                )
            case WaitSignal(name, within):
                limit = [] if within is None else [self.expr(within), py.constant(True)]
                return py.awaited(
                    py.method("h", "wait_signal", self.site(node), py.constant(name), *limit)
                )
            case _:
                raise AssertionError(f"{type(node).__name__} is not linked")

    def _pending(self, node: Operation | ReceiverOperation) -> ast.expr:
        arguments = py.tuple_of(self.operands(node.arguments))
        if isinstance(node, Operation):
            return py.method(
                "h",
                "pending",
                self.site(node),
                py.constant(node.path),
                py.constant(node.name),
                arguments,
            )
        base = self.expr(node.base)
        return py.method(
            "h", "pending_on", self.site(node), base, py.constant(node.name), arguments
        )

    def _aggregate(self, node: Await) -> ast.expr:
        leaves: list[ast.expr] = []
        sites: list[int] = []
        shape = self._shape(node.value, leaves, sites)
        return py.awaited(
            py.method(
                "h",
                "aggregate",
                self.site(node),
                self._unit.keep(shape),
                py.tuple_of(leaves),
                self._unit.keep(tuple(sites)),
            )
        )

    def _shape(self, node: Expression, leaves: list[ast.expr], sites: list[int]) -> Shape | Leaf:
        match node:
            case ListLiteral(items):
                return Shape(List, tuple(self._shape(item, leaves, sites) for item in items))
            case TupleLiteral(items):
                return Shape(tuple, tuple(self._shape(item, leaves, sites) for item in items))
            case RecordLiteral(fields):
                parts = tuple(self._shape(field.value, leaves, sites) for field in fields)
                return Shape(Record, parts, tuple(field.key for field in fields))
            case _:
                return self._leaf(node, leaves, sites)

    def _leaf(self, node: Expression, leaves: list[ast.expr], sites: list[int]) -> Leaf:
        base, unwraps = node, 0
        while isinstance(base, Unwrap):
            base, unwraps = base.value, unwraps + 1
        leaf = Leaf(len(leaves), unwraps, self._unit.numbers[id(node)])
        sites.append(self._unit.numbers[id(base)])
        is_call = isinstance(base, Operation | ReceiverOperation)
        value = self._pending(base) if is_call else self.expr(base)  # type: ignore[arg-type]
        leaves.append(py.at(value, self.line(base)))
        return leaf
