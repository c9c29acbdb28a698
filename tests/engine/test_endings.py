"""The end of a run is written however long the store is away, and a fault of ours stops one run only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pylash import (
    Lash,
    ProcessBlocked,
    ProcessCancelled,
    ProcessContext,
    ProcessFailed,
    WorkerConfig,
)
from pylash.engine import store_answers
from pylash.engine.worker import parking, scheduler
from pylash.processes import execution
from pylash.stores.store import SqlStore
from pylash.testing import ScriptedModel, SimClock, say
from pylash.values.errors import StoreUnavailable
from pylash.values.turn_errors import TurnBlocked
from tests.backends import Backend, eventually, worker_of

LIVE = WorkerConfig(park_after="1h", grace="1s")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store_answers, parking, scheduler, execution):
        monkeypatch.setattr(module, "STORE_AWAY_SECONDS", 0.01)


def away(app: Lash, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[str]:
    """Let the next operations of a name fail as if the store were away; return where they are noted."""
    assert isinstance(app.store, SqlStore)
    driver, failed = app.store.driver, list[str]()
    honest = driver.run

    def run(operation: Any) -> asyncio.Future[Any]:
        if operation.name != name or len(failed) >= times:
            return honest(operation)  # type: ignore[return-value]  # a future, as it is
        failed.append(name)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(StoreUnavailable("away"))
        return answer

    monkeypatch.setattr(driver, "run", run)
    return failed


async def test_a_cancelled_process_ends_though_the_store_is_away_when_its_reason_is_read(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Lash(backend.url, worker=LIVE)

    @app.process
    async def waits(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    async with app:
        handle = await app.start(waits)
        failed = away(app, monkeypatch, "cancel_reason", 2)
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")
    assert len(failed) == 2


@pytest.mark.stumbles
async def test_a_turn_that_cannot_go_on_is_blocked_though_the_store_is_away_then(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Lash(backend.url, model=ScriptedModel([say("Hello.")]), worker=LIVE)
    async with app:
        session, histories = app.session("chat"), app.services.histories

        async def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr(histories, "tail", broken)
            failed = away(app, patch, "is_cancel_requested", 2)

            async def is_blocked() -> bool:
                with pytest.raises((TurnBlocked, TimeoutError)) as caught:
                    await session.turn("hello", turn_id="t", timeout="50ms")
                return caught.match("a defect") if caught.type is TurnBlocked else False

            await eventually(is_blocked)
            assert len(failed) == 2
        await session.retry()
        assert (await session.turn("hello", turn_id="t", timeout="10s")).text == "Hello."


@pytest.mark.stumbles
async def test_a_cancelled_turn_that_cannot_go_on_is_given_up_though_the_store_is_away_then(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Lash(backend.url, model=ScriptedModel([say("Hello.")] * 2), worker=LIVE)
    async with app:
        session, histories = app.session("chat"), app.services.histories
        begun, go = asyncio.Event(), asyncio.Event()

        async def broken(*_: Any, **__: Any) -> Any:
            begun.set()
            await go.wait()
            raise RuntimeError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr(histories, "tail", broken)
            asking = asyncio.ensure_future(session.turn("hello", timeout="10s"))  # noqa: TID251 - a test
            await begun.wait()
            await session.cancel("enough")
            failed = away(app, patch, "is_cancel_requested", 2)
            go.set()
            assert (await asking).status == "cancelled"
            assert len(failed) == 2
        assert (await session.turn("again", timeout="10s")).text == "Hello."


async def test_a_cancelled_turn_has_its_reason_though_the_store_is_away_when_it_is_read(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def thinks(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    app = Lash(backend.url, model=ScriptedModel(thinks), worker=LIVE)
    async with app:
        session = app.session("chat")
        asking = asyncio.ensure_future(session.turn("hello", timeout="10s"))  # noqa: TID251 - a test
        await asked.wait()
        failed = away(app, monkeypatch, "find_turn", 2)
        await session.cancel("enough")
        result = await asking
    assert (result.status, result.error) == ("cancelled", "enough")
    assert len(failed) == 2


async def test_a_process_is_asked_to_end_though_the_store_is_away_when_its_time_is_over(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, held = Lash(backend.url, worker=LIVE), asyncio.Event()

    async def hold() -> None:
        held.set()
        await asyncio.Event().wait()

    @app.process(timeout="50ms")
    async def slow(ctx: ProcessContext[None]) -> None:
        await ctx.step(hold)

    async with app:
        failed = away(app, monkeypatch, "perform", 2)
        handle = await app.start(slow)
        with pytest.raises(ProcessFailed) as caught:
            await handle.result(timeout="10s")
    assert caught.value.code == "process_timeout"
    assert failed == ["perform"] * 2


async def test_a_process_that_a_person_cancelled_did_not_time_out_however_long_it_cleans_up(
    backend: Backend,
) -> None:
    clock, cleaning = SimClock(), asyncio.Event()
    app = Lash(backend.url, worker=LIVE, clock=clock)

    @app.process(timeout="1h")
    async def tidy(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.wait_signal("never")
        finally:
            cleaning.set()
            await ctx.sleep("2h")

    async with app:
        handle = await app.start(tidy)
        await handle.cancel("enough")
        await cleaning.wait()
        await clock.advance("3h")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")
        cleaning.clear()
        late = await app.start(tidy)
        await clock.advance("2h")
        await cleaning.wait()
        await clock.advance("3h")
        with pytest.raises(ProcessFailed) as caught:
            await late.result(timeout="10s")
        assert caught.value.code == "process_timeout"


async def test_a_step_that_fails_while_its_worker_stops_it_is_executed_again(
    durable: Backend,
) -> None:
    begun, runs = asyncio.Event(), list[str]()

    async def stubborn() -> str:
        runs.append("run")
        if len(runs) > 1:
            return "done"
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("it cannot stop") from None
        return "never"

    def opened() -> Lash:
        app = Lash(durable.url, worker=WorkerConfig(grace="0s"))

        @app.process
        async def story(ctx: ProcessContext[None]) -> str:
            return await ctx.step(stubborn)

        return app

    async with opened() as app:
        await app.start(app.services.definitions["story"].options(id="story"))
        await begun.wait()
    async with opened() as app:
        assert await app.process_handle("story").result(timeout="10s") == "done"


@pytest.mark.stumbles
async def test_a_fault_of_ours_blocks_the_run_it_happens_in_and_no_other(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Lash(backend.url, worker=LIVE)

    @app.process
    async def greet(ctx: ProcessContext[None], name: str) -> str:
        return await ctx.step(str.upper, name)

    async with app:
        assert isinstance(app.store, SqlStore)
        with monkeypatch.context() as patch:
            patch.setattr(app.store.processes, "settle", lambda *_: 1 / 0)
            handle = await app.start(greet, name="ann")

            async def is_blocked() -> bool:
                return await handle.status() == "blocked"

            await eventually(is_blocked)
            with pytest.raises(ProcessBlocked, match=r"process_stumbled.*ZeroDivisionError"):
                await handle.result(timeout="1ms")
        assert await (await app.start(greet, name="bob")).result(timeout="10s") == "BOB"
        await app.retry(handle.id)
        assert await handle.result(timeout="10s") == "ANN"


@pytest.mark.stumbles
async def test_a_run_that_leaves_its_driver_unsettled_is_executed_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither settling nor blocking works for a moment: the run must not stay with a worker that forgot it."""
    app = Lash(backend.url, worker=LIVE)

    @app.process
    async def greet(ctx: ProcessContext[None], name: str) -> str:
        return await ctx.step(str.upper, name)

    async with app:
        assert isinstance(app.store, SqlStore)
        worker = worker_of(app)
        with monkeypatch.context() as patch:
            patch.setattr(app.store.processes, "settle", lambda *_: 1 / 0)
            patch.setattr(app.store.runs, "block", lambda *_: 1 / 0)
            handle = await app.start(greet, name="ann")

            async def is_forgotten() -> bool:
                return not worker.live.has(handle.id)

            await eventually(is_forgotten)
        assert await handle.result(timeout="10s") == "ANN"


