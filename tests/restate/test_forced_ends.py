"""Runs on a real Restate server that are ended by force, or with their session, and those that are cancelled while blocked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessCancelled, ProcessContext
from pylash.tasks import TaskOwner
from pylash.testing import ScriptedModel, call, say
from tests.backends import eventually
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.server import RestateServer
from tests.restate.stories import Story


@pytest.fixture
def story(restate: RestateServer, tmp_path: Path) -> Story:
    return Story(RestateApps(restate, sqlite_url(tmp_path)))


async def test_a_suspended_and_a_running_process_end_by_force_at_the_server_too(
    story: Story,
) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        entered.set()
        await asyncio.sleep(3600)

    async def waits_or_works(ctx: ProcessContext[None]) -> None:
        if not await ctx.wait_signal("work"):
            await ctx.wait_signal("never")
        await ctx.step(work)

    app = story.app(waits_or_works)
    async with app:
        handle = await app.start(app.definitions["story"])
        story.id = handle.id
        await story.until_server_says("suspended")
        await handle.cancel(force=True)
        await story.until_server_says("completed")
        assert await handle.status() == "cancelled"
        handle = await app.start(app.definitions["story"])
        story.id = handle.id
        await handle.signal("work", True)
        await entered.wait()
        await handle.cancel(force=True)
        await story.until_server_says("completed")


async def block(story: Story, app: Lash) -> None:
    """Let changed code block the process."""
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go")
        await story.until_blocked(handle)
        await story.until_server_says("paused")


@pytest.mark.parametrize("force", [True, False])
async def test_a_blocked_process_is_cancelled(story: Story, force: bool) -> None:
    async def order(ctx: ProcessContext[None], *steps: str) -> None:
        try:
            for step in steps:
                await story.step(ctx, step)
            await ctx.wait_signal("go")
            await ctx.wait_signal("never")
        finally:
            await story.step(ctx, "clean")

    await story.record(lambda ctx: order(ctx, "a"))
    await block(story, story.app(lambda ctx: order(ctx, "b", "a")))
    app = story.app(lambda ctx: order(ctx, "b", "a"))
    async with app:
        handle = app.process_handle(story.id)
        await handle.cancel("enough", force=force)
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="20s")
        await story.until_server_says("completed")
        assert set((await story.statuses()).values()) == {"completed"}
    assert story.executed == (["a"] if force else ["a", "clean"])


async def test_a_session_is_deleted_while_its_turn_is_suspended(story: Story) -> None:
    session_id = f"chat-{abs(hash(story.apps.url))}"
    story.id = f"{session_id}|t1"
    app = story.apps.make(model=ScriptedModel([call("pay", cents=5), say("paid")]))
    tasks = TaskOwner()

    @app.tool(approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        return str(cents)

    async def turn() -> Any:
        return await app.session(session_id).turn("Pay", turn_id="t1")

    async with app:
        waiting = tasks.start(turn())
        await story.until_server_says("suspended")
        await app.session(session_id).delete()
        await story.until_server_says("completed")
        await asyncio.wait([waiting], timeout=20)
        assert waiting.done()
        await tasks.close()
        assert await eventually(lambda: no_waits(app))


async def no_waits(app: Lash) -> bool | None:
    return not await app.waits() or None


async def test_a_blocked_turn_is_cancelled(story: Story) -> None:
    session_id = f"chat-{abs(hash(story.apps.url))}"
    story.id = f"{session_id}|t1"

    def make(*, has_tool: bool) -> Lash:
        app = story.apps.make(model=ScriptedModel([call("pay", cents=5), say("paid")]))

        @app.tool(approval=True, name="pay" if has_tool else "other")
        async def pay(cents: int) -> str:
            """Pay."""
            return str(cents)

        return app

    app, tasks = make(has_tool=True), TaskOwner()
    async with app:
        tasks.start(app.session(session_id).turn("Pay", turn_id="t1"))
        await story.until_server_says("suspended")
        await tasks.close()
    app = make(has_tool=False)
    async with app:
        session = app.session(session_id)
        (wait,) = await app.waits(session_id=session_id)
        await app.resolve(wait.key, True)
        await story.until_server_says("paused")
        await session.cancel("enough")
        result = await session.turn("Pay", turn_id="t1", timeout="20s")
        assert result.status == "cancelled"
        await story.until_server_says("completed")
