"""Kills a child after the n-th statement of an operation that writes, and compares what is left.

What is left must be the state before the operation or after it, nothing in between; and doing it
again, as after a COMMIT whose answer was lost, must end in the state of an undisturbed run, and give
its answer.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pylash.durable import SECOND, WorkerId
from pylash.stores import SqlStore, open_store
from pylash.stores.schema import MIGRATIONS
from pylash.stores.sql import Operation, Statement, Steps
from pylash.testing import SimClock

W1, W2 = WorkerId("w1"), WorkerId("w2")
ALIVE = 10_000 * SECOND
STARTED = 1_767_225_600 * SECOND
ACTED = STARTED + 1_000 * SECOND
TABLES = sorted(
    words[2].partition("(")[0]
    for migration in MIGRATIONS
    for words in (statement.split() for statement in migration.statements)
    if words[:2] == ["create", "table"]
)

Memo = Any


class Scenario(NamedTuple):
    """What must be there first, and the operation. ``same`` is False if its answer may differ."""

    prepare: Callable[[SqlStore], Awaitable[Memo]]
    act: Callable[[SqlStore, Memo], Awaitable[object]]
    same: bool = True


_clock = SimClock(STARTED)


async def tick() -> None:
    """Let a moment pass, so that the next run's id differs."""
    await _clock.advance("1s")


async def opened(url: str, at: int) -> SqlStore:
    """Open the store at a fixed time and with fixed randomness: the same run gives the same rows."""
    _clock._now = at
    return await open_store(
        url, clock=_clock, entropy=lambda size: b"\1" * size, migrate=True, simulated=True
    )


def _dumped() -> Steps[dict[str, list[str]]]:
    rows: dict[str, list[str]] = {}
    for table in TABLES:
        found = (yield Statement(f"select * from {table}")).rows
        rows[table] = sorted(map(repr, found))
    return rows


async def dump(store: SqlStore) -> dict[str, list[str]]:
    """Return every row there is, by table."""
    return await store.driver.run(Operation("dump", _dumped))


def watched(store: SqlStore, seen: Callable[[int], None]) -> None:
    """Tell seen the number of each writing statement of store's next operation, once executed.

    A crash after a statement that only reads is the crash after the one before it.
    """
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
                if isinstance(step, Statement) and not step.sql.lstrip().startswith("select"):
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


class Undisturbed(NamedTuple):
    """A run without a crash: what was prepared, the states before and after, what it said."""

    memo: Memo
    before: dict[str, list[str]]
    after: dict[str, list[str]]
    answer: str
    statements: int


async def undisturbed(url: str, scenario: Scenario) -> Undisturbed:
    """Prepare and act."""
    store = await opened(url, STARTED)
    memo = await scenario.prepare(store)
    before = await dump(store)
    _clock._now = ACTED
    counts = [0]
    watched(store, counts.append)
    answer = repr(await scenario.act(store, memo))
    after = await dump(store)
    await store.close()
    return Undisturbed(memo, before, after, answer, counts[-1])


def die() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


async def crash(url: str, scenario: Scenario, statement: int) -> None:
    """Prepare, and die after a statement; past the last one, die before the answer is used."""
    store = await opened(url, STARTED)
    memo = await scenario.prepare(store)
    _clock._now = ACTED
    watched(store, lambda count: die() if count == statement else None)
    await scenario.act(store, memo)
    die()


async def look_and_repeat(url: str, scenario: Scenario, memo: Memo) -> tuple[Any, Any, str]:
    """Return the state that was left, and the state after doing it again, and what that said."""
    store = await opened(url, ACTED)
    left = await dump(store)
    answer = repr(await scenario.act(store, memo))
    repeated = await dump(store)
    await store.close()
    return left, repeated, answer


def check(scenario: Scenario, fresh_url: Callable[[], str], *, every: bool) -> None:
    """Crash after every statement of scenario, or after the first and the last, and after its end."""
    first = fresh_url()
    calm = in_a_child(lambda: undisturbed(first, scenario))
    assert calm.before != calm.after, "the operation writes"
    last = calm.statements
    for statement in range(1, last + 2) if every else sorted({1, last, last + 1}):
        url = fresh_url()
        assert in_a_child(lambda: crash(url, scenario, statement)) is None  # noqa: B023 - called now
        left, repeated, answer = in_a_child(lambda: look_and_repeat(url, scenario, calm.memo))  # noqa: B023
        assert left in (calm.before, calm.after), f"half of it was left after {statement}"
        assert repeated == calm.after, f"doing it again after statement {statement} made a change"
        if scenario.same:
            assert answer == calm.answer, f"doing it again after statement {statement}"
