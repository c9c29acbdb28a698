"""Subagents: processes with their own sessions, which a turn starts and waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from pylash import Lash, ModelRequest, TurnBudget, WorkerConfig
from pylash.testing import (
    ScriptedModel,
    SimClock,
    call,
    calls,
    crash_everywhere,
    fail,
    kill,
    say,
)
from tests.backends import Backend, PostgresBackend, eventually
from tests.sessions.crash_apps import family_story, make_family, runs
from tests.sessions.scenes import LIVE, PARKING, Slow, begin, comes_to, open_wait, transcript

ONE_SLOT = WorkerConfig(concurrency=1, park_after="1h")

Reply = Callable[[ModelRequest], Any]


def is_child(request: ModelRequest) -> bool:
    return request.messages[0].text == "Find sources."


def parent(request: ModelRequest, *tasks: str) -> Any:
    """Ask a researcher for every task, then say what they said."""
    if request.messages[-1].role == "user":
        asked = [call("spawn_agent", agent="researcher", task=task) for task in tasks]
        return calls(*asked)
    results = [message.text for message in request.messages if message.role == "tool"]
    return say("So: " + " ".join(results[-len(tasks) :]))


def family(
    url: str,
    child: Reply,
    *tasks: str,
    config: WorkerConfig = LIVE,
    clock: SimClock | None = None,
) -> Lash:
    """Return an app whose model starts researchers, which answer as given."""

    def reply(request: ModelRequest) -> Any:
        return child(request) if is_child(request) else parent(request, *(tasks or ("who?",)))

    app = Lash(url, model=ScriptedModel(reply), instructions="Report.", worker=config, clock=clock)
    app.agent("researcher", instructions="Find sources.", tools=[], description="reads books")
    app.subagents("researcher")
    return app


@pytest.mark.proves("P15")
@pytest.mark.parametrize("config", [LIVE, PARKING, ONE_SLOT], ids=["live", "parking", "one slot"])
async def test_the_answer_of_a_subagent_is_the_result_of_the_call(
    backend: Backend, config: WorkerConfig
) -> None:
    async with family(backend.url, lambda _: say("A and B."), config=config) as app:
        session = app.session("report")
        result = await session.turn("Who wrote it?", timeout="10s")
        assert result.text == "So: A and B."
        assert result.usage.requests == 3
        assert (await session.usage()).requests == 3
        assert await transcript(session) == (
            "\nuser       Who wrote it?"
            "\nassistant  i1.c0 spawn_agent(agent=researcher, task=who?)"
            "\ntool       i1.c0 spawn_agent: A and B."
            "\nassistant  So: A and B.\n"
        )
        [process] = await app.processes()
        assert process.id.startswith("researcher-")
        assert process.status == "completed"
        outcome: Any = await app.process_handle(process.id).result(timeout="10s")
        assert outcome["session_id"] == process.id
        child = app.session(process.id)
        assert await transcript(child) == "\nuser       who?\nassistant  A and B.\n"
        assert (await child.usage()).requests == 1


async def test_the_tool_lists_the_subagents_for_the_model() -> None:
    model = ScriptedModel([say("Hm.")])
    app = Lash("memory://", model=model)
    app.agent("researcher", description="reads books")
    app.agent("writer")
    app.subagents("researcher", "writer")
    async with app:
        await app.session("chat").turn("go", timeout="10s")
    [tool] = model.requests[0].tools
    assert "researcher: reads books" in tool.description
    assert tool.schema["properties"]["agent"]["enum"] == ["researcher", "writer"]


async def test_an_unknown_subagent_is_an_error_for_the_model(memory: Backend) -> None:
    script = [call("spawn_agent", agent="nobody", task="x"), say("Oh.")]
    app = Lash(memory.url, model=ScriptedModel(script))
    app.agent("researcher")
    app.subagents("researcher")
    async with app:
        session = app.session("chat")
        assert (await session.turn("go", timeout="10s")).text == "Oh."
        assert "error" in (await transcript(session)).splitlines()[3]
        assert await app.processes() == []


async def test_the_parent_parks_while_its_subagent_runs(durable: Backend) -> None:
    slow = Slow(lambda _: say("A."))
    config = WorkerConfig(concurrency=1, park_after="1ms")
    async with family(durable.url, slow, config=config) as app:
        session = app.session("report")
        await begin(session, "go", "t1")
        await slow.asked.wait()
        await comes_to(app, "report", "t1", "waiting")
        slow.go.set()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "So: A."


async def test_subagents_run_beside_each_other(memory: Backend) -> None:
    here = asyncio.Barrier(3)

    async def meet(request: ModelRequest) -> Any:
        await here.wait()
        return say(request.messages[-1].text.upper())

    async with family(memory.url, meet, "a", "b", "c") as app:
        result = await app.session("report").turn("go", timeout="10s")
        assert result.text == "So: A B C"
        assert result.usage.requests == 5
        assert len({process.id for process in await app.processes()}) == 3


# --- failure and cancel ---


@pytest.mark.proves("P15")
async def test_a_failed_subagent_is_an_error_for_the_model(backend: Backend) -> None:
    async with family(backend.url, lambda _: fail("No books today.")) as app:
        session = app.session("report")
        assert "No books today." in (await session.turn("go", timeout="10s")).text
        line = (await transcript(session)).splitlines()[3]
        assert line.startswith("tool       i1.c0 spawn_agent error: The turn of child session")
        [process] = await app.processes()
        assert process.status == "failed"
        with pytest.raises(Exception, match="No books today") as caught:
            await app.process_handle(process.id).result(timeout="10s")
        assert caught.value.data["code"] == "process_session_turn_failed"  # type: ignore[attr-defined]


async def test_what_a_subagent_used_before_it_failed_counts(memory: Backend) -> None:
    def child(request: ModelRequest) -> Any:
        return call("nothing") if request.call_number == 0 else fail("Gone.")

    async with family(memory.url, child) as app:
        result = await app.session("report").turn("go", timeout="10s")
        assert result.usage.requests == 3


@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parking"])
async def test_a_cancelled_turn_cancels_the_subagents_it_waits_for(
    backend: Backend, config: WorkerConfig
) -> None:
    asked: list[str] = []

    async def forever(request: ModelRequest) -> Any:
        asked.append(request.session_id)
        await asyncio.Event().wait()

    async with family(backend.url, forever, "a", "b", config=config) as app:
        session = app.session("report")
        await begin(session, "go", "t1")

        async def both() -> bool:
            return len(asked) == 2

        await eventually(both)
        if config is PARKING:
            await comes_to(app, "report", "t1", "waiting")
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.status == "cancelled"

        async def ended() -> bool:
            return {one.status for one in await app.processes()} == {"cancelled"}

        await eventually(ended)
        for name in asked:
            assert (await transcript(app.session(name))).startswith("\nuser       ")
        assert (await transcript(session)).count("error") == 2


async def test_a_subagent_that_somebody_cancels_is_an_error(memory: Backend) -> None:
    slow = Slow()
    async with family(memory.url, slow) as app:
        session = app.session("report")
        await begin(session, "go", "t1")
        await slow.asked.wait()
        [process] = await app.processes()
        await app.process_handle(process.id).cancel("enough")
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.text == "So: The subagent was cancelled."


# --- budgets ---


def chatty(request: ModelRequest) -> Any:
    return call("nothing")


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (TurnBudget(iterations=4), "4 iterations"),
        (TurnBudget(tokens=40), "40 tokens"),
    ],
)
async def test_a_subagent_has_what_is_left_of_the_budget(
    memory: Backend, budget: TurnBudget, reason: str
) -> None:
    async with family(memory.url, chatty) as app:
        session = app.session("report", budget=budget)
        result = await session.turn("go", timeout="10s")
        assert result.status == "stopped"
        assert reason in (result.error or "")
        if budget.iterations is not None:
            assert result.usage.requests == budget.iterations
        assert "The subagent was stopped" in await transcript(session)


async def test_subagents_side_by_side_share_what_is_left(memory: Backend) -> None:
    async with family(memory.url, chatty, "a", "b", "c") as app:
        session = app.session("report", budget=TurnBudget(iterations=10))
        result = await session.turn("go", timeout="10s")
        assert result.usage.requests <= 10


async def test_the_time_of_a_subagent_counts(memory: Backend) -> None:
    clock = SimClock()

    def slow(_: ModelRequest) -> Any:
        clock.set_time(clock.now() + 5_000_000)  # as if it had taken so long
        return say("A.")

    async with family(memory.url, slow, clock=clock) as app:
        session = app.session("report", budget=TurnBudget(seconds=4))
        result = await session.turn("go", timeout="10s")
        assert result.error == "the budget of 4 seconds is used up"


async def test_a_sufficient_budget_stops_no_turn(memory: Backend) -> None:
    async with family(memory.url, lambda _: say("A.")) as app:
        session = app.session("report", budget=TurnBudget(iterations=3))
        result = await session.turn("go", timeout="10s")
        assert (result.status, result.usage.requests) == ("completed", 3)


# --- deeper ---


def dynasty(url: str, config: WorkerConfig = LIVE) -> Lash:
    """Return an app whose writer starts a boss, which starts a researcher, which needs an approval."""

    def reply(request: ModelRequest) -> Any:
        who, last = request.messages[0].text, request.messages[-1]
        match who, last.role:
            case "boss", "user":
                return call("spawn_agent", agent="researcher", task="deep")
            case "researcher", "user":
                return call("pay", cents=5)
            case (("boss" | "researcher"), _):
                return say(f"{who}: {last.text}")
            case _, "user":
                return call("spawn_agent", agent="boss", task="go")
            case _:
                return say(last.text)

    app = Lash(url, model=ScriptedModel(reply), instructions="writer", worker=config)

    @app.tool(approval=True)
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    app.agent("boss", instructions="boss")
    app.agent("researcher", instructions="researcher", tools=[pay])
    app.subagents("boss", "researcher")
    return app


@pytest.mark.parametrize("config", [LIVE, PARKING, ONE_SLOT], ids=["live", "parking", "one slot"])
async def test_a_subagent_asks_a_subagent_that_asks_a_person(
    durable: Backend, config: WorkerConfig
) -> None:
    async with dynasty(durable.url, config) as app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(app)
        assert (wait.kind, wait.tool, wait.arguments) == ("approval", "pay", {"cents": 5})
        assert (await app.resolve(wait.key, True)).status == "accepted"
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.text == "boss: researcher: paid 5"
        assert result.usage.requests == 6
        kinds = sorted(process.id.partition("-")[0] for process in await app.processes())
        assert kinds == ["boss", "researcher"]


@pytest.mark.proves("P9")
async def test_an_approval_of_a_subagent_survives_a_death(durable: Backend) -> None:
    app = dynasty(durable.url)
    await app.open()
    await begin(app.session("chat"), "go", "t1")
    await open_wait(app)
    await kill(app)
    async with dynasty(durable.url) as app:
        wait = await open_wait(app)
        await app.resolve(wait.key, {"approved": False, "reason": "too much"})
        result = await app.session("chat").turn("go", turn_id="t1", timeout="10s")
        assert result.text.endswith("too much")


async def test_the_waits_of_a_subagent_are_found_by_its_session(memory: Backend) -> None:
    async with dynasty(memory.url) as app:
        await begin(app.session("chat"), "go", "t1")
        wait = await open_wait(app)
        child = next(p.id for p in await app.processes() if p.id.startswith("researcher"))
        for waiting in (child, "chat"):
            assert [one.key for one in await app.waits(session_id=waiting)] == [wait.key]
        assert await app.waits(session_id="other") == []


async def test_cancelling_reaches_the_grandchildren(memory: Backend) -> None:
    async with dynasty(memory.url) as app:
        await begin(app.session("chat"), "go", "t1")
        await open_wait(app)
        await app.session("chat").cancel()
        result = await app.session("chat").turn("go", turn_id="t1", timeout="10s")
        assert result.status == "cancelled"

        async def ended() -> bool:
            return {one.status for one in await app.processes()} == {"cancelled"}

        await eventually(ended)
        assert await app.waits() == []


async def test_a_subagent_cannot_ask_the_session_that_waits_for_it(memory: Backend) -> None:
    def reply(request: ModelRequest) -> Any:
        who, last = request.messages[0].text, request.messages[-1]
        if last.role == "tool":
            return say(last.text)
        return call("ask") if who == "child" else call("spawn_agent", agent="child", task="go")

    app = Lash(memory.url, model=ScriptedModel(reply))

    async def ask() -> str:
        """Ask the boss."""
        result = await app.session("chat").turn("what now?", timeout="3s")
        return result.text

    app.agent("child", instructions="child", tools=[ask])
    app.subagents("child")
    async with app:
        result = await app.session("chat").turn("go", timeout="10s")
        assert "would wait for itself" in result.text


# --- crashes ---


@pytest.mark.proves("P15")
def test_a_family_ends_the_same_wherever_it_dies() -> None:
    runs.clear()
    report = crash_everywhere(make_family, family_story)
    assert report.outcome == FAMILY
    for name, count in runs.items():
        assert count <= 2 * (1 + len(report.points)), name
    operations = {point.operation for point in report.points}
    assert operations >= {"submit", "record", "commit", "settle", "perform_for"}


async def test_a_family_ends_the_same_on_postgres(postgres: str) -> None:
    async with AsyncExitStack() as stack:
        for point in (8, 17, 24):
            made = [await stack.enter_async_context(PostgresBackend(postgres)) for _ in range(2)]
            urls = [one.url for one in made]
            report = await asyncio.to_thread(
                crash_everywhere, make_family, family_story, store=urls.pop, only=point
            )
            assert report.outcome == FAMILY
            assert report.missed == ()


FAMILY = """
user       go
assistant  i1.c0 spawn_agent(agent=researcher, task=a), i1.c1 spawn_agent(agent=researcher, task=b)
tool       i1.c0 spawn_agent: a: page 7
tool       i1.c1 spawn_agent: b: page 7
assistant  So: a: page 7 b: page 7

user       a
assistant  i1.c0 read(page=7)
tool       i1.c0 read: page 7
assistant  a: page 7

user       b
assistant  i1.c0 read(page=7)
tool       i1.c0 read: page 7
assistant  b: page 7
"""
