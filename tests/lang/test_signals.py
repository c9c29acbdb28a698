"""Signals from outside: a process of a module takes those that it declares, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pylash import Lash, ProcessContext, ProcessEventInvalid
from pylash.testing import ScriptedModel, call, say

SOURCE = """
process ask() signals { answer: bool, note: { text: str } } {
  answer = wait signal answer
  finish answer
}
"""


@pytest.mark.parametrize(
    ("name", "payload", "why"),
    [
        ("anwser", True, "accepts no signal `anwser` (it accepts: `answer`, `note`)"),
        ("answer", "yes", "must be a bool"),
        ("answer", None, "must be a bool"),
        ("note", {}, "text"),
    ],
)
async def test_a_signal_that_is_not_declared_is_refused_where_it_is_sent(
    name: str, payload: Any, why: str
) -> None:
    async with Lash("memory://") as app:
        module = await app.lashlang(SOURCE)
        handle = await app.start(module["ask"].options(id="ask"))
        for sender in (handle, app.process_handle("ask")):
            with pytest.raises(ProcessEventInvalid) as refused:
                await sender.signal(name, payload)
            assert why in refused.value.message
        await handle.signal("answer", True)
        assert await handle.result() is True


async def test_a_model_is_told_that_a_signal_is_not_declared() -> None:
    def reply(request: Any) -> Any:
        if request.call_number == 0:
            return call("start_workflow", source=SOURCE, process="ask")
        if request.call_number == 1:
            started = json.loads(request.messages[-1].text)["process_id"]
            return call("signal_workflow", process_id=started, name="answer", payload="yes")
        return say("I see.")

    model = ScriptedModel(reply)
    app = Lash("memory://", model=model)
    app.workflows()
    async with app:
        await app.session("chat").turn("Start it and say yes.")
    assert "must be a bool" in model.requests[-1].messages[-1].text


async def test_processes_in_python_take_any_signal() -> None:
    app = Lash("memory://")

    @app.process
    async def listen(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("anything")

    async with app:
        handle = await app.start(listen)
        await handle.signal("other", 1)
        await handle.signal("anything", [1, "two"])
        assert await handle.result() == [1, "two"]
