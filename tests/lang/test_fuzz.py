"""Whatever is read: no crash, no hang, and every problem has a place in the text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylash.lang.parsing.parser import parse, parse_type
from pylash.lang.printing.formatting import format_source
from pylash.lang.problems import LashlangError, show
from pylash.lang.tree import walk

PIECES = [
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
    "finish",
    "fail",
    "yield",
    "wake",
    "let",
    "type",
    "process",
    "fn",
    "while",
    "break",
    "continue",
    "sleep",
    "until",
    "signal",
    "run",
    "with",
    "within",
    "wait",
    "start",
    "Type",
    "label",
    "signals",
    "list",
    "enum",
    "a",
    "b",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ",",
    ":",
    ";",
    "@",
    "?",
    ".",
    "+",
    "-",
    "*",
    "/",
    "%",
    "=",
    "==",
    "!",
    "!=",
    "&&",
    "||",
    "|",
    "<",
    "<=",
    ">",
    ">=",
    "->",
    "1",
    "2.5",
    "'x'",
    '"""y"""',
    "r'z'",
    "#",
    "//",
    "\n",
]
PROGRAM = """\
type Order = { id: str, lines: list[{ sku: str, n: int? }] }  # one
@label(title: "Refund")
process refund(order: Order, tool: Tools) signals { answer: bool } -> str | null {
  found = await tool.lookup({ key: order.id })?
  for line in order.lines { if line.n > 1 and not (line.sku in skip) { yield line.sku } else { continue } }
  while true { x.a[0] = wait signal answer within "2d" ? 1 : -2; break }
  sleep for 5
  fail "not " + to_string([a * 2 for a in found if a])
}
fn twice(x: int) -> int { x * 2 }
h = start refund(order: "A-7", tool: tools)
signal run h answer with (true, false)
T = Type { a: enum["x", "y"] }
"""


def judge(source: str) -> None:
    parsed = parse(source)
    assert all(id(node) in parsed.places for node in walk(parsed.program))
    lines = source.split("\n")
    for problem in parsed.problems:
        assert problem.stage == "parse"
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
        assert problem.message in show(problem, source)
    if parsed.problems:
        with pytest.raises(LashlangError):
            format_source(source)
    else:
        assert parse(format_source(source)).program == parsed.program


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_is_read(source: str) -> None:
    judge(source)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40), st.sampled_from([" ", ""]))
def test_any_soup_of_tokens_is_read(pieces: list[str], between: str) -> None:
    judge(between.join(pieces))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_program_with_a_mistake_is_read(data: st.DataObject) -> None:
    source = PROGRAM
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(source)))
        end = data.draw(st.integers(start, min(start + 8, len(source))))
        source = source[:start] + data.draw(st.sampled_from(["", *PIECES])) + source[end:]
    judge(source)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_any_text_is_a_type_or_a_problem(text: str) -> None:
    with contextlib.suppress(LashlangError):
        assert parse_type(text)


@pytest.mark.parametrize(
    "source",
    ["(" * 20_000, "-" * 20_000, "x = " + "1 + " * 20_000, "if a { " * 10_000, "a." * 20_000, '"' * 19_999,
     "else if a { } " * 5_000, "if a { }" + " else if a { }" * 5_000, "wait signal within " * 5_000, "\n" * 20_000,
     "finish [" * 20_000, "a ? " * 20_000, "#\n" * 10_000, "}" * 20_000, "x = [\n" * 20_000],
    ids=range(15),
)  # fmt: skip
def test_long_texts_are_read_in_their_time(source: str) -> None:
    judge(source)
