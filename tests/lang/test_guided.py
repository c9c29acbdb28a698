"""Coverage-guided fuzzing: a program that reaches new code of the language is kept, and mutated again.

The seed is printed; SEED=n repeats a run, as far as it gets in its time.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - seeded changes
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pylash.lang
from pylash.engine.system import SystemClock
from pylash.testing.lashlang import read
from tests.lang.pipeline import through
from tests.lang.test_fuzz import PIECES, WORLD
from tests.lang.written import Writer

SECONDS = 60.0
LONGEST = 4000
HERE = Path(__file__).parent
LANGUAGE = str(Path(pylash.lang.__file__).parent)
TOKENS = re.compile(r"\w+|\s+|\"[^\"]*\"|.", re.DOTALL)
Edge = tuple[str, int, int]


def traced(act: Callable[[], str]) -> tuple[str, set[Edge]]:
    """Return what an act says, and its steps from line to line in the code of the language."""
    edges: set[Edge] = set()

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(LANGUAGE):
            return None
        last = 0

        def line(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal last
            if event == "line":
                edges.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        return act(), edges
    finally:
        sys.settrace(before)


def changed(source: str, others: list[str], dice: random.Random) -> str:
    """Return a program with one to four changes."""
    writer = Writer(dice.randrange, effects=True)
    for _ in range(dice.randint(1, 4)):
        lines = source.split("\n")
        at = dice.randrange(len(lines))
        match dice.randrange(7):
            case 0:
                lines.insert(at, writer.statement(2))
            case 1:
                del lines[at]
            case 2:
                other = dice.choice(others).split("\n")
                start = dice.randrange(len(other))
                lines[at:at] = other[start : start + dice.randint(1, 4)]
            case 3:
                lines.insert(at, lines[dice.randrange(len(lines))])
            case _:
                lines[at] = respelt(lines[at], source, dice, writer)
        source = "\n".join(lines)
    return source[:LONGEST]


def respelt(line: str, source: str, dice: random.Random, writer: Writer) -> str:
    """Return a line with one of its tokens replaced: by any, by another of the program, by an expression."""
    tokens = TOKENS.findall(line) or [""]
    new = (dice.choice(PIECES), dice.choice(TOKENS.findall(source) or [""]), writer.any(2), "")
    tokens[dice.randrange(len(tokens))] = dice.choice(new)
    return "".join(tokens)


def first_programs() -> list[str]:
    cases = [case for name in ("conformance.json", "more.json") for case in read(HERE / name)]
    texts = [
        text for case in cases for text in (case.get("source"), *case.get("sources", ())) if text
    ]
    return [WORLD, *(text for text in dict.fromkeys(texts) if len(text) < LONGEST)]


@pytest.mark.torture
def test_programs_that_reach_new_places_are_changed_again() -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    dice, clock = random.Random(seed), SystemClock()
    print(f"\nSEED={seed}", flush=True)
    corpus, seen, tries, ends = first_programs(), set[Edge](), 0, dict[str, int]()
    waiting = list(corpus)
    until = clock.monotonic() + SECONDS
    while clock.monotonic() < until:
        source = waiting.pop() if waiting else changed(dice.choice(corpus), corpus, dice)
        tries += 1
        try:
            said, edges = traced(partial(through, source))
        except BaseException:
            print(f"SEED={seed}, program {tries}:\n{source}")
            raise
        ends[said] = ends.get(said, 0) + 1
        if not edges <= seen:
            seen |= edges
            corpus.append(source)
    print(f"{tries} programs, {len(corpus)} kept, {len(seen)} steps in the code; ends: {ends}")
    assert {"finish", "continue", "expected_number", "unexpected_token"} <= ends.keys()
