"""Writes of a turn: nodes and effects, in as few transactions as possible.

Rule 1. An effect and its node are written together, or not at all.
Rule 2. A message that follows from recorded ones (a refused call, a rejected approval) waits for the next write.
Rule 3. An effect is held back only if nothing outside happens between it and the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pylash.durable.runs import Fence, JournalEntry
from pylash.durable.session_store import Sessions
from pylash.durable.sessions import Queued, SessionRecord, Writing
from pylash.turn.messages import MESSAGES, Attachment, Message, Text, UserMessage
from pylash.values.canonical import write, write_payload
from pylash.values.errors import StoreError


class _Gathering(NamedTuple):
    """A write that effects of one cycle of the loop share; ``written`` completes with it."""

    fence: Fence
    written: asyncio.Future[None]
    soon: asyncio.Handle


class TurnWriter:
    """Writes the messages and effects of one turn. A place is counted from the session's head.

    A node is at one of three stages: prepared with an effect that has not been recorded (``_prepared``), waiting
    for the next write (``_nodes``), and written or being written (``_on_disk``).
    """

    def __init__(
        self, sessions: Sessions, session: SessionRecord, nodes: Mapping[int, bytes]
    ) -> None:
        self.session = session
        self.base = session.head + 1
        self.envs: dict[str, bytes] = {}
        """Environments by ref, for the next write."""
        self.attachments: dict[str, bytes] = {}
        """Bodies of attachments by ref, for the next write."""
        self._sessions = sessions
        self._on_disk = dict(nodes)
        self._nodes: dict[int, bytes] = {}
        self._held: list[JournalEntry] = []
        self._prepared: dict[str, tuple[int, bytes, Mapping[str, bytes]]] = {}
        self._gathering: _Gathering | None = None

    # --- messages ---

    def read(self, place: int) -> Message | None:
        """Return the message at a place of this turn; None if there is none yet."""
        body = self._on_disk.get(place) or self._nodes.get(place)
        return None if body is None else MESSAGES.decode(body)

    def note(self, messages: Sequence[Message]) -> None:
        """Keep those messages of the turn that are not written yet for the next write."""
        for place, message in enumerate(messages, self.base):
            if place not in self._on_disk and place not in self._nodes:
                self._nodes[place] = write(message)

    def wrote(self, nodes: Iterable[tuple[int, bytes]]) -> None:
        """Take note of nodes that an operation of the store wrote itself."""
        self._on_disk.update(nodes)

    # --- effects ---

    def prepare(
        self, key: str, index: int, message: Message, attached: Mapping[str, bytes] | None = None
    ) -> int:
        """Keep the node of an effect until that is recorded; return its place."""
        place = self.base + index
        self._prepared[key] = (place, write_payload(message, 1), attached or {})
        return place

    def complete(self, key: str) -> None:
        """Have the node of an effect written next. A host without a journal records no effect, so callers do it."""
        prepared = self._prepared.pop(key, None)
        if prepared is not None:
            place, body, attached = prepared
            self._nodes[place] = body
            self.attachments.update(attached)

    async def hold(self, _: Fence, entry: JournalEntry) -> JournalEntry:
        """Keep an effect for the next write, or for the commit."""
        self.complete(entry.key)
        self._held.append(entry)
        return entry

    async def record(self, fence: Fence, entry: JournalEntry) -> JournalEntry:
        """Write an effect with everything that waits, and with the effects that end in the same cycle of the loop."""
        self.complete(entry.key)
        self._held.append(entry)
        if self._gathering is None:
            loop = asyncio.get_running_loop()
            soon = loop.call_soon(self._send)
            self._gathering = _Gathering(fence, loop.create_future(), soon)
        # Shielded: the future is shared by all effects of the write, and one of them may be cancelled.
        await asyncio.shield(self._gathering.written)
        return entry

    def _send(self) -> None:
        """Start the write of the gathered effects, if there are any."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        gathering.soon.cancel()
        try:
            writing = self._sessions.record(gathering.fence, self.session, self._take_pending())
        except StoreError as error:  # the store has closed
            gathering.written.set_exception(error)
            return
        assert isinstance(writing, asyncio.Future)  # an operation of the store, and started
        writing.add_done_callback(partial(_copy_result, gathering.written))

    def _take_pending(self) -> Writing:
        """Return everything that waits to be written: from now on it counts as written."""
        nodes = tuple(sorted(self._nodes.items()))
        writing = Writing(
            entries=tuple(self._held),
            nodes=nodes,
            envs=tuple(self.envs.items()),
            attachments=tuple(self.attachments.items()),
        )
        self._on_disk.update(nodes)
        self._nodes, self._held, self.envs, self.attachments = {}, [], {}, {}
        return writing

    # --- the end ---

    def finish(self, messages: Sequence[Message]) -> tuple[Writing, bool]:
        """Return the last writes of a turn with these messages, and whether they replace all earlier ones."""
        stop = self.base + len(messages)
        # A turn that was cancelled between an effect and its consequences leaves out the effect's message.
        is_fresh = max((*self._on_disk, *self._nodes), default=0) >= stop
        if is_fresh:
            self._on_disk, self._nodes = {}, {}
        self.note(messages)
        self._send()  # before the commit: effects are written in the order in which they ended
        return self._take_pending(), is_fresh


def _copy_result(written: asyncio.Future[None], writing: asyncio.Future[Any]) -> None:
    """Complete the future of gathered effects with how their write ended."""
    if written.done():
        return
    if writing.cancelled():
        written.cancel()
    elif (error := writing.exception()) is not None:
        written.set_exception(error)
    else:
        written.set_result(None)


def queued_message(words: Queued) -> UserMessage:
    """Return a queued message as a message of a turn."""
    source: Any = "wake" if words.policy == "wake" else "user"
    # The text of a wake is data of the process, even if it has the form of parts: it must not name attachments.
    if source == "user" and isinstance(words.body, dict) and "parts" in words.body:
        parts = msgspec.convert(words.body["parts"], tuple[Text | Attachment, ...])
        return UserMessage(parts, source=source)
    text = words.body if isinstance(words.body, str) else write(words.body).decode()
    return UserMessage((Text(text),), source=source)
