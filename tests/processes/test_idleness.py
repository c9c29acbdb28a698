"""A run is idle only if nothing of it goes on: a run that is parked while it works is woken by nobody."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from pylash import (
    Lash,
    ProcessBlocked,
    ProcessCancelled,
    ProcessContext,
    ProcessHandle,
    WorkerConfig,
)
from pylash.durable.effects import DurableStep, DurableStepOutcome, Outcome
from pylash.engine.runs.asides import aside
from pylash.stores.store import SqlStore
from tests.backends import Backend, eventually, worker_of
from tests.processes.test_branches import parked

AT_ONCE = WorkerConfig(park_after="0s", grace="1s")


class SlowEntries:
    """Holds the reads of single entries of a journal until they may go on."""

    def __init__(self, app: Lash, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        assert isinstance(app.store, SqlStore)
        self._honest = app.store.journal.entry
        monkeypatch.setattr(app.store.journal, "entry", self._entry)

    async def _entry(self, run: int, key: str) -> Any:
        self.asked.set()
        await self.go.wait()
        return await self._honest(run, key)


async def stays_running(handle: ProcessHandle[Any]) -> None:
    """Check that a run is not parked, though there is time for it: parking is one write."""
    for _ in range(10):
        assert await handle.status() == "running"


def add_story(app: Lash, noted: list[str], *, step: str) -> Any:
    async def big() -> str:
        return "x" * 10_000

    async def note() -> None:
        noted.append("noted")

    @app.process(concurrency=1)
    async def story(ctx: ProcessContext[None]) -> int:
        async def branch() -> int:
            text = await ctx.options(key="big").step(big, *([step] if step else []))
            await ctx.wait_signal("first")
            await ctx.step(note)
            return len(text)

        length, _ = await ctx.gather(branch(), ctx.wait_signal("second"))
        return int(length)

    return story


async def test_a_run_that_reads_a_long_outcome_of_its_record_is_not_parked(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, noted = Lash(durable.url, worker=AT_ONCE), list[str]()
    story = add_story(app, noted, step="")
    async with app:
        handle = await app.start(story.options(id="story"))
        await parked(app, "story")
        slow = SlowEntries(app, monkeypatch)
        await handle.signal("first")
        await slow.asked.wait()
        await stays_running(handle)
        slow.go.set()
        await handle.signal("second")
        assert await handle.result(timeout="10s") == 10_000
    assert noted == ["noted"]


async def test_a_run_that_reads_what_its_record_differs_from_is_blocked_and_not_parked(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Lash(durable.url, worker=AT_ONCE)
    story = add_story(first, [], step="")
    async with first:
        await first.start(story.options(id="story"))
        await parked(first, "story")
    app = Lash(durable.url, worker=AT_ONCE)
    add_story(app, [], step="changed")
    async with app:
        slow, handle = SlowEntries(app, monkeypatch), app.process_handle("story")
        await handle.signal("first")
        await slow.asked.wait()
        await stays_running(handle)
        slow.go.set()

        async def is_blocked() -> bool:
            return await handle.status() == "blocked"

        await eventually(is_blocked)
        with pytest.raises(ProcessBlocked, match="effect_replay_mismatch"):
            await handle.result(timeout="1ms")


async def test_a_run_that_awaits_a_branch_which_has_ended_is_not_parked(durable: Backend) -> None:
    app, is_on = Lash(durable.url, worker=AT_ONCE), asyncio.Event()

    async def one() -> int:
        return 1

    async def go_on() -> None:
        is_on.set()

    @app.process(concurrency=1)
    async def story(ctx: ProcessContext[None]) -> int:
        async with ctx.task_group() as group:
            ended = group.create_task(ctx.step(one))
            group.create_task(ctx.wait_signal("second"))
            while not ended.done():  # noqa: ASYNC110 - an effect in this loop would differ from replay to replay
                await asyncio.sleep(0)
            result = await ended
            await ctx.step(go_on)
        return result

    async with app:
        handle = await app.start(story)
        await asyncio.wait_for(is_on.wait(), 10)
        await handle.signal("second")
        assert await handle.result(timeout="10s") == 1


async def test_a_run_whose_held_branch_is_released_is_not_parked(durable: Backend) -> None:
    app = Lash(durable.url, worker=AT_ONCE)
    is_busy, go = asyncio.Event(), asyncio.Event()

    async def one() -> int:
        return 1

    @app.process(concurrency=1)
    async def story(ctx: ProcessContext[None]) -> int:
        async def branch() -> None:
            async with ctx.task_group() as group:
                group.create_task(ctx.wait_signal("never"))
                is_busy.set()
                await go.wait()
                await ctx.step(one)

        async def loser() -> int:
            await ctx.gather(branch())
            return 0

        return await ctx.race(loser(), ctx.step(one))

    async with app:
        handle = await app.start(story)
        await is_busy.wait()
        await asyncio.sleep(0.2)  # until the winner is recorded, which is not visible from outside
        go.set()
        assert await handle.result(timeout="10s") == 1


class Library:
    """Waits for an effect in a task of its own, as libraries do in the code of a branch."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.task: asyncio.Task[Outcome] | None = None

    def begin(self) -> None:
        place = aside()
        assert place is not None

        async def work() -> Outcome:
            self.begun.set()
            await self.go.wait()
            return DurableStepOutcome(7)

        key = place.key(place.take("library"))
        waiting = place.perform(key, "library", DurableStep("library"), work)
        self.task = asyncio.get_running_loop().create_task(waiting)


