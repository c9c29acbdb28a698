"""What a turn says by itself: queued words, replies and broken calls as messages, and their keys."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final, TypeVar

import msgspec

from pylash.durable import Attachments, Queued
from pylash.runtime.catalog import Catalog
from pylash.runtime.histories import has_attachments, is_picture
from pylash.runtime.records import is_outcome, message_of
from pylash.runtime.user_code import FailsAs
from pylash.turn import (
    MESSAGES,
    ZERO,
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
from pylash.values import (
    AttachmentResolutionFailed,
    ExtraMissing,
    LashError,
    ModelKeyMissing,
    ModelMissing,
    ModelUnknown,
    ModelUnusable,
    ProviderError,
    TurnModelMissing,
    ValueNotJson,
    write,
)

P = TypeVar("P", bound=Part)

_log = logging.getLogger("pylash")


def llm_key(iteration: int, attempt: int) -> str:
    """Return the key of a model call."""
    return f"i{iteration}.llm" if attempt == 1 else f"i{iteration}.llm.{attempt}"


def queued_message(words: Queued) -> UserMessage:
    """Return queued words as a message."""
    source: Any = "wake" if words.policy == "wake" else "user"
    # What a process wakes with is its data, even if it looks like parts: it must not name attachments.
    if source == "user" and isinstance(words.body, dict) and "parts" in words.body:
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


def referenced(parts: Sequence[P]) -> tuple[tuple[P, ...], dict[str, bytes]]:
    """Return parts with references in place of bytes, and the bytes by reference."""
    bodies: dict[str, bytes] = {}
    found: list[Any] = []
    for part in parts:
        if isinstance(part, Attachment) and part.ref is None:
            ref = hashlib.sha256(part.data).hexdigest()
            bodies[ref] = part.data
            found.append(Attachment(b"", part.media_type, part.name, ref, len(part.data)))
        else:
            found.append(part)
    return tuple(found), bodies


async def keep(bodies: Mapping[str, bytes], attachments: Attachments) -> None:
    """Store the bytes of attachments."""
    for ref, body in bodies.items():
        await attachments.put(ref, body)


async def with_bytes(message: Message, attachments: Attachments) -> Message:
    """Put the bytes of attachments in, right before they are sent."""
    if not has_attachments(message):
        return message
    match message:
        case UserMessage(parts=parts):
            filled = tuple([await _filled(part, attachments) for part in parts])
            return msgspec.structs.replace(message, parts=filled)
        case ToolMessage(attachments=parts):
            shown = [await _filled(one, attachments) if is_picture(one) else one for one in parts]
            return msgspec.structs.replace(message, attachments=tuple(shown))
        case AssistantMessage(attachments=parts):
            made = [await _filled(one, attachments) for one in parts]
            return msgspec.structs.replace(message, attachments=tuple(made))


async def _filled(part: Part, attachments: Attachments) -> Any:
    if not isinstance(part, Attachment) or part.ref is None:
        return part
    return msgspec.structs.replace(part, data=await attachment_bytes(part, attachments))


async def attachment_bytes(found: Attachment | str, attachments: Attachments) -> bytes:
    """Return the bytes of an attachment, or of its reference."""
    if isinstance(found, Attachment):
        if found.ref is None:
            return found.data
        found = found.ref
    body = await attachments.get(found)
    if body is None:
        raise AttachmentResolutionFailed(found)
    return body


def reply_message(
    reply: ModelReply, iteration: int, took: float, asked: str | None
) -> tuple[AssistantMessage, dict[str, bytes]]:
    """Return a reply as it is stored, the ids of its calls ours, and the bytes of its attachments.

    Refuses one that could not be read again: a provider may be anybody's.
    """
    try:
        message, bodies = _message(reply, iteration, took, asked)
        MESSAGES.decode(write(message))
    except (AttributeError, TypeError, ValueNotJson, msgspec.MsgspecError) as error:
        reason = error.__context__ or error  # of a value that is none the encoder knows more
        raise ProviderError(f"The model's reply cannot be stored: {reason}") from error
    return message, bodies


def _message(
    reply: ModelReply, iteration: int, took: float, asked: str | None
) -> tuple[AssistantMessage, dict[str, bytes]]:
    attachments, bodies = referenced(reply.attachments)
    calls = tuple(
        ToolCall(f"i{iteration}.c{number}", call.tool, call.arguments, call.provider_id)
        for number, call in enumerate(reply.calls)
    )
    message = AssistantMessage(
        reply.text,
        calls,
        reply.reasoning,
        reply.usage,
        reply.finish_reason,
        None if reply.model == asked else reply.model,
        round(took, 3) or ZERO,
        provider_state=reply.provider_state,
        attachments=attachments,
    )
    return message, bodies


def model_failed(error: LashError) -> ModelFailed:
    """Return what a turn is told of a model that gave no answer."""
    said = error.data if isinstance(error.data, dict) else {}
    pause = ceil(1_000 * float(said.get("retry_after") or 0))
    return ModelFailed(error.message, error.code, bool(said.get("retryable")), pause)


NOT_HERE: Final = (ExtraMissing, ModelKeyMissing, ModelMissing, ModelUnknown, ModelUnusable)
"""What a worker may lack, though another may have it, or this one after the next deployment."""


async def named_answered(
    catalog: Catalog,
    request: ModelRequest,
    listen: Listen,
    ready: Callable[[Provider], Awaitable[None]],
    *,
    begun: bool,
) -> ModelReply:
    """Return what the model of a request answers; a turn that has begun is not lost for want of it.

    ``ready`` prepares what it is asked.
    """
    try:
        provider = catalog.provider(request.model)
        await ready(provider)
        return await answered(provider, request, listen)
    except NOT_HERE as error:
        if not begun:
            raise
        raise TurnModelMissing(request.turn_id, error.message) from error


async def answered(provider: Provider, request: ModelRequest, listen: Listen) -> ModelReply:
    """Return what a model answers; whatever else comes of it is a ProviderError."""

    def failure(error: BaseException) -> BaseException:
        if is_outcome(error):
            return error
        _log.warning("model %s failed", request.model, exc_info=error)
        away = isinstance(error, OSError)  # lost connections and timeouts are
        said = " ".join(message_of(error).split())
        return ProviderError(f"{type(error).__name__}: {said}", retryable=away)

    with FailsAs(failure):
        reply = await provider.respond(request, listen)
    if not isinstance(reply, ModelReply):
        raise ProviderError(f"The model returned {reply!r} instead of a ModelReply")
    return reply
