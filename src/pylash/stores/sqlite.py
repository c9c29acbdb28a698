"""SQLite: one writer thread whose commits are shared.

Rule 1. A future completes only after the COMMIT that holds its operation.
Rule 2. An error that ended the transaction (a full disk does) ends nobody else's operation: the
        batch is run again, one transaction each.
Rule 3. Nothing waits for SQLite's own busy handler: it is unfair between processes.
Rule 4. Only one thread uses the writing connection at a time: the writer while it is busy, the
        loop while it is not.

While the writer commits, the next batch grows; a lone caller pays one sync, a thousand concurrent
callers pay one sync together. A caller that was alone the last time too, on a disk that is quick,
commits where it is: the way to the thread and back would cost as much as the commit
(``docs/decisions/0003-lone-commits-run-on-the-loop.md``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from pylash.durable import Clock, Entropy
from pylash.stores.fair_queue import FairQueue
from pylash.stores.peers import FileLocks, NoLocks, PokeFile
from pylash.stores.private_files import make_private_file
from pylash.stores.sql import (
    MAX_REPEATS,
    Again,
    Bulk,
    Notify,
    Operation,
    Part,
    Publisher,
    Rows,
    Steps,
    gave_up,
)
from pylash.stores.sqlite_dialect import dialect, for_rows, plain
from pylash.stores.sqlite_errors import translated
from pylash.stores.sqlite_files import refuse_other_files
from pylash.stores.workers import Locks
from pylash.tasks import TaskOwner
from pylash.values import StoreClosed, StoreError, StorePathUnwritable

T = TypeVar("T")

BATCH_OPERATIONS: Final = 512
BATCH_SECONDS: Final = 0.020
NEWCOMERS: Final = 128
"""How many operations that bring new work are on their way at once; the others wait for their flow's turn."""
BUSY_TRIES: Final = 50_000
MOST_ROWS: Final = 128
WAL_BYTES: Final = 4_200_000
CHECKPOINT_PAGES: Final = 2_000
PAGES_OF_A_COMMIT: Final = 4
PAGES_OF_A_HEAVY_ONE: Final = 500
QUICK_SECONDS: Final = 0.001
"""A lone commit runs on the loop only while commits take less than this on average."""
NET_SECONDS: Final = 1.0


