"""A store: the operations of every port on one database.

Rule 1. A database that needs newer code is refused before anything is written.
Rule 2. An older database is migrated without losing a row: SQLite when it is opened, PostgreSQL on
        request, because other workers may be using it.
Rule 3. Opening with ``migrate=False`` creates nothing: no file, no table, no row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from pylash.durable.ports import Clock, DurabilityTier, Entropy
from pylash.stores.inspection import SqlInspection
from pylash.stores.migrations import META, MIGRATIONS, SCHEMA, columns
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.ports.exports import SqlExports
from pylash.stores.ports.journal import SqlJournal
from pylash.stores.ports.processes import SqlProcesses
from pylash.stores.ports.runs import SqlRuns
from pylash.stores.ports.sessions import SqlSessions
from pylash.stores.ports.triggers import SqlTriggers
from pylash.stores.tables.contents import (
    GET_ATTACHMENT,
    GET_ENV,
    PUT_ATTACHMENT,
    PUT_ENV,
    SqlContents,
)
from pylash.stores.tables.turn_events import SqlTurnEvents
from pylash.stores.tables.waits import SqlWaits
from pylash.stores.tables.workers import LockingDriver, SqlWorkers
from pylash.values.errors import (
    ExtraMissing,
    StoreRefused,
    StoreSchemaOutdated,
    StoreSchemaTooNew,
    StoreSchemaUnknown,
    StoreUrlInvalid,
)

T = TypeVar("T")

_HAS_META = "{has_meta}"
_LOCK_MIGRATIONS = "{lock_migrations}"
_READ_META = "select name, value from pylash_meta"
_SET_META = """
insert into pylash_meta(name, value) values (?, ?)
on conflict (name) do update set value = excluded.value"""
_COLUMNS = "{columns}"
_SECRET_BYTES = 32


class StoreDriver(LockingDriver, Protocol):
    """The interface of a driver that a store uses."""

    async def open(self) -> None:
        """Connect."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call listener with each topic that a commit publishes; return a function that stops it."""
        ...


class ReadOnlyDriver:
    """Passes reads on to another driver, and refuses every operation that may write."""

    def __init__(self, inner: StoreDriver) -> None:
        self.open, self.close, self.subscribe = inner.open, inner.close, inner.subscribe
        self.locks = inner.locks
        self._inner = inner

    def run(self, operation: Operation[T]) -> Awaitable[T]:
        """Run a read. Raises StoreRefused for anything else."""
        if not operation.read_only:
            raise StoreRefused(
                f"The store is open for reading only, so {operation.name!r} was refused and nothing was written."
            )
        return self._inner.run(operation)


class SqlStore:
    """An open database and its ports."""

    def __init__(
        self,
        driver: StoreDriver,
        clock: Clock,
        entropy: Entropy,
        durability: DurabilityTier,
        secret: bytes,
    ) -> None:
        self.driver = driver
        self.durability = durability
        self.secret = secret
        self.journal = SqlJournal(driver, clock, entropy)
        self.waits = SqlWaits(driver)
        self.runs = SqlRuns(driver, clock, entropy)
        self.workers = SqlWorkers(driver)
        self.processes = SqlProcesses(driver, clock, entropy)
        self.triggers = SqlTriggers(driver, clock, entropy)
        self.envs = SqlContents(driver, PUT_ENV, GET_ENV)
        self.attachments = SqlContents(driver, PUT_ATTACHMENT, GET_ATTACHMENT)
        self.sessions = SqlSessions(driver, clock, entropy)
        self.turn_events = SqlTurnEvents(driver)
        self.inspection = SqlInspection(driver)
        self.exports = SqlExports(driver, clock, entropy)
        for port in (self.processes, self.triggers, self.envs, self.attachments, self.sessions):
            port.durability = durability

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call listener with a topic after changes; return a function that stops it."""
        return self.driver.subscribe(listener)

    async def close(self) -> None:
        """Finish the operations that were submitted, then close."""
        await self.driver.close()


async def open_store(
    url: str,
    *,
    clock: Clock,
    entropy: Entropy,
    migrate: bool | None = None,
    simulated: bool = False,
    read_only: bool = False,
) -> SqlStore:
    """Open the store at url.

    ``migrate``: None migrates SQLite and sets up an empty PostgreSQL database, True also migrates an
    older PostgreSQL database, False does neither. ``simulated``: PostgreSQL uses the time of clock, for tests.
    ``read_only``: every operation that may write is refused, and nothing is migrated.
    """
    if read_only:
        migrate = False
    scheme, rest = _parse_url(url)
    match scheme:
        case "memory":
            driver: StoreDriver = _sqlite(None, clock, entropy)
            durability, always, migrate = DurabilityTier.INLINE, True, None
        case "sqlite":
            if migrate is False:
                await asyncio.to_thread(_refuse_missing, Path(rest))
            driver = _sqlite(Path(rest), clock, entropy)
            durability, always = DurabilityTier.DURABLE, True
        case _:
            driver = _postgres(url, clock if simulated else None, entropy)
            durability, always = DurabilityTier.DURABLE, migrate is True
    await driver.open()
    try:
        if migrate is False:
            secret = await driver.run(Operation("look", _look, read_only=True))
        else:
            migrating = partial(_migrate, entropy, always=always)
            secret = await driver.run(Operation("migrate", migrating, heavy=True))
    except BaseException:
        await driver.close()
        raise
    if read_only:
        driver = ReadOnlyDriver(driver)
    return SqlStore(driver, clock, entropy, durability, secret)


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite url, or None for any other url."""
    scheme, rest = _parse_url(url)
    return Path(rest) if scheme == "sqlite" else None


