"""Feeds: the events of a turn for listeners in the process that executes it, and relays for all others.

Rule 1. A slow or missing listener costs the turn nothing and never fails it.
Rule 2. A replayed turn emits no event twice.
Rule 3. Relays write events to the store in chunks, and only if a listener in another process has requested them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Final

import msgspec

from pylash.durable.stores import Store
from pylash.engine.hub import Hub
from pylash.engine.runs.run import LiveRun
from pylash.turn.events import TurnEvent
from pylash.turn.messages import ToolMessage
from pylash.values.canonical import write
from pylash.values.errors import StoreError

CHUNK_SECONDS: Final = 0.1
"""The interval at which a relay writes new events."""
FENCE_BITS: Final = 32
"""How many low bits of a chunk's number count the chunks of one execution; the bits above are its fence."""

_CHUNKS: msgspec.json.Decoder[list[TurnEvent]] = msgspec.json.Decoder(list[TurnEvent])

ONCE = frozenset({"turn_started", "tool_started", "tool_completed", "wait_opened", "usage"})
"""Types of events that happen once for each correlation id."""


# --- listeners in this process ---


class Feed:
    """The events of one turn in this process, in order."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self.ended = False
        # Whether the turn runs in this process. ``Feeds`` keeps a feed while it does, or while it has listeners
        # and has not ended: a parked turn continues in the same feed.
        self.runs_here = True
        # Counted by FeedListener alone.
        self.listeners = 0
        self._once: set[tuple[str, str]] = set()
        # The replies whose text is in ``events``, streamed or as a whole. A reset takes a reply out.
        self._replies: set[str] = set()
        # Set by every change, cleared by a listener that has received everything. Several listeners may clear it:
        # each does so only right before it waits, when it has seen all changes, and a change wakes all that wait.
        self._changed = asyncio.Event()

    def add(self, event: TurnEvent) -> None:
        """Add an event, unless it can happen only once and is there already."""
        if event.type in ONCE:
            known = (event.type, event.correlation_id)
            if known in self._once:
                return
            self._once.add(known)
        self.events.append(event)
        self._changed.set()

    def has_event(self, kind: str, correlation_id: str) -> bool:
        """Return whether an event that can happen only once was added."""
        return (kind, correlation_id) in self._once

    def begin_reply(self, correlation_id: str, attempt: int) -> None:
        """Start a reply; the text of an earlier attempt at it is reset."""
        if correlation_id in self._replies:
            self.reset_reply(correlation_id, attempt)
        self._replies.add(correlation_id)

    def reset_reply(self, correlation_id: str, attempt: int, why: str = "") -> None:
        """Add an event that a reply is streamed from its start again, and why."""
        self.add(TurnEvent("text_reset", correlation_id, text=why, attempt=attempt))
        self._replies.discard(correlation_id)

    def replay_reply(self, correlation_id: str, text: str) -> None:
        """Add a recorded reply as a whole, unless it was streamed here."""
        if correlation_id not in self._replies and text:
            self._replies.add(correlation_id)
            self.add(TurnEvent("text_delta", correlation_id, text=text))

    def close(self, *, ended: bool) -> None:
        """End all iterations: the turn has ended, or does not run here for now."""
        self.runs_here = False
        self.ended = self.ended or ended
        self._changed.set()

    async def follow(self, after: int = 0) -> AsyncIterator[TurnEvent]:
        """Yield every event after a number of them, until the turn has ended or left this process."""
        place = after
        while True:
            while place < len(self.events):
                yield self.events[place]
                place += 1
            if self.ended or not self.runs_here:
                return
            self._changed.clear()
            await self._changed.wait()


def streamed_reply(events: Iterable[TurnEvent], correlation_id: str) -> str | None:
    """Return the text of a reply as far as it was streamed; None if the reply has no event."""
    text: str | None = None
    for event in events:
        if event.correlation_id == correlation_id:
            if event.type == "text_reset":
                text = ""
            elif event.type == "text_delta":
                text = (text or "") + event.text
    return text


def completion_event(message: ToolMessage) -> TurnEvent:
    """Return the event of a call that has its result."""
    status = "failed" if message.error else "completed"
    return TurnEvent(
        "tool_completed", message.call_id, tool=message.tool, text=message.text, status=status
    )


class Feeds:
    """The feeds of the turns that run here, or that have listeners here."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}  # by the id of the run
        # Called within ``open``, in the task of the turn: they may set an event, and must not raise.
        self._watchers: list[Callable[[str], None]] = []

    def open(self, turn: str) -> Feed:
        """Return the feed of a turn."""
        feed = self._feeds.get(turn)
        if feed is None or feed.ended:
            feed = self._feeds[turn] = Feed()
        feed.runs_here = True
        for on_open in tuple(self._watchers):
            on_open(turn)
        return feed

    def watch(self, on_open: Callable[[str], None]) -> Callable[[], None]:
        """Call ``on_open`` whenever a turn starts to run here; return a function that unregisters it."""
        self._watchers.append(on_open)
        return lambda: self._watchers.remove(on_open)

    def find(self, turn: str) -> Feed | None:
        """Return the feed of a turn that runs here."""
        return self._feeds.get(turn)

    def leave(self, turn: str, *, ended: bool) -> None:
        """Close the feed of a turn that no longer runs here."""
        feed = self._feeds.get(turn)
        if feed is not None:
            feed.close(ended=ended)
            self.release(turn)

    def release(self, turn: str) -> None:
        """Drop a feed that has no writer and no listeners."""
        feed = self._feeds.get(turn)
        if feed is not None and not feed.runs_here and (feed.ended or not feed.listeners):
            del self._feeds[turn]


