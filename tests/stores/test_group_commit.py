"""The connection that writes, without a thread or a store: verdicts, conflicts and shared transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.drivers.sqlite import WriterThread
from pylash.stores.drivers.sqlite_connections import GroupCommit, Job
from pylash.stores.operation import MAX_REPEATS, Again, Bulk, Notify, Operation, Statement, Steps
from pylash.values.errors import StoreBusy, StoreRefused

ADD = "insert into things(name) values (?) on conflict do nothing"


@pytest.fixture
def commits() -> Iterator[GroupCommit]:
    made = GroupCommit(None, SystemClock(), system_entropy)
    made.open()
    made.connection.execute("create table things(name text primary key)")
    yield made
    made.close()


def job(steps: Callable[[], Steps[Any]], **options: Any) -> Job:
    future: Any = None  # the driver's: the connection does not touch it
    return Job(Operation("job", steps, **options), future)


def adding(name: str, conflicts: int = 0, error: Exception | None = None) -> Job:
    """Return a job that adds a thing after some conflicts, or adds none and fails."""
    tries = list[int]()

    def steps() -> Steps[str]:
        yield Statement(ADD, (name,))
        yield Notify(name)
        tries.append(1)
        if len(tries) <= conflicts:
            raise Again
        if error is not None:
            raise error
        return name

    return job(steps)


def row(name: str) -> Job:
    def steps() -> Steps[str]:
        yield Statement(ADD, (name,))
        return f"known {name}"

    bulk = Bulk(ADD, "many", (name,), (name,), f"added {name}")
    return job(steps, bare=True, bulk=bulk)


def things(commits: GroupCommit) -> list[str]:
    return [name for (name,) in commits.connection.execute("select name from things")]


def test_every_job_of_a_batch_has_its_own_verdict(commits: GroupCommit) -> None:
    refused = ValueError("no")
    batch = [adding("a"), adding("b", error=refused), adding("c", conflicts=3)]
    commits.write(batch)
    assert [(one.result, one.error, list(one.topics)) for one in batch] == [
        ("a", None, ["a"]),
        (None, refused, []),
        ("c", None, ["c"]),
    ]
    assert things(commits) == ["a", "c"]
    assert batch[2].repeats == 3


@pytest.mark.parametrize("others", [0, 2])
def test_conflicts_without_end_are_given_up(commits: GroupCommit, others: int) -> None:
    batch = [adding("a", conflicts=10**6), *(adding(f"b{n}") for n in range(others))]
    commits.write(batch)
    assert isinstance(batch[0].error, StoreBusy)
    assert batch[0].repeats == MAX_REPEATS + 1
    assert things(commits) == [f"b{n}" for n in range(others)]


def test_an_error_of_the_database_costs_no_neighbour_its_work(commits: GroupCommit) -> None:
    def broken() -> Steps[None]:
        yield Statement("insert into nothing values (1)")

    batch = [adding("a"), job(broken), adding("b")]
    commits.write(batch)
    assert [type(one.error) for one in batch] == [type(None), StoreRefused, type(None)]
    assert things(commits) == ["a", "b"]


def test_rows_are_inserted_together_and_a_taken_one_is_read(commits: GroupCommit) -> None:
    words = list[str]()
    commits.connection.set_trace_callback(lambda sql: words.append(sql.split()[0].lower()))
    commits.write([row("a")])
    assert words == ["insert"], "a single row needs no transaction"
    words.clear()
    batch = [row("b"), row("c")]
    commits.write(batch)
    assert words == ["begin", "savepoint", "insert", "insert", "release", "commit"]
    batch = [row("d"), row("a")]
    commits.write(batch)
    assert [one.result for one in batch] == ["known d", "known a"], "each asked by itself"
    assert things(commits) == ["a", "b", "c", "d"]


async def test_the_writer_thread_has_one_batch_at_a_time() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    written, finished = list[list[Job]](), list[list[Job]]()

    def finish(batch: list[Job]) -> None:
        finished.append(batch)
        assert writer.batch == []
        if len(finished) < 3:
            writer.give([adding("again")])
        else:
            ended.set()

    writer = WriterThread(loop, written.append, finish)
    writer.give([adding("first")])
    assert len(writer.batch) == 1
    async with asyncio.timeout(5):
        await ended.wait()
    await writer.close()
    assert written == finished
