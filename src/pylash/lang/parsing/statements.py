"""Parsing of statements and blocks.

1. Words such as `finish` are keywords only at the start of a statement, and not if they begin an
   assignment: the parser tries to read an assignment target, and goes back if there is none.
2. After a mistake parsing continues after the statement, or in its block if only its head is wrong.
   A statement that could not be parsed is not in the tree; a program with problems is never run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from pylash.lang import tree
from pylash.lang.parsing.cursor import Cursor, Mistake
from pylash.lang.parsing.expressions import read_expression, read_item, read_postfix
from pylash.lang.parsing.hints import BRACES, DESTRUCTURING, ONE_NAME
from pylash.lang.parsing.labels import check_labelled, read_label
from pylash.lang.parsing.recovery import find_block, keep, recovering
from pylash.lang.parsing.tokens import Token
from pylash.lang.tree import Block, Expression, Statement

MAX_ARMS = 200
VALUED: dict[str, Callable[[Expression], Statement]] = {
    "finish": tree.Finish,
    "print": tree.Print,
    "yield": tree.Yield,
    "wake": tree.Wake,
    "fail": tree.Fail,
}
MISPLACED = {
    ("process", "print"): "use `yield`, or `wake` to send a message to the session",
    ("main", "yield"): "only a process has events; use `print`",
    ("main", "wake"): "only a process wakes its session; use `print`",
    ("main", "fail"): "only a process fails; use `finish`",
}
HeadT = TypeVar("HeadT")


def read_block(cursor: Cursor) -> Block:
    """Read statements in braces."""
    brace = cursor.token
    if brace.text != "{":
        cursor.unexpected("`{`", _unbraced(cursor))
    outer = cursor.enter(brace)
    cursor.take()
    statements: list[Statement] = []
    while skip_ends(cursor) and not cursor.at("}"):
        read = recovering(cursor, _labelled)
        if read is not None:
            statements.append(read)
    if not cursor.at("}"):
        cursor.unexpected("`}`", f"the `{{` of line {brace.line} is never closed")
    cursor.take()
    cursor.leave(outer)
    return tuple(statements)


def _unbraced(cursor: Cursor) -> str | None:
    """Return a hint about a token where a block should begin."""
    found = cursor.token
    if found.text == "=":
        return "compare with `==`"
    if found.text in ("end of line", ":") or found.text in READERS:
        return BRACES
    if hint := cursor.hint():
        return hint
    index = cursor.index
    while cursor.tokens[index].text not in ("{", "end of line", "end of input"):
        index += 1
    braced = cursor.tokens[index].text == "{"
    return BRACES if found.kind in ("name", "word") and not braced else None


def read_headed_block(cursor: Cursor, head: Callable[[], HeadT]) -> tuple[HeadT | None, Block]:
    """Read a head and the block after it; the block is read even if the head has a mistake."""
    opened = cursor.open
    read = None
    try:
        read = head()
        if not cursor.at("{"):
            read_block(cursor)
    except Mistake as mistake:
        if not find_block(cursor):
            raise
        keep(cursor, mistake)
        cursor.open = opened
    return read, read_block(cursor)


def skip_ends(cursor: Cursor) -> bool:
    """Go to the next statement; return whether there is more text."""
    while cursor.at("end of line", ";"):
        cursor.take()
    return cursor.token.kind != "end of input"


def declares(cursor: Cursor) -> bool:
    """Whether a declaration begins here."""
    return cursor.at("type", "process", "fn") and cursor.following().kind == "name"


def _labelled(cursor: Cursor) -> Statement | None:
    """Read a statement of a block with its label."""
    if not cursor.at("@"):
        return read_statement(cursor)
    start = cursor.token
    label = read_label(cursor)
    check_labelled(cursor, start)
    statement = read_statement(cursor)
    return statement and cursor.node(start, tree.Labelled(label, statement))


def read_statement(cursor: Cursor) -> Statement | None:
    """Read a statement; return None if its head has a mistake."""
    start = cursor.token
    if start.kind == "name" and (assigned := _assignment(cursor)):
        return assigned
    if declares(cursor):
        message = f"`{start.text}` is declared at the top of a program, not in a block"
        cursor.fail("misplaced_declaration", message, start)
    reader = READERS.get(start.text)
    partners = PARTNERS.get(start.text)
    if reader and (partners is None or cursor.following().text in partners):
        return reader(cursor)
    if start.text == "let" and cursor.following().kind == "name":
        return _let(cursor)
    if not _begins_value(start):
        cursor.check_mark()
        cursor.unexpected("a statement")
    return cursor.node(start, tree.Evaluate(read_expression(cursor)))


def _begins_value(token: Token) -> bool:
    if token.kind == "mark":
        return token.text in ("(", "[", "{", "-", "!")
    return token.kind != "word" or token.text in ("null", "true", "false", "not", "await")


# Assignments.


def _assignment(cursor: Cursor) -> Statement | None:
    """Read an assignment; if there is none, go back and return None."""
    start = cursor.token
    if cursor.following().text not in ("=", ".", "["):
        return None
    back = (cursor.index, cursor.open, len(cursor.problems))
    try:
        name, steps = _target(cursor)
        found = cursor.at("=")
    except Mistake:
        found = False
    if found:
        cursor.take()
        return cursor.node(start, tree.Assign(name, steps, read_expression(cursor)))
    index, cursor.open, problems = back
    cursor.brackets.clear()
    del cursor.problems[problems:]
    cursor.go(index)
    return None


def _let(cursor: Cursor) -> Statement:
    start = cursor.take()
    name, steps = _target(cursor)
    cursor.expect("=", DESTRUCTURING if cursor.at(",") else None)
    return cursor.node(start, tree.Assign(name, steps, read_expression(cursor)))


def _target(cursor: Cursor) -> tuple[str, tuple[tree.FieldStep | tree.IndexStep, ...]]:
    name = cursor.name("a name").text
    steps: list[tree.FieldStep | tree.IndexStep] = []
    while cursor.at(".", "["):
        token = cursor.token
        if cursor.accept("."):
            field = cursor.field("a field")
            steps.append(cursor.node(field, tree.FieldStep(field.text)))
        else:
            index = cursor.bracketed("[", "]", lambda: read_item(cursor), single=True)
            steps.append(cursor.node(token, tree.IndexStep(index)))
    return name, tuple(steps)


# Statements that begin with a keyword.


def _if(cursor: Cursor) -> Statement | None:
    arms: list[tuple[Token, Expression | None, Block]] = []
    otherwise: Block = ()
    while True:
        start = cursor.take()
        if len(arms) == MAX_ARMS:
            message = f"this chain of `else if` has more than {MAX_ARMS} arms"
            cursor.fail("nesting_too_deep", message, start, "look the value up in a record instead")
        test, block = read_headed_block(cursor, lambda: read_item(cursor))
        arms.append((start, test, block))
        if not cursor.accept("else"):
            break
        if not cursor.at("if"):
            otherwise = _else(cursor)
            break
    chain: tree.If | None = None
    for start, test, block in reversed(arms):
        if test is None:
            return None
        chain = cursor.node(start, tree.If(test, block, otherwise))
        otherwise = (chain,)
    return chain


def _else(cursor: Cursor) -> Block:
    def head() -> None:
        if not cursor.at("{"):
            hint = BRACES if cursor.at("end of line", ":") else None
            cursor.unexpected("`{` or `if`", hint)

    return read_headed_block(cursor, head)[1]


def _for(cursor: Cursor) -> Statement | None:
    start = cursor.take()

    def head() -> tuple[str, Expression]:
        hint = "write `for item in items { … }`"
        name = cursor.name("the name of an item", hint).text
        cursor.expect("in", ONE_NAME if cursor.at(",") else hint)
        return name, read_expression(cursor)

    cursor.loops += 1
    read, body = read_headed_block(cursor, head)
    cursor.loops -= 1
    return read and cursor.node(start, tree.For(*read, body))


def _while(cursor: Cursor) -> Statement | None:
    start = cursor.take()
    cursor.loops += 1
    test, body = read_headed_block(cursor, lambda: read_item(cursor))
    cursor.loops -= 1
    return None if test is None else cursor.node(start, tree.While(test, body))


def _leap(cursor: Cursor) -> Statement:
    start = cursor.take()
    if not cursor.loops:
        message = f"`{start.text}` is only allowed in a loop"
        cursor.note("misplaced_construct", message, start)
    return cursor.node(start, tree.Break() if start.text == "break" else tree.Continue())


def _valued(cursor: Cursor) -> Statement:
    start = cursor.take()
    if hint := MISPLACED.get((cursor.body, start.text)):
        where = "outside of a process" if cursor.body == "main" else "in a process"
        message = f"`{start.text}` is not allowed {where}"
        cursor.note("misplaced_construct", message, start, hint)
    _need_value(cursor, start)
    return cursor.node(start, VALUED[start.text](read_expression(cursor)))


def _cancel(cursor: Cursor) -> Statement:
    start = cursor.take()
    _need_value(cursor, start)
    return cursor.node(start, tree.Cancel(read_item(cursor)))


def _need_value(cursor: Cursor, keyword: Token) -> None:
    if cursor.at("end of line", "end of input", ";", "}"):
        word = keyword.text
        message = f"`{word}` needs a value on its line"
        cursor.fail("missing_value", message, keyword, f"write `{word} null` if there is none")


def _sleep(cursor: Cursor) -> Statement:
    start = cursor.take()
    mode: Literal["for", "until"] = "for" if cursor.take().text == "for" else "until"
    return cursor.node(start, tree.Sleep(mode, read_item(cursor)))


def _send_signal(cursor: Cursor) -> Statement:
    start = cursor.take()
    cursor.take()
    handle = read_postfix(cursor)
    cursor.check_mark()
    named = cursor.token.kind == "name" and not cursor.at("with", "within")
    name = cursor.take().text if named else "signal"
    cursor.expect("with", "write `signal run handle name with value`")
    return cursor.node(start, tree.SendSignal(handle, name, read_item(cursor)))


READERS: dict[str, Callable[[Cursor], Statement | None]] = {
    "if": _if,
    "for": _for,
    "while": _while,
    "break": _leap,
    "continue": _leap,
    "cancel": _cancel,
    "sleep": _sleep,
    "signal": _send_signal,
    **dict.fromkeys(VALUED, _valued),
}
# Words that are keywords only before these tokens.
PARTNERS = {"sleep": ("for", "until"), "signal": ("run",)}
