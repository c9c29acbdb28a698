"""Conversations with pydantic-ai agents, and answers that people give."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, RunContext, TextOutput
from pydantic_ai.exceptions import CallDeferred, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from pylash import (
    AgentCallFailed,
    AgentNotDurable,
    Lash,
    LashError,
    ProcessContext,
    Retry,
    WorkerConfig,
)
from pylash.integrations.pydantic_ai import answered, durable, sessions
from pylash.integrations.pydantic_ai.sessions import TURNS_PER_JOURNAL
from pylash.testing import LashHarness
from tests.backends import eventually
from tests.integrations.agents import asked, ran, returns
from tests.integrations.crash_apps import make_chat_app


class Heard(BaseModel):
    prompts: list[str]
    mood: str = "calm"


def listener() -> Agent[str, Heard]:
    """Return the questions so far; fail if the question demands it."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts = asked(messages)
        ran[prompts[-1]] += 1
        if prompts[-1] == "fail":
            raise ModelHTTPError(400, "m")
        given = {"prompts": prompts, "mood": info.instructions or "calm"}
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, given)])

    agent = Agent(FunctionModel(reply), name="listener", output_type=Heard, deps_type=str)

    @agent.instructions
    def mood(ctx: RunContext[str]) -> str:
        return ctx.deps

    return agent


async def test_turns_of_a_conversation_see_the_ones_before_also_after_a_restart(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    app = Lash(url, deps="glad")
    chats = sessions(app, listener())
    async with app:
        first = await chats("ann").turn("one", turn_id="t1", timeout="10s")
        assert first.output == Heard(prompts=["one"], mood="glad")
        assert (await chats("bob").turn("other", timeout="10s")).output.prompts == ["other"]
    app = Lash(url, deps="sad")
    chats = sessions(app, durable(listener()))
    async with app:
        again = await chats("ann").turn("one", turn_id="t1", timeout="10s")
        assert again.output == first.output
        second = await chats("ann").turn("two", timeout="10s")
        assert second.output == Heard(prompts=["one", "two"], mood="sad")
        assert second.usage.requests == 1
        assert len(second.messages) == len(first.messages)
        assert asked(await chats("ann").history()) == ["one", "two"]
        with pytest.raises(LashError, match="another event under the key"):
            await chats("ann").turn("changed", turn_id="t1")
    assert ran == {"one": 1, "other": 1, "two": 1}


async def test_questions_are_answered_one_after_another(lash: LashHarness) -> None:
    chats = sessions(lash.app, listener())
    await lash.restart()
    chat = chats("c")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(chat.turn(f"{n}", timeout="20s")) for n in range(5)]
    longest = max((task.result().output.prompts for task in tasks), key=len)
    assert sorted(longest) == ["0", "1", "2", "3", "4"]
    lengths = sorted(len(task.result().output.prompts) for task in tasks)
    assert lengths == [1, 2, 3, 4, 5]


async def test_a_turn_that_fails_raises_and_leaves_the_conversation_as_it_was(
    lash: LashHarness,
) -> None:
    chats = sessions(lash.app, listener())
    await lash.restart()
    chat = chats("c")
    await chat.turn("one", timeout="10s")
    for _ in range(2):
        with pytest.raises(ModelHTTPError) as caught:
            await chat.turn("fail", turn_id="bad", timeout="10s")
        assert caught.value.status_code == 400
    assert (await chat.turn("two", timeout="10s")).output.prompts == ["one", "two"]
    assert ran["fail"] == 1


class Panic(BaseException):
    """What an extension raises that is no Exception."""


class Unprintable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [ValueError("caf\udce9.txt"), Panic("out of memory"), Unprintable()],
    ids=["half", "panic", "unprintable"],
)
@pytest.mark.parametrize("place", ["instructions", "output validator"])
async def test_a_turn_may_fail_with_any_exception_and_the_next_one_goes_on(
    error: BaseException, place: str
) -> None:
    failing: list[str] = []
    agent = Agent(TestModel(custom_output_text="fine"), name="odd")

    @agent.instructions
    def instructions() -> str:
        if "instructions" in failing:
            raise error
        return "Answer."

    @agent.output_validator
    def validated(output: str) -> str:
        if "output validator" in failing:
            raise error
        return output

    app = Lash("memory://")
    chats = sessions(app, agent)
    async with app:
        for failing[:] in ([], [place], []):
            turn = chats("c").turn("hi", timeout="5s")
            if failing:
                with pytest.raises((AgentCallFailed, type(error))):
                    await turn
            else:
                assert (await turn).output == "fine"


