"""What is sent to the server is sent again if it was lost, soon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pylash import Lash, ProcessContext, WorkerConfig
from pylash.durable.commands import StartProcess
from pylash.durable.processes import EngineInput, Registration
from pylash.durable.runs import SECOND
from pylash.restate.engine_mark import ENGINE
from pylash.testing import SimClock
from tests.backends import Backend, eventually
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.fake_server import FakeHost, FakeServer
from tests.restate.server import RestateServer

SOON = 6.0


def add_listener(app: Lash) -> Any:
    @app.process
    async def listen(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("go")

    return listen


async def test_a_ring_that_is_lost_is_repeated_soon() -> None:
    server = FakeServer()
    app = Lash("memory://", host=FakeHost(server), worker=WorkerConfig(park_after="0ms"))
    listen = add_listener(app)
    async with app:
        handle = await app.start(listen)

        async def is_waiting() -> bool | None:
            return await handle.status() == "waiting" or None

        await eventually(is_waiting)
        server.lost_rings = 1
        await handle.signal("go", 7)
        assert await handle.result(timeout="30s") == 7
    first, second = server.rung[-2:]
    assert second - first <= SOON


async def test_a_run_that_couriers_lose_again_and_again_is_due_soon(backend: Backend) -> None:
    clock = SimClock()
    store = await backend.store(clock)
    given = Registration(id="run", input=EngineInput("python", "work", {}), carrier=ENGINE)
    await store.processes.start(StartProcess(given))
    pauses = []
    for _ in range(8):
        rows, due = await store.runs.dispatch(ENGINE, [f"{ENGINE}/python:work"], 10)
        assert len(rows) == 1
        assert due is not None
        pauses.append(due / SECOND)
        clock.set_time(clock.now() + due)
    assert all(pause <= SOON for pause in pauses[:3])
    # One that nobody takes, although it was sent, is not sent all the time.
    assert pauses == sorted(pauses)
    assert pauses[-1] > 60


async def test_a_run_that_is_woken_while_the_server_is_down_continues_when_it_is_back(
    restate: RestateServer, tmp_path: Path
) -> None:
    apps = RestateApps(restate, sqlite_url(tmp_path))
    app = apps.make()
    listen = add_listener(app)
    async with app:
        handle = await app.start(listen)

        async def is_suspended() -> bool | None:
            sql = f"select status from sys_invocation where target_service_key = '{handle.id}'"
            return [row["status"] for row in await restate.query(sql)] == ["suspended"] or None

        await eventually(is_suspended, 30)
        await restate.kill()
        await handle.signal("go", 7)
        await asyncio.sleep(2)  # the courier tries, and waits longer each time
        await restate.restart()
        back = asyncio.get_running_loop().time()
        assert await handle.result(timeout="30s") == 7
        print(f"{asyncio.get_running_loop().time() - back:.1f} s after the server was back")
