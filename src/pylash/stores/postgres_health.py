"""Health checks of a PostgreSQL server, and of a pooler in front of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import asyncpg

from pylash.durable.ports import Clock, Entropy
from pylash.durable.runs import SECOND
from pylash.stores.drivers.postgres import BAD_PORT
from pylash.stores.drivers.postgres_connections import SETTINGS
from pylash.stores.drivers.postgres_listener import COMMAND_SECONDS, CONNECT_SECONDS, LOST
from pylash.values.errors import StoreUrlInvalid
from pylash.values.findings import Finding
from pylash.values.secrets import hide_secrets, url_secrets

NOTIFY_SECONDS: Final = 3.0
SKEW_SECONDS: Final = 1.0
OLDEST: Final = 130_000
ASKS: Final = 5

_DIRECTLY = "connect to PostgreSQL itself, or to a pooler in session mode"


async def server(url: str, clock: Clock, entropy: Entropy) -> list[Finding]:
    """Return the findings about a server."""
    async with AsyncExitStack() as stack:
        try:
            one = await _connected(stack, url)
            two = await _connected(stack, url)
        except asyncpg.PostgresError as error:
            text = f"PostgreSQL refused the connection ({_hidden(error, url)})"
            return [Finding("store", "fail", text, "check the database, the user and the password")]
        except LOST as error:
            text = f"PostgreSQL cannot be reached ({_hidden(error, url)})"
            return [Finding("store", "fail", text, "check the URL, and that the server runs")]
        except ValueError:
            return [Finding("store", "fail", StoreUrlInvalid(url, BAD_PORT).message)]
        return [
            await _version(one),
            await _role(one),
            await _durability(one),
            await _privileges(one),
            await _settings(url),
            await _pooling(one, two, entropy),
            await _clock(one, clock),
        ]


def _hidden(error: BaseException, url: str) -> str:
    return hide_secrets(str(error), url_secrets(url)) or type(error).__name__


async def _connected(stack: AsyncExitStack, url: str, **settings: Any) -> Any:
    # Without prepared statements, which fail behind a pooler: the checks report the pooler instead.
    connection = await asyncpg.connect(
        url,
        timeout=CONNECT_SECONDS,
        command_timeout=COMMAND_SECONDS,
        statement_cache_size=0,
        **settings,
    )
    stack.push_async_callback(connection.close, timeout=CONNECT_SECONDS)
    return connection


async def _version(link: Any) -> Finding:
    number = int(await link.fetchval("show server_version_num"))
    name = f"PostgreSQL {await link.fetchval('show server_version')}"
    if number < OLDEST:
        return Finding("store", "fail", f"{name} is too old", "use version 13 or later")
    return Finding(
        "store", "ok", f"{name}, database {await link.fetchval('select current_database()')}"
    )


async def _role(link: Any) -> Finding:
    if await link.fetchval("select pg_is_in_recovery()"):
        return Finding(
            "role", "fail", "the server is a read-only replica", "use the URL of the primary"
        )
    if await link.fetchval("show default_transaction_read_only") == "on":
        return Finding("role", "fail", "transactions are read-only", "use a role that may write")
    return Finding("role", "ok", "primary")


async def _durability(link: Any) -> Finding:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        if await link.fetchval(f"show {setting}") == "off":
            text = f"{setting} is off: a crash of the server may lose committed data"
            return Finding("durability", "warn", text, f"turn {setting} on")
    return Finding("durability", "ok", "commits are on disk before they are acknowledged")


async def _privileges(link: Any) -> Finding:
    if await link.fetchval("select to_regclass('pylash_runs') is null"):
        may = await link.fetchval("select has_schema_privilege(current_schema(), 'CREATE')")
        needed = "to create tables in the schema"
    else:
        may = await link.fetchval(
            "select has_table_privilege('pylash_runs', 'SELECT')"
            " and has_table_privilege('pylash_runs', 'INSERT')"
            " and has_table_privilege('pylash_runs', 'UPDATE')"
            " and has_table_privilege('pylash_effects', 'DELETE')"
            " and coalesce(has_sequence_privilege(to_regclass('pylash_session_numbers'), 'USAGE'), true)"
        )
        needed = "to read and write the tables of pylash"
    if not may:
        return Finding("permissions", "fail", f"no permission {needed}", "grant it to your role")
    return Finding("permissions", "ok", f"permission {needed}")


async def _settings(url: str) -> Finding:
    """Connect as a worker does: some poolers refuse its settings."""
    async with AsyncExitStack() as stack:
        try:
            await _connected(stack, url, server_settings=SETTINGS)
        except (asyncpg.PostgresError, *LOST) as error:
            text = f"the settings of a worker are refused ({_hidden(error, url)})"
            return Finding("settings", "fail", text, _DIRECTLY)
    return Finding("settings", "ok", "a worker can connect with its settings")


async def _pooling(one: Any, two: Any, entropy: Entropy) -> Finding:
    """Check whether a connection is a session: notifications and locks depend on it."""
    pids = {await one.fetchval("select pg_backend_pid()") for _ in range(ASKS)}
    if len(pids) > 1:
        text = "statements of one connection run in several sessions: there is a pooler in transaction mode"
        return Finding("pooling", "fail", text, _DIRECTLY)
    key = int.from_bytes(entropy(7), "big")
    held = await one.fetchval("select pg_try_advisory_lock($1)", key)
    if not held or await two.fetchval("select pg_try_advisory_lock($1)", key):
        text = "two connections can hold the same lock: a pooler shares sessions"
        return Finding("pooling", "fail", text, _DIRECTLY)
    if not await _receives_notification(one, two, f"pylash_doctor_{entropy(6).hex()}"):
        text = "notifications do not arrive: a pooler drops LISTEN, and workers would only poll"
        return Finding("pooling", "fail", text, _DIRECTLY)
    return Finding("pooling", "ok", "connections are sessions: notifications and locks work")


async def _receives_notification(one: Any, two: Any, channel: str) -> bool:
    received = asyncio.Event()

    def on_notification(*_: Any) -> None:
        received.set()

    await one.add_listener(channel, on_notification)
    await two.execute(f"notify {channel}")
    with suppress(TimeoutError):
        async with asyncio.timeout(NOTIFY_SECONDS):
            await received.wait()
    await one.remove_listener(channel, on_notification)
    return received.is_set()


async def _clock(link: Any, clock: Clock) -> Finding:
    before = clock.now()
    theirs = await link.fetchval("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
    skew = (theirs - (before + clock.now()) / 2) / SECOND
    if abs(skew) > SKEW_SECONDS:
        ahead = "ahead of" if skew > 0 else "behind"
        text = f"the database's clock is {abs(skew):,.1f} s {ahead} this machine's"
        return Finding("clock skew", "warn", text, "set both by NTP")
    return Finding("clock skew", "ok", f"{skew * 1000:+.0f} ms to the database's clock")
