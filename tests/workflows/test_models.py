"""Models that write workflows: with their own tools only, with approvals, and woken by results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pylash import Lash, LashlangError, ProcessFailed, Session
from pylash.testing import ScriptedModel, call, say
from tests.backends import Backend, eventually
from tests.workflows.scenes import Shop, waiting

WATCH = """
process watch(order: str) signals { begin: null, answer: bool } {
  b = wait signal begin
  wake "Refund " + order + "?"
  if not (wait signal answer) { fail "not approved" }
  finish await tools.echo({ value: "refunded " + order })?
}
"""


def results(request: Any) -> list[Any]:
    """Return what the tools answered so far, as data where it is."""
    texts = [message.text for message in request.messages if message.role == "tool"]
    return [json.loads(text) if text[:1] in ("{", "[") else text for text in texts]


def chatting(*replies: Callable[[list[Any]], Any]) -> ScriptedModel:
    """Return a model whose n-th reply is made of earlier tool results; later ones repeat the last message."""

    def reply(request: Any) -> Any:
        if request.call_number < len(replies):
            return replies[request.call_number](results(request))
        return say(f"heard: {request.messages[-1].text}")

    return ScriptedModel(reply)


def shop_for(url: str, model: ScriptedModel) -> Shop:
    shop = Shop(url, model=model)
    shop.app.workflows()
    return shop


async def heard(app: Lash, session: Session, text: str) -> None:
    """Wait until a turn said something."""

    async def look() -> bool:
        return any(text in message.text for message in await session.history())

    await eventually(look)


async def test_a_model_checks_starts_lists_signals_and_is_woken(backend: Backend) -> None:
    model = chatting(
        lambda _: call("check_workflow", source="process p() { finish nothing }"),
        lambda _: call("check_workflow", source=WATCH),
        lambda _: call("start_workflow", source=WATCH, process="watch", args={"order": 7}),
        lambda _: call("start_workflow", source=WATCH, process="watch", args={"order": "A-7"}),
        lambda _: call("list_workflows"),
        lambda _: say("I watch it."),
        # The wake begins a turn of its own.
        lambda told: call(
            "signal_workflow", process_id=told[-1][0]["process_id"], name="answer", payload="yes"
        ),
        lambda told: call(
            "signal_workflow", process_id=told[-2][0]["process_id"], name="answer", payload=True
        ),
        lambda _: say("Agreed."),
    )
    shop = shop_for(backend.url, model)
    async with shop.app:
        session = shop.app.session("chat")
        assert (await session.turn("Watch A-7.", timeout="10s")).text == "I watch it."
        (watch,) = await shop.app.processes()
        await shop.app.process_handle(watch.id).signal("begin")
        await heard(shop.app, session, "Agreed.")
        told = results(model.requests[-1])
        started = told[3]["process_id"]
        result = await shop.app.process_handle(started).result(timeout="10s")
        wakes = [
            message.text for message in await session.history() if "Refund A-7?" in message.text
        ]
    wrong, checked, refused, _, listed, misfit, sent = told
    assert (wrong["ok"], "unknown name `nothing`" in wrong["errors"]) == (False, True)
    assert checked == {"ok": True, "processes": ["watch"]}
    assert "`order`" in refused
    assert [(one["process_id"], one["process"]) for one in listed] == [(started, "watch")]
    assert "not of type boolean" in misfit
    assert sent == "sent"
    assert result == "refunded A-7"
    assert len([text for text in wakes if not text.startswith("heard")]) == 1


async def test_the_description_of_the_tool_explains_programs_and_lists_their_operations() -> None:
    model = chatting(lambda _: say("Hello."))
    shop = shop_for("memory://", model)
    async with shop.app:
        await shop.app.session("chat").turn("Hi.", timeout="10s")
    tools = {tool.name: tool.description for tool in model.requests[0].tools}
    assert "tools.echo({ value: str }) -> str" in tools["start_workflow"]
    assert "mail.send" in tools["start_workflow"]
    assert "start_workflow(" not in tools["start_workflow"]  # programs start processes themselves


async def test_programs_are_not_offered_tools_that_only_a_turn_can_call() -> None:
    shop = Shop("memory://")
    shop.app.agent("researcher", description="reads books")
    shop.app.subagents("researcher")
    async with shop.app:
        with pytest.raises(LashlangError, match="spawn_agent"):
            await shop.app.lashlang(
                """process main() {
                  finish await tools.spawn_agent({ agent: "researcher", task: "Read." })?
                }"""
            )


@pytest.mark.proves("L2")
async def test_a_program_has_only_the_tools_of_its_session() -> None:
    mails = 'process main() { finish await mail.send({ to: "ann" })? }'
    echoes = 'process main() { finish await tools.echo({ value: "on" })? }'
    forged = """
    process main() { h = start other(m: json_parse("{\\"__resource__\\":true,\\"type\\":\\"Mail\\",\\"alias\\":\\"mail\\"}")) }
    process other(m: Mail) { finish await m.send({ to: "ann" })? }"""
    model = chatting(
        lambda _: call("start_workflow", source=mails, process="main"),
        lambda _: call("start_workflow", source=forged, process="main"),
        lambda _: call("start_workflow", source=echoes, process="main"),
        lambda _: say("Done."),
    )
    shop = shop_for("memory://", model)
    async with shop.app:
        session = shop.app.session("chat", tools=["echo", "start_workflow"])
        assert (await session.turn("Go.", timeout="10s")).text == "Done."
        refused, unknown, started = results(model.requests[-1])
        result = await shop.app.process_handle(started["process_id"]).result(timeout="10s")
        assert len(await shop.app.processes()) == 1
    assert "mail" in refused
    assert "unknown type `Mail`" in unknown
    assert result == "on"
    assert shop.calls == ["on"]


async def test_a_person_is_asked_inside_a_workflow_as_anywhere() -> None:
    pays = "process main() { finish await tools.pay({ cents: 5 }) }"
    model = chatting(
        lambda _: call("start_workflow", source=pays, process="main"), lambda _: say("Started.")
    )
    shop = shop_for("memory://", model)
    async with shop.app:
        await shop.app.session("chat").turn("Pay.", timeout="10s")
        started = results(model.requests[-1])[0]["process_id"]
        wait = await waiting(shop.app)
        assert (wait.kind, wait.tool, wait.arguments, shop.calls) == (
            "approval",
            "pay",
            {"cents": 5},
            [],
        )
        await shop.app.resolve(wait.key, True)
        result = await shop.app.process_handle(started).result(timeout="10s")
    assert result == {"ok": True, "value": "paid 5"}


async def test_sessions_touch_only_what_they_started_themselves() -> None:
    shop_ids: list[str] = []
    sleeps = "process main() { x = wait signal }"

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return say(last.text)
        word = last.text
        if word == "start":
            return call("start_workflow", source=sleeps, process="main")
        if word == "list":
            return call("list_workflows")
        return call(
            f"{word}_workflow",
            process_id=shop_ids[0],
            **({"name": "signal"} if word == "signal" else {}),
        )

    shop = shop_for("memory://", ScriptedModel(reply))
    async with shop.app:
        ann, ben = shop.app.session("ann"), shop.app.session("ben")
        shop_ids.append(json.loads((await ann.turn("start", timeout="10s")).text)["process_id"])
        said = {
            word: (await ben.turn(word, timeout="10s")).text
            for word in ("list", "signal", "cancel")
        }
        assert said["list"] == "[]"
        assert "There is no process" in said["signal"]
        assert "There is no process" in said["cancel"]
        assert (await ann.turn("cancel", timeout="10s")).text == "asked to end"

        async def over() -> bool:
            return await shop.app.process_handle(shop_ids[0]).status() == "cancelled"

        await eventually(over)


REACH = "process main(theirs: any) { cancel theirs }"


async def test_a_models_program_reaches_only_what_its_session_started() -> None:
    reach: dict[str, Any] = {}
    model = chatting(
        lambda _: call("start_workflow", source=REACH, process="main", args=reach),
        lambda _: say("Started."),
        lambda _: call("list_workflows"),
        lambda _: say("Listed."),
    )
    shop = shop_for("memory://", model)
    async with shop.app:
        module = await shop.app.lashlang("process main() { finish wait signal }")
        theirs = await shop.app.start(module["main"])
        reach["theirs"] = {"__handle__": "process", "id": theirs.id}
        session = shop.app.session("chat")
        await session.turn("Reach for it.", timeout="10s")
        (started,) = results(model.requests[-1])
        with pytest.raises(ProcessFailed):
            await shop.app.process_handle(started["process_id"]).result(timeout="10s")
        await session.turn("And?", timeout="10s")
        (listed,) = results(model.requests[-1])[-1]
        assert "a record that looks like one" in listed["error"]
        await theirs.signal("signal", 7)
        assert await theirs.result(timeout="10s") == 7
