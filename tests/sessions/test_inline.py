"""Hosts that record nothing, including one that executes one effect at a time: everything else works as on any host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pylash import (
    InlineHost,
    Lash,
    ModelRequest,
    ProcessCancelled,
    ProcessContext,
    Retry,
    ToolContext,
    WaitTimeout,
)
from pylash.testing import ScriptedModel, SerialHost, SimClock, call, calls, fail, say
from tests.backends import eventually
from tests.sessions.scenes import begin, open_wait, transcript

Inline = Callable[[Any], Lash]
"""Makes an app with a scripted model, on such a host."""


@pytest.fixture(params=[InlineHost, lambda: SerialHost(InlineHost())], ids=["inline", "serial"])
def inline(request: pytest.FixtureRequest) -> Inline:
    return lambda model: Lash("memory://", model=ScriptedModel(model), host=request.param())


async def test_turns_with_tools_and_retries(inline: Inline) -> None:
    app = inline([calls(call("look", n=1), call("flaky")), say("Done."), say("Again.")])

    @app.tool
    def look(n: int) -> str:
        return f"order {n}"

    @app.tool(retry=Retry(2, delay="1ms"))
    async def flaky(ctx: ToolContext[None]) -> str:
        if ctx.attempt == 1:
            raise OSError("away")
        return "back"

    async with app:
        session = app.session("chat")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert (await session.turn("more", timeout="10s")).text == "Again."
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  i1.c0 look(n=1), i1.c1 flaky()"
            "\ntool       i1.c0 look: order 1"
            "\ntool       i1.c1 flaky: back"
            "\nassistant  Done."
            "\nuser       more"
            "\nassistant  Again.\n"
        )


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_is_answered_by_its_key(inline: Inline, approved: bool) -> None:
    app = inline([call("pay", cents=5), say("Done.")])

    @app.tool(approval="money leaves")
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    async with app:
        async with app.session("chat").stream("go") as stream:
            async for event in stream:
                if event.type == "wait_opened":
                    outcome = await app.resolve(event.data["key"], approved)
                    assert outcome.status == "accepted"
        assert stream.result.text == "Done."
        told = await transcript(app.session("chat"))
        assert ("paid 5" if approved else "Not run: a person rejected it.") in told


async def test_open_waits_are_listed(inline: Inline) -> None:
    app = inline([call("pay", cents=5), say("Done.")])

    @app.tool(approval="money leaves")
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    async with app:
        session = app.session("chat")
        async with session.stream("go", turn_id="t1") as stream:
            async for event in stream:
                if event.type == "wait_opened":
                    [wait] = await app.waits()
                    assert (wait.kind, wait.title, wait.tool) == ("approval", "money leaves", "pay")
                    assert wait.arguments == {"cents": 5}
                    assert [one.key for one in await app.waits(session_id="chat")] == [wait.key]
                    assert await app.waits(session_id="other") == []
                    await app.resolve(wait.key, True)
        assert await app.waits() == []


async def test_an_outsider_gives_the_result(inline: Inline) -> None:
    app = inline([call("ask"), say("Done.")])

    @app.tool
    async def ask(ctx: ToolContext[None]) -> Any:
        return ctx.defer()

    async with app:
        async with app.session("chat").stream("go") as stream:
            async for event in stream:
                if event.type == "wait_opened":
                    await app.resolve(event.data["key"], "Monday")
        assert "ask: Monday" in await transcript(app.session("chat"))


async def test_subagents(inline: Inline) -> None:
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if request.messages[0].text == "Find sources.":
            return say(last.text.upper())
        if last.role == "user":
            return calls(*(call("spawn_agent", agent="researcher", task=t) for t in "ab"))
        return say(" ".join(m.text for m in request.messages if m.role == "tool"))

    app = inline(reply)
    app.agent("researcher", instructions="Find sources.", tools=[])
    app.subagents("researcher")
    async with app:
        result = await app.session("chat").turn("go", timeout="10s")
        assert result.text == "A B"
        assert result.usage.requests == 4


async def test_several_steps_of_one_process(inline: Inline) -> None:
    app = inline([say("Hello.")])

    async def double(n: int) -> int:
        return 2 * n

    @app.process
    async def work(ctx: ProcessContext[None]) -> list[Any]:
        first = await ctx.step(double, 1)
        second = await ctx.step(double, first)
        both = await ctx.gather(ctx.step(double, 5), ctx.step(double, 6))
        asked = await ctx.session("chat").turn("hi")
        last = await ctx.step(double, second)
        return [first, second, both, asked.text, last]

    async with app:
        handle = await app.start(work)
        assert await handle.result(timeout="10s") == [2, 4, [10, 12], "Hello.", 8]


async def test_a_turn_is_cancelled(inline: Inline) -> None:
    begun = asyncio.Event()
    app = inline([calls(call("hang"), call("quick"))])

    @app.tool
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.tool
    async def quick() -> str:
        return "done"

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await begun.wait()
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert result.status == "cancelled"
        await transcript(session)


@pytest.mark.parametrize("where", ["model", "approval"])
async def test_a_turn_is_cancelled_wherever_it_is(inline: Inline, where: str) -> None:
    begun = asyncio.Event()

    async def reply(_: ModelRequest) -> Any:
        begun.set()
        if where == "approval":
            return call("pay")
        return await asyncio.Event().wait()

    app = inline(reply)

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await begun.wait()
        if where == "approval":
            await open_wait(app)
        await session.cancel("enough")
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert (result.status, result.error) == ("cancelled", "enough")
        if where == "approval":
            assert "Not run: the turn was cancelled." in await transcript(session)
            assert await app.waits() == []


async def test_a_process_is_cancelled_and_cleans_up(inline: Inline) -> None:
    app = inline([])
    begun, cleaned = asyncio.Event(), []

    async def clean() -> None:
        cleaned.append(1)

    @app.process
    async def work(ctx: ProcessContext[None]) -> None:
        try:
            begun.set()
            await ctx.sleep("1h")
        finally:
            await ctx.step(clean)

    async with app:
        handle = await app.start(work)
        await begun.wait()
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
    assert cleaned == [1]


async def test_messages_for_now_are_delivered(inline: Inline) -> None:
    app = inline(lambda r: say(f"Heard {r.messages[-1].text}.") if r.call_number else call("work"))

    @app.tool
    async def work() -> str:
        await app.session("chat").enqueue("hurry", when="now")
        return "worked"

    async with app:
        session = app.session("chat")
        assert (await session.turn("go", timeout="10s")).text == "Heard hurry."


async def test_a_timeout_of_an_approval(inline: Inline) -> None:
    app = inline([call("pay"), say("Done.")])

    @app.tool(approval=True, approval_timeout="20ms")
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        assert (await session.turn("go", timeout="10s")).text == "Done."
        assert "nobody approved it in time" in await transcript(session)


# --- time ---


@pytest.mark.proves("E10")
@pytest.mark.parametrize("given", ["app", "host"])
async def test_the_sleeps_of_a_process_take_the_time_of_the_clock_that_was_given(
    given: str,
) -> None:
    clock = SimClock()
    host = InlineHost(clock if given == "host" else None)
    app = Lash("memory://", host=host, clock=clock)
    woken: list[str] = []

    async def nap(ctx: ProcessContext[None], hours: int) -> None:
        await ctx.sleep(f"{hours}h")
        woken.append(f"{hours} h")

    @app.process
    async def work(ctx: ProcessContext[None]) -> str:
        before = ctx.now()
        await ctx.gather(nap(ctx, 48), nap(ctx, 24))
        try:
            await ctx.wait(ctx.wait_key("never"), timeout="1d")
        except WaitTimeout:
            woken.append("timeout")
        return f"{ctx.now() - before}"

    async with asyncio.timeout(20), app:
        handle = await app.start(work)
        await clock.advance("23h")
        assert woken == []
        await clock.advance("1h")
        assert woken == ["24 h"]
        await clock.advance("1d")
        assert woken == ["24 h", "48 h"]
        await clock.advance("1d")
        assert await handle.result() == "3 days, 0:00:00"
    assert woken == ["24 h", "48 h", "timeout"]


@pytest.mark.proves("E10")
async def test_a_simulated_sleep_is_cancelled() -> None:
    clock = SimClock()
    app = Lash("memory://", host=InlineHost(), clock=clock)

    @app.process
    async def work(ctx: ProcessContext[None]) -> None:
        await ctx.sleep("1w")

    async with asyncio.timeout(20), app:
        handle = await app.start(work)
        await clock.advance("1d")
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result()


@pytest.mark.proves("E10")
async def test_the_pauses_of_a_turn_take_the_time_of_the_clock_that_was_given() -> None:
    clock = SimClock()
    replies: list[Any] = [fail("busy", retryable=True), say("Hello.")]
    model = ScriptedModel(lambda _: replies.pop(0))
    async with (
        asyncio.timeout(20),
        Lash("memory://", host=InlineHost(), clock=clock, model=model) as app,
    ):
        session = app.session("chat")
        await begin(session, "hi", "t1")
        await clock.advance("999ms")
        assert len(model.requests) == 1
        await clock.advance("1ms")
        assert len(model.requests) == 2
        assert (await session.turn("hi", turn_id="t1")).text == "Hello."


@pytest.mark.parametrize("host", [InlineHost, lambda: SerialHost(InlineHost())])
async def test_signals_children_and_turns_wake_a_process_that_waits_for_them(host: Any) -> None:
    """The clock stands still, so nothing is found by looking for it now and then."""
    model = ScriptedModel(lambda _: say("Hello."))
    app = Lash("memory://", model=model, host=host(), clock=SimClock())

    @app.process
    async def child(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("go", timeout="1h")

    @app.process
    async def parent(ctx: ProcessContext[None]) -> list[Any]:
        started = await ctx.start(child.options(id="child"))
        signal = await ctx.wait_signal("go")
        return [signal, await started.result(), (await ctx.session("chat").turn("Hi.")).text]

    async with asyncio.timeout(4), app:  # less than the interval at which lost hints are made good
        handle = await app.start(parent)
        await handle.signal("go", 1)
        await eventually(lambda: app.store.processes.get("child"))
        await app.process_handle("child").signal("go", 2)
        assert await handle.result() == [1, 2, "Hello."]


async def test_a_wait_for_a_signal_ends_when_its_time_is_over() -> None:
    clock = SimClock()
    app = Lash("memory://", host=InlineHost(), clock=clock)

    @app.process
    async def waits(ctx: ProcessContext[None]) -> str:
        with pytest.raises(WaitTimeout):
            await ctx.wait_signal("go", timeout="1h")
        return "late"

    async with asyncio.timeout(20), app:
        handle = await app.start(waits)
        await clock.advance("59m")
        assert await handle.status() == "running"
        await clock.advance("1m")
        assert await handle.result() == "late"
