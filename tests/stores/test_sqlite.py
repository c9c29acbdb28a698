"""The SQLite driver: shared commits, fairness between processes, and pokes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pylash.durable.runs import SECOND, JournalEntry, WorkerId
from pylash.durable.scopes import ProcessScope
from pylash.durable.stores import Answer
from pylash.durable.waits import CustomWait, Ok, WaitName
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.drivers import file_locks as peers
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import open_store
from pylash.testing.laws.suites import together
from pylash.values.errors import StoreClosed
from tests.backends import SqliteBackend, attached


def commits(connections: Sequence[sqlite3.Connection]) -> list[int]:
    """Keep how many effects each commit has."""
    sizes, effects = list[int](), list[str]()

    def trace(sql: str) -> None:
        if "insert into pylash_effects" in sql.lower():
            effects.append(sql)
        elif sql == "commit" and effects:
            sizes.append(len(effects))
            effects.clear()

    for connection in connections:
        connection.set_trace_callback(trace)
    return sizes


def entry(key: str) -> JournalEntry:
    return JournalEntry(key, "durable_step", b"hash", b"{}", b"1", 1, started=1)


async def test_concurrent_callers_share_a_commit(
    tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        fence = (await attached(store, "p")).fence
        sizes = commits(connections)

        async def record(n: int) -> None:
            await store.journal.record(fence, entry(f"step-{n}"))

        await together(*(record(n) for n in range(200)))
        assert sum(sizes) == 200
        assert len(sizes) <= 2


async def test_one_refused_operation_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        fence = (await attached(store, "p")).fence
        await store.journal.record(fence, entry("taken"))

        def broken() -> Steps[None]:
            yield Statement("insert into pylash_meta(name, value) values ('x', 'y')")
            raise ValueError("a bug in an operation")

        async def run(operation: Operation[Any]) -> str:
            try:
                await store.driver.run(operation)
            except ValueError:
                return "refused"
            return "done"

        async def record(key: str) -> str:
            await store.journal.record(fence, entry(key))
            return "done"

        results = await together(
            record("a"), run(Operation("broken", broken)), record("taken"), record("b")
        )
        assert results == ["done", "refused", "done", "done"]
        rows = await store.driver.run(Operation("look", _names))
        assert "x" not in rows


def _names() -> Steps[set[str]]:
    return {name for (name,) in (yield Statement("select name from pylash_meta")).rows}


async def test_a_renewal_goes_before_what_waits(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        fence = (await attached(store, "p")).fence
        done = list[str]()

        async def record(n: int) -> None:
            await store.journal.record(fence, entry(f"step-{n}"))
            done.append("record")

        async def beat() -> None:
            await store.workers.beat(WorkerId("w"), SECOND)
            done.append("beat")

        await together(*(record(n) for n in range(5)), beat())
        assert "beat" in done[:2]  # the first record may have been written at once: it did not wait


async def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        other = sqlite3.connect(backend.path, isolation_level=None)
        other.execute("begin immediate")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(attached(store, "p"))
            await asyncio.sleep(0.05)
            assert not task.done()
            other.execute("commit")
        other.close()
        assert task.result().fence.token == 1


def _write_in_a_process(url: str, name: str, count: int) -> None:
    async def main() -> None:
        store = await open_store(url, clock=SystemClock(), entropy=system_entropy)
        worker = WorkerId(name)
        await store.workers.join(worker, 60 * SECOND)
        fence = (await store.journal.attach(ProcessScope(name), worker)).fence
        for n in range(count):
            await store.journal.record(fence, entry(f"step-{n}"))
        await store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_three_processes_write_to_one_file_and_nothing_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_write_in_a_process, args=(url, f"w{n}", 200)) for n in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(50)
        assert writer.exitcode == 0
    connection = sqlite3.connect(tmp_path / "shared.db")
    assert connection.execute("select count(*) from pylash_effects").fetchone() == (600,)
    connection.close()


async def test_a_read_is_not_kept_waiting_by_a_writer(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        other = sqlite3.connect(backend.path, isolation_level=None)
        other.execute("begin immediate")
        async with asyncio.timeout(5):
            assert await store.waits.listed() == []
        other.execute("rollback")
        other.close()


@pytest.mark.parametrize("kernel_tells", [True, False])
async def test_a_poke_of_another_process_is_noticed_and_our_own_is_not(
    kernel_tells: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel_tells:
        monkeypatch.setattr(peers, "_inotify", lambda _: None)
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    mine = await asyncio.to_thread(peers.PokeFile, tmp_path / "db", b"1")
    other = await asyncio.to_thread(peers.PokeFile, tmp_path / "db", b"2")
    mine.watch(loop, heard.set)
    mine.poke()
    await asyncio.sleep(0.06)
    assert not heard.is_set()
    other.poke()
    async with asyncio.timeout(5):
        await heard.wait()
    mine.close()
    other.close()


async def test_a_missed_poke_is_noticed_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.stores.drivers.sqlite.NET_SECONDS", 0.05)
    monkeypatch.setattr(peers.PokeFile, "poke", lambda _: None)
    async with SqliteBackend(tmp_path) as backend:
        store, other, heard = await backend.store(), await backend.store(), asyncio.Event()
        store.subscribe(lambda _: heard.set())
        await asyncio.sleep(0.1)
        await attached(other, "p")
        async with asyncio.timeout(5):
            await heard.wait()


async def test_a_hint_that_cannot_be_sent_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        monkeypatch.setattr(os, "pwrite", full)
        for n in range(3):
            outcome = await store.waits.resolve(
                WaitName(ProcessScope(f"p{n}"), CustomWait("go")), Ok(1), Answer(f"t{n}")
            )
            assert outcome.status == "accepted"


async def test_a_closing_store_refuses_new_operations_and_completes_earlier_ones(
    tmp_path: Path,
) -> None:
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        fence = (await attached(store, "p")).fence

        async def record(n: int) -> str:
            try:
                return (await store.journal.record(fence, entry(f"step-{n}"))).key
            except StoreClosed:
                return "refused"

        async def close() -> str:
            await store.close()
            return "closed"

        async with asyncio.timeout(10):
            results = await together(
                *(record(n) for n in range(5)), close(), *(record(n) for n in range(5, 9))
            )
        assert results == [*(f"step-{n}" for n in range(5)), "closed", *["refused"] * 4]


async def test_closing_leaves_no_lock_files_behind(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        host = await backend.host()
        assert len(list(Path(f"{backend.path}-workers").iterdir())) == 1
        await host.close()
    assert list(Path(f"{backend.path}-workers").iterdir()) == []
