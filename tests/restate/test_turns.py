"""Turns of sessions on a real Restate server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessContext
from pylash.tasks import TaskOwner
from pylash.testing import ScriptedModel, call, calls, say
from tests.backends import eventually
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.server import RestateServer


@pytest.fixture
def apps(restate: RestateServer, tmp_path: Path) -> RestateApps:
    return RestateApps(restate, sqlite_url(tmp_path))


def session_id(apps: RestateApps) -> str:
    """Return a name that no other test uses: keys of workflows stay taken."""
    return f"chat-{abs(hash(apps.url))}"


@pytest.mark.proves("X1")
async def test_a_turn_with_parallel_tools_is_a_workflow_and_leaves_its_messages_in_the_store(
    apps: RestateApps,
) -> None:
    model = ScriptedModel([calls(call("look", n=1), call("look", n=2), call("fail")), say("done")])
    app = apps.make(model=model)

    @app.tool
    async def look(n: int) -> str:
        """Look."""
        return f"saw {n}"

    @app.tool
    async def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    async with app:
        session = app.session(session_id(apps))
        result = await session.turn("Go", turn_id="t1", timeout="20s")
        assert result.text == "done"
        again = await session.turn("Go", turn_id="t1", timeout="20s")
        assert again.text == "done"
        texts = [message.text for message in await session.history()]
        assert texts[0] == "Go"
        assert texts[2:4] == ["saw 1", "saw 2"]
        assert "broken" in texts[4]
        assert result.usage.requests == 2
    assert len(model.requests) == 2
    (row,) = await apps.server.query(
        f"select target_service_key k from sys_invocation where target_service_key = '{session_id(apps)}|t1'"
    )
    assert row["k"]


@pytest.mark.proves("X1")
async def test_an_approval_suspends_the_turn_and_another_worker_continues_it(
    apps: RestateApps,
) -> None:
    paid: list[int] = []

    def make() -> Lash:
        app = apps.make(model=ScriptedModel([call("pay", cents=5), say("paid")]))

        @app.tool(approval=True)
        async def pay(cents: int) -> str:
            """Pay."""
            paid.append(cents)
            return "ok"

        return app

    async def is_suspended() -> bool | None:
        sql = (
            f"select status from sys_invocation where target_service_key = '{session_id(apps)}|t1'"
        )
        rows = await apps.server.query(sql)
        return [row["status"] for row in rows] == ["suspended"] or None

    app, tasks = make(), TaskOwner()
    async with app:
        turn = tasks.start(app.session(session_id(apps)).turn("Pay", turn_id="t1"))
        await eventually(is_suspended)
        turn.cancel()
        await tasks.close()
    app = make()
    async with app:
        (wait,) = await app.waits(session_id=session_id(apps))
        assert (wait.tool, wait.arguments) == ("pay", {"cents": 5})
        await app.resolve(wait.key, True)
        result = await app.session(session_id(apps)).turn("Pay", turn_id="t1", timeout="20s")
        assert result.text == "paid"
    assert paid == [5]


async def test_messages_that_are_queued_join_the_turn_or_start_one(apps: RestateApps) -> None:
    entered = asyncio.Event()
    left = asyncio.Event()

    async def reply(request: Any) -> Any:
        if request.messages[-1].role == "user" and request.messages[-1].text == "first":
            return call("wait")
        return say(f"heard {request.messages[-1].text}")

    app, tasks = apps.make(model=ScriptedModel(reply)), TaskOwner()

    @app.tool
    async def wait() -> str:
        """Wait."""
        entered.set()
        await left.wait()
        return "waited"

    async with app:
        session = app.session(session_id(apps))
        turn = tasks.start(session.turn("first", timeout="20s"))
        await asyncio.wait_for(entered.wait(), 10)
        await session.enqueue("second", when="now")
        left.set()
        assert (await turn).text == "heard second"
        await session.enqueue("third")

        async def has_answered() -> bool | None:
            texts = [message.text for message in await session.history()]
            return texts[-1] == "heard third" or None

        await eventually(has_answered)


async def test_a_turn_is_cancelled_while_its_tool_runs(apps: RestateApps) -> None:
    entered = asyncio.Event()
    stopped = asyncio.Event()
    app, tasks = apps.make(model=ScriptedModel([call("hang"), say("never")])), TaskOwner()

    @app.tool
    async def hang() -> str:
        """Hang."""
        entered.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()
        return ""

    async with app:
        session = app.session(session_id(apps))
        turn = tasks.start(session.turn("Go", timeout="20s"))
        await asyncio.wait_for(entered.wait(), 10)
        await session.cancel()
        assert (await turn).status == "cancelled"
        assert stopped.is_set()


@pytest.mark.proves("X1")
async def test_subagents_and_turns_of_processes(apps: RestateApps) -> None:
    async def reply(request: Any) -> Any:
        text = request.messages[-1].text
        if text == "delegate":
            return call("spawn_agent", agent="helper", task="think")
        return say(f"answer to {text}")

    app = apps.make(model=ScriptedModel(reply))
    app.agent("helper", instructions="You help.")
    app.subagents("helper")

    @app.process
    async def writer(ctx: ProcessContext[None], name: str) -> str:
        result = await ctx.session(name).turn("write")
        return result.text

    async with app:
        result = await app.session(session_id(apps)).turn("delegate", timeout="20s")
        assert result.text == "answer to answer to think"
        handle = await app.start(writer, name=f"{session_id(apps)}-w")
        assert await handle.result(timeout="20s") == "answer to write"


async def test_events_are_streamed_to_another_process(apps: RestateApps) -> None:
    async def reply(_: Any) -> Any:
        return say("hello there")

    app = apps.make(model=ScriptedModel(reply))
    client = apps.make(submits_only=True, model=ScriptedModel(reply))
    async with app, client:
        async with client.session(session_id(apps)).stream("Hi") as stream:
            kinds = [event.type async for event in stream]
        assert kinds[-1] == "turn_completed"
        assert (await client.session(session_id(apps)).history())[-1].text == "hello there"
