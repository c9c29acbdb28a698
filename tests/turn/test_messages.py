"""Messages are stored as JSON with their role and come back as they were."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from pylash.turn.messages import (
    MESSAGES,
    NO_USAGE,
    ZERO,
    AssistantMessage,
    Attachment,
    Message,
    Summary,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    open_calls,
    parts_of,
)
from pylash.values.canonical import write
from pylash.values.turn_errors import InputInvalid
from tests.turn.scenario import said

PICTURE = Attachment(media_type="image/png", ref="sha256:1", size=9)
FULL: tuple[Message, ...] = (
    UserMessage(
        (Text("What is this?"), PICTURE),
        source="wake",
        turn_id="t1",
        summary=Summary(7, Usage(1, 20, 3), 0.5),
    ),
    AssistantMessage(
        "A cat.",
        (ToolCall("i1.c0", "look", {"at": [1, None]}, "p1"),),
        "Hm.",
        Usage(1, 2, 3, 0.5, 4, 5, 6),
        "stop",
        "test:model",
        1.5,
        "runtime",
        {"signature": "abc"},
        (PICTURE,),
        interrupted=True,
    ),
    ToolMessage(
        "i1.c0", "look", "yes", True, (PICTURE,), Usage(1), 0.5, "p1", ("sha256:2",), sync=True
    ),
)


@pytest.mark.parametrize("message", FULL, ids=lambda message: message.role)
def test_a_message_comes_back_as_it_was_stored(message: Message) -> None:
    assert MESSAGES.decode(msgspec.json.encode(message)) == message


def test_every_kind_of_message_is_tried_above_with_every_field_set() -> None:
    assert {type(message) for message in FULL} == set(get_args(Message))
    for message in FULL:
        for field in msgspec.structs.fields(message):
            assert field.required or getattr(message, field.name) != field.default, field.name


@pytest.mark.parametrize(
    ("message", "stored"),
    [
        (said("Hi."), b'{"role":"user","parts":[{"type":"text","text":"Hi."}]}'),
        (AssistantMessage("Hi."), b'{"role":"assistant","text":"Hi."}'),
        (ToolMessage("i1.c0", "a"), b'{"role":"tool","call_id":"i1.c0","tool":"a"}'),
        (SystemMessage("Be kind."), b'{"role":"system","text":"Be kind."}'),
    ],
)
def test_the_role_is_stored_and_default_values_are_not(message: Any, stored: bytes) -> None:
    assert msgspec.json.encode(message) == stored
    assert msgspec.json.decode(stored)["role"] == message.role


def test_a_system_message_is_never_read_from_the_store() -> None:
    with pytest.raises(msgspec.ValidationError):
        MESSAGES.decode(msgspec.json.encode(SystemMessage("Be kind.")))


def test_a_field_of_a_later_version_does_not_hide_a_message() -> None:
    assert MESSAGES.decode(b'{"role":"assistant","text":"Hi.","mood":"good"}').role == "assistant"


def test_the_text_of_a_message_contains_only_its_text_parts() -> None:
    assert UserMessage((Text("a"), PICTURE, Text("b"))).text == "a\nb"


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("a", (Text("a"),)),
        (Text("a"), (Text("a"),)),
        (PICTURE, (PICTURE,)),
        (["a", PICTURE], (Text("a"), PICTURE)),
        ((Text("a"), "b"), (Text("a"), Text("b"))),
    ],
)
def test_an_input_is_made_of_parts(given: Any, parts: Any) -> None:
    assert parts_of(given) == parts


@pytest.mark.parametrize("given", ["", "  ", [], None, 5, b"a", {"text": "a"}, ["a", 5], [" "]])
def test_what_cannot_be_asked_is_refused(given: Any) -> None:
    with pytest.raises(InputInvalid):
        parts_of(given)


# --- calls without results ---

A, B = ToolCall("i1.c0", "a"), ToolCall("i1.c1", "b")


def test_calls_are_open_until_their_results_are_there() -> None:
    asked = AssistantMessage(calls=(A, B))
    assert open_calls([said("Go."), asked]) == [A, B]
    assert open_calls([said("Go."), asked, ToolMessage("i1.c0", "a")]) == [B]
    assert open_calls([asked, ToolMessage("i1.c1", "b"), ToolMessage("i1.c0", "a")]) == []


def test_a_result_of_an_earlier_turn_does_not_answer_a_call_with_the_same_id() -> None:
    asked = AssistantMessage(calls=(A,))
    earlier: list[Message] = [said("Go."), asked, ToolMessage("i1.c0", "a")]
    assert open_calls([*earlier, said("Again."), asked]) == [A]


def test_default_values_are_not_stored() -> None:
    used = NO_USAGE + Usage() + NO_USAGE
    message = ToolMessage("c", "look", usage=used, seconds=round(0.0001, 3) or ZERO)
    assert write(message) == b'{"role":"tool","call_id":"c","tool":"look"}'
    counted = Usage(requests=1) + Usage(input_tokens=2)
    assert write(counted) == b'{"requests":1,"input_tokens":2}'
