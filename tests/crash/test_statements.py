"""A crash after every single statement of every operation."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pylash.stores import sqlite
from pylash.stores.envs import SqlAttachments, SqlEnvs
from pylash.stores.journal import SqlJournal
from pylash.stores.lookups import SqlLookups
from pylash.stores.processes import SqlProcesses
from pylash.stores.runs import SqlRuns
from pylash.stores.session_ends import SqlSessionEnds
from pylash.stores.sessions import SqlSessions
from pylash.stores.triggers import SqlTriggers
from pylash.stores.waits import SqlWaits
from pylash.stores.workers import SqlWorkers
from tests.backends import PostgresBackend, SqliteBackend, execute
from tests.crash.process_scenarios import PROCESS_SCENARIOS
from tests.crash.run_scenarios import RUN_SCENARIOS
from tests.crash.session_scenarios import SESSION_SCENARIOS
from tests.crash.slot_scenarios import SLOT_SCENARIOS
from tests.crash.statements import TABLES, Prepared, check

SCENARIOS = {**RUN_SCENARIOS, **PROCESS_SCENARIOS, **SLOT_SCENARIOS, **SESSION_SCENARIOS}
DELETE_ALL = "; ".join(f"delete from {table}" for table in TABLES)


@pytest.fixture(autouse=True)
def short_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a database be made quickly: each of these lives for one crash."""
    monkeypatch.setattr(sqlite, "WAL_BYTES", 0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_statement_leaves_nothing_half_done_on_sqlite(
    name: str, tmp_path: Path
) -> None:
    first: list[Prepared] = []

    def copied(prepare: Callable[[str], Prepared]) -> Prepared:
        first[:] = first or [prepare(SqliteBackend(tmp_path).url)]
        copy = SqliteBackend(tmp_path)
        shutil.copy(first[0].url.removeprefix("sqlite:///"), copy.path)
        return first[0]._replace(url=copy.url)

    check(SCENARIOS[name], copied, every=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_statement_leaves_nothing_half_done_on_postgres(
    name: str, emptied: PostgresBackend
) -> None:
    def emptied_first(prepare: Callable[[str], Prepared]) -> Prepared:
        asyncio.run(execute(emptied.url, DELETE_ALL))
        return prepare(emptied.url)

    check(SCENARIOS[name], emptied_first, every=False)  # the server undoes what was not committed


@pytest.fixture(scope="module")
def emptied(postgres: str) -> Iterator[PostgresBackend]:
    """Give one database for all scenarios: emptying it is cheaper than making another."""
    backend = PostgresBackend(postgres)
    asyncio.run(backend.__aenter__())
    yield backend
    asyncio.run(backend.__aexit__(None, None, None))


def test_every_operation_that_writes_has_a_scenario() -> None:
    ports: list[type] = [SqlJournal, SqlWaits, SqlRuns, SqlWorkers, SqlProcesses, SqlTriggers]
    ports += [SqlEnvs, SqlAttachments, SqlSessions, SqlSessionEnds]
    operations = {
        name for port in ports for name, what in vars(port).items() if hasattr(what, "__wrapped__")
    }
    reads = {"entry", "look", "listed", "generation", "get", "next_due", "_others"}
    reads |= {"timeline", "wake_seqs", "owned_by", "_old"}
    reads |= {"resume", "turn", "turns", "nodes", "uncommitted", "queued", "asked_to_end"}
    reads |= {"results", "states", "blocked", "current", "_generation"}
    covered = {name.split(":")[0] for name in SCENARIOS}
    assert covered == (operations - reads - {"wake"}) | {"record", "start", "settle", "perform"}
    looks = {name for name, what in vars(SqlLookups).items() if hasattr(what, "__wrapped__")}
    assert not looks & covered
