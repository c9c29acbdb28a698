"""Sessions and their nodes: this module owns every write to their tables, except the lanes of sessions.

Statements with public names are executed by the operations that need them, after the lane of the session is locked.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pylash.durable.runs import TERMINAL, Fence, Instant, JournalEntry, RunState
from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_from_text
from pylash.durable.sessions import (
    Segment,
    SessionRecord,
    TurnRecord,
    Writing,
    session_lane,
)
from pylash.stores.operation import Again, Statement, Steps
from pylash.stores.tables.contents import PUT_ATTACHMENT, PUT_ENV
from pylash.stores.tables.effects import find_effect, record_effect
from pylash.stores.tables.lanes import add_session_number, lock_lane, next_session_number
from pylash.stores.tables.packed_effects import (
    NODE_BITS,
    pack_effects,
    split_effects,
    unpack_effects,
)
from pylash.stores.tables.runs import FORGOTTEN
from pylash.values.canonical import decode, write_payload

DIGEST_BYTES: Final = 32

SESSION = """
select substr(l.lane, 9), l.number, l.head, l.revision, l.calls, coalesce(s.generation, 0), l.streak, l.usage,
  s.options, s.origin
from pylash_lanes l left join pylash_sessions s on s.id = substr(l.lane, 9) where l.lane = 'session:' || ?"""

ADD_ORIGIN = """
insert into pylash_sessions(id, origin) values (?, ?)
on conflict (id) do update set origin = excluded.origin"""

_SET_OPTIONS = """
insert into pylash_sessions(id, options) values (?, ?)
on conflict (id) do update set options = excluded.options"""

_ADD_TAG = "insert into pylash_session_tags(tag, number) values (?, ?) on conflict do nothing"

_FORGET_TAG = "delete from pylash_session_tags where tag = ? and number = ?"

TURN = f"""
select scope, id, input, state, reason, result, created, cancel, options, cancel_reason, fence, token, {FORGOTTEN}
from pylash_runs where scope = ?"""

# A place is written once. A node behind the head whose run has ended will never be committed, and is replaced.
_ADD_NODE = """
insert into pylash_nodes(id, run, body, effects) values (?, ?, ?, ?)
on conflict (id) do update set run = excluded.run, body = excluded.body, effects = excluded.effects
where pylash_nodes.run <> excluded.run
  and not exists (select 1 from pylash_runs r where r.id = pylash_nodes.run and r.settled is null)
  and excluded.id > (select l.head from pylash_lanes l where l.lane = ? and l.number = ?) + ?"""

_NODE = "select run from pylash_nodes where id = ?"

_EFFECTS_OF_NODE = "select effects from pylash_nodes where id = ?"

NODES = "select id, body from pylash_nodes where id > ? and id <= ? order by id"

LINES_AT_ONCE: Final = 4096

# One value instead of a row for each node takes half of the time. The limit keeps the nodes in order: the rows of
# the subquery come from one scan.
_LINES = f"""
select {{lines}} from (
  select body from pylash_nodes where id > ? and id <= ? order by id limit {LINES_AT_ONCE}) n"""

# Without the rows of the runs: PostgreSQL would read all runs rather than guess how few a range of nodes has.
_RUNS = "select distinct run from pylash_nodes where id > ? and id <= ? order by run"

_NODES_OF_RUN = """
select id, body, effects from pylash_nodes where id > ? and id <= ? and run = ? order by id"""

ADD_SESSION_ROW = "insert into pylash_sessions(id) values (?) on conflict do nothing"

REVOKE_WAITS = "update pylash_sessions set generation = ? where id = ? and generation < ?"

# The keys of messages of persons, to detect repetitions.
REMEMBER_KEY = "insert into pylash_said(session, key, token, at) values (?, ?, ?, {now})"

IMPORT_KEY = "insert into pylash_said(session, key, token, at) values (?, ?, '', ?)"

IMPORT_NODE = "insert into pylash_nodes(id, run, body, effects) values (?, ?, ?, ?)"

# A session of this id that was deleted here has a higher generation than the exported one, unless it had no waits.
IMPORT_SESSION = """
insert into pylash_sessions(id, generation, options, origin) values (?, ?, ?, ?)
on conflict (id) do update set generation = excluded.generation, options = excluded.options, origin = excluded.origin
where pylash_sessions.generation <= excluded.generation"""

# The nodes of a turn behind the head, which a fresh commit discards.
DROP_NODES = "delete from pylash_nodes where id > ? and id <= ?"

# A session that was never opened may have waits that were resolved early.
CLEAR_SESSION = """
insert into pylash_sessions(id, generation) values (?, 1)
on conflict (id) do update set generation = pylash_sessions.generation + 1, options = null, origin = null"""

FORGET_KEYS = "delete from pylash_said where session = ?"

ADD_FORK = "insert into pylash_forks(number, session) values (?, ?)"

FORGET_FORKS = "delete from pylash_forks where number in ({bigints}) and session = ?"

ADD_DEAD_LINE = "insert into pylash_dead_lines(number, session, body) values (?, ?, ?)"

FORGET_DEAD_LINE = "delete from pylash_dead_lines where number = ?"

DELETE_NODES = "delete from pylash_nodes where id in ({bigints})"


def find_session(session_id: str) -> Steps[SessionRecord | None]:
    """Return a session, if there is one."""
    rows = (yield Statement(SESSION, (session_id,))).rows
    return session_from(rows[0]) if rows and rows[0][1] is not None else None


def open_session(session_id: str, options: Any = None) -> Steps[SessionRecord]:
    """Return a session, created if it is missing, with the options it is opened with now."""
    session = yield from find_session(session_id)
    if session is None:
        yield from add_session(session_id)
        session = session_from((yield Statement(SESSION, (session_id,))).rows[0])
    merged = {
        **(session.options or {}),
        **(options or {}),
    }  # options that are not given stay as they were
    if merged != (session.options or {}):
        yield from set_options(session, merged)
        session = msgspec.structs.replace(session, options=merged)
    return session


def add_session(session_id: str, counts: tuple[int, int] = (0, 0)) -> Steps[None]:
    """Create a session that is missing; ``counts`` are the turns and the model calls that it inherits."""
    lane = session_lane(session_id)
    yield from lock_lane(lane)
    number = yield from next_session_number()
    if not (yield from add_session_number(lane, number, counts)):
        raise Again  # another transaction created it meanwhile


def set_options(session: SessionRecord, options: Any) -> Steps[None]:
    """Write the options of a session whose lane is locked."""
    yield Statement(_SET_OPTIONS, (session.id, write_payload(options, 1)))
    yield from change_tags(session.number, session.options, options)


def change_tags(number: int, before: Any, options: Any) -> Steps[None]:
    """Write the tags in the options of a session, which had other options before."""
    old, new = set(tags_of(before)), set(tags_of(options))
    for tag in sorted(old - new):
        yield Statement(_FORGET_TAG, (tag, number))
    for tag in sorted(new - old):
        yield Statement(_ADD_TAG, (tag, number))


def tags_of(options: Any) -> tuple[str, ...]:
    """Return the tags in the options of a session."""
    return tuple((options or {}).get("tags") or ())


def write_turn(fence: Fence, session: SessionRecord, writing: Writing) -> Steps[None]:
    """Write rows of a turn whose run is locked."""
    for env in writing.envs:
        yield Statement(PUT_ENV, env)
    for attachment in writing.attachments:
        yield Statement(PUT_ATTACHMENT, attachment)
    base, lane = session.number << NODE_BITS, session_lane(session.id)
    in_node, entries = split_effects(fence, writing.entries, nodes=bool(writing.nodes))
    packed = pack_effects(in_node)
    for place, body in writing.nodes:
        row = (base + place, fence.run, body, packed, lane, session.number, base)
        added = (yield Statement(_ADD_NODE, row)).changed
        if packed and not added and not (yield from _has_effects(base + place, packed)):
            entries += in_node
        packed = None
    for entry in entries:
        yield from record_effect(fence, entry)


def is_written(fence: Fence, session: SessionRecord, writing: Writing) -> Steps[bool]:
    """Return whether a writing was written: it is atomic, so its first row is enough to check."""
    for place, _ in writing.nodes:
        return (yield from is_ours(fence, session, place))
    for entry in writing.entries:
        return (yield from find_effect(fence.run, entry.key)) is not None
    return False


def is_ours(fence: Fence, session: SessionRecord, place: int) -> Steps[bool]:
    """Return whether the run of the fence wrote the node at a place."""
    rows = (yield Statement(_NODE, ((session.number << NODE_BITS) + place,))).rows
    return bool(rows) and rows[0][0] == fence.run


def _has_effects(node: int, packed: bytes) -> Steps[bool]:
    """Return whether a node has exactly these effects: an earlier attempt wrote it, and its answer was lost."""
    rows = (yield Statement(_EFFECTS_OF_NODE, (node,))).rows
    return bool(rows) and rows[0][0] is not None and bytes(rows[0][0]) == packed


def session_from(row: tuple[Any, ...]) -> SessionRecord:
    """Return the session in a row."""
    session_id, number, head, revision, calls, generation, streak, usage, options, origin = row
    segments = () if origin is None else msgspec.json.decode(origin, type=tuple[Segment, ...])
    counts = (number or 0, head, revision, calls, generation, streak)
    return SessionRecord(session_id, *counts, plain(usage), plain(options), segments)


def turn_from(row: tuple[Any, ...]) -> TurnRecord:
    """Return the turn in a row."""
    scope, run, body, state, reason, result, created, cancel, options, why, *_ = row
    known = scope_from_text(scope)
    assert isinstance(known, TurnScope | QueueDrainScope)
    is_open, value = RunState(state) not in TERMINAL, plain(result)
    if is_open and cancel and why is None and value is not None:
        why = str(value["cancelled"])  # written by a worker of schema 5
    return TurnRecord(
        known,
        run,
        bytes(body or b"")[DIGEST_BYTES:],
        RunState(state),
        reason,
        None if is_open else value,
        Instant(created),
        bool(cancel),
        options=plain(options),
        cancel_reason=why,
    )


def uncommitted_nodes(session: SessionRecord) -> Steps[dict[int, bytes]]:
    """Return the nodes behind the head, by place."""
    base = session.number << NODE_BITS
    last = base + (1 << NODE_BITS) - 1
    rows = (yield Statement(NODES, (base + session.head, last))).rows
    return {node - base: bytes(body) for node, body in rows}


def nodes_of(segment: Segment, after: int = 0) -> Steps[list[bytes]]:
    """Return the nodes of a segment after a place, the oldest first; each is a line of JSON."""
    base, bodies = segment.number << NODE_BITS, list[bytes]()
    for place in range(after, segment.upto, LINES_AT_ONCE):
        upto = min(place + LINES_AT_ONCE, segment.upto)
        lines = (yield Statement(_LINES, (base + place, base + upto))).rows[0][0]
        bodies += bytes(lines).split(b"\n") if lines else ()
    return bodies


def runs_of_nodes(segment: Segment) -> Steps[list[int]]:
    """Return the runs that wrote the nodes of a segment."""
    base = segment.number << NODE_BITS
    return [run for (run,) in (yield Statement(_RUNS, (base, base + segment.upto))).rows]


def read_uncommitted(
    session: SessionRecord, run: int
) -> Steps[tuple[dict[int, bytes], dict[str, JournalEntry]]]:
    """Return the nodes of a run behind the head, by place, and the effects that are packed into them."""
    base = session.number << NODE_BITS
    last = base + (1 << NODE_BITS) - 1
    rows = (yield Statement(_NODES_OF_RUN, (base + session.head, last, run))).rows
    packed = [
        entry for *_, body in rows if body is not None for entry in unpack_effects(bytes(body))
    ]
    nodes = {node - base: bytes(body) for node, body, _ in rows}
    return nodes, {entry.key: entry for entry in packed}


def plain(body: bytes | None) -> Any:
    """Return the value of a column of JSON."""
    return None if body is None else decode(bytes(body))
