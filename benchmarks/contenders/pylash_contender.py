"""pylash: steps and waits through the effect host, as user code asks for them.

Rule 1. Every round has scopes of its own, and attaching them is part of the time.
Rule 2. Nothing is tuned: the host is opened with its defaults.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

from benchmarks.contender import PAYLOAD, POSTGRES_SYNC, SQLITE_SYNC, Contender, Facts, Wakes
from benchmarks.lines import Load
from pylash.app import open_host
from pylash.durable.effects import AwaitEvent, DurableStep, RuntimeScope, envelope
from pylash.durable.scopes import ProcessScope
from pylash.durable.waits import CustomWait, Ok
from pylash.engine.executors import await_options, step_executor


def contender(store: str, url: str) -> Contender:
    """Return pylash on a store."""
    return PylashContender(store, url)


class PylashContender(Contender):
    """A durable host and the scopes of each round."""

    def __init__(self, store: str, url: str) -> None:
        super().__init__(url)
        self.store = store
        self._stack = AsyncExitStack()
        self._scopes = (ProcessScope(f"bench-{number}") for number in itertools.count())

    async def open(self) -> Facts:
        self._host = await self._stack.enter_async_context(open_host(self.url, migrate=True))
        versions = {"pylash": version("pylash")}
        return {"versions": versions, "sync": await sync_settings(self._host, self.store)}

    async def close(self) -> None:
        await self._stack.aclose()

    async def sequential(self, load: Load) -> list[float]:
        started = time.perf_counter()
        await self._steps(load.steps)
        return [load.total / (time.perf_counter() - started)]

    async def concurrent(self, load: Load) -> list[float]:
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(load.scopes):
                group.create_task(self._steps(load.steps))
        return [load.total / (time.perf_counter() - started)]

    async def wake(self, load: Load) -> list[float]:
        wakes = Wakes()
        scopes = [next(self._scopes) for _ in range(load.steps)]
        keys = [await self._host.wait_key(scope, CustomWait("go")) for scope in scopes]
        async with asyncio.TaskGroup() as group:
            for scope, key in zip(scopes, keys, strict=True):
                group.create_task(self._wait(scope, key, wakes))
            while len(await self._host.open_waits()) < len(keys):  # noqa: ASYNC110 - the store knows
                await asyncio.sleep(0.01)
            return await wakes.latencies(keys, lambda key: self._host.resolve(key, Ok(PAYLOAD)))

    async def _steps(self, count: int) -> None:
        scope = next(self._scopes)
        controller = self._host.scoped(scope)
        where = RuntimeScope.of(scope)
        for number in range(count):
            step = envelope(
                DurableStep("step", number),
                scope=where,
                effect_id="step",
                replay_key=f"step#{number}",
            )
            await controller.execute(step, step_executor(_work))

    async def _wait(self, scope: ProcessScope, key: str, wakes: Wakes) -> None:
        asked = envelope(
            AwaitEvent(key), scope=RuntimeScope.of(scope), effect_id="wait", replay_key="wait"
        )
        await self._host.scoped(scope).execute(asked, await_options())
        wakes.resumed(key)


async def sync_settings(host: Any, store: str) -> dict[str, Any]:
    """Return how commits are synced, read from a connection of the store's own."""
    driver = host.store.driver
    if store == "postgres":
        connection = await driver.pool.connect()
        found = {name: await connection.fetchval(f"show {name}") for name in POSTGRES_SYNC}
        await connection.close()
        return found
    read = driver.commits.connection.execute
    return {name: read(f"pragma {name}").fetchone()[0] for name in SQLITE_SYNC}


async def _work(_: int) -> dict[str, Any]:
    return PAYLOAD
