"""What the compiler may assume about the variables of a body, proved from the tree alone.

A variable is *numeric* if everything that is ever bound to it is a number for certain: then arithmetic on
it is Python's own. A variable is *mutable* if the body changes it by path or grows it by `push`: then it has
a token (see `owned.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pylash.lang.tree import (
    Assign,
    Binary,
    Block,
    Bool,
    CallBuiltin,
    Clause,
    Conditional,
    Expression,
    For,
    Negate,
    Node,
    Not,
    Number,
    Variable,
    walk,
)

_NUMERIC_BUILTINS: Final = frozenset({"len", "to_int", "to_float", "ceil_div", "floor_div", "sum"})
_ARITHMETIC: Final = frozenset({"-", "*", "/", "%"})
_LOGIC: Final = frozenset({"or", "and", "==", "!=", "<", "<=", ">", ">=", "in", "not in"})


def is_numeric(expression: Expression, numeric: frozenset[str]) -> bool:
    """Tell whether the expression gives a number whenever it gives anything."""
    match expression:
        case Number() | Negate():
            return True
        case Variable(name):
            return name in numeric
        case CallBuiltin(name):
            return name in _NUMERIC_BUILTINS
        case Conditional(_, then, otherwise):
            return is_numeric(then, numeric) and is_numeric(otherwise, numeric)
        case Binary("+"):
            return all(is_numeric(part, numeric) for part in _summands(expression))
        case Binary(operator):
            return operator in _ARITHMETIC
        case _:
            return False


def _summands(expression: Expression) -> Iterable[Expression]:
    # A chain leans to the left and may be long: no recursion along it.
    while isinstance(expression, Binary) and expression.operator == "+":
        yield expression.right
        expression = expression.left
    yield expression


def is_logical(expression: Expression) -> bool:
    """Tell whether the expression gives a bool whenever it gives anything."""
    match expression:
        case Bool() | Not():
            return True
        case Binary(operator):
            return operator in _LOGIC
        case _:
            return False


def _is_range(expression: Expression) -> bool:
    return isinstance(expression, CallBuiltin) and expression.name == "range"


def numeric_variables(body: Block, given: frozenset[str], unknown: Iterable[str]) -> frozenset[str]:
    """Return the variables that only ever hold numbers; `given` surely do, `unknown` may hold anything."""
    bindings: dict[str, list[Expression | None]] = {name: [] for name in given}
    for name in unknown:
        bindings.setdefault(name, []).append(None)
    for node in _nodes(body):
        match node:
            case Assign(name, steps, value):
                bindings.setdefault(name, []).append(None if steps else value)
            case For(name, source) | Clause(name, source):
                bindings.setdefault(name, []).append(Number(0.0) if _is_range(source) else None)
            case _:
                pass
    numeric = frozenset(bindings)
    while True:
        still = frozenset(
            name
            for name in numeric
            if all(value is not None and is_numeric(value, numeric) for value in bindings[name])
        )
        if still == numeric:
            return numeric
        numeric = still


def mutable_variables(body: Block) -> frozenset[str]:
    """Return the variables that the body changes by path or grows."""
    return frozenset(
        node.name
        for node in _nodes(body)
        if isinstance(node, Assign) and (node.steps or grows(node))
    )


def grows(assignment: Assign) -> bool:
    """Tell whether it is `xs = push(xs, …)`."""
    match assignment:
        case Assign(name, (), CallBuiltin("push", (Variable(first), _))):
            return name == first
        case _:
            return False


def variables_of(expression: Node) -> frozenset[str]:
    """Return the variables an expression mentions."""
    return frozenset(node.name for node in walk(expression) if isinstance(node, Variable))


def settled_in_main(body: Block) -> frozenset[str]:
    """Return the variables of main that are bound by a statement of it before anything mentions them.

    What the session held under such a name is never seen.
    """
    settled: set[str] = set()
    seen: set[str] = set()
    for statement in body:
        if isinstance(statement, Assign) and not statement.steps:
            seen |= variables_of(statement.value)
            if statement.name not in seen:
                settled.add(statement.name)
            seen.add(statement.name)
        else:
            seen |= variables_of(statement)
            seen |= {node.name for node in walk(statement) if isinstance(node, Assign | For)}
    return frozenset(settled)


def _nodes(body: Block) -> Iterable[Node]:
    for statement in body:
        yield from walk(statement)
