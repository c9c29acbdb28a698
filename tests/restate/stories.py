"""A process on a Restate server whose code the tests change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pylash import Lash, ProcessBlocked, ProcessContext, ProcessHandle
from tests.backends import eventually
from tests.restate.apps import RestateApps

Body = Callable[[ProcessContext[None]], Awaitable[Any]]


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