class FeedListener:
    """A listener to the feed of one turn; it keeps its position while the turn is parked."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._turn = ""
        self._feed: Feed | None = None
        self._received = 0

    @property
    def has_ended(self) -> bool:
        """Whether the turn of the feed has ended."""
        return self._feed is not None and self._feed.ended

    def listen_to(self, turn: str) -> bool:
        """Listen to a turn; return whether its feed has changed."""
        feed = self._feeds.open(turn)
        if feed is self._feed:
            return False
        self.stop()
        self._turn, self._feed, self._received = turn, feed, 0
        feed.listeners += 1
        return True

    async def follow(self) -> AsyncIterator[TurnEvent]:
        """Yield the events that were not received yet, until the turn has ended or left this process."""
        if self._feed is not None:
            async for event in self._feed.follow(self._received):
                self._received += 1
                yield event

    def stop(self) -> None:
        """Stop listening."""
        if self._feed is not None:
            self._feed.listeners -= 1
            self._feeds.release(self._turn)
            self._feed = None


# --- relays ---


async def relay_events(store: Store, run: LiveRun, feed: Feed) -> None:
    """Write the events of a turn for listeners in other processes, if there are any; runs until cancelled."""
    with suppress(StoreError):
        if not await store.turn_events.is_asked(run.record.run):
            return
    # The fence is in the upper bits, so that the chunks of a later execution sort after those of an earlier one. A
    # change of the upper bits shows a receiver that another execution streams now.
    # ``sent`` counts the events that were put into a chunk; a chunk that could not be written is not sent again.
    sent, sequence = 0, run.fence.token << FENCE_BITS
    while True:
        events = feed.events[sent:]
        if events:
            sent += len(events)
            sequence += 1
            with suppress(StoreError):  # best effort: a turn never fails because of a listener
                await store.turn_events.add(
                    run.record.run, run.fence.token, sequence, write(join_deltas(events))
                )
        await asyncio.sleep(CHUNK_SECONDS)


async def relayed_reply(store: Store, run: int, correlation_id: str) -> str:
    """Return the relayed text of a reply, of the last execution that streamed it."""
    executions: dict[int, list[TurnEvent]] = {}
    for sequence, body in await store.turn_events.read(run, 0):
        executions.setdefault(sequence >> FENCE_BITS, []).extend(_CHUNKS.decode(body))
    texts = [streamed_reply(events, correlation_id) for events in executions.values()]
    return next((text for text in reversed(texts) if text is not None), "")


def join_deltas(events: list[TurnEvent]) -> list[TurnEvent]:
    """Return events with consecutive pieces of one text joined."""
    result: list[TurnEvent] = []
    for event in events:
        last = result[-1] if result else None
        is_delta = event.type in ("text_delta", "reasoning_delta")
        key = (event.type, event.correlation_id)
        if is_delta and last is not None and (last.type, last.correlation_id) == key:
            result[-1] = msgspec.structs.replace(last, text=last.text + event.text)
        else:
            result.append(event)
    return result


async def receive_events(
    hub: Hub, store: Store, run: int, ended: Callable[[], bool]
) -> AsyncIterator[TurnEvent]:
    """Yield the relayed events of a turn that runs in another process, until it has ended."""
    with hub.listen(f"chunk:{run}") as listener:
        # The listener exists before the request, so that the first chunk wakes it.
        await store.turn_events.ask(run)
        after, reply = 0, ""
        while True:
            # Checked before the read, so that the last read contains everything that was relayed.
            is_over = ended()
            for sequence, body in await store.turn_events.read(run, after):
                if reply and sequence >> FENCE_BITS != after >> FENCE_BITS:
                    # The worker that streamed the reply died before its end.
                    yield TurnEvent("text_reset", reply)
                after = sequence
                for event in _CHUNKS.decode(body):
                    reply = _open_reply(event, reply)
                    yield event
            if is_over:
                return
            await listener.wait(CHUNK_SECONDS * 2)


def _open_reply(event: TurnEvent, before: str) -> str:
    """Return the id of the reply that is being streamed after an event; the event of its usage ends a reply."""
    if event.type == "text_delta":
        return event.correlation_id
    return "" if event.type == "usage" else before
