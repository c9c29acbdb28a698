"""SQLite: one writer thread with group commits.

There are three threads. The event loop queues jobs and completes their futures; the writer thread has one batch of
jobs at a time and the connection that writes; the reader thread has the connection that reads.

Rule 1. A future completes only after the COMMIT of its operation.
Rule 2. The queue and the futures belong to the loop. A batch belongs to the writer thread from ``WriterThread.give``
        until its callback is called.

While the writer commits, the next batch grows: a single caller waits for one sync of the disk, and a thousand
concurrent callers share one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from pylash.durable.ports import Clock, Entropy
from pylash.stores.drivers.fair_queue import FairQueue
from pylash.stores.drivers.file_locks import FileLocks, NoLocks, PokeFile
from pylash.stores.drivers.sqlite_connections import GroupCommit, Job, Reader
from pylash.stores.operation import Operation, Publisher, Steps
from pylash.stores.tables.workers import Locks
from pylash.tasks import TaskOwner
from pylash.values.errors import StoreClosed

T = TypeVar("T")

BATCH_OPERATIONS: Final = 512
NEWCOMERS: Final = 128
"""How many operations that start new work are in progress at once; the others wait for the turn of their flow."""
NET_SECONDS: Final = 1.0
"""How often to check for commits of other processes, whose pokes may have been lost."""


class SqliteDriver(Publisher):
    """Runs operations on one SQLite file, or in memory."""

    def __init__(self, path: Path | None, clock: Clock, entropy: Entropy) -> None:
        super().__init__()
        self.path = path
        self.locks: Locks = NoLocks() if path is None else FileLocks(path)
        self.commits = GroupCommit(path, clock, entropy)
        # An in-memory database has one connection, so the writer runs its reads too.
        self.reader = None if path is None else Reader(path, clock)
        self._name = entropy(8)
        self._poke: PokeFile | None = None
        self._tasks = TaskOwner()
        self._pending: deque[Job] = deque()  # jobs that are in no batch yet
        self._newcomers = FairQueue[Job](NEWCOMERS)  # jobs of new work, before they are pending
        self._scheduled = False  # whether a call of _flush is scheduled
        self._open = False

    # --- opening and closing ---

    async def open(self) -> None:
        """Open the file and start the writer."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.commits.open)
        if self.path is not None and self.reader is not None:
            try:
                self._poke = await asyncio.to_thread(PokeFile, self.path, self._name)
                await self.reader.open()
            except BaseException:
                await asyncio.to_thread(self.commits.close)
                raise
            self._poke.watch(self._loop, lambda: self.publish(""))
            self._tasks.serve(self._notice_others(self.reader))
        self._writer = WriterThread(self._loop, self._write, self._finish)
        self._open = True

    async def close(self) -> None:
        """Finish the operations that were submitted, then close."""
        if not self._open:
            return
        self._open = False
        await self._submit(Operation("barrier", _nothing))  # all jobs before it are done then
        while self._newcomers:  # which become pending as there is room
            await self._submit(Operation("barrier", _nothing))
        await self._tasks.close()
        await self._writer.close()
        if self._poke is not None:
            self._poke.close()
        if self.reader is not None:
            await self.reader.close()
        await asyncio.to_thread(self.commits.close)

    async def _notice_others(self, reader: Reader) -> None:
        """Publish the blank topic after commits of other processes."""
        seen = None
        while True:
            await asyncio.sleep(NET_SECONDS)
            with contextlib.suppress(sqlite3.Error):  # the next operation will report it
                version = await reader.data_version()
                if seen not in (None, version):
                    self.publish("")
                seen = version

    # --- on the loop ---

    def run(self, operation: Operation[T]) -> Awaitable[T]:
        """Run operation: reads in the reader thread, writes in the next batch."""
        if not self._open:
            raise StoreClosed
        if operation.read_only and self.reader is not None:
            return self.reader.run(operation)
        return self._submit(operation)

    def _submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        job = Job(operation, self._loop.create_future())
        if operation.flow is not None:
            self._newcomers.add(operation.flow, job)
            self._pending.extend(self._newcomers.take())
        elif operation.urgent:
            self._pending.appendleft(job)
        else:
            self._pending.append(job)
        # Not at once, so that operations of other tasks in this iteration of the loop join the batch.
        if not self._scheduled and not self._writer.batch:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return job.future

    def _flush(self) -> None:
        """Give pending jobs to the writer if it is idle."""
        self._scheduled = False
        if self._pending and not self._writer.batch:
            batch = list(islice(self._pending, BATCH_OPERATIONS))
            for _ in batch:
                self._pending.popleft()
            self._writer.give(batch)

    def _finish(self, batch: list[Job]) -> None:
        """Give the writer the next batch, and complete the futures of the committed one."""
        for job in batch:
            if job.operation.flow is not None:
                self._newcomers.done()
                self._pending.extend(self._newcomers.take())
        self._flush()
        topics: dict[str, None] = {}
        for job in batch:
            topics.update(dict.fromkeys(job.topics))
            if job.future.done():
                continue  # its caller was cancelled
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)
        for topic in topics:
            self.publish(topic)

    # --- in the writer thread ---

    def _write(self, batch: list[Job]) -> None:
        """Commit a batch, and poke other processes if it has topics."""
        self.commits.write(batch)
        for job in batch:
            if job.topics and self._poke is not None:
                self._poke.poke()
                break
        self.commits.checkpoint_if_due()


class WriterThread:
    """A thread that writes batches of jobs, one at a time.

    ``batch`` has the jobs of the thread; it is empty while the thread is idle. The loop sets it before it wakes the
    thread through a pipe, and takes it back when the thread has answered through another pipe.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        write: Callable[[list[Job]], None],
        finish: Callable[[list[Job]], None],
    ) -> None:
        self.batch: list[Job] = []
        self._loop = loop
        self._write = write
        self._finish = finish
        self._asked, self._ask = os.pipe()
        self._answered, self._answer = os.pipe()
        os.set_blocking(self._answered, False)
        loop.add_reader(self._answered, self._take_back)
        self._thread = threading.Thread(target=self._serve, name="pylash-write", daemon=True)
        self._thread.start()

    def give(self, batch: list[Job]) -> None:
        """Hand a batch to the idle thread; ``finish`` is called on the loop when it is written."""
        self.batch = batch
        os.write(self._ask, b"x")

    async def close(self) -> None:
        """End the idle thread."""
        self._loop.remove_reader(self._answered)
        os.close(self._ask)
        await asyncio.to_thread(self._thread.join)
        for fd in (self._asked, self._answered, self._answer):
            os.close(fd)

    def _take_back(self) -> None:
        try:
            os.read(self._answered, 64)
        except BlockingIOError:
            return
        batch, self.batch = self.batch, []
        self._finish(batch)

    def _serve(self) -> None:
        while os.read(self._asked, 1):
            self._write(self.batch)
            os.write(self._answer, b"x")


def _nothing() -> Steps[None]:
    yield from ()
