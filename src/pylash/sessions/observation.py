"""Observing a session: its messages and the events of its turns, from any cursor on.

Rule 1. A cursor is a place in the transcript. Messages committed after it are yielded once and in order.
Rule 2. A cursor that is no longer valid, because its session was deleted, gets a gap with a fresh view.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from pylash.durable.scopes import scope_from_text, session_of
from pylash.durable.sessions import SessionRecord
from pylash.sessions.feeds import FeedListener
from pylash.turn.events import TurnEvent
from pylash.turn.messages import Message
from pylash.values.turn_errors import CursorInvalid, SessionUnknown

if TYPE_CHECKING:
    from pylash.durable.ports import Runner
    from pylash.sessions.services import SessionServices


class Observed(msgspec.Struct, frozen=True):
    """An observation: a committed message, an event of the running turn, or a gap.

    ``cursor`` is the place to continue from. ``messages`` is the fresh view that comes with a gap.
    """

    type: Literal["message", "event", "gap"]
    cursor: str
    message: Message | None = None
    event: TurnEvent | None = None
    messages: tuple[Message, ...] = ()


class Cursor(msgspec.Struct, frozen=True):
    """A place in a session: its line of nodes, and the number of messages before it on the whole path."""

    number: int
    seen: int

    @property
    def text(self) -> str:
        """The cursor as a string, which callers store."""
        return f"v1.{self.number:x}.{self.seen:x}"

    @staticmethod
    def read(text: str) -> Cursor:
        """Return the cursor of a string."""
        try:
            version, number, seen = text.split(".")
            cursor = Cursor(int(number, 16), int(seen, 16))
            if version == "v1" and cursor.seen >= 0:
                return cursor
        except (AttributeError, ValueError):
            pass
        raise CursorInvalid(text)


async def observe_session(
    session_id: str, cursor: str | None, services: SessionServices, runner: Runner
) -> AsyncIterator[Observed]:
    """Yield the messages after a cursor, then new messages and events, without end."""
    place = None if cursor is None else Cursor.read(cursor)
    local = FeedListener(services.feeds)
    # Both callbacks are registered before the first read, so that no change between a read and a wait is missed.
    with services.hub.listen(f"session:{session_id}") as listener, ExitStack() as stack:

        def on_turn_start(turn: str) -> None:
            if _is_of(turn, session_id):
                listener.wake()

        stack.callback(services.feeds.watch(on_turn_start))
        stack.callback(local.stop)
        while True:
            if (found := await _read(session_id, services)) is not None:
                record, messages = found
                items = _messages_after(record, messages, place)
                place = Cursor(record.number, len(messages))
                for item in items:
                    yield item
            # Events are yielded with the cursor of the last message: a turn's messages come with its commit.
            async for item in _local_events(session_id, place, runner, local):
                yield item
            await listener.wait()


def _is_of(turn: str, session_id: str) -> bool:
    """Return whether the id of a run is that of a turn of a session.

    It is the text of the turn's scope; for the turn of a process it is the id of both the process and the session.
    """
    if turn == session_id:
        return True
    with suppress(ValueError):  # the id of a process
        return turn.startswith("{") and session_of(scope_from_text(turn)) == session_id
    return False


async def _read(
    session_id: str, services: SessionServices
) -> tuple[SessionRecord, Sequence[Message]] | None:
    """Return a session and its messages; None if there is none, or it is deleted while it is read."""
    record = await services.store.sessions.get(session_id)
    with suppress(SessionUnknown):
        return (
            None if record is None else (record, (await services.histories.tail(record)).messages)
        )
    return None


def _messages_after(
    record: SessionRecord, messages: Sequence[Message], place: Cursor | None
) -> list[Observed]:
    """Return the messages after a place, or a gap if the place no longer exists."""
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


async def _local_events(
    session_id: str, place: Cursor | None, runner: Runner, local: FeedListener
) -> AsyncIterator[Observed]:
    """Yield the events of the turn that runs in this process, until it ends or leaves it."""
    turn = runner.turn_of(session_id)
    if turn is None:
        return
    cursor = Cursor(0, 0).text if place is None else place.text
    local.listen_to(turn)
    async for event in local.follow():
        yield Observed("event", cursor, event=event)
