"""Deleting a session while its turns are waited for, and while they wait for others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import Lash, ModelRequest, ProcessContext, RunState, WorkerConfig
from pylash.sessions.driver import TurnDriver
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.testing import ScriptedModel, call, calls, say
from tests.backends import Backend, eventually
from tests.processes.test_branches import parked
from tests.sessions.scenes import LIVE, PARKING, Slow, begin, comes_to, open_wait


def shop(url: str, model: Any, config: WorkerConfig | None = PARKING) -> Lash:
    """Return an app whose model may pay if a person agrees, and whose processes ask sessions."""
    app = Lash(url, model=ScriptedModel(model), worker=config)

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    @app.process
    async def asking(ctx: ProcessContext[None], session: str) -> Any:
        result = await ctx.session(session).turn("go", turn_id="t1")
        return [result.status, result.error]

    @app.process
    async def asking_next(ctx: ProcessContext[None], session: str) -> Any:
        result = await ctx.session(session).turn("then", turn_id="t2")
        return [result.status, result.error]

    return app


def pays(request: ModelRequest) -> Any:
    return call("pay") if request.messages[-1].role == "user" else say("Done.")


def started(app: Lash, name: str, session: str = "chat") -> Any:
    return app.start(app.services.definitions[name].options(id=name), session)


DELETED = ["cancelled", "its session was deleted"]


@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_a_waiter_for_a_turn_gets_an_error_if_its_session_is_deleted(
    backend: Backend, config: WorkerConfig
) -> None:
    async with shop(backend.url, pays, config) as app:
        session = app.session("chat")
        process = await started(app, "asking")
        await open_wait(app)
        queued = await started(app, "asking_next")
        await comes_to(app, "chat", "t2", "queued")
        if config is PARKING:
            await parked(app, process.id)
            await parked(app, queued.id)

        async def streamed() -> list[str | None]:
            async with session.stream("go", turn_id="t1") as stream:
                events = [event.type async for event in stream]
            assert events[-1] == "turn_completed"
            return [stream.result.status, stream.result.error]

        async with asyncio.TaskGroup() as group:
            stream = group.create_task(streamed())
            turn = group.create_task(session.turn("then", turn_id="t2", timeout="10s"))
            await asyncio.sleep(0)
            assert (await session.delete()).waits == 1
            assert await stream == DELETED
            result = await turn
            assert [result.status, result.error] == DELETED
        assert await process.result(timeout="10s") == DELETED
        assert await queued.result(timeout="10s") == DELETED
        assert await app.waits() == []


async def test_a_process_gets_the_error_while_the_turn_runs_elsewhere(durable: Backend) -> None:
    slow = Slow()
    async with shop(durable.url, slow, LIVE) as worker, shop(durable.url, pays, None) as other:
        process = await started(worker, "asking")
        await slow.asked.wait()
        await other.session("chat").delete()
        assert await process.result(timeout="10s") == DELETED
        assert await other.process_handle(process.id).result(timeout="10s") == DELETED


async def test_a_process_gets_the_error_while_the_turn_is_blocked(backend: Backend) -> None:
    async with shop(backend.url, pays) as app:
        process = await started(app, "asking")
        await open_wait(app)
        await comes_to(app, "chat", "t1", "waiting")
        await parked(app, process.id)
        current = await app.store.sessions.current("chat")
        assert current is not None
        await block(app, current.run)
        await app.session("chat").delete()
        assert await process.result(timeout="10s") == DELETED


async def block(app: Lash, run: int) -> None:
    def steps() -> Steps[None]:
        yield Statement("update pylash_runs set state = 'blocked', at = null where id = ?", (run,))

    assert isinstance(app.store, SqlStore)
    await app.store.driver.run(Operation("block", steps))


async def test_a_process_that_was_away_gets_the_error_when_it_comes_back(durable: Backend) -> None:
    async with shop(durable.url, pays) as app:
        process = await started(app, "asking")
        await open_wait(app)
        await parked(app, process.id)
    async with shop(durable.url, pays, None) as app:
        await app.session("chat").delete()
        assert await app.process_handle("asking").status() is not RunState.WAITING
    async with shop(durable.url, pays) as app:
        assert await app.process_handle("asking").result(timeout="10s") == DELETED


# --- subagents ---


def agents(request: ModelRequest) -> Any:
    """Play a chief that starts a clerk, which starts a helper, which pays."""
    role, last = request.messages[0].text, request.messages[-1]
    if last.role != "user":
        return say("Done.")
    if role == "chief":
        return calls(*(call("spawn_agent", agent="clerk", task=task) for task in ("a", "b")))
    if role == "clerk":
        return call("spawn_agent", agent="helper", task="pay")
    return call("pay")


def office(url: str, config: WorkerConfig | None = PARKING) -> Lash:
    app = Lash(url, model=ScriptedModel(agents), instructions="chief", worker=config)

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    app.agent("helper", instructions="helper", tools=["pay"])
    app.agent("clerk", instructions="clerk")
    app.subagents("clerk", "helper")
    return app


async def states(app: Lash) -> list[str]:
    return sorted({view.status.value for view in await app.processes()})


@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_the_subagents_of_a_deleted_turn_are_cancelled_with_their_waits(
    backend: Backend, config: WorkerConfig
) -> None:
    async with office(backend.url, config) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        keys = [(await open_wait(app, number)).key for number in range(2)]
        assert len(await app.processes()) == 4
        if config is PARKING:
            await comes_to(app, "chat", "t1", "waiting")
        await session.delete()

        async def over() -> bool:
            return await states(app) == ["cancelled"] and await app.waits() == []

        await eventually(over)
        for key in keys:
            assert (await app.resolve(key, True)).status != "accepted"


async def test_a_program_without_a_worker_deletes_a_session_with_subagents(
    durable: Backend,
) -> None:
    async with office(durable.url) as app:
        await begin(app.session("chat"), "go", "t1")
        await open_wait(app, 1)
        await comes_to(app, "chat", "t1", "waiting")
    async with office(durable.url, None) as app:
        await app.session("chat").delete()
    async with office(durable.url) as app:

        async def over() -> bool:
            return await states(app) == ["cancelled"] and await app.waits() == []

        await eventually(over)


async def test_a_subagent_whose_own_session_is_deleted_is_cancelled(backend: Backend) -> None:
    async with office(backend.url) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(app)
        await open_wait(app, 1)
        await app.session(wait.name.scope.id).delete()
        rest = (await eventually(lambda: only_one(app))).key
        assert (await app.resolve(rest, True)).status == "accepted"
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.text == "Done."


async def only_one(app: Lash) -> Any:
    waits = await app.waits()
    return waits[0] if len(waits) == 1 else None


async def test_other_processes_of_a_deleted_session_go_on(backend: Backend) -> None:
    async with shop(backend.url, pays) as app:
        process = await started(app, "asking", "other")
        await open_wait(app)
        await begin(app.session("chat"), "go", "t1")
        await open_wait(app, 1)
        await app.session("chat").delete()
        wait = await only_one(app)
        assert (await app.resolve(wait.key, True)).status == "accepted"
        assert await process.result(timeout="10s") == ["completed", None]


@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_a_subagent_that_is_ended_by_force_leaves_no_approval_and_no_subagent(
    backend: Backend, config: WorkerConfig
) -> None:
    async with office(backend.url, config) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        waits = [await open_wait(app, number) for number in range(2)]
        helper = app.process_handle(waits[0].name.scope.id)
        await helper.cancel(force=True)
        assert (await only_one(app)).key == waits[1].key
        assert (await app.resolve(waits[0].key, True)).status == "already_resolved"
        clerks = [view.id for view in await app.processes() if view.id.startswith("clerk")]
        for clerk in clerks:
            await app.process_handle(clerk).cancel(force=True)
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.text == "Done."

        async def over() -> bool:
            ended = await states(app)
            return "waiting" not in ended and "running" not in ended and not await app.waits()

        await eventually(over)


@pytest.mark.stumbles
async def test_a_turn_that_cannot_be_replayed_and_is_given_up_takes_its_subagents_along(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office(backend.url) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await open_wait(app, 1)
        await comes_to(app, "chat", "t1", "waiting")
        run_turn = TurnDriver.run_turn

        async def broken(driver: TurnDriver) -> Any:
            if driver.session.id == "chat":
                raise ValueError("it cannot be replayed")
            return await run_turn(driver)

        monkeypatch.setattr(TurnDriver, "run_turn", broken)
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.status == "cancelled"

        async def over() -> bool:
            return await states(app) == ["cancelled"] and await app.waits() == []

        await eventually(over)
