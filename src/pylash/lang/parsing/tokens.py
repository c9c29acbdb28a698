"""Splitting text into tokens.

1. The whole text is split before it is parsed: lexical mistakes are reported first, and alone.
2. The tokens before and after a line break decide whether it can end a statement; if so, it becomes a
   token. The parser ignores such tokens inside brackets.
3. Letters, digits and spaces are those of the specification; Python's definitions include more characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from pylash.lang.problems import Problem

Kind = Literal["name", "word", "number", "string", "mark", "end of line", "end of input"]

RESERVED = frozenset(
    (
        "if",
        "else",
        "for",
        "in",
        "await",
        "cancel",
        "print",
        "and",
        "or",
        "not",
        "true",
        "false",
        "null",
    )
)

# A line break next to one of these tokens does not end a statement.
CONTINUES_AFTER = frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "%",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "&&",
        "||",
        "!",
        "and",
        "or",
        "in",
        "not",
        "await",
        ",",
        "=",
        ":",
        ".",
        "->",
        "|",
    ]
)
CONTINUES_BEFORE = frozenset([".", "and", "or", "&&", "||", "?", ":", "else"])

MAX_SHOWN = 60
SPACE = "\t\n\r \u00a0\ufeff"

PIECE = re.compile(
    r"""
      (?P<space>[\t\n\r\ \u00a0\ufeff]+)
    | (?P<comment>(?:\#|//)[^\n]*+)
    | (?P<raw>[rR](?:"{3}.*?"{3}|'{3}.*?'{3}|"(?!"")[^"]*+"|'(?!'')[^']*+'))
    | (?P<string>
          "{3}[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"{3}
        | '{3}[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'{3}
        | "(?!"")[^"\\]*+(?:\\.[^"\\]*+)*+"
        | '(?!'')[^'\\]*+(?:\\.[^'\\]*+)*+' )
    | (?P<unterminated>[rR]?["'])
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*+)
    | (?P<number>[0-9]++(?:\.[0-9]*+)?)
    | (?P<mark>==|!=|&&|\|\||<=|>=|->|[{}()\[\],:;@?.+\-*/%=!|<>])
    """,
    re.VERBOSE | re.DOTALL,
)
SURROGATE = re.compile("[\ud800-\udfff]")
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}

HINTS = {
    "`": "text is written in quotes",
    "&": "write `and` or `&&`",
    "$": "there is no interpolation: join texts with `+`, or use `format`",
    "~": "there are no bit operators: write `not` or `!`",
    "^": "there are no bit operators",
    "\\": "a statement continues after an operator, a comma or inside brackets",
} | dict.fromkeys("\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb", "write straight quotes")


class Token(NamedTuple):
    """One token: its spelling, its position, and for literals its value.

    `spaced` means that white space precedes it; `roomy`, that white space follows it.
    """

    kind: Kind
    text: str
    start: int
    end: int
    line: int
    column: int
    spaced: bool
    roomy: bool
    value: str | float = ""

    @property
    def conditional(self) -> bool:
        """Whether this question mark belongs to a conditional, because it has white space on both sides."""
        return self.spaced and self.roomy

    @property
    def shown(self) -> str:
        """The token as shown in messages: its spelling or its kind."""
        if self.kind in ("end of line", "end of input"):
            return self.text
        first = self.text.split("\n")[0][:MAX_SHOWN]
        return f"`{first}`" if first == self.text else f"`{first}…`"


class Comment(NamedTuple):
    """A comment with its `#` or `//`."""

    text: str
    start: int


class Scan(NamedTuple):
    """All tokens of a text, the last of them `end of input`; if there are problems, the readable ones."""

    tokens: list[Token]
    comments: list[Comment]
    problems: list[Problem]


def scan(source: str) -> Scan:
    """Return the tokens, comments and lexical problems of a text."""
    scanner = _Scanner(source)
    if half := SURROGATE.search(source):
        # A lone surrogate cannot be stored, in a text, a comment or elsewhere.
        scanner.count_lines(source[: half.start()], 0)
        scanner.unexpected(half.group(), half.start())
        scanner.add("end of input", "end of input", half.start(), length=0)
    else:
        scanner.run()
    return Scan(scanner.tokens, scanner.comments, scanner.problems)


class _Scanner:
    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens: list[Token] = []
        self.comments: list[Comment] = []
        self.problems: list[Problem] = []
        self.line = 1
        self.line_start = 0
        # The first line break since the last token: its offset, line and column.
        self.broken: tuple[int, int, int] | None = None
        self.complained: set[tuple[int, str]] = set()

    def run(self) -> None:
        position = 0
        for group, text, start in self.pieces():
            position = start + len(text)
            match group:
                case "comment":
                    self.comments.append(Comment(text, start))
                case "name":
                    self.add("word" if text in RESERVED else "name", text, start)
                case "number":
                    self.add("number", text, start, float(text))
                case "string":
                    self.add("string", text, start, unescaped(text))
                case "raw":
                    self.add("string", text, start, _inside(text[1:]))
                case "mark":
                    self.add("mark", text, start)
                case _:
                    pass
            self.count_lines(text, start)
        self.add("end of input", "end of input", position, length=0)

    def pieces(self) -> Iterator[tuple[str, str, int]]:
        """Yield each piece with its kind and offset; record problems for text that is not a token."""
        source, position = self.source, 0
        while position < len(source):
            match = PIECE.match(source, position)
            group = match.lastgroup if match else None
            if match is None or group is None:
                self.unexpected(source[position], position)
                position += 1
                # A word in another alphabet is a single mistake.
                while position < len(source) and not PIECE.match(source, position):
                    position += 1
                continue
            text = match.group()
            if group == "unterminated":
                self.unterminated(text, position)
                return
            if group == "number" and (wrong := self.wrong_number(match)):
                yield "space", wrong, position
                position += len(wrong)
                continue
            yield group, text, position
            position = match.end()

    def add(
        self,
        kind: Kind,
        text: str,
        start: int,
        value: str | float = "",
        *,
        length: int | None = None,
    ) -> None:
        self.end_line(text)
        source = self.source
        end = start + (len(text) if length is None else length)
        spaced = start > 0 and (source[start - 1] in SPACE)
        roomy = end >= len(source) or source[end] in SPACE + "#" or source.startswith("//", end)
        column = start - self.line_start + 1
        self.tokens.append(Token(kind, text, start, end, self.line, column, spaced, roomy, value))
        self.broken = None

    def end_line(self, following: str) -> None:
        """Add an end-of-line token before the next token, if the line break there can end a statement."""
        if not (self.broken and self.tokens):
            return
        if following in CONTINUES_BEFORE or _continues(self.tokens):
            return
        start, line, column = self.broken
        end = Token("end of line", "end of line", start, start, line, column, False, True)
        self.tokens.append(end)

    def count_lines(self, text: str, start: int) -> None:
        breaks = text.count("\n")
        if not breaks:
            return
        if text[0] in SPACE and self.broken is None:
            first = start + text.index("\n")
            self.broken = (first, self.line, first - self.line_start + 1)
        self.line += breaks
        self.line_start = start + text.rindex("\n") + 1

    def unexpected(self, char: str, start: int) -> None:
        # A pair of quotes is a single mistake, too.
        if (self.line, char) in self.complained:
            return
        self.complained.add((self.line, char))
        shown = f"`{char}`" if char.isprintable() and char != "`" else f"U+{ord(char):04X}"
        shown = "'`'" if char == "`" else shown
        hint = HINTS.get(char)
        if hint is None and char.isalpha():
            hint = "names consist of the letters a to z, digits and `_`"
        self.complain("unexpected_character", f"unexpected character {shown}", start, 1, hint)

    def unterminated(self, text: str, start: int) -> None:
        quote = text[-1]
        opening = quote * 3 if self.source.startswith(quote * 3, start + len(text) - 1) else quote
        message = f"the text that starts here is never closed with `{opening}`"
        self.complain("unterminated_string", message, start, len(text) - 1 + len(opening), None)

    def wrong_number(self, match: re.Match[str]) -> str:
        """Record a problem for an invalid number and return all of its text; return "" for a valid one."""
        text, source = match.group(), self.source
        end = match.end()
        if end < len(source) and (source[end] == "_" or source[end].isalpha()):
            while end < len(source) and (source[end] == "_" or source[end].isalnum()):
                end += 1
            text = source[match.start() : end]
            message = f"`{text}` is not a number: a number consists of digits and at most one `.`"
        elif math.isinf(float(text)):
            message = f"the number {text} is too large"
        else:
            return ""
        hint = f"write {text.replace('_', '')}" if text.replace("_", "").isdecimal() else None
        if text.lstrip("0123456789.") in ("ms", "s", "m", "h", "d", "w"):
            hint = f'a duration is text: "{text}"'
        self.complain("invalid_number", message, match.start(), len(text), hint)
        return text

    def complain(self, kind: str, message: str, start: int, width: int, hint: str | None) -> None:
        column = start - self.line_start + 1
        self.problems.append(Problem("parse", kind, message, self.line, column, width, hint))


def _continues(tokens: list[Token]) -> bool:
    """Whether the last token makes the statement continue on the next line."""
    last = tokens[-1]
    if last.kind == "word" and len(tokens) > 1 and tokens[-2].text == ".":
        return False  # a field with the name of an operator
    if last.text == "?":
        return last.spaced
    return last.text in CONTINUES_AFTER


def unescaped(text: str) -> str:
    """Return the value of a string from its spelling."""
    inside = _inside(text)
    if "\\" not in inside:
        return inside
    return ESCAPE.sub(lambda match: ESCAPED.get(match[1], match[1]), inside)


def _inside(text: str) -> str:
    quotes = 3 if len(text) >= 6 and text[:3] in ('"""', "'''") else 1
    return text[quotes:-quotes]
