"""Branches: gather, race and task groups, each the same under replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import InlineHost, Lash, ProcessContext, ProcessFailed, StepFailed, WorkerConfig
from pylash.testing import SerialHost
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_steps import effects

PARKING = WorkerConfig(park_after="1ms")


async def value(n: int) -> int:
    return n


async def fetch(ctx: ProcessContext[Any], n: int) -> int:
    first = await ctx.step(value, n)
    return first + await ctx.step(value, 10)


async def test_branches_number_their_own_names(backend: Backend) -> None:
    app = Lash(backend.url)

    @app.process
    async def fan(ctx: ProcessContext[None]) -> list[int]:
        return await ctx.gather(*[fetch(ctx, n) for n in range(3)])

    async with app:
        handle = await app.start(fan)
        assert await handle.result(timeout="10s") == [10, 11, 12]
        keys = set(await effects(app, handle.id))
    assert keys == {f"gather.{n}/value{count}" for n in range(3) for count in ("", "#2")}


async def test_direct_calls_take_their_keys_in_the_order_of_the_text(backend: Backend) -> None:
    app = Lash(backend.url)

    @app.process
    async def fan(ctx: ProcessContext[None]) -> list[int]:
        return await ctx.gather(ctx.step(value, 1), ctx.step(value, 2))

    async with app:
        handle = await app.start(fan)
        assert await handle.result(timeout="10s") == [1, 2]
        assert set(await effects(app, handle.id)) == {"value", "value#2"}


@pytest.mark.parametrize("host", [None, SerialHost], ids=["by key", "by position"])
async def test_what_a_branch_has_written_is_there_after_it_was_parked(
    durable: Backend, host: Any
) -> None:
    """Its code is entered again though it has ended: its result is not all that the process gets from it."""
    app = Lash(durable.url, worker=PARKING, host=host)
    entries: list[str] = []

    @app.process
    async def collect(ctx: ProcessContext[None]) -> dict[str, int]:
        found: dict[str, int] = {}
        entries.append("process")

        async def branch(n: int) -> None:
            entries.append(f"branch {n}")
            found[f"page {n}"] = await fetch(ctx, n)

        await ctx.gather(branch(0), branch(1))
        await ctx.gather(branch(2), ctx.wait_signal("go"))
        return found

    async with app:
        handle = await app.start(collect.options(id="collect"))
        await parked(app, "collect")
        await handle.signal("go")
        expected = {"page 0": 10, "page 1": 11, "page 2": 12}
        assert await handle.result(timeout="10s") == expected
    assert sorted(entries) == sorted(["branch 0", "branch 1", "branch 2", "process"] * 2)


async def test_a_race_is_won_once_and_for_all(durable: Backend) -> None:
    """The loser is cancelled where it waits, cleans up, and does so again on replay."""
    cleaned: list[str] = []

    async def clean(name: str) -> None:
        cleaned.append(name)

    async def slow(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.sleep("1h")
        finally:
            await ctx.step(clean, "slow")
        return "slow"

    async def quick(ctx: ProcessContext[None]) -> str:
        await ctx.sleep("1ms")
        return "quick"

    async def contest(ctx: ProcessContext[None]) -> str:
        winner = await ctx.race(slow(ctx), quick(ctx))
        await ctx.wait_signal("go")
        return winner

    app = Lash(durable.url, worker=PARKING)
    async with app:
        handle = await app.start(app.process(contest).options(id="race"))
        await parked(app, "race")
    assert cleaned == ["slow"]
    again = Lash(durable.url, worker=PARKING)
    again.process(contest)
    async with again:
        handle = again.process_handle("race")
        await handle.signal("go")
        assert await handle.result(timeout="10s") == "quick"
    assert cleaned == ["slow"]


async def parked(app: Lash, process_id: str) -> None:
    """Wait until a process keeps only its row."""

    async def look() -> bool:
        return await app.process_handle(process_id).status() == "waiting"

    await eventually(look)


async def test_a_gather_that_fails_cancels_its_siblings_and_records_which_was_first(
    backend: Backend,
) -> None:
    app = Lash(backend.url)
    ended: list[str] = []

    async def boom() -> None:
        raise ValueError("boom")

    async def failing(ctx: ProcessContext[None]) -> None:
        await ctx.step(boom)

    async def waiting(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.wait_signal("never")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @app.process
    async def fan(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.gather(waiting(ctx), failing(ctx), key="both")
        except StepFailed as error:
            return error.message
        return "never"

    async with app:
        handle = await app.start(fan)
        assert await handle.result(timeout="10s") == "boom"
        assert "both" in await effects(app, handle.id)
    assert ended == ["cancelled"]


@EVERY_ENGINE
async def test_a_task_group_is_like_asyncios(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def grouped(ctx: ProcessContext[None]) -> int:
        async with ctx.task_group() as group:
            first = group.create_task(fetch(ctx, 1))
            second = group.create_task(fetch(ctx, 2))
            early = await first
        return early + second.result()

    async def boom() -> None:
        raise ValueError("boom")

    @app.process
    async def failing(ctx: ProcessContext[None]) -> list[str]:
        messages: list[str] = []
        try:
            async with ctx.task_group() as group:
                group.create_task(ctx.step(boom))
                group.create_task(ctx.sleep("1h"))
        except* StepFailed as errors:
            messages += [str(error.args[0]) for error in errors.exceptions]
        return messages

    async with app:
        assert await (await app.start(grouped)).result(timeout="10s") == 23
        assert await (await app.start(failing)).result(timeout="10s") == ["boom"]


@EVERY_ENGINE
async def test_a_context_is_refused_to_tasks_the_process_did_not_start(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def wild(ctx: ProcessContext[None]) -> None:
        await asyncio.gather(fetch(ctx, 1), fetch(ctx, 2))  # noqa: TID251 - the mistake

    async with app:
        with pytest.raises(ProcessFailed, match=r"pass the coroutine to ctx\.gather") as caught:
            await (await app.start(wild)).result(timeout="10s")
        assert caught.value.code == "effect_outside_branch"


async def test_direct_calls_under_asyncio_gather_work_and_keep_the_run_live(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    app = Lash(backend.url, worker=PARKING)

    @app.process
    async def direct(ctx: ProcessContext[None]) -> list[Any]:
        works = (ctx.wait_signal("go"), ctx.step(value, 1))
        return list(await asyncio.gather(*works))  # noqa: TID251 - allowed for direct calls

    async with app:
        handle = await app.start(direct)
        await handle.signal("go", 2)
        assert await handle.result(timeout="10s") == [2, 1]
    assert "use ctx.gather" in caplog.text


@pytest.mark.proves("E9")
async def test_a_host_that_cannot_overlap_gets_one_effect_after_the_other(backend: Backend) -> None:
    app = Lash(backend.url, host=SerialHost(InlineHost()))
    running: list[int] = []

    async def alone(n: int) -> int:
        running.append(n)
        await asyncio.sleep(0.005)
        assert running == [n]
        running.remove(n)
        return n

    @app.process
    async def fan(ctx: ProcessContext[None]) -> list[int]:
        return await ctx.gather(*[ctx.step(alone, n) for n in range(4)])

    async with app:
        assert await (await app.start(fan)).result(timeout="10s") == [0, 1, 2, 3]
