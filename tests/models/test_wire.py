"""Turns over the vendors' own clients and wire formats."""

from __future__ import annotations

import asyncio
import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import BaseModel

from pylash import (
    AssistantMessage,
    Attachment,
    Lash,
    ModelReply,
    ProcessContext,
    Summarise,
    Text,
    ToolContext,
    ToolMessage,
    TurnEvent,
    TurnResult,
)
from pylash.testing import ScriptedModel, SimClock
from tests.models.wire import (
    DIALECTS,
    KEY,
    Anthropic,
    Call,
    Chat,
    Google,
    Responses,
    Say,
    Send,
    WireServer,
    sse,
)
from tests.sessions.scenes import comes_to

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


class Verdict(BaseModel):
    refund: bool
    cents: int


def shop(server: WireServer, store: str = "memory://", **options: Any) -> Lash:
    app = Lash(store, model=server.dialect.model, instructions="You help a shop.", **options)

    @app.tool
    async def lookup(order_id: str) -> str:
        """Find an order."""
        return f"order {order_id} is packed"

    return app


def lookup(call_id: str = "call_1", arguments: str = '{"order_id": "7"}') -> Call:
    return Call(call_id, "lookup", [arguments[:5], arguments[5:]])


# --- what is carried ---


async def test_a_turn_with_a_tool_crosses_the_wire_both_ways(server: WireServer) -> None:
    server.replies = [Say(["Let me ", "look."], [lookup()]), Say(["It is ", "packed."])]
    async with shop(server) as app:
        session = app.session("chat")
        heard: list[TurnEvent] = []
        async with session.stream("Where is order 7?") as stream:
            heard = [event async for event in stream]
        assert stream.result.text == "It is packed."
        first = (await session.history())[1]
    assert isinstance(first, AssistantMessage)
    assert first.finish_reason == "tool_calls"
    assert first.calls[0].arguments == {"order_id": "7"}
    assert first.calls[0].provider_id == "call_1"
    pieces = [event.text for event in heard if event.type == "text_delta"]
    assert pieces == ["Let me ", "look.", "It is ", "packed."]
    assert server.transcript() == [
        ("system", "You help a shop."),
        ("user", "Where is order 7?"),
        ("assistant", "Let me look."),
        ("call", "call_1", "lookup", {"order_id": "7"}),
        ("result", "call_1", "order 7 is packed"),
    ]
    usage = stream.result.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (2, 40, 14)
    assert usage.cache_read_tokens == 10
    assert usage.cost > 0


async def test_calls_made_at_once_are_answered_in_their_order(server: WireServer) -> None:
    both = [lookup("call_1"), lookup("call_2", '{"order_id": "8"}')]
    server.replies = [Say(calls=both), Say(["Both."])]
    async with shop(server) as app:
        assert (await app.session("chat").turn("7 and 8?")).text == "Both."
    assert [part for part in server.transcript() if part[0] in ("call", "result")] == [
        ("call", "call_1", "lookup", {"order_id": "7"}),
        ("call", "call_2", "lookup", {"order_id": "8"}),
        ("result", "call_1", "order 7 is packed"),
        ("result", "call_2", "order 8 is packed"),
    ]


@pytest.mark.parametrize("server", DIALECTS[:3], indirect=True, ids=lambda d: d.name)
async def test_arguments_that_are_no_json_are_answered_and_the_model_tries_again(
    server: WireServer,
) -> None:
    server.replies = [Say(calls=[lookup(arguments='{"order_id": "7')]), Say(calls=[lookup("c2")])]
    server.replies.append(Say(["It is packed."]))
    async with shop(server) as app:
        session = app.session("chat")
        assert (await session.turn("Where is order 7?")).text == "It is packed."
        asked, told = (await session.history())[1:3]
    assert isinstance(asked, AssistantMessage)
    assert asked.calls[0].arguments == '{"order_id": "7'
    assert isinstance(told, ToolMessage)
    assert told.error
    assert "JSON" in told.text
    call, result = server.transcript(1)[2:]
    assert call == ("call", "call_1", "lookup", {"INVALID_JSON": '{"order_id": "7'})
    assert result[:2] == ("result", "call_1")
    assert "JSON" in json.dumps(result[2])


