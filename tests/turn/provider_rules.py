"""What model providers demand of a transcript, as a checker."""

from __future__ import annotations

from collections.abc import Sequence

from pylash.turn.messages import AssistantMessage, Message, ToolMessage, UserMessage


def refusal(messages: Sequence[Message]) -> str | None:
    """Return why a provider would refuse messages, or None."""
    if not messages or not isinstance(messages[0], UserMessage):
        return "it does not start with a user"
    waiting: list[tuple[str, str | None]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            # Taking them from the front also says: in the order of the calls, each once.
            if not waiting or waiting.pop(0) != (message.call_id, message.provider_id):
                return f"{message.call_id} answers no call, or out of turn"
        elif waiting:
            return f"{waiting[0][0]} has no result directly after its call"
        elif isinstance(message, AssistantMessage):
            waiting = [(call.id, call.provider_id) for call in message.calls]
    return f"{waiting[0][0]} has no result" if waiting else None
