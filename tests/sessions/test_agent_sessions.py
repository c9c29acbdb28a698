"""The session of an agent that runs as a process: its lane, its queue, its turn id, its events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import (
    Agent,
    InlineHost,
    Lash,
    LashError,
    ModelRequest,
    NotSupported,
    ProcessCancelled,
    ProcessContext,
    ProcessFailed,
    SessionExists,
    SessionUnknown,
    ToolUnknown,
    TurnBudget,
    TurnOfProcess,
    TurnUnknown,
    tool,
)
from pylash.durable.commands import StartProcess
from pylash.durable.ports import EffectHost
from pylash.durable.processes import Registration, SessionTurnInput
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.testing import ScriptedModel, SerialHost, call, fail, say
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.sessions.scenes import (
    LIVE,
    PARKING,
    Slow,
    Telling,
    begin,
    comes_to,
    open_wait,
    state_of,
    transcript,
)

each_config = pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parking"])

HOSTS: dict[str, Callable[[], EffectHost] | None] = {
    "journal": None,
    "inline": InlineHost,
    "serial": lambda: SerialHost(InlineHost()),
}


def echo(request: ModelRequest) -> Any:
    """Answer with the question and the instructions."""
    asked = [message.text for message in request.messages if message.role == "user"]
    return say(f"{request.messages[0].text} {asked}")


def office(url: str, reply: Any = echo, **options: Any) -> tuple[Lash, Agent]:
    """Return an app, and its clerk."""
    chosen: dict[str, Any] = {"worker": LIVE, **options}
    app = Lash(url, model=ScriptedModel(reply), instructions="Help.", **chosen)
    return app, app.agent("clerk", instructions="File.", tools=[])


async def turn_ids(app: Lash, session: str) -> list[str]:
    """Return the ids of the turns of a session, in order."""
    return [*dict.fromkeys(one["turn_id"] for one in await app.session(session).view())]


# --- one turn at a time ---


@pytest.mark.parametrize("host", HOSTS)
async def test_turns_wait_for_the_agent_of_their_session(backend: Backend, host: str) -> None:
    make, slow = HOSTS[host], Slow(echo)
    app, clerk = office(backend.url, slow, host=None if make is None else make())
    async with app:
        handle = await app.start(clerk.options(id="c1"), "one")
        session = app.session("c1")
        await begin(session, "two", "t2")  # at once, before the agent has begun
        await slow.asked.wait()
        await begin(session, "three", "t3")
        assert await state_of(app, "c1", "t2") == "queued"
        slow.go.set()
        third = await session.turn("three", turn_id="t3", timeout="10s")
        second = await session.turn("two", turn_id="t2", timeout="10s")
        assert (await handle.result(timeout="10s")).text == "File. ['one']"
        assert second.text == "File. ['one', 'two']"
        assert third.text == "File. ['one', 'two', 'three']"
        assert await turn_ids(app, "c1") == ["c1", "t2", "t3"]


async def test_a_turn_that_waits_for_an_agent_gets_the_history_that_the_agent_begins_with(
    backend: Backend,
) -> None:
    slow = Slow(echo)
    app, clerk = office(backend.url, slow)
    slow.go.set()
    async with app:
        await app.session("chat").turn("zero", turn_id="t0", timeout="10s")
        slow.go.clear()
        later = clerk.options(id="c1", fork="chat", at="t0", delay="50ms")
        handle = await app.start(later, "one")
        await begin(app.session("c1"), "two", "t2")
        slow.go.set()
        result = await app.session("c1").turn("two", turn_id="t2", timeout="10s")
        assert result.text == "File. ['zero', 'one', 'two']"
        assert (await handle.result(timeout="10s")).text == "File. ['zero', 'one']"


@pytest.mark.parametrize("end", ["fails", "is cancelled", "is cancelled by force"])
async def test_the_next_turn_runs_however_the_agent_ends(backend: Backend, end: str) -> None:
    def reply(request: ModelRequest) -> Any:
        return fail("No paper.") if request.messages[-1].text == "one" else say("Filed.")

    slow = Slow(reply)
    app, clerk = office(backend.url, slow)
    async with app:
        handle = await app.start(clerk.options(id="c1"), "one")
        await slow.asked.wait()
        await begin(app.session("c1"), "two", "t2")
        if end == "fails":
            slow.go.set()
        else:
            await handle.cancel(force="force" in end)
        with pytest.raises(LashError):
            await handle.result(timeout="10s")
        slow.go.set()
        result = await app.session("c1").turn("two", turn_id="t2", timeout="10s")
        assert result.text == "Filed."


@EVERY_ENGINE
@each_config
async def test_a_message_for_now_reaches_the_agent_and_one_for_later_the_next_turn(
    backend: Backend, config: Any
) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.messages[-1].text == "one":
            return call("sign")
        asked = [message.text for message in request.messages if message.role == "user"]
        return say(f"read {asked}")

    app = backend.app(model=ScriptedModel(reply), worker=config)

    @app.tool(approval=True)
    async def sign() -> str:
        """Sign."""
        return "signed"

    clerk = app.agent("clerk", instructions="File.", tools=[sign])
    async with app:
        handle = await app.start(clerk.options(id="c1"), "one")
        wait = await open_wait(app)
        await app.session("c1").enqueue("later")
        await app.session("c1").enqueue("now", when="now")
        await app.resolve(wait.key, True)
        assert (await handle.result(timeout="10s")).text == "read ['one', 'now']"

        async def drained() -> bool:
            last = (await app.session("c1").view())[-1]
            return bool(last["text"] == "read ['one', 'now', 'later']")

        await eventually(drained)


@EVERY_ENGINE
@each_config
async def test_a_cancel_of_the_session_cancels_its_agent(backend: Backend, config: Any) -> None:
    app = backend.app(model=ScriptedModel([call("sign"), say("Good.")]), worker=config)

    @app.tool(approval=True)
    async def sign() -> str:
        """Sign."""
        return "signed"

    clerk = app.agent("clerk", instructions="File.", tools=[sign])
    async with app:
        handle = await app.start(clerk.options(id="c1"), "one")
        await open_wait(app)
        await begin(app.session("c1"), "two", "t2")
        await app.session("c1").cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")
        result = await app.session("c1").turn("two", turn_id="t2", timeout="10s")
        assert result.text == "Good."  # it was not cancelled with the agent


async def test_a_deletion_ends_the_agent_and_the_turns_that_wait_for_it(backend: Backend) -> None:
    slow = Slow(echo)
    app, clerk = office(backend.url, slow)
    async with app:
        handle = await app.start(clerk.options(id="c1"), "one")
        await slow.asked.wait()
        session = app.session("c1")
        await begin(session, "two", "t2")
        await session.delete()
        with pytest.raises(ProcessCancelled, match="deleted"):
            await handle.result(timeout="10s")
        await comes_to(app, "c1", "t2", "cancelled")
        slow.go.set()
        assert (await session.turn("new", timeout="10s")).text == "Help. ['new']"


async def test_a_tool_of_an_agent_cannot_wait_for_its_own_session(memory: Backend) -> None:
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return say(last.text) if last.role == "tool" else call("ask")

    app = Lash(memory.url, model=ScriptedModel(reply))

    @app.tool
    async def ask() -> str:
        """Ask the own session."""
        return (await app.session("c1").turn("never", timeout="5s")).text

    clerk = app.agent("clerk", instructions="File.", tools=[ask])
    async with app:
        handle = await app.start(clerk.options(id="c1"), "go")
        assert "would wait for itself" in (await handle.result(timeout="10s")).text


async def test_a_session_is_free_after_a_worker_of_an_earlier_version_ended_its_agent(
    backend: Backend,
) -> None:
    """Such a worker does not pass the lane on."""
    app, clerk = office(backend.url)
    async with app:
        store = app.store
        assert isinstance(store, SqlStore)

        async def left(session: str) -> None:
            handle = await app.start(clerk.options(id=session), "one")
            await handle.result(timeout="10s")
            record = await store.processes.get(session)
            assert record is not None

            def steps() -> Steps[None]:
                sql = "update pylash_lanes set holder = ? where lane = ?"
                yield Statement(sql, (record.run, f"session:{session}"))

            await store.driver.run(Operation("left", steps))

        await left("c1")
        assert await app.session("c1").turn("two", timeout="10s")
        await left("c2")
        await app.session("c2").enqueue("two")

        async def drained() -> bool:
            return len(await app.session("c2").view()) == 4

        await eventually(drained)


async def test_an_agent_that_an_earlier_version_started_takes_the_lane_when_it_begins(
    backend: Backend,
) -> None:
    slow = Slow(echo)
    app, clerk = office(backend.url, slow)
    async with app:
        store = app.store
        assert isinstance(store, SqlStore)
        given = clerk.input_of("c1", {"input": [{"type": "text", "text": "one"}]}, None)
        assert isinstance(given, SessionTurnInput)
        start = StartProcess(Registration(id="c1", input=given), delay=200_000)
        await store.processes.start(start)

        def steps() -> Steps[None]:
            yield Statement("update pylash_lanes set holder = null where lane = 'session:c1'", ())

        await store.driver.run(Operation("free", steps))
        await slow.asked.wait()
        await begin(app.session("c1"), "two", "t2")
        assert await state_of(app, "c1", "t2") == "queued"
        slow.go.set()
        await app.session("c1").turn("two", turn_id="t2", timeout="10s")
        assert await turn_ids(app, "c1") == ["c1", "t2"]


# --- workers that lack something ---


@pytest.mark.parametrize("missing", ["tool", "agent"])
async def test_an_agent_is_left_to_a_worker_that_has_what_it_needs(
    durable: Backend, missing: str
) -> None:
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if request.messages[0].text == "File.":
            return say(last.text) if last.role == "tool" else call("sign")
        if last.role == "tool":
            return say(last.text)
        return call("spawn_agent", agent="clerk", task="go")

    def shop(*, complete: bool, **options: Any) -> Lash:
        app = Lash(durable.url, model=ScriptedModel(reply), instructions="Help.", **options)

        async def sign() -> str:
            """Sign."""
            return "signed"

        if complete:
            app.agent("clerk", instructions="File.", tools=[sign])
            app.subagents("clerk")
        return app

    async with shop(complete=True, worker=None) as client:
        clerk = client.catalog.agents["clerk"]
        assert isinstance(clerk, Agent)
        if missing == "tool":
            await client.start(clerk.options(id="c1"), "go")
        else:
            given = clerk.input_of("c1", {"input": [{"type": "text", "text": "go"}]}, None)
            assert isinstance(given, SessionTurnInput)
            ask = {**given.ask, "options": {"agent": "clerk"}}  # as a model starts it
            turn = SessionTurnInput("c1", ask, {"agent": "clerk"})
            await client.store.processes.start(StartProcess(Registration(id="c1", input=turn)))
        handle = client.process_handle("c1", clerk)
        async with shop(complete=False):

            async def blocked() -> bool:
                return await handle.status() == "blocked"

            await eventually(blocked)
            [view] = await client.processes(status="blocked")
            reason = str(view.reason)
            assert "turn_tool_missing" in reason
            assert f"needs {missing}" in reason
            assert "app.retry('c1')" in reason
            assert "session." not in reason
        async with shop(complete=True):
            assert await client.session("c1").retry()
            assert (await handle.result(timeout="10s")).text == "signed"


# --- its turn id ---


async def test_the_turn_id_of_an_agent_is_that_of_a_turn(backend: Backend) -> None:
    app, clerk = office(backend.url)
    async with app:
        result = await (await app.start(clerk.options(id="c1"), "one")).result(timeout="10s")
        session = app.session("c1")
        await session.turn("two", turn_id="t2", timeout="10s")
        fork = await session.fork("f1", at=result.turn_id)
        assert await turn_ids(app, "f1") == ["c1"]
        assert "session" in {effect.key for effect in await session.timeline("c1")}
        await fork.turn("three", turn_id="t3", timeout="10s")
        await fork.fork("f2", at="c1")
        assert await turn_ids(app, "f2") == ["c1"]
        chosen = clerk.options(id="c2", fork="c1", at="c1")
        again = await (await app.start(chosen, "more")).result(timeout="10s")
        assert again.text == "File. ['one', 'more']"
        await app.session("c2").fork("f3", at="c1")
        assert await turn_ids(app, "f3") == ["c1"]
        for unknown in ("c2", "f1"):
            with pytest.raises(TurnUnknown):
                await session.fork("f4", at=unknown)
            with pytest.raises(TurnUnknown):
                await session.timeline(unknown)
        for text in ("one", "other"):
            with pytest.raises(TurnOfProcess, match="process_handle"):
                await session.turn(text, turn_id="c1", timeout="10s")
        assert await turn_ids(app, "c1") == ["c1", "t2"]
        with pytest.raises(NotSupported, match="fork="):
            await app.fork_process("c1")


async def test_the_turn_of_a_running_agent_cannot_be_forked_yet(memory: Backend) -> None:
    slow = Slow(echo)
    app, clerk = office(memory.url, slow)
    async with app:
        handle = await app.start(clerk.options(id="c1"), "one")
        await slow.asked.wait()
        with pytest.raises(TurnUnknown):
            await app.session("c1").fork("f1", at="c1")
        slow.go.set()
        await handle.result(timeout="10s")


# --- its events ---


@pytest.mark.parametrize("asked_by", ["code", "model"])
async def test_the_events_of_an_agent_are_observed_in_its_session(
    backend: Backend, asked_by: str
) -> None:
    slow = Slow(lambda _: say("one two three"))

    async def reply(request: ModelRequest) -> Any:
        if request.messages[0].text == "File.":
            return await slow(request)
        if request.messages[-1].role == "tool":
            return say("Done.")
        return call("spawn_agent", agent="clerk", task="hi")

    app, clerk = office(backend.url, reply)
    app.subagents("clerk")
    async with app:
        seen: list[str] = []

        async def observe(session: str) -> None:
            async for item in app.session(session).observe():
                seen.append(item.type if item.event is None else item.event.type)
                if seen.count("message") == 2:
                    break

        async def started() -> bool:
            return "turn_started" in seen

        async with asyncio.TaskGroup() as group:
            if asked_by == "code":
                observing = group.create_task(observe("{c1"))  # before the session is there
                await asyncio.sleep(0)
                await app.start(clerk.options(id="{c1"), "hi")
            else:
                await begin(app.session("chat"), "go", "t1")
                await slow.asked.wait()
                [held] = await app.session("chat").processes()
                observing = group.create_task(observe(held.id))
            await eventually(started)
            slow.go.set()
            await asyncio.wait_for(observing, 10)
        assert seen[0] == "turn_started"
        assert "text_delta" in seen
        assert seen[-3:] == ["turn_completed", "message", "message"]


# --- starts that are refused ---


async def test_an_agent_that_cannot_begin_is_refused_at_its_start(backend: Backend) -> None:
    app, clerk = office(backend.url)
    async with app:
        await app.session("chat").turn("Hi.", turn_id="t1", timeout="10s")
        for chosen, error in (
            (clerk.options(id="a1", fork="nobody"), SessionUnknown),
            (clerk.options(id="a2", fork="chat", at="t9"), TurnUnknown),
            (clerk.options(id="chat"), SessionExists),
        ):
            with pytest.raises(error) as caught:
                await app.start(chosen, "Who?")
            assert "fork to" not in str(caught.value)
        assert await app.processes() == []
        assert len(await app.session("chat").history()) == 2
        # A start that is repeated is the same process, also if the history is gone.
        chosen = clerk.options(id="a3", fork="chat", at="t1")
        await (await app.start(chosen, "Who?")).result(timeout="10s")
        await app.session("chat").delete()
        assert (await (await app.start(chosen, "Who?")).result(timeout="10s")).turn_id == "a3"


async def test_an_agent_that_fails_is_logged_in_one_line(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    app, clerk = office(backend.url)

    @app.process
    async def start(ctx: ProcessContext[None]) -> str:
        child = await ctx.start(clerk.options(id="c1", fork="nobody"), "Who?")
        return child.id

    async with app:
        with caplog.at_level(logging.WARNING, "pylash"):
            await (await app.start(start)).result(timeout="10s")
            with pytest.raises(ProcessFailed, match="nobody"):
                await app.process_handle("c1").result(timeout="10s")
    [record] = [one for one in caplog.records if "c1" in one.getMessage()]
    assert "There is no session 'nobody'" in record.getMessage()
    assert record.exc_info is None


class Note(BaseModel):
    """What a clerk writes."""

    text: str


async def test_a_handle_of_an_agent_has_the_type_of_its_result(memory: Backend) -> None:
    app, clerk = office(memory.url, lambda _: say('{"text": "filed"}'))
    async with app:
        chosen = clerk.options(id="c1", output=Note)
        await app.start(chosen, "one")
        result = await app.process_handle("c1", chosen).result(timeout="10s")
        assert result.value == Note(text="filed")
        plain = await app.process_handle("c1", clerk).result(timeout="10s")
        assert plain.session_id == "c1"
        await app.session("chat").grant_process("c1")
        held = await app.session("chat").process_handle("c1", chosen).result(timeout="10s")
        assert held.value == Note(text="filed")


# --- views, tools, wakes ---


async def test_a_view_marks_answers_that_were_cut_off_and_errors(memory: Backend) -> None:
    model = Telling("Once upon", ok="Fine.")
    app = Lash(memory.url, model=model)
    async with app:
        session = app.session("chat")
        await begin(session, "tell", "t1")
        await model.said.wait()
        await session.cancel("enough")
        await comes_to(app, "chat", "t1", "cancelled")
        await session.turn("ok", turn_id="t2", timeout="10s")
        view = await session.view()
    marks = [(one["kind"], one.get("interrupted"), one.get("error")) for one in view]
    assert marks == [
        ("user", None, None),
        ("assistant", True, None),
        ("user", None, None),
        ("assistant", None, None),
    ]
    stopping = Lash(memory.url, model=ScriptedModel([]))
    async with stopping:
        session = stopping.session("chat", budget=TurnBudget(tokens=0))
        await session.turn("one", timeout="10s")
        view = await session.view()
    assert [(one["kind"], one.get("error")) for one in view] == [("user", None), ("runtime", True)]


class Stamps:
    """A plugin with one tool."""

    name = "stamps"

    def build(self, session_id: str, options: Any) -> Any:
        del session_id, options
        return Stamp()


class Stamp:
    def prompt(self) -> str | None:
        return None

    def tools(self) -> list[Any]:
        async def stamp(page: int) -> str:
            """Stamp a page."""
            return f"stamped {page}"

        return [tool(stamp)]


async def test_an_unknown_tool_is_told_with_the_tools_of_the_session(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel([]), plugins=[Stamps()])

    @app.tool
    async def read() -> str:
        """Read."""
        return ""

    async with app:
        with pytest.raises(ToolUnknown, match=r"known: read, stamp\)"):
            await app.session("chat").start("nothing")


@pytest.mark.parametrize("text", ["", " \n"])
async def test_a_blank_wake_is_refused_as_a_turn_refuses_it(memory: Backend, text: str) -> None:
    app = Lash(memory.url, model=ScriptedModel([]))

    @app.process
    async def ring(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.wake(text)
        except LashError as error:
            return error.code
        return "sent"

    async with app:
        handle = await app.start(ring.options(wake="chat"))
        assert await handle.result(timeout="10s") == "input_invalid"
        with pytest.raises(LashError) as caught:
            await app.session("chat").turn(text)
        assert caught.value.code == "input_invalid"
        assert await transcript(app.session("chat")) == "\n"
