"""pylash: processes that leave memory as soon as they wait, one or a great many of them.

Rule 1. Memory is what the process grows by, as the system sees it, from when everything has been
        used once; the benchmark itself keeps a byte for each parked process.
Rule 2. The parked stay: a larger crowd is the smaller one with more added.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import psutil

from benchmarks.contender import PAYLOAD, Contender, Wakes, started_by
from benchmarks.contenders.pylash_processes import SETTLED_SECONDS, ProcessContender
from benchmarks.lines import Load
from pylash import ProcessContext

AT_ONCE: Final = "0s"
CALLERS: Final = 100
FIRST_USES: Final = 300
PARKED_SECONDS: Final = 1.5


def contender(store: str, url: str) -> Contender:
    """Return pylash on a store, with processes that park at once."""
    return ParkedContender(store, url)


class ParkedContender(ProcessContender):
    """An app whose waiting processes are in the store only."""

    def __init__(self, store: str, url: str) -> None:
        super().__init__(store, url, AT_ONCE)
        self._wakes: dict[int, Wakes] = {}
        self._parked = 0
        self._woken = itertools.count()
        self._bytes_before = 0

        async def mark(key: int, number: int) -> None:
            self._wakes[key].resumed(number)

        @self.app.process
        async def remembering(ctx: ProcessContext[None], key: int, steps: int, resumes: int) -> int:
            for number in range(steps):
                await ctx.step(_work, number)
            for number in range(resumes):
                self.reached[number] = 1
                await ctx.wait_signal(f"go-{number}")
                await ctx.step(mark, key, number)
            return steps

        self._remembering = remembering

    async def signal_parked(self, load: Load) -> list[float]:
        return await self.signals(load.steps)

    async def replay(self, load: Load) -> list[float]:
        key, found = next(self.rounds), []
        wakes = self._wakes[key] = Wakes()
        self.reached = bytearray(load.scopes)
        handle = await self.app.start(
            self._remembering, key=key, steps=load.steps, resumes=load.scopes
        )
        for number in range(load.scopes):
            while not self.reached[number]:  # noqa: ASYNC110 - nobody is timed here
                await asyncio.sleep(0.02)
            await asyncio.sleep(SETTLED_SECONDS)
            started = time.perf_counter()
            await handle.signal(f"go-{number}", PAYLOAD)
            found.append((await wakes.when(number) - started) * 1_000)
        await handle.result()
        return found

    async def parked_memory(self, load: Load) -> list[float]:
        """Measure F1: kilobytes for each of ``load.scopes`` parked processes."""
        await self._park(load.scopes)
        return [(_resident() - self._bytes_before) / 1024 / load.scopes]

    async def parked_wake(self, load: Load) -> list[float]:
        """Measure F2: milliseconds from a signal to the result of one of the parked."""
        await self._park(load.scopes)
        woken = [next(self._woken) for _ in range(load.steps)]
        return [await self.signal(self.app.process_handle(f"parked-{one}")) for one in woken]

    async def parked_start(self, load: Load) -> list[float]:
        """Measure F3: milliseconds of a process with one step beside the parked."""
        await self._park(load.scopes)
        return await self.start(load)

    async def _park(self, count: int) -> None:
        """Have so many parked processes, of which a few may have been woken since."""
        if not self._bytes_before:
            await self._use_everything_once()
            self._bytes_before = _resident()
        if count <= self._parked:
            return
        self.reached.extend(bytes(count - self._parked))
        await _by_many(self._start_parked, range(self._parked, count))
        self._parked = count
        await self.all_wait()
        await asyncio.sleep(PARKED_SECONDS)

    async def _use_everything_once(self) -> None:
        """Do all that will be done, as many at once, so that only the parked are new afterwards."""
        self.reached = bytearray(FIRST_USES)
        await started_by(Load(CALLERS, FIRST_USES // CALLERS), self.run_one_step)
        handles = [await self.app.start(self.waiting, number=one) for one in range(FIRST_USES)]
        await self.all_wait()
        await _by_many(_go_on, handles)
        self.reached = bytearray()

    async def _start_parked(self, number: int) -> None:
        await self.app.start(self.waiting.options(id=f"parked-{number}"), number=number)


async def _go_on(handle: Any) -> None:
    await handle.signal("go", PAYLOAD)
    await handle.result()


async def _by_many(do: Callable[[Any], Awaitable[None]], items: Iterable[Any]) -> None:
    """Do something with every item, as many callers at once."""
    left = iter(items)

    async def caller() -> None:
        for item in left:
            await do(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())


def _resident() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


async def _work(_number: int) -> dict[str, Any]:
    return PAYLOAD
