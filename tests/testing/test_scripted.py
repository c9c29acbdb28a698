"""The scripted model."""

from __future__ import annotations

import asyncio

import pytest

from pylash.testing import ScriptedModel, call, calls, code, fail, say
from pylash.turn.messages import SystemMessage, Text, Usage, UserMessage
from pylash.turn.requests import CallRequest, Delta, ModelReply, ModelRequest, Provider
from pylash.values.turn_errors import ProviderError


def asked(
    number: int = 0, text: str = "Where is order 7?", session: str = "chat-42"
) -> ModelRequest:
    return ModelRequest(
        messages=(SystemMessage("Be kind."), UserMessage((Text(text),))),
        call_number=number,
        session_id=session,
    )


def deaf(delta: Delta) -> None:
    """Listen to nothing."""


async def answer(model: ScriptedModel, request: ModelRequest) -> ModelReply:
    return await model.respond(request, deaf)


def test_it_is_a_provider() -> None:
    assert isinstance(ScriptedModel([]), Provider)


async def test_the_reply_is_chosen_by_the_calls_committed_before() -> None:
    model = ScriptedModel([say("one"), say("two")])
    texts = [(await answer(model, asked(number))).text for number in (1, 1, 0)]
    assert texts == ["two", "two", "one"]


async def test_a_call_asks_for_a_tool_with_its_arguments() -> None:
    reply = await answer(ScriptedModel([call("lookup", order_id="7", tool="x")]), asked())
    assert reply.calls == (CallRequest("lookup", {"order_id": "7", "tool": "x"}, "call-0-0"),)
    assert (reply.text, reply.finish_reason) == ("", "tool_calls")


async def test_several_calls_are_one_reply_with_its_text() -> None:
    script = [calls(say("Both."), call("lookup", order="7"), call("refund", cents=3))]
    reply = await answer(ScriptedModel(script), asked())
    assert reply.text == "Both."
    assert [(c.tool, c.arguments, c.provider_id) for c in reply.calls] == [
        ("lookup", {"order": "7"}, "call-0-0"),
        ("refund", {"cents": 3}, "call-0-1"),
    ]


async def test_code_is_a_fenced_block() -> None:
    script = [code("\n    x = 1\n    finish x\n"), code("print(1)", language="python")]
    model = ScriptedModel(script)
    assert (await answer(model, asked())).text == "```lashlang\nx = 1\nfinish x\n```"
    assert (await answer(model, asked(1))).text == "```python\nprint(1)\n```"


@pytest.mark.parametrize("retryable", [True, False])
async def test_a_failure_is_the_provider_s(retryable: bool) -> None:
    model = ScriptedModel([fail("The model is overloaded.", retryable=retryable)])
    with pytest.raises(ProviderError) as caught:
        await answer(model, asked())
    assert caught.value.message == "The model is overloaded."
    assert caught.value.retryable is retryable


async def test_a_script_that_ran_out_shows_the_request() -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(ScriptedModel([say("one"), say("two")]), asked(2))
    assert caught.value.message == (
        "The script ran out: it has 2 replies, and this is model call number 3 of session 'chat-42'."
    )
    assert not caught.value.retryable


async def test_a_function_answers_by_the_request() -> None:
    def plain(request: ModelRequest) -> ModelReply:
        return say(request.messages[-1].text.upper())

    async def slow(request: ModelRequest) -> ModelReply:
        await asyncio.sleep(0)
        return say(f"call {request.call_number}")

    assert (await answer(ScriptedModel(plain), asked(text="hello"))).text == "HELLO"
    assert (await answer(ScriptedModel(slow), asked(7))).text == "call 7"


def test_an_invalid_reply_is_refused_when_the_script_is_written() -> None:
    with pytest.raises(
        ProviderError, match="Reply 2 of the script is function: make replies with say"
    ):
        ScriptedModel([say("Hi."), lambda _: say("Ho.")])  # type: ignore[list-item]


async def test_a_function_without_a_reply_is_an_error() -> None:
    model = ScriptedModel(lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ProviderError, match="returned NoneType: make replies with say, call"):
        await answer(model, asked())


async def test_every_request_is_kept() -> None:
    model = ScriptedModel([say("one"), fail("no")])
    await answer(model, asked())
    with pytest.raises(ProviderError):
        await answer(model, asked(1, "And order 8?"))
    assert [(r.call_number, r.messages[-1].role, r.messages[-1].text) for r in model.requests] == [
        (0, "user", "Where is order 7?"),
        (1, "user", "And order 8?"),
    ]


async def test_reasoning_and_text_are_streamed_in_small_pieces() -> None:
    heard: list[Delta] = []
    model = ScriptedModel([say("Order seven  ships\ntoday.", reasoning="He is in a hurry.")])
    reply = await model.respond(asked(), heard.append)
    assert heard == [
        Delta("He is in", "reasoning"),
        Delta(" a hurry", "reasoning"),
        Delta(".", "reasoning"),
        Delta("Order se"),
        Delta("ven  shi"),
        Delta("ps\ntoday"),
        Delta("."),
    ]
    assert (reply.text, reply.reasoning) == ("Order seven  ships\ntoday.", "He is in a hurry.")


async def test_others_go_on_while_it_speaks() -> None:
    heard: list[Delta] = []
    model = ScriptedModel([say("one two three four five six seven eight " * 10)])
    async with asyncio.TaskGroup() as group:
        speaking = group.create_task(model.respond(asked(), heard.append))
        for _ in range(3):
            await asyncio.sleep(0)
        assert 0 < len(heard) < 30
        await speaking


async def test_words_are_tokens() -> None:
    model = ScriptedModel([say("It ships today.", reasoning="He waits."), call("lookup", id=7)])
    assert (await answer(model, asked())).usage == Usage(1, 4, 5)
    assert (await answer(model, asked(1))).usage == Usage(1, 4, 2)


async def test_a_reply_with_usage_keeps_it() -> None:
    told = ModelReply(text="x", usage=Usage(1, 100, 200, 0.5), model="m", finish_reason="length")
    reply = await answer(ScriptedModel([told]), asked())
    assert reply == told
