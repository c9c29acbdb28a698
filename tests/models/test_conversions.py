"""Converting conversations for models: each stored message once, however long the history is."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import messages as wire
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from pylash import (
    AssistantMessage,
    Attachment,
    Lash,
    Summarise,
    ToolMessage,
    UserMessage,
    Window,
    WorkerConfig,
)
from pylash.models import model_call
from pylash.models.prompts import Conversions, Converted, Prompt, prompt_of
from pylash.tools.plugins import SessionPlugin, TurnView
from pylash.turn.messages import Message, SystemMessage, Text, ToolCall
from pylash.turn.requests import ModelRequest

MODEL = TestModel()
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Give the messages that are converted, as they are."""
    found: list[Message] = []
    genuine = Converted.add

    def add(self: Converted, stored: Any) -> None:
        found.extend(stored)
        genuine(self, stored)

    monkeypatch.setattr(Converted, "add", add)
    return found


class Reading:
    """A model of pydantic-ai that reads every message, and calls a tool once a turn."""

    def __init__(self) -> None:
        self.texts: list[list[str]] = []
        self.model = FunctionModel(self.reply)

    async def reply(self, messages: list[wire.ModelMessage], _: AgentInfo) -> wire.ModelResponse:
        parts = [part for message in messages for part in message.parts]
        self.texts.append([str(getattr(part, "content", "")) for part in parts])
        if isinstance(messages[-1].parts[0], wire.UserPromptPart):
            return wire.ModelResponse([wire.ToolCallPart("look", {}, f"call-{len(parts)}")])
        return wire.ModelResponse([wire.TextPart("Done.")])


async def look() -> str:
    return "found"


def reading_app(model: Reading, url: str = "memory://", **options: Any) -> Lash:
    app = Lash(url, model=model.model, instructions="Help.", **options)
    app.tool(look)
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


async def test_a_fork_and_its_origin_are_converted_separately(converted: list[Message]) -> None:
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


# --- histories that are edited, cut and shared ---


