"""Relays: the events of a running turn reach other processes in chunks, which are deleted at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pylash import Lash, ModelRequest, TurnEvent
from pylash.stores.operation import Operation, Statement
from pylash.testing import ScriptedModel, kill, say
from pylash.turn.requests import Delta
from tests.backends import Backend
from tests.sessions.scenes import LIVE, begin


class Speaking:
    """A model that streams pieces, and continues when the test lets it."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.go = [asyncio.Event() for _ in pieces]
        self.asked = asyncio.Event()

    async def respond(self, request: ModelRequest, listen: Any) -> Any:
        self.asked.set()
        for piece, go in zip(self.pieces, self.go, strict=True):
            for letter in piece:
                listen(Delta(letter))
            await go.wait()
        return say("".join(self.pieces))

    def finish(self) -> None:
        for go in self.go:
            go.set()


async def until(events: AsyncIterator[TurnEvent], kind: str) -> list[TurnEvent]:
    """Return what comes up to an event of a kind."""
    heard: list[TurnEvent] = []
    async with asyncio.timeout(10):
        async for event in events:
            heard.append(event)
            if event.type == kind:
                return heard
    return heard


async def rows(backend: Backend) -> int:
    """Return how many rows the side table has."""

    def steps() -> Any:
        found = yield Statement("select count(*) from pylash_turn_events")
        return found.rows[0][0]

    store = await backend.store()
    answer: int = await store.driver.run(Operation("count", steps, read_only=True))
    return answer


@pytest.mark.proves("T2")
async def test_a_turn_is_streamed_to_another_process_while_it_runs(durable: Backend) -> None:
    model = Speaking("It ships ", "today.")
    async with (
        Lash(durable.url, model=model, worker=LIVE),
        Lash(durable.url, worker=None) as client,
        client.session("chat").stream("go", turn_id="t1") as stream,
    ):
        events = aiter(stream)
        first = await until(events, "text_delta")
        assert [event.type for event in first] == ["turn_started", "text_delta"]
        assert first[-1].text == "It ships "  # in a chunk, not letter by letter
        model.go[0].set()
        second = await until(events, "text_delta")
        assert second[-1].text == "today."
        model.finish()
        rest = [event.type async for event in events]
        assert rest == ["usage", "turn_completed"]
        assert stream.result.text == "It ships today."
        assert await rows(durable) == 0


async def test_a_listener_comes_before_there_is_a_worker(durable: Backend) -> None:
    model = Speaking("Hello ", "you.")
    async with (
        Lash(durable.url, worker=None) as client,
        client.session("chat").stream("go", turn_id="t1") as stream,
    ):
        events = aiter(stream)
        async with asyncio.TaskGroup() as group:
            heard = group.create_task(until(events, "text_delta"))
            await asyncio.sleep(0)
            async with Lash(durable.url, model=model, worker=LIVE):
                assert (await heard)[-1].text == "Hello "
                model.finish()
                rest = [event async for event in events]
        assert "".join(event.text for event in rest) == "you."
        assert stream.result.text == "Hello you."
    assert await rows(durable) == 0


async def test_a_late_listener_in_another_process_gets_earlier_events(durable: Backend) -> None:
    model = Speaking("Hello ", "you.")
    async with Lash(durable.url, model=model, worker=LIVE) as worker:
        await begin(worker.session("chat"), "go", "t1")
        await model.asked.wait()
        assert await rows(durable) == 0  # nobody listens
        async with (
            Lash(durable.url, worker=None) as client,
            client.session("chat").stream("go", turn_id="t1") as stream,
        ):
            events = aiter(stream)
            assert (await until(events, "text_delta"))[-1].text == "Hello "
            assert await rows(durable) > 0
            model.finish()
            rest = [event async for event in events]
            assert "".join(event.text for event in rest) == "you."
    assert await rows(durable) == 0


