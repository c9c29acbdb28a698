"""Code that changes under a recorded run on a real Restate server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessBlocked, ProcessContext, ProcessHandle
from tests.backends import eventually
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.server import RestateServer

Body = Callable[[ProcessContext[None]], Awaitable[Any]]


@pytest.fixture
def apps(restate: RestateServer, tmp_path: Path) -> RestateApps:
    return RestateApps(restate, sqlite_url(tmp_path))


class Story:
    """One process whose code the tests change, and the steps that were executed."""

    def __init__(self, apps: RestateApps) -> None:
        self.apps = apps
        self.executed: list[str] = []
        self.id = ""

    async def say(self, word: str) -> str:
        self.executed.append(word)
        return word

    def step(self, ctx: ProcessContext[None], word: str) -> Awaitable[str]:
        return ctx.options(key=word).step(self.say, word)

    def app(self, body: Body, **options: Any) -> Lash:
        app = self.apps.make()

        @app.process(**options)
        async def story(ctx: ProcessContext[None]) -> Any:
            return await body(ctx)

        return app

    async def record(self, body: Body, **options: Any) -> None:
        """Start the process, and leave it when the server has suspended it."""
        app = self.app(body, **options)
        async with app:
            handle = await app.start(app.definitions["story"])
            self.id = handle.id
            await self.until_server_says("suspended")

    async def statuses(self) -> dict[str, str]:
        sql = f"select target_service_key k, status from sys_invocation where target_service_key like '{self.id}%'"
        return {row["k"]: row["status"] for row in await self.apps.server.query(sql)}

    async def until_server_says(self, status: str) -> None:
        async def has_status() -> bool | None:
            return (await self.statuses()).get(self.id) == status or None

        await eventually(has_status)

    async def until_blocked(self, handle: ProcessHandle[Any]) -> str:
        """Return why the process is blocked."""

        async def is_blocked() -> bool | None:
            return await handle.status() == "blocked" or None

        await eventually(is_blocked)
        with pytest.raises(ProcessBlocked) as blocked:
            await handle.result(timeout="100ms")
        return blocked.value.message


@pytest.fixture
def story(apps: RestateApps) -> Story:
    return Story(apps)


async def test_another_order_blocks_after_one_attempt_and_says_what_was_recorded(
    story: Story,
) -> None:
    attempts: list[str] = []

    async def old(ctx: ProcessContext[None]) -> None:
        await story.step(ctx, "charge")
        await ctx.wait_signal("go")

    async def new(ctx: ProcessContext[None]) -> None:
        attempts.append("new")
        await story.step(ctx, "check")
        await old(ctx)

    await story.record(old)
    app = story.app(new)
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go")
        reason = await story.until_blocked(handle)
        assert "effect_replay_diverged" in reason
        assert "The code asks for 'check' where 'charge' is expected, which was recorded at" in reason
        assert "ctx.patched()" in reason
        await story.until_server_says("paused")
        (shown,) = await app.processes()
        assert (shown.status, (shown.reason or "").partition(":")[0]) == (
            "blocked",
            "effect_replay_diverged",
        )
    assert attempts == ["new"]
    assert story.executed == ["charge"]


async def test_a_retry_goes_on_by_key_if_the_order_has_changed(story: Story) -> None:
    async def old(ctx: ProcessContext[None]) -> list[Any]:
        first = await story.step(ctx, "a")
        second = await story.step(ctx, "b")
        await ctx.sleep("10ms")
        return [first, second, await ctx.wait_signal("go"), await story.step(ctx, "end")]

    async def new(ctx: ProcessContext[None]) -> list[Any]:
        second = await story.step(ctx, "b")
        first = await story.step(ctx, "a")
        await ctx.sleep("10ms")
        return [first, second, await ctx.wait_signal("go"), await story.step(ctx, "end")]

    await story.record(old)
    app = story.app(new)
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go", 5)
        reason = await story.until_blocked(handle)
        assert "The code asks for 'b' where 'a' is expected" in reason
        await story.until_server_says("paused")
        await app.retry(story.id)
        assert await handle.result(timeout="20s") == ["a", "b", 5, "end"]
    assert story.executed == ["a", "b", "end"]
    assert await story.statuses() == {story.id: "completed", f"{story.id}~0~1": "completed"}
