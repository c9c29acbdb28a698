"""What began a turn that nobody asked for: words that waited in its session's queue."""

from __future__ import annotations

from typing import Any

from pylash.durable import Queued, Segment, Sessions, TurnRecord
from pylash.runtime import queued_message
from pylash.turn import MESSAGES, UserMessage


async def words_of(sessions: Sessions, turn: TurnRecord) -> list[UserMessage]:
    """Return the words that a turn has begun with, if it has heard any yet."""
    words = await _heard(sessions, turn) or await _waiting(sessions, turn)
    if words or turn.settled:
        return words
    now = await sessions.turn(turn.scope)  # it may have ended while we looked
    return [] if now is None or not now.settled else await _heard(sessions, now)


async def _heard(sessions: Sessions, turn: TurnRecord) -> list[UserMessage]:
    """Return the words at the beginning of what a turn has written."""
    record = await sessions.get(turn.scope.session_id)
    if record is None:
        return []
    if turn.settled:
        first, last = (turn.result or {}).get("nodes", (0, 0))
        bodies = await sessions.nodes(Segment(record.number, last), first - 1) if last else []
    else:
        bodies = list((await sessions.uncommitted(record)).values())
    words = []
    for message in map(MESSAGES.decode, bodies):
        if not isinstance(message, UserMessage):
            break
        words.append(message)
    return words


async def _waiting(sessions: Sessions, turn: TurnRecord) -> list[UserMessage]:
    """Return the words for a turn that has written nothing yet: until then they stay in the queue."""
    if turn.settled:
        return []
    queued = await sessions.queued(turn.scope.session_id)
    return [queued_message(one) for one in queued if one.at <= turn.created]


def queued_text(words: Queued) -> str:
    """Return words that still wait, as a text."""
    body: Any = words.body
    parts = body.get("parts", ()) if isinstance(body, dict) else ()
    texts = [part.get("text", "") for part in parts if isinstance(part, dict)]
    return " ".join(texts) or str(body)
