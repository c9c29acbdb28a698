"""Submissions of turns in SQL: each is accepted once, as a run of its session's lane."""

from __future__ import annotations

from typing import Any

from pylash.durable.commands import SubmitTurn
from pylash.durable.runs import Fence, Instant, RunState, WorkerId
from pylash.durable.scopes import TurnScope, checked_scope, scope_text
from pylash.durable.sessions import NewTurn, Submitted, TurnRecord, session_lane
from pylash.stores.operation import Statement, Steps, store_time
from pylash.stores.ports.session_reads import player_of
from pylash.stores.tables import lanes, queue, runs
from pylash.stores.tables import sessions as table
from pylash.stores.tables.effects import FORGET_EFFECTS_OF_TURNS
from pylash.stores.tables.workers import is_member
from pylash.values.turn_errors import SessionExists, TurnInputConflict, TurnOfProcess


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
    elif new.scope == TurnScope(session_id, session_id) and (yield from player_of(session_id)):
        raise TurnOfProcess(session_id, session_id)
    if worker is not None and not (yield from is_member(worker)):
        worker = None
    lane = session_lane(session_id)
    holder, seq = yield from lanes.join_lane(lane, run)
    if holder != run and (yield from runs.has_ended(holder)):
        # A worker of an earlier version ended the process of an agent, and did not pass its lane on. Turns that wait
        # for the lane follow after this one.
        yield from lanes.set_holder(lane, run)
        holder = run
    free = holder == run
    session = yield from table.open_session(session_id, new.options)
    if new.person and session.streak:
        yield from lanes.set_streak(lane, 0)
    fence, state = None, RunState.QUEUED
    options = {**new.defaults, **(session.options or {})} if new.defaults else session.options
    if free and worker is not None:
        yield from runs.start_turn(run, new, options, seq, worker, token)
        fence, state = Fence(run, 1, new.scope), RunState.RUNNING
    else:
        yield from runs.enqueue_turn(run, new, options, seq, ready=free)
    turn = TurnRecord(new.scope, run, new.body, state, None, None, now, options=options or {})
    return Submitted(turn, session, now, fence, (yield from queue.has_messages(session_id)))


def hold_lane(session_id: str, run: int, fence: Fence | None = None) -> Steps[None]:
    """Give the lane of a session to the run of a process that plays a turn of it; refuse a session that has others.

    ``fence`` is that of the run, if it has begun: the messages that it has written are its own.
    """
    lane = session_lane(session_id)
    holder = yield from lanes.lock_lane(lane)
    session = yield from table.find_session(session_id)
    has_turns = session is not None and session.head > 0
    if session is not None and has_turns and fence is not None:
        has_turns = not (yield from table.is_ours(fence, session, session.head))
    if has_turns or holder not in (None, run):
        raise SessionExists(session_id)
    if holder is None:
        yield from lanes.set_holder(lane, run)


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
