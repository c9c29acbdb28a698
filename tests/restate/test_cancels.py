"""A cancel reaches code that runs, and an attempt that was given up stops what it does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessCancelled, ProcessContext, WorkerConfig
from pylash.tasks import TaskOwner
from pylash.testing import ScriptedModel, call, say
from tests.backends import eventually
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.fake_server import FakeHost, FakeServer
from tests.restate.server import RestateServer


class Tool:
    """Code that takes long, and notes when it is stopped."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.entries = 0
        self.stopped: list[float] = []
        self.release = asyncio.Event()

    async def work(self) -> str:
        """Work."""
        self.entries += 1
        self.entered.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.stopped.append(asyncio.get_running_loop().time())
            raise
        return "worked"


@pytest.fixture
def apps(restate: RestateServer, tmp_path: Path) -> RestateApps:
    return RestateApps(restate, sqlite_url(tmp_path))


def add_tool(app: Lash, tool: Tool) -> Any:
    app.tool(tool.work)

    @app.process
    async def busy(ctx: ProcessContext[None]) -> str:
        return await ctx.step(tool.work)

    return busy


def model() -> ScriptedModel:
    return ScriptedModel([call("work"), say("never")])


@pytest.mark.parametrize("what", ["step", "tool"])
async def test_a_cancel_of_another_app_stops_a_step_and_a_tool_that_run(
    apps: RestateApps, what: str, tmp_path: Path
) -> None:
    tool, tasks = Tool(), TaskOwner()
    cancel: Any
    app = apps.make(model=model())
    client = apps.make(submits_only=True, model=model())
    busy = add_tool(app, tool)
    add_tool(client, tool)
    name = f"{tmp_path.name}-{what}"
    async with app, client:
        if what == "step":
            handle = await client.start(client.definitions["busy"].options(id=name))
            cancel, result = handle.cancel, tasks.start(handle.result(timeout="20s"))
        else:
            session = client.session(name)
            cancel, result = session.cancel, tasks.start(session.turn("Go", timeout="20s"))
        await asyncio.wait_for(tool.entered.wait(), 20)
        await cancel("enough")
        asked = asyncio.get_running_loop().time()
        if what == "step":
            with pytest.raises(ProcessCancelled):
                await result
        else:
            assert (await result).status == "cancelled"
    # While it ran: it would have run for ever.
    assert tool.entries == len(tool.stopped) == 1
    print(f"a {what} was stopped {1000 * (tool.stopped[0] - asked):.0f} ms after its cancel")
    assert busy.name == "busy"


async def test_an_attempt_that_was_given_up_stops_its_step_and_the_next_one_ends_the_run() -> None:
    server, tool = FakeServer(), Tool()
    app = Lash("memory://", host=FakeHost(server), worker=WorkerConfig(park_after="0ms"))
    busy = add_tool(app, tool)
    async with app:
        handle = await app.start(busy)
        await tool.entered.wait()
        invocation = server.invocations[f"LashProcessWorkflow/{handle.id}"]
        invocation.killed = 1  # the next kill freezes
        invocation.kill_attempt()

        async def is_stopped() -> bool | None:
            return bool(tool.stopped) or None

        await eventually(is_stopped)
        tool.release.set()
        assert await handle.result(timeout="20s") == "worked"
    assert tool.entries == 2
    assert len(tool.stopped) == 1
