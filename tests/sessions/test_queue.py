"""The queue: messages for a session that is busy, idle or waiting, from people and from processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import (
    ArgumentsInvalid,
    Delta,
    Lash,
    ModelRequest,
    ProcessContext,
    Retry,
    ToolContext,
    WorkerConfig,
)
from pylash.testing import ScriptedModel, call, calls, kill, say
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.sessions.scenes import LIVE, PARKING, Slow, begin, open_wait, transcript


def echo(request: ModelRequest) -> Any:
    return say(f"I heard {request.messages[-1].text}.")


class Busy:
    """An app whose first turn is in a tool until it is let go."""

    def __init__(self, url: str, config: WorkerConfig = LIVE) -> None:
        self.inside, self.go = asyncio.Event(), asyncio.Event()
        self.model = ScriptedModel(self._reply)
        self.app = Lash(url, model=self.model, worker=config)

        @self.app.tool
        async def work() -> str:
            self.inside.set()
            await self.go.wait()
            return "worked"

    def _reply(self, request: ModelRequest) -> Any:
        return call("work") if request.call_number == 0 else say(f"Reply {request.call_number}.")


async def shows(session: Any, expected: str) -> None:
    """Return once a session's transcript is as expected."""

    async def look() -> bool:
        return await transcript(session) == expected

    try:
        await eventually(look)
    except TimeoutError:
        assert await transcript(session) == expected


@EVERY_ENGINE
@pytest.mark.proves("T9")
@pytest.mark.parametrize("when", ["next_turn", "now", "interrupt"])
async def test_an_idle_session_begins_a_turn(backend: Backend, when: Any) -> None:
    app = backend.app(model=ScriptedModel(echo))
    async with app:
        session = app.session("chat")
        await session.enqueue("hello", when=when)
        await shows(session, "\nuser       hello\nassistant  I heard hello.\n")


@pytest.mark.proves("T7")
async def test_words_for_now_come_after_the_results_of_the_open_batch(memory: Backend) -> None:
    busy = Busy(memory.url)
    async with busy.app:
        session = busy.app.session("chat")
        await begin(session, "go", "t1")
        await busy.inside.wait()
        await session.enqueue("hurry", when="now")
        busy.go.set()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Reply 1."
        await shows(
            session,
            "\nuser       go"
            "\nassistant  i1.c0 work()"
            "\ntool       i1.c0 work: worked"
            "\nuser       hurry"
            "\nassistant  Reply 1.\n",
        )


@EVERY_ENGINE
async def test_a_tool_adds_a_message_at_the_next_checkpoint_once(backend: Backend) -> None:
    model = ScriptedModel([calls(call("look"), call("other")), say("Done.")])
    app = backend.app(model=model)

    @app.tool(retry=Retry(2, delay="1ms"))
    async def look(ctx: ToolContext[None]) -> str:
        session = app.session(ctx.session_id)
        await session.enqueue("Look twice.", when="now", key=ctx.idempotency_key)
        if ctx.attempt == 1:
            raise OSError("away")
        return "looked"

    @app.tool
    async def other() -> str:
        return "other"

    async with app:
        session = app.session("chat")
        await session.turn("go", timeout="10s")
        await shows(
            session,
            "\nuser       go"
            "\nassistant  i1.c0 look(), i1.c1 other()"
            "\ntool       i1.c0 look: looked"
            "\ntool       i1.c1 other: other"
            "\nuser       Look twice."
            "\nassistant  Done.\n",
        )


async def test_messages_for_the_next_turn_wait_for_it(memory: Backend) -> None:
    busy = Busy(memory.url)
    async with busy.app:
        session = busy.app.session("chat")
        await begin(session, "go", "t1")
        await busy.inside.wait()
        await session.enqueue("and then")
        await session.enqueue("and also")
        busy.go.set()
        await shows(
            session,
            "\nuser       go"
            "\nassistant  i1.c0 work()"
            "\ntool       i1.c0 work: worked"
            "\nassistant  Reply 1."
            "\nuser       and then"
            "\nuser       and also"
            "\nassistant  Reply 2.\n",
        )


async def test_messages_for_the_next_turn_are_taken_by_a_requested_turn(
    backend: Backend,
) -> None:
    busy = Busy(backend.url)
    async with busy.app, asyncio.TaskGroup() as group:
        session = busy.app.session("chat")
        await begin(session, "go", "t1")
        await busy.inside.wait()
        following = group.create_task(session.turn("next", turn_id="t2", timeout="10s"))
        await session.enqueue("by the way")
        await session.enqueue("hurry", when="now")
        busy.go.set()
        assert (await following).text == "Reply 2."
        assert (await transcript(session)).splitlines()[3:] == [
            "tool       i1.c0 work: worked",
            "user       hurry",
            "assistant  Reply 1.",
            "user       next",
            "user       by the way",
            "assistant  Reply 2.",
        ]


