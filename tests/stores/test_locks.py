"""Locks are taken in one order: concurrent operations on PostgreSQL do not deadlock.

The laws of stores are also checked for deadlocks; the races here are not covered by a law.
"""

from __future__ import annotations

from typing import Any

import pytest

from pylash.durable.commands import AppendEvent, AwaitProcess, CancelProcess, SignalProcess
from pylash.durable.runs import RunState, WorkerId
from pylash.durable.sessions import Policy
from pylash.durable.stores import Store, WaitOpening
from pylash.durable.waits import Ok
from pylash.testing.laws.stores import queues as queue_laws
from pylash.testing.laws.stores.processes import TYPES
from pylash.testing.laws.stores.subjects import (
    SubjectStore,
    ask,
    asked,
    effect,
    ended,
    fresh_answer,
    ids,
    new_turn,
    pause,
    raced,
    running,
    submitted,
    turning,
    wait_of,
)
from pylash.testing.laws.suites import Law, together
from pylash.values.canonical import encode
from pylash.values.errors import LeaseLost
from pylash.values.process_errors import ProcessEnded
from tests.backends import PostgresBackend


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
            child_end = AwaitProcess(child.id)
            entry = await one.processes.watch(parent.fence, effect("wait"), child_end, encode)
            if not entry.outcome:
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
        run = await one.runs.get(parent.fence.scope)
        assert run is not None
        assert run.state is not RunState.WAITING

    await raced(store, race)


async def a_busy_session(store: SubjectStore) -> None:
    """Let everything happen to one session at once."""

    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        mine = await turning(one, worker=worker)
        busy = mine.session.id
        process = await queue_laws.waker(one, busy)
        name = await queue_laws.waiting(one, mine)

        async def end() -> None:
            await pause(n, 3)
            try:
                await ended(one, mine)
            except LeaseLost:
                return

        async def wake() -> None:
            await queue_laws.woken(other, process)
            await queue_laws.woken(one, process)

        async def ask() -> None:
            await submitted(other, new_turn(busy), worker)
            await submitted(one, new_turn(busy), worker)

        async def stop() -> None:
            await pause(n, 5)
            await other.sessions.cancel(busy, "why")

        async def interrupt() -> None:
            await pause(n, 7)
            await other.waits.resolve(name, Ok(n), fresh_answer())
            await queue_laws.said(other, busy, n, Policy.INTERRUPT)

        async def delete() -> None:
            await pause(n, 2)
            if n % 4 == 0:
                await one.sessions.delete(busy)

        await together(end(), wake(), ask(), stop(), interrupt(), delete())

    await raced(store, race)


async def openings_at_once(store: SubjectStore) -> None:
    """Make sessions in every way at once: they all take the next number."""

    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        session_id = f"session-{next(ids)}"
        process = await queue_laws.waker(one, session_id)

        async def opened(client: Store) -> None:
            await client.sessions.open(session_id, {"n": n})

        async def waited() -> None:
            await one.waits.open(WaitOpening(name=wait_of(session_id), title="Early"))

        async def spoken() -> None:
            await queue_laws.said(other, session_id, n, Policy.INTERRUPT)

        async def asked() -> None:
            await submitted(one, new_turn(session_id), worker)

        async def alarmed() -> None:
            await queue_laws.woken(other, process)

        works = (opened(one), waited(), spoken(), asked(), alarmed(), opened(other))
        await together(*(works[n % 6 :] + works[: n % 6]))

    await raced(store, race)


RACES = [
    force_from_both_sides,
    a_terminal_event_while_its_waiter_is_busy,
    a_busy_session,
    openings_at_once,
]


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
async def test_no_deadlock(race: Law[Any], postgres: str, deadlocks: list[str]) -> None:
    async with PostgresBackend(postgres) as backend:
        await race(await backend.store())
    assert deadlocks == []
