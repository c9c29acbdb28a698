"""A decision is recorded before any branch learns of it, and no effect begins that it would have cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import Lash, ProcessContext, WorkerConfig
from pylash.stores.store import SqlStore
from tests.backends import Backend


async def one() -> int:
    return 1


class SlowDecisions:
    """Records the order of deliveries and withdrawals, and holds the deliveries until they may go on."""

    def __init__(self, app: Lash, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.writes: list[str] = []
        assert isinstance(app.store, SqlStore)
        self._honest = app.store.journal.deliver
        monkeypatch.setattr(app.store.journal, "deliver", self._deliver)

    async def _deliver(self, fence: Any, decisions: Any, cancelled: Any) -> Any:
        if decisions:
            self.asked.set()
            await self.go.wait()
        delivered = await self._honest(fence, decisions, cancelled)
        self.writes.append("decision" if decisions else "withdrawal")
        return delivered


async def test_a_cancel_is_recorded_after_the_decision_that_made_it(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, has_lost = Lash(durable.url), asyncio.Event()

    @app.process
    async def story(ctx: ProcessContext[None]) -> int:
        async def loser() -> int:
            await has_lost.wait()
            return await ctx.options(key="lost").step(one)

        return await ctx.race(loser(), ctx.step(one))

    async with app:
        slow = SlowDecisions(app, monkeypatch)
        handle = await app.start(story)
        await slow.asked.wait()
        has_lost.set()
        await asyncio.sleep(0.2)  # time enough for a write that must not be made
        slow.go.set()
        assert await handle.result(timeout="10s") == 1
    assert slow.writes == ["decision", "withdrawal"]


async def test_a_branch_whose_effect_fails_waits_for_the_decision_about_it(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, has_lost, went_on = Lash(durable.url), asyncio.Event(), list[str]()

    async def fail() -> int:
        await has_lost.wait()
        raise ValueError

    @app.process
    async def story(ctx: ProcessContext[None]) -> int:
        async def loser() -> int:
            try:
                return await ctx.step(fail)
            finally:
                went_on.append("loser")

        return await ctx.race(loser(), ctx.step(one))

    async with app:
        slow = SlowDecisions(app, monkeypatch)
        handle = await app.start(story)
        await slow.asked.wait()
        has_lost.set()
        await asyncio.sleep(0.2)  # time enough to go on
        before = list(went_on)
        slow.go.set()
        assert await handle.result(timeout="10s") == 1
    assert before == []


async def test_no_effect_begins_below_a_gather_that_is_to_be_cancelled(durable: Backend) -> None:
    app, go, performed = Lash(durable.url), asyncio.Event(), list[str]()

    async def note() -> None:
        performed.append("noted")

    @app.process
    async def story(ctx: ProcessContext[None]) -> int:
        async def note_later() -> None:
            await go.wait()
            await ctx.step(note)

        async def loser() -> int:
            await ctx.gather(go.wait(), note_later())
            return 0

        return await ctx.race(loser(), ctx.step(one))

    async with app:
        handle = await app.start(story)
        await asyncio.sleep(0.2)  # until the winner is recorded, which is not visible from outside
        go.set()
        assert await handle.result(timeout="10s") == 1
    assert performed == []


async def test_a_run_that_works_beside_a_wait_keeps_its_slot(durable: Backend) -> None:
    app = Lash(durable.url, worker=WorkerConfig(concurrency=1))
    go, is_working, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    begun: list[str] = []

    async def work() -> None:
        is_working.set()
        await may_end.wait()

    @app.process
    async def other(_: ProcessContext[None]) -> None:
        begun.append("other")

    @app.process
    async def story(ctx: ProcessContext[None]) -> None:
        async def work_later() -> None:
            await go.wait()
            await ctx.step(work)

        await ctx.gather(ctx.wait_signal("end"), work_later())

    async with app:
        handle = await app.start(story)
        await asyncio.sleep(0.2)  # until the wait is open
        second = await app.start(other)
        await asyncio.sleep(0.2)  # time enough to begin, if there were a slot
        assert begun == []
        go.set()
        await is_working.wait()
        await asyncio.sleep(0.2)  # time enough to begin, if there were a slot
        begun_beside = list(begun)
        may_end.set()
        await handle.signal("end")
        await handle.result(timeout="10s")
        await second.result(timeout="10s")
    assert begun_beside == []
