"""Query plans in a store with many ended runs: no statement scans a whole table of them."""

from __future__ import annotations

import ast
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import pylash.stores
from pylash.stores.drivers import postgres_dialect
from pylash.stores.drivers.sqlite_dialect import dialect
from pylash.stores.tables.bulk import SETTLE_MANY, START_MANY
from tests.backends import PostgresBackend, SqliteBackend
from tests.stores.history import SMALL, filling, statements

FROM_THE_NEWEST = {
    "inspection.RUNS[0]",
    "inspection.PROCESS_RUNS[0]",
    "inspection._NEWEST",
    "inspection._PROCESSES_LIKE",
    "inspection._TURNS_LIKE",
    "inspection._TURNS_OF_LANE_LIKE",
}
"""Statements that go back from the newest row and stop: ``test_lists`` sees that they do."""

OF_EXPORTS = {
    "ports.exports._TURNS",
    "ports.exports._WAITS_OF_SCOPE",
    "ports.exports._WAITS_OF_SESSION",
}
"""Statements of exports, which a person makes now and then. An index for them would slow down every write of a wait or a turn."""

OF_THE_OPEN = {
    "pylash_runs_at",
    "pylash_runs_open",
    "pylash_waits_open",
    "pylash_waits_session",
    "pylash_effects_signals",
    "pylash_triggers_match",
}
"""Indexes that hold nothing that is over: they may be read as a whole."""


def test_every_statement_is_a_constant_of_its_module() -> None:
    made = []
    for path in Path(pylash.stores.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Statement":
                inside = ast.walk(node.args[0])
                if any(isinstance(part, ast.Constant) for part in inside):
                    made.append(f"{path.name}: {ast.unparse(node)}")
    assert made == []
    assert len(statements()) > 200  # else the tests below look in the wrong folders


# --- SQLite ---


@pytest.mark.parametrize("analyzed", [False, True], ids=["plain", "analyzed"])
async def test_no_statement_reads_the_past_on_sqlite(tmp_path: Path, *, analyzed: bool) -> None:
    backend = SqliteBackend(tmp_path)
    async with backend:
        await backend.store()
    scans = {}
    with closing(sqlite3.connect(backend.path)) as connection:
        connection.create_function("pylash_now", 0, lambda: 0)
        for sql in filling(1_000):
            connection.execute(dialect(sql))
        if analyzed:
            connection.execute("analyze")
        for name, sql in statements().items():
            if re.search(r"unnest|\$1|::", sql):  # PostgreSQL's own
                continue
            if found := list(_scanned(connection, sql)):
                scans[name] = found
    allowed = FROM_THE_NEWEST | OF_EXPORTS
    assert {name: found for name, found in scans.items() if name not in allowed} == {}


def _scanned(connection: sqlite3.Connection, sql: str) -> Iterator[str]:
    """Return the steps of a plan that go through rows of the past."""
    text = dialect(sql)
    nothing = (None,) * text.count("?")
    plan = connection.execute(f"explain query plan {text}", nothing).fetchall()
    for *_, line in plan:
        walked = re.match(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?", line)
        if walked is None or walked[2] in OF_THE_OPEN:
            continue
        names = {alias: table for table, alias in re.findall(r"pylash_(\w+) (?:as )?(\w)\b", text)}
        table = str(names.get(walked[1], walked[1])).removeprefix("pylash_")
        if table not in SMALL and _is_table(connection, table):
            yield line


def _is_table(connection: sqlite3.Connection, name: str) -> bool:
    asked = "select 1 from sqlite_master where type = 'table' and name = ?"
    return bool(connection.execute(asked, (f"pylash_{name}",)).fetchall())


# --- PostgreSQL ---


async def test_no_statement_reads_the_past_on_postgres(postgres: str) -> None:
    async with PostgresBackend(postgres) as backend:
        await backend.store()
        connection = await asyncpg.connect(
            backend.url, server_settings={"plan_cache_mode": "force_generic_plan"}
        )
        try:
            for sql in filling(20_000):
                await connection.execute(postgres_dialect.dialect(sql))
            await connection.execute("analyze")
            scans = {}
            for name, sql in statements().items():
                plan = await _plan(connection, sql)
                if found := list(_read(plan, newest=name in FROM_THE_NEWEST)):
                    scans[name] = found
            assert {name: found for name, found in scans.items() if name not in OF_EXPORTS} == {}
        finally:
            await connection.close()


@pytest.mark.parametrize("sql", [START_MANY, SETTLE_MANY])
async def test_a_plan_made_for_an_empty_store_is_good_for_a_full_one(
    postgres: str, sql: str
) -> None:
    """A connection keeps its plans until a table is analyzed; starts and ends come before that."""
    async with PostgresBackend(postgres) as backend:
        await backend.store()
        connection = await asyncpg.connect(
            backend.url, server_settings={"plan_cache_mode": "force_generic_plan"}
        )
        try:
            assert list(_read(await _plan(connection, sql), newest=False)) == []
        finally:
            await connection.close()


async def _plan(connection: Any, sql: str) -> Any:
    """Return how a statement is executed, whatever its parameters."""
    text = postgres_dialect.dialect(sql)
    await connection.execute(f"prepare asked as {text}")
    try:
        count = len(set(re.findall(r"\$(\d+)", text)))
        given = f"({', '.join(['null'] * count)})" if count else ""
        rows = await connection.fetchval(f"explain (format json) execute asked{given}")
        return json.loads(rows)[0]["Plan"]
    finally:
        await connection.execute("deallocate asked")


def _read(plan: dict[str, Any], *, newest: bool) -> Iterator[str]:
    """Return the parts of a plan that go through rows of the past."""
    kind, table = plan["Node Type"], plan.get("Relation Name", "").removeprefix("pylash_")
    index = plan.get("Index Name")
    if kind == "Seq Scan" and table not in SMALL:
        yield f"Seq Scan on {table}"
    elif index is not None and "Index Cond" not in plan and index not in OF_THE_OPEN:
        backward = plan.get("Scan Direction") == "Backward"
        if not (newest and backward):
            yield f"{kind} of all of {index}"
    for part in plan.get("Plans", ()):
        yield from _read(part, newest=newest)
