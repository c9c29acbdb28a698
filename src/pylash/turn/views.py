"""The view of a session for programs: its history as plain records, the oldest first.

Rule 1. A record is plain JSON: a process records the view that it read. Fields and kinds are only added.
Rule 2. A view has everything that was said, called and returned; not usage, reasoning or the provider's data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, assert_never

from pylash.turn.messages import AssistantMessage, Attachment, Message, ToolMessage, UserMessage
from pylash.values.process_errors import ArgumentsInvalid


def checked_last(method: str, last: int | None) -> int | None:
    """Return how many of the newest records a view is limited to, or refuse it."""
    if last is None or (type(last) is int and last > 0):
        return last
    raise ArgumentsInvalid(method, f"last={last!r} is not a positive number")


def view_of(messages: Iterable[Message], last: int | None = None) -> list[dict[str, Any]]:
    """Return the records of messages, or the newest of them."""
    records = [*_records(messages)]
    return records if last is None else records[-last:]


def _records(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    turn_id, is_answered = None, False
    for message in messages:
        match message:
            case UserMessage():
                # The first message of a turn has its id. Older versions left it out in a turn that the queue began.
                if message.turn_id is not None or (is_answered and _is_queued(message)):
                    turn_id = message.turn_id
                attached = [part for part in message.parts if isinstance(part, Attachment)]
                kind = message.source if message.summary is None else "summary"
                yield _said(turn_id, kind, message.text, attached)
            case AssistantMessage():
                spoken = "assistant" if message.source == "model" else message.source
                if message.text or message.attachments or not message.calls:
                    said = _said(turn_id, spoken, message.text, message.attachments)
                    yield {**said, **_marks(message)}
                for call in message.calls:
                    yield {
                        "turn_id": turn_id,
                        "kind": "tool_call",
                        "call_id": call.id,
                        "tool": call.tool,
                        "arguments": call.arguments,
                    }
            case ToolMessage():
                yield {
                    **_said(turn_id, "tool_result", message.text, message.attachments),
                    "call_id": message.call_id,
                    "tool": message.tool,
                    "error": message.error,
                }
            case _:
                assert_never(message)
        is_answered = (
            isinstance(message, AssistantMessage) and not message.calls and not message.interrupted
        )


def _is_queued(message: UserMessage) -> bool:
    return message.source in ("user", "wake") and message.summary is None


def _marks(message: AssistantMessage) -> dict[str, Any]:
    """Return the marks of an answer that was cut off, and of the reason that a turn has no answer."""
    marks = {"interrupted": message.interrupted, "error": message.source == "runtime"}
    return {name: True for name, is_set in marks.items() if is_set}


def _said(
    turn_id: str | None, kind: str, text: str, attached: Iterable[Attachment]
) -> dict[str, Any]:
    attachments = [
        {"ref": part.ref, "media_type": part.media_type, "name": part.name, "size": part.size}
        for part in attached
    ]
    return {"turn_id": turn_id, "kind": kind, "text": text, "attachments": attachments}
