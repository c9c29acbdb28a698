"""Health checks of a store. They change nothing.

Rule 1. A check fails if the store will lose time, work or secrets; anything less is a warning.
Rule 2. Every check reports a finding, even if there is no problem.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from pylash.durable.ports import Clock, Entropy
from pylash.durable.runs import SECOND, RunState
from pylash.stores.drivers.sqlite_files import open_read_only
from pylash.stores.migrations import SCHEMA
from pylash.stores.store import SqlStore, open_store, schema_of, sqlite_path
from pylash.values.errors import LashError, StoreUrlInvalid
from pylash.values.findings import Finding

OVERDUE_SECONDS: Final = 60
COUNTED: Final = 1_000
"""How many blocked runs are counted at most."""
LITTLE_BYTES: Final = 100 * 1024 * 1024
FUTURE_SECONDS: Final = 5
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
OLDEST_SQLITE: Final = (3, 35, 0)
NETWORK: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "fuse.sshfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "vboxsf",
    }
)
"""File systems on which the locks of SQLite are not reliable."""


async def examine(url: str, *, clock: Clock, entropy: Entropy) -> list[Finding]:
    """Return the findings of all checks of a store."""
    try:
        path = sqlite_path(url)
    except StoreUrlInvalid as error:
        return [Finding("store", "fail", error.message)]
    if path is not None:
        findings = await asyncio.to_thread(_file, path)
    else:
        from pylash.stores.postgres_health import server  # noqa: PLC0415 - an extra

        findings = await server(url, clock, entropy)
    if any(finding.status == "fail" for finding in findings):
        return findings
    try:
        schema, min_code = await schema_of(url, clock=clock, entropy=entropy)
        findings.append(_schema(schema, min_code))
        if findings[-1].status == "fail":
            return findings
        store = await open_store(url, clock=clock, entropy=entropy, migrate=False)
    except LashError as error:
        return [*findings, Finding("store", "fail", error.message)]
    try:
        return [*findings, *await _work(store, clock)]
    finally:
        await store.close()


def _schema(schema: int, min_code: int) -> Finding:
    if min_code > SCHEMA:
        text = f"the database needs code for schema {min_code}, and this pylash supports {SCHEMA} at most"
        return Finding("schema", "fail", text, "upgrade pylash")
    if schema == 0:
        return Finding("schema", "fail", "the database is not set up", "run pylash migrate")
    if schema < SCHEMA:
        text = f"schema {schema}, and this pylash needs {SCHEMA}"
        return Finding("schema", "fail", text, "run pylash migrate")
    if schema > SCHEMA:
        text = f"schema {schema} is newer than {SCHEMA}, the newest schema of this pylash"
        return Finding("schema", "warn", text, "upgrade pylash on this machine too")
    return Finding("schema", "ok", f"schema {schema}")


# --- SQLite ---


def _file(path: Path) -> list[Finding]:
    """Return the findings about a SQLite file."""
    if not path.is_file():
        text = f"there is no file {str(path)!r}"
        return [Finding("store", "fail", text, "check the path, or start the app that creates it")]
    checks: tuple[Callable[[Path], Finding], ...] = (
        _readable,
        _private,
        _writable,
        _sqlite_version,
        _file_system,
        _disk,
    )
    return [check(path) for check in checks]


def _readable(path: Path) -> Finding:
    try:
        with closing(open_read_only(path)) as connection:
            mode = connection.execute("pragma journal_mode").fetchall()[0][0]
            connection.execute("select count(*) from sqlite_master").fetchall()
    except sqlite3.Error as error:
        return Finding(
            "store", "fail", f"{str(path)!r} cannot be read ({error})", "restore a backup"
        )
    size = f"{path.stat().st_size / 1e6:,.1f} MB"
    if mode != "wal":
        text = f"{str(path)!r} is in journal mode {mode}, not in WAL"
        return Finding("store", "warn", text, "let an app open it once")
    return Finding("store", "ok", f"{str(path)!r}, {size}, WAL")


def _private(path: Path) -> Finding:
    """Check whether other users may read the store, or remove the lock files of live workers."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        text = f"other users may open the file (mode {mode:o}): it holds messages and the secret of keys"
        return Finding("secrecy", "warn", text, f"chmod go-rwx {path}*")
    for suffix in ("-poke", "-workers"):
        beside = Path(f"{path.resolve()}{suffix}")
        if beside.exists() and (mode := stat.S_IMODE(beside.stat().st_mode)) & _OTHERS:
            text = f"other users may use {str(beside)!r} (mode {mode:o})"
            return Finding("secrecy", "warn", text, f"chmod go-rwx {beside}")
    return Finding("secrecy", "ok", "only its owner may open the file")


