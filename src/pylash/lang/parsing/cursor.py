"""What all of the parser stands on: the place in the tokens, the limits, and the problems so far.

1. The first mistake of a statement ends it (`Mistake`); whoever reads statements goes on with the next.
   A misplaced construct ends nothing: it is noted, and reading goes on.
2. Nothing nests deeper than `MAX_OPEN`, so reading needs little of Python's stack whatever the text.
3. While a bracket is open, line breaks do not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from pylash.lang.parsing.hints import hint
from pylash.lang.parsing.tokens import Token
from pylash.lang.problems import Problem
from pylash.lang.tree import Node, Place, Places

MAX_OPEN = 30
MAX_OPERATORS = 200
MAX_PROBLEMS = 10

NodeT = TypeVar("NodeT", bound=Node)
ReadT = TypeVar("ReadT")


class Mistake(Exception):
    """The statement cannot be read on."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Cursor:
    """A place among the tokens of a text, and what was found on the way there."""

    def __init__(self, source: str, tokens: list[Token]) -> None:
        self.source = source
        self.tokens = tokens
        self.index = 0
        self.token = tokens[0]
        self.places: Places = {}
        # Where each node begins and ends in the text.
        self.spans: dict[int, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self.brackets: list[Token] = []
        self.open = 0
        self.operators = 0
        self.loops = 0
        self.body = "main"
        # The unwrap that was read last: what cannot follow it is a doubtful question mark.
        self.unwrap: Token | None = None

    # Tokens.

    def at(self, *texts: str) -> bool:
        """Whether one of these words or marks is next. A string is neither."""
        return self.token.text in texts

    def take(self) -> Token:
        """Return the next token and go on."""
        token = self.token
        self.go(self.index + 1)
        return token

    def go(self, index: int) -> None:
        """Stand before the token of that index, or before the first that counts from there."""
        tokens = self.tokens
        if self.brackets:
            while tokens[index].kind == "end of line":
                index += 1
        self.index = min(index, len(tokens) - 1)
        self.token = tokens[self.index]

    def last(self) -> Token:
        """Return the token that was read last; the first one if none was."""
        index = max(self.index - 1, 0)
        while index and self.tokens[index].kind == "end of line":
            index -= 1
        return self.tokens[index]

    def following(self, offset: int = 1) -> Token:
        """Return a token after the next one, line breaks counted."""
        return self.tokens[min(self.index + offset, len(self.tokens) - 1)]

    def accept(self, text: str) -> Token | None:
        """Take the next token if it is this one."""
        return self.take() if self.token.text == text else None

    def expect(self, text: str, hint: str | None = None) -> Token:
        """Take the next token, which must be this one."""
        if self.token.text != text:
            self.unexpected(f"`{text}`", hint)
        return self.take()

    def name(self, what: str, hint: str | None = None) -> Token:
        """Take an identifier."""
        if self.token.kind != "name":
            self.unexpected(what, hint)
        return self.take()

    def field(self, what: str) -> Token:
        """Take an identifier or a reserved word."""
        if self.token.kind not in ("name", "word"):
            self.unexpected(what)
        return self.take()

    # Brackets and limits.

    def enter(self, token: Token) -> int:
        """Open one more of what is limited; return what `leave` wants to know."""
        self.open += 1
        if self.open > MAX_OPEN:
            message = f"more than {MAX_OPEN} brackets, blocks and operands are open here"
            self.fail("nesting_too_deep", message, token, "give the inner part a name first")
        outer, self.operators = self.operators, 0
        return outer

    def leave(self, outer: int) -> None:
        """Close what `enter` opened."""
        self.open -= 1
        self.operators = outer

    def count(self, token: Token) -> None:
        """Count one more operator, call or postfix step of this expression."""
        self.operators += 1
        if self.operators > MAX_OPERATORS:
            message = f"more than {MAX_OPERATORS} operators, calls and steps are in this expression"
            self.fail("nesting_too_deep", message, token, "give a part of it a name first")

    def bracketed(
        self, opening: str, closing: str, read: Callable[[], ReadT], *, single: bool = False
    ) -> ReadT:
        """Read what stands in brackets: one thing, or several with commas between them."""
        bracket = self.token
        if bracket.text != opening:
            self.unexpected(f"`{opening}`")
        outer = self.enter(bracket)
        self.brackets.append(bracket)
        self.take()
        inside = read()
        if self.token.text != closing:
            self.unexpected(f"`{closing}`" if single else f"`,` or `{closing}`")
        self.brackets.pop()
        self.take()
        self.leave(outer)
        return inside

    def listed(self, closing: str, read: Callable[[], ReadT]) -> tuple[ReadT, ...]:
        """Read what stands between commas, the last of which may be followed by one."""
        found: list[ReadT] = []
        while self.token.text != closing:
            self.operators = 0
            found.append(read())
            if not self.accept(","):
                break
        return tuple(found)

    # Nodes and problems.

    def node(self, start: Token, node: NodeT) -> NodeT:
        """Remember that this node stands from there to the token that was read last."""
        end = self.last().end
        line_end = self.source.find("\n", start.start, end)
        width = max(1, (end if line_end < 0 else line_end) - start.start)
        self.places[id(node)] = Place(start.line, start.column, width)
        self.spans[id(node)] = (start.start, end)
        return node

    def note(
        self, kind: str, message: str, at: Token, hint: str | None = None, width: int | None = None
    ) -> Problem:
        """Remember a problem after which reading goes on."""
        problem = self.problem(kind, message, at, hint, width)
        self.add(problem)
        return problem

    def add(self, problem: Problem) -> None:
        """Keep a problem, unless there are enough, or one at this place."""
        if len(self.problems) < MAX_PROBLEMS and not any(
            (kept.line, kept.column) == (problem.line, problem.column) for kept in self.problems
        ):
            self.problems.append(problem)

    def problem(
        self, kind: str, message: str, at: Token, hint: str | None = None, width: int | None = None
    ) -> Problem:
        """Return the problem with this token."""
        if width is None:
            line_end = self.source.find("\n", at.start, at.end)
            width = max(1, (at.end if line_end < 0 else line_end) - at.start)
        return Problem("parse", kind, message, at.line, at.column, width, hint)

    def fail(self, kind: str, message: str, at: Token, hint: str | None = None) -> NoReturn:
        """End this statement with a problem."""
        raise Mistake(self.problem(kind, message, at, hint))

    def unexpected(self, expected: str, hint: str | None = None) -> NoReturn:
        """End this statement: the next token is not what must stand here."""
        self.check_unwrap()
        found = self.token
        message = f"expected {expected}, found {found.shown}"
        self.fail("unexpected_token", message, found, hint or self.hint())

    def unended(self) -> NoReturn:
        """End this statement: it could have ended, and something else follows."""
        self.check_unwrap()
        self.check_mark()
        message = f"expected the end of the statement, found {self.token.shown}"
        hint = self.hint(ended=True) or "write `;` or a new line between statements"
        self.fail("expected_statement_end", message, self.token, hint)

    def hint(self, *, ended: bool = False) -> str | None:
        """Return what to do about the next token, which cannot stand here."""
        bracket = self.brackets[-1] if self.brackets else None
        if bracket and bracket.line < self.token.line:
            return f"the `{bracket.text}` of line {bracket.line} is still open"
        return hint(self.tokens, self.index, ended=ended)

    def check_unwrap(self) -> None:
        """End this statement if what cannot stand here follows a question mark that unwraps."""
        found, unwrap = self.token, self.unwrap
        ended = found.kind in ("end of line", "end of input")
        if unwrap and not ended and self.last() is unwrap and unwrap.line == found.line:
            self.doubtful(found)

    def check_mark(self) -> None:
        """End this statement if a question mark is next that has white space on one side only."""
        found = self.token
        if found.text == "?" and found.spaced and not found.roomy:
            self.doubtful(found)

    def doubtful(self, at: Token) -> NoReturn:
        """End this statement: it cannot be told what a question mark means."""
        self.fail(
            "ambiguous_question_mark",
            "`?` directly after a value unwraps it; a conditional has white space on both sides of its `?`",
            at,
            "write `a == null ? b : a`"
            if self.source.startswith("??", at.start)
            else "write `test ? a : b`, or `value?` and an end",
        )
