"""absurd: tasks of a queue, worked on in this process.

Rule 1. Workers run only while a task is measured: idle ones would poll the server.
Rule 2. Rates are taken from the first step to the last, inside the tasks.
Rule 3. A worker has one connection. Measures B and D2 give absurd several, its faster way.

Its schema comes with its command-line tool.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.contender import (
    PAYLOAD,
    POSTGRES_SYNC,
    Contender,
    Facts,
    Wakes,
    signalled,
    started_by,
    timed,
)
from benchmarks.lines import Load

QUEUE: Final = "bench"
WORKERS: Final = 8
CONCURRENCY: Final = 100
STEPS_POLL_SECONDS: Final = 0.01
CONNECTED_SECONDS: Final = 0.3
"""How long the workers are given to connect."""
WAKE_POLL_SECONDS: Final = 0.25
"""The default of absurd; samples fall anywhere in it."""


def contender(_store: str, url: str) -> Contender:
    """Return absurd on PostgreSQL, the one database it has."""
    return AbsurdContender(url)


class Lap:
    """The first step's start and the last step's end over the tasks of a round."""

    def __init__(self, tasks: int) -> None:
        self.started: float | None = None
        self.ended = 0.0
        self.left = tasks
        self.over = asyncio.Event()

    def start(self) -> None:
        """A task begins its steps."""
        if self.started is None:
            self.started = time.perf_counter()

    def end(self) -> None:
        """A task has done its steps."""
        self.ended = time.perf_counter()
        self.left -= 1
        if not self.left:
            self.over.set()

    async def seconds(self) -> float:
        """Return how long it took, once every task has ended."""
        await self.over.wait()
        assert self.started is not None
        return self.ended - self.started


class AbsurdContender(Contender):
    """A client, and workers when they are needed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._rounds = itertools.count()
        self._laps: dict[int, Lap] = {}
        self._wakes: dict[int, Wakes] = {}

    async def open(self) -> Facts:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(BUNDLED_SCHEMA_SQL)
            shown = [connection.execute(f"show {name}").fetchall() for name in POSTGRES_SYNC]
        sync = {name: rows[0][0] for name, rows in zip(POSTGRES_SYNC, shown, strict=True)}
        self._client = AsyncAbsurd(self.url, queue_name=QUEUE)
        await self._client.create_queue(QUEUE)
        return {"versions": {"absurd": version("absurd-sdk")}, "sync": sync}

    async def close(self) -> None:
        await self._client.close()

    async def sequential(self, load: Load) -> list[float]:
        return await self._rate(load, 1)

    async def concurrent(self, load: Load) -> list[float]:
        return await self._rate(load, WORKERS)

    async def wake(self, load: Load) -> list[float]:
        key = next(self._rounds)
        wakes = self._wakes[key] = Wakes()
        self._reached = asyncio.Semaphore(0)
        numbers = list(range(load.steps))
        for number in numbers:
            await self._client.spawn("wait", {"key": key, "number": number}, queue=QUEUE)

        async def emit(number: int) -> None:
            await self._client.emit_event(f"go:{key}:{number}", PAYLOAD)

        async with self._working(1, WAKE_POLL_SECONDS):
            for _ in numbers:
                await self._reached.acquire()
            await asyncio.sleep(WAKE_POLL_SECONDS)
            return await wakes.latencies(numbers, emit, (0.0, WAKE_POLL_SECONDS))

    async def start(self, load: Load) -> list[float]:
        found = []
        async with self._working(1, WAKE_POLL_SECONDS):
            for _ in range(load.steps):
                await asyncio.sleep(random.uniform(0.0, WAKE_POLL_SECONDS))
                found.append(await timed(self._one_step_done()))
        return found

    async def starts(self, load: Load) -> list[float]:
        """Spawn from one connection, and count until the last task has ended."""
        key = next(self._rounds)
        lap = self._laps[key] = Lap(load.total)
        async with self._working(WORKERS, STEPS_POLL_SECONDS):
            await asyncio.sleep(CONNECTED_SECONDS)
            started = time.perf_counter()
            await started_by(load, lambda: self._client.spawn("count", {"key": key}, queue=QUEUE))
            await lap.over.wait()
            return [load.total / (time.perf_counter() - started)]

    async def signal_parked(self, load: Load) -> list[float]:
        key, found = next(self._rounds), []
        self._wakes[key] = Wakes()
        self._reached = asyncio.Semaphore(0)
        between = (0.0, WAKE_POLL_SECONDS)
        tasks = [
            await self._client.spawn("wait", {"key": key, "number": number}, queue=QUEUE)
            for number in range(load.steps)
        ]
        async with self._working(1, WAKE_POLL_SECONDS):
            for _ in tasks:
                await self._reached.acquire()
            await asyncio.sleep(WAKE_POLL_SECONDS)
            for number, task in enumerate(tasks):
                emit = partial(self._client.emit_event, f"go:{key}:{number}", PAYLOAD)
                found.append(await signalled(self._done(task), emit, between))
        return found

    async def _one_step_done(self) -> None:
        await self._done(await self._client.spawn("one step", {}, queue=QUEUE))

    async def _done(self, task: Any) -> None:
        await self._client.await_task_result(task["task_id"])

    async def _rate(self, load: Load, workers: int) -> list[float]:
        key = next(self._rounds)
        lap = self._laps[key] = Lap(load.scopes)
        for _ in range(load.scopes):
            await self._client.spawn("step", {"key": key, "steps": load.steps}, queue=QUEUE)
        async with self._working(workers, STEPS_POLL_SECONDS):
            return [load.total / await lap.seconds()]

    @asynccontextmanager
    async def _working(self, count: int, poll: float) -> AsyncIterator[None]:
        """Have workers work for the time of the block."""
        workers = [self._worker() for _ in range(count)]
        async with asyncio.TaskGroup() as group:
            for number, worker in enumerate(workers):
                group.create_task(
                    worker.start_worker(
                        worker_id=f"w{number}",
                        concurrency=-(-CONCURRENCY // count),
                        poll_interval=poll,
                    )
                )
            try:
                yield
            finally:
                for worker in workers:
                    worker.stop_worker()
        for worker in workers:
            await worker.close()

    def _worker(self) -> AsyncAbsurd:
        worker = AsyncAbsurd(self.url, queue_name=QUEUE)
        worker.register_task("step")(self._step)
        worker.register_task("wait")(self._wait)
        worker.register_task("one step")(_one_step)
        worker.register_task("count")(self._count)
        return worker

    async def _step(self, params: dict[str, Any], context: Any) -> None:
        lap = self._laps[params["key"]]
        lap.start()
        for _ in range(params["steps"]):
            await context.step("step", _work)
        lap.end()

    async def _count(self, params: dict[str, Any], context: Any) -> None:
        await _one_step(params, context)
        self._laps[params["key"]].end()

    async def _wait(self, params: dict[str, Any], context: Any) -> None:
        self._reached.release()  # also when it runs again to go on; nobody counts by then
        await context.await_event(f"go:{params['key']}:{params['number']}")
        self._wakes[params["key"]].resumed(params["number"])


async def _work() -> dict[str, Any]:
    return PAYLOAD


async def _one_step(_params: dict[str, Any], context: Any) -> Any:
    return await context.step("step", _work)
