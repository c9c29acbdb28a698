"""The simulated clock."""

from __future__ import annotations

import asyncio

from pylash.durable.runs import SECOND
from pylash.testing import SimClock


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock, woken = SimClock(), list[str]()

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(f"{name}@{clock.monotonic():g}")

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("late", 120))
        group.create_task(sleeper("early", 60))
        await asyncio.sleep(0)
        await clock.advance("1h")
    assert woken == ["early@60", "late@120"]


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = SimClock()
    before = clock.now()
    await asyncio.sleep(0)
    assert clock.now() == before
    await clock.advance("2d")
    assert clock.now() - before == 2 * 86_400 * SECOND
