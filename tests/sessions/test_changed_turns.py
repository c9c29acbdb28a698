"""Turns that were killed, and continue with other code: no call is repeated, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pylash import Lash, ModelRequest, Retry, ToolContext, TurnBlocked
from pylash.testing import ScriptedModel, call, calls, kill, say
from tests.backends import Backend, eventually
from tests.sessions.scenes import LIVE, begin, effects_of, open_wait, transcript

BATCH = calls(call("look", n=7), call("pay", cents=5), call("ask"))


def reply(request: ModelRequest) -> Any:
    return BATCH if request.messages[-1].role == "user" else say("Done.")


class Deployment:
    """An app whose model calls three tools at once: one waits for an approval, one for an answer from outside."""

    def __init__(self, backend: Backend, ran: list[str], **names: str) -> None:
        prompt = names.pop("prompt", "Help.")
        model = ScriptedModel(reply)
        self.app = Lash(backend.url, model=model, worker=LIVE, instructions=prompt)

        @self.app.tool(name=names.get("look", "look"), retry=Retry(3, delay="1ms"))
        async def look(ctx: ToolContext[None], n: int) -> str:
            ran.append(f"look {ctx.attempt}")
            if ctx.attempt == 1:
                raise OSError("away")
            return f"order {n}"

        @self.app.tool(name=names.get("pay", "pay"), approval=True)
        async def pay(cents: int) -> str:
            ran.append("pay")
            return f"{cents} cents"

        @self.app.tool(name=names.get("ask", "ask"))
        async def ask(ctx: ToolContext[None]) -> Any:
            ran.append("ask")
            return ctx.defer()


DONE = """
user       Go.
assistant  i1.c0 look(n=7), i1.c1 pay(cents=5), i1.c2 ask()
tool       i1.c0 look: order 7
tool       i1.c1 pay: 5 cents
tool       i1.c2 ask: Monday
assistant  Done.
"""
Deploy = Callable[..., Lash]


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def deploy(durable: Backend, ran: list[str]) -> Deploy:
    return lambda **names: Deployment(durable, ran, **names).app


async def killed(app: Lash, *answered: str) -> None:
    """Begin a turn, answer some of its waits, and kill the worker while the other one is open."""
    await app.open()
    await begin(app.session("chat"), "Go.", "t1")
    await open_wait(app, 1)
    for wait in await app.waits():
        if wait.kind in answered:
            await app.resolve(wait.key, True if wait.kind == "approval" else "Monday")
    keys = {"i1.c0.attempt.2", *(["i1.c1.attempt.1"] if "approval" in answered else [])}
    await eventually(lambda: has_recorded(app, keys))
    await kill(app)


async def has_recorded(app: Lash, keys: set[str]) -> bool:
    return keys <= {one.key for one in await effects_of(app, "chat", "t1")}


async def finished(app: Lash) -> str:
    """Answer the waits that are open, and return the transcript."""
    async with app:
        session = app.session("chat")
        await session.retry()
        for wait in await app.waits():
            await app.resolve(wait.key, True if wait.kind == "approval" else "Monday")
        await session.turn("Go.", turn_id="t1", timeout="10s")
        return await transcript(session)


@pytest.mark.parametrize("answered", [(), ("approval",), ("deferred",)], ids=str)
@pytest.mark.parametrize("prompt", ["Help.", "Help more."])
async def test_a_turn_continues_where_its_worker_was_killed(
    deploy: Deploy, ran: list[str], answered: tuple[str, ...], prompt: str
) -> None:
    await killed(deploy(), *answered)
    assert await finished(deploy(prompt=prompt)) == DONE
    assert sorted(ran) == ["ask", "look 1", "look 2", "pay"]


@pytest.mark.parametrize(
    ("renamed", "answered"),
    [("pay", ()), ("pay", ("deferred",)), ("ask", ("approval",)), ("ask", ("deferred",))],
    ids=str,
)
async def test_a_turn_whose_waiting_tool_was_renamed_is_blocked_until_it_is_back(
    deploy: Deploy, ran: list[str], renamed: str, answered: tuple[str, ...]
) -> None:
    """Also if the wait is answered while the tool is gone: the model does not get an error."""
    await killed(deploy(), *answered)
    before = sorted(ran)
    async with deploy(**{renamed: "another"}) as app:
        session = app.session("chat")
        for wait in await app.waits():
            await app.resolve(wait.key, True if wait.kind == "approval" else "Monday")
        with pytest.raises(TurnBlocked, match="turn_tool_missing"):
            await session.turn("Go.", turn_id="t1", timeout="500ms")
        assert "There is no tool" not in await transcript(session)
    assert sorted(ran) == before
    assert await finished(deploy()) == DONE
    assert sorted(ran) == ["ask", "look 1", "look 2", "pay"]


async def test_a_turn_continues_if_only_a_tool_with_a_recorded_result_was_renamed(
    deploy: Deploy, ran: list[str]
) -> None:
    await killed(deploy(), "approval")
    assert await finished(deploy(look="another", pay="other")) == DONE
    assert sorted(ran) == ["ask", "look 1", "look 2", "pay"]


async def test_a_turn_that_differs_from_its_record_gets_advice_for_turns(durable: Backend) -> None:
    def app_of(*, is_new: bool) -> Lash:
        script = [call("pay", cents=5), say("Done.")]
        app = Lash(durable.url, model=ScriptedModel(script[is_new:]), worker=LIVE)

        async def pay(cents: int) -> str:
            return f"{cents} cents"

        async def pay_in(cents: int, currency: str) -> str:
            return f"{cents} {currency}"

        app.tool(name="pay", approval=True)(pay_in if is_new else pay)
        return app

    old = app_of(is_new=False)
    await old.open()
    await begin(old.session("chat"), "Go.", "t1")
    wait = await open_wait(old)
    await kill(old)
    async with app_of(is_new=True) as app:
        await app.resolve(wait.key, True)
        with pytest.raises(TurnBlocked, match="effect_replay_diverged") as caught:
            await app.session("chat").turn("Go.", turn_id="t1", timeout="3s")
    advice = "deploy the tools, schemas and settings that it was recorded with, then retry"
    assert advice in caught.value.message
    assert "ctx.patched" not in caught.value.message
