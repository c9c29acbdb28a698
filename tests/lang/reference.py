"""A second, naive implementation of the pure part of Lashlang, which follows the specification and copies every value.

It walks the linked tree. Nothing is shared with the engine but the tree itself.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pylash.lang import tree

FUEL = 20_000
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Wrong(Exception):
    """A run error, by its kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class OutOfFuel(Exception):
    """It takes too long to be worth comparing."""


class Leap(Exception):
    """`break`, `continue` or `finish`."""

    def __init__(self, word: str, value: Any = None) -> None:
        super().__init__(word)
        self.word = word
        self.value = value


def kind(value: Any) -> str:
    names = {type(None): "null", bool: "bool", float: "number", str: "string", list: "list"}
    return {**names, tuple: "tuple", dict: "record"}[type(value)]


def scalar(value: Any) -> bool:
    return kind(value) in ("null", "bool", "number", "string")


def sequence(value: Any) -> bool:
    return kind(value) in ("list", "tuple")


def truth(value: Any) -> bool:
    return bool(value) and not (type(value) is float and math.isnan(value))


def equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if type(a) is dict:
        return set(a) == set(b) and all(equal(a[key], b[key]) for key in a)
    return bool(a == b)


def number(value: Any) -> float:
    if type(value) is float:
        return value
    if value is None or type(value) is bool:
        return float(bool(value))
    if type(value) is str:
        if value.strip() == "":
            return 0.0
        if NUMBER.fullmatch(value.strip()):
            return float(value.strip())
    raise Wrong("expected_number")


def number_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    digits = format(Decimal(repr(value)), "f")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def text(value: Any) -> str:
    if type(value) is str:
        return value
    if type(value) is float:
        return number_text(value)
    if type(value) is tuple:
        items = [quoted(item) if type(item) is str else text(item) for item in value]
        return "(" + ", ".join(items) + (",)" if len(items) == 1 else ")")
    return compact(value)


def quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def compact(value: Any) -> str:
    if value is None or type(value) is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if type(value) is float:
        return number_text(value) if math.isfinite(value) else "null"
    if type(value) is str:
        return quoted(value)
    if type(value) is dict:
        return "{" + ",".join(f"{quoted(k)}:{compact(value[k])}" for k in sorted(value)) + "}"
    return "[" + ",".join(compact(item) for item in value) + "]"


def plain(value: Any) -> Any:
    """As JSON."""
    if type(value) is float:
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) <= 2**53 else value
    if sequence(value):
        return [plain(item) for item in value]
    return {k: plain(v) for k, v in value.items()} if type(value) is dict else value


def depth(value: Any) -> int:
    inner = value.values() if type(value) is dict else value if sequence(value) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def leaving(value: Any) -> Any:
    if depth(value) > 64:
        raise Wrong("value_too_deep")
    return copy.deepcopy(value)


# Operators.


def add(a: Any, b: Any) -> Any:
    if type(a) is str or type(b) is str:
        return text(a) + text(b)
    if sequence(a) and sequence(b):
        if type(a) is not type(b):
            raise Wrong("cannot_concatenate")
        return a + b
    return number(a) + number(b)


def divide(a: float, b: float) -> float:
    if b == 0:
        return (
            math.nan
            if a == 0 or math.isnan(a)
            else math.copysign(math.inf, a) * math.copysign(1, b)
        )
    return a / b


def remainder(a: float, b: float) -> float:
    return math.nan if b == 0 or math.isinf(a) else math.fmod(a, b)


def within(x: Any, y: Any) -> bool:
    if y is None:
        return False
    if sequence(y):
        return any(equal(x, item) for item in y)
    if type(x) is str and type(y) in (str, dict):
        return x in y
    raise Wrong("invalid_membership")


def binary(operator: str, a: Any, b: Any) -> Any:  # noqa: PLR0911 (a line a form)
    match operator:
        case "==" | "!=":
            return equal(a, b) == (operator == "==")
        case "in" | "not in":
            return within(a, b) == (operator == "in")
        case "+":
            return add(a, b)
        case "<" | "<=" | ">" | ">=":
            if type(a) is not str or type(b) is not str:
                a, b = number(a), number(b)
            return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[operator]
    a, b = number(a), number(b)
    match operator:
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return divide(a, b)
    return remainder(a, b)


def field(value: Any, name: str) -> Any:
    if value is None:
        return None
    if type(value) is not dict:
        raise Wrong("cannot_read_field")
    return value.get(name)


def position(at: Any) -> int:
    if type(at) is not float or not at.is_integer():
        raise Wrong("index_not_integer")
    return int(at)


def key_of(at: Any) -> str:
    if not scalar(at):
        raise Wrong("cannot_index")
    return text(at)


