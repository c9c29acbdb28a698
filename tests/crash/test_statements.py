"""A crash after every single statement of every operation.

The operation runs in a child that kills itself with SIGKILL after the n-th statement. What is left
must be the state before it or after it, nothing in between; and doing it again, as after a COMMIT
whose answer was lost, must end in the state of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pylash.durable import (
    SECOND,
    Answer,
    CustomWait,
    Fence,
    JournalEntry,
    NewRun,
    Ok,
    ProcessScope,
    RunState,
    TurnScope,
    WaitName,
    WaitOpening,
    WorkerId,
)
from pylash.stores import SqlStore, open_store
from pylash.stores.journal import SqlJournal
from pylash.stores.runs import SqlRuns
from pylash.stores.sql import Operation, Statement, Steps
from pylash.stores.waits import SqlWaits
from pylash.stores.workers import SqlWorkers
from pylash.testing import SimClock
from tests.backends import PostgresBackend, SqliteBackend

W1, W2 = WorkerId("w1"), WorkerId("w2")
ALIVE = 10_000 * SECOND
STARTED = 1_767_225_600 * SECOND
ACTED = STARTED + 1_000 * SECOND
SESSION = TurnScope("s1", "t1")
NAME = WaitName(SESSION, CustomWait("go"))
SCOPES = [ProcessScope(f"p{n}") for n in range(4)]
STEP = JournalEntry("step", "durable_step", b"hash", b"{}", b"1", 1, started=1)
OPEN = JournalEntry("open", "sleep", b"hash", b"{}", started=1)
TABLES = ("runs", "effects", "waits", "lanes", "sessions", "workers", "attachments")

Memo = Any


class Scenario(NamedTuple):
    """What must be there first, and the operation."""

    prepare: Callable[[SqlStore], Awaitable[Memo]]
    act: Callable[[SqlStore, Memo], Awaitable[object]]


async def nothing(store: SqlStore) -> None:
    await store.workers._join(W2, ALIVE)


async def owned(store: SqlStore, ttl: int = ALIVE) -> Fence:
    await store.workers._join(W1, ttl)
    await store.workers._join(W2, ALIVE)
    return (await store.journal.attach(SCOPES[0], W1)).fence


async def expired(store: SqlStore) -> Fence:
    return await owned(store, 0)


async def sleeping(store: SqlStore) -> Fence:
    fence = await owned(store)
    await store.journal.begin_sleep(fence, OPEN, SECOND)
    return fence


async def waiting(store: SqlStore) -> Fence:
    fence = await claimed(store)
    await store.waits.open_for(fence, OPEN, WaitOpening(name=NAME, timeout=500 * SECOND))
    await store.runs.park(fence, 0)
    return fence


async def waiting_long(store: SqlStore) -> Fence:
    fence = await claimed(store)
    await store.waits.open_for(fence, OPEN, WaitOpening(name=NAME))
    await store.runs.park(fence, 0)
    return fence


async def enqueued(store: SqlStore, lane: str | None = None) -> None:
    await store.workers._join(W1, ALIVE)
    await store.workers._join(W2, ALIVE)
    for scope in SCOPES[:3]:
        await tick(store)
        await store.runs.enqueue(NewRun(scope=scope, kind="process", target="work", lane=lane))


async def claimed(store: SqlStore) -> Fence:
    await enqueued(store)
    (claim,) = await store.runs.claim(W1, "first", limit=1, targets=["work"])
    return claim.fence


async def claimed_in_lane(store: SqlStore) -> Fence:
    await enqueued(store, "lane")
    (claim,) = await store.runs.claim(W1, "first", limit=5, targets=["work"])
    return claim.fence


async def blocked(store: SqlStore) -> Fence:
    fence = await claimed(store)
    await store.runs.block(fence, "why")
    return fence


def new_run(lane: str | None) -> NewRun:
    return NewRun(scope=SCOPES[3], kind="process", target="work", lane=lane)


SCENARIOS = {
    "_start": Scenario(nothing, lambda s, _: s.journal._start(SESSION, W2)),
    "_resume: ours": Scenario(owned, lambda s, _: s.journal._resume(SCOPES[0], W1)),
    "_resume: takeover": Scenario(expired, lambda s, _: s.journal._resume(SCOPES[0], W2)),
    "release": Scenario(owned, lambda s, fence: s.journal.release(fence)),
    "record": Scenario(owned, lambda s, fence: s.journal.record(fence, STEP)),
    "record: huge": Scenario(
        owned,
        lambda s, fence: s.journal.record(
            fence, JournalEntry("huge", "durable_step", b"h", None, b"x" * 1_100_000, 1_100_000)
        ),
    ),
    "begin_sleep": Scenario(owned, lambda s, fence: s.journal.begin_sleep(fence, OPEN, SECOND)),
    "close": Scenario(
        sleeping,
        lambda s, fence: s.journal.close(
            fence, JournalEntry("open", "sleep", b"hash", outcome=b"9")
        ),
    ),
    "open": Scenario(nothing, lambda s, _: s.waits.open(WaitOpening(name=NAME, title="Go?"))),
    "open_for": Scenario(
        owned, lambda s, fence: s.waits.open_for(fence, OPEN, WaitOpening(name=NAME))
    ),
    "resolve": Scenario(
        waiting_long, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t", "ann"))
    ),
    "resolve: late": Scenario(waiting, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t"))),
    "resolve: early": Scenario(nothing, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t"))),
    "expire": Scenario(waiting, lambda s, _: s.waits.expire(NAME)),
    "revoke": Scenario(waiting_long, lambda s, _: s.waits.revoke("s1", 0)),
    "enqueue": Scenario(nothing, lambda s, _: s.runs.enqueue(new_run(None))),
    "enqueue: free lane": Scenario(nothing, lambda s, _: s.runs.enqueue(new_run("lane"))),
    "enqueue: held lane": Scenario(claimed_in_lane, lambda s, _: s.runs.enqueue(new_run("lane"))),
    "claim": Scenario(enqueued, lambda s, _: s.runs.claim(W2, "token", limit=2, targets=["work"])),
    "park": Scenario(claimed, lambda s, fence: s.runs.park(fence, 0)),
    "settle": Scenario(claimed, lambda s, fence: s.runs.settle(fence, RunState.FAILED, b"no")),
    "settle: in lane": Scenario(
        claimed_in_lane, lambda s, fence: s.runs.settle(fence, RunState.COMPLETED, b"1")
    ),
    "block": Scenario(claimed, lambda s, fence: s.runs.block(fence, "why")),
    "retry": Scenario(blocked, lambda s, fence: s.runs.retry(fence.run)),
    "_take_over": Scenario(claimed, lambda s, _: s.workers._take_over(W1, dead=True, attempts=0)),
    "_join": Scenario(nothing, lambda s, _: s.workers._join(W2, ALIVE)),
    "beat": Scenario(owned, lambda s, _: s.workers.beat(W1, ALIVE)),
}
"""Every operation that writes. ``wake`` counts, so doing it twice is two wake-ups: no harm."""

_clock = SimClock(STARTED)


async def tick(_: SqlStore) -> None:
    """Let a moment pass, so that the next run's id differs."""
    await _clock.advance("1s")