@pytest.fixture
def wrong(converted: list[Message], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Give the requests whose conversation is not the one that a model without a cache would get."""
    found: list[Any] = []

    async def compared(asked: ModelRequest, model: Any, known: Conversions) -> Prompt:
        prompt = await prompt_of(asked, model, known)
        alone = msgspec.structs.replace(asked, messages=[*asked.messages])
        count = len(converted)
        fresh = await prompt_of(alone, model, Conversions())
        del converted[count:]  # only for the comparison
        if plain(prompt.messages) != plain(fresh.messages) or prompt.parameters != fresh.parameters:
            found.append(asked)
        return prompt

    monkeypatch.setattr(model_call, "prompt_of", compared)
    return found


async def test_a_model_may_change_the_list_that_it_is_given(
    converted: list[Message], wrong: list[Any]
) -> None:
    class Rude(Reading):
        async def reply(self, messages: Any, info: AgentInfo) -> wire.ModelResponse:
            answer = await super().reply(messages, info)
            messages.reverse()
            del messages[1:]
            return answer

    model = Rude()
    async with reading_app(model) as app:
        for number in range(3):
            await app.session("chat").turn(f"question {number}")
        converted.clear()
        await app.session("chat").turn("last")
    expected = [text for n in range(3) for text in (f"question {n}", "", "found", "Done.")]
    assert model.texts[-1] == [*expected, "last", "", "found"]
    assert (len(converted), wrong) == (4, [])


async def test_a_model_may_keep_the_lists_that_it_was_given(wrong: list[Any]) -> None:
    class Keeping(Reading):
        kept: ClassVar[list[Any]] = []

        async def reply(self, messages: Any, info: AgentInfo) -> wire.ModelResponse:
            self.kept.append((messages, [*messages]))
            return await super().reply(messages, info)

    model = Keeping()
    async with reading_app(model) as app:
        for number in range(4):
            await app.session("chat").turn(f"question {number}")
    assert [len(now) for now, _ in model.kept] == [1, 3, 5, 7, 9, 11, 13, 15]
    assert all(now == then for now, then in model.kept)
    assert wrong == []


class Slow(Reading):
    """Answers a text that asks it to wait only when it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = asyncio.Event()

    async def reply(self, messages: Any, info: AgentInfo) -> wire.ModelResponse:
        answer = await super().reply(messages, info)
        if self.texts[-1][-1] == "wait":
            self.waiting.set()
            await asyncio.Event().wait()
        return answer


async def test_a_turn_after_a_cancelled_one_continues_it(
    converted: list[Message], wrong: list[Any]
) -> None:
    model = Slow()
    async with reading_app(model) as app:
        session = app.session("chat")
        await session.turn("first")
        async with asyncio.TaskGroup() as group:
            turn = group.create_task(session.turn("wait"))
            await model.waiting.wait()
            await session.cancel()
        assert turn.result().status == "cancelled"
        converted.clear()
        await session.turn("last")
    assert model.texts[-1] == ["first", "", "found", "Done.", "wait", "last", "", "found"]
    assert ([message.role for message in converted], wrong) == (["user", "assistant", "tool"], [])


class Aside(SessionPlugin):
    """Says something at every checkpoint."""

    async def checkpoint(self, turn: TurnView) -> list[str]:
        return [f"aside {turn.iteration}"]


class Asides:
    """Builds it."""

    name = "asides"

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        return Aside()


async def test_messages_of_plugins_and_changed_instructions_are_in_their_place(
    converted: list[Message], wrong: list[Any]
) -> None:
    model = Reading()
    async with Lash("memory://", model=model.model, plugins=[Asides()]) as app:
        app.tool(look)
        await app.session("chat", instructions="One.").turn("first")
        converted.clear()
        await app.session("chat", instructions="Two.").turn("last")
    once = ["aside 0", "", "found", "aside 1"]
    assert model.texts[-1] == ["first", *once, "Done.", "last", *once]
    assert (len(converted), wrong) == (6, [])


async def test_limits_that_come_and_go_send_what_they_should(
    tmp_path: Path, wrong: list[Any]
) -> None:
    model, url = Reading(), f"sqlite:///{tmp_path}/a.db"
    limits = [None, Window(tokens=40), Window(), Summarise(tokens=60), Window(tokens=80), Window()]
    async with reading_app(model, url) as app:
        for number, limit in enumerate([*limits, *limits]):
            await app.session("chat", history=limit).turn(f"question {number}")
        history = await app.session("chat").history()
    assert wrong == []
    async with reading_app(model, url) as app:
        assert await app.session("chat").history() == history
    assert [text for text in model.texts[-1] if text.startswith("question")] == [
        f"question {number}" for number in range(12)
    ]


async def test_a_session_that_was_deleted_leaves_nothing_to_its_successor(
    wrong: list[Any],
) -> None:
    model = Reading()
    async with reading_app(model) as app:
        for asked in ("first", "second"):
            await app.session("chat").turn(asked)
        await app.session("chat").delete()
        await app.session("chat").turn("first")  # it begins in the same way
        await app.session("chat").turn("other")
    assert model.texts[-1] == ["first", "", "found", "Done.", "other", "", "found"]
    assert wrong == []


@pytest.mark.parametrize("residency", ["keep_all", "active_path_only"])
async def test_turns_of_another_worker_are_converted_once(
    converted: list[Message], wrong: list[Any], tmp_path: Path, residency: Any
) -> None:
    model, url = Reading(), f"sqlite:///{tmp_path}/a.db"
    async with (
        reading_app(model, url, worker=WorkerConfig(residency=residency)) as app,
        reading_app(model, url, worker=WorkerConfig(residency=residency)) as other,
    ):
        for number in range(3):
            await app.session("chat").turn(f"one {number}")
            await other.session("chat").turn(f"two {number}")
        converted.clear()
        await app.session("chat").turn("last")
    asked = [text for text in model.texts[-1] if text and text not in ("found", "Done.")]
    assert asked == ["one 0", "two 0", "one 1", "two 1", "one 2", "two 2", "last"]
    # The last answer of its own turn, the turn of the other, and three messages of this one.
    assert (len(converted), wrong) == (1 + 4 + 3, [])


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
