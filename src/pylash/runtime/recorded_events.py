"""The events of a turn from what it left behind, for whoever did not hear them."""

from __future__ import annotations

from collections.abc import Sequence

from pylash.turn import AssistantMessage, Message, ToolMessage, TurnEvent, UserMessage


class Heard:
    """What a listener has heard of a turn: nothing is told twice, and nothing is left out."""

    def __init__(self) -> None:
        self._once: set[tuple[str, str]] = set()
        self._texts: dict[str, str] = {}
        self._reasoned: set[str] = set()
        self._again: dict[str, str] = {}
        """Of replies that are told from their start again: how far."""

    def begin_again(self) -> None:
        """Hear from now on from somebody who tells the turn from its start, or from an earlier place."""
        self._again = {
            reply: "" for reply, text in self._texts.items() if text and not self._is_over(reply)
        }

    def new_of(self, event: TurnEvent) -> list[TurnEvent]:
        """Take note of an event; return what of it was not heard yet."""
        reply = event.correlation_id
        match event.type:
            case "text_delta" | "text_reset" | "reasoning_delta" if self._is_over(reply):
                return []  # a reply that was heard to its end, told by whoever goes on with the turn
            case "text_delta":
                return self._new_text(reply, event)
            case "text_reset":
                self._again.pop(reply, None)
                before, self._texts[reply] = self._texts.get(reply), ""
                return [event] if before or self._is_first(event) else []
            case "reasoning_delta":
                self._reasoned.add(reply)
                return [event]
            case "tool_progress":
                return [event] if event.attempt == 1 or self._is_first(event) else []
            case _:
                known = (event.type, reply)
                if known in self._once:
                    return []
                self._once.add(known)
                shorter = self._again.pop(reply, None) if event.type == "usage" else None
                return [*self.left_of(_text(reply, shorter)), event] if shorter else [event]

    def left_of(self, event: TurnEvent) -> list[TurnEvent]:
        """Return what is left to say of a recorded event."""
        if event.type == "reasoning_delta" and event.correlation_id in self._reasoned:
            return []
        if event.type != "text_delta":
            return self.new_of(event)
        heard = self._texts.get(event.correlation_id, "")
        if heard == event.text:
            return []
        self._texts[event.correlation_id] = event.text
        if event.text.startswith(heard):
            return [_text(event.correlation_id, event.text[len(heard) :])]
        return [TurnEvent("text_reset", event.correlation_id), event]

    def _new_text(self, reply: str, event: TurnEvent) -> list[TurnEvent]:
        heard = self._texts.get(reply, "")
        if reply not in self._again:
            self._texts[reply] = heard + event.text
            return [event]
        self._again[reply] += event.text
        if heard.startswith(self._again[reply]):
            return []
        return self.left_of(_text(reply, self._again.pop(reply)))

    def _is_first(self, event: TurnEvent) -> bool:
        """Take note that something is tried again; return whether that was not heard yet."""
        known = (f"{event.type} {event.attempt}", event.correlation_id)
        first = known not in self._once
        self._once.add(known)
        return first

    def _is_over(self, reply: str) -> bool:
        return ("usage", reply) in self._once


def _text(reply: str, text: str) -> TurnEvent:
    return TurnEvent("text_delta", reply, text=text)


def recorded_events(messages: Sequence[Message]) -> list[TurnEvent]:
    """Return the events of messages that were recorded."""
    events: list[TurnEvent] = []
    iteration = 0
    for message in messages:
        match message:
            case AssistantMessage(source="model"):
                iteration += 1
                key = f"i{iteration}.llm"
                if message.reasoning:
                    events.append(TurnEvent("reasoning_delta", key, text=message.reasoning))
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
