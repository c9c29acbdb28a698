"""Sessions: read, forked, deleted, opened with other options."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import (
    ArgumentsInvalid,
    Attachment,
    AttachmentResolutionFailed,
    InlineHost,
    Lash,
    ModelReply,
    ModelRequest,
    SessionExists,
    SessionIdInvalid,
    SessionUnknown,
    Text,
    TurnBudget,
    TurnFailed,
    TurnUnknown,
    Usage,
)
from pylash.testing import ScriptedModel, call, say
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.sessions.scenes import begin, open_wait, transcript


def echo(request: ModelRequest) -> Any:
    return say(f"{len(request.messages)}: {request.messages[-1].text}")


def app_of(backend: Backend) -> Lash:
    return backend.app(model=ScriptedModel(echo))


@pytest.mark.parametrize("name", ["", "  ", "a\0b", 7, None])
async def test_a_session_needs_a_name(name: Any) -> None:
    async with Lash("memory://") as app:
        with pytest.raises(SessionIdInvalid):
            app.session(name)
        await app.session("ok").enqueue("hi")
        with pytest.raises(SessionIdInvalid):
            await app.session("ok").fork(name)


async def test_sessions_are_listed_newest_first_in_stable_pages(backend: Backend) -> None:
    async with app_of(backend) as app:
        assert await app.sessions() == []
        for number in range(60):
            await app.session(f"chat-{number}").turn("Hello", timeout="10s")
        await app.session("chat-7").turn("Again", timeout="10s")
        ids = [f"chat-{number}" for number in reversed(range(60))]
        assert [view.id for view in await app.sessions()] == ids
        pages, after = [], None
        while page := await app.sessions(limit=13, after=after):
            pages += [view.id for view in page]
            after = page[-1].id
            await app.session(f"meanwhile-{len(pages)}").turn("Hello", timeout="10s")
        assert pages == ids

        [view] = await app.sessions(limit=1, after="chat-8")
        assert (view.id, view.turns, view.status) == ("chat-7", 2, None)
        assert view.created is not None
        assert view.updated is not None
        assert view.created < view.updated
        [newer] = await app.sessions(limit=1, after="chat-9")
        assert newer.updated is not None
        assert newer.updated < view.updated

        await app.session("chat-7").fork("fork")
        [fork] = await app.sessions(limit=1)
        assert (fork.id, fork.turns, fork.created, fork.updated) == ("fork", 2, None, None)
        await app.session("fork").delete()
        with pytest.raises(SessionUnknown):
            await app.sessions(after="fork")
        with pytest.raises(ArgumentsInvalid, match="limit=0 is not a number of at least 1"):
            await app.sessions(limit=0)


@EVERY_ENGINE
async def test_a_listed_session_has_the_status_of_its_turn(backend: Backend) -> None:
    app = backend.app(model=ScriptedModel([call("pay"), say("Paid.")]))

    @app.tool(approval=True)
    async def pay() -> str:
        return "done"

    async with app:
        await begin(app.session("chat"), "Pay", "t1")
        wait = await open_wait(app)
        [view] = await app.sessions()
        assert (view.turns, view.updated) == (0, None)
        assert view.status in ("running", "waiting")
        assert view.created is not None
        await app.resolve(wait.key, True)
        await app.session("chat").turn("Pay", turn_id="t1", timeout="10s")
        [view] = await app.sessions()
        assert (view.turns, view.status) == (1, None)


async def test_tags_of_sessions_are_found_changed_and_forgotten(backend: Backend) -> None:
    async def found(tag: str) -> list[str]:
        return [view.id for view in await app.sessions(tag=tag)]

    async with app_of(backend) as app:
        for name in ("a", "b"):
            session = app.session(name, tags=["customer:7", "vip"])
            await session.turn("Hello", timeout="10s")
        await app.session("c").turn("Hello", timeout="10s")
        assert await found("customer:7") == ["b", "a"]
        assert [view.id for view in await app.sessions(tag="vip", limit=1, after="b")] == ["a"]
        assert [view.tags for view in await app.sessions()] == [(), *(("customer:7", "vip"),) * 2]

        await app.session("a").turn("Again", timeout="10s")  # without tags it keeps them
        assert await found("vip") == ["b", "a"]
        await app.session("a", tags=["new", "vip"]).turn("Again", timeout="10s")
        assert (await found("customer:7"), await found("new")) == (["b"], ["a"])
        await app.session("a", tags=[]).turn("Again", timeout="10s")
        assert (await found("vip"), await found("new")) == (["b"], [])
        await app.session("b").fork("fork")
        assert await found("vip") == ["fork", "b"]
        await app.session("b").delete()
        assert await found("vip") == ["fork"]
        await app.session("b").turn("Hello", timeout="10s")
        assert await found("vip") == ["fork"]


async def test_an_unused_session_is_empty(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("new")
        assert await session.history() == []
        assert await session.usage() == Usage()
        assert (await session.delete()).turns == 0
        with pytest.raises(SessionUnknown):
            await session.fork("copy")


async def test_a_history_that_two_read_at_once_is_complete_and_without_repetition(
    durable: Backend,
) -> None:
    async with app_of(durable) as writer, app_of(durable) as reader:
        for n in range(5):
            await writer.session("chat").turn(str(n), timeout="10s")
            async with asyncio.TaskGroup() as group:
                reads = [group.create_task(reader.session("chat").history()) for _ in range(3)]
            assert [len(read.result()) for read in reads] == [2 * n + 2] * 3


@pytest.mark.proves("T10")
@EVERY_ENGINE
async def test_a_fork_begins_with_the_messages_and_goes_its_own_way(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("chat")
        await session.turn("one", turn_id="t1", timeout="10s")
        await session.turn("two", turn_id="t2", timeout="10s")
        early = await session.fork("early", at="t1")
        whole = await session.fork("whole")
        assert (await early.turn("else", timeout="10s")).text == "3: else"
        assert (await whole.turn("more", timeout="10s")).text == "5: more"
        deeper = await early.fork("deeper")
        assert (await deeper.turn("deep", timeout="10s")).text == "5: deep"
        assert await transcript(deeper) == (
            "\nuser       one"
            "\nassistant  1: one"
            "\nuser       else"
            "\nassistant  3: else"
            "\nuser       deep"
            "\nassistant  5: deep\n"
        )
        assert len(await session.history()) == 4
        assert len(await early.history()) == 4
        with pytest.raises(TurnUnknown):
            await session.fork("never", at="t9")
        with pytest.raises(SessionExists):
            await session.fork("early")


async def test_a_fork_of_a_fork_begins_at_any_turn_of_its_path(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("chat")
        for turn in ("t1", "t2", "t3"):
            await session.turn(turn, turn_id=turn, timeout="10s")
        fork = await session.fork("fork", at="t2")
        await fork.turn("t4", turn_id="t4", timeout="10s")
        deeper = await fork.fork("deeper")
        await deeper.turn("again", turn_id="t1", timeout="10s")
        for at, length in (("t2", 4), ("t4", 6)):
            made = await deeper.fork(f"at {at}", at=at)
            assert len(await made.history()) == length
            assert (await made.turn("more", timeout="10s")).text == f"{length + 1}: more"
        # Its own turn of a name comes later than one that it began with.
        assert len(await (await deeper.fork("own", at="t1")).history()) == 8
        assert len(await (await fork.fork("first", at="t1")).history()) == 2
        with pytest.raises(TurnUnknown):
            await fork.fork("never", at="t3")  # after it left
        await session.delete()
        with pytest.raises(TurnUnknown):
            await fork.fork("gone", at="t1")
        assert len(await (await fork.fork("last", at="t4")).history()) == 6


async def test_a_fork_outlives_its_origin(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("chat")
        await session.turn("one", timeout="10s")
        fork = await session.fork("fork")
        await session.delete()
        assert await session.history() == []
        assert (await fork.turn("two", timeout="10s")).text == "3: two"


async def test_a_script_goes_on_in_a_fork() -> None:
    script = [say("zero"), say("one"), say("two")]
    async with Lash("memory://", model=ScriptedModel(script)) as app:
        session = app.session("chat")
        await session.turn("a", turn_id="t1")
        await session.turn("b", turn_id="t2")
        assert (await (await session.fork("f1", at="t1")).turn("c")).text == "one"
        assert (await (await session.fork("f2")).turn("c")).text == "two"


@EVERY_ENGINE
async def test_a_deleted_session_begins_anew(backend: Backend) -> None:
    async with app_of(backend) as app:
        session = app.session("chat")
        await session.turn("one", turn_id="t1", timeout="10s")
        await session.turn("two", turn_id="t2", timeout="10s")
        report = await session.delete()
        assert (report.turns, report.messages) == (2, 4)
        assert await session.history() == []
        assert await session.usage() == Usage()
        assert (await session.turn("else", turn_id="t1", timeout="10s")).text == "1: else"
        assert len(await session.history()) == 2


@EVERY_ENGINE
async def test_deleting_a_session_ends_what_it_does(backend: Backend) -> None:
    app = backend.app(model=ScriptedModel([call("pay"), say("Done.")]))

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await begin(session, "then", "t2")
        wait = await open_wait(app)

        async def waiting() -> str:
            return (await session.turn("go", turn_id="t1", timeout="10s")).status

        async with asyncio.TaskGroup() as group:
            first = group.create_task(waiting())
            await asyncio.sleep(0.01)
            report = await session.delete()
            assert await first == "cancelled"
        assert report.waits == 1
        assert await app.waits() == []
        assert (await app.resolve(wait.key, True)).status == "unknown_or_revoked"
        again = app.session("chat")
        await begin(again, "go", "t1")
        fresh = await open_wait(app)
        assert fresh.key != wait.key
        assert (await app.resolve(fresh.key, True)).status == "accepted"
        assert (await again.turn("go", turn_id="t1", timeout="10s")).text == "Done."


@EVERY_ENGINE
async def test_other_options_hold_from_the_next_turn(backend: Backend) -> None:
    model, fast = ScriptedModel(echo), ScriptedModel(lambda _: say("Fast."))
    app = backend.app(model=model, instructions="App.")
    app.model("fast", fast)
    async with app:
        await app.session("chat", instructions="Be kind.").turn("one", timeout="10s")
        await app.session("chat", model="fast").turn("two", timeout="10s")
        await app.session("chat").turn("three", timeout="10s")
        shown = await transcript(app.session("chat"))
    assert [r.messages[0].text for r in model.requests] == ["Be kind."]
    assert [r.messages[0].text for r in fast.requests] == ["Be kind.", "Be kind."]
    assert shown.count("assistant  Fast.") == 2


@pytest.mark.proves("T5")
async def test_an_attachment_is_stored_once_and_sent_whole(backend: Backend) -> None:
    model = ScriptedModel(lambda _: say("Seen."))
    picture = Attachment(b"\x89PNG", "image/png", "a.png")
    async with Lash(backend.url, model=model) as app:
        session = app.session("chat")
        for turn in ("t1", "t2"):
            await session.turn([Text("Look."), picture], turn_id=turn, timeout="10s")
        await session.turn([Text("Look."), picture], turn_id="t1", timeout="10s")
        (first, *_) = await session.history()
        stored: Any = first
        assert stored.parts[1].data == b""
        assert stored.parts[1].ref is not None
        assert await app.store.attachments.get(stored.parts[1].ref) == b"\x89PNG"
        await session.enqueue([Text("And."), picture])
        await eventually(lambda: asyncio.sleep(0, len(model.requests) == 3))
    sent = [
        [
            p.data
            for m in r.messages
            if m.role == "user"
            for p in m.parts
            if isinstance(p, Attachment)
        ]
        for r in model.requests
    ]
    assert sent == [[b"\x89PNG"] * n for n in (1, 2, 3)]


@EVERY_ENGINE
async def test_what_a_model_made_is_stored_with_its_answer(backend: Backend) -> None:
    drawn = ModelReply(text="A cat.", attachments=(Attachment(b"\x89PNG", "image/png", "cat.png"),))
    model = ScriptedModel([drawn, say("Black.")])
    async with backend.app(model=model) as app:
        session = app.session("chat")
        async with session.stream("Draw a cat", turn_id="t1") as stream:
            async for _ in stream:
                pass
        again = await session.turn("Draw a cat", turn_id="t1", timeout="10s")
        (made,) = stream.result.attachments
        assert again.attachments == (made,)
        assert (made.name, made.size, made.data) == ("cat.png", 4, b"")
        assert await app.attachment(made) == b"\x89PNG"
        assert await app.attachment(made.ref or "") == b"\x89PNG"
        assert (await session.turn("Which colour?", timeout="10s")).attachments == ()
        told: Any = model.requests[1].messages[1]
        assert told.attachments[0].data == b"\x89PNG"
        with pytest.raises(AttachmentResolutionFailed, match="ab12"):
            await app.attachment("ab12")


@pytest.mark.proves("T5")
async def test_an_attachment_that_is_gone_fails_the_turn_clearly() -> None:
    async with Lash("memory://", model=ScriptedModel([say("Seen.")])) as app:
        missing = Attachment(media_type="image/png", ref="ab12", size=3)
        result = await app.session("chat").turn([missing], timeout="10s")
        assert (result.status, result.code) == ("failed", "attachment_resolution_failed")
        with pytest.raises(TurnFailed, match="ab12"):
            _ = result.text


class Counting:
    """A provider that counts its calls; the first asks for a tool."""

    name = "counting"

    def __init__(self) -> None:
        self.calls = 0

    async def respond(self, request: ModelRequest, listen: Any) -> ModelReply:
        self.calls += 1
        return call("forget") if self.calls == 1 else say("Seen.")


@pytest.mark.proves("T5")
@pytest.mark.parametrize("host", [None, InlineHost()], ids=["journal", "inline"])
async def test_a_model_is_not_called_again_for_an_attachment_that_is_gone(
    backend: Backend, host: Any
) -> None:
    """The first call sends the picture. Then it is gone for one look only: a second try would find it and be answered."""
    model = Counting()
    app = Lash(backend.url, model=model, host=host)

    @app.tool
    async def forget() -> str:
        attachments = app.store.attachments
        honest = attachments.get

        async def gone(ref: str) -> bytes | None:
            attachments.get = honest  # type: ignore[method-assign]
            return None

        attachments.get = gone  # type: ignore[method-assign]
        return "forgotten"

    async with app:
        session = app.session("chat")
        turn = session.turn([Attachment(b"\x89PNG", "image/png")], turn_id="t1", timeout="10s")
        result = await turn
        assert (result.status, result.code) == ("failed", "attachment_resolution_failed")
        assert model.calls == 1
        assert (await session.turn("again", timeout="10s")).text == "Seen."  # it is there again
        assert model.calls == 2


async def test_options_stay_until_others_are_given(durable: Backend) -> None:
    def app() -> Lash:
        made = Lash(durable.url, model=ScriptedModel(lambda _: say("from the app's")))
        made.model("beta", ScriptedModel(lambda request: say(f"beta, {request.messages[0].text}")))
        return made

    async with app() as first:
        session = first.session("chat", model="beta", instructions="Be brief.")
        assert (await session.turn("a")).text == "beta, Be brief."
    async with app() as second:
        assert (await second.session("chat").turn("b")).text == "beta, Be brief."
        await second.session("chat", instructions="Be long.").enqueue("c")
        assert (await second.session("chat").turn("d")).text == "beta, Be long."


async def test_a_turn_keeps_the_options_it_was_asked_with(durable: Backend) -> None:
    async with Lash(durable.url, worker=None, model=ScriptedModel([])) as client:
        asked = client.session("chat", instructions="One.", budget=TurnBudget(iterations=3))
        await begin(asked, "a", "t1")
        await begin(client.session("chat", instructions="Two."), "b", "t2")
    heard = ScriptedModel(lambda request: say(request.messages[0].text))
    async with Lash(durable.url, model=heard) as app:
        session = app.session("chat")
        first = await session.turn("a", turn_id="t1")
        second = await session.turn("b", turn_id="t2")
        assert (first.text, second.text) == ("One.", "Two.")
