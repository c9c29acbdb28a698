"""Texts that look like other data remain texts everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from pylash import AssistantMessage, Lash, ModelRequest, ProcessContext, ToolMessage
from pylash.testing import ScriptedModel, call, calls, say
from tests.backends import Backend

ODD = pytest.mark.parametrize("text", ["null", "NaN", "[{" * 300], ids=["null", "nan", "brackets"])


@ODD
async def test_a_turn_may_be_about_anything(backend: Backend, text: str) -> None:
    many = [{"n": text, "of": [None]} for _ in range(150)]

    def reply(request: ModelRequest) -> Any:
        if isinstance(request.messages[-1], ToolMessage):
            return say(text)
        return calls(*(call("echo", text=text, many=many) for _ in range(2)))

    app = Lash(backend.url, model=ScriptedModel(reply), instructions=text)

    async def echo(text: str, many: list[Any]) -> Any:
        return {"text": text, "many": many}

    echo.__doc__ = text
    app.tool(echo)

    async with app:
        session = app.session("annulled")
        for _ in range(2):
            result = await session.turn([text, text], turn_id="nullify", timeout="10s")
            assert result.text == text
        user, asked, *results, said = await session.history()
        assert text in user.text
        assert isinstance(asked, AssistantMessage)
        assert [one.arguments["many"] for one in asked.calls] == [many, many]
        assert all(text[:20] in one.text for one in results)
        assert said.text == text


@ODD
async def test_a_process_may_be_about_anything(backend: Backend, text: str) -> None:
    many = [{"n": text, "of": [None]} for _ in range(150)]
    app = Lash(backend.url)

    async def step(given: list[Any]) -> list[Any]:
        return given

    @app.process
    async def child(ctx: ProcessContext[None], given: list[Any]) -> list[Any]:
        return await ctx.step(step, given)

    @app.process
    async def parent(ctx: ProcessContext[None], given: list[Any]) -> list[Any]:
        one = await ctx.start(child.options(id="null-child"), given)
        two = await ctx.start(child.options(id="null-other"), given)
        first, second = await ctx.gather(one.result(), two.result())
        heard = await ctx.wait_signal("nullify")
        return [first == second == given, heard]

    async with app:
        handle = await app.start(parent.options(id="null"), many)
        await handle.signal("nullify", {"text": text, "many": many})
        assert await handle.result(timeout="10s") == [True, {"text": text, "many": many}]
