"""Laws of turns on any engine: model calls and tools are executed once, and queued messages are delivered once."""

from __future__ import annotations

import asyncio
from typing import Any

from pylash.app import Lash
from pylash.processes.operations.context import ProcessContext
from pylash.sessions.session import Session
from pylash.testing.laws.engines.subjects import (
    LIMIT,
    MODEL,
    Deployment,
    EngineSubject,
    Gate,
    Ledger,
    until,
)
from pylash.testing.laws.suites import Law, equal, holds, together
from pylash.testing.scripted import ScriptedModel, call, calls, say
from pylash.turn.requests import ModelRequest

Context = ProcessContext[Any]


def _echo(request: ModelRequest) -> Any:
    return say(f"heard {request.messages[-1].text}")


async def _texts(session: Session) -> list[str]:
    return [message.text for message in await session.history()]


async def a_turn_is_answered_once(subject: EngineSubject) -> None:
    model = ScriptedModel(_echo)

    async with Deployment(subject, lambda app: app.model(MODEL, model)) as deployment:
        session = deployment.app.session("once", model=MODEL)
        for _ in range(2):
            result = await session.turn("hello", turn_id="t1", timeout=LIMIT)
            equal(result.text, "heard hello", "the answer")
        await deployment.restart()
        session = deployment.app.session("once", model=MODEL)
        again = await session.turn("hello", turn_id="t1", timeout=LIMIT)
        equal(again.text, "heard hello", "the answer after a restart")
        equal(await _texts(session), ["hello", "heard hello"], "the messages")
    equal(len(model.requests), 1, "the calls of the model")


async def a_turn_continues_after_its_tools(subject: EngineSubject) -> None:
    ledger = Ledger()
    model = ScriptedModel(
        [calls(call("look", n=1), call("pay", cents=5), call("look", n=2)), say("Paid.")]
    )

    def declare(app: Lash) -> None:
        app.model(MODEL, model)

        @app.tool
        async def look(n: int) -> str:
            """Look."""
            return f"saw {await ledger.note(n)}"

        @app.tool(approval=True)
        async def pay(cents: int) -> str:
            """Pay."""
            return f"paid {await ledger.note(cents)}"

    async with Deployment(subject, declare) as deployment:
        session = deployment.app.session("tools", model=MODEL)
        async with session.stream("go", turn_id="t1") as stream:
            async for event in stream:
                if event.type == "wait_opened":
                    break
        await deployment.restart()
        (wait,) = await deployment.app.waits(session_id="tools")
        equal((wait.tool, wait.arguments), ("pay", {"cents": 5}), "the open wait")
        equal((await deployment.app.resolve(wait.key, True)).status, "accepted", "the answer")
        session = deployment.app.session("tools", model=MODEL)
        result = await session.turn("go", turn_id="t1", timeout=LIMIT)
        equal(result.text, "Paid.", "the answer of the turn")
        texts = (await _texts(session))[2:5]
        equal(texts, ["saw 1", "paid 5", "saw 2"], "the results, in the order of the calls")
    equal(sorted(ledger.executed), [1, 2, 5], "the executions")
    equal(len(model.requests), 2, "the calls of the model")


async def turns_of_a_session_wait_for_each_other(subject: EngineSubject) -> None:
    model = ScriptedModel(lambda request: say(f"{len(request.messages)}"))

    async with Deployment(subject, lambda app: app.model(MODEL, model)) as deployment:
        session = deployment.app.session("lane", model=MODEL)
        turns = [session.turn("go", timeout=LIMIT) for _ in range(4)]
        texts = [turn.text for turn in await together(*turns)]
        equal(sorted(texts), ["1", "3", "5", "7"], "how many messages each turn began with")


async def a_message_for_now_joins_the_turn(subject: EngineSubject) -> None:
    gate = Gate()

    def reply(request: ModelRequest) -> Any:
        return call("work") if request.call_number == 0 else _echo(request)

    def declare(app: Lash) -> None:
        app.model(MODEL, ScriptedModel(reply))

        @app.tool
        async def work() -> str:
            """Work."""
            return await gate.enter()

    async with Deployment(subject, declare) as deployment:
        session = deployment.app.session("now", model=MODEL)
        async with asyncio.TaskGroup() as group:
            turn = group.create_task(session.turn("go", timeout=LIMIT))
            await gate.until_entered()
            await session.enqueue("hurry", when="now")
            gate.opened.set()
        equal(turn.result().text, "heard hurry", "the answer")
        texts = await _texts(session)
        equal(texts, ["go", "", "through", "hurry", "heard hurry"], "the messages")