async def test_a_failed_tool_is_sent_as_a_failure(server: WireServer) -> None:
    server.replies = [Say(calls=[Call("call_1", "nothing", ["{}"])]), Say(["Sorry."])]
    async with shop(server) as app:
        await app.session("chat").turn("Go")
    sent = json.dumps(server.heard[1].body)
    told = {"anthropic": '"is_error": true', "google": '{"error"'}
    assert told.get(server.dialect.name, '\\"error\\"') in sent


@pytest.mark.proves("T5")
async def test_pictures_go_out_whole_from_people_and_from_tools(
    server: WireServer, tmp_path: Path
) -> None:
    server.replies = [Say(calls=[Call("call_1", "chart", ["{}"])]), Say(["A cat."])]
    app = shop(server, f"sqlite:///{tmp_path}/a.db")

    @app.tool
    async def chart(ctx: ToolContext[None]) -> Attachment:
        """Draw a chart."""
        return ctx.attach(PNG + b"chart", "image/png")

    async with app:
        result = await app.session("a").turn([Text("What is it?"), Attachment(PNG, "image/png")])
    assert result.text == "A cat."
    sent = json.dumps(server.heard[1].body)
    assert sent.count("iVBORw0KGgo") == 2  # how a PNG begins in base64


async def test_a_structured_answer_alone_uses_what_the_provider_has_for_it(
    server: WireServer,
) -> None:
    server.replies = [Say(['{"refund": true, ', '"cents": 500}']), Say(['{"result": [1, 2]}'])]
    async with Lash("memory://", model=server.dialect.model) as app:
        first = await app.session("a").turn("Refund?", output=Verdict)
        assert first.value == Verdict(refund=True, cents=500)
        second = await app.session("b").turn("Numbers?", output=list[int])
        assert second.value == [1, 2]
    for heard in server.heard:
        assert "jsonschema" in json.dumps(heard.body).replace("_", "").lower()
        assert "tools" not in heard.body or not heard.body["tools"]


async def test_a_structured_answer_beside_tools_is_a_call(server: WireServer) -> None:
    server.replies = [
        Say(calls=[lookup()]),
        Say(calls=[Call("c2", "final_result", ['{"result": 7}'])]),
    ]
    async with shop(server) as app:
        result = await app.session("a").turn("How many?", output=int)
    assert result.value == 7
    body = server.heard[0].body  # Anthropic's models that think cannot be forced to call
    assert "final_result" in json.dumps(body["tools"]) or "json_schema" in json.dumps(body)


async def test_halves_of_characters_in_different_pieces_are_put_together(
    server: WireServer,
) -> None:
    server.replies = [Say(["fine \ud83d", "\ude00", " and \ud83d alone"])]
    async with shop(server) as app:
        result = await app.session("a").turn("Smile")
    assert result.text == "fine \N{GRINNING FACE} and \N{REPLACEMENT CHARACTER} alone"


async def test_an_answer_that_reached_the_limit_has_that_reason(server: WireServer) -> None:
    server.replies = [Say(["It began"], finish="length")]
    async with shop(server) as app:
        session = app.session("a")
        assert (await session.turn("Tell")).text == "It began"
        last = (await session.history())[-1]
    assert isinstance(last, AssistantMessage)
    assert last.finish_reason == "length"


# --- what is kept for the provider ---


