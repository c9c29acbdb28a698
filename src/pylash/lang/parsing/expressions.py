"""Parsing of expressions.

1. Operators are read with an explicit stack, so only brackets, arms and operands of prefix operators
   use Python's stack.
2. `await x?` unwraps the awaited result: question marks at the end of an operand apply to its `await`.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from pylash.lang import tree
from pylash.lang.parsing.cursor import MAX_OPERATORS, Cursor
from pylash.lang.parsing.declared_types import read_key, read_record_type, text_of
from pylash.lang.parsing.hints import ONE_NAME
from pylash.lang.parsing.tokens import MAX_SHOWN, Token
from pylash.lang.tree import Expression, Operator

LOWEST, NEGATION, COMPARISON, SUM = 1, 3, 4, 5
PRECEDENCE = (
    {"or": 1, "||": 1, "and": 2, "&&": 2}
    | dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in", "not in"), COMPARISON)
    | {"+": SUM, "-": SUM}
    | {"*": 6, "/": 6, "%": 6}
)
SPELLINGS = {"||": "or", "&&": "and"}


class Pending(NamedTuple):
    """A left operand and an operator, before the right operand is read."""

    start: Token
    left: Expression
    operator: Operator
    precedence: int


def read_expression(cursor: Cursor) -> Expression:
    """Read an expression; with commas it is a tuple."""
    start = cursor.token
    cursor.operators = 0
    first = _item(cursor)
    if not cursor.at(","):
        return first
    items = [first]
    while cursor.accept(","):
        items.append(_item(cursor))
    return cursor.node(start, tree.TupleLiteral(tuple(items)))


def read_item(cursor: Cursor) -> Expression:
    """Read an expression that ends at a comma."""
    cursor.operators = 0
    return _item(cursor)


def _item(cursor: Cursor) -> Expression:
    start = cursor.token
    test = _operation(cursor, LOWEST)
    cursor.check_mark()
    if not (cursor.at("?") and cursor.token.conditional):
        return test
    cursor.count(cursor.token)
    then = _arm(cursor)
    if not cursor.at(":"):
        cursor.unexpected("`:`")
    otherwise = _arm(cursor)
    return cursor.node(start, tree.Conditional(test, then, otherwise))


def _arm(cursor: Cursor) -> Expression:
    outer = cursor.enter(cursor.token)
    cursor.take()
    arm = _item(cursor)
    cursor.leave(outer)
    return arm


def _operation(cursor: Cursor, lowest: int) -> Expression:
    """Read operands and binary operators that bind at least as tightly as that."""
    pending: list[Pending] = []
    while True:
        start = cursor.token
        at_least = pending[-1].precedence + 1 if pending else lowest
        operand = _negation(cursor) if at_least <= NEGATION and cursor.at("not") else _unary(cursor)
        operator = _operator(cursor)
        precedence = PRECEDENCE[operator] if operator else 0
        while pending and pending[-1].precedence >= precedence:
            start, left, before, _ = pending.pop()
            operand = cursor.node(start, tree.Binary(before, left, operand))
        if operator is None or precedence < lowest:
            return operand
        cursor.count(cursor.token)
        cursor.take()
        if operator == "not in":
            cursor.take()
        spelled = cast("Operator", SPELLINGS.get(operator, operator))
        pending.append(Pending(start, operand, spelled, precedence))


def _operator(cursor: Cursor) -> str | None:
    text = cursor.token.text
    if text == "not" and _after(cursor).text == "in":
        return "not in"
    return text if text in PRECEDENCE else None


def _after(cursor: Cursor) -> Token:
    """Return the token after the next one; ignored line breaks are skipped."""
    index = cursor.index + 1
    while cursor.brackets and cursor.tokens[index].kind == "end of line":
        index += 1
    return cursor.tokens[index]


def _negation(cursor: Cursor) -> Expression:
    start = cursor.token
    cursor.count(start)
    outer = cursor.enter(start)
    cursor.take()
    value = _operation(cursor, NEGATION)
    cursor.leave(outer)
    return cursor.node(start, tree.Not(value))


def _unary(cursor: Cursor) -> Expression:
    return _prefixed(cursor, awaited=False)[0]


def _prefixed(cursor: Cursor, *, awaited: bool) -> tuple[Expression, int]:
    """Read an operand; if it is awaited, also return how many question marks at its end apply to the `await`."""
    start = cursor.token
    if start.text not in ("-", "!", "await"):
        return _operand(cursor, awaited=awaited)
    cursor.count(start)
    outer = cursor.enter(start)
    cursor.take()
    value, marks = _prefixed(cursor, awaited=awaited or start.text == "await")
    cursor.leave(outer)
    if start.text == "await":
        value = cursor.node(start, tree.Await(value))
        return (value, marks) if awaited else (_unwrapped(cursor, start, value, marks), 0)
    sign = tree.Negate(value) if start.text == "-" else tree.Not(value)
    return cursor.node(start, sign), marks


def _operand(cursor: Cursor, *, awaited: bool) -> tuple[Expression, int]:
    start = cursor.token
    if start.text == "wait" and cursor.following().text == "signal":
        return _wait(cursor), 0
    value, marks = _postfixed(cursor)
    return (value, marks) if awaited else (_unwrapped(cursor, start, value, marks), 0)


def _unwrapped(cursor: Cursor, start: Token, value: Expression, marks: int) -> Expression:
    for _ in range(marks):
        value = cursor.node(start, tree.Unwrap(value))
    return value


def _wait(cursor: Cursor) -> Expression:
    start = cursor.take()
    cursor.take()
    if cursor.body == "main":
        cursor.note(
            "misplaced_construct",
            "`wait signal` is only allowed in a process",
            start,
            width=len("wait signal"),
        )
    named = cursor.token.kind == "name" and not cursor.at("within", "with")
    name = cursor.take().text if named else "signal"
    if not cursor.at("within"):
        return cursor.node(start, tree.WaitSignal(name, None))
    outer = cursor.enter(cursor.token)
    cursor.take()
    within = _operation(cursor, SUM)
    cursor.leave(outer)
    return cursor.node(start, tree.WaitSignal(name, within))


def read_postfix(cursor: Cursor) -> Expression:
    """Read an operand with its fields, indexes, calls and question marks, but without operators."""
    cursor.operators = 0
    start = cursor.token
    value, marks = _postfixed(cursor)
    return _unwrapped(cursor, start, value, marks)


def _postfixed(cursor: Cursor) -> tuple[Expression, int]:
    """Read an operand with its steps; the question marks at its end are counted, not applied."""
    start = cursor.token
    value = _primary(cursor)
    marks = 0
    while True:
        token = cursor.token
        if token.text == "?" and not token.spaced:
            cursor.count(token)
            cursor.unwrap = cursor.take()
            marks += 1
        elif token.text in (".", "["):
            value = _unwrapped(cursor, start, value, marks)
            marks = 0
            cursor.count(token)
            value = _step(cursor, start, value)
        else:
            return value, marks


def _step(cursor: Cursor, start: Token, base: Expression) -> Expression:
    if cursor.at("["):
        bracket = cursor.token
        index = cursor.bracketed("[", "]", lambda: _index(cursor, start, bracket), single=True)
        return cursor.node(start, tree.Index(base, index))
    cursor.take()
    name = cursor.field("a field").text
    if cursor.at("("):
        return cursor.node(start, tree.Method(base, name, _arguments(cursor)))
    return cursor.node(start, tree.Field(base, name))


def _index(cursor: Cursor, start: Token, bracket: Token) -> Expression:  # noqa: RET503 (`unexpected` never returns)
    index = None if cursor.at(":") else read_item(cursor)
    if index is not None and not cursor.at(":"):
        return index
    closing = cursor.index
    while cursor.tokens[closing].text not in ("]", "end of line", "end of input"):
        closing += 1
    base = cursor.source[start.start : bracket.start]
    first = cursor.source[bracket.end : cursor.token.start].strip() or "0"
    last = cursor.source[cursor.token.end : cursor.tokens[closing].start].strip() or "null"
    written = f"slice({base}, {first}, {last})"
    hint = f"write `{written if len(written) <= MAX_SHOWN else 'slice(items, from, to)'}`"
    cursor.unexpected("`]`" if index else "a value", hint)


def _arguments(cursor: Cursor) -> tuple[Expression, ...]:
    return cursor.bracketed("(", ")", lambda: cursor.listed(")", lambda: _item(cursor)))


def _primary(cursor: Cursor) -> Expression:
    start = cursor.token
    match start.kind:
        case "number":
            cursor.take()
            return cursor.node(start, tree.Number(float(start.value)))
        case "string":
            cursor.take()
            return cursor.node(start, tree.Text(text_of(start)))
        case "name":
            return _named(cursor)
        case _:
            return _marked(cursor)


def _marked(cursor: Cursor) -> Expression:  # noqa: RET503 (`unexpected` never returns)
    start = cursor.token
    match start.text:
        case "null":
            cursor.take()
            return cursor.node(start, tree.Null())
        case "true" | "false":
            cursor.take()
            return cursor.node(start, tree.Bool(start.text == "true"))
        case "(":
            return _parenthesised(cursor)
        case "[":
            return _list(cursor)
        case "{":
            fields = cursor.bracketed("{", "}", lambda: cursor.listed("}", lambda: _field(cursor)))
            return cursor.node(start, tree.RecordLiteral(fields))
        case _:
            cursor.check_mark()
            cursor.unexpected("a value")


def _named(cursor: Cursor) -> Expression:
    start = cursor.token
    following = cursor.following()
    if start.text == "start" and following.kind == "name":
        return _start(cursor)
    if start.text == "Type" and following.text == "{":
        cursor.take()
        return cursor.node(start, tree.TypeLiteral(read_record_type(cursor)))
    cursor.take()
    if cursor.at("("):
        cursor.count(cursor.token)
        return cursor.node(start, tree.Call(start.text, _arguments(cursor)))
    return cursor.node(start, tree.Name(start.text))


def _start(cursor: Cursor) -> Expression:
    start = cursor.take()
    process = cursor.take().text

    def argument() -> tree.Argument:
        token = cursor.token
        hint = f"arguments of a process have names: `start {process}(name: value)`"
        if token.kind not in ("name", "word"):
            cursor.unexpected("the name of an argument", hint)
        cursor.take()
        cursor.expect(":", hint)
        return cursor.node(token, tree.Argument(token.text, _item(cursor)))

    if cursor.at("("):
        cursor.count(cursor.token)
    arguments = cursor.bracketed("(", ")", lambda: cursor.listed(")", argument))
    return cursor.node(start, tree.Start(process, arguments))


def _field(cursor: Cursor) -> tree.RecordField:
    token = cursor.token
    key = read_key(cursor, "a field")
    cursor.expect(":", "fields of a record are written `name: value`")
    return cursor.node(token, tree.RecordField(key, _item(cursor)))


def _parenthesised(cursor: Cursor) -> Expression:
    start = cursor.token

    def inside() -> tuple[list[Expression], bool]:
        items: list[Expression] = []
        comma = False
        while not cursor.at(")"):
            items.append(_item(cursor))
            comma = cursor.accept(",") is not None
            if not comma:
                break
        return items, comma

    items, comma = cursor.bracketed("(", ")", inside)
    if len(items) != 1 or comma:
        return cursor.node(start, tree.TupleLiteral(tuple(items)))
    value = items[0]
    return cursor.node(start, tree.Group(value)) if isinstance(value, tree.Unwrap) else value


def _list(cursor: Cursor) -> Expression:
    start = cursor.token

    def inside() -> tree.ListLiteral | tree.Comprehension:
        if cursor.at("]"):
            return tree.ListLiteral(())
        first = read_item(cursor)
        if cursor.at("for"):
            return tree.Comprehension(first, _clauses(cursor))
        rest = cursor.listed("]", lambda: _item(cursor)) if cursor.accept(",") else ()
        return tree.ListLiteral((first, *rest))

    return cursor.node(start, cursor.bracketed("[", "]", inside))


def _clauses(cursor: Cursor) -> tuple[tree.Clause, ...]:
    clauses: list[tree.Clause] = []
    while cursor.at("for"):
        start = cursor.take()
        name = cursor.name("the name of an item").text
        cursor.expect("in", ONE_NAME if cursor.at(",") else None)
        source = read_item(cursor)
        conditions: list[Expression] = []
        while cursor.accept("if"):
            conditions.append(read_item(cursor))
        clauses.append(cursor.node(start, tree.Clause(name, source, tuple(conditions))))
        if len(clauses) > MAX_OPERATORS:
            message = f"this comprehension has more than {MAX_OPERATORS} clauses"
            cursor.fail("nesting_too_deep", message, start)
    return tuple(clauses)
