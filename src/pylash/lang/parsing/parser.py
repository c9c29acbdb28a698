"""Parsing of whole programs.

1. A mistake is returned as a problem with a position, never raised; all problems of a text are returned
   together, and the first is the one that the specification names.
2. If there are lexical problems, only they are reported: the meaning of the other tokens is not certain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from pylash.lang import tree
from pylash.lang.parsing.cursor import Cursor, Mistake
from pylash.lang.parsing.declared_types import read_fields, read_type
from pylash.lang.parsing.labels import check_labelled, read_label
from pylash.lang.parsing.recovery import recovering
from pylash.lang.parsing.statements import (
    declares,
    read_headed_block,
    read_statement,
    skip_ends,
)
from pylash.lang.parsing.tokens import Comment, scan
from pylash.lang.problems import LashlangError, Problem

HeadT = TypeVar("HeadT")


class Parsed(NamedTuple):
    """A parsed program. If there are problems, `program` contains the parts that could be parsed."""

    program: tree.Program
    places: tree.Places
    problems: tuple[Problem, ...]
    source: str


def parse(source: str) -> Parsed:
    """Parse a program."""
    cursor, program, _ = read_program(source)
    return Parsed(program, cursor.places, tuple(cursor.problems), source)


def read_program(source: str) -> tuple[Cursor, tree.Program, list[Comment]]:
    """Parse a program; return the cursor and the comments, too."""
    tokens, comments, problems = scan(source)
    cursor = Cursor(source, tokens)
    cursor.problems.extend(problems)
    items: list[tree.Declaration | tree.Statement] = []
    while not problems and skip_ends(cursor):
        if cursor.at("}"):
            _stray(cursor)
            continue
        read = recovering(cursor, _item)
        if read is not None:
            items.append(read)
    return cursor, cursor.node(tokens[0], tree.Program(tuple(items))), comments


def parse_type(text: str) -> tree.Type:
    """Parse a text that is a single type.

    Raises:
        LashlangError: The text is not a type.

    """
    scanned = scan(text)
    problems = scanned.problems
    if not problems:
        cursor = Cursor(text, [token for token in scanned.tokens if token.kind != "end of line"])
        try:
            found = read_type(cursor)
            if cursor.token.kind == "end of input" and not cursor.problems:
                return found
            if not cursor.problems:
                cursor.unexpected("the end of the type")
        except Mistake as mistake:
            cursor.add(mistake.problem)
        problems = cursor.problems
    raise LashlangError(tuple(problems), text)


def _stray(cursor: Cursor) -> None:
    """Skip an unmatched closing brace; after a problem it probably closes a block that was not parsed."""
    if not cursor.problems:
        message = "expected a statement, found `}`"
        cursor.note("unexpected_token", message, cursor.token, "no block is open here")
    cursor.take()


def _item(cursor: Cursor) -> tree.Declaration | tree.Statement | None:
    start = cursor.token
    label = None
    if cursor.at("@"):
        label = read_label(cursor)
        check_labelled(cursor, start)
    if declares(cursor):
        match cursor.token.text:
            case "type":
                return _type(cursor)
            case "process":
                return _process(cursor, label)
            case _:
                return _function(cursor)
    statement = read_statement(cursor)
    if statement and label:
        return cursor.node(start, tree.Labelled(label, statement))
    return statement


def _type(cursor: Cursor) -> tree.Declaration:
    start = cursor.take()
    name = cursor.take().text
    cursor.expect("=")
    return cursor.node(start, tree.TypeDeclaration(name, read_type(cursor)))


Signature = tuple[tuple[tree.Parameter, ...], tuple[tree.Parameter, ...], tree.Type | None]


def _process(cursor: Cursor, label: tree.Label | None) -> tree.Declaration | None:
    start = cursor.take()
    name = cursor.take().text

    def head() -> Signature:
        parameters = read_fields(cursor, "(", ")", "a parameter")
        signals: tuple[tree.Parameter, ...] = ()
        if cursor.accept("signals"):
            signals = read_fields(cursor, "{", "}", "a signal")
        return parameters, signals, read_type(cursor) if cursor.accept("->") else None

    read, body = _declared_body(cursor, "process", head)
    if read is None:
        return None
    parameters, signals, result = read
    declared = tree.ProcessDeclaration(name, parameters, signals, result, label, body)
    return cursor.node(start, declared)


def _function(cursor: Cursor) -> tree.Declaration | None:
    start = cursor.take()
    name = cursor.take().text

    def head() -> tuple[tuple[tree.Parameter, ...], tree.Type]:
        parameters = read_fields(cursor, "(", ")", "a parameter")
        cursor.expect("->", "every function declares its return type: `-> any`")
        return parameters, read_type(cursor)

    read, body = _declared_body(cursor, "function", head)
    return read and cursor.node(start, tree.FunctionDeclaration(name, *read, body))


def _declared_body(
    cursor: Cursor, kind: str, head: Callable[[], HeadT]
) -> tuple[HeadT | None, tree.Block]:
    cursor.body = kind
    read, body = read_headed_block(cursor, head)
    cursor.body = "main"
    return read, body
