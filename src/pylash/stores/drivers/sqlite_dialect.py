"""The SQLite dialect of the shared SQL."""

from __future__ import annotations

from functools import lru_cache

_REPLACEMENTS = {
    "{now}": "(select pylash_now())",  # evaluated once per statement: it calls Python
    "{share}": "",
    "{update}": "",
    "{skip}": "",
    "{least}": "min",
    "{greatest}": "max",
    "{texts}": "select value from json_each(?)",
    "{bigints}": "select value from json_each(?)",
    "{lock_migrations}": "select 1",
    "{has_meta}": "select 1 from sqlite_master where name = 'pylash_meta'",
    "{columns}": (
        "select m.name, c.name from sqlite_master m join pragma_table_info(m.name) c"
        " where m.type = 'table' and m.name like 'pylash_%'"
    ),
    "{next_session_number}": (
        "insert into pylash_lanes(lane, last_seq) values ('sessions', 1)"
        " on conflict (lane) do update set last_seq = last_seq + 1 returning last_seq"
    ),
    "{id}": "integer primary key",
    "{blob}": "blob",
    "{lines}": "cast(group_concat(n.body, char(10)) as blob)",
    "{sqlite_only}": "",
    "{from}": ">=",
    "{below}": "<",
    "{by_bytes}": "",
}


@lru_cache(maxsize=512)
def dialect(sql: str) -> str:
    """Replace the names in braces."""
    if "{postgres_only}" in sql:
        return "select 1"
    for name, text in _REPLACEMENTS.items():
        sql = sql.replace(name, text)
    return sql
