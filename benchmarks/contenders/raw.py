"""The raw databases: what the same disk gives to a program that only inserts rows.

Rule 1. A row holds the same payload under a primary key of run and step: less than any journal.
Rule 2. Everything is synced: SQLite with WAL and ``synchronous = full``, PostgreSQL as it comes.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Self

from benchmarks.contender import (
    PAYLOAD_TEXT,
    POSTGRES_SYNC,
    SQLITE_SYNC,
    Contender,
    Facts,
    Unavailable,
)
from benchmarks.lines import Load

ROWS: Final = 100
"""Rows in a transaction of measure B."""

TABLE: Final = "create table steps(run integer, step integer, body text, primary key (run, step))"


def contender(store: str, url: str) -> Contender:
    """Return the raw database of a store."""
    return RawPostgres(url) if store == "postgres" else RawSqlite(url)


def batches(load: Load) -> Iterator[list[tuple[int, int, str]]]:
    """Return the rows of load, as many in each list as go into a transaction."""
    for start in range(0, load.total, ROWS):
        yield [(0, step, PAYLOAD_TEXT) for step in range(start, start + ROWS)]


class RawSqlite(Contender):
    """One connection, used where it is called."""

    insert = "insert into steps values (?, ?, ?)"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._runs = itertools.count(1)

    async def open(self) -> Facts:
        self._connection = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute(f"{TABLE} without rowid")
        read = self._connection.execute
        sync = {name: read(f"pragma {name}").fetchone()[0] for name in SQLITE_SYNC}
        return {"versions": {"SQLite": sqlite3.sqlite_version}, "sync": sync}

    async def close(self) -> None:
        self._connection.close()

    async def sequential(self, load: Load) -> list[float]:
        run, started = next(self._runs), time.perf_counter()
        for step in range(load.total):
            self._connection.execute(self.insert, (run, step, PAYLOAD_TEXT))
        return [load.total / (time.perf_counter() - started)]

    async def concurrent(self, load: Load) -> list[float]:
        run, started = next(self._runs), time.perf_counter()
        for rows in batches(load):
            self._connection.execute("begin immediate")
            self._connection.executemany(self.insert, [(run, *row[1:]) for row in rows])
            self._connection.execute("commit")
        return [load.total / (time.perf_counter() - started)]

    async def hop(self, load: Load) -> list[float]:
        """Measure A with the commits in a thread: what leaving the event loop costs."""
        run = next(self._runs)
        with Writer() as writer:
            started = time.perf_counter()
            for step in range(load.total):
                row = (run, step, PAYLOAD_TEXT)
                await writer.do(partial(self._connection.execute, self.insert, row))
            return [load.total / (time.perf_counter() - started)]


class Writer:
    """A thread that does what it is given, and answers to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[None]] | None]
        self._work = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._work.put(None)
        self._thread.join()

    def do(self, work: Callable[[], Any]) -> asyncio.Future[None]:
        """Do work in the thread; the future completes when it is done."""
        done = self._loop.create_future()
        self._work.put((work, done))
        return done

    def _go_on(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            work()
            self._loop.call_soon_threadsafe(done.set_result, None)


class RawPostgres(Contender):
    """One asyncpg connection with a prepared insert."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._runs = itertools.count(1)

    async def open(self) -> Facts:
        try:
            import asyncpg
        except ModuleNotFoundError as error:
            raise Unavailable("asyncpg is not installed") from error
        self._connection = await asyncpg.connect(self.url)
        await self._connection.execute(TABLE.replace("integer", "bigint"))
        self._insert = await self._connection.prepare("insert into steps values ($1, $2, $3)")
        self._insert_many = await self._connection.prepare(
            "insert into steps select * from unnest($1::bigint[], $2::bigint[], $3::text[])"
        )
        sync = {name: await self._connection.fetchval(f"show {name}") for name in POSTGRES_SYNC}
        return {"versions": {}, "sync": sync}

    async def close(self) -> None:
        await self._connection.close()

    async def sequential(self, load: Load) -> list[float]:
        run, started = next(self._runs), time.perf_counter()
        for step in range(load.total):
            await self._insert.fetch(run, step, PAYLOAD_TEXT)
        return [load.total / (time.perf_counter() - started)]

    async def concurrent(self, load: Load) -> list[float]:
        run, started = next(self._runs), time.perf_counter()
        for rows in batches(load):
            _, steps, bodies = zip(*rows, strict=True)
            await self._insert_many.fetch([run] * len(rows), steps, bodies)
        return [load.total / (time.perf_counter() - started)]
