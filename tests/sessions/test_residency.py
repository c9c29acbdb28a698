"""Residency: caching messages in memory does not change the requests."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from pylash import Attachment, Lash, ModelRequest, Text, WorkerConfig
from pylash.durable.sessions import Segment
from pylash.testing import ScriptedModel, kill, say
from tests.backends import Backend
from tests.sessions.scenes import transcript

KEEP = [WorkerConfig(), WorkerConfig(residency="active_path_only")]
BOTH = pytest.mark.parametrize("config", KEEP, ids=["all", "active path"])


def echo(request: ModelRequest) -> Any:
    return say(f"{len(request.messages)}: {request.messages[-1].text}")


def app_of(backend: Backend, config: WorkerConfig) -> Lash:
    return Lash(backend.url, model=ScriptedModel(echo), worker=config)


def lines(count: int) -> str:
    return "\n" + "".join(f"user       {n}\nassistant  {2 * n + 1}: {n}\n" for n in range(count))


@pytest.mark.proves("T10")
@BOTH
async def test_a_history_is_right_however_it_is_kept(
    backend: Backend, config: WorkerConfig
) -> None:
    async with app_of(backend, config) as app:
        session = app.session("chat")
        for n in range(4):
            assert (await session.turn(str(n), timeout="10s")).text == f"{2 * n + 1}: {n}"
            assert await transcript(session) == lines(n + 1)
        fork = await session.fork("fork")
        assert (await fork.turn("x", timeout="10s")).text == "9: x"
        assert await transcript(session) == lines(4)


@BOTH
async def test_a_history_is_right_after_restarts(durable: Backend, config: WorkerConfig) -> None:
    for n in range(4):
        app = app_of(durable, config)
        await app.open()
        session = app.session("chat")
        assert (await session.turn(str(n), timeout="10s")).text == f"{2 * n + 1}: {n}"
        assert await transcript(session) == lines(n + 1)
        await (kill(app) if n % 2 else app.close())


@BOTH
async def test_two_apps_on_one_store_have_one_history(
    durable: Backend, config: WorkerConfig
) -> None:
    async with app_of(durable, config) as one, app_of(durable, config) as other:
        for n in range(6):
            session = (one, other)[n % 2].session("chat")
            assert (await session.turn(str(n), timeout="10s")).text == f"{2 * n + 1}: {n}"
            for app in (one, other):
                assert await transcript(app.session("chat")) == lines(n + 1)


@BOTH
async def test_a_session_that_another_app_deleted_begins_anew_here(
    durable: Backend, config: WorkerConfig
) -> None:
    async with app_of(durable, config) as one, app_of(durable, config) as other:
        for n in range(2):
            await one.session("chat").turn(str(n), timeout="10s")
        await other.session("chat").delete()
        assert await one.session("chat").history() == []
        assert (await one.session("chat").turn("0", timeout="10s")).text == "1: 0"
        assert await transcript(one.session("chat")) == lines(1)


async def reads(app: Lash) -> int:
    """Return how often the store is asked for nodes when the histories of three sessions are read."""
    honest, asked = app.store.sessions.nodes, list[Segment]()

    def nodes(segment: Segment, after: int = 0) -> Awaitable[list[bytes]]:
        asked.append(segment)
        return honest(segment, after)

    app.store.sessions.nodes = nodes  # type: ignore[method-assign]
    for n in range(3):
        assert len(await app.session(f"s{n}").history()) == 2
    return len(asked)


@pytest.mark.proves("T10")
async def test_only_the_active_path_stays_in_memory(memory: Backend) -> None:
    app = app_of(memory, KEEP[1])
    async with app:
        for n in range(3):
            await app.session(f"s{n}").turn("hi", timeout="10s")
        assert await reads(app) == 3
    app = app_of(memory, KEEP[0])
    async with app:
        for n in range(3):
            await app.session(f"s{n}").turn("hi", timeout="10s")
        assert await reads(app) == 0


@BOTH
async def test_attachments_of_earlier_turns_are_sent_again(
    memory: Backend, config: WorkerConfig
) -> None:
    seen: list[list[bytes]] = []

    def look(request: ModelRequest) -> Any:
        parts = [part for m in request.messages if m.role == "user" for part in m.parts]
        seen.append([part.data for part in parts if isinstance(part, Attachment)])
        return say("Seen.")

    async with Lash(memory.url, model=ScriptedModel(look), worker=config) as app:
        session = app.session("chat")
        picture = Attachment(media_type="image/png", data=b"\x89PNG")
        await session.turn([Text("look"), picture], timeout="10s")
        await session.turn("and again", timeout="10s")
    assert seen == [[b"\x89PNG"], [b"\x89PNG"]]


async def test_what_is_given_out_is_not_what_is_kept(memory: Backend) -> None:
    async with app_of(memory, KEEP[0]) as app:
        session = app.session("chat")
        await session.turn("0", timeout="10s")
        (await session.history()).clear()
        assert await transcript(session) == lines(1)
