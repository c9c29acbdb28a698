"""Connections to a SQLite file: one for writes, with group commits, and one for reads.

Rule 1. Each connection is used by one thread at a time: ``GroupCommit`` by the thread that opens the store and then
        by the writer thread only, ``Reader`` by its own thread.
Rule 2. An error that ends the transaction, such as a full disk, does not fail the other operations: the batch is
        run again with one transaction for each operation.
Rule 3. The busy handler of SQLite is not used: it is unfair between processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from pylash.durable.ports import Clock, Entropy
from pylash.stores.drivers.private_files import make_private_file
from pylash.stores.drivers.sqlite_dialect import dialect
from pylash.stores.drivers.sqlite_errors import translate_errors
from pylash.stores.drivers.sqlite_files import refuse_other_files
from pylash.stores.operation import (
    MAX_REPEATS,
    Again,
    Bulk,
    Notify,
    Operation,
    Rows,
    too_many_conflicts,
)
from pylash.values.canonical import encode
from pylash.values.errors import StoreError, StorePathUnwritable

T = TypeVar("T")

BATCH_SECONDS: Final = 0.020
"""How long operations of the batch are added to a transaction."""
BUSY_TRIES: Final = 50_000
WAL_BYTES: Final = 4_200_000
CHECKPOINT_PAGES: Final = 2_000
"""Pages in the log after which it is copied into the database. They are estimated from the next two numbers."""
PAGES_OF_A_COMMIT: Final = 4
PAGES_OF_A_HEAVY_ONE: Final = 500


class Job(msgspec.Struct, eq=False):
    """An operation for the writer, and its result or error.

    Only the thread that has the batch of a job changes it. ``repeats`` counts its conflicts.
    """

    operation: Operation[Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None
    topics: Sequence[str] = ()
    repeats: int = 0


class GroupCommit:
    """The connection that writes: many operations share one transaction, and so one sync of the disk."""

    def __init__(self, path: Path | None, clock: Clock, entropy: Entropy) -> None:
        self._path = path
        self._clock = clock
        self._entropy = entropy
        self._pages = 0  # estimate of the growth of the log since the last checkpoint

    # --- opening and closing ---

    def open(self) -> None:
        """Open the file for durable writes; create it if it is missing."""
        with translate_errors(self._path):
            if self._path is not None:
                _check_place(self._path)
            self.connection = connect(self._path, self._clock)
            try:
                self._execute_when_free("pragma page_size = 2048")
                self._execute_when_free("pragma journal_mode = wal")
                self.connection.execute("pragma synchronous = full")
                self.connection.execute("pragma secure_delete = off")
                self.connection.execute("pragma wal_autocheckpoint = 0")  # see checkpoint_if_due
                if self._path is not None:
                    _grow_log(self.connection, self._path)
            except BaseException:
                self.connection.close()
                raise

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    # --- writing ---

    def write(self, batch: list[Job]) -> None:
        """Commit a batch in as few transactions as the time limit allows; every job has a result or an error then."""
        done = 0
        try:
            while done < len(batch):
                done += self._commit(batch[done:])
        except BaseException as error:  # noqa: BLE001 - raised to the callers, which wait
            for job in batch[done:]:
                job.error = error

    def checkpoint_if_due(self) -> None:
        """Copy the log into the database if it has grown."""
        if self._pages >= CHECKPOINT_PAGES:
            self._pages = 0
            # Pages that readers still use are copied the next time.
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("pragma wal_checkpoint(passive)").fetchall()

    def _commit(self, jobs: list[Job]) -> int:
        """Run as many jobs in one transaction as the time limit allows; return how many are done.

        Returns 0 if a single job had a conflict: the caller runs it again.
        """
        if len(jobs) == 1 and self._insert_row(jobs[0]):
            return 1
        # IMMEDIATE takes the write lock before anything is read: a transaction that reads first cannot write after a
        # commit of another process.
        try:
            with translate_errors(self._path):
                self._execute_when_free("begin immediate")
        except StoreError as error:  # the file is locked or missing: all jobs fail
            for job in jobs:
                job.error = error
            return len(jobs)
        try:
            with translate_errors(self._path):
                taken = self._run_together(jobs)
                self.connection.execute("commit")
        except BaseException as error:  # noqa: BLE001 - every job has its own error
            # The results of jobs so far are void: the transaction was not written.
            if self.connection.in_transaction:
                self.connection.execute("rollback")
            if len(jobs) > 1:
                return self._commit_one_by_one(jobs)
            if isinstance(error, Again):
                return 0
            jobs[0].error = error
            return 1
        self._pages += PAGES_OF_A_COMMIT + taken
        return taken

    def _commit_one_by_one(self, jobs: list[Job]) -> int:
        for job in jobs:
            while not self._commit([job]):
                pass  # it had a conflict; _run_one counts them
        return len(jobs)

    def _insert_row(self, job: Job) -> bool:
        """Write a single row with its insert alone: a transaction around it is two statements more.

        False if it is refused or the file is locked: nothing is written then, and a transaction finds out why.
        """
        bulk = job.operation.bulk
        if bulk is None or bulk.one is None:
            return False
        # Outside of a transaction, a statement that returns has been committed.
        try:
            written = self.connection.execute(dialect(bulk.one), bulk.row).rowcount == 1
        except sqlite3.Error:
            return False
        if written:
            job.result, job.error, job.topics = bulk.value, None, ()
            self._pages += PAGES_OF_A_COMMIT + 1
        return written

    def _run_together(self, jobs: list[Job]) -> int:
        """Run jobs in the open transaction until its time limit; return how many."""
        started = self._clock.monotonic()
        taken = 0
        while taken < len(jobs):
            if taken and self._clock.monotonic() - started > BATCH_SECONDS:
                break
            rows = _rows_from(jobs, taken)
            some = jobs[taken : taken + max(1, len(rows))]
            if len(rows) > 1 and self._insert_rows(rows):
                for job, row in zip(some, rows, strict=True):
                    job.result, job.error, job.topics = row.value, None, ()
            else:
                for job in some:
                    self._run_one(job, alone=len(jobs) == 1)
            taken += len(some)
        return taken

    def _insert_rows(self, rows: list[Bulk]) -> bool:
        """Insert rows with one call; if one of them is refused, insert none and return False."""
        # A refused row (its key is taken, or its fence is stale) changes nothing and is not counted.
        self.connection.execute("savepoint rows")
        sql, params = rows[0].one or "", [row.row for row in rows]
        refused = len(rows) - self.connection.executemany(dialect(sql), params).rowcount
        if refused:
            self.connection.execute("rollback to rows")
        self.connection.execute("release rows")
        return not refused

    def _run_one(self, job: Job, *, alone: bool) -> None:
        """Run one job of the transaction; its error or conflict undoes only this job.

        ``alone``: it is the only job of the transaction, which the caller rolls back. Otherwise a savepoint undoes
        it; a bare job needs none, because nothing that could fail follows its only write.
        """
        if job.operation.heavy:
            self._pages += PAGES_OF_A_HEAVY_ONE
        saved = not (alone or job.operation.bare)
        if saved:
            self.connection.execute("savepoint job")
        while True:
            topics = list[str]()
            # An attempt in a transaction that was rolled back may have set others.
            job.error, job.topics = None, topics
            try:
                job.result = run_operation(self.connection, job.operation, topics)
            except sqlite3.Error:
                raise  # it may have ended the transaction: every job is run again, one by one
            except Exception as error:  # noqa: BLE001 - raised to the caller of the job
                failure = _failure_of(job, error)
                if alone or (failure is None and not saved):
                    raise failure or error  # noqa: B904 - the error itself, or the conflict given up
                topics.clear()
                if saved:
                    self.connection.execute("rollback to job")
                if failure is None:
                    continue
                job.error = failure
            break
        if saved:
            self.connection.execute("release job")

    def _execute_when_free(self, sql: str) -> None:
        """Execute a statement that needs the write lock; retry after short random pauses while it is held."""
        for _ in range(BUSY_TRIES):
            try:
                self.connection.execute(sql)
            except sqlite3.OperationalError as error:
                busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if error.sqlite_errorcode & 0xFF not in busy:
                    raise
                time.sleep(0.0001 + self._entropy(1)[0] * 0.000002)
            else:
                return
        self.connection.execute(sql)


class Reader:
    """The connection that reads, in its own thread: a read never waits for the writer."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pylash-read")

    async def open(self) -> None:
        """Open the connection."""
        self._loop = asyncio.get_running_loop()
        await self._loop.run_in_executor(self._thread, self._open)

    def run(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Run an operation that only reads."""
        return self._loop.run_in_executor(self._thread, self._run, operation)

    def data_version(self) -> asyncio.Future[int]:
        """Return a number that changes when another connection has committed."""
        return self._loop.run_in_executor(self._thread, self._data_version)

    async def close(self) -> None:
        """Close the connection, after the reads that were submitted."""
        await self._loop.run_in_executor(self._thread, self.connection.close)
        await asyncio.to_thread(self._thread.shutdown)

    def _open(self) -> None:
        with translate_errors(self._path):
            self.connection = connect(self._path, self._clock)
            # A write on this connection would bypass the transactions of the writer, and could meet its lock.
            self.connection.execute("pragma query_only = on")
            self.connection.execute("pragma cache_size = -500")

    def _run(self, operation: Operation[T]) -> T:
        with translate_errors(self._path):
            return run_operation(self.connection, operation, [])

    def _data_version(self) -> int:
        return int(self.connection.execute("pragma data_version").fetchall()[0][0])


def connect(path: Path | None, clock: Clock) -> sqlite3.Connection:
    """Return a connection with the clock as a SQL function; None opens an in-memory database."""
    where = ":memory:" if path is None else str(path)
    # No isolation level: Python begins no transaction by itself. Threads are not checked because a connection may be
    # opened in one thread and used in another, never by both at a time (rule 1).
    connection = sqlite3.connect(
        where, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.create_function("pylash_now", 0, clock.now)
    return connection


def run_operation(connection: sqlite3.Connection, operation: Operation[T], topics: list[str]) -> T:
    """Run the statements of an operation on a connection; its notifications are added to topics."""
    steps = operation.steps()
    try:
        step = next(steps)
        while True:
            if isinstance(step, Notify):
                topics.append(step.topic)
                step = steps.send(Rows([], 0))
                continue
            cursor = connection.execute(dialect(step.sql), plain(step.params))
            step = steps.send(Rows(cursor.fetchall(), cursor.rowcount))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's value has no type at run time


def plain(params: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return parameters for SQLite: a list becomes the JSON text that json_each reads."""
    if list not in map(type, params):
        return params
    return tuple(encode(p).decode() if isinstance(p, list) else p for p in params)


def _failure_of(job: Job, error: Exception) -> Exception | None:
    """Return the error of a job; None if it had a conflict and is to be repeated."""
    if not isinstance(error, Again):
        return error
    job.repeats += 1
    return (
        None
        if job.repeats <= MAX_REPEATS
        else too_many_conflicts(f"The operation {job.operation.name!r}")
    )


def _rows_from(jobs: list[Job], start: int) -> list[Bulk]:
    """Return the rows of consecutive jobs from start that one statement can insert; none if the first has no row."""
    first = jobs[start].operation.bulk
    rows: list[Bulk] = []
    if first is not None and first.one is not None:
        for job in islice(jobs, start, None):
            if job.operation.bulk is None or job.operation.bulk.many is not first.many:
                break
            rows.append(job.operation.bulk)
    return rows


def _check_place(path: Path) -> None:
    """Refuse a path where no store can be; create a missing file, readable by its owner only.

    It will contain messages, and the secret that signs keys.
    """
    if not path.parent.is_dir():
        raise StorePathUnwritable(
            f"The folder {str(path.parent)!r} of the store does not exist: create it first."
        )
    refuse_other_files(path)
    with contextlib.suppress(OSError):  # the file exists, or SQLite will report why it cannot
        make_private_file(path)


def _grow_log(connection: sqlite3.Connection, path: Path) -> None:
    """Grow the log at once: overwriting it is cheaper than growing it with each commit."""
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size >= WAL_BYTES:
        return
    connection.execute("pragma cache_size = 20")
    # If another process is writing, the log grows without us.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("begin immediate")
        connection.execute("create table pylash_grow(body blob)")
        connection.execute("insert into pylash_grow values (zeroblob(?))", (WAL_BYTES,))
    if connection.in_transaction:
        connection.execute("rollback")
    connection.execute("pragma cache_size = -2000")
