"""The simulated clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import InlineHost, Lash, ProcessContext, Retry, current_attempt
from pylash.durable.runs import SECOND
from pylash.engine.worker import worker
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


@pytest.mark.parametrize("host", [None, InlineHost()], ids=["journal", "inline"])
async def test_a_clock_says_which_process_waits_for_a_lock(
    host: InlineHost | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch that has the lock waits for the clock, and the clock for the branch that waits for the lock."""
    monkeypatch.setattr(worker, "STUCK_SECONDS", 0.2)
    clock = SimClock()
    app = Lash("memory://", clock=clock, host=host)

    def flaky() -> None:
        if current_attempt() < 2:
            raise ConnectionError

    @app.process
    async def locked(ctx: ProcessContext[None]) -> list[Any]:
        lock = asyncio.Semaphore(1)

        async def branch() -> None:
            async with lock:
                await ctx.options(retry=Retry(3, delay="1h")).step(flaky)

        return await ctx.gather(branch(), branch())

    async with app:
        handle = await app.start(locked.options(id="locked"))
        with pytest.raises(TimeoutError, match=r"'locked' waits .* 'flaky again'"):
            await clock.advance("2h")
        await handle.cancel(force=True)


async def test_a_clock_waits_for_steps_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long: they end without the clock."""
    monkeypatch.setattr(worker, "STUCK_SECONDS", 0.01)
    clock = SimClock()
    app = Lash("memory://", clock=clock)

    @app.process
    async def busy(ctx: ProcessContext[None]) -> None:
        await ctx.step(asyncio.sleep, 0.3)
        await ctx.sleep("1h")

    async with app:
        handle = await app.start(busy)
        await clock.advance("2h")
        await handle.result(timeout="10s")
