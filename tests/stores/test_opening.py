"""Opening a store: bad input gets one clear sentence, and nothing is half-written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.store import SqlStore, open_store
from pylash.values.errors import LashError, StoreClosed
from tests.backends import SqliteBackend


async def opened(url: str, migrate: bool | None = None) -> SqlStore:
    return await open_store(url, clock=SystemClock(), entropy=system_entropy, migrate=migrate)


async def refusal(url: str, migrate: bool | None = None) -> LashError:
    with pytest.raises(LashError) as caught:
        await opened(url, migrate)
    assert caught.value.message.count(". ") == 0, "one sentence"
    return caught.value


@pytest.mark.parametrize(
    "url",
    [
        "mysql://host/db",
        "agents.db",
        "",
        "sqlite:agents.db",
        "sqlite://",
        "sqlite://agents.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///agents.db?mode=ro",
        "memory://x",
        "postgresql://u:p@localhost:port/db",
    ],
)
async def test_a_url_of_an_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    error = await refusal(url)
    assert error.code == "store_url_invalid"
    for known in ("memory://", "sqlite:///", "postgresql://"):
        assert known in error.message


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    error = await refusal(f"sqlite:///{tmp_path}/no/such/folder/agents.db")
    assert error.code == "store_path_unwritable"
    assert "no/such/folder" in error.message


async def test_a_new_file_is_its_owners_alone_and_another_stays_as_it_is(tmp_path: Path) -> None:
    def modes() -> dict[str, int]:
        return {one.name: one.stat().st_mode & 0o777 for one in tmp_path.glob("a.db*")}

    store = await opened(f"sqlite:///{tmp_path}/a.db")
    assert modes() == dict.fromkeys(("a.db", "a.db-wal", "a.db-shm", "a.db-poke"), 0o600)
    await store.close()
    (tmp_path / "a.db").chmod(0o640)
    await (await opened(f"sqlite:///{tmp_path}/a.db")).close()
    assert modes()["a.db"] == 0o640


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    assert (await refusal(f"sqlite:///{tmp_path}")).code == "store_path_unwritable"


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A folder that others come to: those of pytest are their owner's alone."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.mark.slow
@pytest.mark.parametrize("folder_mode", [0o555, 0o700])
def test_an_unwritable_file_is_refused(anyones: Path, folder_mode: int) -> None:
    path = anyones / "agents.db"
    path.touch()
    path.chmod(0o444)
    anyones.chmod(folder_mode)
    code = f"""
import asyncio, concurrent.futures.thread, os
import pylash.stores.drivers.sqlite
from pylash import LashError, open_host
if os.getuid() == 0: os.setuid(65534)  # root may write everywhere
async def main():
    try:
        async with open_host("sqlite:///{path}"): pass
    except LashError as error: print(error)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    anyones.chmod(0o755)
    assert "[store_path_unwritable]" in done.stdout, done.stderr
    assert path.read_bytes() == b""


@pytest.mark.parametrize("text", ["x", "Dear diary, " * 1_000])
async def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    error = await refusal(f"sqlite:///{path}")
    assert error.code == "store_not_a_database"
    assert path.read_text() == text


async def test_a_password_is_not_shown() -> None:
    error = await refusal("postgresql://ann:tiger@localhost:port/db")
    assert "tiger" not in str(error)
    assert "ann:***@" in error.message


@pytest.mark.parametrize(
    "url",
    ["postgresql://nobody@127.0.0.1:9/none", "postgresql://x@/x?host=/nowhere"],
)
async def test_a_server_that_refuses_is_reported(url: str) -> None:
    error = await refusal(url)
    assert error.code == "store_unavailable"
    assert "check the store URL" in error.message
    assert error.__cause__ is None


async def test_a_database_that_does_not_exist_is_reported(postgres: str) -> None:
    error = await refusal(postgres.replace("/postgres?", "/nowhere?"))
    assert error.code == "store_unavailable"
    assert error.message.startswith("PostgreSQL refused the connection")
    assert "nowhere" in error.message


@pytest.mark.slow
def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    code = """
import asyncio, sys
sys.modules["asyncpg"] = None
from pylash import LashError, open_host
async def main():
    try:
        async with open_host("postgresql://localhost/x"): pass
    except LashError as error: print(error)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == (
        "A PostgreSQL store needs the extra 'postgres': install it with "
        "pip install 'pylash[postgres]', or from a clone of pylash with "
        "pip install '.[postgres]'. [extra_missing]\n"
    ), done.stderr


async def test_using_a_closed_store_is_an_error(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.waits.listed()


async def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    await (await opened(url)).close()
    path = tmp_path / "agents.db"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\x55" * (len(data) - 4096)
    path.write_bytes(data)
    assert (await refusal(url)).code == "store_not_a_database"


async def test_sqlite_is_set_up_for_durability(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path, empty=True) as backend:
        await backend.store()
        connection = sqlite3.connect(backend.path)
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
        assert connection.execute("pragma page_size").fetchone() == (2048,)
        connection.close()
