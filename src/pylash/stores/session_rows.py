"""The rows of sessions and turns in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pylash.durable import (
    TURN_TARGET,
    Fence,
    Instant,
    JournalEntry,
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
from pylash.stores.carried import NODE_BITS, packed, parted, unpacked
from pylash.stores.journal import RECORD_EFFECT, effect_row, keep_body, recorded
from pylash.stores.lanes import LOCK_LANE
from pylash.stores.numbers import Numbers
from pylash.stores.sql import Again, Statement, Steps
from pylash.values import decode, write_payload

DIGEST_BYTES: Final = 32

SESSION = """
select substr(l.lane, 9), l.number, l.head, l.revision, l.calls, coalesce(s.generation, 0), l.streak, l.usage,
  s.options, s.origin
from pylash_lanes l left join pylash_sessions s on s.id = substr(l.lane, 9) where l.lane = 'session:' || ?"""

_ADD_SESSION = """
update pylash_lanes set number = ?, revision = ?, calls = ? where lane = ? and number is null"""

_ADD_ORIGIN = """
insert into pylash_sessions(id, origin) values (?, ?)
on conflict (id) do update set origin = excluded.origin"""

_SET_OPTIONS = """
insert into pylash_sessions(id, options) values (?, ?)
on conflict (id) do update set options = excluded.options"""

TURN = """
select scope, id, input, state, reason, result, created, cancel, options, fence, owner, token
from pylash_runs where scope = ?"""

# A place is written once. Behind the head, what a run left that has ended will never be committed.
_ADD_NODE = """
insert into pylash_nodes(id, run, body, effects) values (?, ?, ?, ?)
on conflict (id) do update set run = excluded.run, body = excluded.body, effects = excluded.effects
where pylash_nodes.run <> excluded.run
  and not exists (select 1 from pylash_runs r where r.id = pylash_nodes.run and r.settled is null)
  and excluded.id > (select l.head from pylash_lanes l where l.lane = ? and l.number = ?) + ?"""

_NODE = "select run from pylash_nodes where id = ?"

_CARGO = "select effects from pylash_nodes where id = ?"

_ADD_ENV = "insert into pylash_envs(ref, body) values (?, ?) on conflict do nothing"

NODES = "select id, body from pylash_nodes where id > ? and id <= ? order by id"

LINES_AT_ONCE: Final = 4096

# One value rather than a row each: that takes half of the time. They stay in order because of the limit:
# what is in it is taken from one scan.
_LINES = f"""
select {{lines}} from (
  select body from pylash_nodes where id > ? and id <= ? order by id limit {LINES_AT_ONCE}) n"""

_NODES_OF_RUN = """
select id, body, effects from pylash_nodes where id > ? and id <= ? and run = ? order by id"""


def opened_session(
    session_id: str, options: Any = None, numbers: Numbers | None = None
) -> Steps[SessionRecord]:
    """Return a session, made if it is missing, with the options it is opened with now."""
    rows = (yield Statement(SESSION, (session_id,))).rows
    if not rows or rows[0][1] is None:
        yield from add_session(session_id, numbers=numbers)
        rows = (yield Statement(SESSION, (session_id,))).rows
    session = session_from(rows[0])
    merged = {**(session.options or {}), **(options or {})}  # what is not given stays as it was
    if merged != (session.options or {}):
        yield from set_options(session_id, merged)
        session = msgspec.structs.replace(session, options=merged)
    return session


def add_session(
    session_id: str, counts: tuple[int, int] = (0, 0), numbers: Numbers | None = None
) -> Steps[None]:
    """Make a session that is missing; ``counts`` are the turns and the model calls that it inherits."""
    lane = session_lane(session_id)
    yield Statement(LOCK_LANE, (lane,))
    number = yield from (numbers or Numbers()).take()
    if not (yield Statement(_ADD_SESSION, (number, *counts, lane))).changed:
        raise Again  # made by another meanwhile


def set_options(session_id: str, options: Any) -> Steps[None]:
    """Write what a session, whose lane is locked, is opened with."""
    yield Statement(_SET_OPTIONS, (session_id, write_payload(options, 1)))


def add_origin(session_id: str, origin: Sequence[Segment]) -> Steps[None]:
    """Write what a new session begins with."""
    yield Statement(_ADD_ORIGIN, (session_id, msgspec.json.encode(origin)))


def turn_row(
    run: int,
    new: NewTurn,
    options: Any,
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
    what = (body, write_payload(options or {}, 1))
    return (run, scope_text(new.scope), kind, TURN_TARGET, lane, seq, state, ready, *what, *owned)


def written(fence: Fence, session: SessionRecord, writing: Writing) -> Steps[None]:
    """Write what a turn did, whose run is locked."""
    for ref, body in writing.envs:
        yield Statement(_ADD_ENV, (ref, body))
    for ref, body in writing.attachments:
        yield from keep_body(ref, body)
    base, lane = session.number << NODE_BITS, session_lane(session.id)
    riding, entries = parted(fence, writing.entries, nodes=bool(writing.nodes))
    cargo = packed(riding)
    for place, body in writing.nodes:
        row = (base + place, fence.run, body, cargo, lane, session.number, base)
        added = (yield Statement(_ADD_NODE, row)).changed
        if cargo and not added and not (yield from _carries(base + place, cargo)):
            entries += riding
        cargo = None
    for entry in entries:
        effect = effect_row(fence, entry)
        if effect[5] is not None:
            yield from keep_body(effect[5], entry.outcome or b"")
        yield Statement(RECORD_EFFECT, effect)


def is_written(fence: Fence, session: SessionRecord, writing: Writing) -> Steps[bool]:
    """Return whether a writing stands: it is written as a whole, so its first part tells."""
    for place, _ in writing.nodes:
        return (yield from is_ours(fence, session, place))
    for entry in writing.entries:
        return (yield from recorded(fence, entry.key)) is not None
    return False


def is_ours(fence: Fence, session: SessionRecord, place: int) -> Steps[bool]:
    """Return whether the node at a place is of the run that has the fence."""
    rows = (yield Statement(_NODE, ((session.number << NODE_BITS) + place,))).rows
    return bool(rows) and rows[0][0] == fence.run


def _carries(node: int, cargo: bytes) -> Steps[bool]:
    """Return whether a node carries just this: it was written by us already, and the answer lost."""
    rows = (yield Statement(_CARGO, (node,))).rows
    return bool(rows) and rows[0][0] is not None and bytes(rows[0][0]) == cargo


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
    scope, run, body, state, reason, result, created, cancel, options, *_ = row
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
        plain(options),
    )


CANCEL_DELIVERED: Final = 2


def uncommitted(session: SessionRecord) -> Steps[dict[int, bytes]]:
    """Return the nodes behind the head, by place."""
    base = session.number << NODE_BITS
    last = base + (1 << NODE_BITS) - 1
    rows = (yield Statement(NODES, (base + session.head, last))).rows
    return {node - base: bytes(body) for node, body in rows}


def nodes_of(segment: Segment, after: int = 0) -> Steps[list[bytes]]:
    """Return the nodes of a segment after a place, the oldest first: each is a line of JSON."""
    base, bodies = segment.number << NODE_BITS, list[bytes]()
    for place in range(after, segment.upto, LINES_AT_ONCE):
        upto = min(place + LINES_AT_ONCE, segment.upto)
        lines = (yield Statement(_LINES, (base + place, base + upto))).rows[0][0]
        bodies += bytes(lines).split(b"\n") if lines else ()
    return bodies


def left_by(
    session: SessionRecord, run: int
) -> Steps[tuple[dict[int, bytes], dict[str, JournalEntry]]]:
    """Return the nodes of a run behind the head, by place, and the effects they carry."""
    base = session.number << NODE_BITS
    last = base + (1 << NODE_BITS) - 1
    rows = (yield Statement(_NODES_OF_RUN, (base + session.head, last, run))).rows
    carried = [entry for *_, body in rows if body is not None for entry in unpacked(bytes(body))]
    nodes = {node - base: bytes(body) for node, body, _ in rows}
    return nodes, {entry.key: entry for entry in carried}


def plain(body: bytes | None) -> Any:
    """Return a column of JSON as what it says."""
    return None if body is None else decode(bytes(body))
