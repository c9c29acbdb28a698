"""``schema.sql`` shows the tables as the migrations make them."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pylash.stores
from pylash.stores.drivers.sqlite_dialect import dialect
from pylash.stores.migrations import META, MIGRATIONS

SCHEMA = Path(pylash.stores.__path__[0]) / "schema.sql"


def described(statements: list[str]) -> dict[str, Any]:
    """Return the columns, constraints and indexes that statements make, by the names of their tables."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        tables = connection.execute(
            "select name from sqlite_master where type = 'table'"
        ).fetchall()
        return {name: _table(connection, name) for (name,) in tables}


def _table(connection: sqlite3.Connection, name: str) -> dict[str, Any]:
    def rows(sql: str) -> list[Any]:
        return connection.execute(sql, (name,)).fetchall()

    columns = rows("select name, lower(type), [notnull], dflt_value, pk from pragma_table_info(?)")
    unique = rows("""select l.[unique], l.origin, group_concat(i.name) from pragma_index_list(?) l,
        pragma_index_info(l.name) i where l.origin <> 'c' group by l.name order by 2, 3""")
    without_rowid = rows(
        "select sql like '%without rowid' from sqlite_master where type = 'table' and name = ?"
    )
    made = rows("select sql from sqlite_master where type = 'index' and tbl_name = ? and sql <> ''")
    indexes = sorted(re.sub(r"\s+", " ", sql).lower() for (sql,) in made)
    return {"columns": columns, "unique": unique, "rows": without_rowid, "indexes": indexes}


def test_the_schema_shows_what_the_migrations_make() -> None:
    migrations = [META, *(sql for migration in MIGRATIONS for sql in migration.statements)]
    shown = [sql for sql in SCHEMA.read_text().split(";\n") if sql.strip()]
    assert described(shown) == described([dialect(sql) for sql in migrations])


def test_every_column_of_runs_and_lanes_is_explained() -> None:
    text = SCHEMA.read_text()
    for table in ("pylash_runs", "pylash_lanes"):
        body = re.search(rf"create table {table}\((.*?)\n\)", text, re.DOTALL)
        assert body is not None
        lines = body[1].strip().splitlines()
        after = zip(["", *lines], lines, strict=False)
        assert [two for one, two in after if "--" not in two and "--" not in one] == []
