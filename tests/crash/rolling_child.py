"""A worker of the rolling deploys, with the old code or the new one: it works until it is killed.

Every execution of a step appends a line to LOG: process, step, pid. The new code has two insertions: one in ``guarded``, by a
patch, and one in ``unguarded``.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from pylash import Lash, ProcessContext, WorkerConfig

OLD, NEW = "old", "new"
ROUNDS = 4
NAMES = ("guarded", "unguarded")
RESULT = ["load", "charge", *(f"round-{number}" for number in range(ROUNDS)), "ship"]

Context = ProcessContext[Any]


class Orders:
    """The processes in one version."""

    def __init__(self, log: Path, version: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._version = version

    async def guarded(self, ctx: Context) -> list[str]:
        """Insert a step by a patch."""
        done = [await self._step(ctx, "load")]
        if self._version == NEW and await ctx.patched("check"):
            await self._step(ctx, "check")
        return [*done, *await self._rest(ctx)]

    async def unguarded(self, ctx: Context) -> list[str]:
        """Insert a step, for every run."""
        done = [await self._step(ctx, "load")]
        if self._version == NEW:
            await self._step(ctx, "audit")
        return [*done, *await self._rest(ctx)]

    async def _rest(self, ctx: Context) -> list[str]:
        done = [await self._step(ctx, "charge")]
        for number in range(ROUNDS):
            await ctx.sleep(0.05 + 0.4 * ctx.random())
            done.append(await self._step(ctx, f"round-{number}"))
        return [*done, await self._step(ctx, "ship")]

    async def _step(self, ctx: Context, name: str) -> str:
        async def perform() -> str:
            os.write(self._log, f"{ctx.id} {name} {os.getpid()}\n".encode())
            await asyncio.sleep(0.01)
            return name

        return await ctx.options(key=name).step(perform)


WORKER = WorkerConfig(concurrency=20, park_after="20ms")


def make_app(
    url: str, log: Path, version: str, worker: WorkerConfig | None = WORKER
) -> tuple[Lash, dict[str, Any]]:
    """Return an app with one version of the code, and its processes."""
    app, orders = Lash(url, worker=worker), Orders(log, version)
    return app, {name: app.process(name=name)(getattr(orders, name)) for name in NAMES}


async def main(url: str, log: str, version: str) -> None:
    app, _ = make_app(url, Path(log), version)
    async with app:
        await asyncio.Event().wait()
