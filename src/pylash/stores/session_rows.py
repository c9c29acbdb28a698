"""The rows of sessions and turns in SQL."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pylash.durable import (
    TURN_TARGET,
    Fence,
    Instant,
    NewTurn,
    QueueDrainScope,
    RunState,
    Segment,
    SessionRecord,
    TurnRecord,
    TurnScope,
    WorkerId,
    Writing,
    scope_from_text,
    scope_text,
    session_lane,
)
from pylash.stores.journal import RECORD_EFFECT, effect_row, keep_body
from pylash.stores.sql import Again, Statement, Steps
from pylash.values import decode, write

NODE_BITS: Final = 24

DIGEST_BYTES: Final = 32

SESSION = """
select id, number, head, revision, calls, generation, streak, usage, options, origin
from pylash_sessions where id = ?"""

# The update locks the row, so that two sessions never get one number.
NEXT_NUMBER = """
insert into pylash_lanes(lane, last_seq) values ('sessions', 1)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + 1 returning last_seq"""

ADD_SESSION = """
insert into pylash_sessions(id, number, options, origin, revision, calls) values (?, ?, ?, ?, ?, ?)
on conflict (id) do update set number = excluded.number, options = excluded.options,
  origin = excluded.origin, head = 0, revision = excluded.revision, calls = excluded.calls, streak = 0, usage = null
where pylash_sessions.number is null"""

_SET_OPTIONS = "update pylash_sessions set options = ? where id = ?"

TURN = """
select scope, id, input, state, reason, result, created, cancel, fence, owner, token
from pylash_runs where scope = ?"""

# A place is written once. Behind the head, what a run left that has ended will never be committed.
_ADD_NODE = """
insert into pylash_nodes(id, run, body) values (?, ?, ?)
on conflict (id) do update set run = excluded.run, body = excluded.body
where pylash_nodes.run <> excluded.run
  and not exists (select 1 from pylash_runs r where r.id = pylash_nodes.run and r.settled is null)
  and excluded.id > (select s.head from pylash_sessions s where s.id = ? and s.number = ?) + ?"""

_ADD_ENV = "insert into pylash_envs(ref, body) values (?, ?) on conflict do nothing"

NODES = "select id, body from pylash_nodes where id > ? and id <= ? order by id"

_NODES_OF_RUN = """
select id, body from pylash_nodes where id > ? and id <= ? and run = ? order by id"""


def opened_session(session_id: str, options: Any = None) -> Steps[SessionRecord]:
    """Return a session, made if it is missing, with the options it is opened with now."""
    rows = (yield Statement(SESSION, (session_id,))).rows
    if not rows or rows[0][1] is None:
        yield from _add_session(session_id, None if options is None else write(options))
        rows = (yield Statement(SESSION, (session_id,))).rows
    session = session_from(rows[0])
    if options is not None and options != session.options:
        yield Statement(_SET_OPTIONS, (write(options), session_id))
        session = msgspec.structs.replace(session, options=options)
    return session


def _add_session(session_id: str, options: bytes | None) -> Steps[None]:
    number = (yield Statement(NEXT_NUMBER)).rows[0][0]
    if not (yield Statement(ADD_SESSION, (session_id, number, options, None, 0, 0))).changed:
        raise Again  # made by another meanwhile


def turn_row(
    run: int,
    new: NewTurn,
    seq: int,
    *,
    leased: bool,
    ready: bool,
    owner: tuple[WorkerId | None, str],
) -> tuple[Any, ...]:
    """Return a turn as the parameters of its row."""
    kind = "turn" if isinstance(new.scope, TurnScope) else "queue_drain"
    lane = session_lane(new.scope.session_id)
    state = RunState.RUNNING if leased else RunState.QUEUED
    body = new.digest + new.body
    owned = (*owner, 1, 1) if leased else (None, None, 0, 0)
    return (run, scope_text(new.scope), kind, TURN_TARGET, lane, seq, state, ready, body, *owned)


def written(fence: Fence, session: SessionRecord, writing: Writing) -> Steps[None]:
    """Write what a turn did, whose run is locked."""
    for ref, body in writing.envs:
        yield Statement(_ADD_ENV, (ref, body))
    for ref, body in writing.attachments:
        yield from keep_body(ref, body)
    base = session.number << NODE_BITS
    for place, body in writing.nodes:
        row = (base + place, fence.run, body, session.id, session.number, base)
        yield Statement(_ADD_NODE, row)
    for entry in writing.entries:
        effect = effect_row(fence, entry)
        if effect[5] is not None:
            yield from keep_body(effect[5], entry.outcome or b"")
        yield Statement(RECORD_EFFECT, effect)


def session_from(row: tuple[Any, ...]) -> SessionRecord:
    """Return the session in a row."""
    session_id, number, head, revision, calls, generation, streak, usage, options, origin = row
    segments = () if origin is None else msgspec.json.decode(origin, type=tuple[Segment, ...])
    return SessionRecord(
        session_id,
        number or 0,
        head,
        revision,
        calls,
        generation,
        streak,
        plain(usage),
        plain(options),
        segments,
    )


def turn_from(row: tuple[Any, ...]) -> TurnRecord:
    """Return the turn in a row."""
    scope, run, body, state, reason, result, created, cancel, *_ = row
    known = scope_from_text(scope)
    assert isinstance(known, TurnScope | QueueDrainScope)
    return TurnRecord(
        known,
        run,
        bytes(body or b"")[DIGEST_BYTES:],
        RunState(state),
        reason,
        plain(result),
        Instant(created),
        bool(cancel),
        cancel == CANCEL_DELIVERED,
    )


CANCEL_DELIVERED: Final = 2


def uncommitted(session: SessionRecord, run: int | None = None) -> Steps[dict[int, bytes]]:
    """Return the nodes behind the head, by place; only those of a run if one is given."""
    base = session.number << NODE_BITS
    last = base + (1 << NODE_BITS) - 1
    if run is None:
        rows = (yield Statement(NODES, (base + session.head, last))).rows
    else:
        rows = (yield Statement(_NODES_OF_RUN, (base + session.head, last, run))).rows
    return {node - base: bytes(body) for node, body in rows}


def plain(body: bytes | None) -> Any:
    """Return a column of JSON as what it says."""
    return None if body is None else decode(bytes(body))
