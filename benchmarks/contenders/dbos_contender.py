"""DBOS: async workflows with async steps, on its default settings.

Rule 1. Where steps are measured, only they are timed. Workflows meet before their first step and
        after their last, so that neither starting nor finishing them is in the figure.
Rule 2. The sync API is measured beside the async one, which is what an agent would use.
Rule 3. On SQLite DBOS keeps the rollback journal unless the file is in WAL mode already; the
        store ``sqlite-wal`` is such a file.
Rule 4. A workflow that waits stays in memory, so there is no parked one to signal. What is
        replayed was cancelled before, and is resumed by DBOS's call for that.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import time
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from dbos import DBOS, DBOSConfig

from benchmarks.contender import (
    BETWEEN_WAKES,
    PAYLOAD,
    POSTGRES_SYNC,
    SQLITE_SYNC,
    Contender,
    Facts,
    Wakes,
    signalled,
    started_by,
    timed,
)
from benchmarks.lines import Load

TOPIC: Final = "go"
PARKED_SECONDS: Final = 1.0
"""How long a workflow is given to reach its ``recv``."""
POLL_SECONDS: Final = 1.0
"""How often DBOS looks for messages on SQLite: samples fall anywhere in it."""


def contender(store: str, url: str) -> Contender:
    """Return DBOS on a store."""
    return DbosContender(store, url)


class Meeting:
    """Where the workflows of a round wait for each other, and for whoever times them."""

    def __init__(self, workflows: int) -> None:
        self.start = asyncio.Barrier(workflows + 1)
        self.end = asyncio.Barrier(workflows + 1)


_meetings: dict[int, Meeting] = {}
_seconds: dict[int, float] = {}
_wakes: dict[int, Wakes] = {}
_interrupted: set[tuple[int, int]] = set()
_rounds = itertools.count()


@DBOS.step()
async def work(_number: int) -> dict[str, Any]:
    return PAYLOAD


@DBOS.step()
def work_sync(_number: int) -> dict[str, Any]:
    return PAYLOAD


@DBOS.workflow()
async def stepping(key: int, steps: int) -> int:
    meeting = _meetings[key]
    await meeting.start.wait()
    for number in range(steps):
        await work(number)
    await meeting.end.wait()
    return steps


@DBOS.workflow()
def stepping_sync(key: int, steps: int) -> int:
    started = time.perf_counter()
    for number in range(steps):
        work_sync(number)
    _seconds[key] = time.perf_counter() - started
    return steps


@DBOS.workflow()
async def waiting(key: int, number: int) -> int:
    await DBOS.recv_async(TOPIC, timeout_seconds=600)
    _wakes[key].resumed(number)
    return number


@DBOS.workflow()
async def one_step(number: int) -> dict[str, Any]:
    return await work(number)


@DBOS.step()
async def next_step(key: int, number: int) -> None:
    _wakes[key].resumed(number)


@DBOS.workflow()
async def remembering(key: int, steps: int, resumes: int) -> int:
    """Do steps, and after every resumption one more before the next interruption."""
    for number in range(steps):
        await work(number)
    for number in range(resumes + 1):
        await next_step(key, number)
        while (key, number) not in _interrupted:  # noqa: ASYNC110 - resumed ones have another loop
            await asyncio.sleep(0.01)
    return steps


def launch(url: str) -> None:
    """Start the process's one DBOS, with its defaults."""
    DBOS(
        config=DBOSConfig(
            name="bench",
            system_database_url=url.replace("postgresql://", "postgresql+psycopg://"),
            application_version="1",
            executor_id="bench",
            log_level="ERROR",
        )
    )
    DBOS.launch()


