"""Histories: the committed messages of sessions, kept in memory while they are used.

Rule 1. A history is its session's path and nothing else: it is right if the head it was read to is.
Rule 2. Only what was added since is read, however long the rest is; and decoded only what is looked at.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from pylash.durable import SessionRecord, Sessions
from pylash.turn import Attachment, Message, ToolMessage, Transcript, UserMessage

MAX_SESSIONS: Final = 512
MANY: Final = 500

# In every stored message that has attachments; a text that says so in quotes has them escaped.
_TAG: Final = b'"attachment"'


class _Known(msgspec.Struct):
    head: int
    messages: Transcript
    attachments: bool = False

    def add_stored(self, bodies: Sequence[bytes]) -> None:
        """Take more messages as they are stored."""
        self.messages.add_stored(bodies)
        self.attachments = self.attachments or any(_TAG in body for body in bodies)

    def add(self, messages: Sequence[Message]) -> None:
        """Take more messages."""
        self.messages.add(messages)
        self.attachments = self.attachments or any(map(has_attachments, messages))


class Histories:
    """The histories of sessions, the last used last. ``keep``: how many stay in memory."""

    def __init__(self, sessions: Sessions, keep: int = MAX_SESSIONS) -> None:
        self._sessions = sessions
        self._keep = keep
        self._known: OrderedDict[int, _Known] = OrderedDict()

    async def messages(self, session: SessionRecord) -> Transcript:
        """Return the messages of a session up to its head, the oldest first."""
        known = self._known.get(session.number)
        if known is None or known.head > session.head:
            known = _Known(0, Transcript())
            for segment in session.origin:
                known.add_stored(await self._sessions.nodes(segment))
        if known.head < session.head:
            after = known.head
            added = await self._sessions.nodes(session.path[-1], after)
            if known.head == after:  # else another has added them while we read
                known.add_stored(added)
                known.head = session.head
            elif known.head != session.head:
                return await self.messages(session)
        self._remember(session.number, known)
        return known.messages

    async def read(self, session: SessionRecord) -> list[Message]:
        """Return the messages of a session; many are decoded in a thread, so that nobody is held up."""
        messages = await self.messages(session)
        return list(messages) if len(messages) < MANY else await asyncio.to_thread(list, messages)

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

    def _remember(self, number: int, known: _Known) -> None:
        if not self._keep:
            return
        self._known[number] = known
        self._known.move_to_end(number)
        while len(self._known) > self._keep:
            self._known.popitem(last=False)


def has_attachments(message: Message) -> bool:
    """Return whether a message has bytes to be put in before it is sent."""
    if isinstance(message, UserMessage):
        return any(isinstance(part, Attachment) for part in message.parts)
    return isinstance(message, ToolMessage) and any(map(is_picture, message.attachments))


def is_picture(part: Attachment) -> bool:
    """Return whether a model is shown an attachment of a tool's result, rather than told its name."""
    return part.media_type.startswith("image/")
