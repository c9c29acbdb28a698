"""Reads of sessions and turns: the read-only operations of ``SqlSessions``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pylash.durable.processes import REGISTRATIONS
from pylash.durable.runs import Instant, RunState
from pylash.durable.scopes import (
    QueueDrainScope,
    TurnScope,
    scope_from_text,
    scope_text,
    session_of,
)
from pylash.durable.sessions import (
    Queued,
    ResumedTurn,
    SessionRecord,
    SessionView,
    TurnRecord,
    session_lane,
)
from pylash.stores.operation import Statement, Steps, store_time
from pylash.stores.ports.journal import journals_of
from pylash.stores.tables import lanes, queue
from pylash.stores.tables import sessions as table
from pylash.stores.tables.packed_effects import NODE_BITS
from pylash.stores.tables.sessions import SESSION, TURN, plain, session_from, turn_from
from pylash.values.turn_errors import SessionUnknown

_NO_NUMBER: Final = (1 << 63) - 1

_SESSIONS = SESSION.replace("l.lane = 'session:' || ?", "l.lane in ({texts})")

_TURNS = TURN.replace(
    "scope = ?", "id in ({bigints}) and kind in ('turn', 'queue_drain') order by id"
)

_PLAYER = """
select p.run, r.state, p.created, p.registration from pylash_processes p join pylash_runs r on r.id = p.run
where p.id = ?"""

_NODES_OF = "select min(id), max(id) from pylash_nodes where id > ? and id <= ? and run = ?"

_KIND = "select kind, scope from pylash_runs where id = ?"

_IS_BLOCKED = "select 1 from pylash_runs where id = ? and state = 'blocked'"

_IS_CANCELLED = "select 1 from pylash_runs where id = ? and cancel > 0"

_RESULTS = """
select scope, state, result from pylash_runs where scope in ({texts}) and settled is not null"""

PAGE: Final = 50
"""How many sessions are read at once. The limit is a part of the statement, so that PostgreSQL plans for a few rows."""

# The times are those of the turns that wrote the first node and the head; a session without nodes has only its current turn.
_VIEW = """
select substr(l.lane, 9), l.number, l.revision, (select h.state from pylash_runs h where h.id = l.holder),
  coalesce((select r.created from pylash_runs r where r.id =
      (select n.run from pylash_nodes n where n.id > (l.number << 24) and n.id < ((l.number + 1) << 24) order by n.id limit 1)),
    (select h.created from pylash_runs h where h.id = l.holder)),
  (select coalesce(r.settled, r.created) from pylash_runs r where r.id =
      (select n.run from pylash_nodes n where n.id = (l.number << 24) + l.head)),
  (select s.options from pylash_sessions s where s.id = substr(l.lane, 9))"""

_LISTED = f"""{_VIEW}
from (select * from pylash_lanes where number is not null and number < ? order by number desc limit {PAGE}) as l
order by l.number desc"""

# Workers of schema 7 delete a session without its tags.
_LISTED_BY_TAG = f"""{_VIEW.replace("l.number, l.revision", "t.number, l.revision")}
from (select number from pylash_session_tags where tag = ? and number < ? order by number desc limit {PAGE}) as t
left join pylash_lanes l on l.number = t.number and l.number is not null order by t.number desc"""

_STATES = "select scope, state, reason from pylash_runs where scope in ({texts})"


def find_turn(scope: TurnScope | QueueDrainScope) -> Steps[TurnRecord | None]:
    """Return a turn, if there is one."""
    rows = (yield Statement(TURN, (scope_text(scope),))).rows
    return turn_from(rows[0]) if rows else None


def turn_of_run(run: int) -> Steps[TurnRecord | None]:
    """Return the turn that a run executes, if there is one."""
    rows = (yield Statement(_TURNS, ([run],))).rows
    return turn_from(rows[0]) if rows else None


def process_of_run(run: int) -> Steps[str | None]:
    """Return the id of the process that a run executes, if it does not execute a turn."""
    for kind, scope in (yield Statement(_KIND, (run,))).rows:
        return scope_from_text(scope).id if kind == "process" else None
    return None


def player_of(session_id: str) -> Steps[tuple[int, str, int] | None]:
    """Return run, state and creation time of the process that plays a turn of a session, if there is one."""
    for run, state, created, body in (yield Statement(_PLAYER, (session_id,))).rows:
        if REGISTRATIONS.decode(body).plays_session:
            return run, state, created
    return None


def played_turn(session_id: str) -> Steps[TurnRecord | None]:
    """Return the turn of a session that a process plays, with its nodes; None if there is none, or it has no nodes."""
    player = yield from player_of(session_id)
    session = yield from table.find_session(session_id)
    if player is None or session is None:
        return None
    run, state, created = player
    base = session.number << NODE_BITS
    first, last = (yield Statement(_NODES_OF, (base, base + (1 << NODE_BITS) - 1, run))).rows[0]
    if last is None:
        return None
    result = {"nodes": [first - base, last - base], "calls": session.calls}
    scope = TurnScope(session_id, session_id)
    return TurnRecord(scope, run, b"", RunState(state), None, result, Instant(created))


def current_turn(session_id: str) -> Steps[TurnRecord | None]:
    """Return the turn that holds the session's lane: it runs, waits, is blocked, or is next."""
    holder = yield from lanes.lane_holder(session_lane(session_id))
    return None if holder is None else (yield from turn_of_run(holder))


