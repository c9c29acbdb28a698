"""Kills a child after the n-th statement of an operation that writes, and compares what is left.

What is left must be the state before the operation or after it, nothing in between; and doing it
again, as after a COMMIT whose answer was lost, must end in the state of an undisturbed run, and give
its answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from pylash.durable.runs import SECOND, WorkerId
from pylash.stores.migrations import MIGRATIONS
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore, open_store
from pylash.testing import SimClock
from pylash.values.errors import StoreRefused

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

T = TypeVar("T")

Memo = Any

Work = Callable[[SqlStore], Coroutine[Any, Any, T]]


class Scenario(NamedTuple):
    """What must be there first, and the operation. ``same`` is False if its answer may differ."""

    prepare: Callable[[SqlStore], Awaitable[Memo]]
    act: Callable[[SqlStore, Memo], Awaitable[object]]
    same: bool = True


_clock = SimClock(STARTED)


def _ones(size: int) -> bytes:
    return b"\1" * size


async def tick() -> None:
    """Let a moment pass, so that the next run's id differs."""
    await _clock.advance("1s")


async def opened(url: str, at: int) -> SqlStore:
    """Open the store at a fixed time and with fixed randomness: the same run gives the same rows."""
    _clock.set_time(at)
    return await open_store(url, clock=_clock, entropy=_ones, migrate=True, simulated=True)


def forgetful(store: SqlStore) -> SqlStore:
    """Return the same store as another process has it: what it kept in memory is not known."""
    return SqlStore(store.driver, _clock, _ones, store.durability, store.secret)


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
    """Call seen with the number of each writing statement of store's next operation that may write, once executed.

    A crash after a statement that only reads is the crash after the one before it.
    """
    honest = store.driver.run

    def run(operation: Operation[Any]) -> Awaitable[Any]:
        if operation.read_only:
            return honest(operation)
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


class Reached(Exception):
    """Raised instead of running an operation that a scenario is about."""

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation


async def reach(
    store: SqlStore, name: str, call: Awaitable[object], *, refused: str = ""
) -> Operation[Any]:
    """Run a call on store up to its operation called name; return that operation, which has not run.

    The database refuses the operations called ``refused``.
    """
    honest = store.driver.run

    def run(operation: Operation[Any]) -> Awaitable[Any]:
        if operation.name == refused:
            raise StoreRefused("a row that no database takes")
        if operation.name == name:
            raise Reached(operation)
        return honest(operation)

    store.driver.run = run  # type: ignore[method-assign]
    try:
        await call
    except Reached as reached:
        return reached.operation
    finally:
        store.driver.run = honest  # type: ignore[method-assign]
    raise AssertionError(f"the call has no operation {name}")


def part(
    name: str,
    prepare: Callable[[SqlStore], Awaitable[Memo]],
    call: Callable[[SqlStore], Awaitable[object]],
    *,
    refused: str = "",
    same: bool = True,
) -> Scenario:
    """Return the scenario of one operation of a call that has several."""

    async def prepare_and_reach(store: SqlStore) -> Operation[Any]:
        await prepare(store)
        return await reach(store, name, call(store), refused=refused)

    return Scenario(prepare_and_reach, lambda s, operation: s.driver.run(operation), same)


def killed(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run work in a forked process, which must be killed by it."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())
        except BaseException:  # noqa: BLE001 - nothing of the child may go on in the parent's code
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the child was not killed"


class Prepared(NamedTuple):
    """What the operation is given, and the state before it."""

    memo: Memo
    rows: dict[str, list[str]]


class Undisturbed(NamedTuple):
    """A run without a crash: the state after it, what it said, and how many statements it took."""

    after: dict[str, list[str]]
    answer: str
    statements: int


class Place(Protocol):
    """Where a scenario is tried."""

    def prepared(self, prepare: Work[Prepared]) -> tuple[str, Prepared]:
        """Return the URL of a database that was prepared, or of a copy of one."""
        ...

    def run(self, url: str, work: Work[T]) -> T:
        """Return what work gives on the open store at url."""
        ...


async def prepared(scenario: Scenario, store: SqlStore) -> Prepared:
    """Prepare."""
    _clock.set_time(STARTED)
    return Prepared(await scenario.prepare(store), await dump(store))


async def undisturbed(scenario: Scenario, memo: Memo, store: SqlStore) -> Undisturbed:
    """Act, and look."""
    _clock.set_time(ACTED)
    counts = [0]
    watched(store, counts.append)
    answer = repr(await scenario.act(store, memo))
    return Undisturbed(await dump(store), answer, counts[-1])


def die() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


async def crash(url: str, scenario: Scenario, memo: Memo, statement: int) -> None:
    """Act, and die after a statement; past the last one, die before the answer is used."""
    store = await opened(url, ACTED)
    watched(store, lambda count: die() if count == statement else None)
    await scenario.act(store, memo)
    die()


async def look_and_repeat(scenario: Scenario, memo: Memo, store: SqlStore) -> tuple[Any, Any, str]:
    """Return the state that was left, and the state after doing it again, and what that said."""
    _clock.set_time(ACTED)
    left = await dump(store)
    answer = repr(await scenario.act(store, memo))
    return left, await dump(store), answer


def check(scenario: Scenario, place: Place, *, every: bool) -> None:
    """Crash after every statement of scenario, or after the first and the last, and after its end."""
    prepare = partial(prepared, scenario)
    url, (memo, before) = place.prepared(prepare)
    calm = place.run(url, partial(undisturbed, scenario, memo))
    assert before != calm.after, "the operation writes"
    last = calm.statements
    for statement in range(1, last + 2) if every else sorted({1, last, last + 1}):
        url, (memo, _) = place.prepared(prepare)
        killed(partial(crash, url, scenario, memo, statement))
        left, repeated, answer = place.run(url, partial(look_and_repeat, scenario, memo))
        assert left in (before, calm.after), f"half of it was left after {statement}"
        assert repeated == calm.after, f"doing it again after statement {statement} made a change"
        if scenario.same:
            assert answer == calm.answer, f"doing it again after statement {statement}"
