"""Observing a session: what was said, and what is being said, from wherever one left off.

Rule 1. A cursor is a place in the transcript. What is committed after it is told, once and in order.
Rule 2. A cursor of a session that is not there any more gets a gap with a fresh view, never silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from pylash.durable import SessionRecord, scope_from_text, session_of
from pylash.runtime.feeds import Feed, Feeds
from pylash.turn import Message, TurnEvent
from pylash.values import CursorInvalid, SessionUnknown

if TYPE_CHECKING:
    from pylash.runtime.programs import Services
    from pylash.runtime.worker import Worker

NET_SECONDS: Final = 5.0


class Observed(msgspec.Struct, frozen=True):
    """Something seen in a session: a committed message, an event of the turn that runs, or a gap.

    ``cursor`` is where to go on after it. ``messages`` is the fresh view that comes with a gap.
    """

    type: Literal["message", "event", "gap"]
    cursor: str
    message: Message | None = None
    event: TurnEvent | None = None
    messages: tuple[Message, ...] = ()


class Cursor(msgspec.Struct, frozen=True):
    """A place in a session: its line of nodes, and how many messages of the whole path were seen."""

    number: int
    seen: int

    @property
    def text(self) -> str:
        """The cursor as people keep it."""
        return f"v1.{self.number:x}.{self.seen:x}"

    @staticmethod
    def read(text: str) -> Cursor:
        """Return the cursor in a text."""
        try:
            version, number, seen = text.split(".")
            cursor = Cursor(int(number, 16), int(seen, 16))
            if version == "v1" and cursor.seen >= 0:
                return cursor
        except (AttributeError, ValueError):
            pass
        raise CursorInvalid(text)


async def observed(
    session_id: str, cursor: str | None, services: Services, worker: Worker
) -> AsyncIterator[Observed]:
    """Yield what was said after a cursor, then what is said from now on, for ever."""
    place = None if cursor is None else Cursor.read(cursor)
    bell = asyncio.Event()

    def hear(topic: str) -> None:
        if topic in ("", f"session:{session_id}"):
            bell.set()

    def begun(turn: str) -> None:
        if _is_of(turn, session_id):
            bell.set()

    seat = _Seat(services.feeds)
    stops = [services.store.subscribe(hear), services.feeds.watch(begun), seat.leave]
    try:
        while True:
            bell.clear()
            if (found := await _read(session_id, services)) is not None:
                record, messages = found
                told = _committed(record, messages, place)
                place = Cursor(record.number, len(messages))  # of now: they grow meanwhile
                for item in told:
                    yield item
            async for item in _running(session_id, place, worker, seat):
                yield item
            with suppress(TimeoutError):
                async with asyncio.timeout(NET_SECONDS):
                    await bell.wait()
    finally:
        for stop in stops:
            stop()


async def _read(
    session_id: str, services: Services
) -> tuple[SessionRecord, Sequence[Message]] | None:
    """Return a session and its messages, if there is one, and it is not deleted while it is read."""
    record = await services.store.sessions.get(session_id)
    with suppress(SessionUnknown):
        return None if record is None else (record, await services.histories.messages(record))
    return None


def _committed(
    record: SessionRecord, messages: Sequence[Message], place: Cursor | None
) -> list[Observed]:
    """Return what was committed after a place, or a gap if the place is not there any more."""
    total = len(messages)
    if place is None:
        place = Cursor(record.number, 0)
    if place.number != record.number or place.seen > total:
        fresh = Cursor(record.number, total)
        return [Observed("gap", fresh.text, messages=tuple(messages))]
    return [
        Observed("message", Cursor(record.number, seen + 1).text, message=messages[seen])
        for seen in range(place.seen, total)
    ]


class _Seat:
    """Where an observer listens: at one feed, which it keeps while its turn is parked."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._turn = ""
        self._feed: Feed | None = None
        self._heard = 0

    async def follow(self, turn: str) -> AsyncIterator[TurnEvent]:
        """Yield what a turn says that was not heard yet, until it has ended or left."""
        feed = self._feeds.open(turn)
        if feed is not self._feed:
            self.leave()
            self._turn, self._feed, self._heard = turn, feed, 0
            feed.listeners += 1
        async for event in feed.follow(self._heard):
            self._heard += 1
            yield event

    def leave(self) -> None:
        """Listen no more."""
        if self._feed is not None:
            self._feed.listeners -= 1
            self._feeds.release(self._turn)
            self._feed = None


async def _running(
    session_id: str, place: Cursor | None, worker: Worker, seat: _Seat
) -> AsyncIterator[Observed]:
    """Yield what the turn says that runs here, until it is over."""
    turn = worker.turn_here(session_id)
    if turn is None:
        return
    cursor = Cursor(0, 0).text if place is None else place.text
    async for event in seat.follow(turn):
        yield Observed("event", cursor, event=event)


def _is_of(turn: str, session_id: str) -> bool:
    return turn.startswith("{") and session_of(scope_from_text(turn)) == session_id
