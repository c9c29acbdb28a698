"""Branches that are joined, or left, by tasks which user code starts itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pylash import (
    InlineHost,
    Lash,
    ProcessCancelled,
    ProcessContext,
    StepFailed,
    WorkerConfig,
)
from pylash.stores.store import SqlStore
from pylash.values.errors import StoreUnavailable
from tests.backends import Backend, eventually

AT_ONCE = WorkerConfig(concurrency=1, park_after="0s", grace="1s")

Join = Callable[..., Coroutine[Any, Any, Any]]


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a task as user code may."""
    return asyncio.get_running_loop().create_task(work)


async def value(n: int) -> int:
    return n


async def sleep(ctx: ProcessContext[Any], n: int) -> int:
    await ctx.sleep(f"{n}ms")
    return n


@pytest.mark.parametrize(("join", "found"), [("gather", [10, 20]), ("race", 10)])
async def test_a_branch_goes_on_while_a_task_of_its_code_joins_others(
    durable: Backend, join: str, found: Any
) -> None:
    app = Lash(durable.url, worker=AT_ONCE)

    @app.process
    async def story(ctx: ProcessContext[None]) -> Any:
        task = begin(getattr(ctx, join)(sleep(ctx, 10), sleep(ctx, 20)))
        await asyncio.sleep(0)
        return [await ctx.step(value, 1), await task]

    async with app:
        handle = await app.start(story)
        assert await handle.result(timeout="10s") == [1, found]


@pytest.mark.parametrize(
    ("join", "late", "found"), [("gather", 20, [[20, 10], [10, 20]]), ("race", 10_000, [10, 10])]
)
async def test_two_tasks_of_a_branch_join_branches_at_once(
    durable: Backend, join: str, late: int, found: Any
) -> None:
    app = Lash(durable.url, worker=AT_ONCE)

    @app.process
    async def story(ctx: ProcessContext[None]) -> Any:
        joins: Join = getattr(ctx, join)
        both = joins(sleep(ctx, late), sleep(ctx, 10)), joins(sleep(ctx, 10), sleep(ctx, late))
        return [await task for task in [begin(one) for one in both]]

    async with app:
        handle = await app.start(story)
        assert await handle.result(timeout="10s") == found


async def test_a_process_may_end_while_a_task_of_its_code_joins_branches(durable: Backend) -> None:
    app, tasks = Lash(durable.url, worker=AT_ONCE), list[asyncio.Task[Any]]()

    @app.process
    async def story(ctx: ProcessContext[None]) -> str:
        tasks.append(begin(ctx.gather(sleep(ctx, 10**6), sleep(ctx, 10**6))))
        await asyncio.sleep(0.02)
        return "done"

    async with app:
        handle = await app.start(story)
        assert await handle.result(timeout="10s") == "done"
        await asyncio.wait(tasks)
        assert tasks[0].exception() is not None, "it was let go"


async def test_a_run_is_not_parked_while_a_task_of_its_code_joins_branches(
    durable: Backend,
) -> None:
    app, begun = Lash(durable.url, worker=AT_ONCE), list[str]()

    @app.process
    async def story(ctx: ProcessContext[None]) -> list[int]:
        begun.append(ctx.id)
        task = begin(ctx.gather(sleep(ctx, 100), sleep(ctx, 100)))
        await asyncio.sleep(0.05)  # the code works
        found: list[int] = await task
        return found

    async with app:
        handle = await app.start(story)
        assert await handle.result(timeout="10s") == [100, 100]
    assert len(begun) == 1


async def test_a_cancel_reaches_branches_that_a_task_of_the_code_joins(durable: Backend) -> None:
    app, waiting = Lash(durable.url, worker=AT_ONCE), asyncio.Event()

    @app.process
    async def story(ctx: ProcessContext[None]) -> Any:
        waiting.set()
        return await asyncio.wait_for(ctx.gather(sleep(ctx, 10**6), sleep(ctx, 10**6)), 1000)

    async with app:
        handle = await app.start(story)
        await waiting.wait()
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")


