"""What a turn writes: nodes and effects, as few times as can be.

Rule 1. An effect and its node are written together, or not at all.
Rule 2. What follows from what is recorded (a refused call, a rejected approval) waits for the next write.
Rule 3. An effect is held back only if nothing outside happens between it and the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pylash.durable import Fence, JournalEntry, SessionRecord, Sessions, Writing
from pylash.turn import MESSAGES, Message
from pylash.values import StoreError, write, write_payload


class _Gathering(NamedTuple):
    """Effects that end at the same moment, and are written together; ``written`` completes with that."""

    fence: Fence
    written: asyncio.Future[None]
    soon: asyncio.Handle


class TurnWriter:
    """The pen of one turn: places are counted from the session's head."""

    def __init__(
        self, sessions: Sessions, session: SessionRecord, nodes: Mapping[int, bytes]
    ) -> None:
        self.session = session
        self.base = session.head + 1
        self._sessions = sessions
        self._on_disk = dict(nodes)
        self._nodes: dict[int, bytes] = {}
        self._held: list[JournalEntry] = []
        self._envs: dict[str, bytes] = {}
        self._attachments: dict[str, bytes] = {}
        self._effects: dict[str, tuple[int, bytes, Mapping[str, bytes]]] = {}
        self._gathering: _Gathering | None = None

    def prepare(
        self, key: str, index: int, message: Message, attached: Mapping[str, bytes] | None = None
    ) -> int:
        """Keep the node of an effect until that is recorded; return its place."""
        place = self.base + index
        self._effects[key] = (place, write_payload(message, 1), attached or {})
        return place

    def read(self, place: int) -> Message:
        """Return the message at a place of this turn."""
        body = self._on_disk.get(place)
        return MESSAGES.decode(self._nodes[place] if body is None else body)

    def find(self, index: int) -> Message | None:
        """Return the message that was written at an index of this turn, if any."""
        body = self._on_disk.get(self.base + index)
        return None if body is None else MESSAGES.decode(body)

    def note(self, messages: Iterable[tuple[int, Message]]) -> None:
        """Take messages, by index, that are to be written with whatever is written next."""
        for index, message in messages:
            place = self.base + index
            if place not in self._on_disk and place not in self._nodes:
                self._nodes[place] = write(message)

    def has_strays(self, count: int) -> bool:
        """Return whether anything was written, or is to be, behind so many messages."""
        return any(place >= self.base + count for place in (*self._on_disk, *self._nodes))

    def rewrite(self, messages: Sequence[Message]) -> None:
        """Take the messages of the whole turn instead of everything that was written."""
        self._on_disk = {}
        self._nodes = {self.base + index: write(one) for index, one in enumerate(messages)}

    def capture(self, ref: str, body: bytes) -> None:
        """Take an environment that is to be written with whatever is written next."""
        self._envs[ref] = body

    def keep(self, attached: Mapping[str, bytes]) -> None:
        """Take bodies that are to be written with whatever is written next."""
        self._attachments.update(attached)

    async def hold(self, _: Fence, entry: JournalEntry) -> JournalEntry:
        """Take an effect that is written with the next one, or with the commit."""
        self._take(entry.key)
        self._held.append(entry)
        return entry

    async def record(self, fence: Fence, entry: JournalEntry) -> JournalEntry:
        """Write an effect with its node, and everything that waits: also what ends at the same moment."""
        self._take(entry.key)
        self._held.append(entry)
        if self._gathering is None:
            loop = asyncio.get_running_loop()
            soon = loop.call_soon(self._send)
            self._gathering = _Gathering(fence, loop.create_future(), soon)
        await asyncio.shield(self._gathering.written)
        return entry

    def _send(self) -> None:
        """Begin to write what was gathered, if anything was."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        gathering.soon.cancel()
        try:
            writing = self._sessions.record(gathering.fence, self.session, self._taken())
        except StoreError as error:  # it has closed meanwhile
            gathering.written.set_exception(error)
            return
        assert isinstance(writing, asyncio.Future)  # an operation of the store, and begun
        writing.add_done_callback(partial(_tell, gathering.written))

    def writing(self) -> Writing:
        """Return everything that waits to be written: it is on disk once this is."""
        self._send()  # it was there first
        return self._taken()

    def _taken(self) -> Writing:
        nodes = tuple(sorted(self._nodes.items()))
        writing = Writing(
            entries=tuple(self._held),
            nodes=nodes,
            envs=tuple(self._envs.items()),
            attachments=tuple(self._attachments.items()),
        )
        self._on_disk.update(nodes)
        self._nodes, self._held, self._envs, self._attachments = {}, [], {}, {}
        return writing

    def wrote(self, nodes: Iterable[tuple[int, bytes]]) -> None:
        """Hear of nodes that were written by another way."""
        self._on_disk.update(nodes)

    def landed(self, key: str) -> None:
        """Hear that an effect has ended: a host without a journal has recorded nothing."""
        self._take(key)

    def _take(self, key: str) -> None:
        prepared = self._effects.pop(key, None)
        if prepared is not None:
            place, body, attached = prepared
            self._nodes[place] = body
            self._attachments.update(attached)


def _tell(written: asyncio.Future[None], writing: asyncio.Future[Any]) -> None:
    """Tell who waits for an effect to be written that it is, or why it is not."""
    if written.done():
        return
    if writing.cancelled():
        written.cancel()
    elif (error := writing.exception()) is not None:
        written.set_exception(error)
    else:
        written.set_result(None)
