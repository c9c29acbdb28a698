"""Streams: all events of a turn, in order, live or recorded; listening does not slow the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pylash import ArgumentsInvalid, Lash, ModelRequest, Retry, ToolContext, TurnEvent, WorkerConfig
from pylash.testing import ScriptedModel, SimClock, call, calls, fail, kill, say
from pylash.turn.requests import Delta
from pylash.values.turn_errors import ProviderError
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.sessions.scenes import LIVE, PARKING, begin, comes_to, open_wait


async def heard(stream: Any) -> list[TurnEvent]:
    return [event async for event in stream]


def told(events: list[TurnEvent]) -> list[str]:
    """Return events as lines, the pieces of a text put together."""
    lines: list[str] = []
    for event in events:
        what = f"{event.type} {event.correlation_id}"
        if event.type == "text_delta" and lines and lines[-1].startswith(what):
            lines[-1] += event.text
        elif event.type in ("text_delta", "tool_progress", "tool_completed"):
            lines.append(f"{what}: {event.text}")
        else:
            lines.append(what)
    return lines


def shop(make: Callable[..., Lash], config: WorkerConfig = LIVE) -> Lash:
    app = make(
        model=ScriptedModel([call("look", n=1), say("It ships today, I think.")]),
        worker=config,
    )

    @app.tool
    async def look(ctx: ToolContext[None], n: int) -> str:
        ctx.progress("half", 0.5)
        await asyncio.sleep(0)
        return "sent"

    return app


LIVE_STORY = [
    "turn_started t1",
    "usage i1.llm",
    "tool_started i1.c0",
    "tool_progress i1.c0: half",
    "tool_completed i1.c0: sent",
    "text_delta i2.llm: It ships today, I think.",
    "usage i2.llm",
    "turn_completed t1",
]
RECORDED_STORY = [line for line in LIVE_STORY if "progress" not in line]


@pytest.mark.proves("T2")
@EVERY_ENGINE
async def test_a_turn_is_streamed_live(backend: Backend) -> None:
    async with shop(backend.app) as app:
        async with app.session("chat").stream("go", turn_id="t1") as stream:
            with pytest.raises(ArgumentsInvalid, match="has not ended"):
                _ = stream.result
            events = await heard(stream)
        assert told(events) == LIVE_STORY
        assert stream.turn_id == "t1"
        assert stream.result.text == "It ships today, I think."
        assert len([event for event in events if event.type == "text_delta"]) == 3
        assert events[-1].status == "completed"
        assert events[-1].usage == stream.result.usage
        started = next(event for event in events if event.type == "tool_started")
        assert (started.tool, started.data) == ("look", {"n": 1})


async def test_a_turn_that_ended_is_streamed_from_its_record(memory: Backend) -> None:
    async with shop(memory.app) as app:
        session = app.session("chat")
        await session.turn("go", turn_id="t1", timeout="10s")
        async with session.stream("go", turn_id="t1") as stream:
            assert told(await heard(stream)) == RECORDED_STORY
        assert stream.result.text == "It ships today, I think."


async def test_a_turn_that_ended_is_streamed_after_a_restart(sqlite: Backend) -> None:
    async with shop(sqlite.app) as app:
        await app.session("chat").turn("before", timeout="10s")
        await app.session("other").turn("go", turn_id="t1", timeout="10s")
    async with (
        shop(sqlite.app) as app,
        app.session("other").stream("go", turn_id="t1") as stream,
    ):
        assert told(await heard(stream)) == RECORDED_STORY


async def test_a_late_listener_gets_every_event_and_joins(memory: Backend) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def model(request: ModelRequest) -> Any:
        if request.call_number:
            asked.set()
            await go.wait()
            return say("Done.")
        return call("look", n=1)

    app = shop(memory.app)
    app.model("slow", ScriptedModel(model))
    async with app, asyncio.TaskGroup() as group:
        session = app.session("chat", model="slow")
        await begin(session, "go", "t1")
        await asked.wait()
        listening = []
        for _ in range(2):
            stream = await session.stream("go", turn_id="t1").__aenter__()
            listening.append(group.create_task(heard(stream)))
        await asyncio.sleep(0.01)
        go.set()
        first, second = [told(await one) for one in listening]
    assert first == second
    assert first[0] == "turn_started t1"
    assert first[-3:] == ["text_delta i2.llm: Done.", "usage i2.llm", "turn_completed t1"]


@pytest.mark.proves("T2")
async def test_leaving_a_stream_never_cancels_the_turn(memory: Backend) -> None:
    async with shop(memory.app) as app:
        session = app.session("chat")
        async with session.stream("go", turn_id="t1") as stream:
            async for event in stream:
                if event.type == "tool_started":
                    break
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.text == "It ships today, I think."


@pytest.mark.proves("T2")
async def test_a_slow_listener_gets_every_event_and_delays_nothing() -> None:
    async with shop(partial(Lash, "memory://")) as app:
        session = app.session("chat")
        slow = session.stream("go", turn_id="t1")
        await slow.__aenter__()
        events = aiter(slow)
        first = await anext(events)
        result = await session.turn("go", turn_id="t1", timeout="10s")
        rest = [event async for event in events]
        assert told([first, *rest]) == LIVE_STORY
        assert slow.result.text == result.text


async def test_an_opened_wait_is_an_event_with_its_key(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel([call("pay"), say("Done.")]), worker=PARKING)

    @app.tool(approval="money leaves")
    async def pay() -> str:
        return "paid"

    async with app:
        lines = []
        async with app.session("chat").stream("go", turn_id="t1") as stream:
            async for event in stream:
                lines.append(event)
                if event.type == "wait_opened":
                    assert event.data["title"] == "money leaves"
                    await comes_to(app, "chat", "t1", "waiting")
                    await app.resolve(event.data["key"], True)
        assert [line for line in told(lines) if "reset" not in line] == [
            "turn_started t1",
            "usage i1.llm",
            "tool_started i1.c0",
            "wait_opened i1.c0.approval",
            "tool_completed i1.c0: paid",
            "text_delta i2.llm: Done.",
            "usage i2.llm",
            "turn_completed t1",
        ]


async def test_a_reply_before_a_wait_is_streamed_once_wherever_the_turn_continues(
    memory: Backend,
) -> None:
    asks = calls(say("I ask."), call("pay"))
    app = Lash(memory.url, model=ScriptedModel([asks, say("Done.")]), worker=PARKING)

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async def look() -> bool:
        """Whether the turn was woken to repeat its events for listeners in other processes."""
        turn = await app.store.sessions.current("chat")
        assert turn is not None
        return len(await app.store.turn_events.read(turn.run, 0)) > 0

    async with app:
        lines = []
        async with app.session("chat").stream("go", turn_id="t1") as stream:
            events = aiter(stream)
            async for event in events:
                lines.append(event)
                if event.type == "wait_opened":
                    break
            async with asyncio.TaskGroup() as group:
                rest = group.create_task(heard(events))
                await eventually(look)
                await app.resolve(lines[-1].data["key"], True)
        lines += rest.result()
        assert [line for line in told(lines) if line.startswith("text")] == [
            "text_delta i1.llm: I ask.",
            "text_delta i2.llm: Done.",
        ]


class Stuttering:
    """A model that says half of it, fails, and says all of it the next time."""

    def __init__(self) -> None:
        self.asked = 0

    async def respond(self, request: ModelRequest, listen: Any) -> Any:
        self.asked += 1
        listen(Delta("It ships "))
        if self.asked == 1:
            raise ProviderError("cut off", retryable=True)
        listen(Delta("today."))
        return say("It ships today.")


async def test_the_streamed_text_of_a_repeated_answer_is_reset() -> None:
    clock = SimClock()
    app = Lash("memory://", model=Stuttering(), clock=clock)
    async with app, asyncio.TaskGroup() as group:
        stream = await app.session("chat").stream("go", turn_id="t1").__aenter__()
        listening = group.create_task(heard(stream))
        await comes_to(app, "chat", "t1", "running")
        await clock.advance("1m")
        events = await listening
    assert told(events) == [
        "turn_started t1",
        "text_delta i1.llm: It ships ",
        "text_reset i1.llm",
        "text_delta i1.llm: It ships today.",
        "usage i1.llm",
        "turn_completed t1",
    ]
    reset = next(event for event in events if event.type == "text_reset")
    assert (reset.attempt, reset.text) == (2, "cut off")


async def test_a_retried_tool_is_reported_once(sqlite: Backend) -> None:
    app = Lash(sqlite.url, model=ScriptedModel([call("wobble"), say("Done.")]), worker=PARKING)

    @app.tool(retry=Retry(2, delay="300ms", jitter=False))  # it is parked meanwhile
    async def wobble(ctx: ToolContext[None]) -> str:
        if ctx.attempt == 1:
            raise ValueError("it fell")
        return "it stands"

    async with app, app.session("chat").stream("go") as stream:
        events = await heard(stream)
    again = [event for event in events if event.type == "tool_progress"]
    assert [(one.tool, one.attempt, one.text) for one in again] == [
        ("wobble", 2, "ValueError: it fell")
    ]


async def test_a_model_call_that_is_repeated_after_a_death_resets_the_text(
    sqlite: Backend,
) -> None:
    begun = asyncio.Event()

    class Dying:
        async def respond(self, request: ModelRequest, listen: Any) -> Any:
            listen(Delta("It sh"))
            begun.set()
            await asyncio.Event().wait()

    first = Lash(sqlite.url, model=Dying(), worker=LIVE)
    await first.open()
    await begin(first.session("chat"), "go", "t1")
    await begun.wait()
    await kill(first)
    async with (
        Lash(sqlite.url, model=ScriptedModel([say("It ships.")])) as app,
        app.session("chat").stream("go", turn_id="t1") as stream,
    ):
        events = await heard(stream)
        assert stream.result.text == "It ships."
    shown = told(events)
    assert shown in (
        [
            "turn_started t1",
            "text_reset i1.llm",
            "text_delta i1.llm: It ships.",
            "usage i1.llm",
            "turn_completed t1",
        ],
        ["turn_started t1", "text_delta i1.llm: It ships.", "usage i1.llm", "turn_completed t1"],
    )


async def test_a_turn_that_runs_elsewhere_is_streamed_when_it_has_ended(durable: Backend) -> None:
    async with shop(durable.app) as worker, Lash(durable.url, worker=None) as client:
        assert worker is not client
        async with client.session("chat").stream("go", turn_id="t1") as stream:
            lines = told(await heard(stream))  # a slow turn may also be streamed live
        assert [line for line in lines if "progress" not in line] == RECORDED_STORY
        assert stream.result.text == "It ships today, I think."


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_a_turn_that_does_not_complete_is_streamed_to_its_end(end: str) -> None:
    app = Lash("memory://", model=ScriptedModel([call("pay"), fail("Gone.")]))

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        async with session.stream("go", turn_id="t1") as stream, asyncio.TaskGroup() as group:
            listening = group.create_task(heard(stream))
            wait = await open_wait(app)
            if end == "cancelled":
                await session.cancel()
            else:
                await app.resolve(wait.key, True)
            events = await listening
        assert (events[-1].type, events[-1].status) == ("turn_completed", end)
        assert stream.result.status == end
        started = {event.correlation_id for event in events if event.type == "tool_started"}
        completed = {event.correlation_id for event in events if event.type == "tool_completed"}
        assert started == completed == {"i1.c0"}


async def test_reasoning_is_streamed_beside_the_text() -> None:
    async with Lash("memory://", model=ScriptedModel([say("Yes.", reasoning="Hm.")])) as app:
        async with app.session("chat").stream("go", turn_id="t1") as stream:
            events = await heard(stream)
        kinds = [(event.type, event.text) for event in events if "delta" in event.type]
        assert kinds == [("reasoning_delta", "Hm."), ("text_delta", "Yes.")]