def index(value: Any, at: Any) -> Any:
    if value is None:
        return None
    if sequence(value) or type(value) is str:
        found = position(at)
        return value[found] if -len(value) <= found < len(value) else None
    if type(value) is dict:
        return value.get(key_of(at))
    raise Wrong("cannot_index")


def unwrap(value: Any) -> Any:
    if type(value) is dict and value.get("ok") is False:
        raise Wrong("unwrap_failed")
    if type(value) is dict and value.get("ok") is True and "value" in value:
        return value["value"]
    raise Wrong("not_a_result")


def store(root: Any, steps: list[tuple[bool, Any]], value: Any) -> None:
    """Change the root at the end of the steps."""
    at = root
    for number_, (is_field, wanted) in enumerate(steps):
        last = number_ == len(steps) - 1
        where: Any
        if type(at) is dict:
            where = wanted if is_field else key_of(wanted)
            if not last and where not in at:
                raise Wrong("missing_assignment_path")
        elif type(at) is list and not is_field:
            where = position(wanted)
            if not -len(at) <= where < len(at):
                raise Wrong("index_out_of_bounds")
        else:
            raise Wrong("immutable_value" if type(at) is tuple else "cannot_assign")
        if last:
            at[where] = value
        else:
            at = at[where]


class Interpreter:
    """Runs main of a linked module; `echo` and `boom` are the operations of the world."""

    def __init__(
        self,
        module: tree.Module,
        variables: dict[str, Any],
        builtins: dict[str, Callable[..., Any]],
    ) -> None:
        self.builtins = builtins
        self.functions = {each.name: each for each in module.functions}
        self.main = module.main
        self.variables = copy.deepcopy(variables)
        self.scope = self.variables
        self.prints: list[Any] = []
        self.fuel = FUEL
        self.frames = 0

    def run(self) -> Any:
        """Return ("finish", value), ("continue", None) or ("error", kind)."""
        try:
            self.block(self.main)
        except Leap as leap:
            return ("finish", plain(leap.value))
        except Wrong as wrong:
            return ("error", wrong.kind)
        return ("continue", None)

    # Statements.

    def block(self, block: tree.Block) -> Any:
        value = None
        for statement in block:
            value = self.statement(statement)
        return value

    def burn(self) -> None:
        self.fuel -= 1
        if self.fuel < 0:
            raise OutOfFuel

    def bind(self, name: str, value: Any) -> None:
        self.scope[name] = leaving(value)

    def statement(self, node: tree.Statement) -> Any:  # noqa: C901, PLR0912
        self.burn()
        match node:
            case tree.Assign(name, (), value):
                self.bind(name, self.value(value))
            case tree.Assign(name, steps, value):
                path = [
                    (True, step.name)
                    if isinstance(step, tree.FieldStep)
                    else (False, self.value(step.index))
                    for step in steps
                ]
                stored = self.value(value)
                if name not in self.scope:
                    raise Wrong("unknown_name")
                changed = copy.deepcopy(self.scope[name])
                store(changed, path, copy.deepcopy(stored))
                self.bind(name, changed)
            case tree.If(test, then, otherwise):
                return self.block(then if truth(self.value(test)) else otherwise)
            case tree.For(name, source, body):
                self.loop(name, self.items(source), body)
            case tree.While(test, body):
                while truth(self.value(test)):
                    self.burn()
                    if self.iteration(body):
                        break
            case tree.Break():
                raise Leap("break")
            case tree.Continue():
                raise Leap("continue")
            case tree.Finish(value):
                raise Leap("finish", leaving(self.value(value)))
            case tree.Print(value):
                self.prints.append(plain(leaving(self.value(value))))
            case tree.Evaluate(value):
                return self.value(value)
            case tree.Labelled(_, statement):
                return self.statement(statement)
            case _:
                raise NotImplementedError(type(node).__name__)
        return None

    def iteration(self, body: tree.Block) -> bool:
        """Run the body of a loop; return whether the loop ends."""
        try:
            self.block(body)
        except Leap as leap:
            if leap.word == "finish":
                raise
            return leap.word == "break"
        return False

    def items(self, source: tree.Expression) -> list[Any]:
        items = self.value(source)
        if not sequence(items):
            raise Wrong("not_iterable")
        return list(copy.deepcopy(items))

    def loop(self, name: str, items: list[Any], body: tree.Block) -> None:
        bound, before = name in self.scope, self.scope.get(name)
        try:
            for item in items:
                self.burn()
                self.bind(name, item)
                if self.iteration(body):
                    break
        finally:
            self.scope.pop(name, None)
            if bound:
                self.scope[name] = before

    # Expressions.

    def value(self, node: tree.Expression) -> Any:
        self.burn()
        return copy.deepcopy(self.evaluated(node))

    def values(self, nodes: tuple[tree.Expression, ...]) -> list[Any]:
        return [self.value(node) for node in nodes]

    def evaluated(self, node: tree.Expression) -> Any:  # noqa: C901, PLR0911, PLR0912
        match node:
            case tree.Null():
                return None
            case tree.Bool(value) | tree.Number(value) | tree.Text(value):
                return value
            case tree.Variable(name):
                if name not in self.scope:
                    raise Wrong("unknown_name")
                return self.scope[name]
            case tree.ListLiteral(items):
                return self.values(items)
            case tree.TupleLiteral(items):
                return tuple(self.values(items))
            case tree.RecordLiteral(fields):
                return {each.key: self.value(each.value) for each in fields}
            case tree.Field(base, name):
                return field(self.value(base), name)
            case tree.Index(base, at):
                return index(*self.values((base, at)))
            case tree.Unwrap(value):
                return unwrap(self.value(value))
            case tree.Group(value):
                return self.value(value)
            case tree.Negate(value):
                return -number(self.value(value))
            case tree.Not(value):
                return not truth(self.value(value))
            case tree.Binary("and", left, right):
                return truth(self.value(left)) and truth(self.value(right))
            case tree.Binary("or", left, right):
                return truth(self.value(left)) or truth(self.value(right))
            case tree.Binary(operator, left, right):
                return binary(operator, *self.values((left, right)))
            case tree.Conditional(test, then, otherwise):
                return self.value(then if truth(self.value(test)) else otherwise)
            case tree.Comprehension(element, clauses):
                return list(self.comprehended(element, clauses))
            case tree.CallBuiltin(name, arguments):
                return self.builtins[name](*self.values(arguments))
            case tree.CallFunction(name, arguments):
                return self.called(self.functions[name], self.values(arguments))
            case tree.Operation(_, name, arguments):
                return self.operation(name, self.values(arguments))
            case tree.Await(
                tree.ListLiteral() | tree.TupleLiteral() | tree.RecordLiteral() as shape
            ):
                return self.settled(shape, iter(self.leaves(shape)))
            case tree.Await(value):
                return leaving(self.value(value))
            case _:
                raise NotImplementedError(type(node).__name__)

    def comprehended(self, element: tree.Expression, clauses: tuple[tree.Clause, ...]) -> Any:
        if not clauses:
            yield self.value(element)
            return
        clause = clauses[0]
        bound, before = clause.name in self.scope, self.scope.get(clause.name)
        for item in self.items(clause.source):
            self.burn()
            self.scope[clause.name] = item
            if all(truth(self.value(test)) for test in clause.conditions):
                yield from self.comprehended(element, clauses[1:])
        self.scope.pop(clause.name, None)
        if bound:
            self.scope[clause.name] = before

    def called(self, function: tree.FunctionDeclaration, arguments: list[Any]) -> Any:
        outer = self.scope
        names = [parameter.name for parameter in function.parameters]
        self.frames += 1
        if self.frames > 1024:
            raise Wrong("frame_depth_exceeded")
        self.scope = {name: leaving(value) for name, value in zip(names, arguments, strict=True)}
        try:
            return leaving(self.block(function.body))
        finally:
            self.scope = outer
            self.frames -= 1

    # Operations and aggregates.

    def operation(self, name: str, arguments: list[Any]) -> Any:
        one = len(arguments) == 1 and type(arguments[0]) is dict
        payload = leaving(arguments[0] if one else {"args": arguments})
        if name == "boom":
            return {"ok": False, "error": "boom"}
        return {"ok": True, "value": entered(plain(payload))}

    def leaves(self, node: tree.Expression) -> list[Any]:
        match node:
            case tree.ListLiteral(items) | tree.TupleLiteral(items):
                return [leaf for item in items for leaf in self.leaves(item)]
            case tree.RecordLiteral(fields):
                return [leaf for each in fields for leaf in self.leaves(each.value)]
        while isinstance(node, tree.Unwrap):
            node = node.value
        return [self.value(node)]

    def settled(self, node: tree.Expression, leaves: Any) -> Any:
        match node:
            case tree.ListLiteral(items):
                return [self.settled(item, leaves) for item in items]
            case tree.TupleLiteral(items):
                return tuple(self.settled(item, leaves) for item in items)
            case tree.RecordLiteral(fields):
                return {each.key: self.settled(each.value, leaves) for each in fields}
            case tree.Unwrap(value):
                return unwrap(self.settled(value, leaves))
        return next(leaves)


def entered(data: Any) -> Any:
    """The value of JSON."""
    if isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, list):
        return [entered(item) for item in data]
    return {k: entered(v) for k, v in data.items()} if isinstance(data, dict) else data
