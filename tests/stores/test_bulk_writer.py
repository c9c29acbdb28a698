"""Rows that are written together, without a database: batches, verdicts and the end of the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pylash.stores.drivers.postgres_bulk import SHARED_ROWS, WRITERS, BulkWriter
from pylash.stores.operation import Bulk, Operation, Rows, Steps
from pylash.values.errors import StoreRefused


class Server:
    """Writes rows, but for those that it refuses; keeps the batches and the operations that ran alone."""

    def __init__(self) -> None:
        self.batches = list[list[int]]()
        self.alone = list[str]()
        self.refuses = set[int]()
        self.is_away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def execute(self, sql: str, arrays: tuple[Any, ...]) -> Rows:
        assert sql == "many"
        await self.gate.wait()
        if self.is_away:
            raise ConnectionError("gone")
        self.batches.append(arrays[0])
        written = [(number, f"row {number}") for number in arrays[0] if number not in self.refuses]
        return Rows(written, len(written))

    async def run(self, operation: Operation[Any]) -> str:
        self.alone.append(operation.name)
        if operation.name == "bad":
            raise StoreRefused("no")
        return f"alone {operation.name}"


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def writer(server: Server) -> AsyncIterator[BulkWriter]:
    published = list[str]()
    made = BulkWriter(server.execute, server.run, published.append)
    made.open()
    await asyncio.sleep(0)
    yield made
    await made.close()


def submit(writer: BulkWriter, number: int, name: str | None = None) -> asyncio.Future[Any]:
    def steps() -> Steps[None]:
        yield from ()

    bulk = Bulk(None, "many", (number,), (number,), None, read=lambda rest: rest[0])
    return writer.submit(Operation(name or str(number), steps, bulk=bulk), bulk)


async def test_rows_that_arrive_together_are_one_batch(writer: BulkWriter, server: Server) -> None:
    futures = [submit(writer, n) for n in range(5)]
    assert [await future for future in futures] == [f"row {n}" for n in range(5)]
    assert server.batches == [[0, 1, 2, 3, 4]]


async def test_rows_that_arrive_meanwhile_are_the_next_batches(
    writer: BulkWriter, server: Server
) -> None:
    server.gate.clear()
    futures = list[asyncio.Future[Any]]()
    for n in range(WRITERS + 3):  # each writer has one, and the others wait
        futures.append(submit(writer, n))
        await asyncio.sleep(0.001)
    server.gate.set()
    for future in futures:
        await future
    assert sorted(map(len, server.batches)) == [*[1] * WRITERS, 3]


async def test_many_rows_are_shared_by_the_writers(writer: BulkWriter, server: Server) -> None:
    count = 2 * SHARED_ROWS + 10
    for future in [submit(writer, n) for n in range(count)]:
        await future
    assert len(server.batches) >= 2
    assert sorted(n for batch in server.batches for n in batch) == list(range(count))


async def test_a_row_that_did_not_come_back_runs_alone(writer: BulkWriter, server: Server) -> None:
    server.refuses = {1, 2}
    written, refused, bad = submit(writer, 0), submit(writer, 1), submit(writer, 2, "bad")
    assert (await written, await refused) == ("row 0", "alone 1")
    with pytest.raises(StoreRefused):
        await bad
    assert sorted(server.alone) == ["1", "bad"]


async def test_of_two_rows_with_one_key_the_second_runs_alone(
    writer: BulkWriter, server: Server
) -> None:
    first, second = submit(writer, 7), submit(writer, 7, "again")
    assert (await first, await second) == ("row 7", "alone again")
    assert server.batches == [[7]]


async def test_every_row_runs_alone_if_the_statement_fails(
    writer: BulkWriter, server: Server
) -> None:
    server.is_away = True
    first, second = submit(writer, 1), submit(writer, 2)
    assert (await first, await second) == ("alone 1", "alone 2")


async def test_closing_writes_what_was_submitted(server: Server) -> None:
    writer = BulkWriter(server.execute, server.run, lambda _: None)
    writer.open()
    futures = [submit(writer, n) for n in range(3)]
    await writer.close()
    assert [future.result() for future in futures] == ["row 0", "row 1", "row 2"]