async def a_message_for_an_idle_session_starts_a_turn(subject: EngineSubject) -> None:
    def declare(app: Lash) -> None:
        app.model(MODEL, ScriptedModel(_echo))

    async with Deployment(subject, declare) as deployment:
        session = deployment.app.session("idle", model=MODEL)
        await session.turn("first", timeout=LIMIT)
        await session.enqueue("second", key="k")
        await session.enqueue("second", key="k")  # the same one again
        expected = ["first", "heard first", "second", "heard second"]

        async def is_answered() -> bool:
            return len(await _texts(session)) >= len(expected)

        await until(is_answered, "the message is answered")
        equal(await _texts(session), expected, "the messages")


async def a_process_wakes_its_session_once(subject: EngineSubject) -> None:
    def declare(app: Lash) -> None:
        app.model(MODEL, ScriptedModel(_echo))

        @app.process
        async def waker(ctx: Context) -> None:
            await ctx.wake("ready")
            await ctx.wait_signal("go")

    async with Deployment(subject, declare) as deployment:
        session = deployment.app.session("woken", model=MODEL)
        await session.turn("first", timeout=LIMIT)
        definition = deployment.app.definitions["waker"]
        process = (await deployment.app.start(definition.options(wake="woken"))).id
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("go")
        await deployment.result(process)
        session = deployment.app.session("woken", model=MODEL)

        async def is_answered() -> bool:
            return len(await _texts(session)) >= 4

        await until(is_answered, "the wake is answered")
        texts = await _texts(session)
        equal(len(texts), 4, "the messages")
        holds("ready" in texts[2], f"the text of the wake is in {texts[2]!r}")


async def a_subagent_is_executed_once(subject: EngineSubject) -> None:
    ledger = Ledger()
    main = ScriptedModel([call("spawn_agent", agent="helper", task="think"), say("Done.")])
    thinker = ScriptedModel([call("consult"), say("I thought.")])

    def declare(app: Lash) -> None:
        app.model(MODEL, main)
        app.model("thinker", thinker)
        app.agent("helper", model="thinker")
        app.subagents("helper")

        @app.tool(approval=True)
        async def consult() -> str:
            """Consult."""
            return str(await ledger.note("consulted"))

    async with Deployment(subject, declare) as deployment:
        session = deployment.app.session("family", model=MODEL)
        async with session.stream("go", turn_id="t1"):
            """Leaving never cancels."""

        async def open_wait() -> Any:
            waits = await deployment.app.waits()
            return next((wait for wait in waits if wait.tool == "consult"), None)

        await until(open_wait, "the subagent asks")
        await deployment.restart()
        wait = await until(open_wait, "the subagent asks")
        await deployment.app.resolve(wait.key, True)
        session = deployment.app.session("family", model=MODEL)
        result = await session.turn("go", turn_id="t1", timeout=LIMIT)
        equal(result.text, "Done.", "the answer")
        equal((await _texts(session))[2], "I thought.", "the answer of the subagent")
    equal(ledger.executed, ["consulted"], "the executions")
    equal((len(main.requests), len(thinker.requests)), (2, 2), "the calls of the models")


async def a_turn_of_a_process_is_answered_once(subject: EngineSubject) -> None:
    model = ScriptedModel(_echo)

    def declare(app: Lash) -> None:
        app.model(MODEL, model)

        @app.process
        async def writer(ctx: Context) -> list[str]:
            talk = ctx.session(f"talk-{ctx.id}", model=MODEL)
            first = (await talk.turn("write")).text
            completed = await ctx.complete("sum up", model=MODEL)
            await ctx.wait_signal("go")
            return [first, completed, (await talk.turn("again")).text]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("writer")
        await deployment.comes_to(process, "waiting")

        async def has_asked() -> bool:
            return len(model.requests) == 2

        await until(has_asked, "the turn and the completion")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("go")
        expected = ["heard write", "heard sum up", "heard again"]
        equal(await deployment.result(process), expected, "the answers")
    equal(len(model.requests), 3, "the calls of the model")


TURNS: tuple[Law[EngineSubject], ...] = (
    a_turn_is_answered_once,
    a_turn_continues_after_its_tools,
    turns_of_a_session_wait_for_each_other,
    a_message_for_now_joins_the_turn,
    a_message_for_an_idle_session_starts_a_turn,
    a_process_wakes_its_session_once,
    a_subagent_is_executed_once,
    a_turn_of_a_process_is_answered_once,
)
