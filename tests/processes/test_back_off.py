"""Runs that the store refuses again and again: counted, tried again later, and blocked with the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pylash import (
    Lash,
    ProcessBlocked,
    ProcessContext,
    RunState,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TurnBlocked,
)
from pylash.durable.runs import SECOND
from pylash.durable.scopes import ProcessScope
from pylash.stores.ports import runs
from pylash.testing import ScriptedModel, SimClock, call, calls, say
from pylash.testing.laws.stores.subjects import claim_processes, joined, recorded, started
from tests.backends import Backend, eventually

REFUSAL = StoreRefused("the database refused \0 the operation")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BACK_OFF", 1_000)


def failing(
    monkeypatch: pytest.MonkeyPatch, port: Any, method: str, error: StoreError, times: int
) -> list[None]:
    """Let a method of a store fail so often; return one item for each time it did."""
    work: Callable[..., Awaitable[Any]] = getattr(port, method)
    failures: list[None] = []

    async def fail(*args: Any, **kwargs: Any) -> Any:
        if len(failures) < times:
            failures.append(None)
            raise error
        return await work(*args, **kwargs)

    monkeypatch.setattr(port, method, fail)
    return failures


def waiting_app(url: str) -> tuple[Lash, list[str]]:
    app = Lash(url)
    executions: list[str] = []

    async def fetch() -> int:
        return 1

    @app.process
    async def waiting(ctx: ProcessContext[None], steps: int) -> Any:
        executions.append(ctx.id)
        for _ in range(steps):
            await ctx.step(fetch)
        return await ctx.wait(ctx.wait_key("go"), timeout="1ms")

    return app, executions


@pytest.mark.parametrize("steps", [0, 2], ids=["at once", "after progress"])
async def test_a_run_that_is_refused_again_and_again_is_blocked_with_the_reason(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    app, executions = waiting_app(backend.url)
    async with app:
        failing(monkeypatch, app.store.waits, "open_for", REFUSAL, 1_000)
        handle = await app.start(app.services.definitions["waiting"], steps)

        async def blocked() -> bool:
            return await handle.status() is RunState.BLOCKED

        await eventually(blocked)
        with pytest.raises(
            ProcessBlocked, match=r"store_refused: the database refused \\u0000 the"
        ):
            await handle.result(timeout="1ms")
    assert len(executions) == runs.REFUSED_AFTER


async def test_a_blocked_run_can_be_retried_once_the_store_takes_it(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, executions = waiting_app(backend.url)
    async with app:
        failing(monkeypatch, app.store.waits, "open_for", REFUSAL, runs.REFUSED_AFTER)
        handle = await app.start(app.services.definitions["waiting"], 1)

        async def blocked() -> bool:
            return await handle.status() is RunState.BLOCKED

        await eventually(blocked)
        await app.retry(handle.id)
        with pytest.raises(Exception, match="Nobody answered the wait 'go' in time"):
            await handle.result(timeout="10s")
    assert len(executions) == runs.REFUSED_AFTER + 1


async def test_a_store_that_is_away_for_long_blocks_no_run(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, executions = waiting_app(backend.url)
    async with app:
        away = StoreUnavailable("PostgreSQL cannot be reached")
        failures = failing(monkeypatch, app.store.waits, "open_for", away, 12)
        handle = await app.start(app.services.definitions["waiting"], 0)
        with pytest.raises(Exception, match="Nobody answered the wait 'go' in time"):
            await handle.result(timeout="10s")
    assert len(failures) == 12
    assert len(executions) == 13


async def test_a_turn_that_is_refused_again_and_again_is_blocked_and_asks_its_model_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def reply(request: Any) -> Any:
        asked.append(len(request.messages))
        return calls(call("pay")) if len(request.messages) == 1 else say("done")

    app = Lash(backend.url, model=ScriptedModel(reply))

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        failing(monkeypatch, app.store.waits, "open_for", REFUSAL, 1_000)
        session = app.session("s")
        async with session.stream("pay", turn_id="t"):  # asked, and left

            async def blocked() -> bool:
                return await app.store.sessions.blocked("s") is not None

            await eventually(blocked)
        with pytest.raises(TurnBlocked, match="store_refused"):
            await session.turn("pay", timeout="1ms", turn_id="t")
    assert asked == [1]


async def test_a_result_that_the_database_refuses_is_the_failure_of_its_process(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Lash(backend.url)

    @app.process
    async def ending(ctx: ProcessContext[None]) -> str:
        await ctx.sleep("1ms")
        return "odd"

    async with app:
        handle = await app.start(ending.options(id="p"))
        failing(monkeypatch, app.store.processes, "settle", REFUSAL, 1)
        with pytest.raises(Exception, match="the database refused"):
            await handle.result(timeout="10s")


async def test_pauses_grow_and_only_refusals_without_progress_count(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "BACK_OFF", SECOND)
    clock = SimClock()
    store = await backend.store(clock)
    worker = await joined(store, 3_600 * SECOND)
    process = await started(store)

    async def given_up(refusal: str | None, *, progress: bool = False) -> tuple[RunState, int, Any]:
        (claim,) = await claim_processes(store, worker)
        if progress:
            await store.journal.record(claim.fence, recorded())
        for _ in range(2):  # again after a lost answer: it changes nothing
            await store.runs.postpone(claim.fence, refusal)
        view = await store.runs.get(ProcessScope(process))
        assert view is not None
        pause = None if view.at is None else (view.at - clock.now()) / SECOND
        await clock.advance(pause or 0)
        return view.state, view.attempts, pause

    queued = RunState.QUEUED
    assert await given_up("odd") == (queued, 1, 1)
    assert await given_up(None) == (queued, 1, 1)
    assert await given_up("odd") == (queued, 2, 2)
    assert await given_up("odd", progress=True) == (queued, 1, 1)
    assert await given_up(None) == (queued, 1, 1)
    assert await given_up("odd") == (queued, 2, 2)
    assert await given_up("odd") == (RunState.BLOCKED, 3, None)
    monkeypatch.setattr(runs, "REFUSED_AFTER", 10)
    monkeypatch.setattr(runs, "MAX_BACK_OFF", 3 * SECOND)
    view = await store.runs.get(ProcessScope(process))
    assert view is not None
    await store.runs.retry(view.id, "retry")
    assert [(await given_up("odd"))[2] for _ in range(3)] == [1, 2, 3]


async def test_closing_a_worker_counts_nothing_and_pauses_nothing(backend: Backend) -> None:
    store = await backend.store()
    process = await started(store)
    for _ in range(5):
        worker = await joined(store)
        (claim,) = await claim_processes(store, worker)
        assert claim.run.attempts == 1
        await store.workers.leave(worker)
    view = await store.runs.get(ProcessScope(process))
    assert view is not None
    assert (view.state, view.attempts) == (RunState.QUEUED, 0)
