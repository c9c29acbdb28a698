"""Gathers with a limit, and gathers that return exceptions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from pylash import (
    ArgumentsInvalid,
    DurationInvalid,
    Lash,
    ProcessCancelled,
    ProcessContext,
    Retry,
    StepFailed,
    WorkerConfig,
    current_attempt,
)
from pylash.testing import SerialHost, SimClock, crash_everywhere
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_branches import parked
from tests.processes.test_steps import effects

AT_ONCE = WorkerConfig(park_after="0s")


async def value(n: int) -> int:
    return n


async def test_a_limit_bounds_the_branches_that_run_at_once(backend: Backend) -> None:
    app = Lash(backend.url)
    running: set[int] = set()
    most = 0

    async def work(n: int) -> int:
        nonlocal most
        running.add(n)
        most = max(most, len(running))
        await asyncio.sleep(0.002)
        running.remove(n)
        return n

    async def branch(ctx: ProcessContext[None], n: int) -> int:
        return await ctx.step(work, n)

    @app.process
    async def fan(ctx: ProcessContext[None]) -> list[int]:
        return await ctx.gather(*[branch(ctx, n) for n in range(12)], limit=3)

    async with app:
        handle = await app.start(fan)
        assert await handle.result(timeout="10s") == list(range(12))
        assert set(await effects(app, handle.id)) == {f"gather.{n}/work" for n in range(12)}
    assert most == 3


@pytest.mark.parametrize("host", [None, SerialHost], ids=["by key", "by position"])
async def test_a_limited_gather_is_parked_and_goes_on_in_order(durable: Backend, host: Any) -> None:
    clock = SimClock()
    app = Lash(durable.url, clock=clock, worker=AT_ONCE, host=host)

    async def branch(ctx: ProcessContext[None], n: int) -> int:
        await ctx.sleep("1d", name=f"day {n}")
        return await ctx.step(value, n)

    @app.process
    async def fan(ctx: ProcessContext[None]) -> list[int]:
        return await ctx.gather(*[branch(ctx, n) for n in range(4)], limit=2)

    async with app:
        handle = await app.start(fan.options(id="fan"))
        await parked(app, "fan")
        await clock.advance("36h")
        names = [one.name for one in await handle.timeline()]
        if host is None:
            assert sorted(names) == ["day 0", "day 1", "day 2", "day 3", "value", "value"]
        await clock.advance("4d")
        assert await handle.result(timeout="10s") == [0, 1, 2, 3]


async def test_named_sleeps_can_be_moved(durable: Backend) -> None:
    """Without names they are told apart by their order."""
    clock = SimClock()

    def make(*sleeps: tuple[str, str]) -> Lash:
        app = Lash(durable.url, clock=clock)

        @app.process
        async def sleeping(ctx: ProcessContext[None]) -> None:
            for duration, name in sleeps:
                await ctx.sleep(duration, name=name)
            await ctx.wait_signal("go")

        return app

    async with make(("1d", "day"), ("1h", "hour")) as app:
        await app.start(app.services.definitions["sleeping"].options(id="sleeping"))
        await parked(app, "sleeping")
        await clock.advance("26h")
    async with make(("1h", "hour"), ("1d", "day")) as app:
        handle = app.process_handle("sleeping")
        await handle.signal("go")
        await handle.result(timeout="10s")
        assert set(await effects(app, "sleeping")) >= {"sleep day", "sleep hour"}


@EVERY_ENGINE
@pytest.mark.parametrize("limit", [None, 2])
async def test_a_failure_cancels_what_runs_and_starts_nothing_more(
    backend: Backend, limit: int | None
) -> None:
    app = backend.app()
    met: list[str] = []

    async def fail() -> None:
        raise ValueError("no")

    async def waiting(ctx: ProcessContext[None]) -> None:
        met.append("began")
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step(value, 1)
            met.append("cleaned")

    @app.process
    async def fan(ctx: ProcessContext[None]) -> str:
        try:
            works = [waiting(ctx), ctx.step(fail), waiting(ctx)]
            await ctx.gather(*works, limit=limit)
        except StepFailed as error:
            return error.message
        return "never"

    async with app:
        handle = await app.start(fan)
        assert await handle.result(timeout="10s") == "no"
    expected = 1 if limit else 2
    assert sorted(met) == ["began"] * expected + ["cleaned"] * expected


@pytest.mark.parametrize(
    ("limits", "failing"), [((2, 2), 0), ((None, 1), 1)], ids=["same", "changed"]
)
async def test_a_replay_enters_what_was_begun_before_a_failure(
    durable: Backend, limits: tuple[int | None, int], failing: int
) -> None:
    """Also branches without effects: they may have changed variables of the process."""

    def make(limit: int | None) -> Lash:
        app = Lash(durable.url, worker=AT_ONCE)

        @app.process
        async def fan(ctx: ProcessContext[None]) -> list[int]:
            found: list[int] = []

            async def note(n: int) -> None:
                found.append(n)

            async def fail() -> None:
                if failing == 0:
                    await ctx.wait_signal("fail")
                raise ValueError("no")

            works = [note(n) for n in range(3)]
            works.insert(failing, fail())
            with pytest.raises(ValueError, match="no"):
                await ctx.gather(*works, limit=limit)
            await ctx.wait_signal("go")
            return found

        return app

    first, second = limits
    async with make(first) as app:
        handle = await app.start(app.services.definitions["fan"].options(id="fan"))
        await handle.signal("fail")
        await eventually(lambda: is_behind_gather(app))
        await parked(app, "fan")
    async with make(second) as app:
        handle = app.process_handle("fan")
        await handle.signal("go")
        assert await handle.result(timeout="10s") == [0, 1, 2]


async def is_behind_gather(app: Lash) -> bool:
    return "go" in [one.name for one in await app.process_handle("fan").timeline()]


async def test_exceptions_are_returned_and_a_cancel_is_raised(durable: Backend) -> None:
    app = Lash(durable.url, worker=AT_ONCE)
    went_on: list[int | None] = []

    async def fail(n: int) -> None:
        raise ValueError(f"no {n}")

    async def own(ctx: ProcessContext[None]) -> None:
        await ctx.step(value, 7)
        raise KeyError("own")

    async def give_up(ctx: ProcessContext[None], error: BaseException) -> None:
        await ctx.step(value, 8)
        raise error

    @app.process
    async def fan(ctx: ProcessContext[None]) -> list[str]:
        works = [ctx.step(fail, 1), ctx.step(value, 2), own(ctx)]
        works.append(give_up(ctx, asyncio.CancelledError()))
        results = await ctx.gather(*works, limit=2, return_exceptions=True)
        await ctx.wait_signal("go")
        with pytest.raises(SystemExit):
            await ctx.gather(give_up(ctx, SystemExit(1)), return_exceptions=True)
        return [type(one).__name__ for one in results]

    async def stubborn(ctx: ProcessContext[None]) -> None:
        with suppress(asyncio.CancelledError):
            await ctx.wait_signal("never")

    @app.process
    async def stuck(ctx: ProcessContext[None], limit: int | None) -> list[Any]:
        works = [stubborn(ctx), ctx.step(fail, 1)]
        results = await ctx.gather(*works, limit=limit, return_exceptions=True)
        went_on.append(limit)
        return results

    async with app:
        handle = await app.start(fan.options(id="fan"))
        await parked(app, "fan")
        await handle.signal("go")
        assert await handle.result(timeout="10s") == [
            "StepFailed",
            "int",
            "KeyError",
            "CancelledError",
        ]
        for limit in (None, 1):
            other = await app.start(stuck.options(id=f"stuck-{limit}"), limit=limit)
            await parked(app, other.id)
            await other.cancel()
            with pytest.raises(ProcessCancelled):
                await other.result(timeout="10s")
    assert went_on == []


async def test_a_limit_must_be_a_number() -> None:
    app = Lash("memory://")

    @app.process
    async def fan(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.gather(limit=0)
        except ArgumentsInvalid as error:
            return error.message
        return "never"

    async with app:
        said = await (await app.start(fan)).result(timeout="10s")
    assert "limit=0 is not a number of at least 1" in said


def make_limited_app(store: str) -> Lash:
    app = Lash(store, worker=AT_ONCE)

    async def fail() -> None:
        raise ValueError("no")

    async def quick(ctx: ProcessContext[None], n: int) -> int:
        await ctx.sleep("2ms")
        return await ctx.step(value, n)

    async def last(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("fail")
        await ctx.step(fail)

    async def cleaning(ctx: ProcessContext[None]) -> None:
        await ctx.emit("begun")
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.emit("cleaned")

    @app.process
    async def limited(ctx: ProcessContext[None]) -> list[Any]:
        first = await ctx.gather(*[quick(ctx, n) for n in range(5)], limit=2)
        try:
            await ctx.gather(last(ctx), quick(ctx, 1), cleaning(ctx), quick(ctx, 2), limit=2)
        except StepFailed as error:
            return [*first, error.message]
        return first

    return app


async def limited_story(app: Lash) -> list[Any]:
    limited = app.services.definitions["limited"]
    handle = await app.start(limited.options(id="limited"))
    async for event in handle.events(follow=True):
        if event.type == "begun":
            await handle.signal("fail", id="only")
            break
    result: list[Any] = await handle.result(timeout="20s")
    cleaned = [event.type async for event in handle.events() if event.type == "cleaned"]
    return [*result, *cleaned]


def test_a_limited_gather_ends_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(make_limited_app, limited_story)
    assert report.outcome == [0, 1, 2, 3, 4, "no", "cleaned"]


@pytest.mark.parametrize("kind", ["step", "tool"])
async def test_attempts_know_their_number_and_delays_have_a_limit(
    backend: Backend, kind: str
) -> None:
    clock = SimClock()
    app = Lash(backend.url, clock=clock)
    attempts: list[int] = []
    retry = Retry(5, delay="1h", factor=10, max_delay="2h", jitter=False)

    def flaky() -> int:
        """Fail four times."""
        attempts.append(current_attempt())
        if current_attempt() < 5:
            raise ConnectionError
        return current_attempt()

    app.tool(retry=retry)(flaky)

    @app.process
    async def patient(ctx: ProcessContext[None]) -> int:
        step = ctx.options(retry=retry).step(flaky) if kind == "step" else ctx.call_tool("flaky")
        return await step

    async with app:
        handle = await app.start(patient)
        await eventually(handle.timeline)
        await clock.advance("7h")
        assert await handle.result(timeout="10s") == 5
        ends = [one for one in await handle.timeline() if one.kind == "sleep"]
        assert [round(one.seconds or 0) for one in ends] == [3600, 7200, 7200, 7200]
    assert attempts == [1, 2, 3, 4, 5]
    assert current_attempt() == 1


def test_a_limit_of_delays_is_checked_and_holds_after_many_failures() -> None:
    assert Retry(9999, max_delay="1h", jitter=False).pause(9000, 0.5) == 3600
    assert Retry(9999, max_delay="1h").pause(9000, 0.5) == 2700
    with pytest.raises(DurationInvalid):
        Retry(max_delay="soon")