async def test_messages_that_arrive_during_the_last_answer_begin_a_turn(memory: Backend) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def model(request: ModelRequest) -> Any:
        if request.call_number == 0:
            asked.set()
            await go.wait()
        return say(f"Reply {request.call_number}.")

    app = Lash(memory.url, model=ScriptedModel(model))
    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await asked.wait()
        await session.enqueue("wait", when="now")
        await session.enqueue("stop", when="interrupt")
        go.set()
        await shows(
            session,
            "\nuser       go\nassistant  Reply 0.\nuser       wait\nuser       stop"
            "\nassistant  Reply 1.\n",
        )


async def test_the_same_key_is_the_same_message(backend: Backend) -> None:
    busy = Busy(backend.url)
    async with busy.app:
        session = busy.app.session("chat")
        await begin(session, "go", "t1")
        await busy.inside.wait()
        for _ in range(3):
            await session.enqueue("once", when="now", key="k")
        busy.go.set()
        await session.turn("go", turn_id="t1", timeout="10s")
        assert (await transcript(session)).count("once") == 1


async def test_an_unknown_value_of_when_is_refused() -> None:
    async with Lash("memory://", model=ScriptedModel(echo)) as app:
        with pytest.raises(ArgumentsInvalid, match="when='later' is not one of next_turn, now"):
            await app.session("chat").enqueue("hi", when="later")  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_messages_for_now_do_not_answer_an_approval(
    memory: Backend, config: WorkerConfig
) -> None:
    app = Lash(memory.url, model=ScriptedModel([call("pay"), say("Done.")]), worker=config)

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(app)
        await session.enqueue("hurry", when="now")
        assert [one.key for one in await app.waits()] == [wait.key]
        await app.resolve(wait.key, True)
        await session.turn("go", turn_id="t1", timeout="10s")
        assert (await transcript(session)).splitlines()[3:] == [
            "tool       i1.c0 pay: paid",
            "user       hurry",
            "assistant  Done.",
        ]