async def test_nothing_is_written_when_nobody_listens(durable: Backend) -> None:
    model, looked, added = Speaking("Hello ", "you."), asyncio.Event(), 0
    async with Lash(durable.url, model=model, worker=LIVE) as app:
        events: Any = app.store.turn_events
        genuine, looking = events.add, events.is_asked

        def add(*args: Any) -> Any:
            nonlocal added
            added += 1
            return genuine(*args)

        async def is_asked(run: int) -> Any:
            answer = await looking(run)
            looked.set()
            return answer

        events.add, events.is_asked = add, is_asked
        async with app.session("chat").stream("go", turn_id="t1") as stream:
            await model.asked.wait()
            await app.session("chat").enqueue("later")  # which wakes the turn, and it looks
            await asyncio.wait_for(looked.wait(), 10)
            assert await rows(durable) == 0
            model.finish()
            assert [event.type async for event in stream][-1] == "turn_completed"
    assert added == 0


async def test_a_listener_stays_through_a_takeover(durable: Backend) -> None:
    first, second = Speaking("It sh", "never"), Speaking("It ships", ".")
    dying = Lash(durable.url, model=first, worker=LIVE)
    await dying.open()
    async with (
        Lash(durable.url, worker=None) as client,
        client.session("chat").stream("go", turn_id="t1") as stream,
    ):
        events = aiter(stream)
        assert (await until(events, "text_delta"))[-1].text == "It sh"
        await kill(dying)
        async with Lash(durable.url, model=second, worker=LIVE):
            again = await until(events, "text_delta")
            assert [event.type for event in again] == ["text_reset", "text_delta"]
            assert again[-1].text == "It ships"
            second.finish()
            assert "".join([event.text async for event in events]) == "."
        assert stream.result.text == "It ships."
    assert await rows(durable) == 0


async def test_a_listener_that_leaves_is_no_burden(durable: Backend) -> None:
    model = Speaking("Hello ", "you.")
    async with (
        Lash(durable.url, model=model, worker=LIVE) as worker,
        Lash(durable.url, worker=None) as client,
    ):
        async with client.session("chat").stream("go", turn_id="t1") as stream:
            await until(aiter(stream), "text_delta")
        model.finish()
        result = await worker.session("chat").turn("go", turn_id="t1", timeout="10s")
        assert result.text == "Hello you."
    assert await rows(durable) == 0


async def test_two_listen_elsewhere(sqlite: Backend) -> None:
    model = Speaking("Hello ", "you.")

    async def listen(client: Lash) -> list[TurnEvent]:
        async with client.session("chat").stream("go", turn_id="t1") as stream:
            return [event async for event in stream]

    async with (
        Lash(sqlite.url, model=model, worker=LIVE),
        Lash(sqlite.url, worker=None) as one,
        Lash(sqlite.url, worker=None) as other,
        asyncio.TaskGroup() as group,
    ):
        listening = [group.create_task(listen(client)) for client in (one, other)]
        await model.asked.wait()
        model.finish()
        heard = [await task for task in listening]
    for events in heard:
        assert "".join(event.text for event in events) == "Hello you."
        assert [event.type for event in events][-1] == "turn_completed"


async def test_a_deleted_session_leaves_no_rows(sqlite: Backend) -> None:
    model = Speaking("Hello ")
    async with (
        Lash(sqlite.url, model=model, worker=LIVE) as worker,
        Lash(sqlite.url, worker=None) as client,
        client.session("chat").stream("go", turn_id="t1") as stream,
    ):
        await until(aiter(stream), "text_delta")
        await worker.session("chat").delete()
        assert await rows(sqlite) == 0
        model.finish()


async def test_another_process_gets_the_same_events(sqlite: Backend) -> None:
    model = ScriptedModel([say("It ships today.", reasoning="Let me think about it.")])
    async with (
        Lash(sqlite.url, model=model, worker=LIVE) as worker,
        Lash(sqlite.url, worker=None) as client,
    ):
        async with worker.session("a").stream("go", turn_id="t") as stream:
            here = [event async for event in stream]
        async with client.session("b").stream("go", turn_id="t") as stream:
            there = [event async for event in stream]

    def text(events: list[TurnEvent], kind: str) -> str:
        return "".join(event.text for event in events if event.type == kind)

    assert text(here, "text_delta") == text(there, "text_delta") == "It ships today."