async def test_branches_that_a_process_has_abandoned_end_with_it(durable: Backend) -> None:
    app, unwound = Lash(durable.url), list[str]()

    async def leaf(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.wait_signal("never")
        finally:
            unwound.append("leaf")

    async def middle(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.gather(leaf(ctx), leaf(ctx))
        finally:
            unwound.append("middle")

    @app.process
    async def story(ctx: ProcessContext[None]) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.gather(middle(ctx), middle(ctx))
        except TimeoutError:
            return "late"
        return "in time"

    async def all_unwound() -> bool:
        return sorted(unwound) == ["leaf"] * 4 + ["middle"] * 2

    async with app:
        handle = await app.start(story)

        async def is_blocked() -> bool:
            return await handle.status() == "blocked"

        await eventually(is_blocked)
        await eventually(all_unwound)


async def test_many_branches_that_clean_up_leave_the_slot_to_others(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks for an effect of a run that is detached: together they are no loop."""
    app, failed = Lash(durable.url, worker=AT_ONCE), list[str]()

    async def branch(ctx: ProcessContext[None], n: int) -> None:
        try:
            await ctx.wait_signal(f"never {n}")
        finally:
            await ctx.options(key="clean up").step(value, n)

    @app.process
    async def story(ctx: ProcessContext[None]) -> None:
        await ctx.gather(*[branch(ctx, n) for n in range(60)], ctx.step(value, 1))

    @app.process
    async def other(_: ProcessContext[None]) -> str:
        return "other"

    async with app:
        assert isinstance(app.store, SqlStore)
        honest = app.store.journal.record

        async def record(*given: Any) -> Any:
            if not failed:
                failed.append("away")
                raise StoreUnavailable("away")
            return await honest(*given)

        monkeypatch.setattr(app.store.journal, "record", record)
        await app.start(story)
        handle = await app.start(other)
        assert await handle.result(timeout="20s") == "other"
    assert failed == ["away"]


@pytest.mark.parametrize("host", [None, InlineHost])
async def test_a_step_that_cancels_its_own_task_has_failed(
    backend: Backend, host: type[InlineHost] | None
) -> None:
    app, begun = Lash(backend.url, host=None if host is None else host()), list[str]()

    async def stop() -> None:
        begun.append("step")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    @app.process
    async def story(ctx: ProcessContext[None]) -> str:
        with pytest.raises(StepFailed):
            await ctx.step(stop)
        return "went on"

    async with app:
        handle = await app.start(story)
        assert await handle.result(timeout="10s") == "went on"
    assert begun == ["step"]


@pytest.mark.parametrize("end", ["cancel", "fail", "lose"])
async def test_a_cancel_reaches_a_branch_that_another_branch_awaits(
    durable: Backend, end: str
) -> None:
    app, waiting, cancelled = Lash(durable.url, worker=AT_ONCE), asyncio.Event(), set[str]()

    async def leaf(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            cancelled.add("leaf")

    async def awaiting(task: Any) -> None:
        try:
            await task
        finally:
            cancelled.add("awaiting")

    async def quick(ctx: ProcessContext[None]) -> None:
        await ctx.sleep("20ms")
        if end == "fail":
            raise ValueError("fails")

    async def group(ctx: ProcessContext[None]) -> None:
        async with ctx.task_group() as tasks:
            task = tasks.create_task(leaf(ctx))
            waiting.set()
            await ctx.gather(awaiting(task))

    @app.process
    async def story(ctx: ProcessContext[None]) -> str:
        if end == "cancel":
            await group(ctx)
        elif end == "fail":
            with pytest.raises(ValueError, match="fails"):
                await ctx.gather(group(ctx), quick(ctx))
        else:
            await ctx.race(group(ctx), quick(ctx))
        return "went on"

    async with app:
        handle = await app.start(story)
        await waiting.wait()
        if end == "cancel":
            await handle.cancel("enough")
            with pytest.raises(ProcessCancelled, match="enough"):
                await handle.result(timeout="10s")
        else:
            assert await handle.result(timeout="10s") == "went on"
    assert cancelled == {"leaf", "awaiting"}
