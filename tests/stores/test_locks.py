"""Locks are taken in one order: nothing that races on PostgreSQL waits for a deadlock to be found."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from pylash.durable import AppendEvent, CancelProcess, RunState, SignalProcess, Store, WorkerId
from pylash.stores.postgres import PostgresDriver
from pylash.testing import ending_laws, slot_laws
from pylash.testing.process_laws import TYPES
from pylash.testing.subjects import SubjectStore, ask, asked, pause, raced, running
from pylash.testing.suites import Law, together
from pylash.values import LeaseLost, ProcessEnded
from tests.backends import PostgresBackend


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the operations that the server chose to break a deadlock."""
    honest, found = PostgresDriver._drive, list[str]()

    async def drive(driver: PostgresDriver, link: Any, operation: Any) -> Any:
        try:
            return await honest(driver, link, operation)
        except asyncpg.DeadlockDetectedError:
            found.append(operation.name)
            raise

    monkeypatch.setattr(PostgresDriver, "_drive", drive)
    return found


async def force_from_both_sides(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, _: int) -> None:
        left, right = await running(one, worker), await running(one, worker)

        async def end(client: Store, mine: Any, process: str) -> None:
            try:
                await asked(client, mine.fence, CancelProcess(process, force=True))
            except LeaseLost:
                return

        await together(end(one, left, right.id), end(other, right, left.id))

    await raced(store, race)


async def a_terminal_event_while_its_waiter_is_busy(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        parent = await running(one, worker)
        child = await running(one, worker, event_types=TYPES)

        async def wait() -> None:
            await pause(n, 5)
            if await ending_laws._watched(one, parent, child.id) is None:
                await one.runs.park(parent.fence, 0)

        async def signal() -> None:
            await pause(n, 3)
            try:
                await asked(one, parent.fence, SignalProcess(child.id, "go", "1"))
            except ProcessEnded:
                return

        async def end() -> None:
            await pause(n, 7)
            await ask(other, AppendEvent(child.id, "over", 1))

        await together(wait(), signal(), end())
        assert await ending_laws._state_of(one, parent) is not RunState.WAITING

    await raced(store, race)


LAWS: list[Law[SubjectStore]] = [
    force_from_both_sides,
    a_terminal_event_while_its_waiter_is_busy,
    ending_laws.no_end_is_lost_while_the_parent_parks,
    ending_laws.no_attached_child_is_left_behind_by_force,
    slot_laws.never_more_than_the_limit_execute_and_none_is_left_behind,
    slot_laws.a_slot_is_not_given_to_one_that_is_ended_meanwhile,
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
async def test_no_deadlock(law: Law[Any], postgres: str, deadlocks: list[str]) -> None:
    async with PostgresBackend(postgres) as backend:
        await law(await backend.store())
    assert deadlocks == []
