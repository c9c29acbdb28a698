"""A turn that asks its own session would wait for itself: it is refused at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import Lash, ModelRequest, ProcessContext
from pylash.testing import ScriptedModel, call, say
from tests.backends import Backend
from tests.sessions.scenes import transcript


def asking(url: str) -> Lash:
    """Return an app with tools that ask sessions: their own, or another whose tool asks back."""

    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return say(last.text) if last.role == "tool" else call(last.text)

    app = Lash(url, model=ScriptedModel(reply))

    @app.tool
    async def itself() -> str:
        return (await app.session("chat").turn("never", timeout="5s")).text

    @app.tool
    async def another() -> str:
        return (await app.session("other").turn("itself", timeout="5s")).text

    @app.tool
    async def listening() -> str:
        async with app.session("chat").stream("never") as stream:
            return "".join([event.text async for event in stream])

    @app.tool
    async def free() -> str:
        await app.session("chat").enqueue("never mind")
        return "queued"

    return app


@pytest.mark.parametrize("tool", ["itself", "another", "listening"])
async def test_a_turn_that_waits_for_itself_is_refused(memory: Backend, tool: str) -> None:
    async with asking(memory.url) as app:
        result = await app.session("chat").turn(tool, timeout="10s")
        assert "would wait for itself" in result.text
        assert "tool" in await transcript(app.session("chat"))


async def test_a_plain_function_is_refused_too(memory: Backend) -> None:
    app = Lash(memory.url, model=ScriptedModel([call("itself"), say("Oh.")]))
    loop = asyncio.get_running_loop()

    @app.tool
    def itself() -> str:
        work = app.session("chat").turn("never", timeout="5s")
        return asyncio.run_coroutine_threadsafe(work, loop).result().text

    async with app:
        session = app.session("chat")
        assert (await session.turn("go", timeout="10s")).text == "Oh."
        assert "would wait for itself" in await transcript(session)


async def test_what_does_not_wait_is_allowed(memory: Backend) -> None:
    async with asking(memory.url) as app:
        assert (await app.session("chat").turn("free", timeout="10s")).text == "queued"


async def test_a_process_that_a_tool_only_started_may_ask_back(memory: Backend) -> None:
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("begin") if last.text == "go" else say(f"Heard {last.text}.")

    app = Lash(memory.url, model=ScriptedModel(reply))

    @app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        async def asked() -> str:
            return (await app.session("chat").turn("hello", timeout="5s")).text

        text: str = await ctx.step(asked)
        return text

    @app.tool
    async def begin() -> str:
        await app.start(ask.options(id="p"))
        return "begun"

    async with app:
        assert (await app.session("chat").turn("go", timeout="10s")).text == "Heard begun."
        assert await app.process_handle("p").result(timeout="10s") == "Heard hello."
