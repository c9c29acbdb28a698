"""What a contender is: something a child process opens once and measures task by task.

Rule 1. A task returns its values: one rate, or one latency in milliseconds per sample.
Rule 2. What a step returns and a resolution carries is ``PAYLOAD``, about 200 bytes of JSON.
Rule 3. A contender that is idle does next to nothing: others are being measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from benchmarks.lines import Load

PAYLOAD: Final[dict[str, Any]] = {
    "answer": "The agent wrote down what it had done before it went on.",
    "model": "a-model-of-middling-size",
    "tokens": {"prompt": 1482, "completion": 57},
    "stop": "end_turn",
    "calls": ["search", "read"],
    "ok": True,
}
PAYLOAD_TEXT: Final = json.dumps(PAYLOAD)

SQLITE_SYNC: Final = ("journal_mode", "synchronous")
POSTGRES_SYNC: Final = ("fsync", "synchronous_commit", "wal_sync_method")
"""The settings that say what a commit is worth; each contender reads them where it writes."""

BETWEEN_WAKES: Final = (0.005, 0.025)
"""Seconds between two samples, at random, so that what the last one left behind is over."""


Facts = dict[str, dict[str, Any]]
"""Under ``versions`` the versions of what is measured, under ``sync`` what a commit is worth."""


class Unavailable(Exception):
    """The contender cannot take part here; the message says why."""


class Contender:
    """A system under measurement, on one database."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def file(self) -> Path:
        """The file of an SQLite URL, or the folder of a contender with its own storage."""
        return Path(self.url.removeprefix("sqlite:///"))

    async def open(self) -> Facts:
        """Get ready; return the versions and the sync settings in use."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of the database."""

    async def sequential(self, load: Load) -> list[float]:
        """Measure A: steps per second in one run."""
        raise NotImplementedError

    async def concurrent(self, load: Load) -> list[float]:
        """Measure B: steps per second in many runs at once."""
        raise NotImplementedError

    async def wake(self, load: Load) -> list[float]:
        """Measure C: milliseconds from resolving to going on, for each of ``load.steps`` waits."""
        raise NotImplementedError

    async def start(self, load: Load) -> list[float]:
        """Measure D1: milliseconds from starting a process with one step to its result."""
        raise NotImplementedError

    async def starts(self, load: Load) -> list[float]:
        """Measure D2: processes with one step per second that ``load.scopes`` callers start and see finish."""
        raise NotImplementedError

    async def signal_live(self, load: Load) -> list[float]:
        """Measure E1: milliseconds from a signal to the result of a process in memory."""
        raise NotImplementedError

    async def signal_parked(self, load: Load) -> list[float]:
        """Measure E2: milliseconds from a signal to the result of a process not in memory."""
        raise NotImplementedError

    async def recovery(self, load: Load) -> list[float]:
        """Measure G: seconds until ``load.scopes`` killed processes are finished by a new worker.

        Each has ``load.steps`` recorded steps and is inside one more. The figure is for 1,000.
        """
        raise NotImplementedError

    async def replay(self, load: Load) -> list[float]:
        """Measure H: milliseconds from resuming a process to its next step, ``load.scopes`` times.

        The process has ``load.steps`` recorded steps.
        """
        raise NotImplementedError


async def timed(work: Awaitable[Any]) -> float:
    """Return how many milliseconds work takes."""
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) * 1_000


async def started_by(load: Load, start: Callable[[], Awaitable[Any]]) -> list[float]:
    """Let many callers start one process after another; return the processes per second."""

    async def caller() -> None:
        for _ in range(load.steps):
            await start()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(load.scopes):
            group.create_task(caller())
    return [load.total / (time.perf_counter() - started)]


async def signalled(
    result: Coroutine[Any, Any, Any],
    signal: Callable[[], Awaitable[Any]],
    between: tuple[float, float] = BETWEEN_WAKES,
) -> float:
    """Send a signal while its process's result is waited for; return the milliseconds."""
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(result)
        await asyncio.sleep(random.uniform(*between))
        started = time.perf_counter()
        await signal()
        await waiter
        return (time.perf_counter() - started) * 1_000


class Wakes:
    """When each waiter went on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._resumed: defaultdict[Any, asyncio.Future[float]]
        self._resumed = defaultdict(self._loop.create_future)

    def resumed(self, waiter: Any) -> None:
        """Note that waiter goes on, in whatever thread it does."""
        now = time.perf_counter()
        self._loop.call_soon_threadsafe(self._note, waiter, now)

    async def when(self, waiter: Any) -> float:
        """Wait until waiter goes on; return when it did."""
        return await self._resumed[waiter]

    def _note(self, waiter: Any, now: float) -> None:
        if not self._resumed[waiter].done():
            self._resumed[waiter].set_result(now)

    async def latencies(
        self,
        waiters: list[Any],
        resolve: Callable[[Any], Awaitable[Any]],
        between: tuple[float, float] = BETWEEN_WAKES,
    ) -> list[float]:
        """Resolve one waiter after another; return how many milliseconds each took to go on."""
        found = []
        for waiter in waiters:
            await asyncio.sleep(random.uniform(*between))
            started = time.perf_counter()
            await resolve(waiter)
            found.append((await self.when(waiter) - started) * 1_000)
        return found