async def test_a_branch_that_waits_beside_a_library_of_its_own_counts_once(
    durable: Backend,
) -> None:
    app, go, computing = Lash(durable.url, worker=AT_ONCE), asyncio.Event(), asyncio.Event()

    @app.process(concurrency=1)
    async def story(ctx: ProcessContext[None]) -> Any:
        async def mixed() -> Any:
            place = aside()
            assert place is not None
            pause = place.sleep(place.key(place.take("pause")), "pause", 3600)
            task = asyncio.get_running_loop().create_task(pause)
            try:
                return await ctx.wait_signal("go")
            finally:
                task.cancel()

        async def computes() -> Any:
            computing.set()
            await go.wait()
            return await ctx.step(len, "four")

        return await ctx.gather(mixed(), computes())

    async with app:
        handle = await app.start(story)
        await computing.wait()

        await eventually(partial(both_rest, app))
        await stays_running(handle)
        go.set()
        await handle.signal("go", 1)
        assert await handle.result(timeout="10s") == [1, 4]


async def both_rest(app: Lash) -> bool:
    (run,) = worker_of(app).live
    effects = run.machine.state.effects
    return len(effects.in_flight) == 2 and not effects.working


async def test_a_cancel_waits_for_a_branch_that_runs_beside_a_library_of_its_own(
    durable: Backend,
) -> None:
    app, go, computing = Lash(durable.url, worker=AT_ONCE), asyncio.Event(), asyncio.Event()
    library, ended = Library(), list[Any]()

    @app.process
    async def story(ctx: ProcessContext[None]) -> None:
        async def mixed() -> None:
            library.begin()
            await library.begun.wait()
            await ctx.step(len, "one")
            computing.set()
            await go.wait()
            assert library.task is not None
            ended.append((await library.task).value)  # type: ignore[union-attr]  # a step's
            await ctx.step(len, "never")

        await ctx.gather(mixed(), ctx.wait_signal("never"))

    async with app:
        handle = await app.start(story)
        await computing.wait()
        (run,) = worker_of(app).live
        await handle.cancel("enough")

        async def is_cancelled() -> bool:
            return run.cancelled and not run.machine.state.cancels.deliveries

        await eventually(is_cancelled)
        library.go.set()
        go.set()
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")
    assert ended == [7]
