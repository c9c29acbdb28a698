"""Expressions as Python.

1. The line number of a Python node is the number of the tree node that it was compiled from, so the
   position of an error is known without any bookkeeping at run time.
2. Operands are evaluated from left to right, each once.
3. No Python expression nests deeper than `_DEEPEST`: a deeper part, and every comprehension, becomes a
   function that is defined once at the top of the body and reads the body's variables.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from pylash.lang.compiling import pycode as py
from pylash.lang.compiling.inference import (
    NUMERIC_BUILTINS,
    Known,
    constant_of,
    is_constant,
    is_logical,
    is_numeric,
)
from pylash.lang.compiling.unit import Unit
from pylash.lang.running.data import TRIGGER_EVENT, Resource, RunError, from_json, shared_json
from pylash.lang.static_types import schema_of
from pylash.lang.tree import (
    Binary,
    Bool,
    CallBuiltin,
    CallFunction,
    Clause,
    Comprehension,
    Conditional,
    Construct,
    Expression,
    Field,
    Group,
    Index,
    ListLiteral,
    ModuleName,
    Negate,
    Node,
    Not,
    Null,
    Number,
    ProcessName,
    RecordLiteral,
    Text,
    TriggerEvent,
    TupleLiteral,
    TypeLiteral,
    TypeName,
    Unwrap,
    Variable,
    walk,
)

_DEEPEST: Final = 40
_CLAUSES: Final = 8
"""How many loops of a comprehension are put into one function: Python limits the nesting."""
_SMALL: Final = NUMERIC_BUILTINS | {"empty", "contains", "starts_with", "ends_with", "find"}
"""Builtins with small results, which are not counted as memory."""
_NATIVE: Final[Mapping[str, type[ast.operator]]] = {"+": ast.Add, "-": ast.Sub, "*": ast.Mult}
_HELPERS: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder"}
_ORDER: Final[Mapping[str, tuple[type[ast.cmpop], str]]] = {
    "<": (ast.Lt, "less"),
    "<=": (ast.LtE, "at_most"),
    ">": (ast.Gt, "greater"),
    ">=": (ast.GtE, "at_least"),
}


class Expressions:
    """Compiles the expressions of one body."""

    def __init__(self, unit: Unit, *, in_function: bool, known: Known) -> None:
        self._unit = unit
        self._in_function = in_function
        self._known = known
        self._slots: dict[str, int] = {}
        self._definitions: list[list[ast.stmt]] = [[]]
        self._numbers: dict[int, bool] = {}
        self._fresh = 0
        self._depth = 0

    # Names.

    def slot(self, variable: str) -> int:
        """Return the number of a variable in the Python code."""
        return self._slots.setdefault(variable, len(self._slots))

    def local(self, variable: str) -> str:
        """Return the Python name of a variable."""
        return f"v{self.slot(variable)}"

    def fresh(self) -> str:
        """Return an unused Python name."""
        self._fresh += 1
        return f"r{self._fresh}"

    def line(self, node: Node) -> int:
        """Return the line number of a node."""
        return self._unit.numbers[id(node)] + 1

    def site(self, node: Node) -> ast.Constant:
        """Return the number of a site in the frame."""
        return py.constant(self._unit.numbers[id(node)])

    def is_number(self, node: Expression) -> bool:
        """Return whether a node always evaluates to a number, unless it raises; asked for its parts first."""
        known = self._numbers.get(id(node))
        if known is None:
            if isinstance(node, Binary) and node.operator == "+":
                known = self.is_number(node.left) and self.is_number(node.right)
            else:
                known = is_numeric(node, self._known)
            self._numbers[id(node)] = known
        return known

    # Evaluation.

    def expr(self, node: Expression) -> ast.expr:
        """Return the Python expression for a node."""
        if self._depth >= _DEEPEST:
            return self._apart(node)
        self._depth += 1
        try:
            return py.at(self._expr(node), self.line(node))  # type: ignore[no-any-return]
        finally:
            self._depth -= 1

    def test(self, node: Expression) -> ast.expr:
        """Return a Python expression that is true exactly if the node's value is."""
        value = self.expr(node)
        return value if is_logical(node) else py.at(py.call("truth", value), self.line(node))

    def _apart(self, node: Expression) -> ast.expr:
        waits = id(node) in self._unit.waiting
        depth, self._depth = self._depth, 0
        self._definitions.append([])
        result = self.expr(node)
        body = self._definitions.pop()
        self._depth = depth
        identifier = self.fresh()
        body.append(ast.Return(result))
        self._definitions[-1].append(py.function(identifier, [], body, asynchronous=waits))
        value = py.call(identifier)
        return py.at(py.awaited(value) if waits else value, self.line(node))  # type: ignore[no-any-return]

    def _expr(self, node: Expression) -> ast.expr:  # noqa: C901, PLR0911, PLR0912 (one line for each kind)
        match node:
            case Null():
                return py.constant(None)
            case Bool(value) | Number(value) | Text(value):
                return py.constant(value)
            case Variable(name):
                return py.name(self.local(name))
            case ListLiteral() | RecordLiteral() if is_constant(node):
                return self._unit.keep(
                    constant_of(node)
                )  # safe to share: only a value's owner changes it
            case ListLiteral(items):
                return py.call("List", ast.List(self.operands(items), py.load))
            case TupleLiteral(items):
                return py.tuple_of(self.operands(items))
            case RecordLiteral(fields):
                return self.record([(field.key, field.value) for field in fields])
            case Field(base, name):
                return py.call("field", self.expr(base), py.constant(name))
            case Index(base, at):
                return py.call("index", *self.operands((base, at)))
            case Unwrap(value):
                return py.call("unwrap", self.expr(value))
            case Group(value):
                return self.expr(value)
            case Binary():
                return self._chain(node)
            case Not(value):
                return ast.UnaryOp(ast.Not(), self.test(value))
            case Negate(value):
                inner = self.expr(value)
                if self.is_number(value):
                    return ast.UnaryOp(ast.USub(), inner)
                return py.call("negate", py.name("m"), inner)
            case Conditional(test, then, otherwise):
                chosen = self.chosen(node, self.test(test))
                return ast.IfExp(chosen, self.expr(then), self.expr(otherwise))
            case Comprehension():
                return self._comprehension(node)
            case CallBuiltin(name, arguments):
                return py.call(f"b_{name}", py.name("m"), *self.operands(arguments))
            case CallFunction(name, arguments):
                return self._call_function(name, self.operands(arguments))
            case Construct(_, kind, value):
                return self._record_of(
                    {"$lash_host_type": py.constant(kind), "$lash_host_value": self.expr(value)}
                )
            case TypeLiteral():
                return self._type_value(node)
            case ProcessName(name):
                return self._unit.keep(from_json(self._unit.process_values[name]))
            case ModuleName(path):
                return self._unit.keep(Resource(self._unit.resource_types[path], path))
            case TriggerEvent():
                return self._unit.keep(from_json({TRIGGER_EVENT: True}))
            case _:
                return self.effect(node)

    def operands(self, nodes: Sequence[Expression]) -> list[ast.expr]:
        """Return the Python expressions for the operands of a node."""
        return self._kept(nodes, [self.expr(node) for node in nodes])

    def _kept(self, nodes: Sequence[Expression], made: list[ast.expr]) -> list[ast.expr]:
        """Return operands; those that may be large count as memory while later ones are evaluated."""
        busy = [at for at, node in enumerate(nodes) if id(node) in self._unit.busy]
        large = [at for at in busy[:-1] if self._makes(nodes[at])]
        for at in large:
            made[at] = py.at(py.method("m", "keep", made[at]), self.line(nodes[at]))
        if large:
            last = py.method("m", "freed", py.constant(len(large)), made[busy[-1]])
            made[busy[-1]] = py.at(last, self.line(nodes[busy[-1]]))
        return made

    def _makes(self, node: Expression) -> bool:
        """Return whether a busy node may evaluate to a large value that no variable holds."""
        match node:
            case Field(base) | Index(base) | Unwrap(base) | Group(base):
                return self._makes(base)
            case CallBuiltin(name):
                return name not in _SMALL
            case _:
                return not is_logical(node) and not self.is_number(node)

    def chosen(self, node: Node, test: ast.expr) -> ast.expr:
        """Return the test of a branch; in traced executions it also reports which arm is taken."""
        if not self._unit.traced or self._in_function:
            return test
        arms = map(py.constant, self._unit.arms[id(node)])
        return py.at(py.method("h", "branch", self.site(node), test, *arms), self.line(node))  # type: ignore[no-any-return]

    def record(self, fields: list[tuple[str, Expression]]) -> ast.expr:
        """Return a record of these fields."""
        keys: list[ast.expr | None] = [py.constant(key) for key, _ in fields]
        return py.call("Record", ast.Dict(keys, self.operands([value for _, value in fields])))

    def _record_of(self, fields: dict[str, ast.expr]) -> ast.expr:
        return py.call(
            "Record", ast.Dict([py.constant(key) for key in fields], list(fields.values()))
        )

    def _call_function(self, name: str, arguments: list[ast.expr]) -> ast.expr:
        function = self._unit.functions[name]
        if self._in_function or name not in self._unit.long:
            return py.call(function, py.name("m"), *arguments)
        return py.awaited(py.method("h", "compute", py.name(function), *arguments))

    def _type_value(self, node: TypeLiteral) -> ast.expr:
        inner = (each for each in walk(node) if isinstance(each, TypeName))
        named = {each.name: each for each in inner if each.name.startswith("$")}
        if not named:
            schema = schema_of(node.type, self._unit.definitions)
            # A value that nests too deeply is built, and refused, when the program evaluates it.
            with suppress(RunError):
                return self._unit.keep(shared_json({"$lash_type": schema}))
        values: list[ast.expr] = [
            py.at(py.name(self.local(name[1:])), self.line(each)) for name, each in named.items()
        ]
        kept = self._unit.keep((node.type, self._unit.definitions))
        return py.call(
            "type_value", kept, ast.Dict([py.constant(name[1:]) for name in named], values)
        )

    # Operators: chains are left-associative and may be long, so they are built in a loop.

    def _chain(self, top: Binary) -> ast.expr:
        spine: list[Binary] = []
        at: Expression = top
        while isinstance(at, Binary) and len(spine) < _DEEPEST // 2:
            spine.append(at)
            at = at.left
        left = self.expr(at)
        for node in reversed(spine):
            left = py.at(self._binary(node, left), self.line(node))
        return left

    def _binary(self, node: Binary, left: ast.expr) -> ast.expr:
        operator = node.operator
        if operator in {"and", "or"}:
            first = (
                left
                if is_logical(node.left)
                else py.at(py.call("truth", left), self.line(node.left))
            )
            return ast.BoolOp(
                ast.And() if operator == "and" else ast.Or(), [first, self.test(node.right)]
            )
        left, right = self._kept((node.left, node.right), [left, self.expr(node.right)])
        if operator in {"==", "!="}:
            return self._equality(node, left, right)
        if operator in {"in", "not in"}:
            found = py.call("contains", py.name("m"), left, right)
            return (
                found if operator == "in" else ast.UnaryOp(ast.Not(), py.at(found, self.line(node)))
            )
        numbers = self.is_number(node.left) and self.is_number(node.right)
        if operator in _ORDER:
            native, helper = _ORDER[operator]
            return (
                py.compare(left, native(), right)
                if numbers
                else py.call(helper, py.name("m"), left, right)
            )
        if numbers and operator in _NATIVE:
            return ast.BinOp(left, _NATIVE[operator](), right)
        return py.call(_HELPERS[operator], py.name("m"), left, right)

    def _equality(self, node: Binary, left: ast.expr, right: ast.expr) -> ast.expr:
        same = node.operator == "=="
        sides = (node.left, node.right)
        # Python warns about `is` between literals, and treats constant tuples as literals.
        literals = all(isinstance(side, ast.Constant | ast.Tuple) for side in (left, right))
        if any(isinstance(side, Null) for side in sides) and not literals:
            return py.compare(left, ast.Is() if same else ast.IsNot(), right)
        native = (
            any(isinstance(side, Text) for side in sides)
            or all(self.is_number(side) for side in sides)
            or all(is_logical(side) for side in sides)
        )
        if native:
            return py.compare(left, ast.Eq() if same else ast.NotEq(), right)
        equal = py.call("same", py.name("m"), left, right)
        return equal if same else ast.UnaryOp(ast.Not(), py.at(equal, self.line(node)))

    # Comprehensions.

    def _comprehension(self, node: Comprehension) -> ast.expr:
        waits = id(node) in self._unit.waiting
        depth, self._depth = self._depth, 0
        self._definitions.append([])
        chunks = [node.clauses[at : at + _CLAUSES] for at in range(0, len(node.clauses), _CLAUSES)]
        functions = [self.fresh() for _ in chunks]
        inner = [
            self._clauses(node, chunk, following, waits)
            for chunk, following in zip(chunks, [*functions[1:], None], strict=True)
        ]
        definitions = self._definitions.pop()
        self._depth = depth
        later = list(zip(functions, inner, strict=True))[1:]
        if later:
            # Inner loops see the names of outer loops.
            names = [self.local(clause.name) for chunk in chunks for clause in chunk]
            bound: list[ast.stmt] = [py.assign(name, py.constant(None)) for name in names]
            definitions = [
                py.branch(py.constant(False), bound),
                *definitions,
                *(
                    py.function(
                        name, [], [ast.Nonlocal(sorted({*names})), *body], asynchronous=waits
                    )
                    for name, body in later
                ),
            ]
        steps: list[ast.stmt] = [
            py.assign("out", py.call("List")),
            py.assign("before", ast.Attribute(py.name("m"), "used", py.load)),
            *inner[0],
            ast.Assign([ast.Attribute(py.name("m"), "used", py.store)], py.name("before")),
            ast.Return(py.name("out")),
        ]
        function = py.function(functions[0], [], [*definitions, *steps], asynchronous=waits)
        self._definitions[-1].append(py.at(function, self.line(node)))
        value = py.call(functions[0])
        return py.awaited(value) if waits else value

    def _clauses(
        self,
        node: Comprehension,
        chunk: tuple[Clause, ...],
        following: str | None,
        waits: bool,
    ) -> list[ast.stmt]:
        """Return the loops of some clauses, with the loops of the next clauses or the element inside."""
        heads = [self._clause(clause, waits) for clause in chunk]
        if following is not None:
            onward: ast.expr = py.call(following)
            body: list[ast.stmt] = [ast.Expr(py.awaited(onward) if waits else onward)]
        else:
            item = self.expr(node.element)
            body = [ast.Expr(py.call("gather", py.name("m"), py.name("out"), item))]
        body = [py.at(each, self.line(node)) for each in body]
        for clause, (target, source, counted, test) in zip(
            reversed(chunk), reversed(heads), strict=True
        ):
            inner = body if test is None else [py.branch(test, body)]
            body = [ast.For(target, source, [*counted, *inner], [])]
            body += [self.let_go()] if self.is_kept(clause.source) else []
        return body

    def _clause(
        self, clause: Clause, waits: bool
    ) -> tuple[ast.Name, ast.expr, list[ast.stmt], ast.expr | None]:
        source = py.at(self.iterated(clause.source), self.line(clause.source))
        target = ast.Name(self.local(clause.name), py.store)
        tests = [self.test(condition) for condition in clause.conditions]
        test = ast.BoolOp(ast.And(), tests) if len(tests) > 1 else (tests[0] if tests else None)
        return target, source, self.count(1, clause, waits=waits), test

    def is_kept(self, source: Expression) -> bool:
        """Return whether the iterated value counts as memory while the loop runs: no variable holds it."""
        ranged = isinstance(source, CallBuiltin) and source.name == "range"
        return not ranged and id(source) in self._unit.busy and self._makes(source)

    def let_go(self) -> ast.stmt:
        """Stop counting the value that a loop iterated over."""
        return ast.Expr(py.method("m", "freed", py.constant(1), py.constant(None)))

    def iterated(self, source: Expression) -> ast.expr:
        """Return the value that a loop over the source iterates over."""
        if isinstance(source, CallBuiltin) and source.name == "range":
            return py.call("counted_range", py.name("m"), *map(self.expr, source.arguments))
        items = py.at(py.call("iterated", self.expr(source)), self.line(source))
        return py.method("m", "keep", items) if self.is_kept(source) else items

    def count(self, steps: int, node: Node, *, waits: bool | None = None) -> list[ast.stmt]:
        """Count steps, and check the bounds when the granted steps are used up."""
        left = ast.Attribute(py.name("m"), "left", py.store)
        spend = ast.AugAssign(left, ast.Sub(), py.constant(steps))
        asynchronous = not self._in_function if waits is None else waits
        tick: ast.expr = (
            py.awaited(py.method("h", "tick")) if asynchronous else py.method("m", "tick")
        )
        over = py.compare(ast.Attribute(py.name("m"), "left", py.load), ast.Lt(), py.constant(0))
        look = py.branch(over, [ast.Expr(tick)])
        return [py.at(statement, self.line(node)) for statement in (spend, look)]

    def effect(self, node: Expression) -> ast.expr:
        """Return the Python expression for a node that has an effect."""
        raise NotImplementedError