async def test_a_model_that_raises_the_end_of_a_loop_is_asked_once(lash: LashHarness) -> None:
    calls: list[int] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls.append(len(messages))
        raise StopAsyncIteration("x")

    chats = sessions(lash.app, Agent(FunctionModel(reply), name="ends"))
    await lash.restart()
    with pytest.raises(AgentCallFailed, match="x"):
        await chats("c").turn("hi", timeout="5s")
    assert calls == [1]


async def test_a_long_conversation_goes_on_in_a_new_journal(lash: LashHarness) -> None:
    chats = sessions(lash.app, listener())
    await lash.restart()
    chat = chats("c")
    for n in range(TURNS_PER_JOURNAL + 2):
        turn = await chat.turn(f"{n}", timeout="10s")
    assert len(turn.output.prompts) == TURNS_PER_JOURNAL + 2
    effects = await lash.app.process_handle(chat.process_id).timeline()
    assert len(effects) < 3 * TURNS_PER_JOURNAL
    assert len(asked(await chat.history())) == TURNS_PER_JOURNAL + 2


async def test_a_question_that_takes_too_long_is_answered_later(lash: LashHarness) -> None:
    gate = asyncio.Event()

    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        ran["model"] += 1
        await gate.wait()
        return ModelResponse(parts=[TextPart("late")])

    chats = sessions(lash.app, Agent(FunctionModel(reply), name="slow"))
    await lash.restart()
    with pytest.raises(TimeoutError, match="'t' has not ended in"):
        await chats("c").turn("go", turn_id="t", timeout="50ms")
    gate.set()
    assert (await chats("c").turn("go", turn_id="t", timeout="10s")).output == "late"
    assert ran["model"] == 1


def test_an_output_that_is_no_type_is_refused() -> None:
    def size(text: str) -> int:
        return len(text)

    agent: Agent[None, int] = Agent(TestModel(), name="a", output_type=TextOutput(size))
    with pytest.raises(AgentNotDurable, match="is not a type"):
        sessions(Lash("memory://"), agent)


# --- answers ---


