"""Faults: a store that is unavailable for a moment fails no turn, and the model does not notice."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from pylash import EVENT, Attachment, Lash, ProcessContext, Text, ToolContext
from pylash.stores.ports import runs
from pylash.stores.store import SqlStore
from pylash.testing import ScriptedModel, call, say
from pylash.values.errors import StoreError, StoreUnavailable
from tests.backends import Backend, eventually
from tests.sessions.scenes import LIVE, transcript


def away_once(app: Lash, name: str) -> list[str]:
    """Let the next operation of a name fail; return where that is noted."""
    store = app.store
    failed: list[str] = []
    assert isinstance(store, SqlStore)
    honest = store.driver.run

    def run(operation: Any) -> asyncio.Future[Any]:
        if operation.name == name and not failed:
            failed.append(name)
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(StoreUnavailable("away"))
            return answer
        done: Any = honest(operation)
        return done  # type: ignore[no-any-return]  # a future, as it is

    store.driver.run = run  # type: ignore[method-assign]
    return failed


def reply(request: Any) -> Any:
    return call("pay") if request.messages[-1].text == "go" else say("Done.")


@pytest.mark.parametrize("name", ["nodes_of", "_take", "record", "commit", "emit", "get"])
async def test_the_store_is_away_for_a_moment(
    memory: Backend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "BACK_OFF", 1_000)
    app = Lash(memory.url, model=ScriptedModel(reply), worker=LIVE)
    app.trigger("paid")
    started: list[Any] = []

    @app.process
    async def thank(ctx: ProcessContext[None], event: Any) -> None:
        started.append(event)

    @app.tool(approval=lambda: False)
    async def pay(ctx: ToolContext[None]) -> str:
        ctx.emit("paid", source_key="shop", payload=7)
        return "paid"

    async with app:
        session = app.session("chat")
        await app.triggers.register(
            "paid", source_key="shop", target=thank, key="k", inputs={"event": EVENT}
        )
        await session.turn([Text("hello"), Attachment(b"x", "image/png")], timeout="10s")
        app.services.histories.forget(1)
        failed = away_once(app, name)
        await session.enqueue("go")

        async def answered() -> bool:
            with suppress(StoreError):
                return (await transcript(session)).count("Done.") == 2
            return False

        await eventually(answered)
        assert failed == [name]
        assert (await transcript(session)).splitlines()[3:] == [
            "user       go",
            "assistant  i1.c0 pay()",
            "tool       i1.c0 pay: paid",
            "assistant  Done.",
        ]
        await eventually(lambda: asyncio.sleep(0, started))
    assert started == [7]