async def test_a_claimed_run_that_cannot_be_read_and_not_be_blocked_is_given_up(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Lash(backend.url, worker=LIVE)

    @app.process
    async def greet(ctx: ProcessContext[None], name: str) -> str:
        return await ctx.step(str.upper, name)

    async with app:
        failed = away(app, monkeypatch, "block", 1)
        assert isinstance(app.store, SqlStore)
        processes, looks = app.store.processes, list[int]()
        honest = processes.resume

        async def resume(runs: Any) -> Any:
            looks.append(1)
            return {} if len(looks) == 1 else await honest(runs)

        monkeypatch.setattr(processes, "resume", resume)
        handle = await app.start(greet.options(delay="1ms"), name="ann")
        assert await handle.result(timeout="10s") == "ANN"
    assert failed == ["block"]


def test_an_event_loop_that_ends_under_an_open_app_fails_nothing(tmp_path: Path) -> None:
    """Every task is cancelled then, and none of that is the code's doing."""
    runs: list[str] = []

    def opened() -> Lash:
        app = Lash(f"sqlite:///{tmp_path}/store.db", worker=WorkerConfig(lease="1s"))

        async def work() -> str:
            runs.append("run")
            if len(runs) == 1:
                await asyncio.Event().wait()
            return "done"

        @app.process
        async def story(ctx: ProcessContext[None]) -> list[str]:
            return await ctx.gather(ctx.step(work), ctx.step(str.upper, "x"))

        return app

    async def abandon() -> None:
        app = opened()
        await app.open()
        await app.start(app.services.definitions["story"].options(id="story"))

        async def begun() -> bool:
            return bool(runs)

        await eventually(begun)

    async def resume() -> Any:
        async with opened() as app:
            return await app.process_handle("story").result(timeout="10s")

    asyncio.run(abandon())
    assert asyncio.run(resume()) == ["done", "X"]
