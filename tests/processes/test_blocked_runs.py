"""Blocked processes continue by themselves when a worker starts whose code fits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import Lash, ProcessContext
from pylash.durable.runs import RunView
from pylash.durable.scopes import ProcessScope
from pylash.engine.worker import blocked_runs
from tests.backends import Backend, eventually
from tests.processes.test_changed_code import (
    Body,
    Ledger,
    app_with,
    inserted_before,
    old,
    recorded,
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try blocked processes as soon as a worker has started."""
    monkeypatch.setattr(blocked_runs, "TRIED_AFTER_SECONDS", 0.0)


async def run_of(app: Lash, process_id: str) -> RunView:
    found = await app.store.runs.get(ProcessScope(process_id))
    assert found is not None
    return found


async def becomes_blocked(app: Lash, process_id: str) -> None:
    async def is_blocked() -> bool:
        return str(await app.process_handle(process_id).status()) == "blocked"

    await eventually(is_blocked)


async def blocked_by(backend: Backend, body: Body, ledger: Ledger) -> None:
    async with app_with(backend, body, ledger) as app:
        await app.process_handle("p").signal("go")
        await becomes_blocked(app, "p")


async def mistaken(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    first = await ctx.step(ledger.step("load"))
    second = await ctx.step(ledger.step("charge"), 7)
    await ctx.wait_signal("go")
    return [first, second, undefined]  # type: ignore[name-defined] # noqa: F821


async def other_arguments(ctx: ProcessContext[None], ledger: Ledger) -> Any:
    await ctx.step(ledger.step("load"))
    await ctx.step(ledger.step("charge"), 8)


@pytest.mark.parametrize("change", [inserted_before, mistaken, other_arguments])
async def test_a_process_goes_on_by_itself_when_code_that_fits_is_back(
    durable: Backend, change: Body
) -> None:
    ledger = Ledger()
    await recorded(durable, old, ledger)
    await blocked_by(durable, change, ledger)
    assert ledger.lines == ["load", "charge"]
    async with app_with(durable, old, ledger) as app:
        assert await app.process_handle("p").result(timeout="20s") == ["load", "charge 7", "ship"]
    assert ledger.lines == ["load", "charge", "ship"]


async def test_a_process_that_does_not_fit_stays_blocked_and_executes_nothing(
    durable: Backend,
) -> None:
    async def ship_slowly(ledger: Ledger) -> None:
        ledger.lines.append("ship")
        await asyncio.sleep(60)

    async def left(ctx: ProcessContext[None], ledger: Ledger) -> None:
        await ctx.wait_signal("go")
        await ctx.options(key="ship").step(lambda: ship_slowly(ledger))

    async def right(ctx: ProcessContext[None], ledger: Ledger) -> None:
        await ctx.step(ledger.step("load"))
        await ctx.wait_signal("never")

    async def before(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        await ctx.gather(left(ctx, ledger), right(ctx, ledger))

    async def after(ctx: ProcessContext[None], ledger: Ledger) -> Any:
        async def changed() -> None:
            await ctx.step(ledger.step("check"))
            await right(ctx, ledger)

        await ctx.gather(left(ctx, ledger), changed())

    ledger = Ledger()
    await recorded(durable, before, ledger, waiting=2)
    await blocked_by(durable, after, ledger)
    # The left branch fits, and its step was broken off when the right one was refused.
    assert ledger.lines == ["load", "ship"]
    async with app_with(durable, after, ledger) as app:

        async def was_tried() -> bool:
            return (await run_of(app, "p")).attempts == 0

        await eventually(was_tried)
        found = await run_of(app, "p")
    assert (found.state, found.reason is not None) == ("blocked", True)
    assert ledger.lines == ["load", "ship"]


async def test_steps_that_were_cancelled_and_replays_that_kill_workers_are_not_tried(
    durable: Backend,
) -> None:
    executed: list[str] = []

    async def slow() -> None:
        executed.append("slow")
        await asyncio.sleep(60)

    def app_of(*, is_mended: bool) -> Lash:
        app = Lash(durable.url)

        @app.process
        async def abandons(ctx: ProcessContext[None]) -> None:
            async with asyncio.timeout(0.05):
                await ctx.step(slow)

        @app.process
        async def mistaken(ctx: ProcessContext[None]) -> str:
            return "mended" if is_mended else undefined  # type: ignore[name-defined] # noqa: F821

        return app

    async with app_of(is_mended=False) as app:
        ids = {"abandoned": "abandons", "deadly": "mistaken", "fits": "mistaken"}
        for process_id, name in ids.items():
            await app.start(app.services.definitions[name].options(id=process_id))
            await becomes_blocked(app, process_id)
    async with Lash(durable.url, worker=None) as client:
        deadly = await run_of(client, "deadly")
        # Workers that died while they tried it.
        for _ in range(3):
            await client.store.runs.begin_trials(
                [deadly.target], blocked_runs.CODES, deadly.id - 1, 1
            )
    async with app_of(is_mended=True) as app:
        # The oldest are tried first, so the others were passed by.
        assert await app.process_handle("fits").result(timeout="20s") == "mended"
        assert [(await run_of(app, one)).state for one in ("abandoned", "deadly")] == [
            "blocked"
        ] * 2
        assert executed == ["slow"]
        await app.retry("deadly")
        assert await app.process_handle("deadly").result(timeout="20s") == "mended"