@pytest.mark.parametrize("server", [Responses(), Anthropic()], indirect=True, ids=lambda d: d.name)
async def test_reasoning_goes_back_to_the_model_it_came_from(server: WireServer) -> None:
    server.replies = [
        Say(["Let me look."], [lookup()], thinking="An order. Look.", signature="c2lnbmVk"),
        Say(["Packed."]),
    ]
    async with shop(server) as app:
        session = app.session("chat")
        async with session.stream("Where is order 7?") as stream:
            thought = [event.text async for event in stream if event.type == "reasoning_delta"]
        first = (await session.history())[1]
    assert thought == ["An order. Look."]
    assert isinstance(first, AssistantMessage)
    assert first.reasoning == "An order. Look."
    assert server.transcript()[2:5] == [
        ("thinking", "An order. Look.", "c2lnbmVk"),
        ("assistant", "Let me look."),
        ("call", "call_1", "lookup", {"order_id": "7"}),
    ]
    if isinstance(server.dialect, Responses):
        kept = [item["id"] for item in server.heard[1].body["input"] if "id" in item]
        assert "rs_1" in kept


@pytest.mark.proves("T5")
@pytest.mark.parametrize("server", [Google()], indirect=True, ids=lambda d: d.name)
async def test_a_picture_that_a_model_made_is_kept_and_goes_back_to_it(
    server: WireServer, tmp_path: Path
) -> None:
    server.replies = [Say(["A cat:"], pictures=[PNG], signature="c2ln"), Say(["Black, as asked."])]
    async with shop(server, f"sqlite:///{tmp_path}/a.db") as app:
        session = app.session("a")
        drawn = await session.turn("Draw a cat")
        (picture,) = drawn.attachments
        assert (drawn.text, picture.media_type, picture.data) == ("A cat:", "image/png", b"")
        assert await app.attachment(picture) == PNG
        assert (await session.turn("Which colour?")).text == "Black, as asked."
    text, (_, back) = server.transcript()[2:4]
    assert text == ("assistant", "A cat:")
    assert back["inlineData"]["data"] == base64.b64encode(PNG).decode()
    assert back["thoughtSignature"] == "c2ln"


@pytest.mark.parametrize("server", DIALECTS[:3], indirect=True, ids=lambda d: d.name)
async def test_a_picture_is_only_mentioned_to_another_model(server: WireServer) -> None:
    painter = ScriptedModel([ModelReply(attachments=(Attachment(PNG, "image/png"),))])
    async with shop(server) as app:
        app.model("painter", painter)
        await app.session("a", model="painter").turn("Draw a cat")
        server.replies = [Say(["A cat."])]
        asked = app.session("a", model=server.dialect.model)
        assert (await asked.turn("What is it?")).text == "A cat."
    assert server.transcript()[2] == ("assistant", "[A file was made here: image/png.]")
    assert "iVBORw0KGgo" not in json.dumps(server.heard[0].body)


async def test_a_session_changes_its_provider_and_its_history_stays_valid(
    servers: dict[str, WireServer],
) -> None:
    first, second = servers["anthropic"], servers["chat"]
    first.replies = [
        Say(["Let me look."], [lookup("toolu_1")], thinking="Look.", signature="c2lnbmVk"),
        Say(["Packed."]),
    ]
    async with shop(first) as app:
        await app.session("chat").turn("Where is order 7?")
        second.replies = [Say(calls=[lookup("call_9")]), Say(["Still packed."])]
        other = app.session("chat", model=second.dialect.model)
        assert (await other.turn("And now?")).text == "Still packed."
        first.replies = [Say(["Done."])]
        back = app.session("chat", model=first.dialect.model)
        assert (await back.turn("Thanks")).text == "Done."
    assert second.transcript(0) == [
        ("system", "You help a shop."),
        ("user", "Where is order 7?"),
        ("assistant", "Let me look."),
        ("call", "toolu_1", "lookup", {"order_id": "7"}),
        ("result", "toolu_1", "order 7 is packed"),
        ("assistant", "Packed."),
        ("user", "And now?"),
    ]
    assert ("thinking", "Look.", "c2lnbmVk") in first.transcript()
    assert ("result", "call_9", "order 7 is packed") in first.transcript()


