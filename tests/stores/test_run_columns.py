"""The columns of schema 6 beside workers of schema 5, which neither write nor read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylash.durable.scopes import scope_text
from pylash.stores.migrations import MIGRATIONS
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.testing.laws.stores.subjects import (
    TARGET,
    Turning,
    ended,
    joined,
    new_turn,
    started,
    submitted,
    turning,
    turns_waiting,
)
from pylash.values.canonical import write
from tests.backends import Backend

# The statements of schema 5, as its workers run them.

OLD_CANCEL = """
update pylash_runs set cancel = case when cancel = 0 then 1 else cancel end,
  result = case when cancel = 0 then ? else result end, reason = null, attempts = 0,
  at = case when state = 'blocked' then {now} else at end,
  state = case when state = 'blocked' then 'queued' else state end
where id = ? and settled is null and (cancel = 0 or state = 'blocked')"""

OLD_SETTLE_DELETED = """
update pylash_runs set state = 'cancelled', result = ?, settled = {now}, at = null, owner = null, cancel = 1,
  fence = fence + 1, token = 'deleted', lane = null where id = ?"""

OLD_TURN = """
select scope, id, input, state, reason, result, created, cancel, options, fence, owner, token
from pylash_runs where scope = ?"""

OLD_FREE_ID = "delete from pylash_runs where id = ? and token = ?"

OLD_FORGET = """
delete from pylash_runs where id in ({bigints}) and kind <> 'process' and settled is not null
  and token <> 'deleted'"""

OLD_CLAIM = """
with ready as (select id from pylash_runs where at <= {now} and target in ({texts})
               and state in ('queued', 'waiting') and attempts < ? order by at limit ? {skip})
update pylash_runs set state = 'running', owner = ?, token = ?, fence = fence + 1,
  attempts = attempts + 1, at = null, seen = 0
where id in (select id from ready) returning id"""

OLD_SETTLE_TURN = """
update pylash_runs set state = ?, result = ?, settled = {now}, at = null, owner = null,
  fence = fence + 1, token = ? where id = ?"""

NEW_COLUMNS = "select forgotten, cancel_reason from pylash_runs where id = ?"


async def execute(store: SqlStore, sql: str, params: Sequence[Any]) -> list[Any]:
    """Run one statement, as a worker of another version would."""

    def steps() -> Steps[list[Any]]:
        return (yield Statement(sql, tuple(params))).rows

    return await store.driver.run(Operation("execute", steps))


async def migrate_again(store: SqlStore) -> None:
    """Run what the migration does to rows that are there."""
    for sql in MIGRATIONS[5].statements:
        if " update " in f" {sql} ":
            await execute(store, sql, ())


async def turn_of(store: SqlStore, mine: Turning) -> Any:
    found = await store.sessions.turn(mine.turn.scope)
    assert found is not None
    return found


async def test_a_cancel_of_an_older_worker_is_read_with_its_reason(durable: Backend) -> None:
    store = await durable.store()
    mine = await turning(store)
    await execute(store, OLD_CANCEL, (write({"cancelled": "why"}), mine.turn.run))
    found = await turn_of(store, mine)
    assert (found.cancel, found.cancel_reason, found.result) == (True, "why", None)
    again = await store.sessions.cancel(mine.session.id, "another")
    assert again is not None
    assert again.cancel_reason == "why"
    await ended(store, mine, result={"status": "cancelled"})
    assert (await turn_of(store, mine)).result == {"status": "cancelled"}


async def test_an_older_worker_reads_the_reason_of_our_cancel(durable: Backend) -> None:
    store = await durable.store()
    mine = await turning(store)
    await store.sessions.cancel(mine.session.id, "why")
    (row,) = await execute(store, OLD_TURN, (scope_text(mine.turn.scope),))
    assert (bytes(row[5]), row[7]) == (write({"cancelled": "why"}), 1)
    await execute(
        store,
        OLD_SETTLE_TURN,
        ("cancelled", write({"status": "cancelled"}), "settled:1", mine.turn.run),
    )
    found = await turn_of(store, mine)
    assert (found.cancel_reason, found.result) == ("why", {"status": "cancelled"})


async def test_a_turn_that_an_older_worker_deleted_is_forgotten(durable: Backend) -> None:
    store = await durable.store()
    mine = await turning(store)
    await execute(store, OLD_SETTLE_DELETED, (write({"status": "cancelled"}), mine.turn.run))
    assert await store.inspection.named(f"{mine.session.id}/{mine.turn.scope.id}") == []
    again = await submitted(
        store, new_turn(mine.session.id, mine.turn.scope.id, b"another question")
    )
    assert again.turn.run != mine.turn.run


async def test_an_older_worker_finds_what_we_deleted(durable: Backend) -> None:
    store = await durable.store()
    mine = await turning(store)
    await store.sessions.delete(mine.session.id)
    (row,) = await execute(store, OLD_TURN, (scope_text(mine.turn.scope),))
    assert row[-1] == "deleted"
    await execute(store, OLD_FORGET, ([mine.turn.run],))
    assert len(await execute(store, OLD_TURN, (scope_text(mine.turn.scope),))) == 1
    await execute(store, OLD_FREE_ID, (mine.turn.run, "deleted"))
    assert await store.sessions.turn(mine.turn.scope) is None


async def test_only_deletion_and_cancel_write_the_new_columns(durable: Backend) -> None:
    store = await durable.store()
    mine, asked, deleted = [await turning(store) for _ in range(3)]
    await ended(store, mine)
    await store.sessions.cancel(asked.session.id, "why\0")
    await store.sessions.delete(deleted.session.id)
    found = [await execute(store, NEW_COLUMNS, (one.turn.run,)) for one in (mine, asked, deleted)]
    assert found == [[(None, None)], [(None, "why\\u0000")], [(1, None)]]


async def test_the_migration_fills_the_columns_from_the_old_form(durable: Backend) -> None:
    store = await durable.store()
    asked, escaped, deleted = [await turning(store) for _ in range(3)]
    await execute(store, OLD_CANCEL, (write({"cancelled": "wärum"}), asked.turn.run))
    await execute(store, OLD_CANCEL, (write({"cancelled": "a\0b"}), escaped.turn.run))
    await execute(store, OLD_SETTLE_DELETED, (b"{}", deleted.turn.run))
    await migrate_again(store)
    found = [
        await execute(store, NEW_COLUMNS, (one.turn.run,)) for one in (asked, escaped, deleted)
    ]
    assert found == [[(None, "wärum")], [(None, None)], [(1, None)]]
    assert (await turn_of(store, escaped)).cancel_reason == "a\0b"


async def test_an_older_worker_claims_what_we_admitted(durable: Backend) -> None:
    """A queued run waits for its lane while ``at`` is null: there is no second mark that could be stale."""
    store = await durable.store()
    first = await turning(store)
    behind = await submitted(store, new_turn(first.session.id))
    worker = await joined(store)
    assert await turns_waiting(store, worker, first.session.id) == []
    await ended(store, first)
    ready = (["turn", TARGET], 3, 10, worker, "older")
    assert await execute(store, OLD_CLAIM, ready) == [(behind.turn.run,)]
    await started(store)
    assert len(await execute(store, OLD_CLAIM, ready)) == 1
