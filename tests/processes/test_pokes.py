"""A worker learns of new work from the store at once: here it never looks for it by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessContext, WorkerConfig
from pylash.engine.hub import wait_for_hint
from pylash.testing import ScriptedModel, say
from tests.backends import Backend, eventually
from tests.forks import forked

HOUR = 3600.0

pytestmark = pytest.mark.proves("P7")


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that looks for changes now and then do so once an hour."""
    monkeypatch.setattr(wait_for_hint, "__defaults__", (HOUR,))
    for name in (
        "pylash.engine.hub.NET_SECONDS",
        "pylash.engine.worker.membership.UNDERTAKER_SECONDS",
        "pylash.stores.drivers.sqlite.NET_SECONDS",
        "pylash.stores.drivers.postgres_listener.PING_SECONDS",
    ):
        monkeypatch.setattr(name, HOUR)


def make_app(
    url: str, worker: WorkerConfig | None, ran: Callable[[str], None] = lambda _: None
) -> Lash:
    app = Lash(url, model=ScriptedModel(lambda _: say("Hello.")), worker=worker)

    @app.process
    async def job(ctx: ProcessContext[None]) -> None:
        ran(ctx.id)

    return app


async def register(url: str, process_id: str) -> None:
    """Register a process on a store, as a program without a worker does, and write nothing until it has run."""
    async with make_app(url, None) as app:
        handle = await app.start(app.services.definitions["job"].options(id=process_id))

        async def has_ended() -> bool:
            return await handle.status() == "completed"

        await eventually(has_ended, 20)


async def registered_here(url: str, process_id: str, _folder: Path) -> None:
    await register(url, process_id)


async def registered_by_another_process(url: str, process_id: str, folder: Path) -> None:
    child = forked(folder / process_id, register, url, process_id)
    assert await child.wait() == 0, child.errors


@pytest.mark.slow
@pytest.mark.usefixtures("no_polling")
@pytest.mark.parametrize("registered", [registered_here, registered_by_another_process])
async def test_a_process_that_others_register_runs_at_once(
    registered: Any, durable: Backend, tmp_path: Path
) -> None:
    ran: list[str] = []
    async with make_app(durable.url, WorkerConfig(lease="1h"), ran.append) as app:
        await app.runner.quiet()  # the worker has looked for work, and found none
        for process_id in ("first", "second"):
            await registered(durable.url, process_id, tmp_path)
    assert ran == ["first", "second"]


@pytest.mark.usefixtures("no_polling")
async def test_workers_that_are_notified_together_run_each_process_once(durable: Backend) -> None:
    ran: list[str] = []
    config = WorkerConfig(lease="1h")
    async with (
        make_app(durable.url, config, ran.append) as one,
        make_app(durable.url, config, ran.append) as two,
    ):
        for app in (one, two):
            await app.runner.quiet()
        names = [f"p{number}" for number in range(10)]
        for name in names:
            await register(durable.url, name)
    assert ran == names


@pytest.mark.usefixtures("no_polling")
async def test_a_turn_that_others_submit_runs_at_once(durable: Backend) -> None:
    config = WorkerConfig(lease="1h")
    async with make_app(durable.url, config) as app, make_app(durable.url, None) as other:
        await app.runner.quiet()
        assert (await other.session("chat").turn("Hi.", timeout="20s")).text == "Hello."


@pytest.mark.usefixtures("no_polling")
async def test_a_parked_process_that_others_signal_goes_on_at_once(durable: Backend) -> None:
    config = WorkerConfig(lease="1h", park_after="1ms")
    async with make_app(durable.url, config) as app, make_app(durable.url, None) as other:

        @app.process
        async def waits(ctx: ProcessContext[None]) -> Any:
            return await ctx.wait_signal("go")

        handle = await app.start(waits.options(id="p"))

        async def is_parked() -> bool:
            return await handle.status() == "waiting" and not app.runner.has("p")

        await eventually(is_parked)
        await app.runner.quiet()
        await other.process_handle("p").signal("go", 4)
        assert await asyncio.wait_for(other.process_handle("p").result(), 20) == 4
