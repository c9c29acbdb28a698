"""Long sessions: opened again they read what somebody looks at, and nobody sees the difference."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from pylash import Attachment, Lash, ModelReply, ModelRequest, Text, UserMessage, WorkerConfig
from pylash.stores.sessions import SqlSessions
from pylash.testing import ScriptedModel, call, calls, say
from pylash.values import StoreUnavailable
from tests.backends import Backend, PostgresBackend, SqliteBackend, postgres_url

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


class Looking:
    """A model that looks at the first message on the loop, and does not say so."""

    async def respond(self, request: ModelRequest, _: object) -> ModelReply:
        return say(request.messages[0].text)


async def test_a_model_that_looks_on_the_loop_waits_for_no_network(
    long: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, readers = SqlSessions.reader, set[str]()

    def noted(sessions: SqlSessions, path: Any) -> Any:
        read = reader(sessions, path)
        assert read is not None

        def in_thread() -> Any:
            readers.add(threading.current_thread().name)
            return read()

        return in_thread

    monkeypatch.setattr(SqlSessions, "reader", noted)
    async with Lash(long.url, model=Looking()) as app:
        result = await app.session("long").turn("and now", timeout="10s")
        assert result.text == "turn 0"
    on_loop = threading.current_thread().name in readers
    assert on_loop == isinstance(long, SqliteBackend)


async def test_on_postgresql_too_old_messages_are_read_only_for_who_looks(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresBackend(postgres) as backend:
        await fill(backend)
        model = ScriptedModel(lambda _: say("Fine."))
        async with Lash(backend.url, model=model) as app:
            assert (await app.session("long").turn("and now", timeout="10s")).text == "Fine."
        (request,) = model.requests
        connection = await asyncpg.connect(backend.url)
        await connection.execute(
            "update pylash_nodes set body = convert_to('{broken', 'UTF8') "
            "where id = (select min(id) from pylash_nodes)"
        )
        await connection.close()
        assert request.messages[-2].text == "Counted."
        with pytest.raises(msgspec.DecodeError):  # read now, though the store is closed
            assert request.messages[0].text


async def test_a_server_that_is_gone_when_somebody_looks_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.stores.postgres.RETRY_SECONDS", 0.2)
    with postgres_url(tmp_path) as url:
        async with PostgresBackend(url) as backend:
            await fill(backend)
            model = ScriptedModel(lambda _: say("Fine."))
            async with Lash(backend.url, model=model) as app:
                await app.session("long").turn("and now", timeout="10s")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        assert model.requests[0].messages[0]


@pytest.mark.parametrize("residency", ["keep_all", "active_path_only"])
async def test_old_messages_are_read_only_for_who_looks(
    sqlite: SqliteBackend, residency: Any
) -> None:
    await fill(sqlite, worker=WorkerConfig(residency=residency))
    model = ScriptedModel(lambda _: say("Fine."))
    async with Lash(sqlite.url, model=model, worker=WorkerConfig(residency=residency)) as app:
        assert (await app.session("long").turn("and now", timeout="10s")).text == "Fine."
    (request,) = model.requests
    assert len(request.messages) == LENGTH + 1
    with closing(sqlite3.connect(sqlite.path)) as connection:
        body, place = connection.execute("select body, min(id) from pylash_nodes").fetchone()
        connection.execute(
            "update pylash_nodes set body = ? where id = ?", (body.replace(b"0", b"zero"), place)
        )
        connection.commit()
    assert request.messages[-2].text == "Counted."
    assert request.messages[0].text == "turn zero"  # read now, though the store is closed


async def test_messages_that_are_gone_are_missed_by_who_looks(sqlite: SqliteBackend) -> None:
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
    reader = SqlSessions.reader

    def failing(sessions: SqlSessions, path: Any) -> Any:
        read = reader(sessions, path)

        def once() -> Any:
            if away:
                raise away.pop()
            assert read is not None
            return read()

        return once

    monkeypatch.setattr(SqlSessions, "reader", failing)
    async with app_of(sqlite, lambda request: say(request.messages[0].text)) as app:
        assert (await app.session("long").turn("and now", timeout="10s")).text == "turn 0"
    assert not away
