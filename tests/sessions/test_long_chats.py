"""Long chats: requests stay short, and no message is lost."""

from __future__ import annotations

from typing import Any

import pytest

from pylash import (
    ArgumentsInvalid,
    Attachment,
    InlineHost,
    Lash,
    ModelReply,
    ModelRequest,
    ProcessContext,
    Summarise,
    Text,
    TurnBudget,
    TurnScope,
    Usage,
    Window,
)
from pylash.testing import ScriptedModel, SimClock, call, calls, crash_everywhere, fail, say
from pylash.turn.histories import is_summary
from tests.backends import Backend
from tests.sessions.scenes import begin, effects_of, open_wait, transcript
from tests.turn.provider_rules import refusal

LONG = " ".join(["word"] * 40)
"""About fifty tokens."""


def reply(request: ModelRequest) -> Any:
    """Answer by what was said, and be sent only what any provider takes."""
    system, *messages = request.messages
    assert (system.role, system.text) == ("system", "Help.")
    assert refusal(messages) is None  # type: ignore[arg-type]
    match messages[-1].text:
        case "look":
            return calls(call("look", n=1), call("look", n=2))
        case "ask":
            return call("ask")
        case _:
            return say(f"Heard {len(messages)}.")


def sent(model: ScriptedModel, number: int = -1) -> list[str]:
    """Return what a request said, but for the prompt."""
    return [message.text for message in model.requests[number].messages][1:]


def with_tools(app: Lash) -> Lash:
    @app.tool
    async def look(n: int) -> str:
        return f"{n} {LONG}"

    return app


# --- windows ---


async def test_a_window_sends_the_newest_turns_and_keeps_everything(backend: Backend) -> None:
    model = ScriptedModel(reply)
    async with Lash(backend.url, model=model, instructions="Help.") as app:
        session = app.session("chat", history=Window(tokens=150))
        for number in range(5):
            await session.turn(f"{number} {LONG}", turn_id=f"t{number}", timeout="10s")
        assert [text[:2] for text in sent(model)] == ["3 ", "He", "4 "]
        history = await session.history()
        assert [m.text[:2] for m in history if m.role == "user"] == [f"{n} " for n in range(5)]
        record = await app.store.sessions.turn(_scope("t4"))
        assert record is not None
        entry = await app.store.journal.entry(record.run, "i1.llm")
        assert entry is not None
        assert entry.outcome is not None
        assert b'"left_out":6' in entry.outcome  # what it did is recorded


def _scope(turn: str) -> Any:
    return TurnScope("chat", turn)


async def test_a_window_never_parts_a_call_from_its_results_nor_cuts_the_turn_that_runs() -> None:
    model = ScriptedModel(reply)
    async with with_tools(Lash("memory://", model=model, instructions="Help.")) as app:
        session = app.session("chat", history=Window(tokens=170))
        await session.turn("look", timeout="10s")
        await session.turn("and", timeout="10s")
        assert len(sent(model)) == 6  # with both results
        await session.turn(f"more {LONG}", timeout="10s")
        assert [text[:4] for text in sent(model)] == ["and", "Hear", "more"]
        await session.turn("look", timeout="10s")
        assert [text[:4] for text in sent(model)][-4:] == ["look", "", "1 wo", "2 wo"]
        tiny = app.session("chat", history=Window(tokens=1))
        await tiny.turn("look", timeout="10s")
        assert [text[:4] for text in sent(model)] == ["look", "", "1 wo", "2 wo"]


async def test_other_options_hold_from_the_next_turn(sqlite: Backend) -> None:
    model = ScriptedModel(reply)
    async with Lash(sqlite.url, model=model, instructions="Help.") as app:
        await app.session("chat").turn(LONG, timeout="10s")
        await app.session("chat", history=Window(tokens=10)).turn("a", timeout="10s")
        assert sent(model) == ["a"]
    async with Lash(sqlite.url, model=model, instructions="Help.") as app:
        await app.session("chat").turn("b", timeout="10s")
        assert sent(model) == ["b"]
        await app.session("chat", history=Window(1_000)).turn("c", timeout="10s")
        assert sent(model)[0] == LONG
        await app.session("chat", history=Window(1)).turn("d", timeout="10s")
        assert sent(model) == ["d"]
        await app.session("chat", history=Window()).turn("e", timeout="10s")
        assert sent(model)[0] == LONG


