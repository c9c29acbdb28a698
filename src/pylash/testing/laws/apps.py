"""Laws of apps: what turns, processes and programs do on any host.

A subject is an app that is not open. The laws declare what they need on it and open it. They ask only for what an app
promises, so a host that passes the laws of scopes, steps and waits but cannot carry a whole run is found here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pylash.app import Lash
from pylash.engine.retries import Retry
from pylash.processes.operations.context import ProcessContext
from pylash.testing.laws.suites import Suite, equal, holds, together
from pylash.testing.scripted import ScriptedModel, call, calls, say
from pylash.tools.context import ToolContext
from pylash.values.process_errors import ProcessCancelled, ProcessFailed

LIMIT = "10s"
MODEL = "scripted"

PROGRAM = """
process double(n: int) -> int { finish n * 2 }

process main(n: int) signals { word: str } -> { sum: int, word: str } {
  child = start double(n: n)
  doubled = await child?
  sum = await tools.add({ a: doubled, b: 1 })?
  word = wait signal word
  finish { sum: sum, word: word }
}
"""


async def a_turn_runs_its_tools_and_keeps_their_order(app: Lash) -> None:
    replies = [calls(call("look", n=1), call("flaky"), call("look", n=2)), say("Done.")]
    app.model(MODEL, ScriptedModel(replies))
    running = most = 0

    @app.tool
    async def look(n: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return f"order {n}"

    @app.tool(retry=Retry(2, delay="1ms"))
    async def flaky(ctx: ToolContext[Any]) -> str:
        if ctx.attempt == 1:
            raise OSError("away")
        return "back"

    async with app:
        session = app.session("chat", model=MODEL)
        result = await session.turn("go", turn_id="t1", timeout=LIMIT)
        equal(result.text, "Done.", "the answer")
        texts = [message.text for message in await session.history()]
        equal(texts[2:5], ["order 1", "back", "order 2"], "the results, in the order of the calls")
        if not app.effect_host.supports_concurrent_effects:
            equal(most, 1, "how many effects a host executes at once that cannot overlap them")
        again = await session.turn("go", turn_id="t1", timeout=LIMIT)
        equal(again.text, "Done.", "the answer to the same turn again")


async def an_approval_is_answered_by_its_key(app: Lash) -> None:
    app.model(MODEL, ScriptedModel([call("pay", cents=5), say("Paid.")]))

    @app.tool(approval=True)
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    async with app:
        async with app.session("chat", model=MODEL).stream("go") as stream:
            async for event in stream:
                if event.type == "wait_opened":
                    outcome = await app.resolve(event.data["key"], True)
                    equal(outcome.status, "accepted", "the answer to the approval")
        equal(stream.result.text, "Paid.", "the answer")


async def a_subagent_answers_its_caller(app: Lash) -> None:
    app.model(MODEL, ScriptedModel([call("spawn_agent", agent="a", task="think"), say("Done.")]))
    app.model("thinker", ScriptedModel([say("I thought.")]))
    app.agent("a", model="thinker")
    app.subagents("a")
    async with app:
        session = app.session("chat", model=MODEL)
        await session.turn("go", timeout=LIMIT)
        texts = [message.text for message in await session.history()]
        equal(texts[-2:], ["I thought.", "Done."], "the subagent's answer, and the answer")


async def turns_of_a_session_run_one_after_another(app: Lash) -> None:
    app.model(MODEL, ScriptedModel(lambda request: say(f"{len(request.messages)}")))
    async with app:
        session = app.session("chat", model=MODEL)
        asked = [session.turn("go", timeout=LIMIT) for _ in range(4)]
        texts = [turn.text for turn in await together(*asked)]
        holds(len(set(texts)) == len(texts), f"a turn did not see those before it: {texts}")


async def a_process_takes_steps_in_branches(app: Lash) -> None:
    async def double(n: int) -> int:
        return 2 * n

    @app.process
    async def doubles(ctx: ProcessContext[Any], numbers: list[int]) -> list[int]:
        first = await ctx.step(double, 1)
        await ctx.sleep("1ms")
        return [first, *await ctx.gather(*(ctx.step(double, n) for n in numbers))]

    async with app:
        handle = await app.start(doubles, numbers=[2, 3, 4])
        equal(await handle.result(timeout=LIMIT), [2, 4, 6, 8], "the result")


async def a_process_receives_signals_and_waits(app: Lash) -> None:
    @app.process
    async def hears(ctx: ProcessContext[Any]) -> list[Any]:
        heard = [await ctx.wait_signal("word"), await ctx.wait_signal("word")]
        await ctx.emit("key", ctx.wait_key("answer"))
        return [*heard, await ctx.wait(ctx.wait_key("answer"))]

    async with app:
        handle = await app.start(hears.options(id="p"))
        for word in ("one", "two"):
            await handle.signal("word", word)
        async for event in handle.events(follow=True):
            if event.type == "key":
                await app.resolve(event.payload, "three")
        equal(await handle.result(timeout=LIMIT), ["one", "two", "three"], "what it received")


async def a_process_awaits_its_child(app: Lash) -> None:
    @app.process
    async def child(ctx: ProcessContext[Any], n: int) -> int:
        if n < 0:
            raise ValueError("too small")
        return await ctx.step(abs, n + 1)

    @app.process
    async def parent(ctx: ProcessContext[Any]) -> list[Any]:
        good, bad = await ctx.start(child, n=1), await ctx.start(child, n=-1)
        try:
            await bad.result()
        except ProcessFailed as error:
            return [await good.result(), error.failure.message]
        return []

    async with app:
        result = await (await app.start(parent)).result(timeout=LIMIT)
        equal(result, [2, "too small"], "the result and the failure of its children")


async def a_cancelled_process_cleans_up_and_ends(app: Lash) -> None:
    cleaned: list[str] = []

    async def clean() -> None:
        cleaned.append("clean")

    @app.process
    async def waits(ctx: ProcessContext[Any]) -> None:
        try:
            await ctx.emit("waiting")
            await ctx.wait_signal("never")
        finally:
            await ctx.step(clean)

    async with app:
        handle = await app.start(waits)
        async for event in handle.events(follow=True):
            if event.type == "waiting":
                await handle.cancel("enough")
        try:
            await handle.result(timeout=LIMIT)
        except ProcessCancelled:
            equal(cleaned, ["clean"], "how often it cleaned up")
        else:
            holds(False, "it was not cancelled")


async def a_program_calls_tools_starts_processes_and_waits(app: Lash) -> None:
    @app.tool
    async def add(a: int, b: int) -> int:
        return a + b

    async with app:
        module = await app.lashlang(PROGRAM)
        handle = await app.start(module["main"], n=4)
        await handle.signal("word", "yes")
        equal(await handle.result(timeout=LIMIT), {"sum": 9, "word": "yes"}, "its result")


APP_ON_HOST = Suite[Lash](
    "app_on_host",
    (
        a_turn_runs_its_tools_and_keeps_their_order,
        an_approval_is_answered_by_its_key,
        a_subagent_answers_its_caller,
        turns_of_a_session_run_one_after_another,
        a_process_takes_steps_in_branches,
        a_process_receives_signals_and_waits,
        a_process_awaits_its_child,
        a_cancelled_process_cleans_up_and_ends,
        a_program_calls_tools_starts_processes_and_waits,
    ),
)
