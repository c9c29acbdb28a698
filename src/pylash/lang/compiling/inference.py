"""Facts about the variables of a body that the compiler derives from the tree alone.

A variable is *numeric* if every value bound to it is certainly a number: then Python's own arithmetic is
used on it. A variable is *mutable* if the body changes it by path or adds to it by `push`: then it has a
token (see `owned.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pylash.lang.running.data import List, Record, Value
from pylash.lang.tree import (
    Assign,
    Binary,
    Block,
    Bool,
    CallBuiltin,
    CallFunction,
    Clause,
    Conditional,
    Evaluate,
    Expression,
    For,
    FunctionDeclaration,
    If,
    ListLiteral,
    Negate,
    Node,
    Not,
    Null,
    Number,
    RecordLiteral,
    Text,
    TypeName,
    Variable,
    walk,
)

NUMERIC_BUILTINS: Final = frozenset({"len", "to_int", "to_float", "ceil_div", "floor_div", "sum"})
_NUMBERS: Final = (TypeName("int"), TypeName("float"))
_ARITHMETIC: Final = frozenset({"-", "*", "/", "%"})
_LOGIC: Final = frozenset({"or", "and", "==", "!=", "<", "<=", ">", ">=", "in", "not in"})


class Known(NamedTuple):
    """What is known to be numeric: variables, and functions whose result is a number if the marked arguments are."""

    variables: frozenset[str]
    functions: Mapping[str, tuple[bool, ...]]


def is_numeric(expression: Expression, known: Known) -> bool:  # noqa: PLR0911 (a line a form)
    """Return whether the expression always evaluates to a number, unless it raises."""
    match expression:
        case Number() | Negate():
            return True
        case Variable(name):
            return name in known.variables
        case CallBuiltin(name):
            return name in NUMERIC_BUILTINS
        case CallFunction(name, arguments):
            marked = known.functions.get(name)
            return marked is not None and all(
                is_numeric(argument, known)
                for argument, needed in zip(arguments, marked, strict=True)
                if needed
            )
        case Conditional(_, then, otherwise):
            return is_numeric(then, known) and is_numeric(otherwise, known)
        case Binary("+"):
            return all(is_numeric(part, known) for part in _summands(expression))
        case Binary(operator):
            return operator in _ARITHMETIC
        case _:
            return False


def _summands(expression: Expression) -> Iterable[Expression]:
    # A chain is left-associative and may be long: no recursion along it.
    while isinstance(expression, Binary) and expression.operator == "+":
        yield expression.right
        expression = expression.left
    yield expression


def is_logical(expression: Expression) -> bool:
    """Return whether the expression always evaluates to a bool, unless it raises."""
    match expression:
        case Bool() | Not():
            return True
        case Binary(operator):
            return operator in _LOGIC
        case _:
            return False


def is_constant(expression: Expression) -> bool:
    """Return whether the expression is made of literals only, so that it always has the same value."""
    match expression:
        case Null() | Bool() | Number() | Text():
            return True
        case ListLiteral(items):
            return all(map(is_constant, items))
        case RecordLiteral(fields):
            return all(is_constant(field.value) for field in fields)
        case _:
            return False


def constant_of(expression: Expression) -> Value:
    """Return the value of a constant."""
    match expression:
        case Bool(value) | Number(value) | Text(value):
            return value
        case ListLiteral(items):
            return List(map(constant_of, items))
        case RecordLiteral(fields):
            return Record({field.key: constant_of(field.value) for field in fields})
        case _:
            return None


def _is_range(expression: Expression) -> bool:
    return isinstance(expression, CallBuiltin) and expression.name == "range"


def numeric_variables(
    body: Block,
    given: frozenset[str],
    unknown: Iterable[str],
    functions: Mapping[str, tuple[bool, ...]],
) -> Known:
    """Return the variables that only ever hold numbers; `given` certainly do, `unknown` may hold anything."""
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
    known = Known(frozenset(bindings), functions)
    while True:
        still = frozenset(
            name
            for name in known.variables
            if all(value is not None and is_numeric(value, known) for value in bindings[name])
        )
        if still == known.variables:
            return known
        known = Known(still, functions)


def marked_parameters(function: FunctionDeclaration) -> tuple[bool, ...]:
    """Return which parameters are declared as numbers."""
    return tuple(parameter.type in _NUMBERS for parameter in function.parameters)


def numeric_functions(functions: tuple[FunctionDeclaration, ...]) -> dict[str, tuple[bool, ...]]:
    """Return the functions that return a number if the arguments declared as numbers are numbers."""
    numeric = {function.name: marked_parameters(function) for function in functions}
    while True:
        wrong = [
            function.name
            for function in functions
            if function.name in numeric and not _gives_number(function, numeric)
        ]
        if not wrong:
            return numeric
        for name in wrong:
            del numeric[name]


def _gives_number(function: FunctionDeclaration, functions: Mapping[str, tuple[bool, ...]]) -> bool:
    marked = marked_parameters(function)
    names = [parameter.name for parameter in function.parameters]
    given = frozenset(name for name, number in zip(names, marked, strict=True) if number)
    known = numeric_variables(function.body, given, set(names) - given, functions)
    return _ends_in_number(function.body, known)


def _ends_in_number(block: Block, known: Known) -> bool:
    match block[-1:]:
        case (Evaluate(value),):
            return is_numeric(value, known)
        case (If(_, then, otherwise),):
            return _ends_in_number(then, known) and _ends_in_number(otherwise, known)
        case _:
            return False


def mutable_variables(body: Block) -> frozenset[str]:
    """Return the variables that the body changes by path or adds to by `push`."""
    return frozenset(
        node.name
        for node in _nodes(body)
        if isinstance(node, Assign) and (node.steps or grows(node))
    )


def grows(assignment: Assign) -> bool:
    """Return whether the assignment has the form `xs = push(xs, …)`."""
    match assignment:
        case Assign(name, (), CallBuiltin("push", (Variable(first), _))):
            return name == first
        case _:
            return False


def variables_of(expression: Node) -> frozenset[str]:
    """Return the variables that an expression mentions."""
    return frozenset(node.name for node in walk(expression) if isinstance(node, Variable))


def settled_in_main(body: Block) -> frozenset[str]:
    """Return the variables of main that a statement of main binds before anything reads them.

    The session's earlier value of such a variable is never read.
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
