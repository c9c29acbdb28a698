"""PostgreSQL's statements for many rows leave exactly what the plain ones leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from pylash.durable.commands import StartProcess
from pylash.durable.processes import (
    Aborted,
    EngineInput,
    Failure,
    LeasedStart,
    Output,
    Registration,
    SessionRef,
    Success,
)
from pylash.durable.runs import SECOND, Fence, WorkerId
from pylash.engine.system import system_entropy
from pylash.stores.drivers.postgres import PostgresDriver
from pylash.stores.operation import Bulk, Operation, Statement, Steps
from pylash.stores.store import SqlStore, open_store
from pylash.stores.tables.bulk import SETTLE_MANY, START_MANY
from pylash.testing import SimClock
from pylash.testing.laws.stores.process_ends import no_end_is_lost_while_the_parent_parks
from pylash.testing.laws.suites import together
from pylash.values.errors import LashError
from tests.backends import Backend, PostgresBackend, lockless
from tests.crash.statements import TABLES

W1, GONE = WorkerId("w1"), WorkerId("gone")
OUTPUTS: tuple[Output, ...] = (
    Success({"n": [1, None, "é"]}),
    Failure("ValueError", "boom", "It broke.", {"raw": True}),
    Aborted("why"),
    Aborted(None),
)


async def opened(backend: Backend) -> SqlStore:
    return await open_store(backend.url, clock=SimClock(), entropy=system_entropy, simulated=True)


def registrations() -> list[Registration]:
    given = EngineInput("python", "work", {"n": 1})
    ann = SessionRef("ann")
    return [
        Registration(id="plain", input=given),
        Registration(id="é", input=given, originator=ann, wake_target=ann, env="e" * 64),
        Registration(id="timed", input=given, timeout=5, seed="plain"),
        Registration(id="watched", input=given),
    ]


_NAMES = """
select p.id, p.number, r.token from pylash_processes p join pylash_runs r on r.id = p.run"""


def rows() -> Steps[dict[str, list[str]]]:
    """Return every row, with names for what is random."""
    names: dict[object, str] = {}
    for process, number, token in (yield Statement(_NAMES)).rows:
        names[number] = process
        if token is not None and token != "settled:1":
            names[token] = f"the token of {process}"
    found: dict[str, list[str]] = {}
    for table in TABLES:
        shown = (yield Statement(f"select * from {table}")).rows
        found[table] = sorted(repr([names.get(one, one) for one in row]) for row in shown)
    return found


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drivers forget that rows can go together."""
    honest = PostgresDriver.run

    def run(driver: PostgresDriver, operation: Operation[Any]) -> Awaitable[Any]:
        plain = Operation(operation.name, operation.steps, operation.bare, operation.urgent)
        plain.read_only = operation.read_only
        return honest(driver, plain)

    monkeypatch.setattr(PostgresDriver, "run", run)


def seen(driver: PostgresDriver) -> list[str]:
    """Return the list that will have the statement of every row that driver writes by itself."""
    honest, done = driver.run, list[str]()

    def read(bulk: Bulk, rest: tuple[Any, ...]) -> Any:
        done.append(bulk.many)
        return bulk.value if bulk.read is None else bulk.read(rest)

    def run(operation: Operation[Any]) -> Awaitable[Any]:
        if operation.bulk is not None:
            operation.bulk = replace(operation.bulk, read=partial(read, operation.bulk))
        return honest(operation)

    driver.run = run  # type: ignore[method-assign]
    return done


async def started(store: SqlStore, one: Registration, worker: WorkerId) -> LeasedStart | None:
    return await store.processes.start(StartProcess(one), worker)


async def settled(store: SqlStore, fence: Fence, number: int, output: Output) -> str:
    try:
        await store.processes.settle(fence, number, output)
    except LashError as error:
        return error.code
    return "settled"


async def in_turn(*work: Awaitable[Any]) -> list[Any]:
    return [await one for one in work]


async def lived(store: SqlStore, gather: Callable[..., Awaitable[Any]] = together) -> list[Any]:
    """Start and settle processes at once; return all answers, and the rows."""
    await lockless(store).join(W1, 600 * SECOND)
    some = registrations()
    leased = await gather(*(started(store, one, W1) for one in some))
    first, second, *_ = mine = [one for one in leased if one is not None]
    told: list[Any] = [(one.fence.token, one.fence.scope) for one in mine]
    told.append(await started(store, some[0], W1))
    told.append(await started(store, replace(some[0], id="anyone's"), GONE))
    told.append(await store.driver.run(Operation("rows", rows)))
    await store.processes.observe(["watched"])  # observed, and yet written with the others
    stale = Fence(first.fence.run, 99, first.fence.scope)
    told.append(await settled(store, stale, first.number, Success("stale")))
    ends = []
    for one, output in zip(mine, OUTPUTS, strict=True):
        ends.append(settled(store, one.fence, one.number, output))
    ends.append(settled(store, second.fence, second.number, OUTPUTS[1]))
    told.append(await gather(*ends))
    told.append(await store.driver.run(Operation("rows", rows)))
    return told


@pytest.mark.parametrize("gather", [together, in_turn])
async def test_many_rows_at_once_are_the_rows_of_the_plain_statements(
    postgres: str, monkeypatch: pytest.MonkeyPatch, gather: Callable[..., Awaitable[Any]]
) -> None:
    async with PostgresBackend(postgres) as backend:
        store = await opened(backend)
        assert isinstance(store.driver, PostgresDriver)
        written = seen(store.driver)
        bulk = await lived(store, gather)
        await store.close()
    assert written.count(START_MANY) == 4
    assert written.count(SETTLE_MANY) == 4
    async with PostgresBackend(postgres) as backend:
        plainly(monkeypatch)
        store = await opened(backend)
        plain = await lived(store, gather)
        await store.close()
    assert plain == bulk


async def test_no_end_is_lost_by_the_plain_statements(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly(monkeypatch)
    async with PostgresBackend(postgres) as backend:
        await no_end_is_lost_while_the_parent_parks(await backend.store())