async def schema_of(url: str, *, clock: Clock, entropy: Entropy) -> tuple[int, int]:
    """Return the schema of the database at url, 0 if it is not set up, and the oldest code that may use it."""
    scheme, rest = _parse_url(url)
    if scheme == "sqlite":
        await asyncio.to_thread(_refuse_missing, Path(rest))
        driver = _sqlite(Path(rest), clock, entropy)
    else:
        driver = _postgres(url, None, entropy)
    await driver.open()
    try:
        meta = await driver.run(Operation("look", _meta, read_only=True))
    finally:
        await driver.close()
    return int(meta.get("schema", 0)), int(meta.get("min_code", 0))


def _parse_url(url: str) -> tuple[str, str]:
    """Return the scheme of url and the rest of it, or raise StoreUrlInvalid."""
    scheme, separator, rest = str(url).partition("://")
    reason = None
    if not separator:
        reason = "has no scheme"
    elif scheme == "memory":
        reason = "takes no path" if rest else None
    elif scheme == "sqlite":
        reason = _file_trouble(rest)
        rest = rest[1:]
    elif scheme not in ("postgresql", "postgres"):
        reason = f"has the unknown scheme {scheme!r}"
    if reason is not None:
        raise StoreUrlInvalid(str(url), reason)
    return scheme, rest


def _file_trouble(rest: str) -> str | None:
    if not rest.startswith("/"):
        return "needs three slashes before the file" if rest else "names no file"
    if not rest[1:]:
        return "names no file"
    if rest == "/:memory:":
        return "names no file, and 'memory://' is the store in memory"
    return "takes no options" if "?" in rest else None


def _sqlite(path: Path | None, clock: Clock, entropy: Entropy) -> StoreDriver:
    from pylash.stores.drivers.sqlite import SqliteDriver  # noqa: PLC0415 - loaded only if it is used

    return SqliteDriver(path, clock, entropy)


def _postgres(url: str, clock: Clock | None, entropy: Entropy) -> StoreDriver:
    try:
        from pylash.stores.drivers.postgres import PostgresDriver  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ExtraMissing("A PostgreSQL store", "postgres") from error
    return PostgresDriver(url, clock, entropy)


def _refuse_missing(path: Path) -> None:
    from pylash.stores.drivers.sqlite_files import refuse_missing  # noqa: PLC0415 - loaded only if it is used

    refuse_missing(path)


def _meta() -> Steps[dict[str, str]]:
    """Return the meta table of the database; it is empty if the database was never set up."""
    if not (yield Statement(_HAS_META)).rows:
        return {}
    return dict((yield Statement(_READ_META)).rows)


def _check_columns(schema: int) -> Steps[None]:
    """Refuse a database that lacks columns of its schema.

    Development versions edited migrations, so their stores can have the number of a schema without all its columns.
    """
    found = set((yield Statement(_COLUMNS)).rows)
    for table, column in sorted(columns(min(schema, SCHEMA)) - found):
        raise StoreSchemaUnknown(schema, table, column)


def _look() -> Steps[bytes]:
    """Return the secret of a database; refuse a database that this code cannot use without a migration."""
    meta = yield from _meta()
    schema, min_code = int(meta.get("schema", 0)), int(meta.get("min_code", 0))
    if min_code > SCHEMA:
        raise StoreSchemaTooNew(min_code, SCHEMA)
    yield from _check_columns(schema)
    if schema < SCHEMA or "secret" not in meta:
        raise StoreSchemaOutdated(schema, SCHEMA)
    return bytes.fromhex(meta["secret"])


def _migrate(entropy: Entropy, *, always: bool) -> Steps[bytes]:
    """Migrate the database if that is allowed; return its secret."""
    yield Statement(_LOCK_MIGRATIONS)
    yield Statement(META)
    meta = dict((yield Statement(_READ_META)).rows)
    schema, min_code = int(meta.get("schema", 0)), int(meta.get("min_code", 0))
    if min_code > SCHEMA:
        raise StoreSchemaTooNew(min_code, SCHEMA)
    yield from _check_columns(schema)
    if schema < SCHEMA:
        if not (always or schema == 0):
            raise StoreSchemaOutdated(schema, SCHEMA)
        for migration in MIGRATIONS[schema:]:
            for statement in migration.statements:
                yield Statement(statement)
            min_code = max(min_code, migration.min_code)
        yield Statement(_SET_META, ("schema", str(SCHEMA)))
        yield Statement(_SET_META, ("min_code", str(min_code)))
    if "secret" not in meta:
        meta["secret"] = entropy(_SECRET_BYTES).hex()
        yield Statement(_SET_META, ("secret", meta["secret"]))
    return bytes.fromhex(meta["secret"])
