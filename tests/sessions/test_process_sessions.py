"""Sessions inside processes: a turn is an effect, and the process is parked until the turn has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import (
    ArgumentsInvalid,
    Attachment,
    Lash,
    ModelRequest,
    ProcessCancelled,
    ProcessContext,
    ProcessFailed,
    WorkerConfig,
)
from pylash.testing import ScriptedModel, crash_everywhere, fail, kill, say
from tests.backends import Backend, eventually
from tests.sessions.crash_apps import make_writers, writers_story
from tests.sessions.scenes import LIVE, PARKING, Slow, begin, transcript

ONE_SLOT = WorkerConfig(concurrency=1, park_after="1h")


class Draft(BaseModel):
    title: str
    words: int


def echo(request: ModelRequest) -> Any:
    return say(f"{len(request.messages)}: {request.messages[-1].text}")


def writer(url: str, model: Any = echo, config: WorkerConfig = LIVE) -> Lash:
    app = Lash(url, model=ScriptedModel(model), worker=config)

    @app.process
    async def write(ctx: ProcessContext[None], *, text: str, session: str) -> str:
        draft = await ctx.session(session).turn(text)
        return draft.text

    @app.process
    async def twice(ctx: ProcessContext[None], *, session: str) -> list[str]:
        writing = ctx.session(session)
        first = await writing.turn("one")
        second = await writing.turn("two")
        assert first.turn_id != second.turn_id
        return [first.text, second.text, first.status]

    @app.process
    async def typed(ctx: ProcessContext[None]) -> int:
        result = await ctx.session("chat").turn("How long?", output=Draft)
        assert isinstance(result.value, Draft)
        return result.value.words

    return app


def started(app: Lash, name: str, id: str, **args: Any) -> Any:  # noqa: A002 - as in options
    return app.start(app.services.definitions[name].options(id=id), **args)


@pytest.mark.parametrize("config", [LIVE, PARKING, ONE_SLOT], ids=["live", "parking", "one slot"])
async def test_a_process_asks_a_session(backend: Backend, config: WorkerConfig) -> None:
    async with writer(backend.url, config=config) as app:
        handle = await started(app, "twice", "p", session="chat")
        assert await handle.result(timeout="10s") == ["1: one", "3: two", "completed"]
        assert await transcript(app.session("chat")) == (
            "\nuser       one\nassistant  1: one\nuser       two\nassistant  3: two\n"
        )


async def test_the_answer_has_the_type_that_was_asked_for(memory: Backend) -> None:
    model = [say("{}"), say('{"title": "a", "words": 7}')]
    async with writer(memory.url, model) as app:
        handle = await started(app, "typed", "p")
        assert await handle.result(timeout="10s") == 7


async def test_a_turn_that_fails_has_no_text(memory: Backend) -> None:
    async with writer(memory.url, [fail("No.")]) as app:
        handle = await started(app, "write", "p", text="a", session="chat")
        with pytest.raises(ProcessFailed, match=r"No\."):
            await handle.result(timeout="10s")


async def test_options_of_the_session_hold(memory: Backend) -> None:
    model = ScriptedModel(echo)
    app = Lash(memory.url, model=model, instructions="Be long.")

    @app.process
    async def short(ctx: ProcessContext[None]) -> str:
        asked = ctx.session("chat", instructions="Be short.")
        return (await asked.turn("hi", turn_id="mine")).turn_id

    async with app:
        assert await (await app.start(short)).result(timeout="10s") == "mine"
    assert model.requests[0].messages[0].text == "Be short."
    assert model.requests[0].turn_id == "mine"


async def test_a_turn_is_asked_once_across_a_death(durable: Backend) -> None:
    slow = Slow()
    app = writer(durable.url, slow)
    await app.open()
    await started(app, "write", "p", text="a", session="chat")
    await slow.asked.wait()
    await kill(app)
    async with writer(durable.url) as app:
        assert await app.process_handle("p").result(timeout="10s") == "1: a"
        assert len(await app.session("chat").history()) == 2


async def test_processes_queue_up_for_one_session(backend: Backend) -> None:
    running = 0

    async def alone(request: ModelRequest) -> Any:
        nonlocal running
        running += 1
        await asyncio.sleep(0.002)
        assert running == 1
        running -= 1
        return echo(request)

    async with writer(backend.url, alone) as app:
        handles = [
            await started(app, "write", f"p{n}", text=str(n), session="chat") for n in range(4)
        ]
        told = [await handle.result(timeout="10s") for handle in handles]
        assert sorted(text.partition(":")[0] for text in told) == ["1", "3", "5", "7"]


async def test_a_process_takes_an_answer_that_came_early(backend: Backend) -> None:
    slow = Slow(echo)
    async with writer(backend.url, slow) as app:
        session = app.session("chat")
        await begin(session, "mine", "t1")
        await slow.asked.wait()
        handle = await started(app, "write", "p", text="its", session="chat")

        async def queued() -> bool:
            return len(await handle.timeline()) == 2

        await eventually(queued)
        slow.go.set()
        assert await handle.result(timeout="10s") == "3: its"


@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parking"])
async def test_a_process_that_waits_for_an_answer_can_be_cancelled(
    backend: Backend, config: WorkerConfig
) -> None:
    slow = Slow(echo)
    async with writer(backend.url, slow, config) as app:
        handle = await started(app, "write", "p", text="its", session="chat")
        await slow.asked.wait()
        if config is PARKING:

            async def waits() -> bool:
                return bool(await handle.status() == "waiting")

            await eventually(waits)
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
        slow.go.set()  # the turn was somebody's question, and goes on
        result = await app.session("chat").turn("and?", timeout="10s")
        assert result.text == "3: and?"


async def test_an_attachment_must_be_stored_before() -> None:
    app = Lash("memory://", model=ScriptedModel(echo))
    caught: list[str] = []

    @app.process
    async def send(ctx: ProcessContext[None]) -> None:
        try:
            await ctx.session("chat").turn([Attachment(media_type="text/plain", data=b"x")])
        except ArgumentsInvalid as error:
            caught.append(error.message)

    async with app:
        await (await app.start(send)).result(timeout="10s")
    assert "ref" in caught[0]


async def test_side_by_side(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel(echo))

    @app.process
    async def several(ctx: ProcessContext[None]) -> list[str]:
        asking = [ctx.session(f"s{n}").turn(str(n)) for n in range(3)]
        return [result.text for result in await ctx.gather(*asking)]

    async with app:
        assert await (await app.start(several)).result(timeout="10s") == ["1: 0", "1: 1", "1: 2"]


def test_a_process_and_its_session_end_the_same_wherever_they_die() -> None:
    report = crash_everywhere(make_writers, writers_story)
    assert report.outcome == WRITERS
    assert {point.operation for point in report.points} >= {"commit", "settle"}


WRITERS = """
user       one
assistant  Heard one.
user       two
assistant  Heard two.
['Heard one.', 'Heard two.']
"""