@pytest.mark.slow
async def test_of_a_long_chat_only_what_is_sent_is_read(durable: Backend) -> None:
    model = ScriptedModel(reply)
    async with Lash(durable.url, model=model, instructions="Help.") as app:
        origin = app.session("origin")
        for number in range(60):
            await origin.turn(f"{number} {LONG}", turn_id=f"t{number}", timeout="10s")
        fork = await origin.fork("chat", at="t49")
        for number in range(50, 80):
            await fork.turn(f"{number} {LONG}", timeout="10s")
    read = 0
    async with Lash(durable.url, model=model, instructions="Help.") as app:
        honest = app.store.sessions.nodes

        async def nodes(*segment: Any) -> list[bytes]:
            nonlocal read
            bodies = await honest(*segment)
            read += len(bodies)
            return bodies

        app.store.sessions.nodes = nodes  # type: ignore[method-assign, assignment]
        session = app.session("chat", history=Window(tokens=150))
        await session.turn(f"80 {LONG}", timeout="10s")
        assert [text[:3] for text in sent(model)] == ["79 ", "Hea", "80 "]
        assert 0 < read < 160 / 2
        more = app.session("chat", history=Window(tokens=3_000))  # into the fork's origin
        await more.turn(f"81 {LONG}", timeout="10s")
        assert [text[:3] for text in sent(model)][-3:] == ["80 ", "Hea", "81 "]
        asked = [text[:2] for text in sent(model) if not text.startswith("Heard")]
        assert asked == [str(n) for n in range(82 - len(asked), 82)]
        assert 40 < len(asked) < 60
        assert read < 160
        history = await session.history()
        assert [m.text[:2].strip() for m in history if m.role == "user"] == [
            str(n) for n in range(82)
        ]
        assert read == 160


async def test_attachments_of_what_is_left_out_are_not_sent() -> None:
    model = ScriptedModel(reply)
    async with Lash("memory://", model=model, instructions="Help.") as app:
        session = app.session("chat", history=Window(tokens=1_100))
        picture = Attachment(b"\x89PNG", "image/png")
        await session.turn([Text("see"), picture], timeout="10s")
        await session.turn("and", timeout="10s")
        assert sent(model) == ["see", "Heard 1.", "and"]
        await session.turn([Text("again"), picture], timeout="10s")
        assert sent(model) == ["and", "Heard 3.", "again"]


@pytest.mark.parametrize("given", [4_000, "window", Window])
async def test_an_unknown_history_option_is_refused(given: Any) -> None:
    async with Lash("memory://") as app:
        with pytest.raises(ArgumentsInvalid, match="neither Window"):
            app.session("chat", history=given)


# --- summaries ---


def summing(request: ModelRequest) -> Any:
    """Summarise by telling which questions are in it."""
    (asked,) = request.messages
    assert "Summarise this conversation" in asked.text
    known = asked.text.rpartition("summarised:\nquestions ")[2].partition("\n")[0]
    known = known if "summarised:" in asked.text else ""
    new = [line[6] for line in asked.text.splitlines() if line.startswith("user: ")]
    return ModelReply(
        text=f"questions {known}{''.join(new)}", usage=Usage(requests=1, output_tokens=100)
    )


SHORT = Summarise(tokens=240, keep=60, model="short")


def make_app(store: str, **options: Any) -> Lash:
    app = Lash(store, model=ScriptedModel(reply), instructions="Help.", **options)
    app.model("short", ScriptedModel(summing))
    return app


async def chatted(app: Lash, turns: int = 9, option: Summarise = SHORT) -> list[Any]:
    """Chat, and return what was said, with the words of the long questions shortened."""
    session = app.session("chat", history=option)
    for number in range(turns):
        await session.turn(f"{number} {LONG}", turn_id=f"t{number}", timeout="20s")
    usage = await session.usage()
    return [(await transcript(session)).replace(LONG, "…"), usage.requests]


STORY = """
user       0 …
assistant  Heard 1.
user       1 …
assistant  Heard 3.
user       2 …
assistant  Heard 5.
user       3 …
runtime    Summary of the conversation so far:
questions 012
assistant  Heard 2.
user       4 …
assistant  Heard 4.
user       5 …
assistant  Heard 6.
user       6 …
runtime    Summary of the conversation so far:
questions 012345
assistant  Heard 2.
user       7 …
assistant  Heard 4.
user       8 …
assistant  Heard 6.
"""


