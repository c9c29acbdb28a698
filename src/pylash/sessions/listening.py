"""Listening to one turn, wherever it runs: in this process, in another one, or in the past.

Rule 1. A listener receives every event once and in order, also if the turn moves between processes.
Rule 2. Events are live and may be lost. When the turn has ended, the rest comes from its stored messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_text
from pylash.sessions.feeds import FeedListener, completion_event, receive_events
from pylash.turn.events import TurnEvent
from pylash.turn.messages import (
    MESSAGES,
    AssistantMessage,
    Message,
    ToolMessage,
    Usage,
    UserMessage,
)
from pylash.values.turn_errors import SessionUnknown

if TYPE_CHECKING:
    from pylash.durable.ports import Runner
    from pylash.engine.run_results import RunResults
    from pylash.sessions.services import SessionServices


class TurnListener:
    """Receives the events of one turn."""

    def __init__(
        self,
        scope: TurnScope | QueueDrainScope,
        services: SessionServices,
        runner: Runner,
        results: RunResults,
    ) -> None:
        self._scope = scope
        self._run = scope_text(scope)
        self._services = services
        self._runner = runner
        self._results = results
        self._received = ReceivedEvents()
        # Set by ``_watch`` alone. Each iteration checks it, because the turn may end while the listener switches
        # between two sources.
        self._ended = asyncio.Event()

    async def events(self) -> AsyncIterator[TurnEvent]:
        """Yield the events of the turn until it has ended."""
        # Started before the first check where the turn runs: an end between two sources sets ``_ended``.
        watching = self._services.tasks.start(self._watch())
        try:
            async for event in self._live():
                for fresh in self._received.new_part(event):
                    yield fresh
            # Only now are the messages complete: events that the live sources lost are read from them.
            _, plain = await self._results.wait(self._run)
        finally:
            watching.cancel()
        for event in await self._stored_events(plain):
            for missing in self._received.missing_part(event):
                yield missing

    async def _live(self) -> AsyncIterator[TurnEvent]:
        """Yield the events of the turn while it runs; a new source may repeat events of an earlier one."""
        services, local = self._services, FeedListener(self._services.feeds)
        try:
            while not self._ended.is_set():
                # Checked in every round: a source ends when the turn leaves its process, and another may execute it by then.
                if not self._runner.has(self._run):
                    turn = await services.store.sessions.turn(self._scope)
                    if turn is None or turn.settled:
                        return
                    self._received.restart()
                    relayed = receive_events(services.hub, services.store, turn.run, self._has_left)
                    async for event in relayed:
                        yield event
                    continue
                # The same feed continues where it was left; another one starts with the first event again.
                if local.listen_to(self._run):
                    self._received.restart()
                async for event in local.follow():
                    yield event
                if local.has_ended:
                    return
        finally:
            local.stop()

    def _has_left(self) -> bool:
        """Return whether the turn has left the other process: it has ended, or runs in this one now."""
        return self._ended.is_set() or self._runner.has(self._run)

    async def _watch(self) -> None:
        """Close the feed when the turn has ended in another process."""
        await self._results.wait(self._run)
        self._ended.set()
        # A turn that ran here closes its own feed, after its last event; a turn that moved away does not.
        feed = self._services.feeds.find(self._run)
        if feed is not None and not self._runner.has(self._run):
            feed.close(ended=True)

    async def _stored_events(self, plain: Any) -> list[TurnEvent]:
        """Return the events of the turn, which has ended, from its result and its stored messages."""
        messages: list[Message] = []
        if "nodes" in plain:  # else its session was deleted
            sessions = self._services.store.sessions
            record = await sessions.get(self._scope.session_id)
            if record is None:
                raise SessionUnknown(self._scope.session_id)
            first, last = plain["nodes"]
            segment = msgspec.structs.replace(record.path[-1], upto=last)
            messages = [MESSAGES.decode(body) for body in await sessions.nodes(segment, first - 1)]
        usage = msgspec.convert(plain.get("usage") or {}, Usage)
        end = TurnEvent("turn_completed", self._scope.id, status=plain["status"], usage=usage)
        return [TurnEvent("turn_started", self._scope.id), *recorded_events(messages), end]


class ReceivedEvents:
    """The events of a turn that a listener has received, so that each event is yielded exactly once."""

    def __init__(self) -> None:
        # The type and correlation id of events that come once. "usage" of a reply is the last event of that reply.
        self._once: set[tuple[str, str]] = set()
        # The text of each reply as the listener has it: all that was passed on since its last reset.
        self._texts: dict[str, str] = {}
        # Replies of which reasoning was passed on: then the recorded reasoning is left out, even if some was lost.
        self._reasoned: set[str] = set()
        self._restarted: dict[str, str] = {}
        """The text received so far of each reply that is being streamed from its start again."""

    def restart(self) -> None:
        """Prepare for a source that sends the turn's events from the start, or from an earlier position."""
        self._restarted = {
            reply: "" for reply, text in self._texts.items() if text and not self._is_over(reply)
        }

    def new_part(self, event: TurnEvent) -> list[TurnEvent]:
        """Record an event; return the part of it that is new."""
        reply = event.correlation_id
        match event.type:
            case "text_delta" | "text_reset" | "reasoning_delta" if self._is_over(reply):
                return []  # a complete reply, sent again by the worker that continues the turn
            case "text_delta":
                return self._new_text(reply, event)
            case "text_reset":
                self._restarted.pop(reply, None)
                before, self._texts[reply] = self._texts.get(reply), ""
                return [event] if before or self._add_attempt(event) else []
            case "reasoning_delta":
                self._reasoned.add(reply)
                return [event]
            case "tool_progress":
                return [event] if event.attempt == 1 or self._add_attempt(event) else []
            case _:
                known = (event.type, reply)
                if known in self._once:
                    return []
                self._once.add(known)
                shorter = self._restarted.pop(reply, None) if event.type == "usage" else None
                return [*self.missing_part(_text(reply, shorter)), event] if shorter else [event]

    def missing_part(self, event: TurnEvent) -> list[TurnEvent]:
        """Return the part of a recorded event that was not received."""
        if event.type == "reasoning_delta" and event.correlation_id in self._reasoned:
            return []
        if event.type != "text_delta":
            return self.new_part(event)
        before = self._texts.get(event.correlation_id, "")
        if before == event.text:
            return []
        self._texts[event.correlation_id] = event.text
        if event.text.startswith(before):
            return [_text(event.correlation_id, event.text[len(before) :])]
        return [TurnEvent("text_reset", event.correlation_id), event]

    def _new_text(self, reply: str, event: TurnEvent) -> list[TurnEvent]:
        before = self._texts.get(reply, "")
        if reply not in self._restarted:
            self._texts[reply] = before + event.text
            return [event]
        # A source that starts again repeats what the listener has. Nothing is passed on until its text differs from that,
        # or is longer: a listener never sees a text shrink without a reset.
        self._restarted[reply] += event.text
        if before.startswith(self._restarted[reply]):
            return []
        return self.missing_part(_text(reply, self._restarted.pop(reply)))

    def _add_attempt(self, event: TurnEvent) -> bool:
        """Record the attempt of an event; return whether it is new."""
        attempt = (f"{event.type} {event.attempt}", event.correlation_id)
        is_new = attempt not in self._once
        self._once.add(attempt)
        return is_new

    def _is_over(self, reply: str) -> bool:
        return ("usage", reply) in self._once


def _text(reply: str, text: str) -> TurnEvent:
    return TurnEvent("text_delta", reply, text=text)


def recorded_events(messages: Sequence[Message]) -> list[TurnEvent]:
    """Return the events that correspond to stored messages."""
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
                events.append(completion_event(message))
            case UserMessage() | AssistantMessage():
                pass
    return events