class _Job(msgspec.Struct, eq=False):
    """An operation on its way through the writer."""

    operation: Operation[Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None
    topics: Sequence[str] = ()
    repeats: int = 0


class SqliteDriver(Publisher):
    """Runs operations on one SQLite file, or in memory."""

    def __init__(self, path: Path | None, clock: Clock, entropy: Entropy) -> None:
        self.path = path
        self.locks: Locks = NoLocks() if path is None else FileLocks(path)
        self._clock = clock
        self._entropy = entropy
        super().__init__()
        self._pending: deque[_Job] = deque()
        self._newcomers = FairQueue[_Job](NEWCOMERS)
        self._batch: list[_Job] = []
        self._busy = False
        self._scheduled = False
        self._open = False
        self._was_lone = False
        self._mean_seconds = 0.0
        self._pages = 0
        self._tasks = TaskOwner()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="pylash-read")
        self._poke: PokeFile | None = None

    # --- opening and closing ---

    async def open(self) -> None:
        """Open the file and start the writer."""
        self._loop = asyncio.get_running_loop()
        self._connection = await asyncio.to_thread(self._connect)
        if self.path is not None:
            try:
                self._poke = await asyncio.to_thread(PokeFile, self.path, self._entropy(8))
            except BaseException:
                await asyncio.to_thread(self._connection.close)
                raise
            self._reading = await self._loop.run_in_executor(self._reader, self._connect_reader)
            self._poke.watch(self._loop, lambda: self.publish(""))
            self._tasks.serve(self._notice_others())
        self._ring_in, self._ring_out = os.pipe()
        self._done_in, self._done_out = os.pipe()
        os.set_blocking(self._done_in, False)
        self._loop.add_reader(self._done_in, self._finish)
        self._thread = threading.Thread(
            target=self._write_forever, name="pylash-write", daemon=True
        )
        self._thread.start()
        self._open = True

    async def close(self) -> None:
        """Finish what was submitted, then close."""
        if not self._open:
            return
        self._open = False
        await self._submit(Operation("barrier", _nothing))  # everything submitted before it is done
        while self._newcomers:  # but these, which follow as there is room
            await self._submit(Operation("barrier", _nothing))
        await self._tasks.close()
        self._loop.remove_reader(self._done_in)
        os.close(self._ring_out)
        await asyncio.to_thread(self._thread.join)
        for fd in (self._ring_in, self._done_in, self._done_out):
            os.close(fd)
        if self._poke is not None:
            self._poke.close()
            await self._loop.run_in_executor(self._reader, self._reading.close)
        await asyncio.to_thread(self._reader.shutdown)
        await asyncio.to_thread(self._connection.close)

    def _connect(self) -> sqlite3.Connection:
        with translated(self.path):
            if self.path is not None and not self.path.parent.is_dir():
                raise StorePathUnwritable(
                    f"The folder {str(self.path.parent)!r} of the store does not exist: make it first."
                )
            if self.path is not None:
                refuse_other_files(self.path)
            self._make_private()
            connection = self._raw_connection()
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            return connection

    def _make_private(self) -> None:
        """Make a new file that only its owner may open: messages are in it, and the secret of keys."""
        if self.path is not None:
            with contextlib.suppress(OSError):  # it is there, or SQLite will say why it cannot be
                make_private_file(self.path)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._when_free(connection, "pragma page_size = 2048")
        self._when_free(connection, "pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = off")
        connection.execute("pragma wal_autocheckpoint = 0")  # the writer thread does it
        if self.path is not None:
            self._grow_wal(connection)

    def _raw_connection(self) -> sqlite3.Connection:
        where = ":memory:" if self.path is None else str(self.path)
        connection = sqlite3.connect(
            where, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.create_function("pylash_now", 0, self._clock.now)
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        with translated(self.path):
            connection = self._raw_connection()
            connection.execute("pragma query_only = on")
            connection.execute("pragma cache_size = -500")
            return connection

    def _grow_wal(self, connection: sqlite3.Connection) -> None:
        """Make the WAL long at once: overwriting it is cheaper than growing it commit by commit."""
        wal = Path(f"{self.path}-wal")
        if wal.exists() and wal.stat().st_size >= WAL_BYTES:
            return
        connection.execute("pragma cache_size = 20")
        # Another process that writes now grows the WAL by itself.
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("begin immediate")
            connection.execute("create table pylash_grow(body blob)")
            connection.execute("insert into pylash_grow values (zeroblob(?))", (WAL_BYTES,))
        if connection.in_transaction:
            connection.execute("rollback")
        connection.execute("pragma cache_size = -2000")

    # --- the loop's side ---

    def run(self, operation: Operation[T]) -> Awaitable[T]:
        """Run operation: reads beside the writer, writes in the next batch."""
        if not self._open:
            raise StoreClosed
        if operation.read_only and self.path is not None:
            return self._loop.run_in_executor(self._reader, self._read, operation)
        return self._submit(operation)

    def reader(self, operation: Operation[T]) -> Callable[[], T] | None:
        """Return how a thread that may wait runs an operation that reads; None if none can."""

        def read() -> T:
            with translated(self.path), contextlib.closing(self._connect_reader()) as connection:
                return _drive(connection, operation, [])

        return None if self.path is None else read  # a store in memory has the writer's alone

    def _submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        job = _Job(operation, self._loop.create_future())
        if self._inserted_at_once(job):
            return job.future
        if operation.flow is not None:
            self._newcomers.add(operation.flow, job)
            self._pending.extend(self._newcomers.take())
        elif operation.urgent:
            self._pending.appendleft(job)
        else:
            self._pending.append(job)
        if not self._scheduled and not self._busy:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return job.future

    def _flush(self) -> None:
        """Hand everything that waits to the idle writer."""
        self._scheduled = False
        if self._busy or not self._pending:
            return
        size = min(len(self._pending), BATCH_OPERATIONS)
        batch = [self._pending.popleft() for _ in range(size)]
        lone, self._was_lone = size == 1 and self._was_lone, size == 1
        if lone and self._committed_here(batch):
            self._make_room(batch)
            self._complete(batch)
            return
        self._batch = batch
        self._busy = True
        os.write(self._ring_out, b"x")

    def _inserted_at_once(self, job: _Job) -> bool:
        """Write one row now, if it is likely to be alone in this turn; who else comes in it waits."""
        bulk = job.operation.bulk
        if bulk is None or bulk.one is None or not self._was_lone:
            return False
        if self._scheduled or self._busy or not self._committed_here([job]):
            return False
        job.future.set_result(job.result)
        self._scheduled = True
        self._loop.call_soon(self._flush)
        return True

    def _committed_here(self, batch: list[_Job]) -> bool:
        """Commit a lone job on the loop if it will be quick: no lock to wait for, no checkpoint."""
        operation = batch[0].operation
        slow = self._mean_seconds >= QUICK_SECONDS or self._pages >= CHECKPOINT_PAGES
        if slow or operation.heavy:
            return False
        bulk = operation.bulk
        try:
            if bulk is not None and bulk.one is not None:
                return self._inserted_here(batch[0], bulk, bulk.one)
            self._connection.execute("begin immediate")
        except Exception:  # noqa: BLE001 - the writer will wait, or find out what is wrong
            return False
        if not self._commit(batch, begun=True):
            return False
        self._tell_others(batch)
        return True

    def _inserted_here(self, job: _Job, bulk: Bulk, sql: str) -> bool:
        """Write one row in a transaction of its own; if it is refused, the writer finds out why."""
        started = self._clock.monotonic()
        if self._connection.execute(dialect(sql), bulk.row).rowcount != 1:
            return False
        job.result = bulk.value
        self._count_commit(started, 1)
        return True

    def _finish(self) -> None:
        """Take back the batch that the writer committed, and go on."""
        try:
            os.read(self._done_in, 64)
        except BlockingIOError:
            return
        batch, self._batch = self._batch, []
        self._busy = False
        self._make_room(batch)
        self._flush()
        self._complete(batch)

    def _make_room(self, batch: list[_Job]) -> None:
        """Let new work in for that of a batch that has ended."""
        for job in batch:
            if job.operation.flow is not None:
                self._newcomers.done()
        self._pending.extend(self._newcomers.take())

    def _complete(self, batch: list[_Job]) -> None:
        """Complete the futures of what was committed."""
        topics: dict[str, None] = {}
        for job in batch:
            topics.update(dict.fromkeys(job.topics))
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)
        for topic in topics:
            self.publish(topic)

    async def _notice_others(self) -> None:
        """Look every second whether another process has committed: the net under the poke file."""
        seen = None
        while True:
            await asyncio.sleep(NET_SECONDS)
            with contextlib.suppress(sqlite3.Error):  # whoever uses the database will hear of it
                version = await self._loop.run_in_executor(self._reader, self._data_version)
                if seen not in (None, version):
                    self.publish("")
                seen = version

    # --- the threads' side ---

    def _data_version(self) -> int:
        return int(self._reading.execute("pragma data_version").fetchall()[0][0])

    def _read(self, operation: Operation[T]) -> T:
        with translated(self.path):
            return _drive(self._reading, operation, [])

    def _write_forever(self) -> None:
        while os.read(self._ring_in, 1):
            batch = self._batch
            done = 0
            try:
                while done < len(batch):
                    done += self._commit(batch[done:])
                self._tell_others(batch)
                self._checkpoint_if_due()
            except BaseException as error:  # noqa: BLE001 - nobody may be left waiting
                for job in batch[done:]:
                    job.error = error
            os.write(self._done_out, b"x")

    def _checkpoint_if_due(self) -> None:
        if self._pages >= CHECKPOINT_PAGES:
            self._pages = 0
            # Readers may hold some of it back: the rest is done the next time.
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("pragma wal_checkpoint(passive)").fetchall()

    def _tell_others(self, batch: list[_Job]) -> None:
        if self._poke is not None and any(job.topics for job in batch):
            self._poke.poke()

    def _commit(self, jobs: list[_Job], *, begun: bool = False) -> int:
        """Run jobs in one transaction, as many as fit its time; return how many were dealt with.

        That is 0 if a lone job met a conflict: the caller runs it again.
        """
        started = self._clock.monotonic()
        try:
            with translated(self.path):
                if not begun:
                    self._when_free(self._connection, "begin immediate")
        except StoreError as error:  # it is locked, or gone: that is nobody's fault in particular
            for job in jobs:
                job.error = error
            return len(jobs)
        try:
            with translated(self.path):
                taken = self._run_together(jobs)
                self._connection.execute("commit")
        except BaseException as error:  # noqa: BLE001 - every job gets a verdict of its own
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            if len(jobs) > 1:
                return sum(self._commit_alone(job) for job in jobs)
            if isinstance(error, Again):
                return 0
            jobs[0].error = error
            return 1
        heavy = sum(job.operation.heavy for job in jobs[:taken])
        self._count_commit(started, taken + heavy * PAGES_OF_A_HEAVY_ONE)
        return taken

    def _commit_alone(self, job: _Job) -> int:
        """Run a job in transactions of its own until it is dealt with: ``_run_one`` counts the conflicts."""
        while not self._commit([job]):
            pass
        return 1

    def _count_commit(self, started: float, pages: int) -> None:
        self._pages += PAGES_OF_A_COMMIT + pages
        self._mean_seconds += 0.1 * (self._clock.monotonic() - started - self._mean_seconds)

    def _run_together(self, jobs: list[_Job]) -> int:
        started = self._clock.monotonic()
        taken = 0
        while taken < len(jobs):
            if taken and self._clock.monotonic() - started > BATCH_SECONDS:
                break
            taken += self._run_some(jobs, taken)
        return taken

    def _run_some(self, jobs: list[_Job], start: int) -> int:
        """Run the jobs from start that are rows of the same statements, or else one job."""
        bulk = jobs[start].operation.bulk
        stop = start + 1
        if bulk is not None:
            while stop < len(jobs) and _same(bulk, jobs[stop].operation.bulk):
                stop += 1
            worth_it = bool(bulk.parts) or stop - start > 1
            if worth_it and self._run_rows(jobs[start:stop]):
                return stop - start
        for job in jobs[start:stop]:
            self._run_one(job, alone=len(jobs) == 1)
        return stop - start

    def _run_rows(self, jobs: list[_Job]) -> bool:
        """Write the rows of jobs at once; if one of them is refused, undo it and say so."""
        bulks = [job.operation.bulk for job in jobs if job.operation.bulk is not None]
        self._connection.execute("savepoint rows")
        if not self._all_written(bulks):
            self._connection.execute("rollback to rows")
            self._connection.execute("release rows")
            return False
        self._connection.execute("release rows")
        now = (self._clock.now(),)
        for job, bulk in zip(jobs, bulks, strict=True):
            job.result = bulk.value if bulk.read is None else bulk.read(now)
            job.error = None
            job.topics = () if bulk.topic is None else (bulk.topic,)
        return True

    def _all_written(self, bulks: list[Bulk]) -> bool:
        one = bulks[0].one
        if one is not None:
            rows = [bulk.row for bulk in bulks]
            return self._connection.executemany(dialect(one), rows).rowcount == len(rows)
        return all(self._part_written(part, bulks) for part in bulks[0].parts)

    def _part_written(self, part: Part, bulks: list[Bulk]) -> bool:
        """Write many rows with few calls: between calls, our thread and the loop's wait for each other."""
        sql, rows = part.sql, [tuple([bulk.row[n] for n in part.columns]) for bulk in bulks]
        while rows:
            size = min(1 << len(rows).bit_length() - 1, MOST_ROWS)  # few sizes, few to prepare
            some, rows = rows[:size], rows[size:]
            filled = for_rows(sql, len(some[0]), size)
            if self._connection.execute(filled, tuple(chain(*some))).rowcount != size:
                return False
        return True

    def _run_one(self, job: _Job, *, alone: bool) -> None:
        """Run one job; a refusal or a conflict of its own undoes it and leaves its neighbours."""
        topics: list[str] = []
        job.topics = topics
        job.error = None  # it may have been refused in a batch that was undone as a whole
        saved = not (alone or job.operation.bare)
        if saved:
            self._connection.execute("savepoint job")
        try:
            job.result = self._driven(job, topics, saved=saved)
        except (sqlite3.Error, Again):
            raise  # the whole batch is run again, one by one
        except Exception as error:
            if alone:
                raise
            if saved:
                self._connection.execute("rollback to job")
            topics.clear()
            job.error = error
        if saved:
            self._connection.execute("release job")

    def _driven(self, job: _Job, topics: list[str], *, saved: bool) -> Any:
        """Return what a job gives, after conflicts too: here if it can be undone, else Again is raised."""
        while True:
            try:
                return _drive(self._connection, job.operation, topics)
            except Again as error:
                job.repeats += 1
                if job.repeats > MAX_REPEATS:
                    raise gave_up(f"The operation {job.operation.name!r}") from error
                if not saved:
                    raise
                self._connection.execute("rollback to job")
                topics.clear()

    def _when_free(self, connection: sqlite3.Connection, sql: str) -> None:
        """Execute what needs the write lock, waiting fairly: a short random time, again and again."""
        for _ in range(BUSY_TRIES):
            try:
                connection.execute(sql)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (
                    sqlite3.SQLITE_BUSY,
                    sqlite3.SQLITE_LOCKED,
                ):
                    raise
                time.sleep(0.0001 + self._entropy(1)[0] * 0.000002)
            else:
                return
        connection.execute(sql)


def _same(bulk: Bulk, other: Bulk | None) -> bool:
    """Return whether two rows are written by the same statements."""
    return other is not None and other.many is bulk.many


def _nothing() -> Steps[None]:
    yield from ()


def _drive(connection: sqlite3.Connection, operation: Operation[T], topics: list[str]) -> T:
    """Run operation's statements on connection; what it notifies is added to topics."""
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
