"""A row that cannot be claimed stops no other run, and long concurrency keys work like short ones."""

from __future__ import annotations

import hashlib

import pytest

from pylash import Lash, ProcessBlocked, ProcessContext
from pylash.durable.processes import Slot
from pylash.durable.runs import RunState
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.testing.laws.stores.subjects import claim_processes, joined, record_of, started, turning
from tests.backends import Backend


def incompressible(size: int) -> str:
    """Return a text that a database cannot make shorter."""
    return hashlib.shake_256(b"").hexdigest(size // 2)


async def execute(store: SqlStore, *statements: str) -> None:
    def steps() -> Steps[None]:
        for sql in statements:
            yield Statement(sql)

    await store.driver.run(Operation("execute", steps))


async def test_a_long_concurrency_key_does_not_stop_other_runs(backend: Backend) -> None:
    app = Lash(backend.url)

    async def cut(text: str) -> str:
        return text[:3]

    @app.process(concurrency=1, key="{text}")
    async def greet(ctx: ProcessContext[None], text: str) -> str:
        return await ctx.step(cut, text)

    @app.process
    async def other(ctx: ProcessContext[None]) -> str:
        return "done"

    long = incompressible(8_000)
    texts = [long, long, long[:-1], "short"]
    async with app:
        handles = [await app.start(greet, text) for text in texts]
        assert await (await app.start(other)).result(timeout="10s") == "done"
        results = [await handle.result(timeout="10s") for handle in handles]
    assert results == [text[:3] for text in texts]


async def test_keys_that_differ_only_behind_a_long_beginning_are_different(
    backend: Backend,
) -> None:
    store = await backend.store()
    worker = await joined(store)
    long = incompressible(8_000)
    for text in (long + "a", long + "a", long + "b"):
        await started(store, slot=Slot(text, 1))
    assert len(await claim_processes(store, worker)) == 2


async def test_a_long_key_that_was_stored_as_it_is_can_be_claimed(backend: Backend) -> None:
    store = await backend.store()
    worker, long = await joined(store), incompressible(8_000)
    for _ in range(2):
        await started(store, slot=Slot(long, 1))
    await execute(store, f"update pylash_runs set slot = '{long}'")
    assert len(await claim_processes(store, worker)) == 1


SQLITE_TRIGGER = """
create trigger refuse before update on pylash_runs when new.id = {run} and new.state = 'running'
begin select raise(abort, 'this row is broken'); end"""

POSTGRES_TRIGGER = (
    """create function refuse() returns trigger language plpgsql as
    'begin raise exception ''this row is broken''; end'""",
    """create trigger refuse before update on pylash_runs for each row
    when (new.id = {run} and new.state = 'running') execute function refuse()""",
)


async def break_row(backend: Backend, store: SqlStore, run: int) -> None:
    """Let the database refuse to let a run be claimed."""
    far = backend.url.startswith("postgresql")
    statements = POSTGRES_TRIGGER if far else (SQLITE_TRIGGER,)
    await execute(store, *(sql.replace("{run}", str(run)) for sql in statements))


async def test_a_run_that_the_database_refuses_to_claim_is_blocked_and_the_others_run(
    backend: Backend,
) -> None:
    store = await backend.store()
    worker = await joined(store)
    processes = [await started(store) for _ in range(5)]
    broken = await record_of(store, processes[2])
    await break_row(backend, store, broken.run)
    claims = await claim_processes(store, worker)
    assert {claim.run.scope.id for claim in claims} == {*processes} - {processes[2]}
    record = await record_of(store, processes[2])
    assert record.run_state is RunState.BLOCKED
    assert record.reason is not None
    assert record.reason.startswith("unclaimable: ")
    assert "this row is broken" in record.reason
    assert await claim_processes(store, worker) == []


async def test_a_run_that_nobody_can_read_is_blocked_and_the_others_run(backend: Backend) -> None:
    store = await backend.store()
    worker = await joined(store)
    processes = [await started(store) for _ in range(3)]
    broken = await record_of(store, processes[0])
    await execute(
        store, f"""update pylash_runs set scope = '{{"type":"cube"}}' where id = {broken.run}"""
    )
    claims = await claim_processes(store, worker)
    assert {claim.run.scope.id for claim in claims} == {*processes[1:]}
    record = await record_of(store, processes[0])
    assert record.run_state is RunState.BLOCKED
    assert "unclaimable: " in (record.reason or "")


@pytest.mark.slow
async def test_a_blocked_row_has_a_reason_and_can_be_retried(durable: Backend) -> None:
    app = Lash(durable.url)

    @app.process
    async def greet(ctx: ProcessContext[None]) -> str:
        return "hello"

    async with app:
        store = app.store
        assert isinstance(store, SqlStore)
        handle = await app.start(greet.options(delay="1h"))
        record = await store.processes.get(handle.id)
        assert record is not None
        await break_row(durable, store, record.run)
        await execute(store, f"update pylash_runs set at = 1 where id = {record.run}")
        other = await app.start(greet.options(delay="1ms"))
        assert await other.result(timeout="10s") == "hello"
        with pytest.raises(ProcessBlocked, match="this row is broken"):
            await handle.result(timeout="1s")
        await execute(
            store,
            "drop trigger refuse" + (" on pylash_runs" if "postgresql" in durable.url else ""),
        )
        await app.retry(handle.id)
        assert await handle.result(timeout="10s") == "hello"


@pytest.mark.parametrize(
    "damage",
    [
        "update pylash_runs set options = {broken} where id = {run}",
        'update pylash_runs set scope = \'{"type":"cube"}\' where id = {run}',
        "update pylash_lanes set usage = {broken} where holder = {run}",
        """insert into pylash_nodes select (number * 16777216) + 1, {run}, {broken}, {broken}
        from pylash_lanes where holder = {run}""",
    ],
    ids=["options", "scope", "session", "effects"],
)
async def test_a_turn_that_nobody_can_read_stops_no_other_turn(
    backend: Backend, damage: str
) -> None:
    store = await backend.store()
    broken, fine = await turning(store), await turning(store)
    blob = "cast('{{' as bytea)" if "postgresql" in backend.url else "cast('{{' as blob)"
    sql = damage.replace("{broken}", blob).replace("{run}", str(broken.turn.run))
    await execute(store, sql)
    runs = [broken.turn.run, fine.turn.run]
    assert list(await store.sessions.resume(runs)) == [fine.turn.run]