def turns_of(session_id: str) -> Steps[list[TurnRecord]]:
    """Return the turns of a session, the oldest first."""
    session = yield from table.find_session(session_id)
    turns: list[TurnRecord] = []
    for segment in () if session is None else session.path:
        runs = yield from table.runs_of_nodes(segment)
        rows = (yield Statement(_TURNS, (runs,))).rows
        turns += [turn_from(row) for row in rows]
    return turns


def list_sessions(
    limit: int, after: str | None = None, tag: str | None = None
) -> Steps[list[SessionView]]:
    """Return sessions, the newest first; ``after`` is the last session of the page before."""
    before = _NO_NUMBER
    if after is not None:
        session = yield from table.find_session(after)
        if session is None:
            raise SessionUnknown(after)
        before = session.number
    views: list[SessionView] = []
    sql, given = (_LISTED, ()) if tag is None else (_LISTED_BY_TAG, (tag,))
    while len(views) < limit:
        rows = (yield Statement(sql, (*given, before))).rows
        views += (_view_from(row) for row in rows if row[0] is not None)
        if len(rows) < PAGE:
            break
        before = rows[-1][1]
    return views[:limit]


def _view_from(row: tuple[Any, ...]) -> SessionView:
    session_id, _, turns, state, created, updated, options = row
    status = None if state is None else RunState(state)
    return SessionView(session_id, turns, status, created, updated, table.tags_of(plain(options)))


def resume_turns(runs: Sequence[int]) -> Steps[dict[int, ResumedTurn]]:
    """Return the input for continuing turns, by run; a turn that cannot be read is left out."""
    now = yield from store_time()
    journals = yield from journals_of(runs)
    resumed = {}
    for run, (turn, session) in (yield from turn_records(runs)).items():
        with suppress(ValueError):
            nodes, packed = yield from table.read_uncommitted(session, run)
            resumed[run] = ResumedTurn(turn, session, {**packed, **journals[run]}, nodes, now)
    return resumed


def turn_records(runs: Sequence[int]) -> Steps[dict[int, tuple[TurnRecord, SessionRecord]]]:
    """Return turns with their sessions, by run; a turn that cannot be read is left out."""
    turns: list[TurnRecord] = []
    if not runs:
        return {}
    for row in (yield Statement(_TURNS, (list(runs),))).rows:
        with suppress(ValueError):  # written by newer code
            turns.append(turn_from(row))
    names = [session_lane(turn.scope.session_id) for turn in turns]
    rows = {row[0]: row for row in (yield Statement(_SESSIONS, (names,))).rows}
    found = {}
    for turn in turns:
        known = rows.get(turn.scope.session_id)
        if known is None or known[1] is None:
            continue  # the session was deleted meanwhile, and the turn with it
        with suppress(ValueError):
            found[turn.run] = turn, session_from(known)
    return found


def queued_messages(session_id: str) -> Steps[list[Queued]]:
    """Return the queued messages of a session, the oldest first."""
    rows = (yield Statement(queue.MESSAGES, (session_id,))).rows
    return [queue.queued_from(row) for row in rows]


def blocked_run(session_id: str) -> Steps[int | None]:
    """Return the run of the turn that blocks a session, if one does."""
    holder = yield from lanes.lane_holder(session_lane(session_id))
    rows = (yield Statement(_IS_BLOCKED, (holder,))).rows
    return holder if rows else None


def is_cancel_requested(run: int) -> Steps[bool]:
    """Return whether the cancellation of a turn was requested."""
    return bool((yield Statement(_IS_CANCELLED, (run,))).rows)


def turn_states(scopes: Sequence[str]) -> Steps[dict[str, tuple[RunState, str | None]]]:
    """Return the states of turns, with the reasons of those that are blocked."""
    rows = (yield Statement(_STATES, (list(scopes),))).rows
    return {row[0]: (RunState(row[1]), row[2]) for row in rows}


def turn_results(scopes: Sequence[str]) -> Steps[dict[str, tuple[RunState, Any]]]:
    """Return state and result of the turns that have ended, by the text of their scopes."""
    results = {}
    for text, state, result in (yield Statement(_RESULTS, (list(scopes),))).rows:
        session = session_of(scope_from_text(text)) or ""
        results[text] = RunState(state), (yield from _with_text(session, plain(result)))
    return results


def _with_text(session_id: str, result: Any) -> Steps[Any]:
    """Return a result with its text, if that is stored only in a node."""
    if result is None or "text_at" not in result:
        return result
    session = yield from table.find_session(session_id)
    if session is None:
        return result
    last = (session.number << NODE_BITS) + result["text_at"]
    found = (yield Statement(table.NODES, (last - 1, last))).rows
    return {**result, "text": plain(found[0][1]).get("text", "") if found else ""}
