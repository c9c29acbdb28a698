"""A store of every earlier schema continues where it stopped, or is refused with a clear error."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from pathlib import Path

import asyncpg
import pytest

from pylash import Lash, ProcessContext, StoreSchemaUnknown
from pylash.durable.scopes import ProcessScope
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.drivers.sqlite_dialect import dialect
from pylash.stores.migrations import MIGRATIONS, SCHEMA, columns
from pylash.stores.store import open_store
from pylash.testing import ScriptedModel, say
from tests.backends import PostgresBackend, SqliteBackend

FIXTURES = Path(__file__).parents[1] / "fixtures"
VARIANTS = sorted(path.stem for path in FIXTURES.glob("schema-*-*.sql"))
"""Stores that code of the past made; those of one number differ, for migrations were once edited."""

REFUSED = {
    "schema-1-31df709": "pylash_waits has no column token",
    "schema-3-62d5f32": "pylash_lanes has no column calls",
    "schema-3-c74ce3e": "pylash_lanes has no column number",
    "schema-3-5dc500b": "pylash_lanes has no column number",
}

PUBLISHED = {
    1: "ce1112a0b61e885a9b5de0adbd10706ceb7978f70faa433c16c37e602bc54bec",
    2: "232c20496998a815b13787093457b49890a6e23dc056ff09c7b6fc52cb38d5d3",
    3: "469dcddbdf0c4144c7822850e465b8f5afbea85463fe7153f29a05961b71e6be",
    4: "9e84678b84e8958891ef8afa33ad7000dbcda2030a8471c85d368df4234a4f06",
    5: "0043023aed30875e543c47fb3f2d8562336f75f5d79f6c098c9b79776e10890f",
    6: "7747e811fadd905a22472c69992a2ce810a0b8ef13fc1cd57b8fe26464b0f228",
    7: "9787128b4ef28718a6256f939b5988b9a8fd86874b8f3501eedeaf0d4e724252",
    8: "5e8ef9056162c44d4edb14ff96585e971cccd6afcf517af412253d43cf79b9a3",
    9: "a2dfeadbfd3acdd90d62583b61fe84182ea4272672f4d49b1e7a9abeabd72773",
}
"""The digests of what was published: from then on a migration is never edited, and a change is a new one."""


def restored(name: str, folder: Path) -> str:
    """Return the URL of a store that was made in the past."""
    backend = SqliteBackend(folder)
    connection = sqlite3.connect(backend.path)
    connection.executescript((FIXTURES / f"{name}.sql").read_text())
    connection.close()
    return backend.url


def shop(url: str) -> Lash:
    app = Lash(url, model=ScriptedModel(lambda _: say("It ships tomorrow.")))

    async def fetch(n: int) -> int:
        raise AssertionError("it was recorded")

    @app.process
    async def order(ctx: ProcessContext[None], n: int) -> int:
        first = await ctx.step(fetch, n)
        paid = await ctx.wait_signal("paid")
        return int(first + paid["cents"])

    return app


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in REFUSED])
async def test_what_waits_in_an_old_store_goes_on(name: str, tmp_path: Path) -> None:
    schema = int(name.split("-")[1])
    url = restored(name, tmp_path)
    if schema == 1:
        store = await open_store(url, clock=SystemClock(), entropy=system_entropy)
        run = await store.runs.get(ProcessScope("order-7"))
        assert run is not None
        entry = await store.journal.entry(run.id, "fetch")
        assert entry is not None
        assert b'"value":2' in (entry.outcome or b"")
        assert [wait.title for wait in await store.waits.listed()] == ["Refund?"]
        await store.close()
        return
    async with shop(url) as app:
        handle = app.process_handle("order-7")
        await handle.signal("paid", {"cents": 5})
        assert await handle.result(timeout="10s") == 7
        assert [view.id for view in await app.processes()] == ["order-7"]
        session = app.session("chat-42")
        result = await session.turn("And order 8?", turn_id="t2", timeout="10s")
        assert result.text == "It ships tomorrow."
        said = [message.text for message in await session.history()]
        before = ["Where is order 7?", "It ships today."] if schema >= 3 else []
        assert said == [*before, "And order 8?", "It ships tomorrow."]


@pytest.mark.parametrize("name", REFUSED)
async def test_a_store_that_cannot_be_read_is_refused_in_one_sentence(
    name: str, tmp_path: Path
) -> None:
    url = restored(name, tmp_path)
    path = Path(url.removeprefix("sqlite:///"))
    for migrate in (None, True, False):
        with pytest.raises(StoreSchemaUnknown) as caught:
            await open_store(url, clock=SystemClock(), entropy=system_entropy, migrate=migrate)
        schema = name.split("-")[1]
        assert caught.value.code == "store_schema_unknown"
        assert f"claims schema {schema}" in caught.value.message
        assert REFUSED[name] in caught.value.message
    with sqlite3.connect(path) as connection:
        (recorded,) = connection.execute("select value from pylash_meta where name = 'schema'")
    assert recorded == (schema,), "nothing was migrated"


async def test_postgres_is_compared_with_its_schema_as_well(postgres: str) -> None:
    async with PostgresBackend(postgres) as backend:
        await (await backend.store()).close()
        connection = await asyncpg.connect(backend.url)
        await connection.execute("alter table pylash_lanes drop column streak")
        await connection.close()
        for migrate in (None, True, False):
            with pytest.raises(StoreSchemaUnknown, match="pylash_lanes has no column streak"):
                await backend.store(migrate=migrate)


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_the_columns_of_a_schema_are_those_that_its_migrations_make(schema: int) -> None:
    connection = sqlite3.connect(":memory:")
    for migration in MIGRATIONS[:schema]:
        for statement in migration.statements:
            connection.execute(dialect(statement))
    made = connection.execute(
        "select m.name, c.name from sqlite_master m join pragma_table_info(m.name) c where m.type = 'table'"
    )
    assert columns(schema) - {("pylash_meta", "name"), ("pylash_meta", "value")} == set(made)
    connection.close()


def test_no_published_migration_is_edited() -> None:
    found = {
        number: hashlib.sha256("\0".join(map(_plain, migration.statements)).encode()).hexdigest()
        for number, migration in enumerate(MIGRATIONS, 1)
    }
    assert found == PUBLISHED, "write a new migration, and add its digest and a store of its schema"


def _plain(statement: str) -> str:
    return re.sub(r"\s+", " ", statement)
