"""What a turn says by itself: queued words, replies and broken calls as messages, and their keys."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from pylash.durable import Attachments, Queued
from pylash.runtime.histories import has_attachments
from pylash.turn import (
    AssistantMessage,
    Attachment,
    Listen,
    Message,
    ModelFailed,
    ModelReply,
    ModelRequest,
    Part,
    Provider,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pylash.values import AttachmentResolutionFailed, LashError, ProviderError, write

_log = logging.getLogger("pylash")


def llm_key(iteration: int, attempt: int) -> str:
    """Return the key of a model call."""
    return f"i{iteration}.llm" if attempt == 1 else f"i{iteration}.llm.{attempt}"


def queued_message(words: Queued) -> UserMessage:
    """Return queued words as a message."""
    source: Any = "wake" if words.policy == "wake" else "user"
    if isinstance(words.body, dict) and "parts" in words.body:
        parts = msgspec.convert(words.body["parts"], tuple[Text | Attachment, ...])
        return UserMessage(parts, source=source)
    text = words.body if isinstance(words.body, str) else write(words.body).decode()
    return UserMessage((Text(text),), source=source)


def broken_off(call: ToolCall, *, ran: bool) -> ToolMessage:
    """Return the result of a call that the turn did not wait for; ``ran``: it may have run."""
    text = "Not run: the turn was cancelled."
    if ran:
        text = "No result: the turn was cancelled. It may have run."
    return ToolMessage(call.id, call.tool, text, error=True, provider_id=call.provider_id)


def referenced(parts: Sequence[Part]) -> tuple[tuple[Part, ...], dict[str, bytes]]:
    """Return parts with references in place of bytes, and the bytes by reference."""
    bodies: dict[str, bytes] = {}
    found: list[Part] = []
    for part in parts:
        if isinstance(part, Attachment) and part.ref is None:
            ref = hashlib.sha256(part.data).hexdigest()
            bodies[ref] = part.data
            part = Attachment(  # noqa: PLW2901 - the same part, by reference
                media_type=part.media_type, name=part.name, ref=ref, size=len(part.data)
            )
        found.append(part)
    return tuple(found), bodies


async def with_bytes(message: Message, attachments: Attachments) -> Message:
    """Put the bytes of attachments in, right before they are sent."""
    if not has_attachments(message) or not isinstance(message, UserMessage):
        return message
    parts = []
    for part in message.parts:
        if isinstance(part, Attachment) and part.ref is not None:
            body = await attachments.get(part.ref)
            if body is None:
                raise AttachmentResolutionFailed(part.ref)
            part = msgspec.structs.replace(part, data=body)  # noqa: PLW2901 - the same part, with bytes
        parts.append(part)
    return msgspec.structs.replace(message, parts=tuple(parts))


def reply_message(
    reply: ModelReply, iteration: int, took: float, asked: str | None
) -> AssistantMessage:
    """Return a reply as it is stored; the ids of its calls are ours."""
    calls = tuple(
        ToolCall(f"i{iteration}.c{number}", call.tool, call.arguments, call.provider_id)
        for number, call in enumerate(reply.calls)
    )
    return AssistantMessage(
        reply.text,
        calls,
        reply.reasoning,
        reply.usage,
        reply.finish_reason,
        None if reply.model == asked else reply.model,
        round(took, 3) or 0.0,
    )


def model_failed(error: LashError) -> ModelFailed:
    """Return a failed model call as the machine hears of it."""
    retryable = isinstance(error.data, dict) and bool(error.data.get("retryable"))
    return ModelFailed(error.message, error.code, retryable)


async def answered(provider: Provider, request: ModelRequest, listen: Listen) -> ModelReply:
    """Return what a model answers; whatever else comes of it is a ProviderError."""
    try:
        reply = await provider.respond(request, listen)
    except LashError:
        raise
    except Exception as error:
        _log.warning("model %s failed", request.model, exc_info=error)
        away = isinstance(error, OSError)  # lost connections and timeouts are
        raise ProviderError(f"{type(error).__name__}: {error}", retryable=away) from error
    if not isinstance(reply, ModelReply):
        raise ProviderError(f"The model returned {reply!r} instead of a ModelReply")
    return reply
