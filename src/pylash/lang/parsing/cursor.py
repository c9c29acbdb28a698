"""The state that all parts of the parser share: the position in the tokens, the limits, the problems so far.

1. The first mistake in a statement ends the statement (`Mistake`); parsing continues with the next one.
   A misplaced construct ends nothing: it is noted, and parsing continues.
2. Nothing nests deeper than `MAX_OPEN`, so parsing needs little of Python's stack for any text.
3. Line breaks inside brackets are ignored.
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
    """Raised when the rest of a statement cannot be parsed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Cursor:
    """A position in the tokens of a text, and the nodes and problems found before it."""

    def __init__(self, source: str, tokens: list[Token]) -> None:
        self.source = source
        self.tokens = tokens
        self.index = 0
        self.token = tokens[0]
        self.places: Places = {}
        # The start and end of each node in the text.
        self.spans: dict[int, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self.brackets: list[Token] = []
        self.open = 0
        self.operators = 0
        self.loops = 0
        self.body = "main"
        # The last unwrapping `?`. If the token after it is invalid there, the question mark is ambiguous.
        self.unwrap: Token | None = None

    # Tokens.

    def at(self, *texts: str) -> bool:
        """Whether one of these words or marks is next; a string token never matches."""
        return self.token.text in texts

    def take(self) -> Token:
        """Return the next token and advance."""
        token = self.token
        self.go(self.index + 1)
        return token

    def go(self, index: int) -> None:
        """Go to the token of that index, or to the first one after it that is not ignored."""
        tokens = self.tokens
        if self.brackets:
            while tokens[index].kind == "end of line":
                index += 1
        self.index = min(index, len(tokens) - 1)
        self.token = tokens[self.index]

    def last(self) -> Token:
        """Return the token that was read last, or the first token if none was read."""
        index = max(self.index - 1, 0)
        while index and self.tokens[index].kind == "end of line":
            index -= 1
        return self.tokens[index]

    def following(self, offset: int = 1) -> Token:
        """Return a token after the next one; line breaks count as tokens."""
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
        """Count one more level of nesting, which is limited; return the argument for `leave`."""
        self.open += 1
        if self.open > MAX_OPEN:
            message = f"more than {MAX_OPEN} brackets, blocks and operands are nested here"
            self.fail(
                "nesting_too_deep", message, token, "assign the inner part to a variable first"
            )
        outer, self.operators = self.operators, 0
        return outer

    def leave(self, outer: int) -> None:
        """Leave the level that `enter` counted."""
        self.open -= 1
        self.operators = outer

    def count(self, token: Token) -> None:
        """Count one more operator, call or postfix step of this expression."""
        self.operators += 1
        if self.operators > MAX_OPERATORS:
            message = f"this expression has more than {MAX_OPERATORS} operators, calls and steps"
            self.fail("nesting_too_deep", message, token, "assign a part of it to a variable first")

    def bracketed(
        self, opening: str, closing: str, read: Callable[[], ReadT], *, single: bool = False
    ) -> ReadT:
        """Read the contents of brackets: one item, or several with commas between them."""
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
        """Read items with commas between them; a comma after the last one is allowed."""
        found: list[ReadT] = []
        while self.token.text != closing:
            self.operators = 0
            found.append(read())
            if not self.accept(","):
                break
        return tuple(found)

    # Nodes and problems.

    def node(self, start: Token, node: NodeT) -> NodeT:
        """Record that this node extends from `start` to the token that was read last."""
        end = self.last().end
        line_end = self.source.find("\n", start.start, end)
        width = max(1, (end if line_end < 0 else line_end) - start.start)
        self.places[id(node)] = Place(start.line, start.column, width)
        self.spans[id(node)] = (start.start, end)
        return node

    def note(
        self, kind: str, message: str, at: Token, hint: str | None = None, width: int | None = None
    ) -> Problem:
        """Record a problem after which parsing continues."""
        problem = self.problem(kind, message, at, hint, width)
        self.add(problem)
        return problem

    def add(self, problem: Problem) -> None:
        """Record a problem, unless there are too many, or there is one at this position."""
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
        """End this statement: the next token is not the expected one."""
        self.check_unwrap()
        found = self.token
        message = f"expected {expected}, found {found.shown}"
        self.fail("unexpected_token", message, found, hint or self.hint())

    def unended(self) -> NoReturn:
        """End this statement: it is complete, and something else follows on its line."""
        self.check_unwrap()
        self.check_mark()
        message = f"expected the end of the statement, found {self.token.shown}"
        hint = self.hint(ended=True) or "write `;` or a new line between statements"
        self.fail("expected_statement_end", message, self.token, hint)

    def hint(self, *, ended: bool = False) -> str | None:
        """Return a hint about the next token, which is not allowed here."""
        bracket = self.brackets[-1] if self.brackets else None
        if bracket and bracket.line < self.token.line:
            return f"the `{bracket.text}` of line {bracket.line} is still open"
        return hint(self.tokens, self.index, ended=ended)

    def check_unwrap(self) -> None:
        """End this statement if an invalid token follows a question mark that unwraps."""
        found, unwrap = self.token, self.unwrap
        ended = found.kind in ("end of line", "end of input")
        if unwrap and not ended and self.last() is unwrap and unwrap.line == found.line:
            self.doubtful(found)

    def check_mark(self) -> None:
        """End this statement if the next token is a question mark with white space only before it."""
        found = self.token
        if found.text == "?" and found.spaced and not found.roomy:
            self.doubtful(found)

    def doubtful(self, at: Token) -> NoReturn:
        """End this statement: the meaning of a question mark is ambiguous."""
        self.fail(
            "ambiguous_question_mark",
            "`?` directly after a value unwraps it; a conditional has white space on both sides of its `?`",
            at,
            "write `a == null ? b : a`"
            if self.source.startswith("??", at.start)
            else "write `test ? a : b`, or end the statement after `value?`",
        )
