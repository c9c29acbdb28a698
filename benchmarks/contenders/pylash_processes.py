"""pylash: processes, started and signalled through an app with its worker in the same process.

Rule 1. Nothing is tuned, but for how long a process that waits stays in memory: long here, not at
        all in ``pylash_parked``.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from benchmarks.contender import PAYLOAD, Contender, Facts, signalled, started_by, timed
from benchmarks.contenders.pylash_contender import sync_settings
from benchmarks.lines import Load
from pylash import Lash, ProcessContext, WorkerConfig

LIVE: Final = "1h"
SETTLED_SECONDS: Final = 0.3
"""How long a process is given to be waiting, or parked, after the code before its wait has run."""


def contender(store: str, url: str) -> Contender:
    """Return pylash on a store, with processes that stay in memory while they wait."""
    return ProcessContender(store, url, LIVE)


class ProcessContender(Contender):
    """An app, and the processes that are measured."""

    def __init__(self, store: str, url: str, park_after: str) -> None:
        super().__init__(url)
        self.store = store
        self.stack = AsyncExitStack()
        self.app: Lash = Lash(url, worker=WorkerConfig(park_after=park_after), migrate=True)
        self.reached = bytearray()
        """Which of the processes of a round have come to their wait."""
        self.rounds = itertools.count()

        @self.app.process
        async def one_step(ctx: ProcessContext[None]) -> dict[str, Any]:
            return await ctx.step(work)

        @self.app.process
        async def waiting(ctx: ProcessContext[None], number: int) -> int:
            self.reached[number] = 1
            await ctx.wait_signal("go")
            return number

        self.one_step, self.waiting = one_step, waiting

    async def open(self) -> Facts:
        await self.stack.enter_async_context(self.app)
        sync = await sync_settings(self.app.effect_host, self.store)
        return {"versions": {"pylash": version("pylash")}, "sync": sync}

    async def close(self) -> None:
        await self.stack.aclose()

    async def start(self, load: Load) -> list[float]:
        return [await timed(self.run_one_step()) for _ in range(load.steps)]

    async def starts(self, load: Load) -> list[float]:
        return await started_by(load, self.run_one_step)

    async def signal_live(self, load: Load) -> list[float]:
        return await self.signals(load.steps)

    async def signals(self, count: int) -> list[float]:
        """Signal one waiting process after another; return the milliseconds of each."""
        self.reached = bytearray(count)
        handles = [await self.app.start(self.waiting, number=number) for number in range(count)]
        await self.all_wait()
        return [await self.signal(handle) for handle in handles]

    async def signal(self, handle: Any) -> float:
        """Return the milliseconds from a signal to the result."""
        return await signalled(handle.result(), partial(handle.signal, "go", PAYLOAD))

    async def run_one_step(self) -> None:
        """Start a process with one step and see its result."""
        await (await self.app.start(self.one_step)).result()

    async def all_wait(self) -> None:
        """Wait until every process of the round waits."""
        while not all(self.reached):  # noqa: ASYNC110 - cheaper than as many events
            await asyncio.sleep(0.02)
        await asyncio.sleep(SETTLED_SECONDS)


async def work() -> dict[str, Any]:
    """Be a step."""
    return PAYLOAD
