"""Batches of rows: rows that arrive at the same time are written by one statement.

Rule 1. A few tasks write, each one statement at a time; rows that arrive meanwhile form the next batch.
Rule 2. A row whose key the statement did not return was not written: its operation runs alone, and has its own
        result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from pylash.stores.operation import Bulk, Operation, Rows
from pylash.tasks import TaskOwner

WRITERS: Final = 2
"""How many batches are written at once."""
BATCH_ROWS: Final = 512
SHARED_ROWS: Final = 64
"""More rows than this are split among the writers: while the server writes one batch, the loop prepares another."""


class Row(msgspec.Struct, eq=False):
    """A row to write, with the operation that writes it alone."""

    operation: Operation[Any]
    bulk: Bulk
    future: asyncio.Future[Any]


class BulkWriter:
    """Writes rows of operations in batches, one statement for each batch, on the event loop."""

    def __init__(
        self,
        execute: Callable[[str, tuple[Any, ...]], Awaitable[Rows]],
        run: Callable[[Operation[Any]], Coroutine[Any, Any, Any]],
        publish: Callable[[str], None],
    ) -> None:
        self._execute = execute
        self._run = run
        self._publish = publish
        self._tasks = TaskOwner()
        self._rows: list[Row] = []  # rows that no writer has taken yet, the oldest first
        self._idle: list[asyncio.Future[None]] = []  # the futures that idle writers wait for
        self._waking = False  # whether a writer was woken and has not run since
        self._closing = False

    def open(self) -> None:
        """Start the writers."""
        for _ in range(WRITERS):
            self._tasks.serve(self._write_forever())

    async def close(self) -> None:
        """Write the rows that were submitted, and end the writers."""
        self._closing = True
        for call in self._idle:
            call.set_result(None)
        await self._tasks.finish()

    def submit(self, operation: Operation[Any], bulk: Bulk) -> asyncio.Future[Any]:
        """Write the row of an operation with the next batch."""
        row = Row(operation, bulk, asyncio.get_running_loop().create_future())
        self._rows.append(row)
        self._wake()
        return row.future

    def complete(self, row: Row, rest: tuple[Any, ...]) -> None:
        """Complete a row that was written in a batch; ``rest`` are the returned columns after its key."""
        bulk = row.bulk
        if not row.future.done():
            row.future.set_result(bulk.value if bulk.read is None else bulk.read(rest))
        if bulk.topic is not None:
            self._publish(bulk.topic)

    def _wake(self) -> None:
        """Wake one idle writer: it takes the rows that have arrived by then, and wakes the next if rows are left."""
        if self._idle and not self._waking:
            self._waking = True
            self._idle.pop().set_result(None)

    async def _write_forever(self) -> None:
        while True:
            while self._rows:
                batch = self._next_batch()
                if self._rows:
                    self._wake()
                await self._write(batch)
            # Checked only while no rows are left, so that all submitted rows are written.
            if self._closing:
                return
            call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(call)
            await call
            self._waking = False

    def _next_batch(self) -> list[Row]:
        """Take the oldest row, and the rows that the same statement writes."""
        if len(self._rows) == 1:
            return [self._rows.pop()]
        many = self._rows[0].bulk.many
        size = min(BATCH_ROWS, max(SHARED_ROWS, len(self._rows) // WRITERS))
        batch = [row for row in self._rows if row.bulk.many is many][:size]
        taken = set(map(id, batch))
        self._rows = [row for row in self._rows if id(row) not in taken]
        return batch

    async def _write(self, batch: list[Row]) -> None:
        if len(batch) == 1 and batch[0].bulk.one is not None:
            await self._write_alone(batch[0])  # a plain insert is faster than one over arrays
            return
        # Of two rows with the same key the database would keep either, so only the first is in the batch.
        firsts: dict[tuple[Any, ...], Row] = {}
        for row in batch:
            firsts.setdefault(row.bulk.key, row)
        written = await self._write_together(list(firsts.values()))
        alone: list[Row] = []
        for row in batch:
            if row.bulk.key in written and firsts[row.bulk.key] is row:
                self.complete(row, written[row.bulk.key])
            else:
                alone.append(row)
        # In parallel, each on its own connection; the writer takes its next batch when all have ended.
        if alone:
            async with asyncio.TaskGroup() as group:
                for row in alone:
                    group.create_task(self._write_alone(row))

    async def _write_together(self, batch: list[Row]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Write rows in one statement; return the other returned columns by key."""
        first = batch[0].bulk
        size = len(first.key)
        arrays = tuple(map(list, zip(*(row.bulk.row for row in batch), strict=True)))
        try:
            written = (await self._execute(first.many, arrays)).rows
        except Exception:  # noqa: BLE001 - each row then runs alone and has its own error
            return {}
        return {row[:size]: row[size:] for row in written}

    async def _write_alone(self, row: Row) -> None:
        try:
            result = await self._run(row.operation)
        except Exception as error:  # noqa: BLE001 - raised to the caller
            if not row.future.done():  # else its caller was cancelled
                row.future.set_exception(error)
        else:
            if not row.future.done():
                row.future.set_result(result)
