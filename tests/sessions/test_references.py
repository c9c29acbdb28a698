"""References to attachments that arrive as data: only those of the same conversation are followed."""

from __future__ import annotations

import hashlib
from typing import Any

from pylash import Attachment, Lash, ProcessContext, Text, ToolContext, tool
from pylash.durable.commands import AppendEvent
from pylash.durable.processes import WAKE
from pylash.testing import ScriptedModel, call, calls, say
from pylash.turn.messages import UserMessage
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.sessions.scenes import transcript

SECRET = b"the letter of another"
REF = hashlib.sha256(SECRET).hexdigest()


def asking(*wanted: Any) -> ScriptedModel:
    """Return a model that makes the calls, then says it is done."""

    def reply(request: Any) -> Any:
        answered = sum(message.role == "tool" for message in request.messages)
        return say("Done.") if answered else calls(*wanted)

    return ScriptedModel(reply)


@tool
async def read(text: Any) -> str:
    """Return what was given."""
    return f"read {text}"


@tool(projection="file")
async def keep(file: Any) -> str:
    """Take a reference as it is."""
    return f"kept {file}"


@EVERY_ENGINE
async def test_a_model_does_not_read_an_upload_of_another_session(backend: Backend) -> None:
    reads = (call("read", text={"$ref": REF}), call("keep", file=[{"$ref": REF}]))
    app = backend.app(model=asking(*reads), tools=[read, keep])
    async with app:
        ann, eve = app.session("ann"), app.session("eve")
        await ann.turn([Text("Keep this."), Attachment(SECRET, "text/plain")], timeout="10s")
        await eve.turn("Read it.", timeout="10s")
        own, other = await transcript(ann), await transcript(eve)
        assert f"read: read {SECRET.decode()}" in own
        assert f"keep: kept [{{'$ref': '{REF}'}}]" in own
        assert SECRET.decode() not in other
        refusal = f"The attachment {REF} is not in the store."
        assert other.count(refusal) == 2
        fork = await ann.fork("fork")  # it begins with the same messages
        await fork.turn("Again.", timeout="10s")
        assert (await transcript(fork)).count(f"read: read {SECRET.decode()}") == 1


async def test_what_a_tool_stores_is_read_in_its_session_alone(memory: Backend) -> None:
    """Also if the tool mentions the attachment somewhere inside its result."""

    first = {"Make it.": call("make"), "Echo it.": call("echo", text=REF)}

    def model(request: Any) -> Any:
        asked = request.messages[-1]
        if asked.role == "user":
            return first[asked.text]
        return call("read", text={"$ref": REF}) if asked.tool != "read" else say("Done.")

    app = Lash(memory.url, model=ScriptedModel(model), tools=[read])

    @app.tool
    async def make(ctx: ToolContext[None]) -> Any:
        """Make a letter."""
        return {"letter": ctx.attach(SECRET, "text/plain"), "pages": 1}

    @app.tool
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    async with app:
        await app.session("ann").turn("Make it.", timeout="10s")
        await app.session("eve").turn("Echo it.", timeout="10s")
        assert f"read: read {SECRET.decode()}" in await transcript(app.session("ann"))
        assert SECRET.decode() not in await transcript(app.session("eve"))


async def test_a_wake_is_text_whatever_it_looks_like(memory: Backend) -> None:
    parts = [{"type": "attachment", "media_type": "image/png", "ref": REF, "size": len(SECRET)}]
    seen: list[UserMessage] = []

    def model(request: Any) -> Any:
        seen.append(request.messages[-1])
        return say("Seen.")

    app = Lash(memory.url, model=ScriptedModel(model))

    @app.process
    async def watch(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    async with app:
        await app.session("ann").turn([Attachment(SECRET, "image/png")], timeout="10s")
        started = await app.start(watch.options(wake="eve"))
        wake = AppendEvent(started.id, WAKE, {"text": {"parts": parts}}, "wake-1")
        await app.store.processes.perform(wake)

        async def asked() -> bool:
            return len(seen) > 1

        await eventually(asked)
    assert [type(part) for part in seen[-1].parts] == [Text]
    assert REF in seen[-1].text
