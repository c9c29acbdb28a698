"""The view of a session: its history as plain records, for programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pylash import ArgumentsInvalid, Attachment, InlineHost, Lash, ModelRequest, ProcessContext
from pylash.testing import ScriptedModel, call, kill, say
from pylash.turn.messages import AssistantMessage, Message, Text, UserMessage
from pylash.turn.views import view_of
from tests.backends import Backend, eventually
from tests.sessions.scenes import LIVE, PARKING
from tests.sessions.test_residency import BOTH


def reply(request: ModelRequest) -> Any:
    last = request.messages[-1]
    if last.role == "user" and last.text == "Where is order 7?":
        return call("lookup", order_id="7")
    return say(f"I read {last.text}")


def shop(url: str, **options: Any) -> Lash:
    app = Lash(url, model=ScriptedModel(reply), **options)

    @app.tool
    async def lookup(order_id: str) -> str:
        return f"order {order_id} is packed"

    return app


def said(turn_id: str | None, kind: str, text: str, *attachments: Any) -> dict[str, Any]:
    return {"turn_id": turn_id, "kind": kind, "text": text, "attachments": [*attachments]}


CALL = {"turn_id": "t1", "call_id": "i1.c0", "tool": "lookup"}

FIRST_TURN = [
    said("t1", "user", "Where is order 7?"),
    CALL | {"kind": "tool_call", "arguments": {"order_id": "7"}},
    CALL | said("t1", "tool_result", "order 7 is packed") | {"error": False},
    said("t1", "assistant", "I read order 7 is packed"),
]


@BOTH
@pytest.mark.proves("T10")
async def test_a_view_is_chronological_and_plain(backend: Backend, config: Any) -> None:
    async with shop(backend.url, worker=config) as app:
        session = app.session("chat")
        assert await session.view() == []
        await session.turn("Where is order 7?", turn_id="t1", timeout="10s")
        assert await session.view() == FIRST_TURN
        note = Attachment(b"ours", "text/plain", name="note.txt")
        await session.turn(["Thanks", note], turn_id="t2", timeout="10s")
        view = await session.view()
        assert json.loads(json.dumps(view)) == view
        assert view[:4] == FIRST_TURN
        attached = view[4]["attachments"]
        assert attached[0].pop("ref") is not None
        file = {"media_type": "text/plain", "name": "note.txt", "size": 4}
        assert view[4:] == [
            said("t2", "user", "Thanks", file),
            said("t2", "assistant", "I read Thanks"),
        ]
        assert await session.view(last=1) == [said("t2", "assistant", "I read Thanks")]
        fork = await session.fork("fork", at="t1")
        await fork.turn("And?", turn_id="t9", timeout="10s")
        assert [entry["turn_id"] for entry in await fork.view(last=3)] == ["t1", "t9", "t9"]


@pytest.mark.proves("T10")
async def test_messages_of_the_queue_have_the_id_of_their_own_turn(backend: Backend) -> None:
    async with shop(backend.url) as app:
        session = app.session("chat")
        await session.turn("Hi", turn_id="t1", timeout="10s")
        await session.enqueue("Are you there?")

        async def answered() -> list[dict[str, Any]] | None:
            view = await session.view()
            return view if len(view) == 4 else None

        view = await eventually(answered)
        assert [entry["text"] for entry in view[2:]] == ["Are you there?", "I read Are you there?"]
        [drained] = {entry["turn_id"] for entry in view[2:]}
        assert drained not in ("t1", None)
        assert await session.timeline(drained)


def test_a_turn_that_an_older_version_began_without_an_id_has_none() -> None:
    messages: list[Message] = [
        UserMessage((Text("Hi"),), turn_id="t1"),
        AssistantMessage("Hello."),
        UserMessage((Text("It is done."),), source="wake"),
        AssistantMessage("Good."),
    ]
    assert [entry["turn_id"] for entry in view_of(messages)] == ["t1", "t1", None, None]


def reader(url: str, **options: Any) -> Lash:
    app = shop(url, **options)

    @app.process
    async def read(ctx: ProcessContext[None]) -> list[Any]:
        before = await ctx.session("chat").view()
        await ctx.wait_signal("go")
        return [before, await ctx.session("chat").view(last=1)]

    return app


@pytest.mark.proves("T10")
async def test_a_process_records_the_view_that_it_reads(durable: Backend) -> None:
    app = reader(durable.url, worker=PARKING)
    await app.open()
    await app.session("chat").turn("Where is order 7?", turn_id="t1", timeout="10s")
    handle = await app.start(app.services.definitions["read"].options(id="p"))

    async def waits() -> bool:
        return (await handle.status()) == "waiting"

    await eventually(waits)
    await kill(app)
    async with reader(durable.url, worker=LIVE) as app:
        await app.session("chat").turn("Thanks", turn_id="t2", timeout="10s")
        handle = app.process_handle("p")
        await handle.signal("go")
        before, after = await handle.result(timeout="10s")
        assert before == FIRST_TURN
        assert after == [said("t2", "assistant", "I read Thanks")]
        effects = [effect.name for effect in await handle.timeline()]
        assert effects.count("session.view") == 2


async def test_a_process_reads_a_view_on_a_host_without_a_journal() -> None:
    async with reader("memory://", host=InlineHost()) as app:
        await app.session("chat").turn("Where is order 7?", turn_id="t1", timeout="10s")
        handle = await app.start(app.services.definitions["read"])
        await handle.signal("go")
        assert await handle.result(timeout="10s") == [FIRST_TURN, FIRST_TURN[-1:]]


@pytest.mark.parametrize("last", [0, -1, True, "3"])
async def test_a_view_of_no_records_is_refused(last: Any) -> None:
    async with shop("memory://") as app:
        with pytest.raises(ArgumentsInvalid, match="is not a positive number"):
            await app.session("chat").view(last=last)
