"""Histories: the committed messages of sessions, kept in memory while they are used.

Rule 1. A history is its session's path and nothing else: it is right if the head it was read to is.
Rule 2. Only what was added since is read, however long the rest is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from pylash.durable import SessionRecord, Sessions
from pylash.turn import MESSAGES, Attachment, Message, ToolMessage, UserMessage

MAX_SESSIONS: Final = 512
MANY: Final = 500


class _Known(msgspec.Struct):
    head: int
    messages: list[Message]
    attachments: bool = False

    def add(self, messages: Iterable[Message]) -> None:
        """Take more messages."""
        added = list(messages)
        self.messages.extend(added)
        self.attachments = self.attachments or any(map(has_attachments, added))


class Histories:
    """The histories of sessions, the last used last. ``keep``: how many stay in memory."""

    def __init__(self, sessions: Sessions, keep: int = MAX_SESSIONS) -> None:
        self._sessions = sessions
        self._keep = keep
        self._known: OrderedDict[int, _Known] = OrderedDict()

    async def messages(self, session: SessionRecord) -> list[Message]:
        """Return the messages of a session up to its head, the oldest first."""
        known = self._known.get(session.number)
        if known is None or known.head > session.head:
            known = _Known(0, [])
            known.add(await self._inherited(session))
        if known.head < session.head:
            after = known.head
            added = await _read(await self._sessions.nodes(session.path[-1], after))
            if known.head == after:  # else another has added them while we read
                known.add(added)
                known.head = session.head
            elif known.head != session.head:
                return await self.messages(session)
        self._remember(session.number, known)
        return known.messages

    def has_attachments(self, session: SessionRecord) -> bool:
        """Return whether any message of a session has attachments, as far as is known."""
        known = self._known.get(session.number)
        return known is None or known.attachments

    def commit(self, session: SessionRecord, added: Sequence[Message]) -> None:
        """Hear that a turn was committed here, with what it added."""
        known = self._known.get(session.number)
        if known is not None and known.head == session.head:
            known.add(added)
            known.head += len(added)

    def forget(self, number: int) -> None:
        """Let go of a session."""
        self._known.pop(number, None)

    async def _inherited(self, session: SessionRecord) -> list[Message]:
        messages: list[Message] = []
        for segment in session.origin:
            messages.extend(await _read(await self._sessions.nodes(segment)))
        return messages

    def _remember(self, number: int, known: _Known) -> None:
        if not self._keep:
            return
        self._known[number] = known
        self._known.move_to_end(number)
        while len(self._known) > self._keep:
            self._known.popitem(last=False)


async def _read(bodies: list[bytes]) -> list[Message]:
    """Return stored messages; many of them are read in a thread, so that nobody is held up."""
    if len(bodies) < MANY:
        return list(map(MESSAGES.decode, bodies))
    return await asyncio.to_thread(lambda: list(map(MESSAGES.decode, bodies)))


def has_attachments(message: Message) -> bool:
    """Return whether a message has bytes to be put in before it is sent."""
    if isinstance(message, UserMessage):
        return any(isinstance(part, Attachment) for part in message.parts)
    return isinstance(message, ToolMessage) and any(map(is_picture, message.attachments))


def is_picture(part: Attachment) -> bool:
    """Return whether a model is shown an attachment of a tool's result, rather than told its name."""
    return part.media_type.startswith("image/")
