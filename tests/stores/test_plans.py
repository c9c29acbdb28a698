"""What sessions and claims cost in a large database: no statement reads a table from end to end."""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import pytest

from pylash.durable import AppendEvent, Policy, SessionRef, Writing
from pylash.stores import SqlStore
from pylash.stores.postgres import PostgresDriver
from pylash.stores.postgres_dialect import dialect
from pylash.stores.sql import Operation, Statement, Steps
from pylash.testing.process_laws import TYPES
from pylash.testing.subjects import (
    TARGET,
    ask,
    claim_processes,
    ended,
    joined,
    new_turn,
    running,
    session_of_id,
    started,
    submitted,
    taken,
    turning,
)
from tests.backends import PostgresBackend

LARGE = (
    "runs",
    "nodes",
    "sessions",
    "waits",
    "effects",
    "queue",
    "said",
    "lanes",
    "forks",
    "processes",
)
FILLING = """
insert into pylash_sessions(id) select 'other-' || n from generate_series(1, 10000) n;
insert into pylash_lanes(lane, last_seq, number, head) select 'session:other-' || n, 1, n, 100 from generate_series(1, 10000) n;
insert into pylash_lanes(lane, last_seq) values ('sessions', 10000);
insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, created, settled)
  select n, 'scope-' || n, 'turn', 'turn', 'session:other-' || n % 10000, n, 'completed', 1, 1
  from generate_series(1, 100000) n;
insert into pylash_nodes(id, run, body) select ((n % 10000)::bigint << 24) + n / 10000, n % 100000 + 1, 'body'
  from generate_series(10000, 309999) n;
insert into pylash_effects(run, key, kind, hash, outcome, wait, started)
  select n, 'k', 'durable_step', 'h', '1', 'wait-' || n, 1 from generate_series(1, 100000) n;
insert into pylash_waits(id, name, session, kind, title, terminal, opened)
  select 'wait-' || n, '{}', 'other-' || n % 10000, '', '', case when n % 10 > 0 then 'x'::bytea end, 1
  from generate_series(1, 100000) n;
insert into pylash_forks(number, session) select n, 'fork-' || n from generate_series(1, 10000) n;
insert into pylash_queue(session, process, sequence, body, at)
  select 'other-' || n, 'p', 1, '1', 1 from generate_series(1, 10000) n;
insert into pylash_said(session, key, token, at)
  select 'other-' || n % 10000, 'k' || n, 't', 1 from generate_series(1, 100000) n;
insert into pylash_processes(number, id, run, registration, digest, created)
  select n, 'p' || n, n, '{}', 'd', 1 from generate_series(1, 20000) n;
analyze;
"""


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the statements that are executed from now on."""
    drive, seen = PostgresDriver._drive, set[str]()

    async def driving(driver: PostgresDriver, link: Any, operation: Operation[Any]) -> Any:
        def steps() -> Steps[Any]:
            inner = operation.steps()
            answer: Any = None
            while True:
                try:
                    step = inner.send(answer)
                except StopIteration as end:
                    return end.value
                if isinstance(step, Statement):
                    seen.add(step.sql)
                answer = yield step

        watched = Operation(operation.name, steps, operation.bare, read_only=operation.read_only)
        return await drive(driver, link, watched)

    monkeypatch.setattr(PostgresDriver, "_drive", driving)
    return seen


async def everything(store: SqlStore) -> None:
    """Do everything that can be done to a session, and look for work."""
    worker = await joined(store)
    mine = await turning(store, worker=worker)
    session_id = mine.session.id
    process = await started(store, event_types=TYPES, wake_target=SessionRef(session_id))
    await submitted(store, new_turn(session_id), worker)
    await ask(store, AppendEvent(process, "alarm", "text"))
    await store.sessions.enqueue(session_id, "k", "words", Policy.INTERRUPT)
    await store.sessions.queued(session_id)
    await taken(store, mine)
    await store.sessions.cancel(session_id, "why")
    await store.sessions.resume([mine.turn.run])
    await ended(store, mine, b'"words"', b'"more"')
    await store.sessions.results([mine.turn.id])
    await store.sessions.states([mine.turn.id])
    session = await session_of_id(store, session_id)
    await store.sessions.nodes(session.path[-1])
    await store.sessions.turns(session_id)
    await store.sessions.fork(session, "fork", 1, (1, 1))
    behind = Writing(nodes=((9, b"x"),))
    await store.sessions.record((await running(store, worker)).fence, session, behind)
    await claim_processes(store, worker)
    await store.runs.next_due([TARGET])
    await store.sessions.delete(session_id)
    await store.sessions.delete("fork")


async def test_nothing_that_is_done_often_reads_a_table_of_all(
    postgres: str, statements: set[str]
) -> None:
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        connection = await asyncpg.connect(
            backend.url, server_settings={"plan_cache_mode": "force_generic_plan"}
        )
        try:
            await connection.execute(FILLING)
            statements.clear()
            await everything(store)
            scans = {}
            for sql in sorted(statements):
                found = re.findall(r"Seq Scan on pylash_(\w+)", await _plan(connection, sql))
                if any(table in LARGE for table in found):
                    scans[" ".join(sql.split())] = found
            assert scans == {}
        finally:
            await connection.close()


async def _plan(connection: Any, sql: str) -> str:
    """Return how a statement is executed, whatever its parameters."""
    text = dialect(sql)
    await connection.execute(f"prepare asked as {text}")
    try:
        count = len(set(re.findall(r"\$(\d+)", text)))
        given = f"({', '.join(['null'] * count)})" if count else ""
        rows = await connection.fetch(f"explain execute asked{given}")
        return "\n".join(row[0] for row in rows)
    finally:
        await connection.execute("deallocate asked")
