"""The PostgreSQL driver: batches, the server's clock, the anchor."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from pylash.durable.commands import SignalProcess
from pylash.durable.runs import SECOND, Instant, JournalEntry, LeaseTimings, WorkerId
from pylash.durable.scopes import ProcessScope
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.drivers.postgres import PostgresDriver
from pylash.stores.drivers.postgres_connections import SETTINGS
from pylash.stores.drivers.postgres_dialect import dialect
from pylash.stores.operation import Notify, Operation, Statement, Steps
from pylash.stores.ports.journal import SqlJournal
from pylash.testing import SimClock
from pylash.testing.laws.stores.subjects import started
from pylash.testing.laws.suites import together
from pylash.values.errors import LashError, LeaseLost
from tests.backends import PostgresBackend, attached, eventually, lockless


def entry(key: str) -> JournalEntry:
    return JournalEntry(key, "durable_step", b"hash", b"{}", b"1", 1, started=1)


class ShiftedClock(SystemClock):
    """A machine whose clock is an hour ahead."""

    def now(self) -> Instant:
        return Instant(super().now() + 3_600 * SECOND)


def test_parameters_are_numbered_and_words_filled_in() -> None:
    assert dialect("select a from b where c = ? and d = ? {share}") == (
        "select a from b where c = $1 and d = $2 for share"
    )


async def test_a_run_is_not_taken_from_a_worker_that_took_it_while_we_waited_for_it(
    postgres: str,
) -> None:
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        await attached(store, "p", "dead")
        await lockless(store).join(WorkerId("dead"), 0)
        for worker in ("new", "late"):
            await lockless(store).join(WorkerId(worker), 3_600 * SECOND)
        connection = await asyncpg.connect(backend.url)
        try:
            async with asyncio.TaskGroup() as group, connection.transaction():
                taking = "update pylash_runs set owner = 'new', fence = fence + 1"
                await connection.execute(taking)
                waiting = group.create_task(_refused(store, "p", "late"))
                await eventually(lambda: _somebody_waits(connection))
            assert waiting.result() == "lease_held"
        finally:
            await connection.close()


async def _refused(store: Any, scope: str, worker: str) -> str | None:
    try:
        await store.journal.attach(ProcessScope(scope), WorkerId(worker))
    except LashError as error:
        return error.code
    return None


async def _somebody_waits(connection: Any) -> bool:
    asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    return bool(await connection.fetchval(asked))


async def test_rows_that_come_together_are_written_together_and_judged_alone(
    postgres: str,
) -> None:
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        fence = (await attached(store, "p")).fence
        stale = (await attached(store, "q")).fence
        await lockless(store).join(WorkerId("w"), 0)
        await attached(store, "q", "v")
        await lockless(store).join(WorkerId("w"), 3_600 * SECOND)
        await store.journal.record(fence, entry("taken"))

        async def record(where: Any, key: str) -> str:
            try:
                return (await store.journal.record(where, entry(key))).key
            except LeaseLost as error:
                return error.code

        many = [record(fence, f"step-{n}") for n in range(50)]
        results = await together(*many, record(stale, "late"), record(fence, "taken"))
        assert results == [*(f"step-{n}" for n in range(50)), "lease_lost", "taken"]


async def test_leases_are_judged_by_the_servers_clock(postgres: str) -> None:
    async with PostgresBackend(postgres) as backend:
        mine, ahead = await backend.store(), await backend.store()
        assert isinstance(ahead.driver, PostgresDriver)
        ahead.journal = SqlJournal(ahead.driver, ShiftedClock(), system_entropy)
        await mine.workers.join(WorkerId("mine"), 60 * SECOND)
        await mine.journal.attach(ProcessScope("p"), WorkerId("mine"))
        await ahead.workers.join(WorkerId("ahead"), 60 * SECOND)
        assert await ahead.workers.bury_the_dead(WorkerId("ahead")) == []


async def test_in_a_test_the_servers_clock_is_ours_to_set(postgres: str) -> None:
    clock = SimClock()
    async with PostgresBackend(postgres) as backend:
        store = await backend.store(clock)
        await store.workers.join(WorkerId("w"), 60 * SECOND)
        await store.workers.join(WorkerId("me"), 86_400 * SECOND)
        assert await store.workers.bury_the_dead(WorkerId("me")) == []
        await clock.advance("2m")
        assert await store.workers.bury_the_dead(WorkerId("me")) == [WorkerId("w")]


async def test_a_lost_anchor_is_replaced_and_listens_again(postgres: str) -> None:
    async with PostgresBackend(postgres) as backend:
        store, other = await backend.store(), await backend.store()
        await store.workers.join(WorkerId("w"), 60 * SECOND)
        assert isinstance(store.driver, PostgresDriver)
        heard = asyncio.Event()
        store.subscribe(lambda topic: heard.set() if topic == "" else None)
        connection = await asyncpg.connect(backend.url)
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'"
        )
        async with asyncio.timeout(10):
            await heard.wait()  # whatever was missed meanwhile is looked up

        async def held() -> bool:
            sql = "select count(*) from pg_locks where locktype = 'advisory'"
            return bool(await connection.fetchval(sql))

        assert await eventually(held)
        assert await other.workers.bury_the_dead(WorkerId("other")) == []
        await connection.close()


async def test_many_hosts_join_one_store_at_once(postgres: str) -> None:
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        hosts = await together(*(backend.host(store) for _ in range(6)))
        assert len({host.membership.worker for host in hosts}) == 6


async def test_cancelling_a_caller_leaves_no_transaction_half_way(postgres: str) -> None:
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_attach(store))
            await asyncio.sleep(0)
            task.cancel()
        again = await attached(store, "p")
        assert again.fence.token == 1


async def _attach(store: Any) -> None:
    await attached(store, "p")


@pytest.mark.parametrize("count", [1, 20])
async def test_operations_on_one_row_take_their_turns(postgres: str, count: int) -> None:
    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        process = await started(store)

        async def wake(n: int) -> None:
            await store.processes.perform(SignalProcess(process, "go", str(n)))

        await together(*(wake(n) for n in range(count)))
        run = await store.runs.get(ProcessScope(process))
        assert run is not None
        assert run.wake_seq == count


ODD_TOPICS = ["it's", "$$; drop table pylash_meta; $$", "\\'$1 \N{SNOWMAN}", 'quoted "twice"']


@pytest.mark.parametrize("count", [1, 500])
async def test_other_processes_are_notified_of_every_topic(postgres: str, count: int) -> None:
    topics = [f"{topic} {n}" for topic in ODD_TOPICS for n in range(count)]

    def steps() -> Steps[None]:
        yield Statement("select 1")
        for topic in topics:
            yield Notify(topic)

    async with PostgresBackend(postgres) as backend:
        store, other, heard = await backend.store(), await backend.store(), list[str]()
        other.subscribe(heard.append)
        await store.driver.run(Operation("notify", steps))
        assert await eventually(lambda: _has_all(heard, topics))
        assert heard == topics


async def _has_all(heard: list[str], topics: list[str]) -> bool:
    return len(heard) >= len(topics)


# --- a worker that stops in the middle of a transaction ---


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server end transactions that wait for their client for a fifth of a second."""
    monkeypatch.setitem(SETTINGS, "idle_in_transaction_session_timeout", "200ms")


