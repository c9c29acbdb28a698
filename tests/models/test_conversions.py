"""Converting conversations for models: each stored message once, however long the history is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import messages as wire
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from pylash import AssistantMessage, Attachment, Lash, ToolMessage, UserMessage, Window
from pylash.models.prompts import Conversions, Converted, prompt_of
from pylash.turn import Message, ModelRequest, SystemMessage, Text, ToolCall

MODEL = TestModel()
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Give the messages that are converted, as they are."""
    found: list[Message] = []
    genuine = Converted._convert

    def convert(self: Converted, message: Any) -> None:
        found.append(message)
        genuine(self, message)

    monkeypatch.setattr(Converted, "_convert", convert)
    return found


class Reading:
    """A model of pydantic-ai that reads every message, and calls a tool once a turn."""

    def __init__(self) -> None:
        self.texts: list[list[str]] = []
        self.model = FunctionModel(self.reply)

    async def reply(self, messages: list[wire.ModelMessage], _: AgentInfo) -> wire.ModelResponse:
        parts = [part for message in messages for part in message.parts]
        self.texts.append([str(getattr(part, "content", "")) for part in parts])
        if isinstance(parts[-1], wire.UserPromptPart):
            return wire.ModelResponse([wire.ToolCallPart("look", {}, f"call-{len(parts)}")])
        return wire.ModelResponse([wire.TextPart("Done.")])


def reading_app(model: Reading, url: str = "memory://") -> Lash:
    app = Lash(url, model=model.model, instructions="Help.")

    @app.tool
    async def look() -> str:
        return "found"

    return app


@pytest.mark.parametrize("before", [1, 60])
async def test_a_turn_converts_its_own_messages_however_many_came_before(
    converted: list[Message], before: int
) -> None:
    model = Reading()
    async with reading_app(model) as app:
        session = app.session("chat")
        for number in range(before):
            await session.turn(f"question {number}")
        converted.clear()
        await session.turn("last")
    # The last answer of the turn before, the question, the call, and its result.
    assert [message.role for message in converted] == ["assistant", "user", "assistant", "tool"]
    expected = [text for n in range(before) for text in (f"question {n}", "", "found", "Done.")]
    assert model.texts[-1] == [*expected, "last", "", "found"]


async def test_after_a_restart_everything_is_converted_once(
    converted: list[Message], tmp_path: Path
) -> None:
    model, url = Reading(), f"sqlite:///{tmp_path}/a.db"
    async with reading_app(model, url) as app:
        for number in range(5):
            await app.session("chat").turn(f"question {number}")
    converted.clear()
    async with reading_app(model, url) as app:
        await app.session("chat").turn("again")
        assert len(converted) == 5 * 4 + 3
        converted.clear()
        await app.session("chat").turn("last")
    assert len(converted) == 4


async def test_a_window_that_moves_is_converted_anew(converted: list[Message]) -> None:
    model = Reading()
    async with reading_app(model) as app:
        session = app.session("chat", history=Window(tokens=60))
        for number in range(6):
            await session.turn(f"question {number}")
        converted.clear()
        await session.turn("last")
    assert model.texts[-1][-3:] == ["last", "", "found"]
    assert "question 0" not in model.texts[-1]
    assert len(converted) < 12


async def test_a_fork_and_its_origin_are_told_apart(converted: list[Message]) -> None:
    model = Reading()
    async with reading_app(model) as app:
        await app.session("chat").turn("first")
        fork = await app.session("chat").fork("other")
        await fork.turn("left")
        await app.session("chat").turn("right")
        assert "left" not in model.texts[-1]
        converted.clear()
        await fork.turn("left again")
        assert "right" not in model.texts[-1]
    assert len(converted) == 4


# --- the cache itself ---


def request(*messages: Message, session_id: str = "chat") -> ModelRequest:
    return ModelRequest(messages=[SystemMessage("Help."), *messages], session_id=session_id)


def user(text: str) -> UserMessage:
    return UserMessage((Text(text),))


SAID: list[Message] = [user("a"), AssistantMessage("b"), user("c")]


def plain(messages: list[wire.ModelMessage]) -> list[Any]:
    """Return messages without the times at which they were made."""
    found: list[Any] = wire.ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    for message in found:
        message.pop("timestamp", None)
        for part in message["parts"]:
            part.pop("timestamp", None)
    return found


messages = st.one_of(
    st.builds(user, st.sampled_from(["a", "b"])),
    st.builds(
        AssistantMessage,
        st.sampled_from(["", "said"]),
        st.lists(
            st.builds(
                ToolCall,
                st.sampled_from(["c0", "c1"]),
                st.just("look"),
                st.just({}),
                st.sampled_from([None, "p1", "p2"]),
            ),
            max_size=2,
            unique_by=lambda call: call.id,
        ).map(tuple),
        interrupted=st.booleans(),
    ),
    st.builds(ToolMessage, st.sampled_from(["c0", "c1"]), st.just("look"), st.just("found")),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(messages, max_size=4), min_size=1, max_size=5))
async def test_a_conversation_that_grew_is_what_it_would_be_at_once(
    pieces: list[list[Message]],
) -> None:
    known, said, earlier = Conversions(), list[Message](), list[tuple[Any, Any]]()
    for piece in pieces:
        said += piece
        if not said:
            continue
        grown = (await prompt_of(request(*said), MODEL, known)).messages
        fresh = (await prompt_of(request(*said), MODEL, Conversions())).messages
        assert plain(grown) == plain(fresh)
        earlier.append((grown, copy.deepcopy(plain(grown))))
    for handed_out, then in earlier:
        assert plain(handed_out) == then  # nothing of it was changed since


async def test_the_oldest_conversations_are_let_go_of(converted: list[Message]) -> None:
    known = Conversions(most=6)
    for session_id in ("one", "two", "three", "two", "three"):
        await prompt_of(request(*SAID, session_id=session_id), MODEL, known)
    assert len(converted) == 9
    await prompt_of(request(*SAID, session_id="one"), MODEL, known)
    assert len(converted) == 12


async def test_a_conversation_that_is_too_long_for_the_cache_is_kept_while_it_is_the_last(
    converted: list[Message],
) -> None:
    known = Conversions(most=1)
    for _ in range(3):
        await prompt_of(request(*SAID), MODEL, known)
    assert len(converted) == 3


@pytest.mark.parametrize(
    "message",
    [
        UserMessage((Attachment(PNG, "image/png"),)),
        AssistantMessage("A cat.", attachments=(Attachment(PNG, "image/png"),)),
    ],
    ids=lambda message: message.role,
)
async def test_bytes_are_not_kept(converted: list[Message], message: Message) -> None:
    known = Conversions()
    for _ in range(2):
        await prompt_of(request(user("a"), message, user("b")), MODEL, known)
    assert len(converted) == 6


async def test_questions_outside_of_sessions_are_not_kept(converted: list[Message]) -> None:
    known = Conversions()
    for _ in range(2):
        await prompt_of(request(user("a"), session_id=""), MODEL, known)
    assert len(converted) == 2
