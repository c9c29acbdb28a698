"""Turns: asked once, answered once, one after another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import (
    AppNotOpen,
    Lash,
    ModelRequest,
    TurnBudget,
    TurnFailed,
    TurnInputConflict,
    WorkerConfig,
)
from pylash.testing import ScriptedModel, SimClock, call, fail, kill, say
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.sessions.scenes import (
    LIVE,
    Slow,
    begin,
    comes_to,
    effects_of,
    open_wait,
    state_of,
    transcript,
)


def echo(request: ModelRequest) -> Any:
    """Answer with what was said last."""
    return say(f"You said {request.messages[-1].text}.")


@EVERY_ENGINE
@pytest.mark.proves("T10")
async def test_a_turn_is_answered_and_remembered(backend: Backend) -> None:
    app = backend.app(model=ScriptedModel(echo), instructions="Be kind.")
    async with app:
        session = app.session("chat")
        assert (await session.turn("one", timeout="10s")).text == "You said one."
        assert (await session.turn("two", timeout="10s")).text == "You said two."
        assert await transcript(session) == (
            "\nuser       one\nassistant  You said one.\nuser       two\nassistant  You said two.\n"
        )


async def test_a_model_gets_its_instructions_and_the_messages() -> None:
    model = ScriptedModel(echo)
    app = Lash("memory://", model=model, instructions="Be kind.")
    async with app:
        session = app.session("chat")
        await session.turn("one")
        await session.turn("two")
    asked = [[(message.role, message.text) for message in r.messages] for r in model.requests]
    assert asked[1] == [
        ("system", "Be kind."),
        ("user", "one"),
        ("assistant", "You said one."),
        ("user", "two"),
    ]
    assert [request.call_number for request in model.requests] == [0, 1]


@EVERY_ENGINE
async def test_the_same_turn_id_gives_the_same_result(backend: Backend) -> None:
    model = ScriptedModel(echo)
    app = backend.app(model=model)
    async with app:
        session = app.session("chat")
        first = await session.turn("one", turn_id="t1", timeout="10s")
        again = await session.turn("one", turn_id="t1", timeout="10s")
        assert (first.text, first.usage, first.turn_id) == (again.text, again.usage, again.turn_id)
        with pytest.raises(TurnInputConflict) as caught:
            await session.turn("other", turn_id="t1")
        assert caught.value.code == "turn_input_conflict"
        assert (await app.session("other").turn("other", turn_id="t1")).text == "You said other."
    assert len(model.requests) == 2


async def test_the_same_turn_id_gives_the_same_result_after_a_restart(durable: Backend) -> None:
    model = ScriptedModel(echo)
    for _ in range(2):
        app = Lash(durable.url, model=model)
        async with app:
            result = await app.session("chat").turn("one", turn_id="t1", timeout="10s")
            assert result.text == "You said one."
    assert len(model.requests) == 1


@EVERY_ENGINE
async def test_two_callers_of_one_turn_share_it(backend: Backend) -> None:
    slow = Slow(lambda _: say("Once."))
    model = ScriptedModel(slow)
    app = backend.app(model=model)
    async with app, asyncio.TaskGroup() as group:
        first = group.create_task(app.session("chat").turn("one", turn_id="t1", timeout="10s"))
        await slow.asked.wait()
        second = group.create_task(app.session("chat").turn("one", turn_id="t1", timeout="10s"))
        with pytest.raises(TurnInputConflict):
            await app.session("chat").turn("two", turn_id="t1", timeout="10s")
        slow.go.set()
        assert (await first).text == (await second).text == "Once."
    assert len(model.requests) == 1


async def test_a_timeout_stops_the_waiting_and_not_the_turn(memory: Backend) -> None:
    slow = Slow(lambda _: say("Late."))
    model = ScriptedModel(slow)
    app = Lash(memory.url, model=model)
    async with app:
        session = app.session("chat")
        with pytest.raises(TimeoutError, match=r"'t1' has not ended in 0.02 s"):
            await session.turn("one", turn_id="t1", timeout="20ms")
        slow.go.set()
        assert (await session.turn("one", turn_id="t1", timeout="10s")).text == "Late."
    assert len(model.requests) == 1


async def test_a_caller_that_leaves_does_not_end_the_turn(memory: Backend) -> None:
    slow = Slow(lambda _: say("Late."))
    app = Lash(memory.url, model=ScriptedModel(slow))
    async with app:
        session = app.session("chat")
        async with asyncio.TaskGroup() as group:
            caller = group.create_task(session.turn("one", turn_id="t1"))
            await slow.asked.wait()
            caller.cancel()
        slow.go.set()
        assert (await session.turn("one", turn_id="t1", timeout="10s")).text == "Late."


@EVERY_ENGINE
async def test_turns_of_one_session_go_one_after_another_in_order(backend: Backend) -> None:
    running, heard = 0, []

    async def alone(request: ModelRequest) -> Any:
        nonlocal running
        running += 1
        await asyncio.sleep(0)
        assert running == 1
        heard.append(request.messages[-1].text)
        await asyncio.sleep(0.001)
        running -= 1
        return say("Yes.")

    app = backend.app(model=ScriptedModel(alone))
    async with app, asyncio.TaskGroup() as group:
        session = app.session("chat")
        turns = []
        for n in range(8):
            turns.append(group.create_task(session.turn(str(n), turn_id=f"t{n}", timeout="20s")))
            await eventually(lambda n=n: is_known(app, f"t{n}"))  # type: ignore[misc]
        results = [await turn for turn in turns]
    assert {result.status for result in results} == {"completed"}
    assert heard == [str(n) for n in range(8)]


async def is_known(app: Lash, turn: str) -> bool:
    return await state_of(app, "chat", turn) != "unknown"


@EVERY_ENGINE
async def test_sessions_do_not_wait_for_each_other(backend: Backend) -> None:
    together = asyncio.Barrier(20)

    async def meet(request: ModelRequest) -> Any:
        await together.wait()
        return say(request.session_id)

    app = backend.app(model=ScriptedModel(meet))
    async with app, asyncio.TaskGroup() as group:
        turns = [
            group.create_task(app.session(f"s{n}").turn("hi", timeout="20s")) for n in range(20)
        ]
        assert [(await turn).text for turn in turns] == [f"s{n}" for n in range(20)]


async def test_a_turn_that_did_not_complete_has_no_text() -> None:
    app = Lash("memory://", model=ScriptedModel([fail("The model is gone.")]))
    async with app:
        result = await app.session("chat").turn("hi", turn_id="t1", timeout="10s")
        assert (result.status, result.error, result.code) == (
            "failed",
            "The model is gone.",
            "provider_error",
        )
        for read in (lambda: result.text, lambda: result.value):
            with pytest.raises(TurnFailed, match=r"'t1' failed: The model is gone") as caught:
                read()
            assert caught.value.code == "turn_failed"


async def test_a_turn_after_one_that_failed_goes_on(memory: Backend) -> None:
    model = ScriptedModel([fail("Gone."), say("Back.")])
    app = Lash(memory.url, model=model)
    async with app:
        session = app.session("chat")
        assert (await session.turn("one", timeout="10s")).status == "failed"
        assert (await session.turn("two", timeout="10s")).text == "Back."
        assert await transcript(session) == ("\nuser       one\nuser       two\nassistant  Back.\n")


async def test_a_model_that_is_busy_is_asked_again_after_recorded_pauses(memory: Backend) -> None:
    clock = SimClock()
    started = clock.now()
    asked: list[int] = []

    def busy(request: ModelRequest) -> Any:
        asked.append((clock.now() - started) // 1_000_000)
        return say("At last.") if len(asked) == 4 else fail("Too many.", retryable=True)

    app = Lash(memory.url, model=ScriptedModel(busy), clock=clock)
    async with app, asyncio.TaskGroup() as group:
        turn = group.create_task(app.session("chat").turn("hi", turn_id="t1"))
        await comes_to(app, "chat", "t1", "running")
        await clock.advance("1m")
        assert (await turn).text == "At last."
        effects = await effects_of(app, "chat", "t1")
    assert asked == [0, 1, 3, 7]
    sleeps = [entry.key for entry in effects if entry.kind == "sleep"]
    assert sleeps == ["i1.llm.pause", "i1.llm.2.pause", "i1.llm.3.pause"]


async def test_a_model_that_stays_busy_fails_the_turn_with_its_error() -> None:
    clock = SimClock()
    model = ScriptedModel([fail("Too many.", retryable=True)])
    app = Lash("memory://", model=model, clock=clock)
    async with app, asyncio.TaskGroup() as group:
        turn = group.create_task(app.session("chat").turn("hi", turn_id="t1"))
        await comes_to(app, "chat", "t1", "running")
        await clock.advance("1h")
        result = await turn
    assert (result.status, result.error) == ("failed", "Too many.")
    assert len(model.requests) == 4


async def test_an_app_without_a_model_fails_the_turn() -> None:
    app = Lash("memory://")
    async with app:
        result = await app.session("chat").turn("hi", timeout="10s")
        assert (result.status, result.code) == ("failed", "model_missing")
        assert "has no model" in (result.error or "")
        missing = await app.session("other", model="nobody:x").turn("hi", timeout="10s")
        assert (missing.status, missing.code) == ("failed", "model_unknown")
        assert "'nobody:x'" in (missing.error or "")


async def test_a_model_that_raises_anything_fails_the_turn() -> None:
    class Broken:
        async def respond(self, request: Any, listen: Any) -> Any:
            raise KeyError("oh")

    app = Lash("memory://", model=Broken())
    async with app:
        result = await app.session("chat").turn("hi", timeout="10s")
        assert result.status == "failed"
        assert "oh" in (result.error or "")


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (TurnBudget(iterations=2), "the budget of 2 iterations is used up"),
        (TurnBudget(tokens=5), "the budget of 5 tokens is used up"),
    ],
)
async def test_a_budget_stops_the_turn(budget: TurnBudget, reason: str) -> None:
    app = Lash("memory://", model=ScriptedModel(lambda _: call("look")))
    looked = []

    @app.tool
    async def look() -> str:
        looked.append(1)
        return "nothing to see here at all"

    async with app:
        session = app.session("chat", budget=budget)
        result = await session.turn("go", timeout="10s")
        assert (result.status, result.error, result.code) == ("stopped", reason, "turn_stopped")
        with pytest.raises(TurnFailed, match="was stopped"):
            _ = result.text
        assert (await transcript(session)).endswith(f"runtime    [Stopped: {reason}.]\n")
    assert len(looked) == 2


async def test_waiting_does_not_count_as_seconds() -> None:
    clock = SimClock()
    app = Lash("memory://", model=ScriptedModel([call("pay"), say("Paid.")]), clock=clock)

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app, asyncio.TaskGroup() as group:
        session = app.session("chat", budget=TurnBudget(seconds=60))
        turn = group.create_task(session.turn("go", turn_id="t1"))
        wait = await open_wait(app)
        await clock.advance("3d")
        await app.resolve(wait.key, True)
        assert (await turn).text == "Paid."


async def test_usage_adds_up_over_turns() -> None:
    app = Lash("memory://", model=ScriptedModel([say("one two"), say("three")]))
    async with app:
        session = app.session("chat")
        first = (await session.turn("hi there")).usage
        second = (await session.turn("again")).usage
        assert (first.requests, first.input_tokens, first.output_tokens) == (1, 2, 2)
        assert (second.requests, second.input_tokens, second.output_tokens) == (1, 1, 1)
        assert await session.usage() == first + second


async def test_a_waiter_gets_an_error_when_the_app_closes(durable: Backend) -> None:
    slow = Slow()
    app = Lash(durable.url, model=ScriptedModel(slow), worker=WorkerConfig(grace="10ms"))
    await app.open()

    async def wait() -> None:
        with pytest.raises(AppNotOpen):
            await app.session("chat").turn("hi", turn_id="t1")

    async with asyncio.TaskGroup() as group:
        group.create_task(wait())
        await slow.asked.wait()
        await app.close()
    again = Lash(durable.url, model=ScriptedModel([say("Back.")]))
    async with again:
        assert (await again.session("chat").turn("hi", turn_id="t1", timeout="10s")).text == "Back."


async def test_a_waiter_that_comes_while_the_app_closes_gets_an_error(durable: Backend) -> None:
    asked = asyncio.Event()

    async def never(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    app = Lash(durable.url, model=ScriptedModel(never), worker=WorkerConfig(grace="10ms"))
    await app.open()
    waiting = asyncio.create_task(app.session("chat").turn("hi", turn_id="t1"))  # noqa: TID251 - awaited below
    await asked.wait()
    closing = asyncio.create_task(app.close())  # noqa: TID251
    _, left = await asyncio.wait({waiting, closing}, timeout=10)
    assert not left
    assert isinstance(waiting.exception(), AppNotOpen)


async def test_a_turn_goes_on_after_a_death(durable: Backend) -> None:
    slow = Slow()
    app = Lash(durable.url, model=ScriptedModel(slow), worker=LIVE)
    await app.open()
    await begin(app.session("chat"), "hi", "t1")
    await slow.asked.wait()
    await kill(app)
    again = Lash(durable.url, model=ScriptedModel([say("Back.")]))
    async with again:
        assert (await again.session("chat").turn("hi", turn_id="t1", timeout="10s")).text == "Back."