async def test_ids_that_a_provider_would_refuse_are_replaced(server: WireServer) -> None:
    odd = [lookup("i1.c0"), lookup("call 2"), lookup("x" * 80), lookup("same")]
    server.replies = [Say(calls=odd), Say(["Done."]), Say(calls=[lookup("same")]), Say(["Done."])]
    async with shop(server) as app:
        await app.session("a").turn("Go")
        await app.session("a").turn("Again")
    parts = server.transcript()
    asked = [part[1] for part in parts if part[0] == "call"]
    assert asked == [part[1] for part in parts if part[0] == "result"]
    assert len(set(asked)) == 5
    assert all(len(one) <= 64 and one.replace("_", "").isalnum() for one in asked)


# --- what goes wrong ---


@pytest.mark.parametrize("end", ["whole", "cut"])
async def test_a_stream_that_stops_in_the_middle_is_asked_for_again(
    server: WireServer, end: Any
) -> None:
    clock = SimClock()
    begun = server.dialect.stream(Say(["It is ", "on fire"]))
    half = begun[: next(n for n, one in enumerate(begun) if b"on fire" in one)]
    server.replies = [Send(half, end=end), Say(["It is packed."])]
    async with shop(server, clock=clock) as app, asyncio.TaskGroup() as group:
        session = app.session("chat")
        async with session.stream("Where?", turn_id="t1") as stream:
            heard = []
            async for event in stream:
                heard.append((event.type, event.text))
                if event == TurnEvent("text_delta", event.correlation_id, text="It is "):
                    group.create_task(clock.advance("1s"))
        assert stream.result.text == "It is packed."
        timeline = await session.timeline("t1")
    told = [kind for kind, _ in heard if kind.startswith("text")]
    assert told == ["text_delta", "text_reset", "text_delta"]
    asked = [effect.name for effect in timeline if effect.kind in ("llm_call", "sleep")]
    assert len(asked) == 3
    assert len(server.heard) == 2


async def test_an_error_in_the_middle_of_a_stream_is_tried_again(server: WireServer) -> None:
    begun = server.dialect.stream(Say(["It is ", "on fire"]))[:4]
    assert await _after(server, Send([*begun, server.dialect.broken])) == ("completed", "Well.", 2)


async def test_a_connection_that_is_closed_without_a_response_is_retried(
    server: WireServer,
) -> None:
    assert await _after(server, Send(end="drop")) == ("completed", "Well.", 2)


async def test_trouble_that_passes_is_tried_again(server: WireServer) -> None:
    clock = SimClock()
    async with shop(server, clock=clock) as app:
        for status in (408, 409, 429, 500, 502, 503, 529):
            server.replies = [server.dialect.error(status, "Not now"), Say(["Well."])]
            assert (await _over(app, clock, f"a{status}")).text == "Well."
    assert len(server.heard) == 14


async def test_trouble_that_stays_fails_the_turn_in_one_sentence(server: WireServer) -> None:
    async with shop(server) as app:
        for status in (400, 401, 403, 404, 413, 422):
            said = f"Not with the key {KEY} or sk-abc123def456, ever"
            server.replies = [server.dialect.error(status, said)]
            result = await app.session(f"a{status}").turn("hi")
            assert (result.status, result.code) == ("failed", "provider_error")
            assert result.error is not None
            assert result.error.startswith(server.dialect.model)
            assert f"({status})" in result.error
            assert result.error.endswith("Not with the key [hidden] or [hidden], ever")
    assert len(server.heard) == 6


@pytest.mark.parametrize("length", [275, 285, 295])
async def test_a_key_that_stands_where_a_message_is_cut_is_hidden_whole(
    server: WireServer, length: int
) -> None:
    encoded = base64.b64encode(f"user:{KEY}".encode()).decode()
    async with shop(server) as app:
        for n, key in enumerate((KEY, quote(KEY, safe=""), f"Basic {encoded}")):
            said = "." * length + f" {key} and so on, at length"
            server.replies = [server.dialect.error(400, said)]
            result = await app.session(f"a{n}").turn("hi")
            assert result.error is not None
            assert KEY[:6] not in result.error
            assert encoded[:6] not in result.error