def clerk() -> Agent[None, str | DeferredToolRequests]:
    """Request a refund, which needs an approval, and a parcel's place, which is deferred; then report both."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        found = returns(messages)
        if found:
            return ModelResponse(parts=[TextPart(f"{found}")])
        parts = [
            ToolCallPart("refund", {"cents": 5}, tool_call_id="r"),
            ToolCallPart("locate", {}, tool_call_id="l"),
        ]
        return ModelResponse(parts=parts)

    agent: Agent[None, str | DeferredToolRequests] = Agent(
        FunctionModel(reply), name="clerk", output_type=[str, DeferredToolRequests]
    )

    @agent.tool_plain(requires_approval=True)
    async def refund(cents: int) -> str:
        ran["refund"] += 1
        return f"refunded {cents}"

    @agent.tool_plain
    async def locate() -> str:
        raise CallDeferred

    return agent


YES_TO_LESS = {"approved": True, "arguments": {"cents": 3}}


@pytest.mark.parametrize(
    ("approval", "place", "told"),
    [
        (True, "Rome", "['refunded 5', 'Rome']"),
        (YES_TO_LESS, {"city": "Rome"}, "['refunded 3', {'city': 'Rome'}]"),
        (False, None, "['The tool call was denied.', None]"),
        ({"approved": False, "reason": "Used."}, "Rome", "['Used.', 'Rome']"),
    ],
)
async def test_deferred_calls_are_waits_that_outlive_a_restart(
    lash: LashHarness, approval: Any, place: Any, told: str
) -> None:
    agent = durable(clerk())

    @lash.app.process
    async def serve(ctx: ProcessContext[None]) -> str:
        result = await agent.run("Help.")
        while isinstance(result.output, DeferredToolRequests):
            answers = await answered(ctx, result.output)
            history = result.all_messages()
            result = await agent.run(message_history=history, deferred_tool_results=answers)
        return result.output

    async def both() -> bool:
        return len(await lash.app.waits()) == 2

    await lash.app.start(serve.options(id="s"))
    await eventually(both)
    app = await lash.restart()
    await lash.advance("6d")
    waits = {wait.tool: wait for wait in await app.waits()}
    assert (waits["refund"].kind, waits["refund"].arguments) == ("approval", {"cents": 5})
    with pytest.raises(LashError, match="an approval is answered with"):
        await app.resolve(waits["refund"].key, "yes")
    await app.resolve(waits["refund"].key, approval)
    await app.resolve(waits["locate"].key, place)
    assert await app.process_handle("s").result(timeout="10s") == told


async def test_what_nobody_answers_is_denied_and_failed_in_time(lash: LashHarness) -> None:
    agent = durable(clerk())

    @lash.app.process
    async def serve(ctx: ProcessContext[None]) -> str:
        first = await agent.run("Help.")
        assert isinstance(first.output, DeferredToolRequests)
        answers = await answered(ctx, first.output, timeout="1d")
        last = await agent.run(message_history=first.all_messages(), deferred_tool_results=answers)
        return str(last.output)

    handle = await lash.app.start(serve)

    async def both() -> bool:
        return len(await lash.app.waits()) == 2

    await eventually(both)
    (locate,) = [wait for wait in await lash.app.waits() if wait.tool == "locate"]
    await lash.app.resolve(locate.key, error="It is lost.")
    await lash.advance("25h")
    told = await handle.result(timeout="10s")
    assert told == "['Nobody approved it in time.', 'It is lost.']"
    assert "refund" not in ran


async def test_an_approval_is_valid_for_one_call_even_if_its_id_is_repeated(tmp_path: Path) -> None:
    app = make_chat_app(f"sqlite:///{tmp_path}/chat.db")

    async def refunded(answer: bool) -> str:
        async def decided() -> bool:
            for wait in await app.waits():
                if wait.kind == "approval":
                    await app.resolve(wait.key, answer)
            return asking.done()

        async with asyncio.TaskGroup() as group:
            turn = app.chats("c").turn("Refund order 7", timeout="10s")  # type: ignore[attr-defined]
            asking = group.create_task(turn)
            await eventually(decided)
        return str(asking.result().output)

    async with app:
        assert (await refunded(True)).endswith("['refunded 7']")
        assert (await refunded(False)).endswith("['refunded 7', 'The tool call was denied.']")
    assert ran["refund 7"] == 1


# --- a worker's room ---


async def test_an_agent_that_waits_to_ask_again_leaves_its_worker_room_and_memory(
    tmp_path: Path,
) -> None:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        ran["model"] += 1
        if ran["model"] == 1:
            raise ModelHTTPError(408, "m")
        return ModelResponse(parts=[TextPart("done")])

    agent = durable(
        Agent(FunctionModel(reply), name="a"), retry=Retry(2, delay="400ms", jitter=False)
    )
    config = WorkerConfig(concurrency=1, park_after="10ms")
    async with Lash(f"sqlite:///{tmp_path}/room.db", worker=config) as app:

        @app.process
        async def patient(ctx: ProcessContext[None]) -> str:
            ran["begun"] += 1
            return (await agent.run("go")).output

        @app.process
        async def quick(ctx: ProcessContext[None]) -> int:
            return ran["model"]

        slow = await app.start(patient)

        async def asked_once() -> bool:
            return ran["model"] == 1

        await eventually(asked_once)
        assert await (await app.start(quick)).result(timeout="5s") == 1  # the only slot was free
        assert await slow.result(timeout="10s") == "done"
    assert ran == {"model": 2, "begun": 2}  # it was dropped, and replayed


async def test_what_the_model_gets_wrong_to_the_end_is_the_agents_own_error(
    lash: LashHarness,
) -> None:
    base = Agent(TestModel(), name="a")

    @base.output_validator
    def never(output: str) -> str:
        raise ModelRetry("No.")

    agent = durable(base)

    @lash.app.process
    async def hopeless(ctx: ProcessContext[None]) -> str:
        with pytest.raises(UnexpectedModelBehavior, match="maximum output retries"):
            await agent.run("go")
        return "given up"

    assert await (await lash.app.start(hopeless)).result(timeout="10s") == "given up"
