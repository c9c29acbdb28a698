"""Faults: nothing recorded is lost, nothing unrecorded is reported as done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pylash import (
    DurableStep,
    JournalHost,
    Lash,
    ProcessContext,
    ProcessScope,
    RuntimeScope,
    envelope,
    step_executor,
)
from pylash.durable.ports import ScopedController
from pylash.durable.runs import SECOND, Fence, JournalEntry, WorkerId
from pylash.stores.operation import Driver, Operation, Statement, Steps
from pylash.testing.laws.stores.subjects import claim_turns, ended, new_turn, submitted
from pylash.testing.laws.suites import together
from pylash.values.errors import LashError, StoreFull
from tests.backends import Backend, PostgresBackend, SqliteBackend, postgres_server, postgres_url
from tests.cutting_proxy import CuttingProxy


class Ledger:
    """Runs steps and counts how often each was really executed."""

    def __init__(self, host: JournalHost) -> None:
        self.host = host
        self.controllers: dict[str, ScopedController] = {}
        self.executed: dict[tuple[str, int], int] = {}

    async def step(self, scope: str, number: int, inside: Any = None) -> Any:
        async def run(given: int) -> int:
            self.executed[scope, number] = self.executed.get((scope, number), 0) + 1
            if inside is not None:
                await inside()
            return given * 2

        asked = envelope(
            DurableStep("double", number),
            scope=RuntimeScope(),
            effect_id="double",
            replay_key=f"double#{number}",
        )
        controller = self.controllers.setdefault(scope, self.host.scoped(ProcessScope(scope)))
        outcome: Any = await controller.execute(asked, step_executor(run))
        return outcome.value

    async def steps(self, scope: str, count: int) -> list[Any]:
        return [await self.step(scope, number) for number in range(count)]


async def recorded(backend: Backend, scope: str) -> int:
    """Return how many effects a fresh process finds for scope."""
    store = await backend.store()
    run = await store.runs.get(ProcessScope(scope))
    assert run is not None
    found = [await store.journal.entry(run.id, f"double#{n}") for n in range(100)]
    return sum(entry is not None for entry in found)


# --- PostgreSQL goes away ---


@pytest.mark.slow
async def test_a_restart_of_postgresql_under_load_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    with postgres_url(tmp_path) as url:
        server = postgres_server(tmp_path)
        async with PostgresBackend(url) as backend:
            ledger = Ledger(await backend.host())
            halfway = asyncio.Event()

            async def load(scope: str) -> list[Any]:
                await ledger.steps(scope, 20)
                halfway.set()
                return await ledger.steps(scope, 60)

            async def restart() -> list[Any]:
                await halfway.wait()
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
                return []

            async with asyncio.timeout(50):
                results = await together(*(load(f"p{n}") for n in range(10)), restart())
            assert results[:-1] == [[n * 2 for n in range(60)]] * 10
            assert set(ledger.executed.values()) == {1}
            assert await recorded(backend, "p3") == 60


@pytest.fixture
async def proxied(
    postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Backend, CuttingProxy]]:
    """Give a PostgreSQL backend behind a proxy that can cut connections."""
    folder = tmp_path_factory.mktemp("proxy")
    server = Path(postgres.partition("host=")[2])
    proxy = CuttingProxy(server, folder)
    await proxy.start()
    async with PostgresBackend(postgres) as backend:
        backend.url = backend.url.replace(str(server), str(folder))
        yield backend, proxy
    await proxy.stop()


async def test_a_record_whose_answer_was_cut_off_is_there_once(
    proxied: tuple[Backend, CuttingProxy],
) -> None:
    backend, proxy = proxied
    ledger = Ledger(await backend.host())
    await ledger.step("p", 0)
    for number in range(1, 6):

        async def arm() -> None:
            proxy.arm(b"")  # the next request is the record

        assert await ledger.step("p", number, arm) == number * 2
    assert proxy.cuts == 5
    assert set(ledger.executed.values()) == {1}
    assert await recorded(backend, "p") == 6


async def test_a_commit_whose_answer_was_cut_off_happened_once(
    proxied: tuple[Backend, CuttingProxy],
) -> None:
    backend, proxy = proxied
    store = await backend.store()
    worker = WorkerId("w1")
    await store.workers.join(worker, 60 * SECOND)
    turns = [new_turn("session", f"t{n}") for n in range(2)]
    for turn in turns:
        proxy.arm(b"commit")
        await submitted(store, turn)
    proxy.arm(b"commit")
    (mine,) = await claim_turns(store, worker)
    assert mine.fence.token == 1
    proxy.arm(b"commit")
    await ended(store, mine)
    (second,) = await claim_turns(store, worker)
    assert second.turn.scope == turns[1].scope
    assert proxy.cuts == 4


async def test_a_server_that_does_not_answer_is_asked_again(
    proxied: tuple[Backend, CuttingProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.stores.drivers.postgres_connections.COMMAND_SECONDS", 0.2)
    backend, proxy = proxied
    proxy.mute = True
    ledger = Ledger(await backend.host())
    await ledger.step("p", 0)

    async def arm() -> None:
        proxy.arm(b"")  # the next request is the record

    async with asyncio.timeout(20):
        assert await ledger.step("p", 1, arm) == 2
    assert proxy.cuts
    assert set(ledger.executed.values()) == {1}
    assert await recorded(backend, "p") == 2


@pytest.mark.parametrize("given", [True, False], ids=["given", "made"])
async def test_a_start_whose_answer_was_cut_off_happened_once(
    proxied: tuple[Backend, CuttingProxy], given: bool
) -> None:
    """A process whose id was made for it is started and ended in one write."""
    backend, proxy = proxied
    app, ran, started = Lash(backend.url), list[int](), list[tuple[str, str]]()

    @app.process
    async def count(ctx: ProcessContext[None], n: int) -> int:
        ran.append(n)
        return n

    async with app:
        for n in range(3):  # the first prepares the statements of the others
            handle = await app.start(count.options(id=f"count-{n}" if given else None), n)
            assert await handle.result(timeout="10s") == n
            proxy.arm(b"count-")
            started.insert(0, (handle.id, "completed"))
        assert [(one.id, one.status) for one in await app.processes()] == started
    assert proxy.cuts == 2
    assert ran == [0, 1, 2]


@pytest.mark.slow
async def test_a_server_that_stays_away_is_reported_and_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pylash.stores.drivers.postgres.RETRY_SECONDS", 0.5)
    with postgres_url(tmp_path) as url:
        server = postgres_server(tmp_path)
        async with PostgresBackend(url) as backend:
            ledger = Ledger(await backend.host())
            await ledger.step("p", 0)
            await asyncio.to_thread(server.stop)
            with pytest.raises(LashError) as caught:
                await ledger.step("p", 1)
            assert caught.value.code == "store_unavailable"
            await asyncio.to_thread(server.start)
            assert await ledger.step("p", 1) == 2
            assert ledger.executed["p", 1] == 2


# --- the SQLite disk is full ---


async def limit_pages(driver: Driver, extra: int) -> None:
    """Let the database grow by so many pages, and no more."""

    def steps() -> Steps[None]:
        ((pages,),) = (yield Statement("pragma page_count")).rows
        yield Statement(f"pragma max_page_count = {pages + extra}")

    await driver.run(Operation("limit", steps))


async def test_on_a_full_disk_only_what_does_not_fit_fails(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        store = await backend.store()
        await store.workers.join(WorkerId("w"), 60 * SECOND)
        fence = (await store.journal.attach(ProcessScope("p"), WorkerId("w"))).fence
        await limit_pages(store.driver, 40)
        sizes = [10, 10, 900_000, 10, 10]
        results = await together(*(_try(store, fence, n, size) for n, size in enumerate(sizes)))
        assert results == [None, None, "store_full", None, None]
        again = await backend.store()
        seen = [await again.journal.entry(fence.run, f"step-{n}") for n in range(5)]
        assert [entry is not None for entry in seen] == [True, True, False, True, True]
        await limit_pages(store.driver, 10_000)
        assert await _try(store, fence, 2, 900_000) is None


async def _try(store: Any, fence: Fence, number: int, size: int) -> str | None:
    entry = JournalEntry(f"step-{number}", "durable_step", b"h", b"{}", b"x" * size, size)
    try:
        await store.journal.record(fence, entry)
    except StoreFull as error:
        return error.code
    return None


async def test_a_step_that_could_not_be_recorded_is_not_reported_as_done(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        host = await backend.host()
        ledger = Ledger(host)
        await ledger.step("p", 0)
        await limit_pages(backend_driver(host), 0)
        with pytest.raises(LashError) as caught:
            await ledger.steps("p", 100)
        assert caught.value.code == "store_full"
        done = len(ledger.executed)
        await limit_pages(backend_driver(host), 10_000)
        assert await recorded(backend, "p") == done - 1
        assert await ledger.step("p", done - 1) == (done - 1) * 2


def backend_driver(host: JournalHost) -> Any:
    store: Any = host.store
    return store.driver