async def test_old_turns_are_summarised_once_and_the_summary_is_used_again(
    backend: Backend,
) -> None:
    async with make_app(backend.url) as app:
        assert await chatted(app) == [STORY, 9 + 2]
        model: Any = app.services.catalog.provider("ScriptedModel")
        assert sent(model, 8)[0] == "Summary of the conversation so far:\nquestions 012345"
        assert [text[:2] for text in sent(model, 8)[1:]] == ["6 ", "He", "7 ", "He", "8 "]
        kinds = [(e.kind, e.key) for e in await effects_of(app, "chat", "t6")]
        assert ("direct", "i0.summary") in kinds
        assert len(await app.session("chat").history()) == 9 * 2 + 2


async def brief_chat(app: Lash) -> list[Any]:
    """Chat with little room: every turn but the first two needs a summary."""
    return await chatted(app, 4, Summarise(tokens=130, keep=0, model="short"))


BRIEF = """
user       0 …
assistant  Heard 1.
user       1 …
assistant  Heard 3.
user       2 …
runtime    Summary of the conversation so far:
questions 01
assistant  Heard 2.
user       3 …
runtime    Summary of the conversation so far:
questions 012
assistant  Heard 2.
"""


def test_a_chat_with_summaries_ends_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(make_app, brief_chat)
    assert report.outcome == [BRIEF, 4 + 2]


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_a_chat_with_summaries_ends_the_same_wherever_it_is_really_killed() -> None:
    here = "tests.sessions.test_long_chats"
    report = crash_everywhere(f"{here}:make_app", f"{here}:brief_chat", kill=True, timeout="60s")
    assert report.outcome == [BRIEF, 4 + 2]


async def test_a_summary_outlives_the_app_and_goes_with_a_fork(durable: Backend) -> None:
    async with make_app(durable.url) as app:
        await chatted(app, 4)
    async with make_app(durable.url) as app:
        model: Any = app.services.catalog.provider("ScriptedModel")
        short: Any = app.services.catalog.provider("short")
        await app.session("chat", history=SHORT).turn("on", timeout="10s")
        await app.session("chat", history=SHORT).fork("other")
        await app.session("other", history=SHORT).turn("on", timeout="10s")
        for number in (0, 1):
            assert sent(model, number)[0].endswith("questions 012")
        before = app.session("chat", history=SHORT)
        await before.fork("earlier", at="t2")
        await app.session("earlier", history=SHORT).turn("on", timeout="10s")
        assert sent(model)[0].startswith("0 ")
        assert short.requests == []


@pytest.mark.parametrize("token_bytes", [1, 100])
async def test_a_summary_that_is_recorded_stands_whatever_new_code_estimates(
    sqlite: Backend, monkeypatch: pytest.MonkeyPatch, token_bytes: int
) -> None:
    def app_with_ask() -> Lash:
        app = make_app(sqlite.url)

        @app.tool(approval=True)
        async def ask() -> str:
            return "yes"

        return app

    async with app_with_ask() as app:
        await chatted(app, 3)
        session = app.session("chat", history=Summarise(tokens=180, keep=80, model="short"))
        await begin(session, "ask", "t3")
        key = (await open_wait(app)).key
    monkeypatch.setattr("pylash.turn.histories.TOKEN_BYTES", token_bytes)
    async with app_with_ask() as app:
        await app.resolve(key, True)
        result = await app.session("chat", history=SHORT).turn("ask", turn_id="t3", timeout="10s")
        assert result.status == "completed"
        told = (await transcript(app.session("chat"))).replace(LONG, "…")
        assert told.splitlines()[7:] == [
            "user       ask",
            "runtime    Summary of the conversation so far:",
            "questions 01",
            "assistant  i1.c0 ask()",
            "tool       i1.c0 ask: yes",
            f"assistant  Heard {4 if token_bytes == 1 else 6}.",
        ]
        (summary,) = [m for m in await app.session("chat").history() if is_summary(m)]
        assert summary.summary is not None
        assert summary.summary.covers == 4


async def test_a_summary_counts_for_the_turn_and_its_budget() -> None:
    async with make_app("memory://") as app:
        await chatted(app, 3)
        session = app.session("chat", history=SHORT, budget=TurnBudget(tokens=90))
        result = await session.turn(f"3 {LONG}", timeout="10s")
        assert (result.status, result.usage.requests) == ("stopped", 1)
        assert result.usage.output_tokens == 100
        again = await session.turn("4", timeout="10s")  # and it was not for nothing
        assert (again.status, again.usage.requests) == ("completed", 1)


