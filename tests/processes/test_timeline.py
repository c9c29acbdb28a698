"""Timelines: what a process did and when, as text."""

from __future__ import annotations

import asyncio

import pytest

from pylash import Effect, Lash, ProcessContext, ProcessUnknown, StepFailed, draw_timeline
from pylash.values.texts import cells
from tests.backends import Backend, eventually
from tests.processes.test_branches import value

SECOND = 1_000_000
EFFECTS = [
    Effect("charge", "charge", "durable_step", 0, SECOND, "done"),
    Effect("a-name", "a name that is far too long to be shown", "sleep", SECOND, None, "open"),
    Effect("pack", "pack", "durable_step", 2 * SECOND, 300 * SECOND, "failed"),
]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_timeline_fits_its_width(width: int) -> None:
    drawn = draw_timeline(EFFECTS, width=width, marks={3 * SECOND: "kill -9"})
    assert max(map(len, drawn.splitlines())) <= max(width, 45)
    assert "\x1b" not in drawn
    assert "✗ kill -9" in drawn


def test_a_timeline_shows_names_bars_and_durations() -> None:
    charge, long, pack, ticks = draw_timeline(EFFECTS, width=80).splitlines()
    assert charge.startswith("charge ")
    assert charge.endswith("1.0 s")
    assert long.startswith("a name that is far too lo…")
    assert long.endswith("open")
    assert pack.endswith("5.0 min")
    assert "▒" in pack
    assert ticks.endswith("5.0 min")
    assert draw_timeline([]) == "nothing was recorded yet"
    assert "\x1b[32m" in draw_timeline(EFFECTS, colour=True)


def test_a_long_wait_is_folded_and_leaves_room_for_the_work() -> None:
    week = 7 * 86_400 * SECOND
    effects = [
        Effect("a", "a", "durable_step", 0, SECOND, "done"),
        Effect("w", "w", "sleep", SECOND, week, "done"),
        Effect("b", "b", "durable_step", week, week + SECOND, "failed"),
    ]
    first, wait, last, ticks = draw_timeline(effects, width=60).splitlines()
    assert {first.count("█"), wait.count("─"), last.count("▒")} <= {16, 17}
    assert wait.endswith("7.0 d")
    assert ticks.count("≈") == 1
    assert ticks.endswith("7.0 d")


def test_a_repeated_effect_shows_its_attempt_and_wide_names_stay_in_line() -> None:
    effects = [
        Effect("a", "請求", "durable_step", 0, SECOND, "failed", error="ValueError: no"),
        Effect("a/attempt.2", "請求", "durable_step", SECOND, 2 * SECOND, "done", attempt=2),
        Effect("x", "\x1b[31m", "durable_step", SECOND, 2 * SECOND, "done"),
    ]
    rows = draw_timeline(effects, width=60).splitlines()
    assert rows[1].startswith("請求 (2) ")
    assert rows[2].startswith(r"\x1b[31m ")
    assert {cells(row) for row in rows[:3]} == {60}
    assert draw_timeline([], width=None) == "nothing was recorded yet"


async def test_a_handle_gives_the_timeline_of_its_process(backend: Backend) -> None:
    app = Lash(backend.url)

    async def boom() -> None:
        raise ValueError("boom")

    @app.process
    async def mixed(ctx: ProcessContext[None]) -> None:
        await ctx.step(value, 1)
        ctx.now()
        try:
            await ctx.step(boom)
        except StepFailed:
            await ctx.sleep("1ms")
        try:
            await ctx.wait_signal("go")
        except asyncio.CancelledError:
            await ctx.step(value, 2)

    async with app:
        handle = await app.start(mixed)
        await handle.cancel() if await _waits(app) else None
        await handle.result(timeout="10s")
        shown = [(effect.name, effect.status) for effect in await handle.timeline()]
        with pytest.raises(ProcessUnknown):
            await app.process_handle("nobody").timeline()
    assert shown == [
        ("value", "done"),
        ("boom", "failed"),
        ("sleep", "done"),
        ("go", "cancelled"),
        ("value", "done"),
    ]


async def _waits(app: Lash) -> bool:
    return bool(await eventually(app.waits))
