"""Messages: what was said in a session, as it is stored.

Rule 1. Messages are stored: fields are only added, with defaults; tags stay.
Rule 2. A message holds references to attachments, never their bytes.
Rule 3. Whatever a turn decides by must be in its messages, so that a replay decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, assert_never

import msgspec

from pylash.values import InputInvalid


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A part of an input that is text."""

    text: str


class Attachment(
    msgspec.Struct, frozen=True, tag_field="type", tag="attachment", omit_defaults=True
):
    """A part of an input, of a tool's result or of an answer that is bytes.

    One that was stored has a ``ref`` and no ``data``.

    >>> await session.turn([Text("What is this?"), Attachment(picture, "image/png")])
    """

    data: bytes = b""
    media_type: str = "application/octet-stream"
    name: str | None = None
    ref: str | None = None
    size: int = 0


ZERO: Final = 0.0
"""No seconds, no cost. A default is left out of what is stored only if it is this very object."""

Part = Text | Attachment
"""What an input is made of."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What model calls have used; tokens of a cache are among the input, of reasoning among the output."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = ZERO
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        if other == NO_USAGE:
            return self
        if self == NO_USAGE:
            return other
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            (self.cost + other.cost) or ZERO,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def tokens(self) -> int:
        """Every token, in and out."""
        return self.input_tokens + self.output_tokens


NO_USAGE: Final = Usage()


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that a model asked for. The id is ours; the provider's stays on the wire."""

    id: str
    tool: str
    arguments: Any = None
    provider_id: str | None = None


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """What the model is told about itself; made for each request, never stored."""

    role: ClassVar[Literal["system"]] = "system"
    text: str


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """That a message stands for the first messages of its session, and what it took to make it."""

    covers: int
    usage: Usage = NO_USAGE
    seconds: float = ZERO


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user", omit_defaults=True):
    """What a person, a process (``wake``), a plugin or the runtime says to the model."""

    role: ClassVar[Literal["user"]] = "user"
    parts: tuple[Part, ...]
    source: Literal["user", "wake", "plugin", "runtime"] = "user"
    turn_id: str | None = None
    summary: Summary | None = None

    @property
    def text(self) -> str:
        """The text of its parts."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


class AssistantMessage(
    msgspec.Struct, frozen=True, tag_field="role", tag="assistant", omit_defaults=True
):
    """What the model answered, or what the runtime says in its place (``source``).

    ``provider_state`` is what the provider wants back with the next request; nobody else reads it. An
    ``interrupted`` answer is the text that was streamed before somebody stopped it; it has no calls.
    """

    role: ClassVar[Literal["assistant"]] = "assistant"
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    usage: Usage = NO_USAGE
    finish_reason: str | None = None
    model: str | None = None
    seconds: float = ZERO
    source: Literal["model", "runtime"] = "model"
    provider_state: Any = None
    attachments: tuple[Attachment, ...] = ()
    interrupted: bool = False


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool", omit_defaults=True):
    """What came of a tool call. ``usage`` is what subagents used for it.

    ``stored`` are the references of bytes that the tool stored with ``ctx.attach`` and only mentions in its result.
    """

    role: ClassVar[Literal["tool"]] = "tool"
    call_id: str
    tool: str
    text: str = ""
    error: bool = False
    attachments: tuple[Attachment, ...] = ()
    usage: Usage = NO_USAGE
    seconds: float = ZERO
    provider_id: str | None = None
    stored: tuple[str, ...] = ()


Message = UserMessage | AssistantMessage | ToolMessage
"""What is stored of a session."""

MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
"""Reads a stored message."""


Input = str | Part | Sequence[str | Part]
"""What may be asked: a text, or parts."""


def parts_of(given: Any) -> tuple[Part, ...]:
    """Return an input as parts: a text is one part, and so is each text in a list; refuse the rest."""
    several = given if isinstance(given, list | tuple) else [given]
    parts = tuple(Text(part) if isinstance(part, str) else part for part in several)
    if not parts or not all(isinstance(part, Text | Attachment) for part in parts):
        raise InputInvalid(given)
    if not any(isinstance(part, Attachment) or part.text.strip() for part in parts):
        raise InputInvalid(given)
    return parts


def open_calls(messages: list[Message]) -> list[ToolCall]:
    """Return the tool calls in messages that have no result after them, in order."""
    waiting: list[ToolCall] = []
    for message in messages:
        match message:
            case AssistantMessage(calls=calls):
                waiting += calls
            case ToolMessage(call_id=answered):
                # Ids are those of one turn: the same id earlier or later is another call.
                waiting = [call for call in waiting if call.id != answered]
            case UserMessage():
                pass
            case _:
                assert_never(message)
    return waiting