async def opened(url: str, at: int) -> SqlStore:
    """Open the store at a fixed time and with fixed randomness: the same run gives the same rows."""
    _clock._now = at
    return await open_store(
        url, clock=_clock, entropy=lambda size: b"\1" * size, migrate=True, simulated=True
    )


def dump_of(prefix: str) -> Callable[[], Steps[list[Any]]]:
    def steps() -> Steps[list[Any]]:
        rows: list[Any] = []
        for table in TABLES:
            found = (yield Statement(f"select * from {prefix}{table}")).rows
            rows.append(sorted(map(repr, found)))
        return rows

    return steps


async def dump(store: SqlStore) -> list[Any]:
    return await store.driver.run(Operation("dump", dump_of("pylash_")))


def watched(store: SqlStore, seen: Callable[[int], None]) -> None:
    """Tell seen the number of each statement of store's next operation, once it was executed."""
    honest = store.driver.run

    def run(operation: Operation[Any]) -> Awaitable[Any]:
        store.driver.run = honest  # type: ignore[method-assign]
        inner = operation.steps

        def steps() -> Steps[Any]:
            steps, answer, count = inner(), None, 0
            while True:
                try:
                    step = steps.send(answer)  # type: ignore[arg-type]  # the first answer is None
                except StopIteration as end:
                    return end.value
                answer = yield step
                count += 1
                seen(count)

        return honest(Operation(operation.name, steps, operation.bare))

    store.driver.run = run  # type: ignore[method-assign]