@pytest.mark.parametrize(("header", "value"), [("retry_after", "30"), ("retry_after_ms", "30000")])
async def test_the_pause_that_a_provider_asks_for_is_kept(
    server: WireServer, header: str, value: str
) -> None:
    assert await _pauses(server, server.dialect.error(429, "Slow down", **{header: value})) == [30]


async def test_a_pause_of_less_than_ours_is_not_made_shorter(server: WireServer) -> None:
    hurry = server.dialect.error(503, "Soon", retry_after="0.5")
    assert await _pauses(server, hurry, hurry, hurry) == [1, 2, 4]


async def test_a_provider_that_wants_to_be_left_alone_for_a_day_fails_the_turn(
    server: WireServer,
) -> None:
    server.replies = [server.dialect.error(429, "Come back tomorrow", retry_after="86400")]
    async with shop(server) as app:
        result = await app.session("a").turn("hi")
    assert result.status == "failed"
    assert "Come back tomorrow" in (result.error or "")


JSON = "application/json"
PAGE = b"<html>Welcome to the hotel</html>"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Send([]), id="an empty stream"),
        pytest.param(Send([], kind=JSON), id="an empty body"),
        pytest.param(Send([b'{"id": "hotel", "choi'], kind=JSON), id="half an object"),
        pytest.param(Send([b"null"], kind=JSON), id="null"),
        pytest.param(Send([b"{}"], kind=JSON), id="an empty object"),
        pytest.param(Send([b'{"id": 5, "choices": 7}'], kind=JSON), id="wrong types"),
        pytest.param(Send([PAGE], kind="text/html"), id="a page"),
        pytest.param(Send([PAGE]), id="a page that claims to be a stream"),
        pytest.param(Send([PAGE], 502, "text/html"), id="a page with status 502"),
        pytest.param(Send([b"\x00\xff\xfe hotel\n\n"]), id="bytes that are no text"),
        pytest.param(Send([b"hotel"], headers={"content-encoding": "gzip"}), id="a wrong encoding"),
        pytest.param(Send([b"data: {not json, hotel}\n\n"]), id="an event that is no JSON"),
        pytest.param(Send([sse("null")]), id="an event that is null"),
        pytest.param(Send([sse("7")]), id="an event that is a number"),
        pytest.param(Send([sse("{}")]), id="an empty event"),
        pytest.param(Send([sse("[DONE]")]), id="an end without a beginning"),
        pytest.param(
            Send([sse({"id": "x", "choices": [], "candidates": []}), sse("[DONE]")]),
            id="an answer without choices",
        ),
        pytest.param(Send([sse({"error": {"message": "Oops"}})]), id="an error without a type"),
        pytest.param(Send([sse({"error": "Oops"})]), id="an error that is a text"),
        pytest.param(Send([sse({"type": "error"}, "error")]), id="an error without a message"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_asked_for_again(
    server: WireServer, reply: Send
) -> None:
    assert await _after(server, reply) == ("completed", "Well.", 2)


@pytest.mark.parametrize("server", [Google()], indirect=True, ids=lambda d: d.name)
async def test_an_answer_that_its_provider_calls_malformed_is_asked_for_again(
    server: WireServer,
) -> None:
    *begun, last = server.dialect.stream(Say(["I look it up."]))
    broken = last.replace(b"STOP", b"MALFORMED_FUNCTION_CALL")
    assert broken != last
    assert await _after(server, Send([*begun, broken])) == ("completed", "Well.", 2)


@pytest.mark.parametrize("end", ["nothing", "half an event", "no JSON", "null", "an error"])
async def test_a_stream_that_breaks_after_any_event_is_asked_for_again(
    server: WireServer, end: str
) -> None:
    whole = server.dialect.stream(Say(["It is ", "packed."]))
    last = next(n for n, one in enumerate(whole) if b"packed" in one)
    clock = SimClock()
    async with shop(server, clock=clock) as app:
        for length in range(1, last + 1):
            tail = {
                "nothing": [],
                "half an event": [whole[length][: len(whole[length]) // 2]],
                "no JSON": [b"data: {oops\n\n"],
                "null": [sse("null")],
                "an error": [server.dialect.broken],
            }[end]
            server.replies = [Send([*whole[:length], *tail]), Say(["Well."])]
            assert (await _over(app, clock, f"a{length}")).text == "Well."
    assert len(server.heard) == 2 * last


@pytest.mark.parametrize(
    "empty",
    [Say(), Say([" \n"]), Say(thinking="Hm.", signature="c2ln")],
    ids=["nothing", "blanks", "a thought"],
)
async def test_an_empty_answer_is_asked_for_again(server: WireServer, empty: Say) -> None:
    assert await _after(server, Send(server.dialect.stream(empty))) == ("completed", "Well.", 2)


async def test_an_empty_answer_after_tool_results_ends_the_turn(server: WireServer) -> None:
    server.replies = [Say(["Look."], [lookup()]), Say()]
    async with shop(server) as app:
        result = await app.session("a").turn("hi")
    assert (result.status, result.text, len(server.heard)) == ("completed", "", 2)


async def test_an_answer_that_has_no_tokens_left_for_itself_fails_the_turn(
    server: WireServer,
) -> None:
    status, said, asked = await _after(server, Send(server.dialect.stream(Say(finish="length"))))
    assert (status, asked) == ("failed", 1)
    assert "limit of output tokens" in said


async def test_answers_that_stay_unreadable_are_recorded_and_fail_the_turn(
    server: WireServer,
) -> None:
    clock = SimClock()
    server.replies = [Send([PAGE], kind="text/html") for _ in range(4)]
    async with shop(server, clock=clock) as app:
        result = await _over(app, clock, "a")
        timeline = await app.session("a").timeline("t1")
    assert (result.status, result.code) == ("failed", "provider_error")
    assert f"{server.dialect.model} sent an answer that cannot be read" in str(result.error)
    assert "hotel" not in str(result.error)
    tried = [effect.kind for effect in timeline if effect.kind in ("llm_call", "sleep")]
    assert tried == ["llm_call", "sleep"] * 3 + ["llm_call"]


HALF = r"\ud800"
"""Half a character, as JSON."""


@pytest.mark.parametrize(
    ("server", "old", "new"),
    [
        (Chat(), '"name": "lookup"', f'"name": "{HALF}"'),
        (Chat(), '"id": "call_1"', '"id": 5'),
        (Chat(), '"model": "gpt-4o-2024-08-06"', '"model": true'),
        (Responses(), '"name": "lookup"', '"name": null'),
        (Responses(), '"name": "lookup"', f'"name": "{HALF}"'),
        (Responses(), '"call_id": "call_1"', '"call_id": 5'),
        (Responses(), '"model": "gpt-5-2025-08-07"', '"model": true'),
        (Responses(), '"encrypted_content": "c2ln"', f'"encrypted_content": "{HALF}"'),
        (Anthropic(), '"id": "call_1"', '"id": 5'),
        (Anthropic(), '"name": "lookup"', '"name": 5'),
        (Anthropic(), '"model": "claude-haiku-5-5"', '"model": true'),
        (Anthropic(), '"signature": "c2ln"', f'"signature": "{HALF}"'),
        (Google(), '"order_id": "7"', f'"order_id": "{HALF}"'),
        (Google(), '"name": "lookup"', f'"name": "{HALF}"'),
    ],
    indirect=["server"],
    ids=lambda one: getattr(one, "name", one),
)
async def test_an_answer_that_cannot_be_stored_is_asked_for_again_and_recorded(
    server: WireServer, old: str, new: str
) -> None:
    whole = server.dialect.stream(Say(["Hm."], [lookup()], thinking="So.", signature="c2ln"))
    broken = Send([event.replace(old.encode(), new.encode()) for event in whole])
    assert list(broken.chunks) != whole
    assert await _after(server, broken) == ("completed", "Well.", 2)
    clock = SimClock()
    server.replies = [broken] * 4
    async with shop(server, clock=clock) as app:
        result = await _over(app, clock, "a")
        timeline = await app.session("a").timeline("t1")
    assert (result.status, result.code) == ("failed", "provider_error")
    assert f"{server.dialect.model} sent an answer that cannot be " in str(result.error)
    tried = [effect.kind for effect in timeline if effect.kind in ("llm_call", "sleep")]
    assert tried == ["llm_call", "sleep"] * 3 + ["llm_call"]


async def test_a_completion_asks_again_for_what_cannot_be_read(
    server: WireServer,
) -> None:
    clock = SimClock()
    app = Lash("memory://", model=server.dialect.model, clock=clock)

    @app.process
    async def title(ctx: ProcessContext[None], text: str) -> str:
        """Find a title."""
        return await ctx.complete(text)

    server.replies = [Send([PAGE], kind="text/html"), Say(), Say(["A title"])]
    async with app, asyncio.TaskGroup() as group:
        started = await app.start(title, "Once")
        found = group.create_task(started.result())
        await clock.advance("1m")
        assert await found == "A title"
    assert len(server.heard) == 3


async def test_subagents_ask_again_for_what_cannot_be_read(server: WireServer) -> None:
    clock = SimClock()
    app = shop(server, clock=clock)
    app.agent("clerk", instructions="You look.")
    app.subagents("clerk")
    async with app:
        call = Call("call_1", "spawn_agent", ['{"agent": "clerk", "task": "Look"}'])
        server.replies = [Say(calls=[call]), Send([]), Say(["Packed."]), Say(["It is packed."])]
        assert (await _over(app, clock, "a")).text == "It is packed."
    assert len(server.heard) == 4


async def test_a_summary_that_cannot_be_read_is_asked_for_again(server: WireServer) -> None:
    clock = SimClock()
    server.replies = [Say(["First answer. " * 24]), Send([]), Say(["They spoke."]), Say(["Well."])]
    async with shop(server, clock=clock) as app:
        short = Summarise(tokens=100, keep=0)
        await app.session("a", history=short).turn("First")
        assert (await _over(app, clock, "a")).text == "Well."
    assert len(server.heard) == 4
    assert "They spoke." in json.dumps(server.transcript())


@pytest.mark.parametrize("server", [Google()], indirect=True, ids=lambda d: d.name)
async def test_a_picture_that_cannot_be_read_is_asked_for_again(server: WireServer) -> None:
    part = {"inlineData": {"mimeType": "image/png", "data": "!no base64!"}}
    broken = sse({"candidates": [{"content": {"role": "model", "parts": [part]}}]})
    assert await _after(server, Send([broken])) == ("completed", "Well.", 2)


@pytest.mark.parametrize("server", [Google()], indirect=True, ids=lambda d: d.name)
async def test_a_question_that_the_filter_stopped_is_not_asked_again(server: WireServer) -> None:
    stopped = Send([sse({"promptFeedback": {"blockReason": "SAFETY"}})])
    status, said, asked = await _after(server, stopped)
    assert (status, asked) == ("failed", 1)
    assert "content filter" in said


async def test_a_server_that_falls_silent_is_given_up(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.models.model_call.WIRE_SECONDS", 0.1)
    begun = server.dialect.stream(Say(["It is ", "packed."]))[:2]
    assert await _after(server, Send(begun, end="hang")) == ("completed", "Well.", 2)


async def test_a_server_that_gives_signs_of_life_and_nothing_else_is_given_up(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.models.model_call.QUIET_SECONDS", 0.2)
    begun = [*server.dialect.stream(Say(["It is ", "packed."]))[:4], server.dialect.alive]
    assert await _after(server, Send(begun, end="hang")) == ("completed", "Well.", 2)


async def test_a_cancelled_turn_closes_its_connection(server: WireServer) -> None:
    server.replies = [Send(server.dialect.stream(Say(["It is ", "packed."]))[:2], end="hang")]
    async with shop(server) as app, asyncio.TaskGroup() as group:
        session = app.session("a")
        turn = group.create_task(session.turn("hi"))
        await server.hanging.wait()
        await session.cancel()
        assert (await turn).status == "cancelled"
        await server.closed.wait()
        assert server.open == 0


async def test_an_interrupted_answer_is_sent_back_with_a_note(
    server: WireServer,
) -> None:
    begun = server.dialect.stream(Say(["It is ", "packed."], [lookup()]))
    half = begun[: next(n for n, one in enumerate(begun) if b"packed" in one)]
    server.replies = [Send(half, end="hang"), Say(["Well."])]
    async with shop(server) as app:
        session = app.session("a")
        async with session.stream("Where?", turn_id="t1") as stream:
            async for event in stream:
                if event.type == "text_delta":
                    break
        await session.cancel()
        assert (await session.turn("Where?", turn_id="t1")).status == "cancelled"
        assert (await session.history())[-1] == AssistantMessage("It is ", interrupted=True)
        assert (await session.turn("Go on")).text == "Well."
    sent = server.transcript()
    assert sent[:3] == [
        ("system", "You help a shop."),
        ("user", "Where?"),
        ("assistant", "It is "),
    ]
    texts = [
        text for role, said in sent[3:] for text in ([said] if isinstance(said, str) else said)
    ]
    assert {role for role, _ in sent[3:]} == {"user"}
    assert texts == ["[Your last answer was interrupted before its end.]", "Go on"]


async def test_a_model_that_stays_busy_is_asked_four_times(server: WireServer) -> None:
    clock = SimClock()
    server.replies = [server.dialect.error(503, "Busy") for _ in range(4)]
    async with shop(server, clock=clock) as app:
        result = await _over(app, clock, "a")
    assert result.status == "failed"
    assert "Busy" in (result.error or "")
    assert len(server.heard) == 4


# --- secrets ---


async def test_no_key_enters_the_store(server: WireServer, tmp_path: Path) -> None:
    server.replies = [
        Say(["Look."], [lookup()], thinking="Hm.", signature="c2ln"),
        server.dialect.error(401, f"{KEY} is wrong", x_secret=KEY),
    ]
    async with shop(server, f"sqlite:///{tmp_path}/shop.db") as app:
        result = await app.session("a").turn("hi")
        assert result.status == "failed"
    assert KEY in json.dumps(server.heard[0].headers)
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        assert KEY.encode() not in file.read_bytes(), file
        assert server.url.encode() not in file.read_bytes(), file


# --- inside ---


async def _over(app: Lash, clock: SimClock, session: str) -> TurnResult[None]:
    """Return how a turn ended, however long it paused."""
    async with asyncio.TaskGroup() as group:
        turn = group.create_task(app.session(session).turn("hi", turn_id="t1"))
        await comes_to(app, session, "t1", "running")
        await clock.advance("1m")
        return await turn


async def _pauses(server: WireServer, *replies: Send) -> list[int]:
    """Return how many seconds a turn that got these replies waited after each."""
    clock = SimClock()
    server.replies, server.now = [*replies, Say(["Well."])], clock.now
    async with shop(server, clock=clock) as app:
        assert (await _over(app, clock, "a")).text == "Well."
    times = [heard.at // 1_000_000 for heard in server.heard]
    return [after - before for before, after in pairwise(times)]


async def _after(server: WireServer, reply: Send) -> tuple[str, str, int]:
    """Return how a turn ended that got this reply first, what it said, and how often it asked."""
    clock = SimClock()
    server.replies = [reply, Say(["Well."])]
    async with shop(server, clock=clock) as app:
        result = await _over(app, clock, "a")
    said = result.text if result.status == "completed" else result.error
    return result.status, str(said), len(server.heard)
