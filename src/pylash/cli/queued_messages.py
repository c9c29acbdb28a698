"""The queued messages that started a turn without a question."""

from __future__ import annotations

from typing import Any

from pylash.durable.session_store import Sessions
from pylash.durable.sessions import Queued, Segment, TurnRecord
from pylash.sessions.writer import queued_message
from pylash.turn.messages import MESSAGES, UserMessage


async def starting_messages(sessions: Sessions, turn: TurnRecord) -> list[UserMessage]:
    """Return the queued messages that a turn began with, if it has taken any yet."""
    messages = await _first_messages(sessions, turn) or await _still_queued(sessions, turn)
    if messages or turn.settled:
        return messages
    now = await sessions.turn(turn.scope)  # the turn may have ended meanwhile
    return [] if now is None or not now.settled else await _first_messages(sessions, now)


async def _first_messages(sessions: Sessions, turn: TurnRecord) -> list[UserMessage]:
    """Return the messages at the beginning of a turn's transcript."""
    record = await sessions.get(turn.scope.session_id)
    if record is None:
        return []
    if turn.settled:
        first, last = (turn.result or {}).get("nodes", (0, 0))
        bodies = await sessions.nodes(Segment(record.number, last), first - 1) if last else []
    else:
        bodies = list((await sessions.uncommitted(record)).values())
    messages = []
    for message in map(MESSAGES.decode, bodies):
        if not isinstance(message, UserMessage):
            break
        messages.append(message)
    return messages


async def _still_queued(sessions: Sessions, turn: TurnRecord) -> list[UserMessage]:
    """Return the queued messages for a turn that has written nothing yet: until then they stay in the queue."""
    if turn.settled:
        return []
    queued = await sessions.queued(turn.scope.session_id)
    return [queued_message(one) for one in queued if one.at <= turn.created]


def queued_text(queued: Queued) -> str:
    """Return a queued message as text."""
    body: Any = queued.body
    parts = body.get("parts", ()) if isinstance(body, dict) else ()
    texts = [part.get("text", "") for part in parts if isinstance(part, dict)]
    return " ".join(texts) or str(body)
