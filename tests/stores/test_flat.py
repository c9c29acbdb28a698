"""Frequent operations cost the same however many runs have ended before."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from pylash.durable.processes import ProcessFilter
from pylash.durable.runs import SECOND, RunState
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.testing.laws.stores.subjects import TARGET, joined, recorded, running, turning
from tests.backends import Backend, SqliteBackend
from tests.stores.history import filling
from tests.stores.lost_answers import answer_lost

pytestmark = pytest.mark.slow

SMALL, LARGE = 200, 2_000

Work = Callable[[SqlStore], Awaitable[object]]


async def leaves(store: SqlStore) -> None:
    worker = await joined(store)
    await running(store, worker)
    await store.workers.leave(worker)


async def is_taken_over(store: SqlStore) -> None:
    dead = await joined(store, ttl=-1)
    await running(store, dead)
    assert dead in await store.workers.bury_the_dead(await joined(store))


async def lists(store: SqlStore, status: str) -> None:
    await store.processes.listed(ProcessFilter(statuses=(status,)), 2)


async def shows(store: SqlStore, status: str) -> None:
    for kind in ("process", "turn"):
        await store.inspection.runs([status], [kind], 2)


async def prunes(store: SqlStore) -> None:
    assert await store.journal.prune(SECOND, 20) == 20


async def has_nothing_to_prune(store: SqlStore) -> None:
    mine = await running(store)
    await store.journal.record(mine.fence, recorded("step"))
    assert await store.journal.prune(SECOND, 100) == 0


async def repeats_a_claim(store: SqlStore) -> None:
    worker = await joined(store)
    answer_lost(store, "claim")
    await store.runs.claim(worker, limit=5, targets=["work"])
    await store.runs.owned_by(worker)


async def shows_a_session(store: SqlStore) -> None:
    mine = await turning(store)
    assert len(await store.inspection.turns(mine.session.id, 20)) == 1


WORK: dict[str, Work] = {
    "leave": leaves,
    "take over": is_taken_over,
    "list": lambda store: store.processes.listed(ProcessFilter(), 20),
    "list of a name": lambda store: store.processes.listed(ProcessFilter(name=TARGET), 20),
    "list of a tag": lambda store: store.processes.listed(ProcessFilter(tag="tag-1"), 20),
    "sessions of a tag": lambda store: store.sessions.listed(20, tag="tag-1"),
    "list after another": lambda store: store.processes.listed(ProcessFilter(after="old-70"), 20),
    **{f"list {state}": partial(lists, status=state) for state in RunState},
    **{f"show {state}": partial(shows, status=state) for state in RunState},
    "prune": prunes,
    "prune nothing": has_nothing_to_prune,
    "claim again": repeats_a_claim,
    "turns of a session": shows_a_session,
    "sessions": lambda store: store.sessions.listed(20),
    "signals": lambda store: store.processes.signal_waits(),
    "waits": lambda store: store.waits.listed(),
    "subscriptions": lambda store: store.triggers.listed("other-1"),
    "sessions that begin so": lambda store: store.inspection.sessions_beginning("other-7"),
    "answered": lambda store: store.inspection.has_ended("wait-7"),
    "workers": lambda store: store.inspection.workers(),
}


class Instructions:
    """Counts what SQLite's machine does for a store."""

    def __init__(self, connections: Sequence[sqlite3.Connection]) -> None:
        self.count = 0
        for connection in connections:
            connection.set_progress_handler(self._step, 1)

    def _step(self) -> int:
        self.count += 1
        return 0


async def filled(backend: Backend, count: int) -> SqlStore:
    """Open a store in which so many of everything have ended."""
    store = await backend.store()
    await execute(store, *filling(count))
    return store


async def execute(store: SqlStore, *statements: str) -> None:
    def steps() -> Steps[None]:
        for sql in statements:
            yield Statement(sql)

    await store.driver.run(Operation("execute", steps))


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
async def test_it_takes_as_many_instructions_after_ten_times_as_many_runs(
    work: Work, tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    counts = []
    for size in (SMALL, LARGE):
        connections.clear()
        async with SqliteBackend(tmp_path) as backend:
            store = await filled(backend, size)
            if work is has_nothing_to_prune:
                await execute(store, "delete from pylash_effects")
            instructions = Instructions(connections)
            await work(store)
            counts.append(instructions.count)
    small, large = counts
    assert small, "the work was not counted"
    assert large < 1.5 * small + 200, (
        f"{small} instructions in a small store, {large} in a large one"
    )


async def test_pruning_goes_on_where_it_stopped(
    tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    """Runs that wait for months are looked at once in a round, and not with every few runs that are pruned."""
    counts = []
    for size in (SMALL, LARGE):
        connections.clear()
        async with SqliteBackend(tmp_path) as backend:
            store = await filled(backend, size)
            waits = (
                "update pylash_runs set state = 'waiting', settled = null where id <= {} * 4194304"
            )
            await execute(store, waits.format(size - 100))
            await prunes(store)
            instructions = Instructions(connections)
            await prunes(store)
            counts.append(instructions.count)
    small, large = counts
    assert small, "the work was not counted"
    assert large < 1.5 * small + 200
