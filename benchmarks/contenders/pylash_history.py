"""pylash: what a store costs after many runs have ended in it.

Rule 1. The ended runs are written by plain statements, as rows that processes with one step would have left long ago.
Rule 2. They stay: a longer past is the shorter one with more added.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from contextlib import AsyncExitStack, closing
from importlib.metadata import version
from typing import Final

from benchmarks.contender import Contender, Facts, timed
from benchmarks.contenders.pylash_contender import sync_settings
from benchmarks.lines import Load
from pylash import Lash
from pylash.app import open_host
from pylash.durable.commands import StartProcess
from pylash.durable.processes import EngineInput, Registration
from pylash.durable.runs import SECOND, WorkerId
from pylash.stores.drivers.postgres_dialect import dialect as for_postgres
from pylash.stores.drivers.sqlite_dialect import dialect as for_sqlite
from pylash.stores.store import SqlStore

SHOWN: Final = 20
PRUNED: Final = 100

_ROWS: Final = (
    "with recursive x(n) as (select {first} union all select n + 1 from x where n < {last}) "
)

_FILLING: Final = (
    "insert into pylash_runs(id, scope, kind, target, state, token, fence, attempts, created, settled) "
    + _ROWS
    + """select n, '{"process_id":"old-' || n || '","type":"process"}', 'process', 'python:old', 'completed',
      'settled:1', 2, 1, 1, 1 from x""",
    "insert into pylash_processes(number, id, run, registration, digest, sequence, status, output, created, settled) "
    + _ROWS
    + """select n, 'old-' || n, n, cast('{}' as {blob}), cast('d' as {blob}), 2, 'completed',
      cast('{"status":"completed"}' as {blob}), 1, 1 from x""",
    "insert into pylash_process_events(process, sequence, type, at) "
    + _ROWS
    + "select n, 1, 'process.started', 1 from x union all select n, 2, 'process.completed', 1 from x",
    "insert into pylash_effects(run, key, kind, hash, outcome, started, ended) "
    + _ROWS
    + "select n, 'step', 'durable_step', cast('h' as {blob}), cast('1' as {blob}), 1, 1 from x",
)


def contender(store: str, url: str) -> Contender:
    """Return pylash on a store with a past."""
    return HistoryContender(store, url)


class HistoryContender(Contender):
    """A store in which more and more has ended."""

    def __init__(self, store: str, url: str) -> None:
        super().__init__(url)
        self.store = store
        self._stack = AsyncExitStack()
        self._ended = 0
        self._names = itertools.count()

    async def open(self) -> Facts:
        self._host = await self._stack.enter_async_context(open_host(self.url, migrate=True))
        versions = {"pylash": version("pylash")}
        return {"versions": versions, "sync": await sync_settings(self._host, self.store)}

    async def close(self) -> None:
        await self._stack.aclose()

    async def closing(self, load: Load) -> list[float]:
        """Measure N1: milliseconds of closing an app."""
        await self._fill(load.scopes)
        found = []
        for _ in range(load.steps):
            async with Lash(self.url):
                started = time.perf_counter()
            found.append((time.perf_counter() - started) * 1_000)
        return found

    async def takeover(self, load: Load) -> list[float]:
        """Measure N2: milliseconds of taking over a dead worker with one process."""
        await self._fill(load.scopes)
        store, found = self._host.store, []
        assert isinstance(store, SqlStore)
        me = WorkerId("me")
        await store.workers.join(me, 3_600 * SECOND)
        for _ in range(load.steps):
            name = f"taken-{next(self._names)}"
            dead = WorkerId(f"dead-{name}")
            await store.workers.join(dead, 0)
            given = EngineInput("python", "nobody", {})
            await store.processes.start(StartProcess(Registration(id=name, input=given)), dead)
            found.append(await timed(store.workers.bury_the_dead(me)))
        await store.workers.leave(me)
        return found

    async def listing(self, load: Load) -> list[float]:
        """Measure N3: milliseconds of ``app.processes(limit=20)``."""
        await self._fill(load.scopes)
        async with Lash(self.url) as app:
            return [await timed(app.processes(limit=SHOWN)) for _ in range(load.steps)]

    async def pruning(self, load: Load) -> list[float]:
        """Measure N4: milliseconds of forgetting the effects of 100 runs."""
        await self._fill(load.scopes)
        journal = self._host.store.journal
        return [await timed(journal.prune(SECOND, PRUNED)) for _ in range(load.steps)]

    async def _fill(self, count: int) -> None:
        """Let so many runs have ended."""
        if count <= self._ended:
            return
        between = str(self._ended + 1), str(count)
        self._ended = count
        filling = [
            sql.replace("{first}", between[0]).replace("{last}", between[1]) for sql in _FILLING
        ]
        if self.store == "postgres":
            await self._fill_postgres(filling)
        else:
            await asyncio.to_thread(self._fill_sqlite, filling)

    def _fill_sqlite(self, filling: list[str]) -> None:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            for sql in filling:
                connection.execute(for_sqlite(sql))
            connection.execute("pragma wal_checkpoint(truncate)")

    async def _fill_postgres(self, filling: list[str]) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.url)
        try:
            for sql in filling:
                await connection.execute(for_postgres(sql))
            await connection.execute("vacuum analyze")  # as the server does by itself
        finally:
            await connection.close()
