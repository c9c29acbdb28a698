"""Messages to and from models: attachments are stored by reference, and sent with their bytes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

import msgspec

from pylash.durable.session_store import Attachments
from pylash.turn.machine import ModelFailed
from pylash.turn.messages import (
    MESSAGES,
    ZERO,
    AssistantMessage,
    Attachment,
    Message,
    Part,
    ToolCall,
    ToolMessage,
    UserMessage,
    has_attachments,
    is_picture,
)
from pylash.turn.requests import ModelReply
from pylash.values.canonical import write
from pylash.values.errors import LashError, ValueNotJson
from pylash.values.turn_errors import (
    AttachmentResolutionFailed,
    ProviderError,
)

P = TypeVar("P", bound=Part)

_log = logging.getLogger("pylash")


def llm_key(iteration: int, attempt: int) -> str:
    """Return the key of a model call."""
    return f"i{iteration}.llm" if attempt == 1 else f"i{iteration}.llm.{attempt}"


def with_references(parts: Sequence[P]) -> tuple[tuple[P, ...], dict[str, bytes]]:
    """Return parts with references in place of bytes, and the bytes by reference."""
    bodies: dict[str, bytes] = {}
    kept: list[Any] = []
    for part in parts:
        if isinstance(part, Attachment) and part.ref is None:
            ref = hashlib.sha256(part.data).hexdigest()
            bodies[ref] = part.data
            kept.append(Attachment(b"", part.media_type, part.name, ref, len(part.data)))
        else:
            kept.append(part)
    return tuple(kept), bodies


async def store_bodies(bodies: Mapping[str, bytes], attachments: Attachments) -> None:
    """Store the bytes of attachments."""
    for ref, body in bodies.items():
        await attachments.put(ref, body)


async def with_bytes(message: Message, attachments: Attachments) -> Message:
    """Return message with the bytes of its attachments, for sending it to a model."""
    if not has_attachments(message):
        return message
    match message:
        case UserMessage(parts=parts):
            filled = tuple([await _part_with_bytes(part, attachments) for part in parts])
            return msgspec.structs.replace(message, parts=filled)
        case ToolMessage(attachments=parts):
            shown = [
                await _part_with_bytes(one, attachments) if is_picture(one) else one
                for one in parts
            ]
            return msgspec.structs.replace(message, attachments=tuple(shown))
        case AssistantMessage(attachments=parts):
            made = [await _part_with_bytes(one, attachments) for one in parts]
            return msgspec.structs.replace(message, attachments=tuple(made))


async def _part_with_bytes(part: Part, attachments: Attachments) -> Any:
    if not isinstance(part, Attachment) or part.ref is None:
        return part
    return msgspec.structs.replace(part, data=await attachment_bytes(part, attachments))


async def attachment_bytes(attachment: Attachment | str, attachments: Attachments) -> bytes:
    """Return the bytes of an attachment, which may be given by its reference."""
    if isinstance(attachment, Attachment):
        if attachment.ref is None:
            return attachment.data
        ref = attachment.ref
    else:
        ref = attachment
    body = await attachments.get(ref)
    if body is None:
        raise AttachmentResolutionFailed(ref)
    return body


def reply_message(
    reply: ModelReply, iteration: int, took: float, asked: str | None
) -> tuple[AssistantMessage, dict[str, bytes]]:
    """Return a reply as it is stored, with new ids for its calls, and the bytes of its attachments.

    Raises ProviderError if the stored form could not be decoded: a provider may be user code.
    """
    try:
        message, bodies = _message(reply, iteration, took, asked)
        MESSAGES.decode(write(message))
    except (AttributeError, TypeError, ValueNotJson, msgspec.MsgspecError) as error:
        reason = error.__context__ or error  # the error of the encoder is more precise
        raise ProviderError(f"The model's reply cannot be stored: {reason}") from error
    return message, bodies


def _message(
    reply: ModelReply, iteration: int, took: float, asked: str | None
) -> tuple[AssistantMessage, dict[str, bytes]]:
    attachments, bodies = with_references(reply.attachments)
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
    """Return the failure of a model call as an answer for the turn machine."""
    data = error.data if isinstance(error.data, dict) else {}
    pause = ceil(1_000 * float(data.get("retry_after") or 0))
    return ModelFailed(error.message, error.code, bool(data.get("retryable")), pause)