def _writable(path: Path) -> Finding:
    folder = path.resolve().parent
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(
            "permissions",
            "fail",
            "no permission to write the file",
            f"become its owner, or chmod u+rw {path}",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        text = f"no permission to write the folder {str(folder)!r}, which has the log of SQLite"
        return Finding("permissions", "fail", text, f"chmod u+wx {folder}")
    return Finding("permissions", "ok", "file and folder are writable")


def _sqlite_version(path: Path) -> Finding:  # noqa: ARG001 - one check of several
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        text = f"SQLite {sqlite3.sqlite_version} is too old"
        return Finding("SQLite", "fail", text, "use a Python with SQLite 3.35 or later")
    return Finding("SQLite", "ok", sqlite3.sqlite_version)


def _file_system(path: Path) -> Finding:
    kind = _kind_of_file_system(path)
    if kind in NETWORK:
        text = f"the file is on {kind}, where locks between machines are not reliable"
        return Finding("file system", "fail", text, "move it to a local disk, or use PostgreSQL")
    return Finding("file system", "ok", kind or "no network file system")


def _kind_of_file_system(path: Path) -> str | None:
    """Return the type of the file system of path, if the operating system reports it."""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return None
    where = path.resolve()
    best, kind = -1, None
    for line in mounts:
        _, mount, found, *_ = line.split(" ")
        at = Path(mount.encode().decode("unicode_escape"))
        if where.is_relative_to(at) and len(at.parts) >= best:
            best, kind = len(at.parts), found
    return kind


def _disk(path: Path) -> Finding:
    free = shutil.disk_usage(path.resolve().parent).free
    text = f"{free / 1e9:,.1f} GB free"
    if free < LITTLE_BYTES:
        return Finding(
            "disk", "warn", f"only {free / 1e6:,.0f} MB are free", "make room, or pylash prune"
        )
    return Finding("disk", "ok", text)


# --- workers and runs ---


async def _work(store: SqlStore, clock: Clock) -> list[Finding]:
    return [
        await _workers(store),
        await _blocked(store),
        await _overdue(store),
        await _future(store, clock),
    ]


async def _workers(store: SqlStore) -> Finding:
    rows = await store.inspection.workers()
    stale = [row for row in rows if row.expired]
    dead = [row for row in rows if not row.expired and await store.driver.locks.is_free(row.id)]
    alive = [row for row in rows if row not in stale and row not in dead]
    able = [row for row in alive if row.targets]
    lost = sum(row.runs for row in (*stale, *dead))
    if not able and (stale or dead):
        ends = f"{len(dead)} dead, {len(stale)} with an expired lease"
        text = f"none is alive ({ends}); {lost} of their runs wait for a takeover"
        return Finding("workers", "warn", text, "start one: pylash worker MODULE:APP")
    if not able:
        live = await store.inspection.runs(_OPEN, _KINDS, 1)
        if live:
            return Finding(
                "workers", "warn", "none is alive", "start one: pylash worker MODULE:APP"
            )
        return Finding("workers", "ok", "none is alive, and no run is open")
    runs = sum(row.runs for row in able)
    more = (
        f"; the runs of {len(stale) + len(dead)} others are being taken over"
        if stale or dead
        else ""
    )
    return Finding("workers", "ok", f"{len(able)} alive with {runs} runs{more}")


_OPEN: Final = (RunState.QUEUED, RunState.RUNNING, RunState.WAITING, RunState.BLOCKED)
_KINDS: Final = ("process", "turn", "queue_drain")


async def _blocked(store: SqlStore) -> Finding:
    rows = await store.inspection.runs([RunState.BLOCKED], _KINDS, 4)
    if not rows:
        return Finding("blocked", "ok", "no run is blocked")
    names = ", ".join(f"{row.id} ({(row.reason or '').partition(':')[0]})" for row in rows[:3])
    more = " and more" if len(rows) > 3 else ""
    return Finding("blocked", "warn", f"{names}{more}", "pylash show ID prints the reason")


async def _overdue(store: SqlStore) -> Finding:
    count = await store.inspection.overdue(OVERDUE_SECONDS * SECOND)
    if count:
        text = (
            f"{count} runs have been ready for more than a minute, and no worker has claimed them"
        )
        return Finding("backlog", "warn", text, "start more workers, or raise their concurrency")
    rows = await store.inspection.runs([RunState.BLOCKED], _KINDS, COUNTED)
    waiting = sum(row.reason == "unknown_target" for row in rows)
    if waiting:
        more = " or more" if len(rows) == COUNTED else ""
        text = f"{waiting}{more} runs are ready, and no live worker has their code"
        if waiting == 1:
            text = "1 run is ready, and no live worker has its code"
        return Finding("backlog", "warn", text, "start one that does: pylash worker MODULE:APP")
    return Finding("backlog", "ok", "no run waits for a worker")


async def _future(store: SqlStore, clock: Clock) -> Finding:
    """Compare the time of the newest run with the clock of this machine."""
    ahead = (await store.inspection.newest() - clock.now()) / SECOND
    if ahead > FUTURE_SECONDS:
        text = f"the newest run was created {ahead:,.0f} s ahead of this machine's clock"
        return Finding("clock", "warn", text, "set the clocks of all machines by NTP")
    return Finding("clock", "ok", "no run is ahead of this machine's clock")
