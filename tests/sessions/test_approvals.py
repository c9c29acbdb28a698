"""Approvals and deferrals: a person or another program decides, and the turn waits as long as it takes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Flag
from hashlib import sha256
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Discriminator, Field, Tag, TypeAdapter

from pylash import AnswerInvalid, ArgumentsInvalid, Lash, ToolContext, WaitKeyInvalid, WorkerConfig
from pylash.durable.scopes import TurnScope
from pylash.durable.waits import CustomWait
from pylash.testing import ScriptedModel, SimClock, call, calls, kill, say
from pylash.values.canonical import encode
from tests.backends import Backend, eventually
from tests.sessions.scenes import (
    LIVE,
    PARKING,
    begin,
    comes_to,
    effects_of,
    open_wait,
    transcript,
)

BOTH = pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])


class Shop:
    """An app whose model wants to refund, which a person must approve."""

    def __init__(
        self, url: str, config: WorkerConfig = LIVE, *, clock: Any = None, **options: Any
    ) -> None:
        script = [call("refund", order="7", cents=500), say("Done.")]
        self.app = Lash(url, model=ScriptedModel(script), worker=config, clock=clock)
        self.paid: list[tuple[str, int]] = []

        @self.app.tool(**{"approval": True, **options})
        async def refund(order: str, cents: int) -> str:
            self.paid.append((order, cents))
            return f"{cents} cents"

    async def answered(self, value: Any = None, **given: Any) -> str:
        """Run the turn, answer its wait, and return the result that the model got."""
        async with self.app, asyncio.TaskGroup() as group:
            session = self.app.session("chat")
            turn = group.create_task(session.turn("Refund 7.", turn_id="t1", timeout="10s"))
            wait = await open_wait(self.app)
            outcome = await self.app.resolve(wait.key, value, **given)
            assert outcome.status == "accepted"
            assert (await turn).text == "Done."
            assert await self.app.waits() == []
            return (await transcript(session)).splitlines()[3]


@BOTH
async def test_what_is_approved_runs(backend: Backend, config: WorkerConfig) -> None:
    shop = Shop(backend.url, config)
    async with shop.app, asyncio.TaskGroup() as group:
        session = shop.app.session("chat")
        turn = group.create_task(session.turn("Refund 7.", turn_id="t1", timeout="10s"))
        wait = await open_wait(shop.app)
        assert (wait.kind, wait.title, wait.tool) == ("approval", "Approve refund", "refund")
        assert wait.arguments == {"order": "7", "cents": 500}
        assert await shop.app.waits(session_id="other") == []
        assert [one.key for one in await shop.app.waits(session_id="chat")] == [wait.key]
        if config is PARKING:
            await comes_to(shop.app, "chat", "t1", "waiting")
        assert shop.paid == []
        assert (await shop.app.resolve(wait.key, True)).status == "accepted"
        assert (await turn).text == "Done."
        assert await transcript(session) == (
            "\nuser       Refund 7."
            "\nassistant  i1.c0 refund(order=7, cents=500)"
            "\ntool       i1.c0 refund: 500 cents"
            "\nassistant  Done.\n"
        )
    assert shop.paid == [("7", 500)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (False, "Not run: a person rejected it."),
        ({"approved": False}, "Not run: it was rejected."),
        (
            {"approved": False, "reason": "too much", "by": "ann"},
            "Not run: it was rejected by ann: too much",
        ),
    ],
)
async def test_a_rejected_call_does_not_run_and_the_model_gets_the_reason(
    answer: Any, words: str
) -> None:
    shop = Shop("memory://")
    assert await shop.answered(answer) == f"tool       i1.c0 refund error: {words}"
    assert shop.paid == []


@pytest.mark.parametrize(
    "answer",
    [
        "no",
        "yes",
        1,
        None,
        {"approved": "false"},
        {"approved": 1},
        {"aproved": True},
        {"approved": True, "argument": {"cents": 1}},
        {"approved": True, "arguments": 7},
        [True],
    ],
)
async def test_a_slip_is_no_answer(answer: Any) -> None:
    shop = Shop("memory://")
    with pytest.raises(ExceptionGroup) as caught:
        await shop.answered(answer)
    assert caught.group_contains(ArgumentsInvalid)
    assert shop.paid == []


async def test_an_error_is_a_result_too() -> None:
    shop = Shop("memory://")
    told = await shop.answered(error="the till is closed")
    assert told == "tool       i1.c0 refund error: Not run: the till is closed"
    assert shop.paid == []


@BOTH
async def test_a_correction_is_what_runs(memory: Backend, config: WorkerConfig) -> None:
    shop = Shop(memory.url, config)
    answer = {"approved": True, "arguments": {"order": "7", "cents": 300}, "by": "ann"}
    assert await shop.answered(answer) == "tool       i1.c0 refund: 300 cents"
    assert shop.paid == [("7", 300)]


@BOTH
async def test_a_correction_that_does_not_fit_is_refused_and_the_wait_stays_open(
    backend: Backend, config: WorkerConfig
) -> None:
    shop = Shop(backend.url, config)
    wrong = {
        "arguments.cents is 'lots', not of type integer": {"order": "7", "cents": "lots"},
        "arguments.cents is missing": {"order": "7"},
        "arguments.size is not expected": {"order": "7", "cents": 1, "size": 1},
    }
    async with shop.app:
        await begin(shop.app.session("chat"), "go", "t1")
        wait = await open_wait(shop.app)
        for problem, arguments in wrong.items():
            with pytest.raises(AnswerInvalid) as caught:
                await shop.app.resolve(wait.key, {"approved": True, "arguments": arguments})
            assert problem in caught.value.message
            assert [one.key for one in await shop.app.waits()] == [wait.key]
        answer = {"approved": True, "arguments": {"order": "7", "cents": 3}}
        assert (await shop.app.resolve(wait.key, answer)).status == "accepted"
        result = await shop.app.session("chat").turn("go", turn_id="t1", timeout="10s")
        assert result.text == "Done."
    assert shop.paid == [("7", 3)]


@dataclass
class Item:
    name: str
    cents: int


async def test_a_correction_is_checked_against_the_types_that_the_tool_names() -> None:
    script = [call("refund", items=[{"name": "hat", "cents": 5}]), say("Done.")]
    app, paid = Lash("memory://", model=ScriptedModel(script)), list[Item]()

    @app.tool(approval=True)
    async def refund(items: list[Item]) -> None:
        paid.extend(items)

    async with app:
        await begin(app.session("chat"), "go", "t1")
        wait = await open_wait(app)
        answer = {"approved": True, "arguments": {"items": [{"name": "hat", "cents": "x"}]}}
        with pytest.raises(AnswerInvalid, match=r"arguments\.items\[0\]\.cents is 'x'"):
            await app.resolve(wait.key, answer)
        assert (await app.resolve(wait.key, {"approved": True, "arguments": None})).status == (
            "accepted"
        )
        await app.session("chat").turn("go", turn_id="t1", timeout="10s")
    assert paid == [Item("hat", 5)]


class Rights(Flag):
    READ = 1
    WRITE = 2
    SHARE = 4


class Person(BaseModel):
    name: str = ""


class Company(BaseModel):
    name: str = ""
    number: int | None = None


def kind_of(value: Any) -> str:
    return "company" if "number" in value else "person"


Payer = Annotated[
    Annotated[Person, Tag("person")] | Annotated[Company, Tag("company")], Discriminator(kind_of)
]


@pytest.mark.parametrize(
    ("annotation", "given", "corrected"),
    [
        pytest.param(Rights, 3, 6, id="a flag of several members"),
        pytest.param(Annotated[bytes, Field(min_length=4)], "éé", "ééé", id="bytes"),
        pytest.param(Payer, {"name": "A"}, {"name": "B"}, id="a union whose members overlap"),
        pytest.param(
            Annotated[str, Field(pattern="^[[:alpha:]]+$")], "a", "b", id="an expression of Rust"
        ),
    ],
)
async def test_a_correction_that_the_tool_accepts_is_accepted(
    annotation: Any, given: Any, corrected: Any
) -> None:
    """Also if the JSON Schema of the tool says less than it accepts."""
    app, called = Lash("memory://", model=ScriptedModel([call("f", x=given), say("Done.")])), []

    async def f(x: Any) -> None:
        called.append(x)

    f.__annotations__["x"] = annotation
    app.tool(approval=True)(f)
    async with app:
        await begin(app.session("chat"), "go", "t1")
        wait = await open_wait(app)
        await app.resolve(wait.key, {"approved": True, "arguments": {"x": corrected}})
        await app.session("chat").turn("go", turn_id="t1", timeout="10s")
    assert called == [TypeAdapter(annotation).validate_json(encode(corrected))]


async def test_a_wrong_correction_that_comes_before_its_wait_is_an_error_and_nothing_runs() -> None:
    shop = Shop("memory://")
    async with shop.app as app:
        host, scope = app.effect_host, TurnScope("chat", "t1")
        digest = sha256(encode({"order": "7", "cents": 500})).hexdigest()[:16]
        key = await host.wait_key(scope, CustomWait(f"approval:i1.c0:{digest}"))
        answer = {"approved": True, "arguments": {"order": "7", "cents": "lots"}}
        assert (await app.resolve(key, answer)).status == "accepted"
        result = await app.session("chat").turn("go", turn_id="t1", timeout="10s")
        assert result.text == "Done."
        told = (await transcript(app.session("chat"))).splitlines()[3]
    assert told.startswith("tool       i1.c0 refund error: The corrected arguments do not fit")
    assert "cents" in told
    assert shop.paid == []


@BOTH
async def test_nobody_answers_for_a_week(memory: Backend, config: WorkerConfig) -> None:
    clock = SimClock()
    shop = Shop(memory.url, config, clock=clock)
    async with shop.app, asyncio.TaskGroup() as group:
        session = shop.app.session("chat")
        turn = group.create_task(session.turn("Refund 7.", turn_id="t1"))
        wait = await open_wait(shop.app)
        await clock.advance("6d")
        assert len(await shop.app.waits()) == 1
        await clock.advance("25h")
        assert (await turn).text == "Done."
        told = (await transcript(session)).splitlines()[3]
        assert told == "tool       i1.c0 refund error: Not run: nobody approved it in time."
        assert await shop.app.waits() == []
        late = await shop.app.resolve(wait.key, True)
        assert late.status == "already_resolved"


async def test_the_reason_is_the_title() -> None:
    shop = Shop("memory://", approval="money leaves the house")
    async with shop.app:
        await begin(shop.app.session("chat"), "go", "t1")
        assert (await open_wait(shop.app)).title == "money leaves the house"


async def test_a_function_is_asked_once_and_its_answer_recorded(sqlite: Backend) -> None:
    asked: list[int] = []

    def needed(cents: int) -> bool | str:
        asked.append(cents)
        return "a lot of money" if cents > 100 else False

    first = Shop(sqlite.url, approval=needed)
    await first.app.open()
    await begin(first.app.session("chat"), "go", "t1")
    wait = await open_wait(first.app)
    assert wait.title == "a lot of money"
    await kill(first.app)
    second = Shop(sqlite.url, approval=needed)
    async with second.app:
        session = second.app.session("chat")
        assert (await second.app.resolve(wait.key, True)).status == "accepted"
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
    assert asked == [500]
    assert second.paid == [("7", 500)]


async def test_a_function_may_let_it_pass() -> None:
    shop = Shop("memory://", approval=lambda cents: cents > 1000)
    async with shop.app:
        assert (await shop.app.session("chat").turn("go", timeout="10s")).text == "Done."
    assert shop.paid == [("7", 500)]


async def test_a_function_that_fails_refuses_the_call() -> None:
    def broken(cents: int) -> bool:
        raise ZeroDivisionError("nobody knows")

    shop = Shop("memory://", approval=broken)
    async with shop.app:
        session = shop.app.session("chat")
        assert (await session.turn("go", timeout="10s")).text == "Done."
        assert "refund error" in await transcript(session)
    assert shop.paid == []


async def test_another_app_resumes_what_was_parked(durable: Backend) -> None:
    first = Shop(durable.url, PARKING)
    async with first.app:
        await begin(first.app.session("chat"), "go", "t1")
        await comes_to(first.app, "chat", "t1", "waiting")
    second = Shop(durable.url, PARKING)
    async with second.app:
        wait = await open_wait(second.app)
        await second.app.resolve(wait.key, True)
        session = second.app.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
    assert (first.paid, second.paid) == ([], [("7", 500)])


@BOTH
async def test_the_first_answer_wins(backend: Backend, config: WorkerConfig) -> None:
    shop = Shop(backend.url, config)
    async with shop.app:
        session = shop.app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(shop.app)
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(shop.app.resolve(wait.key, n == 0)) for n in range(5)]
        assert sorted(end.result().status for end in ends) == [
            "accepted",
            *["already_resolved"] * 4,
        ]
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert (await shop.app.resolve(wait.key, True)).status == "already_resolved"
        with pytest.raises(WaitKeyInvalid):
            await shop.app.resolve("v1.nonsense", True)
    assert len(shop.paid) <= 1


async def test_an_approval_is_for_the_arguments_it_was_asked_for(memory: Backend) -> None:
    """Two sessions, the same call: each has a key of its own; other arguments have another."""
    shop = Shop(memory.url)
    async with shop.app:
        for name in ("a", "b"):
            await begin(shop.app.session(name), "go", "t1")
        waits = [await open_wait(shop.app, session_id=name) for name in ("a", "b")]
        assert waits[0].key != waits[1].key
        await shop.app.resolve(waits[0].key, True)
        await shop.app.session("a").turn("go", turn_id="t1", timeout="10s")
        assert shop.paid == [("7", 500)]
        assert len(await shop.app.waits()) == 1


async def test_several_calls_wait_at_once_and_answer_in_order(memory: Backend) -> None:
    app = Lash(
        memory.url,
        model=ScriptedModel([calls(*(call("pay", n=n) for n in range(3))), say("Done.")]),
        worker=PARKING,
    )

    @app.tool(approval=True)
    async def pay(n: int) -> int:
        return n

    async with app, asyncio.TaskGroup() as group:
        session = app.session("chat")
        turn = group.create_task(session.turn("go", turn_id="t1", timeout="20s"))
        await open_wait(app, 2)
        keys = {wait.arguments["n"]: wait.key for wait in await app.waits()}
        for n, answer in ((2, True), (0, False), (1, True)):
            await comes_to(app, "chat", "t1", "waiting")
            await app.resolve(keys[n], answer)
        assert (await turn).text == "Done."
        assert (await transcript(session)).splitlines()[3:] == [
            "tool       i1.c0 pay error: Not run: a person rejected it.",
            "tool       i1.c1 pay: 1",
            "tool       i1.c2 pay: 2",
            "assistant  Done.",
        ]


async def test_serial_calls_ask_one_after_another() -> None:
    app = Lash(
        "memory://", model=ScriptedModel([calls(call("pay", n=0), call("pay", n=1)), say("Done.")])
    )

    @app.tool(approval=True, scheduling="serial")
    async def pay(n: int) -> int:
        return n

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        first = await open_wait(app)
        assert len(await app.waits()) == 1
        await app.resolve(first.key, True)

        async def another() -> bool:
            waits = await app.waits()
            return bool(waits) and waits[0].key != first.key

        await eventually(another)
        await app.resolve((await app.waits())[0].key, True)
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."


# --- deferrals ---


class Office:
    """An app whose tool leaves the answer to an outsider."""

    def __init__(self, url: str, config: WorkerConfig = LIVE, clock: Any = None) -> None:
        script = [call("ask", question="When?"), say("Done.")]
        self.app = Lash(url, model=ScriptedModel(script), worker=config, clock=clock)
        self.asked: list[str] = []

        @self.app.tool
        async def ask(ctx: ToolContext[None], question: str) -> Any:
            self.asked.append(question)
            return ctx.defer(deadline="2d")


@BOTH
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"value": {"day": 3}}, 'ask: {"day":3}'),
        ({"value": "Monday"}, "ask: Monday"),
        ({"value": None}, "ask: Done."),
        ({"error": "The office is closed."}, "ask error: The office is closed."),
    ],
)
async def test_an_outsider_gives_the_result(
    config: WorkerConfig, answer: dict[str, Any], words: str
) -> None:
    office = Office("memory://", config)
    async with office.app:
        session = office.app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(office.app)
        assert (wait.kind, wait.title, wait.tool) == ("deferred", "Result of ask", "ask")
        if config is PARKING:
            await comes_to(office.app, "chat", "t1", "waiting")
        assert (await office.app.resolve(wait.key, **answer)).status == "accepted"
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert (await transcript(session)).splitlines()[3] == f"tool       i1.c0 {words}"
    assert office.asked == ["When?"]


async def test_a_deferred_result_comes_after_a_restart(sqlite: Backend) -> None:
    first = Office(sqlite.url)
    await first.app.open()
    await begin(first.app.session("chat"), "go", "t1")
    wait = await open_wait(first.app)
    await kill(first.app)
    second = Office(sqlite.url)
    async with second.app:
        await second.app.resolve(wait.key, "Monday")
        session = second.app.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert "ask: Monday" in await transcript(session)
        effects = await effects_of(second.app, "chat", "t1")
    assert (first.asked, second.asked) == (["When?"], [])
    assert {entry.key for entry in effects} >= {"i1.c0.attempt.1", "i1.c0.deferred"}


async def test_a_deadline_passes(memory: Backend) -> None:
    clock = SimClock()
    office = Office(memory.url, PARKING, clock)
    async with office.app, asyncio.TaskGroup() as group:
        session = office.app.session("chat")
        turn = group.create_task(session.turn("go", turn_id="t1"))
        await open_wait(office.app)
        await clock.advance("49h")
        assert (await turn).text == "Done."
        assert "ask error: Nobody gave the result in time." in await transcript(session)


async def test_a_long_deferred_result_is_kept_whole(memory: Backend) -> None:
    office = Office(memory.url)
    long = "word " * 10_000
    async with office.app:
        session = office.app.session("chat")
        await begin(session, "go", "t1")
        await office.app.resolve((await open_wait(office.app)).key, long)
        await session.turn("go", turn_id="t1", timeout="10s")
        told: Any = (await session.history())[2]
        assert len(told.text) <= 16_000
        ref = told.attachments[0].ref
        assert await office.app.store.attachments.get(ref) == long.encode()


# --- ending a wait ---


@BOTH
@pytest.mark.parametrize("what", [Shop, Office])
async def test_a_turn_that_waits_can_be_cancelled(
    backend: Backend, config: WorkerConfig, what: Any
) -> None:
    made = what(backend.url, config)
    async with made.app:
        session = made.app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(made.app)
        if config is PARKING:
            await comes_to(made.app, "chat", "t1", "waiting")
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert (result.status, result.code) == ("cancelled", "turn_cancelled")
        known = {"approval": "Not run: the turn was cancelled.", "deferred": "It may have run."}
        assert (await transcript(session)).splitlines()[3].endswith(known[wait.kind])
        assert await made.app.waits() == []
        assert (await made.app.resolve(wait.key, True)).status != "accepted"
        assert (await session.turn("more", timeout="10s")).text == "Done."


@BOTH
@pytest.mark.parametrize(
    ("what", "told"),
    [
        (Shop, "refund error: Not run: superseded by a new message."),
        (Office, "ask error: No result: superseded by a new message."),
    ],
)
async def test_an_interrupt_takes_the_place_of_the_answer(
    backend: Backend, config: WorkerConfig, what: Any, told: str
) -> None:
    made = what(backend.url, config)
    async with made.app:
        session = made.app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(made.app)
        if config is PARKING:
            await comes_to(made.app, "chat", "t1", "waiting")
        await session.enqueue("Never mind.", when="interrupt")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert (await transcript(session)).splitlines()[3:] == [
            f"tool       i1.c0 {told}",
            "user       Never mind.",
            "assistant  Done.",
        ]
        assert await made.app.waits() == []
        assert (await made.app.resolve(wait.key, True)).status == "already_resolved"
