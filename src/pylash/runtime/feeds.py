"""Feeds: what listeners of a turn hear while it runs in this process.

Rule 1. A listener that is slow, gone or never came costs the turn nothing and never fails it.
Rule 2. A turn that is replayed says nothing twice: who listens has heard it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from pylash.turn import ToolMessage, TurnEvent

ONCE = frozenset({"turn_started", "tool_started", "tool_completed", "wait_opened", "usage"})


class Feed:
    """Everything one turn has said here, in order."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self.ended = False
        self.here = True
        self.listeners = 0
        self._said: set[tuple[str, str]] = set()
        self._spoken: set[str] = set()
        self._bell: asyncio.Future[None] | None = None

    def say(self, event: TurnEvent) -> None:
        """Add an event; what can only happen once is said once."""
        if event.type in ONCE:
            known = (event.type, event.correlation_id)
            if known in self._said:
                return
            self._said.add(known)
        self.events.append(event)
        self._ring()

    def has_said(self, kind: str, correlation_id: str) -> bool:
        """Return whether something that can only happen once was said."""
        return (kind, correlation_id) in self._said

    def begin_reply(self, correlation_id: str, attempt: int) -> None:
        """Begin a reply; what was heard of an earlier attempt at it does not count."""
        if correlation_id in self._spoken:
            self.reset_reply(correlation_id, attempt)
        self._spoken.add(correlation_id)

    def reset_reply(self, correlation_id: str, attempt: int, why: str = "") -> None:
        """Say that a reply will begin anew, and why."""
        self.say(TurnEvent("text_reset", correlation_id, text=why, attempt=attempt))
        self._spoken.discard(correlation_id)

    def replay_reply(self, correlation_id: str, text: str) -> None:
        """Say a recorded reply as a whole, unless it was heard as it came."""
        if correlation_id not in self._spoken and text:
            self._spoken.add(correlation_id)
            self.say(TurnEvent("text_delta", correlation_id, text=text))

    def end(self) -> None:
        """Say that nothing comes any more."""
        self.ended = True
        self._ring()

    def leave(self) -> None:
        """Say that the turn does not run here any more, for now."""
        self.here = False
        self._ring()

    async def follow(self, after: int = 0) -> AsyncIterator[TurnEvent]:
        """Yield every event after a number of them, until the turn has ended or left."""
        place = after
        while True:
            while place < len(self.events):
                yield self.events[place]
                place += 1
            if self.ended or not self.here:
                return
            if self._bell is None or self._bell.done():
                self._bell = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._bell,))

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)


def streamed_reply(events: Iterable[TurnEvent], correlation_id: str) -> str | None:
    """Return the text of a reply as far as it was streamed; None if events say nothing about it."""
    text: str | None = None
    for event in events:
        if event.correlation_id == correlation_id:
            if event.type == "text_reset":
                text = ""
            elif event.type == "text_delta":
                text = (text or "") + event.text
    return text


def completed(message: ToolMessage) -> TurnEvent:
    """Return what is said of a call that has its result."""
    status = "failed" if message.error else "completed"
    return TurnEvent(
        "tool_completed", message.call_id, tool=message.tool, text=message.text, status=status
    )


class Feeds:
    """The feeds of the turns that run here, or that somebody here listens to."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}
        self._watchers: list[Callable[[str], None]] = []

    def open(self, turn: str) -> Feed:
        """Return the feed of a turn."""
        feed = self._feeds.get(turn)
        if feed is None or feed.ended:
            feed = self._feeds[turn] = Feed()
        feed.here = True
        for told in tuple(self._watchers):
            told(turn)
        return feed

    def watch(self, told: Callable[[str], None]) -> Callable[[], None]:
        """Call ``told`` whenever a turn begins to run here; return how to stop."""
        self._watchers.append(told)
        return lambda: self._watchers.remove(told)

    def find(self, turn: str) -> Feed | None:
        """Return the feed of a turn that runs here."""
        return self._feeds.get(turn)

    def leave(self, turn: str, *, ended: bool) -> None:
        """Hear that a turn does not run here any more; who listens keeps its feed."""
        feed = self._feeds.get(turn)
        if feed is None:
            return
        if ended:
            feed.end()
        feed.leave()
        self.release(turn)

    def release(self, turn: str) -> None:
        """Let go of a feed that nobody writes to or listens to."""
        feed = self._feeds.get(turn)
        if feed is not None and not feed.here and (feed.ended or not feed.listeners):
            del self._feeds[turn]
