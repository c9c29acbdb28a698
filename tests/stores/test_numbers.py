"""The numbers of sessions: no two sessions ever have the same number."""

from __future__ import annotations

import asyncpg
import pytest

from pylash.stores import store
from pylash.stores.migrations import MIGRATIONS
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.stores.tables.lanes import next_session_number
from pylash.testing.laws.stores.subjects import new_turn, submitted
from pylash.testing.laws.suites import together
from tests.backends import Backend, PostgresBackend, execute

COUNTED_BEFORE = 4
"""The last schema whose code counts the sessions of PostgreSQL in a row, in blocks of 64."""

RESERVE = """
insert into pylash_lanes(lane, last_seq) values ('sessions', 64)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + excluded.last_seq returning last_seq"""


async def test_sessions_that_several_processes_make_at_once_have_numbers_of_their_own(
    durable: Backend,
) -> None:
    stores = [await durable.store() for _ in range(2)]
    numbers = []
    for _ in range(16):
        made = await together(*(submitted(store, new_turn()) for store in stores * 3))
        numbers += [one.session.number for one in made]
        numbers += [(await store.sessions.open(f"s{len(numbers)}")).number for store in stores[:1]]
    assert len(set(numbers)) == len(numbers)


async def taken_in_vain(store: SqlStore) -> int:
    """Return the number that a transaction takes which is undone."""
    taken = []

    def steps() -> Steps[None]:
        taken.append((yield from next_session_number()))
        raise RuntimeError("undone")

    with pytest.raises(RuntimeError, match="undone"):
        await store.driver.run(Operation("undone", steps))
    return int(taken[0])


async def test_a_transaction_that_is_undone_leaves_no_number_that_two_sessions_have(
    durable: Backend,
) -> None:
    store = await durable.store()
    first = (await store.sessions.open("first")).number
    undone = await taken_in_vain(store)
    later = [(await store.sessions.open(f"s{n}")).number for n in range(3)]
    assert len({first, *later}) == 4
    if isinstance(durable, PostgresBackend):
        assert undone not in later


async def reserved(store: SqlStore) -> range:
    """Reserve numbers as a worker of schema 4 does."""

    def steps() -> Steps[int]:
        return int((yield Statement(RESERVE)).rows[0][0])

    last = await store.driver.run(Operation("reserve", steps))
    return range(last - 63, last + 1)


async def test_workers_of_the_schema_before_never_take_a_number_of_the_sequence(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresBackend(postgres, empty=True) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(store, "MIGRATIONS", MIGRATIONS[:COUNTED_BEFORE])
            patch.setattr(store, "SCHEMA", COUNTED_BEFORE)
            old = await backend.store()
        before = await reserved(old)
        new = await backend.store(migrate=True)
        numbers = [(await new.sessions.open(f"s{n}")).number for n in range(3)]
        meanwhile = await reserved(old)
        numbers.append((await new.sessions.open("last")).number)
        assert (before, meanwhile) == (range(1, 65), range(65, 129))
        assert min(numbers) == 2**38 > meanwhile[-1]
        assert len(set(numbers)) == 4


async def test_the_last_number_fits_the_id_of_a_node_and_none_follows(postgres: str) -> None:
    async with PostgresBackend(postgres) as backend:
        subject = await backend.store()
        await execute(backend.url, f"select setval('pylash_session_numbers', {2**39 - 2})")
        got = await submitted(subject, new_turn())
        assert got.session.number == 2**39 - 1
        connection = await asyncpg.connect(backend.url)
        with pytest.raises(asyncpg.PostgresError, match="reached maximum value"):
            await connection.fetchval("select nextval('pylash_session_numbers')")
        await connection.close()
