"""The parser on random texts: no crash, no hang, and every problem has a position in the text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylash.lang.artifacts import encode_artifact
from pylash.lang.parsing.parser import parse, parse_type
from pylash.lang.parsing.tokens import RESERVED
from pylash.lang.printing.formatting import format_source
from pylash.lang.problems import LashlangError, show
from pylash.lang.starting import StartProblem, stored
from pylash.lang.tree import walk
from tests.lang.engine import made
from tests.lang.pipeline import through
from tests.lang.written import programs

pytestmark = pytest.mark.slow

PIECES = [
    *sorted(RESERVED),
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


WORLD = """\
process refund(order: any, tool: Tools) signals { answer: any } -> any {
  found = await tool.echo({ key: order.id })
  for line in [1, 2] { if line > 1 and not (line in inputs.order) { yield line } else { continue } }
  while true { x = { a: [0] }; x.a[0] = wait signal answer within "2d"; break }
  sleep for 5
  both = await { a: tools.echo(found), b: [tools.boom(1), start other(n: 1)] }
  fail "not " + to_string([a * 2 for a in [1, 2] if a])
}
@label(title: "Other")
process other(n: int) { wake n + 1; sleep until "2026-01-01T00:00:00Z"; cancel start other(n: n); finish input }
h = start other(n: 7)
signal run h answer with (true, false)
T = Type { a: enum["x", "y"] }
x = validate({ a: "x" }, T).a ? [y for y in await [h, tools.echo(1)?]] : T[0]
"""


def mistaken(data: st.DataObject, source: str) -> str:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(source)))
        end = data.draw(st.integers(start, min(start + 8, len(source))))
        source = source[:start] + data.draw(st.sampled_from(["", *PIECES])) + source[end:]
    return source


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_program_with_a_mistake_goes_through_everything(data: st.DataObject) -> None:
    through(mistaken(data, data.draw(st.sampled_from([WORLD, WORLD, PROGRAM]))))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join))
def test_any_soup_of_tokens_goes_through_everything(source: str) -> None:
    through(source)


@settings(max_examples=20, deadline=None)
@given(programs(effects=True), st.data())
def test_any_written_program_goes_through_everything(source: str, data: st.DataObject) -> None:
    through(source)
    through(mistaken(data, source))


def test_the_programs_that_are_changed_run() -> None:
    assert through(WORLD) == "continue"


STORED = encode_artifact(made(WORLD))
REF = made(WORLD).module_ref


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(STORED) - 1), st.integers(1, 255) | st.sampled_from(["", "[", "null", "9"])
)
def test_a_stored_module_with_a_flaw_is_refused(at: int, flaw: int | str) -> None:
    """Never another program, and never a crash: not even where only places or the source differ."""
    middle = bytes([STORED[at] ^ flaw]) if isinstance(flaw, int) else flaw.encode()
    changed = STORED[:at] + middle + STORED[at + 1 :]
    found = stored(changed, REF)
    if isinstance(found, StartProblem):
        assert found.code == "process_module_artifact_missing"
    else:  # the same in another spelling, such as 1e0 for 1
        assert found == stored(STORED, REF)


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=40)
    | st.binary(max_size=5).map(lambda some: STORED[: len(some) * 100] + some)
)
def test_what_is_no_module_is_refused(data: bytes) -> None:
    assert isinstance(stored(data, REF), StartProblem)


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
