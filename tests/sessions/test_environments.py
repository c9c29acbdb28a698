"""Environments: a turn keeps the settings that it started with, whatever is deployed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pylash import (
    Lash,
    ModelKeyMissing,
    ModelRequest,
    ProcessCancelled,
    Retry,
    SessionPlugin,
    TurnBlocked,
    TurnView,
)
from pylash.testing import ScriptedModel, call, calls, say
from tests.backends import Backend, eventually
from tests.sessions.scenes import PARKING, begin, comes_to, open_wait, transcript

Declare = Callable[[Lash, list[str]], None]


def reply(request: ModelRequest) -> Any:
    """Look, then pay, then be content; in every turn."""
    said = [message for message in request.messages if message.role == "tool"]
    return (call("look", n=7), call("pay", cents=5), say("Done."))[len(said)]


def first(app: Lash, ran: list[str]) -> None:
    @app.tool
    async def look(n: int) -> str:
        """Look for an order."""
        ran.append("look")
        return f"order {n}"

    pay(app, ran)


def pay(app: Lash, ran: list[str]) -> None:
    @app.tool(approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        ran.append("pay")
        return f"{cents} cents"


def described(app: Lash, ran: list[str]) -> None:
    @app.tool
    async def look(n: int, deep: bool = False) -> str:
        """Look very hard."""
        ran.append("look")
        return f"order {n}"

    @app.tool(approval="another reason")
    async def pay(cents: int, why: str = "") -> str:
        """Pay money."""
        ran.append("pay")
        return f"{cents} cents"


def without_look(app: Lash, ran: list[str]) -> None:
    """The tool whose result is recorded is gone."""
    pay(app, ran)


def other_arguments(app: Lash, ran: list[str]) -> None:
    """The tool whose result is recorded takes something else now."""

    @app.tool
    async def look(order: str) -> str:
        raise AssertionError("it has run")

    pay(app, ran)


def asks_now(app: Lash, ran: list[str]) -> None:
    """The tool whose result is recorded needs an approval now."""

    @app.tool(approval=True)
    async def look(n: int) -> str:
        raise AssertionError("it has run")

    pay(app, ran)


def without_pay(app: Lash, ran: list[str]) -> None:
    """The tool that is to run is gone."""

    @app.tool
    async def look(n: int) -> str:
        ran.append("look")
        return f"order {n}"


def as_text(app: Lash, ran: list[str]) -> None:
    """The same arguments are read as something else."""

    @app.tool
    async def look(n: float) -> str:
        raise AssertionError("it has run")

    @app.tool(approval=True)
    async def pay(cents: float) -> str:
        ran.append("pay")
        return f"{cents:.0f} cents"


def without_approval(app: Lash, ran: list[str]) -> None:
    """The tool that waits for an approval needs none now."""

    @app.tool
    async def look(n: int) -> str:
        ran.append("look")
        return f"order {n}"

    @app.tool
    async def pay(cents: int) -> str:
        ran.append("pay")
        return f"{cents} cents"


EXPECTED = """
user       go
assistant  i1.c0 look(n=7)
tool       i1.c0 look: order 7
assistant  i2.c0 pay(cents=5)
tool       i2.c0 pay: 5 cents
assistant  Done.
"""


def made(url: str, declare: Declare, ran: list[str], **options: Any) -> tuple[Lash, ScriptedModel]:
    model = ScriptedModel(reply)
    app = Lash(url, model=model, worker=PARKING, **options)
    declare(app, ran)
    return app, model


@pytest.mark.proves("T7")
@pytest.mark.parametrize(
    "declare",
    [first, described, without_look, other_arguments, asks_now, as_text, without_approval],
)
async def test_a_deployment_does_not_disturb_a_turn_in_flight(
    sqlite: Backend, declare: Declare
) -> None:
    ran: list[str] = []
    before, _ = made(sqlite.url, first, ran, instructions="Old.")
    async with before:
        await begin(before.session("chat"), "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
    after, model = made(sqlite.url, declare, ran, instructions="New.")
    async with after:
        session = after.session("chat")
        wait = await open_wait(after)
        assert (await after.resolve(wait.key, True)).status == "accepted"
        assert (await session.turn("go", turn_id="t1", timeout="5s")).text == "Done."
        assert await transcript(session) == EXPECTED
    assert ran == ["look", "pay"]
    (asked,) = model.requests
    assert asked.messages[0].text == "Old."
    assert [tool.description for tool in asked.tools] == ["Look for an order.", "Pay."]
    assert [message.text for message in asked.messages if message.role == "tool"] == [
        "order 7",
        "5 cents",
    ]


@pytest.mark.proves("T7")
async def test_the_next_turn_is_asked_with_what_was_deployed(durable: Backend) -> None:
    for words in ("Old.", "New."):
        model = ScriptedModel(lambda _: say("Yes."))
        async with Lash(durable.url, model=model, instructions=words) as app:
            await app.session("chat").turn("go", timeout="10s")
        assert model.requests[0].messages[0].text == words


@pytest.mark.slow
async def test_a_turn_is_blocked_when_a_tool_it_is_to_call_is_gone_and_goes_on_when_it_is_back(
    durable: Backend,
) -> None:
    ran: list[str] = []
    before, _ = made(durable.url, first, ran)
    async with before:
        await begin(before.session("chat"), "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
    after, model = made(durable.url, without_pay, ran)
    async with after:
        session = after.session("chat")
        await after.resolve((await open_wait(after)).key, True)
        with pytest.raises(TurnBlocked, match="it calls tool 'pay', which this app does not"):
            await session.turn("go", turn_id="t1", timeout="1s")
    assert model.requests == []
    back, _ = made(durable.url, first, ran)
    async with back:
        session = back.session("chat")
        assert await session.retry()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert await transcript(session) == EXPECTED
    assert ran == ["look", "pay"]


LOOKED = """
user       go
assistant  i1.c0 look(n=7)
tool       i1.c0 look: order 7
assistant  i2.c0 pay(cents=5)
tool       i2.c0 pay error: {}
"""


@pytest.mark.parametrize(
    ("agreed", "told"),
    [
        (False, "Not run: the turn was cancelled."),
        (True, "No result: the turn was cancelled. It may have run."),
    ],
)
async def test_a_cancelled_turn_whose_tool_is_gone_keeps_what_it_did(
    durable: Backend, agreed: bool, told: str
) -> None:
    ran: list[str] = []
    before, _ = made(durable.url, first, ran)
    async with before:
        await begin(before.session("chat"), "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
    after, _ = made(durable.url, without_pay, ran)
    async with after:
        session = after.session("chat")
        if agreed:
            await after.resolve((await open_wait(after)).key, True)
            await comes_to(after, "chat", "t1", "blocked")
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert (result.status, result.error) == ("cancelled", "cancelled")
        assert await transcript(session) == LOOKED.format(told)
        assert await after.waits() == []
    assert ran == ["look"]


async def test_a_cancelled_turn_keeps_the_results_of_a_batch_of_which_a_tool_is_gone(
    sqlite: Backend,
) -> None:
    ran: list[str] = []
    both = calls(call("look", n=7), call("pay", cents=5))

    def app(declare: Declare) -> Lash:
        made = Lash(sqlite.url, model=ScriptedModel([both]), worker=PARKING)
        declare(made, ran)
        return made

    async with app(first) as before:
        await begin(before.session("chat"), "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
    async with app(without_pay) as after:
        session = after.session("chat")
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="5s")).status == "cancelled"
        assert (await transcript(session)).splitlines()[3:] == [
            "tool       i1.c0 look: order 7",
            "tool       i1.c1 pay error: Not run: the turn was cancelled.",
        ]
    assert ran == ["look"]


async def test_a_cancelled_turn_ends_its_subagents_also_where_none_can_be_asked(
    sqlite: Backend,
) -> None:
    def answer(request: ModelRequest) -> Any:
        is_child = request.messages[0].text == "Child."
        return call("pay", cents=5) if is_child else call("spawn_agent", agent="kid", task="go")

    def app() -> Lash:
        made = Lash(sqlite.url, model=ScriptedModel(answer), instructions="A.", worker=PARKING)
        pay(made, [])
        made.agent("kid", instructions="Child.")
        return made

    before = app()
    before.subagents("kid")
    async with before:
        await begin(before.session("chat"), "go", "t1")
        await open_wait(before)
        await comes_to(before, "chat", "t1", "waiting")
    async with app() as after:
        session = after.session("chat")
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="5s")).status == "cancelled"
        assert "spawn_agent(" in await transcript(session)
        [kid] = await after.processes()
        with pytest.raises(ProcessCancelled):
            await after.process_handle(kid.id).result(timeout="5s")
        assert await after.waits() == []


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_a_cancelled_turn_whose_model_is_gone_keeps_what_it_did(
    sqlite: Backend, meanwhile: bool
) -> None:
    """Also if it is cancelled while the worker finds out that there is none."""
    ran: list[str] = []

    async def gone(request: ModelRequest) -> Any:
        if meanwhile:
            await after.store.sessions.cancel("chat", "cancelled")
        raise ModelKeyMissing("m", "KEY")

    before, _ = made(sqlite.url, first, ran)
    async with before:
        await begin(before.session("chat"), "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
    after = Lash(sqlite.url, model=ScriptedModel(gone), worker=PARKING)
    first(after, ran)
    async with after:
        session = after.session("chat")
        await after.resolve((await open_wait(after)).key, True)
        if not meanwhile:
            await comes_to(after, "chat", "t1", "blocked")
            await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).status == "cancelled"
        assert await transcript(session) == EXPECTED.replace("assistant  Done.\n", "")
    assert ran == ["look", "pay"]


@pytest.mark.slow
async def test_no_call_of_a_batch_runs_when_the_tool_of_one_is_gone(sqlite: Backend) -> None:
    ran: list[str] = []
    both = calls(call("look", n=7), call("pay", cents=5))

    def app(declare: Declare) -> Lash:
        made = Lash(sqlite.url, model=ScriptedModel([both, say("Done.")]), worker=PARKING)
        declare(made, ran)
        return made

    async with app(hanging) as before:
        await begin(before.session("chat"), "go", "t1")
        await eventually(lambda: has(ran, "pay"))
    async with app(without_pay) as after:
        session = after.session("chat")
        with pytest.raises(TurnBlocked, match="turn_tool_missing"):
            await session.turn("go", turn_id="t1", timeout="1s")
        await session.cancel()
        assert (await session.turn("go", turn_id="t1", timeout="5s")).status == "cancelled"
    assert ran == ["pay"]


def hanging(app: Lash, ran: list[str]) -> None:
    """One tool never ends, and the other waits for a person: nothing of the batch is recorded."""

    @app.tool(approval=True)
    async def look(n: int) -> str:
        raise AssertionError("nobody has agreed")

    @app.tool
    async def pay(cents: int) -> str:
        ran.append("pay")
        await asyncio.Event().wait()
        return ""


async def has(ran: list[str], name: str) -> bool:
    return name in ran


async def test_a_call_of_a_tool_that_was_not_offered_is_an_error_for_the_model(
    sqlite: Backend,
) -> None:
    app = Lash(sqlite.url, model=ScriptedModel([call("fly"), say("Then not.")]))
    async with app:
        session = app.session("chat")
        assert (await session.turn("go", timeout="5s")).text == "Then not."
        assert "fly error: There is no tool 'fly'" in await transcript(session)


async def test_a_session_whose_tool_is_gone_fails_clearly_and_its_turn_in_flight_does_not(
    sqlite: Backend,
) -> None:
    ran: list[str] = []
    before, _ = made(sqlite.url, first, ran)
    async with before:
        session = before.session("chat", tools=["look", "pay"])
        await begin(session, "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
        await session.enqueue("then", when="next_turn")
    after, _ = made(sqlite.url, without_look, ran)
    async with after:
        session = after.session("chat")
        await after.resolve((await open_wait(after)).key, True)
        assert (await session.turn("go", turn_id="t1", timeout="5s")).text == "Done."
        assert (await transcript(session)).startswith(EXPECTED)


async def test_a_call_that_was_refused_does_not_run_when_its_tool_appears(
    sqlite: Backend,
) -> None:
    """The model got the error that there is no such tool, and has answered."""
    ran: list[str] = []
    before, _ = made(sqlite.url, without_look, ran)
    async with before:
        await begin(before.session("chat"), "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
    after, model = made(sqlite.url, first, ran)
    async with after:
        session = after.session("chat")
        await after.resolve((await open_wait(after)).key, True)
        await session.turn("go", turn_id="t1", timeout="5s")
        assert "look error: There is no tool 'look'" in await transcript(session)
    assert ran == ["pay"]
    assert "There is no tool" in model.requests[0].messages[-3].text


# --- what shapes the order of effects ---


async def test_an_approval_that_was_captured_is_needed_after_a_deployment_drops_it(
    sqlite: Backend,
) -> None:
    ran: list[str] = []
    before, _ = made(sqlite.url, first, ran)
    async with before:
        await begin(before.session("chat"), "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
    after, _ = made(sqlite.url, without_approval, ran)
    async with after:
        await after.resolve((await open_wait(after)).key, False)
        assert (await after.session("chat").turn("go", turn_id="t1", timeout="5s")).text == "Done."
        assert ran == ["look"]
        assert (await after.session("new").turn("go", timeout="5s")).text == "Done."
    assert ran == ["look", "look", "pay"]  # the next turn is captured with the new policy


class Flaky:
    """A tool that fails once, behind one that waits for an approval."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def declare(self, app: Lash, retry: Retry | None) -> None:
        @app.tool(approval=True)
        async def ask() -> str:
            return "asked"

        @app.tool(retry=retry)
        async def fail() -> str:
            self.calls.append("fail")
            if len(self.calls) == 1:
                raise OSError("away")
            return "worked"