def in_a_child(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run work in a forked process; return what it returns, or None if it was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with open(writing, "wb") as result:
                pickle.dump(asyncio.run(work()), result)  # type: ignore[arg-type]
            status = 0
        except BaseException:  # noqa: BLE001 - nothing of the child may go on in the parent's code
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as result:
        data = result.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return None
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return pickle.loads(data)


async def undisturbed(url: str, scenario: Scenario) -> tuple[Memo, list[Any], list[Any], int]:
    """Prepare and act; return what was prepared, the states before and after, and the statements."""
    store = await opened(url, STARTED)
    memo = await scenario.prepare(store)
    before = await dump(store)
    _clock._now = ACTED
    counts = [0]
    watched(store, counts.append)
    await scenario.act(store, memo)
    after = await dump(store)
    await store.close()
    return memo, before, after, counts[-1]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def crash(url: str, scenario: Scenario, statement: int) -> None:
    """Prepare, and die after a statement; past the last one, die before the answer is used."""
    store = await opened(url, STARTED)
    memo = await scenario.prepare(store)
    _clock._now = ACTED
    watched(store, lambda count: die() if count == statement else None)
    await scenario.act(store, memo)
    die()


async def look_and_repeat(url: str, scenario: Scenario, memo: Memo) -> tuple[list[Any], list[Any]]:
    """Return the state that was left, and the state after doing it again."""
    store = await opened(url, ACTED)
    left = await dump(store)
    await scenario.act(store, memo)
    repeated = await dump(store)
    await store.close()
    return left, repeated


def check(name: str, fresh_url: Callable[[], str]) -> None:
    scenario = SCENARIOS[name]
    first = fresh_url()
    memo, before, after, count = in_a_child(lambda: undisturbed(first, scenario))
    assert count, "the operation has statements"
    for statement in range(1, count + 2):
        url = fresh_url()
        assert in_a_child(lambda: crash(url, scenario, statement)) is None  # noqa: B023 - called now
        left, repeated = in_a_child(lambda: look_and_repeat(url, scenario, memo))  # noqa: B023
        assert left in (before, after), f"half of it was left after statement {statement}"
        assert repeated == after, f"doing it again after statement {statement} made a difference"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_statement_leaves_nothing_half_done_on_sqlite(
    name: str, tmp_path: Path
) -> None:
    check(name, lambda: SqliteBackend(tmp_path).url)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_statement_leaves_nothing_half_done_on_postgres(
    name: str, postgres: str
) -> None:
    backend = PostgresBackend(postgres)
    asyncio.run(backend.__aenter__())

    def emptied() -> str:
        asyncio.run(_empty(backend.url))
        return backend.url

    try:
        check(name, emptied)
    finally:
        asyncio.run(backend.__aexit__(None, None, None))


async def _empty(url: str) -> None:
    import asyncpg  # noqa: PLC0415

    connection = await asyncpg.connect(url)
    try:
        await connection.execute("drop schema public cascade; create schema public")
    finally:
        await connection.close()


def test_every_operation_that_writes_has_a_scenario() -> None:
    ports = (SqlJournal, SqlWaits, SqlRuns, SqlWorkers)
    operations = {
        name for port in ports for name, what in vars(port).items() if hasattr(what, "__wrapped__")
    }
    reads = {"entry", "look", "listed", "generation", "get", "next_due", "_others"}
    covered = {name.split(":")[0] for name in SCENARIOS}
    assert covered == (operations - reads - {"wake"}) | {"record"}