async def test_a_model_that_cannot_summarise_fails_no_turn() -> None:
    clock = SimClock()
    app = make_app("memory://", clock=clock)
    app.model("short", ScriptedModel(lambda _: fail("Too long.")))
    async with app:
        told, requests = await chatted(app, 6)
        assert "Summary" not in told
        assert requests == 6
        model: Any = app.services.catalog.provider("ScriptedModel")
        assert [text[:2] for text in sent(model)] == ["3 ", "He", "4 ", "He", "5 "]
        away = ScriptedModel(lambda _: fail("Overloaded.", retryable=True))
        app.model("short", away)
        async with app.session("chat", history=SHORT).stream(f"6 {LONG}", turn_id="t6") as stream:
            await clock.advance("10s")
            async for _ in stream:
                """Until it ends."""
        assert stream.result.status == "completed"
        assert len(away.requests) == 4
        keys = [e.key for e in await effects_of(app, "chat", "t6")]
        assert keys[1:4] == ["i0.summary", "i0.summary/i1.llm.pause", "i0.summary/i1.llm.2"]


async def test_a_missing_model_is_named() -> None:
    async with Lash("memory://", model=ScriptedModel(reply), instructions="Help.") as app:
        session = app.session("chat", history=Summarise(tokens=20, model="nobody"))
        result = await session.turn("and", timeout="10s")
        assert (result.status, result.code) == ("failed", "model_unknown")


@pytest.mark.slow
async def test_a_model_that_cannot_be_asked_fails_no_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with Lash("memory://", model=ScriptedModel(reply), instructions="Help.") as app:
        session = app.session("chat", history=Summarise(tokens=20, model="openai:gpt-5"))
        await session.turn(LONG, timeout="10s")
        assert (await session.turn("and", timeout="30s")).text == "Heard 1."
    assert "continues without a new summary: Model 'openai:gpt-5' needs a key" in caplog.text


async def test_the_model_of_the_session_summarises_unless_another_is_named() -> None:
    def both(request: ModelRequest) -> Any:
        return summing(request) if len(request.messages) == 1 else reply(request)

    model = ScriptedModel(both)
    async with Lash("memory://", model=model, instructions="Help.") as app:
        told, _ = await chatted(app, 3, Summarise(tokens=130, keep=0))
        assert "questions 01" in told
    asked = model.requests[2]
    assert (asked.session_id, asked.turn_id, asked.tools) == ("", "t2", ())
    assert asked.model == "ScriptedModel"


async def test_a_session_that_is_long_already_is_summarised_in_pieces() -> None:
    async with make_app("memory://") as app:
        plain = app.session("chat")
        for number in range(9):
            await plain.turn(f"{number} {LONG}", timeout="10s")
        session = app.session("chat", history=SHORT)
        result = await session.turn("on", turn_id="on", timeout="10s")
        keys = [e.key for e in await effects_of(app, "chat", "on") if e.kind == "direct"]
        assert keys == ["i0.summary", "i0.summary.2", "i0.summary.3"]
        assert result.usage.requests == 4
        model: Any = app.services.catalog.provider("ScriptedModel")
        assert sent(model)[0].endswith("questions 012345678")


async def test_a_summary_may_be_needed_in_the_middle_of_a_turn() -> None:
    app = with_tools(make_app("memory://"))
    async with app:
        session = app.session("chat", history=SHORT)
        for text in (f"0 {LONG}", f"1 {LONG}", "look"):
            await session.turn(text, turn_id=text[:2], timeout="10s")
        kinds = [e.key for e in await effects_of(app, "chat", "lo") if e.kind == "direct"]
        assert kinds == ["i1.summary"]
        model: Any = app.services.catalog.provider("ScriptedModel")
        assert [text[:4] for text in sent(model)] == ["Summ", "look", "", "1 wo", "2 wo"]


async def test_a_window_sends_no_summaries() -> None:
    async with make_app("memory://") as app:
        await chatted(app, 4)
        model: Any = app.services.catalog.provider("ScriptedModel")
        await app.session("chat", history=Window(tokens=400)).turn("on", timeout="10s")
        assert not any("Summary" in text for text in sent(model))


async def test_sessions_of_processes_have_long_chats_too() -> None:
    app = make_app("memory://")

    @app.process
    async def talk(ctx: ProcessContext[None]) -> str:
        session = ctx.session("chat", history=Window(tokens=10))
        await session.turn(LONG)
        return (await session.turn("b")).text

    async with app:
        assert await (await app.start(talk)).result(timeout="10s") == "Heard 1."


async def test_long_chats_need_no_journal() -> None:
    async with make_app("memory://", host=InlineHost()) as app:
        assert await chatted(app) == [STORY, 9 + 2]
