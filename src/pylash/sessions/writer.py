"""Writes of a turn: nodes and effects, in as few transactions as possible.

Rule 1. An effect and its node are written together, or not at all.
Rule 2. A message that follows from recorded ones (a refused call, a rejected approval) waits for the next write.
Rule 3. An effect is held back only if no side effect happens between it and the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pylash.durable.runs import Fence, JournalEntry
from pylash.durable.sessions import Queued, SessionRecord, Writing
from pylash.durable.stores import Store
from pylash.turn.messages import MESSAGES, Attachment, Message, Text, UserMessage
from pylash.values.canonical import decode, encode, write, write_payload
from pylash.values.errors import StoreError


class _SharedWrite(NamedTuple):
    """A write that is shared by the effects of one cycle of the event loop; ``written`` completes with it."""

    fence: Fence
    written: asyncio.Future[None]
    start: asyncio.Handle


class TurnWriter:
    """Writes the messages and effects of one turn. A place is counted from the session's head.

    A node is at one of three stages: prepared with an effect that has not been recorded (``_prepared``), waiting
    for the next write (``_nodes``), and written or being written (``_on_disk``).
    """

    def __init__(self, store: Store, session: SessionRecord, nodes: Mapping[int, bytes]) -> None:
        self.session = session
        self.base = session.head + 1
        self.envs: dict[str, bytes] = {}
        """Environments by ref, for the next write."""
        self.attachments: dict[str, bytes] = {}
        """Bodies of attachments by ref, for the next write."""
        self._store = store
        # The last write that was started, so that it is not collected.
        self._writing: asyncio.Future[None] | None = None
        self._on_disk = dict(nodes)
        self._nodes: dict[int, bytes] = {}
        # In the order in which the effects ended: the store writes them in this order.
        self._held: list[JournalEntry] = []
        self._prepared: dict[str, tuple[int, bytes, Mapping[str, bytes]]] = {}
        # Set from the first effect of a cycle of the loop until its write starts; later effects begin another.
        self._next_write: _SharedWrite | None = None

    # --- messages ---

    def read(self, place: int) -> Message | None:
        """Return the message at a place of this turn; None if there is none yet."""
        body = self._on_disk.get(place) or self._nodes.get(place)
        return None if body is None else MESSAGES.decode(body)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Add the messages of the turn that are not written yet to the next write."""
        for place, message in enumerate(messages, self.base):
            if place not in self._on_disk and place not in self._nodes:
                self._nodes[place] = write(message)

    def mark_written(self, nodes: Iterable[tuple[int, bytes]]) -> None:
        """Record that an operation of the store wrote nodes itself."""
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
        """Add the node of a completed effect to the next write.

        Callers do it too: a host without a journal does not call ``record``.
        """
        prepared = self._prepared.pop(key, None)
        if prepared is not None:
            place, body, attached = prepared
            self._nodes[place] = body
            self.attachments.update(attached)

    async def hold(
        self, _: Fence, entry: JournalEntry, notes: Sequence[JournalEntry] = ()
    ) -> JournalEntry:
        """Keep an effect and its notes for the next write, or for the commit."""
        self.complete(entry.key)
        # The notes wait with their effect: the memory of the run hands each of them out once.
        self._held += (*notes, entry)
        return entry

    async def record(
        self, fence: Fence, entry: JournalEntry, notes: Sequence[JournalEntry] = ()
    ) -> JournalEntry:
        """Write an effect with everything that waits, and with the effects that end in the same cycle of the loop."""
        self.complete(entry.key)
        self._held += (*notes, entry)
        if self._next_write is None:
            loop = asyncio.get_running_loop()
            start = loop.call_soon(self._start_write)
            self._next_write = _SharedWrite(fence, loop.create_future(), start)
        # Shielded: the future is shared by all effects of the write, and one of them may be cancelled.
        await asyncio.shield(self._next_write.written)
        return entry

    def _start_write(self) -> None:
        """Start the next shared write, if there is one."""
        shared, self._next_write = self._next_write, None
        if shared is None:
            return
        shared.start.cancel()
        try:
            writing = self._store.sessions.record(shared.fence, self.session, self._take_pending())
            self._writing = asyncio.shield(writing)  # started now, whatever kind of awaitable it is
        except StoreError as error:  # the store has closed
            shared.written.set_exception(error)
            return
        self._writing.add_done_callback(partial(_copy_result, shared.written))

    def _take_pending(self) -> Writing:
        """Return everything that waits to be written; from now on it counts as written."""
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

    # --- messages in the records of an engine ---

    async def carry(self, key: str) -> bytes:
        """Store the bodies that an effect refers to; return its message and place, to be recorded with its outcome."""
        place, body, attached = self._prepared.get(key, (0, b"", {}))
        for ref, data in tuple(self.envs.items()):
            await self._store.envs.put(ref, data)
            self.envs.pop(ref, None)
        for ref, data in attached.items():
            await self._store.attachments.put(ref, data)
        return b"" if not place else encode([place, body.decode()])

    def receive(self, message: bytes) -> None:
        """Take the recorded message of an effect: it is written with the commit."""
        if message:
            place, body = decode(message)
            self._nodes.setdefault(place, body.encode())

    # --- the end ---

    def finish(self, messages: Sequence[Message]) -> tuple[Writing, bool]:
        """Return the last writes of a turn with these messages, and whether they replace all earlier ones."""
        stop = self.base + len(messages)
        # A turn that was cancelled between an effect and its consequences leaves out the effect's message.
        is_fresh = max((*self._on_disk, *self._nodes), default=0) >= stop
        if is_fresh:
            self._on_disk, self._nodes = {}, {}
        self.add_messages(messages)
        self._start_write()  # before the commit: effects are written in the order in which they ended
        return self._take_pending(), is_fresh


def _copy_result(written: asyncio.Future[None], writing: asyncio.Future[Any]) -> None:
    """Complete the future of a shared write with the result of the write."""
    if written.done():
        return
    if writing.cancelled():
        written.cancel()
    elif (error := writing.exception()) is not None:
        written.set_exception(error)
    else:
        written.set_result(None)


def queued_message(queued: Queued) -> UserMessage:
    """Return a queued message as a message of a turn."""
    source: Any = "wake" if queued.policy == "wake" else "user"
    # The text of a wake is data of the process, even if it has the form of parts: it must not name attachments.
    if source == "user" and isinstance(queued.body, dict) and "parts" in queued.body:
        parts = msgspec.convert(queued.body["parts"], tuple[Text | Attachment, ...])
        return UserMessage(parts, source=source)
    text = queued.body if isinstance(queued.body, str) else write(queued.body).decode()
    return UserMessage((Text(text),), source=source)
