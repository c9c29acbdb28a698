"""Observing a session: every message once and in order, from any cursor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pylash import CursorInvalid, Lash, ModelRequest, Observed
from pylash.testing import ScriptedModel, call, kill, say
from tests.backends import EVERY_ENGINE, Backend
from tests.sessions.scenes import LIVE, PARKING, Slow, begin, comes_to


def echo(request: ModelRequest) -> Any:
    return say(f"Heard {request.messages[-1].text}.")


def app_of(backend: Backend, model: Any = echo) -> Lash:
    return backend.app(model=ScriptedModel(model), worker=LIVE)


async def messages(items: AsyncIterator[Observed], count: int) -> list[Observed]:
    """Return the next messages and gaps, live events left out."""
    found: list[Observed] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            item = await anext(items)
            if item.type != "event":
                found.append(item)
    return found


def texts(items: list[Observed]) -> list[str]:
    return [item.message.text if item.message is not None else item.type for item in items]


@EVERY_ENGINE
async def test_everything_is_observed_from_the_beginning(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("chat")
        await session.turn("one", timeout="10s")
        items = session.observe()
        assert texts(await messages(items, 2)) == ["one", "Heard one."]
        await session.turn("two", timeout="10s")
        assert texts(await messages(items, 2)) == ["two", "Heard two."]


@EVERY_ENGINE
async def test_a_cursor_goes_on_where_one_left_off(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("chat")
        await session.turn("one", timeout="10s")
        await session.turn("two", timeout="10s")
        everything = await messages(session.observe(), 4)
        for place in range(3):
            rest = await messages(session.observe(everything[place].cursor), 3 - place)
            assert texts(rest) == texts(everything[place + 1 :])
            assert [item.cursor for item in rest] == [o.cursor for o in everything[place + 1 :]]


@EVERY_ENGINE
async def test_a_session_that_is_not_there_yet_can_be_observed(backend: Backend) -> None:
    async with app_of(backend) as app:
        items = app.session("chat").observe()
        async with asyncio.TaskGroup() as group:
            heard = group.create_task(messages(items, 2))
            await asyncio.sleep(0)
            await app.session("chat").turn("one", timeout="10s")
        assert texts(heard.result()) == ["one", "Heard one."]


async def test_a_running_turn_is_observed_while_it_runs(memory: Backend) -> None:
    slow = Slow(echo)
    async with app_of(memory, slow) as app:
        session = app.session("chat")
        await begin(session, "one", "t1")
        await slow.asked.wait()
        items = session.observe()
        first = await anext(items)
        assert first.event is not None
        assert first.event.type == "turn_started"
        slow.go.set()
        kinds = []
        async with asyncio.timeout(10):
            async for item in items:
                kinds.append(item.event.type if item.event is not None else item.type)
                if kinds.count("message") == 2:
                    break
        assert kinds[-2:] == ["message", "message"]
        assert "text_delta" in kinds
        assert "turn_completed" in kinds


async def test_the_cursor_of_a_live_event_is_one_to_go_on_from(memory: Backend) -> None:
    async with app_of(memory) as app:
        session = app.session("chat")
        items = session.observe()

        async def first() -> Observed:
            return await anext(items)

        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(first())
            await asyncio.sleep(0)
            await session.turn("one", timeout="10s")
        live = hearing.result()
        assert live.type == "event"
        rest = await messages(session.observe(live.cursor), 2)
        assert texts(rest) == ["one", "Heard one."]


async def test_an_observer_reconnects_after_a_restart(durable: Backend) -> None:
    app = app_of(durable)
    await app.open()
    await app.session("chat").turn("one", timeout="10s")
    seen = await messages(app.session("chat").observe(), 1)
    await kill(app)
    async with app_of(durable) as app:
        session = app.session("chat")
        items = session.observe(seen[0].cursor)
        assert texts(await messages(items, 1)) == ["Heard one."]
        await session.turn("two", timeout="10s")
        assert texts(await messages(items, 2)) == ["two", "Heard two."]


async def test_another_app_observes(durable: Backend) -> None:
    async with app_of(durable) as worker, Lash(durable.url, worker=None) as client:
        items = client.session("chat").observe()
        async with asyncio.TaskGroup() as group:
            heard = group.create_task(messages(items, 2))
            await worker.session("chat").turn("one", timeout="10s")
        assert texts(heard.result()) == ["one", "Heard one."]


async def test_a_cursor_of_a_session_that_was_deleted_gets_a_gap(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("chat")
        await session.turn("one", timeout="10s")
        items = session.observe()
        old = (await messages(items, 2))[-1].cursor
        await session.delete()
        await session.turn("new", timeout="10s")
        for observing in (items, session.observe(old)):
            [gap] = await messages(observing, 1)
            assert gap.type == "gap"
            assert [message.text for message in gap.messages] == ["new", "Heard new."]
        await session.turn("more", timeout="10s")
        for observing in (items, session.observe(gap.cursor)):
            assert texts(await messages(observing, 2)) == ["more", "Heard more."]


async def test_a_turn_that_was_parked_is_not_observed_twice(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel([call("pay"), say("Done.")]), worker=PARKING)

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        kinds: list[str] = []
        await begin(session, "go", "t1")
        async with asyncio.timeout(10):
            async for item in session.observe():
                kinds.append(item.event.type if item.event is not None else item.type)
                if kinds[-1] == "wait_opened":
                    await comes_to(app, "chat", "t1", "waiting")
                    [wait] = await app.waits()
                    await app.resolve(wait.key, True)
                if kinds.count("message") == 4:
                    break
        for once in ("turn_started", "tool_started", "wait_opened", "turn_completed"):
            assert kinds.count(once) == 1, kinds


@pytest.mark.parametrize("cursor", ["", "v1", "v2.1.1", "v1.x.y", "v1.1.-1", 7, "v1.1.1.1"])
async def test_an_invalid_cursor_is_refused(cursor: Any) -> None:
    async with Lash("memory://") as app:
        with pytest.raises(CursorInvalid):
            await anext(app.session("chat").observe(cursor))


@EVERY_ENGINE
async def test_a_fork_is_observed_with_what_it_began_with(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("chat")
        await session.turn("one", turn_id="t1", timeout="10s")
        await session.turn("two", timeout="10s")
        fork = await session.fork("fork", at="t1")
        items = fork.observe()
        seen = await messages(items, 2)
        assert texts(seen) == ["one", "Heard one."]
        await fork.turn("else", timeout="10s")
        assert texts(await messages(items, 2)) == ["else", "Heard else."]
        again = await messages(fork.observe(seen[0].cursor), 3)
        assert texts(again) == ["Heard one.", "else", "Heard else."]
        # A cursor of the origin says nothing about the fork.
        origin = (await messages(session.observe(), 1))[0].cursor
        assert (await messages(fork.observe(origin), 1))[0].type == "gap"
