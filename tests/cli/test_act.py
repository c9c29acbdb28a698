"""Commands that change a store: signal, cancel, retry, resolve and prune."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import Deferred, Lash, ProcessContext, ToolContext
from pylash.testing import ScriptedModel, call
from tests.backends import eventually
from tests.cli.conftest import Call, ask, ended, filled, worked
from tests.cli.test_look import everything


async def turn_ended(app: Any) -> Any:
    return await app.session("chat-42").turn(
        "Refund order 7, please", turn_id="refund-7", timeout="20s"
    )


def test_a_signal_is_sent_once(place: str, pylash: Call) -> None:
    filled(place)
    for _ in range(2):
        assert ask(pylash, "signal", "order-7", "address", '{"street": 5}', "--id", "s1") == {
            "done": "signalled",
            "id": "order-7",
            "signal": "address",
        }
    lines = pylash("events", "order-7").stdout.splitlines()
    assert [line.split()[3] for line in lines].count("signal.address") == 1
    assert "{'street': 5}" in worked(place, ended("order-7"))
    late = pylash("signal", "order-7", "address")
    assert (late.exit_code, "[process_ended]" in late.stderr) == (1, True)


@pytest.mark.parametrize("key", ["id", "short", "key"])
def test_an_approval_is_answered_by_its_id_or_its_key(file: str, pylash: Call, key: str) -> None:
    filled(file)
    wait = next(one for one in ask(pylash, "waits") if one["kind"] == "approval")
    named = wait["id"][:12] if key == "short" else wait[key]
    slip = pylash("resolve", named, '"yes"')
    assert "[arguments_invalid]" in slip.stderr
    assert ask(pylash, "resolve", named, "true", "--by", "ann") == {"status": "accepted"}
    assert ask(pylash, "ps", "--kind", "turn")[0]["waits_for"] == []  # answered, if not yet taken
    assert worked(file, turn_ended).text == "Refunded."
    again = pylash("resolve", wait["key"], "false")
    assert again.exit_code == 1
    assert "[already_resolved]" in again.stderr
    assert ask(pylash, "show", "refund-7")["output"]["text"] == "Refunded."


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            '{"approved": true, "arguments": {"order_id": "7", "cents": 300}}',
            'approved   refund(order_id="7", cents=500) as refund(order_id="7", cents=300), by ann\n',
        ),
        (
            '{"approved": false, "reason": "too much"}',
            'rejected   refund(order_id="7", cents=500), by ann: too much\n',
        ),
        ("true", 'approved   refund(order_id="7", cents=500), by ann\n'),
    ],
)
def test_corrected_arguments_are_shown_beside_the_proposed_ones(
    place: str, pylash: Call, answer: str, told: str
) -> None:
    filled(place)
    wait = next(one for one in ask(pylash, "waits") if one["kind"] == "approval")
    ask(pylash, "resolve", wait["id"], answer, "--by", "ann")
    assert worked(place, turn_ended).status == "completed"
    assert told in pylash("show", "chat-42/refund-7").stdout
    (asked,) = ask(pylash, "show", "refund-7")["answers"]
    assert asked["arguments"] == {"order_id": "7", "cents": 500}


def test_a_correction_that_does_not_fit_is_refused(place: str, pylash: Call) -> None:
    filled(place)
    wait = next(one for one in ask(pylash, "waits") if one["kind"] == "approval")
    answer = '{"approved": true, "arguments": {"order_id": "7", "cents": "lots"}}'
    refused = pylash("resolve", wait["id"], answer)
    assert refused.exit_code == 1
    assert "arguments.cents is 'lots', not of type integer" in refused.stderr
    assert "[answer_invalid]" in refused.stderr
    assert wait in ask(pylash, "waits")


def test_an_answer_is_shown_once_for_the_call_that_got_it(place: str, pylash: Call) -> None:
    """The calls before it whose time was over got none."""

    async def answer() -> None:
        app = Lash(place)

        @app.process
        async def approval(ctx: ProcessContext[None]) -> Any:
            key = ctx.wait_key("approval")
            await ctx.wait(key, within="1ms")
            await ctx.step(str, key)
            return await ctx.wait(key)

        async with app:
            handle = await app.start(approval.options(id="approval"))

            async def is_reminded() -> bool:
                return len(await handle.timeline()) == 3

            await eventually(is_reminded)
            (wait,) = await app.waits()
            await app.resolve(wait.key, "yes", by="ann")
            assert await handle.result(timeout="10s") == "yes"

    asyncio.run(answer())
    (shown,) = ask(pylash, "show", "approval")["answers"]
    assert (shown["title"], shown["by"]) == ("approval", "ann")


def test_a_wait_for_a_signal_is_answered_with_it(place: str, pylash: Call) -> None:
    filled(place)
    wait = next(one for one in ask(pylash, "waits") if one["kind"] == "signal")
    assert pylash("resolve", wait["id"], "--error", "no").exit_code == 1
    assert ask(pylash, "resolve", wait["id"], '"here"') == {"status": "accepted"}
    assert "to here" in worked(place, ended("order-7"))


def test_nothing_is_no_answer_where_it_cannot_be_meant(file: str, pylash: Call) -> None:
    filled(file)
    asyncio.run(deferred(file))
    waits = {one["kind"]: one for one in ask(pylash, "waits")}
    for kind, said in (("approval", "true, false, or"), ("deferred", "needs its result")):
        refused = pylash("resolve", waits[kind]["key"])
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert said in refused.stderr
    assert len(ask(pylash, "waits")) == 3
    assert ask(pylash, "resolve", waits["deferred"]["id"], "null") == {"status": "accepted"}
    assert ask(pylash, "resolve", waits["signal"]["id"]) == {"status": "accepted"}
    assert "to None" in worked(file, ended("order-7"))


async def deferred(url: str) -> None:
    app = Lash(url, model=ScriptedModel([call("ask_bob")]))

    @app.tool
    async def ask_bob(ctx: ToolContext[None]) -> Deferred:
        return ctx.defer()

    async with app, app.session("bob").stream("ask him") as stream:
        async for event in stream:
            if event.type == "wait_opened":
                break


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("v1.a.b.c", "wait_key_invalid"),
        ("zzz", "wait_key_invalid"),
        ("", "await_event_unknown_or_revoked"),
        ("abc", "await_event_unknown_or_revoked"),
        ("a" * 64, "await_event_unknown_or_revoked"),
    ],
)
def test_an_unknown_key_is_refused(file: str, pylash: Call, key: str, code: str) -> None:
    filled(file)
    refused = pylash("resolve", key, "true")
    assert refused.exit_code == 1
    assert f"[{code}]" in refused.stderr
    assert "pylash waits" in refused.stderr


def test_processes_and_turns_are_cancelled(place: str, pylash: Call) -> None:
    filled(place)
    assert ask(pylash, "cancel", "order-7", "--reason", "too late")["done"] == "asked to end"
    assert pylash("cancel", "chat-42", "--force").exit_code == 2
    assert pylash("cancel", "chat-42/refund-7").exit_code == 0

    async def both(app: Any) -> Any:
        return await ended("order-7")(app), (await turn_ended(app)).status

    assert worked(place, both) == ("process_cancelled", "cancelled")
    shown = ask(pylash, "show", "order-7")
    assert shown["output"] == {"status": "cancelled", "reason": "too late"}
    for over in ("chat-42", "chat-42/refund-7"):
        assert "[nothing_to_cancel]" in pylash("cancel", over).stderr
    assert "[run_unknown]" in pylash("cancel", "ord").stderr  # only whole ids


def test_a_process_is_ended_by_force_without_a_worker(place: str, pylash: Call) -> None:
    filled(place)
    assert pylash("cancel", "order-7", "--force").exit_code == 0
    assert ask(pylash, "show", "order-7")["status"] == "cancelled"


def test_what_is_not_blocked_is_not_retried(file: str, pylash: Call) -> None:
    filled(file)
    for name in ("order-7", "chat-42", "chat-42/refund-7"):
        refused = pylash("retry", name)
        assert refused.exit_code == 1
        assert "[not_blocked]" in refused.stderr


def test_old_journals_are_pruned_and_results_stay(place: str, pylash: Call) -> None:
    filled(place)
    assert ask(pylash, "prune", "--older-than", "1d") == {"runs": 0}
    pylash("signal", "order-7", "address", '"x"')
    worked(place, ended("order-7"))
    assert ask(pylash, "prune", "--older-than", "0s") == {"runs": 1}  # the child recorded nothing
    shown = ask(pylash, "show", "order-7")
    assert shown["effects"] == []
    assert shown["output"]["status"] == "completed"
    assert "no effects are recorded" in pylash("show", "order-7").stdout
    assert pylash("prune").exit_code == 2


def test_a_refused_command_changes_nothing(file: str, pylash: Call) -> None:
    filled(file)
    before = everything(file)
    for command in (
        ("signal", "nobody", "x"),
        ("signal", "order-7", "bad\nname"),
        ("signal", "order-7", "x", "{not json"),
        ("cancel", "nobody"),
        ("retry", "nobody"),
        ("prune", "--older-than", "-1d"),
    ):
        refused = pylash(*command)
        assert refused.exit_code in (1, 2)
        assert (refused.stdout, refused.stderr.count("\n")) == ("", 1)
        assert refused.stderr.startswith("pylash: ")
    assert everything(file) == before