def test_transactions_wait_for_their_client_for_much_less_than_a_lease() -> None:
    assert SETTINGS["idle_in_transaction_session_timeout"] == "3s"
    assert LeaseTimings().ttl > 4 * 3 * SECOND


@pytest.mark.proves("P6")
async def test_the_runs_of_a_worker_that_stopped_in_a_transaction_are_taken_over(
    postgres: str, impatient: None
) -> None:
    async with PostgresBackend(postgres) as backend:
        stopped, other = await backend.store(), await backend.store()
        fence = (await attached(stopped, "p", "stopped")).fence
        await lockless(stopped).join(WorkerId("stopped"), 0)
        assert isinstance(stopped.driver, PostgresDriver)
        connection = await stopped.driver.pool.connect()
        await connection.execute("begin")
        for table in ("pylash_workers", "pylash_runs"):
            await connection.execute(f"select 1 from {table} for update")
        assert await other.workers.bury_the_dead(WorkerId("me")) == ["stopped"]
        run = await other.runs.get(ProcessScope("p"))
        assert run is not None
        assert (run.owner, run.fence) == (None, fence.token + 1)
        connection.terminate()


async def test_an_operation_whose_transaction_the_server_ended_is_repeated(
    postgres: str, impatient: None
) -> None:
    tries, monotonic = list[int](), SystemClock().monotonic

    def steps() -> Steps[int]:
        yield Statement("select 1")
        tries.append(1)
        if len(tries) == 1:
            until = monotonic() + 0.5  # the loop is blocked longer than the server waits
            while monotonic() < until:
                pass
        return int((yield Statement("select 2")).rows[0][0])

    async with PostgresBackend(postgres) as backend:
        store = await backend.store()
        assert await store.driver.run(Operation("stalls", steps)) == 2
        assert len(tries) == 2
