"""Recovery after a mistake, so that the next reported problem is not a consequence of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pylash.lang import tree
from pylash.lang.parsing.cursor import Cursor, Mistake
from pylash.lang.parsing.tokens import Token

PAIRS = {"(": ")", "[": "]", "{": "}"}
CLOSING = (")", "]", "}")
ReadT = TypeVar("ReadT")


def recovering(cursor: Cursor, read: Callable[[Cursor], ReadT]) -> ReadT | None:
    """Read a statement and check that it ends; after a mistake record the problem and skip the statement."""
    start = cursor.token
    state = (cursor.open, cursor.loops, cursor.body)
    try:
        found = read(cursor)
        if found and not (_closes_block(found) or _ended(cursor)):
            cursor.unended()
    except Mistake as mistake:
        keep(cursor, mistake)
        cursor.open, cursor.loops, cursor.body = state
        _skip_statement(cursor, start)
        return None
    return found


def _closes_block(read: object) -> bool:
    """Whether this node ends with the brace of a block, after which anything may follow."""
    if isinstance(read, tree.Labelled):
        read = read.statement
    blocked = (tree.If, tree.For, tree.While, tree.ProcessDeclaration, tree.FunctionDeclaration)
    return isinstance(read, blocked)


def _ended(cursor: Cursor) -> bool:
    # A brace ends a statement only if it closes an open block.
    return cursor.at("end of line", "end of input", ";") or (cursor.at("}") and cursor.open > 0)


def keep(cursor: Cursor, mistake: Mistake) -> None:
    """Record the problem, unless an earlier one caused it."""
    if not (cursor.problems and cursor.token.kind == "end of input"):
        cursor.add(mistake.problem)


def find_block(cursor: Cursor) -> bool:
    """Go to the brace at the end of this line or the start of the next; return whether there is one."""
    tokens, index = cursor.tokens, cursor.index
    while tokens[index].kind not in ("end of line", "end of input"):
        index += 1
    if index > cursor.index and tokens[index - 1].text == "{":
        index -= 1
    elif tokens[index].kind == "end of line" and tokens[index + 1].text == "{":
        index += 1
    else:
        return False
    cursor.brackets.clear()
    cursor.go(index)
    return True


def _skip_statement(cursor: Cursor, start: Token) -> None:
    """Go to the end of the statement that began at `start`, past all brackets that it opened."""
    tokens, index = cursor.tokens, cursor.index
    opened = [bracket.text for bracket in cursor.brackets]
    # A line that begins a new statement ends brackets that were left open; blocks are skipped whole.
    forgotten = len(opened)
    cursor.brackets.clear()
    while (token := tokens[index]).kind != "end of input":
        if not opened and token.text in ("end of line", ";", "}"):
            break
        if token.text in PAIRS:
            opened.append(token.text)
        elif token.text in CLOSING:
            if token.text == "}" and "{" not in opened:
                break
            _close(opened, token.text)
        in_block = len(opened) > forgotten and opened[-1] == "{"
        if token.kind == "end of line" and not in_block and _begins(tokens[index + 1], start):
            break
        index += 1
    cursor.go(index)


def _close(opened: list[str], closing: str) -> None:
    """Close the innermost bracket of this kind, and all brackets opened inside it."""
    while closing in [PAIRS[opening] for opening in opened]:
        if PAIRS[opened.pop()] == closing:
            break


def _begins(token: Token, start: Token) -> bool:
    """Whether a token at the start of a line belongs to another statement than the one begun at `start`."""
    return token.column <= start.column and token.text not in CLOSING
