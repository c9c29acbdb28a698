"""Problems of a program, for people and for programs.

1. A problem is one sentence with a stable kind and a position; a hint says what to do about it.
2. If there is a problem of stage `parse` or `link`, nothing ran and nothing changed.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pylash.values.errors import Misuse
from pylash.values.texts import cells

Stage = Literal["parse", "link", "run"]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One mistake. Lines and columns count from 1, columns in code points; `width` is the number of carets."""

    stage: Stage
    kind: str
    message: str
    line: int
    column: int
    width: int = 1
    hint: str | None = None


_WIDEST: Final = 160
"""How many characters of a line are shown."""


class LashlangError(Misuse):
    """The program cannot run as it is written; `errors` has the problems, the most important first."""

    def __init__(self, errors: tuple[Problem, ...], source: str) -> None:
        super().__init__("\n\n".join(show(problem, source) for problem in errors))
        self.errors = errors

    def __str__(self) -> str:
        # No error code: it would follow the carets, and the kinds are in `errors`.
        return self.message


def show(problem: Problem, source: str) -> str:
    """Return the message, the position, the line of the source and carets under the problem."""
    lines = source.split("\n")
    line = lines[problem.line - 1].rstrip("\r") if problem.line <= len(lines) else ""
    number = str(problem.line)
    start = problem.column - 1
    if start > _WIDEST // 2 and len(line) > _WIDEST:
        cut = start - _WIDEST // 2
        line, start = f"…{line[cut:]}", start - cut + 1
    if len(line) > _WIDEST:
        line = f"{line[:_WIDEST]}…"
    # Tabs are kept and wide characters count as two columns, so that the carets are under the problem.
    indent = "".join("\t" if char == "\t" else " " * cells(char) for char in line[:start])
    carets = indent + "^" * max(1, cells(line[start : start + problem.width]))
    hint = f" {_one_line(problem.hint)}" if problem.hint else ""
    return (
        f"{_one_line(problem.message)}\n"
        f"{' ' * (len(number) + 1)}--> line {problem.line}, column {problem.column}\n"
        f" {number} | {line}\n"
        f" {' ' * len(number)} | {carets}{hint}"
    )


def _one_line(text: str) -> str:
    # A quoted text of the program may contain line breaks.
    return text.replace("\n", "\\n")
