"""Histories: the committed messages of sessions, kept in memory while they are used.

Rule 1. A history is its session's path and nothing else: it is right if the head it was read to is.
Rule 2. Only what was added since is read, however long the rest is; and decoded only what is looked at.
Rule 3. Of a history that is sent in part, what is older is not even fetched; of a long one that is sent
        whole, only when the model's provider looks at it, and preferably in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from pylash.durable import Segment, SessionRecord, Sessions
from pylash.turn import (
    AssistantMessage,
    Attachment,
    History,
    Message,
    Provider,
    ToolMessage,
    Transcript,
    UserMessage,
    suffices,
)
from pylash.values import SessionUnknown

MAX_SESSIONS: Final = 512
MANY: Final = 500
FEW: Final = 64
"""How many messages are fetched first if only the last ones are needed; then as many again."""

# In every stored message that has attachments; a text that says so in quotes has them escaped.
_TAG: Final = b'"attachment"'


class _Known(msgspec.Struct):
    head: int
    messages: Transcript
    suits: History | None = None
    """For whom enough was fetched: it is enough for ever, since more only comes at the end."""
    attachments: bool | None = None
    """Whether any message has some; None if none of those that were fetched has."""

    def add_stored(self, bodies: Sequence[bytes]) -> None:
        """Take more messages as they are stored."""
        self.messages.add_stored(bodies)
        if _TAG in b"\n".join(bodies):
            self.attachments = True

    def add_before(self, bodies: Sequence[bytes], missing: int) -> None:
        """Take messages that come before those that are known; so many are still missing."""
        self.messages.add_before(bodies, missing)
        if self.attachments is None:
            seen = _TAG in b"\n".join(bodies)
            self.attachments = seen or (None if missing else False)

    def add(self, messages: Sequence[Message]) -> None:
        """Take more messages."""
        self.messages.add(messages)
        if any(map(has_attachments, messages)):
            self.attachments = True


class Histories:
    """The histories of sessions, the last used last. ``keep``: how many stay in memory."""

    def __init__(self, sessions: Sessions, keep: int = MAX_SESSIONS) -> None:
        self._sessions = sessions
        self._keep = keep
        self._known: OrderedDict[int, _Known] = OrderedDict()

    async def messages(
        self, session: SessionRecord, option: History | None = None, *, lazily: bool = False
    ) -> Transcript:
        """Return the messages of a session up to its head, the oldest first.

        ``option``: how they are sent; those that nobody will look at then may be missing. ``lazily``: the
        old ones of many are fetched by who looks at them.
        """
        known = self._known.get(session.number)
        if known is None or known.head > session.head:
            whole = sum(segment.upto for segment in session.path)
            known = _Known(session.head, Transcript(missing=whole, lock=threading.RLock))
            known.attachments = _attachments_in(session)
        if known.head < session.head:
            after = known.head
            added = await self._sessions.nodes(session.path[-1], after)
            if known.head == after:  # else another has added them while we read
                known.add_stored(added)
                known.head = session.head
            elif known.head != session.head:
                return await self.messages(session, option, lazily=lazily)
        whole = option is None or option.tokens is None
        if not (whole and lazily and await self._put_off(session, known)):
            await self._fetch(session, known, option)
        self._remember(session.number, known)
        return known.messages

    async def _fetch(self, session: SessionRecord, known: _Known, option: History | None) -> None:
        """Fetch older messages until there are enough, or all."""
        messages = known.messages
        whole = option is None or option.tokens is None
        while (stop := messages.missing) and (whole or option != known.suits):
            if option is not None and suffices(option, messages, stop):
                known.suits = option
                return
            fetched = len(messages) - stop
            start = 0 if whole else max(0, stop - max(FEW, fetched))
            await self._fetch_from(start, session, known)

    async def _fetch_from(self, start: int, session: SessionRecord, known: _Known) -> None:
        stop = known.messages.missing
        bodies = await self._between(session, start, stop)
        if known.messages.missing == stop:  # else another has fetched them while we read
            _check_whole(session, bodies, stop - start)
            known.add_before(bodies, start)

    async def _put_off(self, session: SessionRecord, known: _Known) -> bool:
        """Leave the old messages of a long history to who looks at them; return False if that cannot be."""
        messages = known.messages
        # Bytes of attachments are put in before a provider looks, and that takes more than waiting.
        if messages.missing <= MANY or known.attachments is not False:
            return False
        if messages.fetch is not None:
            return True
        if self._sessions.reader(session.path) is None:
            return False
        await self._fetch_from(messages.missing - FEW, session, known)

        def fetch() -> Sequence[bytes]:
            missing = messages.missing
            read = self._sessions.reader(_beginning(session.path, missing))
            bodies = read() if read is not None else ()
            _check_whole(session, bodies, missing)
            return bodies

        messages.fetch = fetch
        return True

    async def ready(
        self, session: SessionRecord, messages: Sequence[Message], provider: Provider
    ) -> None:
        """Fetch what was put off, if the provider might hold the loop with it while a network is slow."""
        if not self._sessions.is_far or getattr(provider, "reads_lazily", False):
            return
        if isinstance(messages, Transcript) and messages.fetch is not None:
            missing = messages.missing
            bodies = await self._between(session, 0, missing)
            _check_whole(session, bodies, missing)
            messages.add_before(bodies, 0)

    async def _between(self, session: SessionRecord, start: int, stop: int) -> list[bytes]:
        """Return some messages of a session, counted from its first."""
        bodies: list[bytes] = []
        for segment in session.path:
            if start < segment.upto and stop > 0:
                part = Segment(segment.number, min(segment.upto, stop))
                bodies += await self._sessions.nodes(part, max(0, start))
            start, stop = start - segment.upto, stop - segment.upto
        return bodies

    async def read(self, session: SessionRecord) -> list[Message]:
        """Return the messages of a session; many are decoded in a thread, so that nobody is held up."""
        try:
            messages = await self.messages(session)
        except SessionUnknown:
            return []
        return list(messages) if len(messages) < MANY else await asyncio.to_thread(list, messages)

    def has_attachments(self, session: SessionRecord) -> bool:
        """Return whether any message of a session has attachments, as far as is known."""
        known = self._known.get(session.number)
        return _attachments_in(session) is not False if known is None else bool(known.attachments)

    def attachments_after(self, session: SessionRecord, added: Sequence[Message]) -> bool | None:
        """Return whether any message will have attachments with what is added; None if nobody knows."""
        if any(map(has_attachments, added)):
            return True
        known = self._known.get(session.number)
        if known is None or known.head != session.head:
            return _attachments_in(session)
        return known.attachments

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


def _attachments_in(session: SessionRecord) -> bool | None:
    """Return whether any message of a session has attachments, if its last commit says so."""
    known: bool | None = (session.usage or {}).get("attachments")
    return known if any(segment.upto for segment in session.path) else False


def _check_whole(session: SessionRecord, bodies: Sequence[bytes], count: int) -> None:
    if len(bodies) != count:
        raise SessionUnknown(session.id)  # it was deleted while it was read


def _beginning(path: Sequence[Segment], length: int) -> list[Segment]:
    """Return the first nodes of a path, so many."""
    parts: list[Segment] = []
    for segment in path:
        parts.append(Segment(segment.number, min(segment.upto, length)))
        length -= parts[-1].upto
    return parts


def has_attachments(message: Message) -> bool:
    """Return whether a message has bytes to be put in before it is sent."""
    if isinstance(message, UserMessage):
        return any(isinstance(part, Attachment) for part in message.parts)
    if isinstance(message, AssistantMessage):
        return bool(message.attachments)
    return any(map(is_picture, message.attachments))


def attachment_refs(message: Message) -> Iterator[str]:
    """Yield the references to attachments in a message: only a message that we made has them."""
    parts = message.parts if isinstance(message, UserMessage) else message.attachments
    for part in parts:
        if isinstance(part, Attachment) and part.ref is not None:
            yield part.ref
    if isinstance(message, ToolMessage):
        yield from message.stored


def is_picture(part: Attachment) -> bool:
    """Return whether a model is shown an attachment of a tool's result, rather than told its name."""
    return part.media_type.startswith("image/")