class DbosContender(Contender):
    """The process's one DBOS."""

    def __init__(self, store: str, url: str) -> None:
        super().__init__(url)
        self.store = store

    async def open(self) -> Facts:
        if self.store == "sqlite-wal":
            sqlite3.connect(self.file).execute("pragma journal_mode = wal")
        launch(self.url)
        return {"versions": {"dbos": version("dbos")}, "sync": sync_settings(self.store)}

    async def close(self) -> None:
        DBOS.destroy()

    async def sequential(self, load: Load) -> list[float]:
        return await self.concurrent(load)

    async def sequential_sync(self, load: Load) -> list[float]:
        """Measure A with workflow and steps that are plain functions."""
        key = next(_rounds)
        await asyncio.to_thread(stepping_sync, key, load.steps)
        return [load.steps / _seconds.pop(key)]

    async def concurrent(self, load: Load) -> list[float]:
        key = next(_rounds)
        meeting = _meetings[key] = Meeting(load.scopes)
        async with asyncio.TaskGroup() as group:
            for _ in range(load.scopes):
                group.create_task(stepping(key, load.steps))
            await meeting.start.wait()
            started = time.perf_counter()
            await meeting.end.wait()
            seconds = time.perf_counter() - started
        del _meetings[key]
        return [load.total / seconds]

    async def wake(self, load: Load) -> list[float]:
        key = next(_rounds)
        wakes = _wakes[key] = Wakes()
        handles = [
            await DBOS.start_workflow_async(waiting, key, number) for number in range(load.steps)
        ]
        await asyncio.sleep(PARKED_SECONDS)

        async def send(number: int) -> None:
            await DBOS.send_async(handles[number].get_workflow_id(), PAYLOAD, TOPIC)

        found = await wakes.latencies(list(range(load.steps)), send, self._between)
        for handle in handles:
            await handle.get_result()
        del _wakes[key]
        return found

    async def start(self, load: Load) -> list[float]:
        return [await timed(one_step(1)) for _ in range(load.steps)]

    async def starts(self, load: Load) -> list[float]:
        return await started_by(load, lambda: one_step(1))

    async def signal_live(self, load: Load) -> list[float]:
        key, found = next(_rounds), []
        _wakes[key] = Wakes()
        handles = [
            await DBOS.start_workflow_async(waiting, key, number) for number in range(load.steps)
        ]
        await asyncio.sleep(PARKED_SECONDS)
        for handle in handles:
            send = partial(DBOS.send_async, handle.get_workflow_id(), PAYLOAD, TOPIC)
            found.append(await signalled(handle.get_result(), send, self._between))
        del _wakes[key]
        return found

    async def replay(self, load: Load) -> list[float]:
        key, found = next(_rounds), []
        wakes = _wakes[key] = Wakes()
        handle = await DBOS.start_workflow_async(remembering, key, load.steps, load.scopes)
        for number in range(load.scopes):
            await wakes.when(number)
            await DBOS.cancel_workflow_async(handle.get_workflow_id())
            _interrupted.add((key, number))  # its next call ends it
            await asyncio.sleep(random.uniform(PARKED_SECONDS, PARKED_SECONDS + POLL_SECONDS))
            started = time.perf_counter()
            await DBOS.resume_workflow_async(handle.get_workflow_id())
            found.append((await wakes.when(number + 1) - started) * 1_000)
        _interrupted.add((key, load.scopes))
        await asyncio.sleep(PARKED_SECONDS)
        del _wakes[key]
        return found

    @property
    def _between(self) -> tuple[float, float]:
        """How many seconds to wait before a signal, at random."""
        return BETWEEN_WAKES if self.store == "postgres" else (0.0, POLL_SECONDS)


def sync_settings(store: str) -> dict[str, Any]:
    """Return how commits are synced, read from a connection of DBOS's own."""
    from dbos._dbos import _get_dbos_instance

    asks = (
        {name: f"show {name}" for name in POSTGRES_SYNC}
        if store == "postgres"
        else {name: f"pragma {name}" for name in SQLITE_SYNC}
    )
    with _get_dbos_instance()._sys_db.engine.connect() as connection:
        return {name: connection.exec_driver_sql(ask).scalar() for name, ask in asks.items()}
