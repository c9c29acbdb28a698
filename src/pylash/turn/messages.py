"""Messages of a session, as they are stored.

Rule 1. Messages are stored: fields are only added, with defaults; tags never change.
Rule 2. A message contains references to attachments, never their bytes.
Rule 3. Everything that a turn's decisions depend on must be in its messages, so that a replay decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Literal, assert_never

import msgspec

from pylash.values.turn_errors import InputInvalid


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A part of an input that is text."""

    text: str


class Attachment(
    msgspec.Struct, frozen=True, tag_field="type", tag="attachment", omit_defaults=True
):
    """A part of an input, of a tool's result or of an answer that is bytes.

    A stored attachment has a ``ref`` and no ``data``.

    >>> await session.turn([Text("What is this?"), Attachment(picture, "image/png")])
    """

    data: bytes = b""
    media_type: str = "application/octet-stream"
    name: str | None = None
    ref: str | None = None
    size: int = 0


ZERO: Final = 0.0
"""No seconds, no cost. msgspec leaves a default out of stored data only if it is this very object."""

Part = Text | Attachment
"""A part of an input."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The usage of model calls; cached tokens are counted in the input, reasoning tokens in the output."""

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
    """A call that a model requested. ``id`` is generated here, ``provider_id`` is the provider's."""

    id: str
    tool: str
    arguments: Any = None
    provider_id: str | None = None


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """Instructions for the model; made for each request, never stored."""

    role: ClassVar[Literal["system"]] = "system"
    text: str


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Marks a message as a summary: how many messages it covers, and its cost."""

    covers: int
    usage: Usage = NO_USAGE
    seconds: float = ZERO


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user", omit_defaults=True):
    """A message to the model from a person, a process (``wake``), a plugin or the runtime."""

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
    """The answer of the model, or a message of the runtime in its place (``source``).

    Only the provider reads ``provider_state``, which is sent back with the next request. An
    ``interrupted`` answer is the text that was streamed before it was stopped; it has no calls.
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
    """The result of a tool call. ``usage`` is that of subagents and models that worked for it.

    ``stored`` are the references of bytes that the tool stored with ``ctx.attach`` and only mentions in its result.
    ``sync``: the tool changed the tools or the prompt of the turn.
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
    sync: bool = False


Message = UserMessage | AssistantMessage | ToolMessage
"""A stored message of a session."""

MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
"""Reads a stored message."""


Input = str | Part | Sequence[str | Part]
"""The input of a turn: a text, or parts."""


def parts_of(given: Any) -> tuple[Part, ...]:
    """Return an input as parts: a text is one part, and so is each text in a list; refuse other values."""
    parts: list[Part] = []
    is_blank = True
    for part in given if isinstance(given, list | tuple) else [given]:
        if isinstance(part, str):
            part = Text(part)  # noqa: PLW2901 - from here on it is a part
        if not isinstance(part, Text | Attachment):
            raise InputInvalid(given)
        is_blank = is_blank and isinstance(part, Text) and not part.text.strip()
        parts.append(part)
    if is_blank:
        raise InputInvalid(given)
    return tuple(parts)


def open_calls(messages: list[Message]) -> list[ToolCall]:
    """Return the tool calls in messages that have no result after them, in order."""
    waiting: list[ToolCall] = []
    for message in messages:
        match message:
            case AssistantMessage(calls=calls):
                waiting += calls
            case ToolMessage(call_id=answered):
                # An id is unique within one turn only: the same id in another turn is another call.
                waiting = [call for call in waiting if call.id != answered]
            case UserMessage():
                pass
            case _:
                assert_never(message)
    return waiting


def has_attachments(message: Message) -> bool:
    """Return whether a message has bytes to be put in before it is sent."""
    if isinstance(message, UserMessage):
        return any(isinstance(part, Attachment) for part in message.parts)
    if isinstance(message, AssistantMessage):
        return bool(message.attachments)
    return any(map(is_picture, message.attachments))


def attachment_refs(message: Message) -> Iterator[str]:
    """Yield the references to attachments in a message: only a message that we made has them."""
    parts = message.parts if isinstance(message, UserMessage) else message.attachments
    for part in parts:
        if isinstance(part, Attachment) and part.ref is not None:
            yield part.ref
    if isinstance(message, ToolMessage):
        yield from message.stored


def is_picture(part: Attachment) -> bool:
    """Return whether a model gets the bytes of an attachment of a tool's result, rather than its name."""
    return part.media_type.startswith("image/")
