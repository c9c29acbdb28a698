"""The files beside a SQLite store: accessible to their owner only, whatever the umask, and never opened through a link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylash.durable.runs import WorkerId
from pylash.values.errors import StorePathUnwritable
from tests.stores.test_opening import opened, refusal


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A user whose files anybody may read and write, unless a program says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {one.name: one.stat().st_mode & 0o777 for one in folder.glob("a.db*")}


@pytest.mark.usefixtures("open_umask")
async def test_no_umask_opens_them_to_others(tmp_path: Path) -> None:
    store = await opened(f"sqlite:///{tmp_path}/a.db")
    worker = WorkerId("worker")
    await store.driver.locks.acquire(worker)
    files = dict.fromkeys(("a.db", "a.db-wal", "a.db-shm", "a.db-poke"), 0o600)
    assert modes(tmp_path) == {**files, "a.db-workers": 0o700}
    assert (tmp_path / "a.db-workers" / "worker").stat().st_mode & 0o777 == 0o600
    await store.driver.locks.release(worker)
    await store.close()


@pytest.mark.usefixtures("open_umask")
async def test_a_store_behind_a_link_that_leads_nowhere_yet_is_private_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.db").symlink_to(tmp_path / "data" / "a.db")
    store = await opened(f"sqlite:///{tmp_path}/a.db")
    assert set(modes(tmp_path / "data").values()) == {0o600}
    await store.close()


async def test_a_poke_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a.db-poke").symlink_to(victim)
    error = await refusal(f"sqlite:///{tmp_path}/a.db")
    assert error.code == "store_path_unwritable"
    assert "a.db-poke' beside the store is a symbolic link" in error.message
    assert victim.read_text() == "precious"
    (tmp_path / "a.db-poke").unlink()
    await (await opened(f"sqlite:///{tmp_path}/a.db")).close()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
async def test_a_poke_file_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.db-poke"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    error = await refusal(f"sqlite:///{tmp_path}/a.db")
    assert "a.db-poke' beside the store is not a regular file" in error.message


async def test_a_folder_of_locks_that_is_a_link_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (tmp_path / "a.db-workers").symlink_to(elsewhere)
    store = await opened(f"sqlite:///{tmp_path}/a.db")
    for asked in (store.driver.locks.acquire, store.driver.locks.is_free):
        with pytest.raises(StorePathUnwritable, match=r"-workers' beside the store is a symbolic"):
            await asked(WorkerId("precious"))
    assert [one.name for one in elsewhere.iterdir()] == ["precious"]
    await store.close()


async def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    folder = tmp_path / "a.db-workers"
    folder.mkdir()
    (folder / "worker").symlink_to(victim)
    store = await opened(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(StorePathUnwritable, match="worker' beside the store is a symbolic link"):
        await store.driver.locks.acquire(WorkerId("worker"))
    await store.close()


async def test_a_worker_whose_name_is_a_path_has_its_lock_in_the_folder(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    store = await opened(f"sqlite:///{tmp_path}/a.db")
    for name in ("../victim", str(victim), "..", "."):
        worker = WorkerId(name)
        assert await store.driver.locks.is_free(worker)
        await store.driver.locks.acquire(worker)
        assert not await store.driver.locks.is_free(worker)
        await store.driver.locks.release(worker)
    assert victim.exists()
    await store.close()


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_sqlite_follows_no_link_either(tmp_path: Path, suffix: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    await (await opened(f"sqlite:///{tmp_path}/a.db")).close()
    Path(f"{tmp_path}/a.db{suffix}").symlink_to(victim)
    assert (await refusal(f"sqlite:///{tmp_path}/a.db")).code == "store_path_unwritable"
    assert victim.read_text() == "precious"
