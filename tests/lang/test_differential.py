"""Compiled programs do what the reference does: outcome, prints, variables, kind of error."""

from __future__ import annotations

import os
import random  # noqa: TID251 - programs by their seeds
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylash.lang import Bounds
from pylash.lang.problems import LashlangError
from pylash.lang.running.data import List, Record
from tests.lang.engine import World, made, run
from tests.lang.reference import Interpreter, OutOfFuel
from tests.lang.reference_builtins import BUILTINS
from tests.lang.written import NAMES, VALUES, program_of, programs

pytestmark = pytest.mark.slow

BOUNDS = Bounds(steps=50_000, active_ms=None, memory_bytes=2**22)
LIMITS = ("step_budget_exceeded", "memory_exceeded")


def into(value: Any) -> Any:
    """A value of the reference as one of the engine."""
    if isinstance(value, list):
        return List(map(into, value))
    if isinstance(value, tuple):
        return tuple(map(into, value))
    return Record({k: into(v) for k, v in value.items()}) if isinstance(value, dict) else value


def shown(value: Any) -> str:
    """A value with its kinds; NaN is equal to itself here."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {shown(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(shown, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
    return repr(value)


def compare(source: str, held: dict[str, Any]) -> str | None:
    """Judge a program; return how it ended, or None if it does not link or takes too long."""
    try:
        program = made(source, variables=tuple(held))
    except LashlangError:
        return None
    world = World()
    variables = {name: into(value) for name, value in held.items()}
    ended = run(program, variables, world, bounds=BOUNDS)
    if ended.error is not None and ended.error.kind in LIMITS:
        return None
    reference = Interpreter(program.canonical, held, BUILTINS)
    try:
        expected = reference.run()
    except OutOfFuel:
        return None
    found: tuple[str, Any] = ("continue", None)
    if ended.error is not None:
        found = ("error", ended.error.kind)
    elif ended.finished:
        found = ("finish", ended.value)
    assert shown(found) == shown(expected), source
    assert shown(world.prints) == shown(reference.prints), source
    left = {name: value for name, value in reference.variables.items() if not name.isdigit()}
    assert sorted(variables) == sorted(left), source
    for name, value in left.items():
        assert shown(variables[name]) == shown(value), (name, source)
    return found[0]


@settings(max_examples=40, deadline=None)
@given(programs(effects=True), st.tuples(*[st.sampled_from(VALUES)] * len(NAMES)))
def test_a_program_does_what_the_reference_does(source: str, values: tuple[Any, ...]) -> None:
    compare(source, dict(zip(NAMES, values, strict=True)))


def test_many_programs_do_what_the_reference_does() -> None:
    ends = [
        compare(program_of(seed), dict(zip(NAMES, (VALUES * 2)[seed % 8 :], strict=False)))
        for seed in range(100)
    ]
    # Most of them link, and they end in all ways.
    assert ends.count(None) < len(ends) / 2
    assert all(ends.count(end) > len(ends) / 50 for end in ("finish", "continue", "error"))


@pytest.mark.torture
def test_very_many_programs_do_what_the_reference_does() -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    print(f"\nSEED={seed}", flush=True)
    dice = random.Random(seed)
    for _ in range(2000):
        program, held = dice.randrange(2**32), [dice.choice(VALUES) for _ in NAMES]
        compare(program_of(program), dict(zip(NAMES, held, strict=True)))
