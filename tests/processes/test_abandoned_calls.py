"""Calls of a context that the code itself cancels: no replay could repeat that, so the run is blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from pylash import (
    InlineHost,
    Lash,
    ProcessBlocked,
    ProcessCancelled,
    ProcessContext,
    StepTimeout,
    WaitTimeout,
    WorkerConfig,
)
from pylash.testing import ScriptedModel, kill, say
from tests.backends import Backend, eventually

Call = Callable[[ProcessContext[None]], Awaitable[Any]]

NEVER = 10**6


async def slow() -> str:
    await asyncio.sleep(NEVER)
    return "never"


async def reply(_: Any) -> Any:
    await asyncio.sleep(NEVER)
    return say("never")


def app_with(url: str, body: Call) -> Lash:
    # A turn whose model never answers goes on when the process is blocked: closing the app must not wait for it.
    app = Lash(url, model=ScriptedModel(reply), worker=WorkerConfig(grace="10ms"))

    @app.process(name="story")
    async def story(ctx: ProcessContext[None]) -> Any:
        return await body(ctx)

    @app.process
    async def child(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    @app.tool
    async def slow_tool() -> str:
        """Take long."""
        return await slow()

    return app


async def call_child(ctx: ProcessContext[None]) -> Any:
    child = await ctx.start(ctx._services.definitions["child"])
    async with asyncio.timeout(0.05):
        return await child.result()


CALLS: dict[str, Call] = {
    "step": lambda ctx: ctx.step(slow),
    "sleep": lambda ctx: ctx.sleep(NEVER),
    "wait_signal": lambda ctx: ctx.wait_signal("never"),
    "wait": lambda ctx: ctx.wait(ctx.wait_key("never")),
    "call_tool": lambda ctx: ctx.call_tool("slow_tool"),
    "complete": lambda ctx: ctx.complete("Hi"),
    "turn": lambda ctx: ctx.session("s").turn("Hi"),
    "gather": lambda ctx: ctx.gather(ctx.step(slow), ctx.sleep(NEVER)),
    "race": lambda ctx: ctx.race(ctx.step(slow), ctx.sleep(NEVER)),
}


async def in_timeout(ctx: ProcessContext[None], call: Call) -> str:
    try:
        async with asyncio.timeout(0.05):
            await call(ctx)
    except BaseException:  # noqa: BLE001 - nothing may be caught
        await ctx.step(str, "went on")
    return "went on"


async def in_branch(ctx: ProcessContext[None], call: Call) -> Any:
    return await ctx.gather(in_timeout(ctx, call), ctx.sleep(NEVER))


async def in_wait_for(ctx: ProcessContext[None], call: Call) -> str:
    try:
        await asyncio.wait_for(call(ctx), 0.05)
    except TimeoutError:
        return "went on"
    return "ended"


async def in_cancelled_task(ctx: ProcessContext[None], call: Call) -> str:
    task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(call(ctx))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    return "went on"


async def in_cancel_scope(ctx: ProcessContext[None], call: Call) -> str:
    with anyio.move_on_after(0.05):
        await call(ctx)
    return "went on"


async def in_task_group(ctx: ProcessContext[None], call: Call) -> str:
    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise ValueError("no")

    work = call(ctx)

    async def make_call() -> None:
        await work

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(make_call)
            group.start_soon(fail)
    except* ValueError:
        pass
    return "went on"


async def blocked_reason(app: Lash) -> str:
    handle = app.process_handle("p")

    async def stands() -> bool:
        return await handle.status() in ("blocked", "failed", "completed")

    await eventually(stands)
    with pytest.raises(ProcessBlocked) as blocked:
        await handle.result(timeout=0)
    return blocked.value.reason


@pytest.mark.parametrize(
    "around",
    [in_timeout, in_branch, in_wait_for, in_cancelled_task, in_cancel_scope, in_task_group],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_that_the_code_cancels_blocks_the_run(
    durable: Backend,
    call: Call,
    around: Callable[[ProcessContext[None], Call], Awaitable[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with app_with(durable.url, lambda ctx: around(ctx, call)) as app:
        await app.start(app.services.definitions["story"].options(id="p"))
        reason = await blocked_reason(app)
        assert reason.startswith("effect_abandoned: ")
        assert "timeout=" in reason
        timeline = await app.process_handle("p").timeline()
    assert "str" not in [effect.name for effect in timeline]
    assert "process p failed" not in caplog.text


async def test_the_result_of_a_child_that_the_code_abandons_blocks_the_run(
    durable: Backend,
) -> None:
    async with app_with(durable.url, call_child) as app:
        await app.start(app.services.definitions["story"].options(id="p"))
        assert "effect_abandoned" in await blocked_reason(app)


async def test_an_abandoned_run_goes_on_with_mended_code(durable: Backend) -> None:
    async def before(ctx: ProcessContext[None]) -> Any:
        first = await ctx.step(str, "first")
        async with asyncio.timeout(0.05):
            return [first, await ctx.wait_signal("go")]

    async def after(ctx: ProcessContext[None]) -> Any:
        first = await ctx.step(str, "first")
        return [first, await ctx.wait_signal("go", timeout="1h")]

    async with app_with(durable.url, before) as app:
        await app.start(app.services.definitions["story"].options(id="p"))
        assert "effect_abandoned" in await blocked_reason(app)
    async with app_with(durable.url, after) as app:
        await app.retry("p")
        handle = app.process_handle("p")
        await handle.signal("go", 7)
        assert await handle.result(timeout="10s") == ["first", 7]


async def durable_timeouts(ctx: ProcessContext[None]) -> list[str]:
    found = []
    for work in (
        ctx.options(timeout="10ms").step(slow),
        ctx.wait_signal("never", timeout="10ms"),
        ctx.wait(ctx.wait_key("never"), timeout="10ms"),
    ):
        try:
            await work
        except (WaitTimeout, StepTimeout) as error:
            found.append(error.code)
        except Exception as error:  # noqa: BLE001 - a step's failure has the code of its error
            found.append(getattr(error, "code", repr(error)))
    await ctx.race(ctx.sleep("10ms"), ctx.wait_signal("never"))
    async with asyncio.timeout(NEVER):
        await ctx.sleep("1ms")
    return found


async def test_timeouts_of_calls_and_races_are_recorded(durable: Backend) -> None:
    async with app_with(durable.url, durable_timeouts) as app:
        handle = await app.start(app.services.definitions["story"].options(id="p"))
        codes = ["step_timeout", "process_signal_wait_timeout", "wait_timeout"]
        assert await handle.result(timeout="10s") == codes


async def test_a_run_that_is_asked_to_end_may_limit_its_last_steps(durable: Backend) -> None:
    begun = asyncio.Event()

    async def body(ctx: ProcessContext[None]) -> None:
        try:
            begun.set()
            await ctx.wait_signal("never")
        finally:
            async with asyncio.timeout(0.05):
                await ctx.step(slow)

    async with app_with(durable.url, body) as app:
        handle = await app.start(app.services.definitions["story"].options(id="p"))
        await begun.wait()
        await handle.cancel("enough")

        async def has_ended() -> bool:
            return await handle.status() not in ("running", "waiting", "queued")

        await eventually(has_ended)
        assert await handle.status() in ("failed", "cancelled")


@pytest.mark.parametrize("ends", ["close", "kill"])
async def test_a_run_that_is_parked_killed_or_released_is_not_abandoned(
    durable: Backend, ends: str
) -> None:
    async def body(ctx: ProcessContext[None]) -> Any:
        return await ctx.gather(ctx.wait_signal("go"), ctx.wait_signal("go"))

    app = app_with(durable.url, body)
    await app.open()
    await app.start(app.services.definitions["story"].options(id="p"))
    await eventually(app.waits)
    await (app.close() if ends == "close" else kill(app))
    async with app_with(durable.url, body) as app:
        handle = app.process_handle("p")
        assert await handle.status() != "blocked"
        await handle.signal("go", 1)
        await handle.signal("go", 2)
        assert sorted(await handle.result(timeout="10s")) == [1, 2]


async def test_a_host_without_records_has_nothing_to_repeat() -> None:
    app = Lash("memory://", host=InlineHost())

    @app.process
    async def story(ctx: ProcessContext[None]) -> str:
        try:
            async with asyncio.timeout(0.02):
                await ctx.sleep(NEVER)
        except TimeoutError:
            return "late"
        return "in time"

    @app.process
    async def endless(ctx: ProcessContext[None]) -> None:
        await ctx.sleep(NEVER)

    async with app:
        assert await (await app.start(story)).result(timeout="10s") == "late"
        handle = await app.start(endless)
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