@EVERY_ENGINE
async def test_an_interrupt_before_the_question_takes_its_place_too(backend: Backend) -> None:
    """It came while the model was thinking of asking."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def model(request: ModelRequest) -> Any:
        if request.call_number == 0:
            asked.set()
            await go.wait()
            return call("pay")
        return say("Done.")

    app = backend.app(model=ScriptedModel(model))

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await asked.wait()
        await session.enqueue("Never mind.", when="interrupt")
        go.set()
        assert (await session.turn("go", turn_id="t1", timeout="5s")).text == "Done."
        assert (await transcript(session)).splitlines()[3:] == [
            "tool       i1.c0 pay error: Not run: superseded by a new message.",
            "user       Never mind.",
            "assistant  Done.",
        ]


class Rambling:
    """A model that answers the first question piece by piece, each when it is let go."""

    def __init__(self, later: Slow | None = None) -> None:
        self.later = later
        self.pieces: asyncio.Queue[str] = asyncio.Queue()
        self.asked, self.stopped = asyncio.Event(), asyncio.Event()
        self.requests: list[ModelRequest] = []

    async def respond(self, request: ModelRequest, listen: Any) -> Any:
        self.requests.append(request)
        if request.call_number:
            return say("Done.") if self.later is None else await self.later(request)
        self.asked.set()
        try:
            while True:
                listen(Delta(await self.pieces.get()))
                self.pieces.task_done()
        except asyncio.CancelledError:
            self.stopped.set()
            raise


@EVERY_ENGINE
@pytest.mark.parametrize("first", ["the text", "the interrupt"])
async def test_an_interrupt_stops_an_answer_and_keeps_its_text(
    backend: Backend, first: str
) -> None:
    model = Rambling()
    async with backend.app(model=model, worker=LIVE) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await model.asked.wait()
        if first == "the text":
            model.pieces.put_nowait("It sh")
            await model.pieces.join()
            await session.enqueue("Never mind.", when="interrupt")
        else:
            await session.enqueue("Never mind.", when="interrupt")
            model.pieces.put_nowait("It sh")
        await asyncio.wait_for(model.stopped.wait(), 10)
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  It sh, interrupted"
            "\nuser       Never mind."
            "\nassistant  Done.\n"
        )


async def test_messages_for_now_let_an_answer_end(memory: Backend) -> None:
    slow = Slow(lambda _: say("It ships today."))
    async with Lash(memory.url, model=ScriptedModel(slow), worker=LIVE) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await slow.asked.wait()
        await session.enqueue("hurry", when="now")
        slow.go.set()
        await session.turn("go", turn_id="t1", timeout="10s")
        assert "interrupted" not in await transcript(session)


async def test_an_interrupted_answer_survives_a_death(durable: Backend) -> None:
    """It is recorded before the words are taken."""
    slow = Slow()
    model = Rambling(later=slow)
    app = Lash(durable.url, model=model, worker=LIVE)
    await app.open()
    session = app.session("chat")
    await begin(session, "go", "t1")
    await model.asked.wait()
    await session.enqueue("Never mind.", when="interrupt")
    model.pieces.put_nowait("It sh")
    await asyncio.wait_for(slow.asked.wait(), 10)
    await kill(app)
    async with Lash(durable.url, model=Rambling(), worker=LIVE) as second:
        session = second.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  It sh, interrupted"
            "\nuser       Never mind."
            "\nassistant  Done.\n"
        )


# --- wakes ---


@pytest.mark.proves("P13", "T9")
async def test_a_process_wakes_the_session_it_was_started_for(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel(echo))

    @app.process
    async def report(ctx: ProcessContext[None], day: str) -> None:
        await ctx.wake(f"{day} is ready")

    async with app:
        await app.start(report.options(wake="chat"), day="Monday")
        await shows(
            app.session("chat"),
            "\nwake       Monday is ready\nassistant  I heard Monday is ready.\n",
        )


@pytest.mark.proves("P13")
async def test_a_wake_joins_the_turn_that_runs(backend: Backend) -> None:
    busy = Busy(backend.url)

    @busy.app.process
    async def report(ctx: ProcessContext[None]) -> None:
        await ctx.wake("ready")

    async with busy.app:
        session = busy.app.session("chat")
        await begin(session, "go", "t1")
        await busy.inside.wait()
        await (await busy.app.start(report.options(wake="chat"))).result(timeout="10s")
        busy.go.set()
        await session.turn("go", turn_id="t1", timeout="10s")
        assert (await transcript(session)).splitlines()[3:] == [
            "tool       i1.c0 work: worked",
            "wake       ready",
            "assistant  Reply 1.",
        ]


@EVERY_ENGINE
async def test_wakes_of_many_are_delivered_once_each(backend: Backend) -> None:
    app = backend.app(model=ScriptedModel(lambda _: say("Noted.")))

    @app.process
    async def report(ctx: ProcessContext[None], n: int) -> None:
        await ctx.wake(f"ready {n:02}")

    async with app:
        session = app.session("chat")
        for n in range(10):
            await app.start(report.options(wake="chat"), n=n)

        async def all_heard() -> bool:
            return (await transcript(session)).count("wake ") == 10

        await eventually(all_heard)
        words = [
            line.split()[-1] for line in (await transcript(session)).splitlines() if "wake" in line
        ]
        assert sorted(words) == [f"{n:02}" for n in range(10)]


@pytest.mark.proves("T9")
async def test_after_twenty_turns_without_a_person_one_must_speak(memory: Backend) -> None:
    """Every answer to a wake makes the process wake again."""
    heard = asyncio.Event()
    count = 0

    def model(request: ModelRequest) -> Any:
        nonlocal count
        count += 1
        heard.set()
        return say("Again.")

    app = Lash(memory.url, model=ScriptedModel(model))

    @app.process
    async def nag(ctx: ProcessContext[None]) -> None:
        for n in range(1000):
            await ctx.wake(f"nag {n}")
            await ctx.wait_signal("again")

    async with app:
        session = app.session("chat")
        handle = await app.start(nag.options(wake="chat", id="nag"))
        for turn in range(1, 21):

            async def answered(turn: int = turn) -> bool:
                return (await transcript(session)).count("assistant") == turn

            await eventually(answered)
            await handle.signal("again")
        await asyncio.sleep(0.1)
        assert count == 20
        assert (await session.turn("I am here.", timeout="10s")).text == "Again."
        shown = (await transcript(session)).splitlines()
        assert shown[-3:] == ["user       I am here.", "wake       nag 20", "assistant  Again."]


async def test_what_was_queued_survives_a_death(durable: Backend) -> None:
    first = Busy(durable.url)
    await first.app.open()
    await begin(first.app.session("chat"), "go", "t1")
    await first.inside.wait()
    await first.app.session("chat").enqueue("hurry", when="now")
    await kill(first.app)
    second = Busy(durable.url)
    second.go.set()
    async with second.app:
        session = second.app.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Reply 1."
        assert (await transcript(session)).splitlines()[3:] == [
            "tool       i1.c0 work: worked",
            "user       hurry",
            "assistant  Reply 1.",
        ]


@pytest.mark.proves("T9")
async def test_a_delivered_message_is_not_delivered_again_after_a_death(durable: Backend) -> None:
    """It dies in the model call that has the message."""
    slow = Slow()
    first = Lash(durable.url, model=ScriptedModel(slow), worker=LIVE)
    await first.open()
    await first.session("chat").enqueue("hello")
    await slow.asked.wait()
    await first.session("chat").enqueue("later", when="now")
    await kill(first)
    async with Lash(durable.url, model=ScriptedModel(echo)) as app:
        await shows(
            app.session("chat"),
            "\nuser       hello\nassistant  I heard hello."
            "\nuser       later\nassistant  I heard later.\n",
        )
