"""Queries of a working app use an index, however many ended runs the store has."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessContext, WorkerConfig
from pylash.stores.drivers.sqlite import SqliteDriver
from pylash.stores.drivers.sqlite_connections import plain
from pylash.stores.drivers.sqlite_dialect import dialect
from pylash.stores.operation import Operation, Statement, Steps
from pylash.testing import ScriptedModel, call, say
from tests.backends import SqliteBackend, eventually

SMALL = {"pylash_workers", "pylash_meta"}
"""Tables that stay small: a row for each worker that is alive."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """Every statement that operations ask while the test runs, with some parameters."""
    found: dict[str, tuple[Any, ...]] = {}
    run = SqliteDriver.run

    def watched(steps: Steps[Any]) -> Steps[Any]:
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(step, Statement):
                found.setdefault(step.sql, step.params)
            answer = yield step

    def watching(driver: SqliteDriver, operation: Operation[Any]) -> Awaitable[Any]:
        steps = operation.steps
        operation.steps = lambda: watched(steps())
        return run(driver, operation)

    monkeypatch.setattr(SqliteDriver, "run", watching)
    return found


def walks(connection: sqlite3.Connection, sql: str, params: tuple[Any, ...]) -> Iterator[str]:
    """Return the tables that a statement goes through from one end to the other."""
    plan = connection.execute(f"explain query plan {dialect(sql)}", plain(params)).fetchall()
    for *_, line in plan:
        walked = re.fullmatch(r"SCAN (?:TABLE )?(\w+)(?: AS \w+)?", line)
        if walked is not None:
            names = {
                alias: table for table, alias in re.findall(r"(pylash_\w+) (?:as )?(\w)\b", sql)
            }
            yield str(names.get(walked[1], walked[1]))


async def test_nothing_is_found_by_going_through_a_table(
    tmp_path: Path, asked: dict[str, tuple[Any, ...]]
) -> None:
    sqlite = SqliteBackend(tmp_path)
    app = Lash(
        sqlite.url,
        model=ScriptedModel([call("pay", cents=5), say("Paid."), say("And this."), say("Awake.")]),
        worker=WorkerConfig(park_after="1ms"),
    )

    @app.tool(approval=True)
    async def pay(cents: int) -> int:
        return cents

    async def double(n: int) -> int:
        return 2 * n

    @app.process
    async def child(ctx: ProcessContext[None], n: int) -> int:
        await ctx.sleep("1ms")
        return await ctx.step(double, n)

    @app.process
    async def parent(ctx: ProcessContext[None]) -> int:
        one = await ctx.start(child, 1)
        heard = await ctx.wait_signal("go", timeout="10s")
        first, second = await ctx.gather(one.result(), ctx.step(double, 2))
        await ctx.emit("told", {"n": first})
        return int(first + second + heard["n"])

    async with app:
        asked.clear()  # opening may take its time, and so may closing
        handle = await app.start(parent.options(id="p"))
        await handle.signal("go", {"n": 1})
        assert await handle.result(timeout="10s") == 7
        stopped = await app.start(parent.options(id="q"))
        await stopped.cancel()
        async with app.session("chat").stream("Pay.") as turn:
            await eventually(lambda: app.waits(session_id="chat"))
            await app.session("chat").enqueue("And then this.")
            (wait,) = await app.waits(session_id="chat")
            await app.resolve(wait.key, True)
            assert [event async for event in turn]
        statements = dict(asked)
    with closing(sqlite3.connect(sqlite.path)) as connection:
        connection.create_function("pylash_now", 0, lambda: 0)
        walked = {
            table: sql
            for sql, params in statements.items()
            for table in walks(connection, sql, params)
            if table.startswith("pylash_") and table not in SMALL
        }
    assert walked == {}
