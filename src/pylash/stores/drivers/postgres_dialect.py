"""The PostgreSQL dialect of the shared SQL."""

from __future__ import annotations

from functools import lru_cache

# A volatile function in a comparison would prevent the use of an index; a scalar subquery is evaluated once.
_NOW = (
    "(select coalesce(nullif(current_setting('pylash.now', true), '')::bigint,"
    " (extract(epoch from clock_timestamp()) * 1000000)::bigint))"
)
_REPLACEMENTS = {
    "{now}": _NOW,
    "{share}": "for share",
    "{update}": "for update",
    "{skip}": "for update skip locked",
    "{least}": "least",
    "{greatest}": "greatest",
    "{texts}": "select unnest(?::text[])",
    "{bigints}": "select unnest(?::bigint[])",
    "{lock_migrations}": "select pg_advisory_xact_lock(7236125814)",
    "{has_meta}": "select 1 where to_regclass('pylash_meta') is not null",
    "{columns}": (
        "select c.relname::text, a.attname::text from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relname like 'pylash\\_%' and c.relkind = 'r' and pg_table_is_visible(c.oid)"
        " and a.attnum > 0 and not a.attisdropped"
    ),
    "{next_session_number}": "select nextval('pylash_session_numbers')",
    "{id}": "bigint primary key",
    "{blob}": "bytea",
    "{lines}": "string_agg(n.body, '\\x0a'::bytea)",
    "{postgres_only}": "",
    "{from}": "~>=~",
    "{below}": "~<~",
    "{by_bytes}": "using ~<~",
}


@lru_cache(maxsize=512)
def dialect(sql: str) -> str:
    """Replace the names in braces, and number the parameters."""
    if "{sqlite_only}" in sql:
        return "select 1"
    for name, text in _REPLACEMENTS.items():
        sql = sql.replace(name, text)
    first, *rest = sql.split("?")
    return first + "".join(f"${n}{part}" for n, part in enumerate(rest, 1))
