"""Long sessions: every message is there after they are opened again, and a window reads only its tail."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from pylash import Attachment, Lash, ModelReply, ModelRequest, Text, UserMessage, Window
from pylash.sessions.histories import Histories
from pylash.stores.ports import runs
from pylash.stores.ports.sessions import SqlSessions
from pylash.testing import ScriptedModel, call, calls, say
from pylash.values.errors import StoreUnavailable
from tests.backends import Backend, SqliteBackend

pytestmark = pytest.mark.slow

TURNS, CALLS = 3, 300
LENGTH = TURNS * (CALLS + 3)


def app_of(backend: Backend, *replies: Any, **options: Any) -> Lash:
    app = Lash(backend.url, model=ScriptedModel(*replies), **options)

    @app.tool
    async def count(n: int) -> int:
        return n

    return app


def busy(request: ModelRequest) -> Any:
    """Call the tool often, and answer then."""
    if isinstance(request.messages[-1], UserMessage):
        return calls(*(call("count", n=n) for n in range(CALLS)))
    return say("Counted.")


def bytes_of_pictures(request: ModelRequest) -> Any:
    parts = [part for m in request.messages if isinstance(m, UserMessage) for part in m.parts]
    return say(str([part.data for part in parts if isinstance(part, Attachment)]))


async def fill(backend: Backend, first: Any = "turn 0", **options: Any) -> None:
    async with app_of(backend, busy, **options) as app:
        for asked in (first, *(f"turn {n}" for n in range(1, TURNS))):
            result = await app.session("long").turn(asked, timeout="30s")
            assert result.text == "Counted."


@pytest.fixture
async def long(durable: Backend) -> Backend:
    """A store with a long session, closed."""
    await fill(durable)
    return durable


async def test_a_model_that_looks_sees_every_message(long: Backend) -> None:
    def look(request: ModelRequest) -> Any:
        said = [m.text for m in request.messages if isinstance(m, UserMessage)]
        return say(f"{len(request.messages)}: {', '.join(said)}")

    async with app_of(long, look) as app:
        session = app.session("long")
        result = await session.turn("and now", timeout="10s")
        assert result.text == f"{LENGTH + 1}: turn 0, turn 1, turn 2, and now"
        result = await session.turn("again", timeout="10s")
        assert result.text == f"{LENGTH + 3}: turn 0, turn 1, turn 2, and now, again"
        assert len(await session.history()) == LENGTH + 4


async def test_a_model_may_look_in_a_thread_while_others_read(long: Backend) -> None:
    class Threaded:
        async def respond(self, request: ModelRequest, _: object) -> ModelReply:
            async with asyncio.TaskGroup() as group:
                seen = group.create_task(asyncio.to_thread(list, request.messages))
                history = group.create_task(session.history())
            assert seen.result()[:-1] == history.result()
            return say(str(len(seen.result())))

    async with Lash(long.url, model=Threaded()) as app:
        session = app.session("long")
        assert (await session.turn("and now", timeout="10s")).text == str(LENGTH + 1)


@pytest.mark.proves("T10")
async def test_a_window_reads_only_the_messages_that_it_sends(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(durable)
    nodes, read = SqlSessions.nodes, list[int]()

    async def counted(sessions: Any, segment: Any, after: int = 0) -> Any:
        bodies = await nodes(sessions, segment, after)
        read.append(len(bodies))
        return bodies

    monkeypatch.setattr(SqlSessions, "nodes", counted)
    async with app_of(durable, lambda request: say(str(len(request.messages)))) as app:
        session = app.session("long", history=Window(tokens=100))
        sent = int((await session.turn("and now", timeout="10s")).text)
        assert sent < sum(read) < 200
        assert len(await session.history()) == LENGTH + 2


async def test_a_reader_with_an_older_record_reads_nothing_again(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app_of(durable, lambda request: say(str(len(request.messages)))) as app:
        sessions, session = app.store.sessions, app.session("chat")
        await session.turn("one", timeout="10s")
        older = await sessions.get("chat")
        await session.turn("two", timeout="10s")
        newer = await sessions.get("chat")
        assert older is not None
        assert newer is not None
        histories, whole = Histories(sessions), await session.history()
        first = (await histories.tail(newer)).messages
        nodes, read = SqlSessions.nodes, list[int]()

        async def counted(given: Any, segment: Any, after: int = 0) -> Any:
            bodies = await nodes(given, segment, after)
            read.append(len(bodies))
            return bodies

        monkeypatch.setattr(SqlSessions, "nodes", counted)
        assert (await histories.tail(older)).messages == whole[:2]
        assert read == []
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(histories.tail(newer)) for _ in range(2)]
        assert [tail.result().messages for tail in readers] == [first, first] == [whole, whole]
        assert sum(read) == 4  # each reads what is after the older record


async def test_messages_that_are_gone_fail_the_turn(sqlite: SqliteBackend) -> None:
    await fill(sqlite)
    with closing(sqlite3.connect(sqlite.path)) as connection:
        connection.execute("delete from pylash_nodes where id = (select min(id) from pylash_nodes)")
        connection.commit()
    async with app_of(sqlite, lambda request: say(request.messages[0].text)) as app:
        result = await app.session("long").turn("one", timeout="10s")
        assert result.status == "failed"
        assert "no session 'long'" in str(result.error)


async def test_old_attachments_have_their_bytes(durable: Backend) -> None:
    await fill(durable, [Text("look"), Attachment(b"old", "image/png")])

    async with app_of(durable, bytes_of_pictures) as app:
        assert (await app.session("long").turn("and now", timeout="10s")).text == "[b'old']"


async def test_new_attachments_have_their_bytes_too(long: Backend) -> None:
    async with app_of(long, bytes_of_pictures) as app:
        session = app.session("long")
        asked: list[Text | Attachment] = [Text("look"), Attachment(b"new", "image/png")]
        assert (await session.turn(asked, timeout="10s")).text == "[b'new']"
        assert (await session.turn("and now", timeout="10s")).text == "[b'new']"


async def test_a_fork_of_a_long_session_sees_every_message(long: Backend) -> None:
    def look(request: ModelRequest) -> Any:
        return say(f"{len(list(request.messages))}: {request.messages[0].text}")

    for n in range(2):  # the second is opened with what the first one has learnt
        async with app_of(long, look) as app:
            if not n:
                await app.session("long").fork("other")
            result = await app.session("other").turn("and now", timeout="10s")
            assert result.text == f"{LENGTH + 1 + 2 * n}: turn 0"


async def test_a_session_that_is_deleted_while_it_is_read_has_no_messages(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(durable)
    async with app_of(durable, busy) as app, app_of(durable, busy) as other:
        nodes = SqlSessions.nodes

        async def late(sessions: Any, *given: Any) -> Any:
            await other.session("long").delete()
            return await nodes(sessions, *given)

        monkeypatch.setattr(SqlSessions, "nodes", late)
        async with asyncio.timeout(10):
            assert await app.session("long").history() == []


async def test_a_store_that_cannot_be_read_for_a_moment_fails_no_turn(
    sqlite: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(sqlite)
    away = [StoreUnavailable("away")]
    nodes = SqlSessions.nodes

    async def failing(sessions: Any, *given: Any) -> Any:
        if away:
            raise away.pop()
        return await nodes(sessions, *given)

    monkeypatch.setattr(SqlSessions, "nodes", failing)
    monkeypatch.setattr(runs, "BACK_OFF", 1_000)
    async with app_of(sqlite, lambda request: say(request.messages[0].text)) as app:
        assert (await app.session("long").turn("and now", timeout="10s")).text == "turn 0"
    assert not away