def ask_then_fail(request: ModelRequest) -> Any:
    said = [message for message in request.messages if message.role == "tool"]
    return (call("ask"), call("fail"), say("Done."))[len(said)]


@pytest.mark.parametrize(
    ("captured", "deployed", "count"), [(Retry(2, delay=0), None, 2), (None, Retry(2, delay=0), 1)]
)
async def test_retries_are_those_a_turn_was_captured_with(
    sqlite: Backend, captured: Retry | None, deployed: Retry | None, count: int
) -> None:
    flaky = Flaky()
    for retry in (captured, deployed):
        app = Lash(sqlite.url, model=ScriptedModel(ask_then_fail), worker=PARKING)
        flaky.declare(app, retry)
        async with app:
            session = app.session("chat")
            if retry is captured:
                await begin(session, "go", "t1")
                await comes_to(app, "chat", "t1", "waiting")
            else:
                await app.resolve((await open_wait(app)).key, True)
                assert (await session.turn("go", turn_id="t1", timeout="5s")).text == "Done."
    assert flaky.calls == ["fail"] * count


class Adviser(SessionPlugin):
    name = "adviser"

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return self

    async def checkpoint(self, turn: TurnView) -> list[str]:
        return ["Be brief."]


async def test_plugins_listen_to_turns_that_were_captured_with_them(sqlite: Backend) -> None:
    ran: list[str] = []
    before, _ = made(sqlite.url, first, ran)
    async with before:
        await begin(before.session("chat"), "go", "t1")
        await comes_to(before, "chat", "t1", "waiting")
    after, model = made(sqlite.url, first, ran, plugins=[Adviser()])
    async with after:
        await after.resolve((await open_wait(after)).key, True)
        assert (await after.session("chat").turn("go", turn_id="t1", timeout="5s")).text == "Done."
        assert not any(message.text == "Be brief." for message in model.requests[-1].messages)
        await begin(after.session("new"), "go", "t2")
        await comes_to(after, "new", "t2", "waiting")
        assert any(message.text == "Be brief." for message in model.requests[-1].messages)
