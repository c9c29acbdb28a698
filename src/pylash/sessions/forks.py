"""Forks of sessions: where a new session begins."""

from __future__ import annotations

import msgspec

from pylash.durable.processes import ForkPoint, Registration, SessionTurnInput
from pylash.durable.session_store import Sessions
from pylash.durable.sessions import SessionRecord
from pylash.durable.stores import Store
from pylash.values.turn_errors import SessionUnknown, TurnUnknown


async def find_fork_point(
    sessions: Sessions, session_id: str, at: str | None
) -> tuple[SessionRecord, int, tuple[int, int]]:
    """Return the end of a turn, or of all turns: its session, its place, and the turns and model calls up to it."""
    record = await sessions.get(session_id)
    if record is None:
        raise SessionUnknown(session_id)
    if at is None:
        return record, record.head, (record.revision, record.calls)
    settled = [
        turn
        for turn in await sessions.turns(session_id)
        if turn.scope.id == at and turn.settled and "nodes" in (turn.result or {})
    ]
    played = await sessions.played(at)
    if played is not None:
        settled.insert(0, played)
    for turn in reversed(settled):  # if two turns have this id, the session's own is the later one
        head, whose = turn.result["nodes"][1], record
        if turn.scope.session_id != session_id:  # a turn from before the fork
            origin = await sessions.get(turn.scope.session_id)
            if origin is None:
                continue
            whose = msgspec.structs.replace(origin, options=record.options)
        if any(part.number == whose.number and head <= part.upto for part in record.path):
            return whose, head, (whose.revision, turn.result["calls"])
    raise TurnUnknown(session_id, at)


async def check_fork(store: Store, registration: Registration) -> None:
    """Refuse an agent whose session begins with a history that is not there, unless it was started before."""
    given = registration.input
    if not isinstance(given, SessionTurnInput) or not isinstance(given.fork, ForkPoint):
        return
    if await store.processes.get(registration.id) is None:
        await find_fork_point(store.sessions, given.fork.session_id, given.fork.turn_id)
