"""Completions of tools: they belong to the attempt, and count for the turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import Lash, ModelMissing, ModelReply, Retry, ToolContext, TurnBudget, Usage
from pylash.testing import ScriptedModel, call, crash_everywhere, fail, say
from pylash.tools.context import CallInfo
from tests.backends import Backend
from tests.sessions.scenes import begin, effects_of, open_wait, transcript


class Short(BaseModel):
    """A typed answer."""

    title: str


def spending(text: str, tokens: int) -> ModelReply:
    return ModelReply(text=text, usage=Usage(requests=1, output_tokens=tokens))


def app_with(store: str, fast: Any, **options: Any) -> Lash:
    """Make an app whose model calls a tool that asks another model."""
    app = Lash(store, model=ScriptedModel([call("shorten"), say("Done.")]), **options)
    app.model("fast", fast)
    return app


@pytest.mark.proves("T6")
async def test_a_tool_asks_a_model_within_its_attempt(backend: Backend) -> None:
    fast = ScriptedModel([say("Not JSON"), spending('{"title": "Tea"}', 7)])
    app = app_with(backend.url, fast)

    @app.tool
    async def shorten(ctx: ToolContext[None]) -> str:
        return (await ctx.complete("Shorten.", output=Short, model="fast")).title

    async with app:
        session = app.session("chat")
        result = await session.turn("Go.", turn_id="t1", timeout="10s")
        assert result.usage.requests == 4  # two of the turn and two of its tool
        assert result.usage.output_tokens == 7 + 2 + 1 + 2
        assert (await session.usage()).requests == 4
        assert await transcript(session) == (
            "\nuser       Go."
            "\nassistant  i1.c0 shorten()"
            "\ntool       i1.c0 shorten: Tea"
            "\nassistant  Done.\n"
        )
        kinds = [entry.kind for entry in await effects_of(app, "chat", "t1")]
        assert "direct" not in kinds
    assert [request.session_id for request in fast.requests] == ["", ""]


async def test_a_tool_asks_the_model_of_its_turn_unless_it_names_one() -> None:
    def reply(request: Any) -> Any:
        if request.session_id:
            return call("shorten") if len(request.messages) == 1 else say("Done.")
        return say("Short.")

    app = Lash("memory://", model=ScriptedModel(reply))

    @app.tool
    def shorten(ctx: ToolContext[None]) -> Any:
        return ctx.complete("Shorten.")  # a plain function may return what is to be awaited

    async with app:
        session = app.session("chat")
        await session.turn("Go.", timeout="10s")
        assert "shorten: Short." in await transcript(session)


async def test_what_a_failed_attempt_used_counts_too() -> None:
    fast = ScriptedModel(lambda _: spending("x", 10))
    app = app_with("memory://", fast)

    @app.tool(retry=Retry(3, delay="1ms"))
    async def shorten(ctx: ToolContext[None]) -> str:
        await ctx.complete("Shorten.", model="fast")
        if ctx.attempt < 3:
            raise OSError("away")
        return "short"

    async with app:
        session = app.session("chat")
        result = await session.turn("Go.", timeout="10s")
        assert result.usage.requests == 5
        (message,) = [m for m in await session.history() if m.role == "tool"]
        assert message.usage == Usage(requests=3, output_tokens=30)


async def test_what_a_tool_that_never_succeeds_used_counts_too() -> None:
    app = app_with("memory://", ScriptedModel(lambda _: spending("x", 10)))

    @app.tool(retry=Retry(2, delay="1ms"))
    async def shorten(ctx: ToolContext[None]) -> str:
        await ctx.complete("Shorten.", model="fast")
        raise OSError("away")

    async with app:
        result = await app.session("chat").turn("Go.", timeout="10s")
        assert (result.status, result.usage.requests) == ("completed", 4)


async def test_what_a_tool_used_before_its_time_was_over_counts_too() -> None:
    async def slow(request: Any) -> Any:
        if request.call_number == 1:
            await asyncio.sleep(60)
        return spending("Not JSON", 10)

    app = app_with("memory://", ScriptedModel(slow))

    @app.tool(timeout="50ms")
    async def shorten(ctx: ToolContext[None]) -> str:
        return (await ctx.complete("Shorten.", output=Short, model="fast")).title

    async with app:
        result = await app.session("chat").turn("Go.", timeout="10s")
        assert (result.status, result.usage.requests) == ("completed", 3)


async def test_a_completion_has_what_is_left_of_the_budget() -> None:
    fast = ScriptedModel(lambda _: spending("x", 30))
    app = app_with("memory://", fast)
    raised = []

    @app.tool
    async def shorten(ctx: ToolContext[None]) -> str:
        for _ in range(5):
            try:
                await ctx.complete("Shorten.", model="fast")
            except Exception as error:
                raised.append(str(error))
                raise
        return "never"

    async with app:
        session = app.session("chat", budget=TurnBudget(tokens=50))
        result = await session.turn("Go.", timeout="10s")
        assert (result.status, result.error) == ("stopped", "the budget of 50 tokens is used up")
    assert len(fast.requests) == 2
    assert len(raised) == 1


@pytest.mark.slow
async def test_a_model_that_is_away_is_asked_again_inside_the_attempt() -> None:
    replies: list[Any] = [fail("Overloaded.", retryable=True), say("Short.")]
    fast = ScriptedModel(lambda _: replies[len(fast.requests) - 1])
    app = app_with("memory://", fast)

    @app.tool
    async def shorten(ctx: ToolContext[None]) -> str:
        return await ctx.complete("Shorten.", model="fast")

    async with app:
        session = app.session("chat")
        await session.turn("Go.", timeout="10s")
        assert "shorten: Short." in await transcript(session)


def make_app(store: str) -> Lash:
    app = app_with(store, ScriptedModel(lambda request: spending(request.messages[0].text, 5)))

    @app.tool(retry=Retry(2, delay="1ms"))
    async def shorten(ctx: ToolContext[None]) -> str:
        if ctx.attempt == 1:
            await ctx.complete("lost", model="fast")
            raise OSError("away")
        return await ctx.complete("kept", model="fast")

    return app


async def story(app: Lash) -> list[Any]:
    session = app.session("chat")
    result = await session.turn("Go.", turn_id="t1", timeout="20s")
    usage = await session.usage()
    return [await transcript(session), result.usage.requests, usage.output_tokens]


def test_a_turn_with_completions_ends_and_counts_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(make_app, story)
    assert report.outcome[1:] == [4, 5 + 5 + 2 + 1]
    assert "shorten: kept" in report.outcome[0]


async def test_a_context_of_ones_own_has_no_model() -> None:
    ctx: ToolContext[None] = ToolContext(CallInfo("s", "t", "c", 1, "k"), None)
    with pytest.raises(ModelMissing):
        await ctx.complete("Who?")


async def test_what_a_tool_that_defers_used_counts_too() -> None:
    app = app_with("memory://", ScriptedModel(lambda _: spending("x", 10)))

    @app.tool
    async def shorten(ctx: ToolContext[None]) -> Any:
        await ctx.complete("Shorten.", model="fast")
        return ctx.defer()

    async with app:
        session = app.session("chat")
        await begin(session, "Go.", "t1")
        await app.resolve((await open_wait(app)).key, "short")
        result = await session.turn("Go.", turn_id="t1", timeout="10s")
        assert result.usage.requests == 3
