"""Starting a process: its start is written first, then its code runs here, or where there is a worker for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from pylash import (
    Lash,
    ProcessContext,
    ProcessDefinition,
    ProcessFailed,
    RunState,
    StoreUnavailable,
    WorkerConfig,
)
from pylash.durable.runs import Fence
from pylash.engine.runs.asides import aside
from pylash.stores.operation import Again, Operation, Steps
from pylash.stores.store import SqlStore
from pylash.testing.kills import Mortal
from pylash.values.errors import LashError, StoreClosed, ValueNotJson
from tests.backends import EVERY_ENGINE, Backend


async def log_of(app: Lash, process_id: str) -> list[str]:
    return [event.type async for event in app.process_handle(process_id).events()]


@EVERY_ENGINE
async def test_a_process_without_effects_starts_and_ends(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def double(ctx: ProcessContext[None], n: int) -> int:
        return n * 2

    @app.process
    async def broken(ctx: ProcessContext[None]) -> None:
        raise ValueError("broken")

    @app.process
    async def unspeakable(ctx: ProcessContext[None]) -> Any:
        return object()

    async with app:
        doubled = await app.start(double, 21)
        assert await doubled.result() == 42
        assert await doubled.status() == RunState.COMPLETED
        assert await log_of(app, doubled.id) == ["process.started", "process.completed"]
        for definition, reason in ((broken, "broken"), (unspeakable, "object")):
            failed = await app.start(definition)
            with pytest.raises(ProcessFailed, match=reason):
                await failed.result()
            assert await log_of(app, failed.id) == ["process.started", "process.failed"]


@EVERY_ENGINE
async def test_a_process_that_is_started_again_runs_once(backend: Backend) -> None:
    app, ran = backend.app(), list[int]()

    @app.process
    async def once(ctx: ProcessContext[None]) -> None:
        ran.append(1)

    async with app:
        for _ in range(3):
            await (await app.start(once.options(id="only"))).result()
    assert ran == [1]


@pytest.mark.proves("P1")
async def test_an_effect_waits_until_the_start_is_written(backend: Backend) -> None:
    app, seen = Lash(backend.url), list[str]()

    @app.process
    async def look(ctx: ProcessContext[None]) -> None:
        at = ctx.now()
        await ctx.step(there, ctx.id)
        assert at <= ctx.now()

    async def there(process_id: str) -> None:
        assert await app.store.processes.get(process_id) is not None
        seen.append(process_id)

    async with app:
        handles = [await app.start(look) for _ in range(5)]
        for handle in handles:
            await handle.result(timeout="10s")
    assert sorted(seen) == sorted(handle.id for handle in handles)


async def test_a_process_that_waits_for_no_effect_is_running(backend: Backend) -> None:
    app, gate = backend.app(), asyncio.Event()

    @app.process
    async def wait(ctx: ProcessContext[None]) -> str:
        await gate.wait()
        return "through"

    async with app:
        handle = await app.start(wait)
        assert await handle.status() == RunState.RUNNING
        gate.set()
        assert await handle.result(timeout="10s") == "through"


@EVERY_ENGINE
async def test_branches_without_effects_are_decided(backend: Backend) -> None:
    app = backend.app()

    async def plain(n: int) -> int:
        return n

    @app.process
    async def contest(ctx: ProcessContext[None]) -> Any:
        won = await ctx.race(plain(1), ctx.wait_signal("never"))
        return [won, *await ctx.gather(plain(2), plain(3))]

    @app.process
    async def again(ctx: ProcessContext[None], n: int = 0) -> int:
        if n < 2:
            await ctx.continue_as(n=n + 1)
        return n

    async with app:
        for _ in range(5):
            assert await (await app.start(contest)).result(timeout="10s") == [1, 2, 3]
        handle = await app.start(again)
        assert await handle.result(timeout="10s") == 2
        kinds = await log_of(app, handle.id)
    assert kinds == ["process.started", *["process.continued"] * 2, "process.completed"]


async def test_a_start_that_cannot_be_written_raises_and_has_no_effect(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, ran = Lash(backend.url, worker=WorkerConfig(concurrency=2)), list[str]()

    async def note(text: str) -> None:
        ran.append(text)

    @app.process
    async def noted(ctx: ProcessContext[None], steps: int) -> None:
        for _ in range(steps):
            await ctx.step(note, "effect")

    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    def closed(*_: Any, **__: Any) -> None:
        raise StoreClosed

    async with app:
        for refuse, reason in ((away, StoreUnavailable), (closed, StoreClosed)):
            with monkeypatch.context() as patch:
                patch.setattr(app.store.processes, "start", refuse)
                for steps in (0, 1, 0, 1):  # and no slot is lost
                    with pytest.raises(reason):
                        await app.start(noted, steps)
        assert ran == []
        assert await app.processes() == []
        for steps in (0, 1):
            await (await app.start(noted, steps)).result(timeout="10s")
    assert ran == ["effect"]


async def test_a_worker_that_was_taken_over_takes_nothing_from_the_new_owner(
    durable: Backend,
) -> None:
    ran, begun, gate = list[str](), asyncio.Event(), asyncio.Event()

    def app_called(name: str) -> tuple[Lash, ProcessDefinition[[int], None]]:
        app = Lash(durable.url)

        async def note() -> None:
            ran.append(name)
            begun.set()
            await gate.wait()

        @app.process
        async def noted(ctx: ProcessContext[None], steps: int) -> None:
            for _ in range(steps):
                await ctx.step(note)

        return app, noted

    (old, noted), (other, _) = app_called("old"), app_called("other")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(old)
        assert isinstance(old.store, SqlStore)
        (worker,) = await old.store.inspection.workers()
        await stack.enter_async_context(other)
        await (await old.start(noted, 0)).result()
        release, released = old.store.journal.release, list[Fence]()

        async def late(fence: Fence) -> None:
            released.append(fence)
            await release(fence)

        old.store.journal.release = late  # type: ignore[method-assign]
        await old.store.workers.leave(worker.id)
        handle = await old.start(noted, 1)
        await asyncio.wait_for(begun.wait(), 20)
        gate.set()
        await handle.result(timeout="20s")
        assert released == []
    assert len(ran) == 1


@pytest.mark.parametrize("steps", [0, 1])
async def test_a_worker_that_was_taken_over_meanwhile_leaves_the_process_to_others(
    backend: Backend, steps: int
) -> None:
    app, ran = Lash(backend.url), list[str]()

    async def note() -> None:
        ran.append("effect")

    @app.process
    async def noted(ctx: ProcessContext[None]) -> str:
        for _ in range(steps):
            await ctx.step(note)
        return "done"

    async with app:
        assert isinstance(app.store, SqlStore)
        (worker,) = await app.store.inspection.workers()
        await app.store.workers.leave(worker.id)
        handle = await app.start(noted)
        assert await handle.result(timeout="30s") == "done"
        assert (await log_of(app, handle.id)).count("process.completed") == 1
    assert ran == ["effect"] * steps


async def test_code_that_changes_its_arguments_is_given_them_unchanged_on_replay(
    durable: Backend,
) -> None:
    done = list[str]()

    def app_with_chores() -> tuple[Lash, ProcessDefinition[[list[Any]], None]]:
        app = Lash(durable.url, worker=WorkerConfig(park_after="0s"))

        async def do(chore: str) -> None:
            done.append(chore)

        @app.process
        async def chores(ctx: ProcessContext[None], todo: list[Any]) -> None:
            while todo:
                await ctx.step(do, todo.pop(0))
                await ctx.wait_signal("next")

        return app, chores

    app, chores = app_with_chores()
    async with app:
        process = (await app.start(chores, ["a", "b"])).id
    app, _ = app_with_chores()
    async with app:
        handle = app.process_handle(process)
        for n in range(2):
            await handle.signal("next", n)
        await handle.result(timeout="10s")
    assert done == ["a", "b"]


@EVERY_ENGINE
async def test_what_cannot_be_recorded_is_refused_where_it_is_given(backend: Backend) -> None:
    app, ran = backend.app(), list[str]()

    @app.process
    async def say(ctx: ProcessContext[None], text: str) -> None:
        ran.append(text)

    async with app:
        with pytest.raises(ValueNotJson, match="lone surrogate"):
            await app.start(say, "\ud800")
    assert ran == []


@EVERY_ENGINE
async def test_a_library_may_ask_for_the_time_before_the_first_effect(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def timed(ctx: ProcessContext[None]) -> bool:
        beside = aside()
        assert beside is not None
        return abs((beside.now("asked") - ctx.now()).total_seconds()) < 60

    async with app:
        assert await (await app.start(timed)).result(timeout="10s")


@pytest.mark.parametrize("steps", [0, 1])
async def test_a_start_that_is_done_again_is_the_same_run(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    app, ran = Lash(backend.url), list[int]()

    async def nothing() -> None:
        """Be an effect."""

    @app.process
    async def count(ctx: ProcessContext[None]) -> None:
        ran.append(1)
        for _ in range(steps):
            await ctx.step(nothing)

    async with app:
        assert isinstance(app.store, SqlStore)
        driver, tries = app.store.driver, list[int]()
        run = driver.run

        def rolled_back(honest: Callable[[], Steps[Any]]) -> Steps[Any]:
            tries.append(1)
            result = yield from honest()
            if len(tries) == 1:
                raise Again
            return result

        def alone(operation: Operation[Any]) -> Awaitable[Any]:
            if operation.name == "start":
                operation.bulk = None
                operation.steps = partial(rolled_back, operation.steps)
            return run(operation)

        monkeypatch.setattr(driver, "run", alone)
        await (await app.start(count)).result(timeout="3s")
    assert (len(tries), len(ran)) == (2, 1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("steps", [0, 1])
async def test_an_app_that_dies_leaves_no_caller_waiting(
    durable: Backend, steps: int, when: str
) -> None:
    app = Lash(durable.url)

    async def nothing() -> None:
        """Be an effect."""

    @app.process
    async def walk(ctx: ProcessContext[None]) -> None:
        for _ in range(steps):
            await ctx.step(nothing)

    async def start() -> str:
        try:
            await app.start(walk)
        except LashError as error:
            return error.code
        return "started"

    await app.__aenter__()
    mortal = Mortal(app, lambda point: point.operation == "start" and point.when == when)
    async with asyncio.timeout(8), asyncio.TaskGroup() as group:
        starting = group.create_task(start())
        await mortal.died.wait()
        await mortal.bury()
    assert starting.result() == "store_closed"
