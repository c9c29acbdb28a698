"""Histories: the committed messages of sessions, cached in memory.

Rule 1. Committed messages never change and a session grows only at its end, so a cached history is valid
        up to its stop: only newer messages are read again.
Rule 2. With a token limit (``Window``, ``Summarise``) only the newest messages that it needs are read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from pylash.durable.session_store import Sessions
from pylash.durable.sessions import Segment, SessionRecord
from pylash.turn.histories import History, Tail, suffices
from pylash.turn.messages import (
    MESSAGES,
    Message,
    attachment_refs,
    has_attachments,
)
from pylash.turn.views import view_of
from pylash.values.turn_errors import SessionUnknown

MAX_MESSAGES: Final = 100_000
"""How many messages are cached for all sessions together, besides those of the last session."""
THREAD_THRESHOLD: Final = 500
"""From this number on, messages are decoded in a thread, so that the event loop is not blocked."""
FIRST_READ: Final = 64
"""How many messages are read first if a token limit applies. Each further read doubles the number."""


class Histories:
    """Reads histories of sessions. ``keep``: how many messages are cached; 0 turns the cache off."""

    def __init__(self, sessions: Sessions, keep: int = MAX_MESSAGES) -> None:
        self._sessions = sessions
        self._keep = keep
        # By session number, least recently used first. A tail is never changed, only replaced, so
        # concurrent readers may share one; the last of them to finish replaces the entries of the others.
        # All tails of a session share one list of messages, as long as no message is inserted before its first one.
        self._cache: OrderedDict[int, Tail] = OrderedDict()
        self._cached_messages = 0

    async def tail(self, session: SessionRecord, limit: History | None = None) -> Tail:
        """Return the messages of a session up to its head: all of them, or those that a limit needs."""
        stop = _length(session)
        tail = self._cache.get(session.number)
        if tail is None or tail.start > stop:
            tail = Tail(start=stop)
        if tail.stop > stop:  # a turn was committed since the record was read
            tail = replace(tail, messages=tail.messages.first(stop - tail.start))
        if tail.stop < stop:
            tail = _append(tail, await self._read(session, tail.stop, stop))
        is_unlimited = limit is None or limit.tokens is None
        while not suffices(limit, tail):
            start = 0 if is_unlimited else max(0, tail.start - max(FIRST_READ, len(tail.messages)))
            older = await self._read(session, start, tail.start)
            tail = _append(Tail(start=start), [*older, *tail.messages])
        self._put(session.number, tail)
        return tail

    async def messages(self, session: SessionRecord) -> list[Message]:
        """Return all messages of a session; none if it is deleted while they are read."""
        try:
            tail = await self.tail(session)
        except SessionUnknown:
            return []
        return [*tail.messages]

    async def view(self, session_id: str, last: int | None) -> list[dict[str, Any]]:
        """Return the last messages of a session as plain JSON, all by default; none if there is no session."""
        record = await self._sessions.get(session_id)
        return [] if record is None else view_of(await self.messages(record), last)

    async def attachments(self, session_id: str) -> set[str]:
        """Return the references to attachments in the messages of a session, those of a running turn included."""
        record = await self._sessions.get(session_id)
        if record is None:
            return set()
        uncommitted = (await self._sessions.uncommitted(record)).values()
        messages = [*await self.messages(record), *map(MESSAGES.decode, uncommitted)]
        return {ref for message in messages for ref in attachment_refs(message)}

    def commit(self, session: SessionRecord, added: list[Message]) -> None:
        """Add the messages of a turn that this process committed."""
        tail = self._cache.get(session.number)
        if tail is not None and tail.stop == _length(session):
            self._put(session.number, _append(tail, added))

    def forget(self, number: int) -> None:
        """Remove a session from the cache."""
        tail = self._cache.pop(number, None)
        self._cached_messages -= 0 if tail is None else len(tail.messages)

    async def _read(self, session: SessionRecord, start: int, stop: int) -> list[Message]:
        """Read the messages of a session from ``start`` to ``stop``, counted from its first."""
        bodies: list[bytes] = []
        count = stop - start
        for segment in session.path:
            if start < segment.upto and stop > 0:
                part = Segment(segment.number, min(segment.upto, stop))
                bodies += await self._sessions.nodes(part, max(0, start))
            start, stop = start - segment.upto, stop - segment.upto
        if len(bodies) != count:
            raise SessionUnknown(session.id)  # it was deleted while it was read
        return (
            _decode(bodies)
            if count < THREAD_THRESHOLD
            else await asyncio.to_thread(_decode, bodies)
        )

    def _put(self, number: int, tail: Tail) -> None:
        if not self._keep:
            return
        self.forget(number)
        self._cache[number] = tail
        self._cached_messages += len(tail.messages)
        while self._cached_messages > self._keep and len(self._cache) > 1:
            self.forget(next(iter(self._cache)))


def _length(session: SessionRecord) -> int:
    """Return how many messages a session has, with those of the sessions that it was forked from."""
    return sum(segment.upto for segment in session.path)


def _decode(bodies: Sequence[bytes]) -> list[Message]:
    return [MESSAGES.decode(body) for body in bodies]


def _append(tail: Tail, added: list[Message]) -> Tail:
    attached = tail.has_attachments or any(map(has_attachments, added))
    return Tail(tail.messages.plus(added), tail.start, has_attachments=attached)
