"""Cancel, detach, fail: three different things."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import (
    Lash,
    ProcessCancelled,
    ProcessContext,
    ProcessFailed,
    StepFailed,
    WorkerConfig,
)
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_branches import PARKING, parked
from tests.processes.test_signals import LIVE
from tests.processes.test_steps import effects


@EVERY_ENGINE
@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_a_cancelled_process_cleans_up_with_durable_steps(
    backend: Backend, config: WorkerConfig
) -> None:
    cleaned: list[str] = []

    async def clean(what: str) -> None:
        cleaned.append(what)

    app = backend.app(worker=config)

    @app.process
    async def tidy(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.sleep("1h")
        except asyncio.CancelledError:
            await ctx.step(clean, "except")
            raise
        finally:
            await ctx.sleep("1ms")
            await ctx.step(clean, "finally")

    async with app:
        handle = await app.start(tidy)
        if config is PARKING:
            await parked(app, handle.id)
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")
        assert await handle.status() == "cancelled"
        types = [event.type async for event in handle.events()]
    assert cleaned == ["except", "finally"]
    assert types == ["process.started", "process.cancel_requested", "process.cancelled"]


@EVERY_ENGINE
@pytest.mark.proves("P8")
async def test_a_cancel_before_the_start_is_seen_at_the_first_effect(backend: Backend) -> None:
    async def never() -> None:
        raise AssertionError("it was cancelled before")

    app, begun = backend.app(), []

    @app.process
    async def late(ctx: ProcessContext[None]) -> None:
        begun.append(True)
        await ctx.step(never)

    async with app:
        handle = await app.start(late.options(delay="300ms"))
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
    assert begun == [True]


@EVERY_ENGINE
async def test_a_process_may_catch_its_cancel_and_return(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def stubborn(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.wait_signal("never")
        except asyncio.CancelledError:
            await ctx.sleep("1ms")
        return "done anyway"

    async with app:
        handle = await app.start(stubborn)
        await handle.cancel()
        assert await handle.result(timeout="10s") == "done anyway"


@pytest.mark.proves("P8")
async def test_a_cancel_is_replayed_at_the_effect_where_it_was_delivered(durable: Backend) -> None:
    """Killed in the middle of cleaning up, it is cancelled again where it was, and nowhere else."""
    log: list[str] = []

    async def note(what: str) -> None:
        log.append(what)

    async def tidy(ctx: ProcessContext[None]) -> str:
        for n in range(3):
            try:
                await ctx.wait_signal(f"n{n}")
            except asyncio.CancelledError:
                log.append(f"cancelled at {n}")
                await ctx.step(note, "cleaning")
                await ctx.wait_signal("cleaned")
        return "returned"

    app = Lash(durable.url, worker=PARKING)
    async with app:
        handle = await app.start(app.process(tidy).options(id="p"))
        await handle.signal("n0")
        await eventually(lambda: _recorded(app, "root:process:wait_signal:n1"))
        await handle.cancel()
        await eventually(lambda: _recorded(app, "note"))
    assert log == ["cancelled at 1", "cleaning"]
    again = Lash(durable.url, worker=PARKING)
    again.process(tidy)
    async with again:
        handle = again.process_handle("p")
        await handle.signal("cleaned")
        await handle.signal("n2")
        assert await handle.result(timeout="10s") == "returned"
    # Each replay is cancelled there again; a worker may park between the two signals, and replay.
    assert log[:3] == ["cancelled at 1", "cleaning", "cancelled at 1"]
    assert set(log[3:]) <= {"cancelled at 1"}


async def _recorded(app: Lash, key: str) -> bool:
    return key in await effects(app, "p")


@EVERY_ENGINE
async def test_a_step_in_flight_is_cancelled(backend: Backend) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("step")

    app = backend.app()

    @app.process
    async def busy(ctx: ProcessContext[None]) -> None:
        await ctx.step(long)

    async with app:
        handle = await app.start(busy)
        await begun.wait()
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
    assert ended == ["step"]


@EVERY_ENGINE
async def test_a_cancel_reaches_every_branch(backend: Backend) -> None:
    cleaned: list[int] = []

    async def clean(n: int) -> None:
        cleaned.append(n)

    async def part(ctx: ProcessContext[None], n: int) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            await ctx.step(clean, n)

    app = backend.app(worker=PARKING)

    @app.process
    async def fan(ctx: ProcessContext[None]) -> None:
        await ctx.gather(*[part(ctx, n) for n in range(3)])

    async with app:
        handle = await app.start(fan)
        await parked(app, handle.id)
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
    assert sorted(cleaned) == [0, 1, 2]


@EVERY_ENGINE
async def test_a_cancel_reaches_branches_that_share_a_lock(backend: Backend) -> None:
    """One branch has the lock and is at an effect; the others wait for the lock, where the runtime cannot see them."""
    working = asyncio.Event()

    async def work() -> None:
        working.set()
        await asyncio.sleep(0.01)

    app = Lash(backend.url, worker=LIVE)

    @app.process
    async def share(ctx: ProcessContext[None]) -> None:
        lock = asyncio.Lock()

        async def part() -> None:
            async with lock:
                for _ in range(1000):
                    await ctx.step(work)

        await ctx.gather(*(part() for _ in range(3)))

    async with app:
        handle = await app.start(share)
        await asyncio.wait_for(working.wait(), 10)
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")


@EVERY_ENGINE
async def test_a_cancel_that_comes_while_a_task_group_fails_is_raised(backend: Backend) -> None:
    """The block has failed, and its branches clean up: the cancel is delivered there, and is the process's too."""
    cleaning = asyncio.Event()

    async def clean() -> None:
        cleaning.set()
        await asyncio.sleep(3600)

    async def part(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            await ctx.step(clean)

    app = backend.app(worker=LIVE)

    @app.process
    async def fail(ctx: ProcessContext[None]) -> str:
        try:
            async with ctx.task_group() as group:
                group.create_task(part(ctx))
                await ctx.sleep("1ms")
                raise ValueError("no")  # noqa: TRY301 - as users do
        except* ValueError:
            pass
        return await ctx.step(lambda: "goes on")

    async with app:
        handle = await app.start(fail)
        await asyncio.wait_for(cleaning.wait(), 10)
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")


@EVERY_ENGINE
async def test_force_ends_a_process_without_running_its_code(backend: Backend) -> None:
    cleaned: list[str] = []

    async def clean() -> None:
        cleaned.append("step")

    app = backend.app(worker=LIVE)

    @app.process
    async def stubborn(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step(clean)

    async with app:
        handle = await app.start(stubborn)
        await handle.cancel("now", force=True)
        with pytest.raises(ProcessCancelled, match="now"):
            await handle.result(timeout="10s")
    assert cleaned == []


async def test_attached_children_end_with_their_parent_and_others_do_not(backend: Backend) -> None:
    app = Lash(backend.url, worker=PARKING)

    @app.process
    async def child(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("end")

    @app.process
    async def parent(ctx: ProcessContext[None]) -> None:
        await ctx.start(child.options(id="attached", attached=True))
        await ctx.start(child.options(id="free"))
        await ctx.wait_signal("never")

    async with app:
        handle = await app.start(parent)
        await eventually(lambda: app.store.processes.get("free"))
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
        with pytest.raises(ProcessCancelled):
            await app.process_handle("attached").result(timeout="10s")
        assert await app.process_handle("free").status() in ("queued", "running", "waiting")
        await app.process_handle("free").signal("end")
        await app.process_handle("free").result(timeout="10s")


@EVERY_ENGINE
async def test_cleaning_up_happens_once_across_three_parkings(backend: Backend) -> None:
    """Detaching runs plain code in ``finally``, but no durable step: the true end does."""
    steps: list[str] = []
    plain: list[str] = []

    async def note(what: str) -> None:
        steps.append(what)

    app = backend.app(worker=PARKING)

    @app.process
    async def thrice(ctx: ProcessContext[None]) -> str:
        try:
            for n in range(3):
                try:
                    await ctx.wait_signal("next")
                finally:
                    await ctx.step(note, f"inner {n}")
        finally:
            plain.append("ran")
            await ctx.step(note, "outer")
        return "done"

    async with app:
        handle = await app.start(thrice)
        for _ in range(3):
            await parked(app, handle.id)
            await handle.signal("next")
        assert await handle.result(timeout="10s") == "done"
    assert steps == ["inner 0", "inner 1", "inner 2", "outer"]
    assert len(plain) == 4


@EVERY_ENGINE
async def test_code_that_catches_everything_is_parked_all_the_same(backend: Backend) -> None:
    app, caught = backend.app(worker=PARKING), []

    @app.process
    async def greedy(ctx: ProcessContext[None]) -> Any:
        for _ in range(3):
            try:
                return await ctx.wait_signal("go")
            except BaseException as error:  # noqa: BLE001 - the mistake
                caught.append(type(error).__name__)
        return "ignored"

    async with app:
        handle = await app.start(greedy)
        await parked(app, handle.id)
        await handle.signal("go", 1)
        assert await handle.result(timeout="10s") == 1
    assert caught == ["Detached"] * 3


@EVERY_ENGINE
@pytest.mark.proves("P16")
async def test_a_failure_keeps_its_class_code_message_and_raw_value(backend: Backend) -> None:
    app = backend.app()

    class Declined(Exception):
        pass

    async def charge() -> None:
        raise Declined("no money")

    @app.process
    async def own(ctx: ProcessContext[None]) -> None:
        raise Declined("no money", {"cents": 5})

    @app.process
    async def steps(ctx: ProcessContext[None]) -> None:
        await ctx.step(charge)

    async with app:
        with pytest.raises(ProcessFailed) as caught:
            await (await app.start(own)).result(timeout="10s")
        failure = caught.value.failure
        assert (failure.failure_class, failure.code) == ("Declined", "process_failed")
        assert failure.raw == ["no money", {"cents": 5}]
        with pytest.raises(ProcessFailed, match="no money") as caught:
            await (await app.start(steps)).result(timeout="10s")
        assert caught.value.failure.failure_class == "Declined"
        assert caught.value.code == StepFailed.default_code


@EVERY_ENGINE
async def test_a_process_that_takes_too_long_is_asked_to_end_and_fails(backend: Backend) -> None:
    app, cleaned = backend.app(worker=PARKING), []

    async def clean() -> None:
        cleaned.append(True)

    @app.process(timeout="100ms")
    async def slow(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step(clean)

    async with app:
        with pytest.raises(ProcessFailed) as caught:
            await (await app.start(slow)).result(timeout="10s")
        assert caught.value.code == "process_timeout"
    assert cleaned == [True]


@EVERY_ENGINE
async def test_force_stops_a_step_that_takes_long_at_once(backend: Backend) -> None:
    app, began, left = backend.app(), asyncio.Event(), asyncio.Event()

    async def never_ends() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    @app.process
    async def story(ctx: ProcessContext[None]) -> None:
        await ctx.step(never_ends)

    async with app:
        handle = await app.start(story)
        await began.wait()
        await handle.cancel(force=True)
        await asyncio.wait_for(left.wait(), 4)  # the worker looks for ended runs every 5 s anyway
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
