"""Values never alias, whatever is changed in place: compiled programs against plain copying."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylash.lang import Bounds, Surroundings, artifact, link, parse, run_cell, surface_of

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c")
OFFERED = surface_of({"abilities": [], "modules": {}})
UNBOUNDED = Bounds(steps=None, active_ms=None, memory_bytes=None)

# Every variable is {"xs": [...], "r": {...}} at first; each statement is text and what it does to a model.
Step = tuple[str, Any]


def _set(path: list[Any], value: Any) -> Any:
    def apply(world: dict[str, Any]) -> None:
        at = world
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = copy.deepcopy(value(world))

    return apply


@st.composite
def steps(draw: st.DrawFn) -> Step:  # noqa: C901, PLR0911 - a line a kind of statement
    one, two = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
    number = draw(st.integers(0, 9))
    match draw(st.integers(0, 9)):
        case 0:
            return f"{one} = {two}", _set([one], lambda w: w[two])
        case 1:
            return f"{one}.xs = {two}.xs", _set([one, "xs"], lambda w: w[two]["xs"])
        case 2:
            return f"{one}.xs[0] = {number}", _set([one, "xs", 0], lambda _: number)
        case 3:
            return f"{one}.r.k = {two}.xs", _set([one, "r", "k"], lambda w: w[two]["xs"])
        case 4:
            return f"{one}.xs = push({one}.xs, {number})", _set(
                [one, "xs"], lambda w: [*w[one]["xs"], number]
            )
        case 5:
            return f"l = push(l, {two}.xs)", _set(["l"], lambda w: [*w["l"], w[two]["xs"]])
        case 6:
            return f"l = push(l, {number})", _set(["l"], lambda w: [*w["l"], number])
        case 7:
            return f"{one}.r = {{ k: {two}.r, n: {number} }}", _set(
                [one, "r"], lambda w: {"k": w[two]["r"], "n": number}
            )
        case 8:
            return f"{one}.xs[0] = l", _set([one, "xs", 0], lambda w: w["l"])
        case _:
            text = f"for x in {two}.xs {{ {one}.xs[0] = x; l = push(l, x) }}"

            def loop(world: dict[str, Any]) -> None:
                for x in copy.deepcopy(world[two]["xs"]):
                    world[one]["xs"][0] = copy.deepcopy(x)
                    world["l"] = [*world["l"], copy.deepcopy(x)]

            return text, loop


class _Silent:
    def print(self, value: Any) -> None: ...
    def trace(self, event: dict[str, Any]) -> None: ...


@pytest.mark.proves("L1")
@settings(max_examples=150, deadline=None)
@given(st.lists(steps(), min_size=1, max_size=14))
def test_a_changed_value_is_seen_through_its_own_variable_only(program: list[Step]) -> None:
    world: dict[str, Any] = {name: {"xs": [1], "r": {"k": 0}} for name in NAMES} | {"l": []}
    lines = [f"{name} = {{ xs: [1], r: {{ k: 0 }} }}" for name in NAMES] + ["l = []"]
    for text, apply in program:
        if len(str(world)) > 20_000:  # growing by copies of itself doubles it
            break
        lines.append(text)
        apply(world)
    source = "\n".join([*lines, "finish { a: a, b: b, c: c, l: l }"])
    made = artifact(link(parse(source), OFFERED))
    around = Surroundings(_Silent(), {})  # type: ignore[arg-type]
    ended = asyncio.run(run_cell(made, {}, around, lambda: 0.0, scope="cell:1", bounds=UNBOUNDED))
    if ended.error is None or ended.error.kind != "value_too_deep":
        assert ended.error is None, source
        assert ended.value == world, source
