"""The events of a turn from what it left behind, for whoever did not hear them."""

from __future__ import annotations

from collections.abc import Sequence

from pylash.turn import AssistantMessage, Message, ToolMessage, TurnEvent, UserMessage


class Heard:
    """What a listener has heard of a turn: nothing is told twice, and nothing is left out."""

    def __init__(self) -> None:
        self._once: set[tuple[str, str]] = set()
        self._texts: dict[str, str] = {}

    def is_new(self, event: TurnEvent) -> bool:
        """Take note of an event; return whether it was not heard yet."""
        said = event.type in ("text_delta", "text_reset", "reasoning_delta")
        if said and ("usage", event.correlation_id) in self._once:
            return False  # a reply that was heard to its end, said again by whoever goes on with the turn
        if event.type == "text_delta":
            self._texts[event.correlation_id] = (
                self._texts.get(event.correlation_id, "") + event.text
            )
            return True
        if event.type == "text_reset":
            self._texts[event.correlation_id] = ""
            return True
        if event.type in ("reasoning_delta", "tool_progress"):
            return True
        known = (event.type, event.correlation_id)
        if known in self._once:
            return False
        self._once.add(known)
        return True

    def left_of(self, event: TurnEvent) -> list[TurnEvent]:
        """Return what is left to say of a recorded event."""
        if event.type != "text_delta":
            return [event] if self.is_new(event) else []
        heard = self._texts.get(event.correlation_id, "")
        if heard == event.text:
            return []
        if event.text.startswith(heard):
            return [TurnEvent("text_delta", event.correlation_id, text=event.text[len(heard) :])]
        return [TurnEvent("text_reset", event.correlation_id), event]


def recorded_events(messages: Sequence[Message]) -> list[TurnEvent]:
    """Return the events of messages that were recorded."""
    events: list[TurnEvent] = []
    iteration = 0
    for message in messages:
        match message:
            case AssistantMessage(source="model"):
                iteration += 1
                key = f"i{iteration}.llm"
                if message.text:
                    events.append(TurnEvent("text_delta", key, text=message.text))
                events.append(TurnEvent("usage", key, usage=message.usage))
                events += [
                    TurnEvent("tool_started", call.id, tool=call.tool, data=call.arguments)
                    for call in message.calls
                ]
            case ToolMessage():
                status = "failed" if message.error else "completed"
                events.append(
                    TurnEvent(
                        "tool_completed",
                        message.call_id,
                        tool=message.tool,
                        text=message.text,
                        status=status,
                    )
                )
            case UserMessage() | AssistantMessage():
                pass
    return events
