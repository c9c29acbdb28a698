"""Common mistakes of new users: each gets an error of one sentence, and none is hidden."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pylash import (
    ArgumentsInvalid,
    InputInvalid,
    Lash,
    ModelInvalid,
    ModelReply,
    ModelRequest,
    NameInvalid,
    ToolContext,
)
from pylash.sync import Lash as SyncLash
from pylash.testing import ScriptedModel, call, say


class Mute:
    """No model."""


class Plain:
    """A model whose method is no coroutine."""

    def respond(self, request: Any, listen: Any) -> ModelReply:
        return ModelReply(text="x")


class Broken:
    """A model that fails in its own way."""

    def __init__(self, error: Exception, then: Any = None) -> None:
        self.error = error
        self.then = then
        self.asked = 0

    async def respond(self, request: Any, listen: Any) -> Any:
        self.asked += 1
        if self.then is not None and self.asked > 1:
            return self.then
        raise self.error


@pytest.mark.parametrize("model", [Mute(), Mute, Plain(), ScriptedModel, 7])
def test_an_object_that_is_not_a_model_is_refused_where_it_is_given(model: Any) -> None:
    with pytest.raises(ModelInvalid, match="respond"):
        Lash("memory://", model=model)
    with pytest.raises(ModelInvalid):
        Lash("memory://").model("fast", model)


async def test_a_model_that_raises_is_named_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Lash("memory://", model=Broken(KeyError("oops"))) as app:
        with caplog.at_level(logging.WARNING, "pylash"):
            result = await app.session("chat").turn("hi")
    assert (result.status, result.error) == ("failed", "KeyError: 'oops'")
    assert "error=" in repr(result)
    assert any(record.exc_info for record in caplog.records)


async def test_a_model_that_answers_nonsense_fails_the_turn_clearly() -> None:
    class Wrong:
        async def respond(self, request: Any, listen: Any) -> Any:
            return "x"

    async with Lash("memory://", model=Wrong()) as app:
        result = await app.session("chat").turn("hi")
    assert result.error == "The model returned 'x' instead of a ModelReply"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (ModelReply(text=None), "$.text"),  # type: ignore[arg-type]
        (ModelReply(usage=None), "$.usage"),  # type: ignore[arg-type]
        (ModelReply(calls=None), "NoneType"),  # type: ignore[arg-type]
        (ModelReply(attachments=("x",)), "$.attachments[0]"),  # type: ignore[arg-type]
        (ModelReply(provider_state=object()), "object"),
        (ModelReply(text="\ud800"), "surrogate"),
    ],
)
async def test_a_reply_that_cannot_be_stored_fails_the_turn_and_no_other(
    reply: ModelReply, why: str
) -> None:
    class Slipping:
        async def respond(self, request: ModelRequest, listen: Any) -> ModelReply:
            return reply if request.call_number == 0 else ModelReply(text="Here.")

    async with Lash("memory://", model=Slipping()) as app:
        session = app.session("chat")
        result = await session.turn("hi", timeout="10s")
        assert (result.status, result.code) == ("failed", "provider_error")
        assert "The model's reply cannot be stored: " in (result.error or "")
        assert why in (result.error or "")
        assert (await session.turn("hi again", timeout="10s")).text == "Here."


async def test_a_tool_that_raises_is_named_to_the_model_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Lash("memory://", model=ScriptedModel([call("bad"), say("x")]))

    @app.tool
    def bad() -> int:
        empty: dict[str, int] = {}
        return empty["zz"]

    async with app:
        with caplog.at_level(logging.WARNING, "pylash"):
            await app.session("chat").turn("go")
        history = await app.session("chat").history()
    assert history[2].text == "KeyError: 'zz'"
    assert any(record.exc_info for record in caplog.records)


async def test_an_idempotency_key_can_be_a_header() -> None:
    keys: list[str] = []
    app = Lash("memory://", model=ScriptedModel([call("pay"), say("x")]))

    @app.tool
    async def pay(ctx: ToolContext[None]) -> None:
        keys.append(ctx.idempotency_key)

    async with app:
        await app.session("ä" * 200).turn("go")
    assert len(keys[0]) == 32
    assert keys[0].isalnum()


@pytest.mark.parametrize("given", ["", " ", None, 5, [], ["a", 5]])
async def test_what_cannot_be_asked_is_refused(given: Any) -> None:
    async with Lash("memory://", model=ScriptedModel([])) as app:
        session = app.session("chat")
        with pytest.raises(InputInvalid):
            await session.turn(given)
        with pytest.raises(InputInvalid):
            await session.enqueue(given)
        with pytest.raises(NameInvalid):
            await session.turn("hi", turn_id="")


async def test_a_stream_must_be_entered() -> None:
    async with Lash("memory://", model=ScriptedModel([say("x")])) as app:
        with pytest.raises(ArgumentsInvalid, match="async with"):
            async for _ in app.session("chat").stream("hi"):
                pass


def test_an_agent_without_await() -> None:
    app = SyncLash("memory://", model=ScriptedModel([call("look"), say("Here."), say("Bye.")]))

    @app.tool
    def look() -> str:
        return "it is there"

    with app:
        session = app.session("chat")
        assert session.turn("where?", turn_id="t1").text == "Here."
        with session.stream("bye") as stream:
            kinds = [event.type for event in stream]
        assert stream.result.text == "Bye."
        assert kinds[0] == "turn_started"
        assert kinds[-1] == "turn_completed"
        assert [effect.name for effect in session.timeline("t1")][1:] == ["model", "look", "model"]
        assert next(session.observe()).type == "message"
        assert len(session.history()) == 6
        assert session.delete().turns == 2


async def test_a_task_that_waits_for_a_turn_may_be_cancelled() -> None:
    async with Lash("memory://", model=ScriptedModel([say("x")])) as app:
        task = asyncio.get_running_loop().create_task(app.session("chat").turn("hi", turn_id="t"))
        await asyncio.sleep(0)
        task.cancel()
        assert (await app.session("chat").turn("hi", turn_id="t")).text == "x"
