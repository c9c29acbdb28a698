"""Submissions of turns in SQL: each is accepted once, as a run of its session's lane."""

from __future__ import annotations

from typing import Any

from pylash.durable.commands import SubmitTurn
from pylash.durable.runs import Fence, Instant, RunState, WorkerId
from pylash.durable.scopes import checked_scope, scope_text
from pylash.durable.sessions import NewTurn, Submitted, TurnRecord, session_lane
from pylash.stores.operation import Statement, Steps, store_time
from pylash.stores.tables import lanes, queue, runs
from pylash.stores.tables import sessions as table
from pylash.stores.tables.effects import FORGET_EFFECTS_OF_TURNS
from pylash.stores.tables.workers import is_member
from pylash.values.turn_errors import TurnInputConflict


def submit_turn(
    new: NewTurn, run: int, token: str, worker: WorkerId | None = None
) -> Steps[Submitted]:
    """Accept a turn, once; worker owns it at once if its session is free."""
    checked_scope(new.scope)
    session_id = new.scope.session_id
    now = yield from store_time()
    if known := (yield Statement(table.TURN, (scope_text(new.scope),))).rows:
        *_, is_forgotten = known[0]
        if not is_forgotten:
            return (yield from _submitted_before(new, known[0], now, token))
        # Its session was deleted, so the id is free.
        old = known[0][1]
        yield Statement(FORGET_EFFECTS_OF_TURNS, ([old], [old]))
        yield from runs.free_id(old)
    if worker is not None and not (yield from is_member(worker)):
        worker = None
    holder, seq = yield from lanes.join_lane(session_lane(session_id), run)
    free = holder == run
    session = yield from table.open_session(session_id, new.options)
    if new.person and session.streak:
        yield from lanes.set_streak(session_lane(session_id), 0)
    fence, state = None, RunState.QUEUED
    options = {**new.defaults, **(session.options or {})} if new.defaults else session.options
    if free and worker is not None:
        yield from runs.start_turn(run, new, options, seq, worker, token)
        fence, state = Fence(run, 1, new.scope), RunState.RUNNING
    else:
        yield from runs.enqueue_turn(run, new, options, seq, ready=free)
    turn = TurnRecord(new.scope, run, new.body, state, None, None, now, options=options or {})
    return Submitted(turn, session, now, fence, (yield from queue.has_messages(session_id)))


def submit_for_process(command: SubmitTurn, run: int) -> Steps[Any]:
    """Submit a turn for a process."""
    submitted = yield from submit_turn(command.new_turn(), run, "")
    return {"state": submitted.turn.state}


def _submitted_before(
    new: NewTurn, row: tuple[Any, ...], now: Instant, token: str
) -> Steps[Submitted]:
    """Return a turn that was submitted before, or refuse another input under its id."""
    if bytes(row[2] or b"")[: table.DIGEST_BYTES] != new.digest:
        raise TurnInputConflict(new.scope.session_id, new.scope.id)
    rows = (yield Statement(table.SESSION, (new.scope.session_id,))).rows
    number, last_token, _ = row[-3:]
    # An earlier attempt of this submission was committed, and its answer lost.
    is_ours = last_token == token and number == 1
    fence = Fence(row[1], 1, new.scope) if is_ours else None
    stirred = yield from queue.has_messages(new.scope.session_id)
    return Submitted(table.turn_from(row), table.session_from(rows[0]), now, fence, stirred)
