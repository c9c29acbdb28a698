"""A crash after every single statement of every operation."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylash.stores.ports.exports import SqlExports
from pylash.stores.ports.journal import SqlJournal
from pylash.stores.ports.processes import SqlProcesses
from pylash.stores.ports.runs import SqlRuns
from pylash.stores.ports.session_deletion import SessionDeletion
from pylash.stores.ports.sessions import SqlSessions
from pylash.stores.ports.triggers import SqlTriggers
from pylash.stores.tables.contents import SqlContents
from pylash.stores.tables.waits import SqlWaits
from pylash.stores.tables.workers import SqlWorkers
from tests.backends import PostgresBackend, SqliteBackend, execute
from tests.crash.process_scenarios import PROCESS_SCENARIOS
from tests.crash.run_scenarios import RUN_SCENARIOS
from tests.crash.session_scenarios import SESSION_SCENARIOS
from tests.crash.slot_scenarios import SLOT_SCENARIOS
from tests.crash.statements import STARTED, TABLES, Prepared, T, Work, check, forgetful, opened
from tests.stores.test_migrations import ask

SCENARIOS = {**RUN_SCENARIOS, **PROCESS_SCENARIOS, **SLOT_SCENARIOS, **SESSION_SCENARIOS}
DELETE_ALL = "; ".join(f"delete from {table}" for table in TABLES)
RESTART_NUMBERS = "alter sequence pylash_session_numbers restart"
SET_BACK = """select format('select setval(''pylash_session_numbers'', %s, %L)', last_value, is_called)
from pylash_session_numbers"""


class SqlitePlace:
    """Files: one is prepared, the others are copies of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = SqliteBackend(folder)
        self._prepared: Prepared | None = None

    def prepared(self, prepare: Work[Prepared]) -> tuple[str, Prepared]:
        self._prepared = self._prepared or self.run(self._first.url, prepare)
        copy = SqliteBackend(self._folder)
        shutil.copy(self._first.path, copy.path)
        return copy.url, self._prepared

    def run(self, url: str, work: Work[T]) -> T:
        async def opened_and_closed() -> T:
            store = await opened(url, STARTED)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(opened_and_closed())


class PostgresPlace:
    """One database, emptied each time, and one store on it beside those that are killed.

    The numbers of sessions are set back to where they were before the operation: the sequence does not take
    back the numbers of a transaction that was undone, and the rows of all tries are compared.
    """

    def __init__(self, url: str, runner: asyncio.Runner) -> None:
        self._url = url
        self._runner = runner
        self._set_back = ""
        self.store = runner.run(opened(url, STARTED))

    def prepared(self, prepare: Work[Prepared]) -> tuple[str, Prepared]:
        self._runner.run(execute(self._url, f"{DELETE_ALL}; {RESTART_NUMBERS}"))
        prepared = self._runner.run(prepare(forgetful(self.store)))
        self._set_back = self._runner.run(ask(self.store, SET_BACK))[0][0]
        return self._url, prepared

    def run(self, _: str, work: Work[T]) -> T:
        self._runner.run(execute(self._url, self._set_back))
        return self._runner.run(work(forgetful(self.store)))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_statement_leaves_nothing_half_done_on_sqlite(
    name: str, tmp_path: Path
) -> None:
    check(SCENARIOS[name], SqlitePlace(tmp_path), every=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_after_any_statement_leaves_nothing_half_done_on_postgres(
    name: str, emptied: PostgresPlace
) -> None:
    check(SCENARIOS[name], emptied, every=False)  # the server undoes what was not committed


@pytest.fixture(scope="module")
def emptied(postgres: str) -> Iterator[PostgresPlace]:
    """Give one database for all scenarios: emptying it is cheaper than making another."""
    backend = PostgresBackend(postgres)
    with asyncio.Runner() as runner:
        runner.run(backend.__aenter__())
        place = PostgresPlace(backend.url, runner)
        yield place
        runner.run(place.store.close())
        runner.run(backend.__aexit__(None, None, None))


def test_every_operation_that_writes_has_a_scenario() -> None:
    ports: list[type] = [SqlJournal, SqlWaits, SqlRuns, SqlWorkers, SqlProcesses, SqlTriggers]
    ports += [SqlContents, SqlSessions, SessionDeletion, SqlExports]
    operations = {
        name for port in ports for name, what in vars(port).items() if hasattr(what, "__wrapped__")
    }
    reads = {
        "entry",
        "read",
        "look",
        "listed",
        "generation",
        "get",
        "next_due",
        "_others",
        "has_any",
    }
    reads |= {"timeline", "wake_seqs", "owned_by", "ended_elsewhere", "_old", "_ready"}
    reads |= {"resume", "turn", "turns", "nodes", "uncommitted", "queued", "asked_to_end"}
    reads |= {"results", "states", "blocked", "current", "played", "_generation", "check_visible"}
    reads |= {
        "unreceived",
        "cancel_reason",
        "view",
        "signal_waits",
        "outputs",
        "known",
        "events",
        "grants",
    }
    covered = {name.split(":")[0] for name in SCENARIOS}
    by_hand = {"record", "begin_sleep", "start", "settle", "perform", "submit", "claim", "emit"}
    by_hand |= {"_enqueue"}
    counting = {
        "wake",
        "begin_trials",
        "dispatch",
    }  # one statement that adds 1: done again, it adds another
    assert covered == (operations - reads - counting) | by_hand
