"""Lanes: one run of a lane holds it at a time, in the order of arrival.

This module owns every write to ``pylash_lanes``, which has four kinds of rows: the lane of a session (named
``session:<id>``) with the session's number and head, so that a turn writes one page less (decision 0019); lanes
without a session; a row for each concurrency key (``slot:<key>``), which is the lock of the key and counts the runs
that are held for it; and on SQLite the row ``sessions``, which counts session numbers.

Rule 1. The row of a lane is its lock. The rows of runs are locked before it.
Rule 2. The run of a process that plays the turn of a session holds the lane of that session from its start to its
        end. Its row in ``pylash_runs`` does not name the lane: it never waits for it (decision 0012).
"""

from __future__ import annotations

from typing import Any

from pylash.stores.operation import Again, Statement, Steps

# The update happens whether or not the lane is free: it locks the row and numbers the run.
_JOIN = """
insert into pylash_lanes(lane, holder, last_seq) values (?, ?, 1)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + 1,
  holder = coalesce(pylash_lanes.holder, excluded.holder)
returning holder, last_seq"""

# A lane without a row is locked too. The update of an existing row only locks it.
_LOCK = """
insert into pylash_lanes(lane, last_seq) values (?, 0)
on conflict (lane) do update set lane = excluded.lane returning holder"""

_LOCK_HELD = "select holder from pylash_lanes where lane = ? {update}"

_HOLDER = "select holder from pylash_lanes where lane = ?"

# Runs that wait for their lane have no ``at``. Places are assigned under the lock of the lane, so they are in order.
_NEXT = """
select id from pylash_runs where lane = ? and state = 'queued' and at is null
order by lane_seq limit 1"""

# Only under the lock of the lane, in the transaction that admits or removes the run.
_SET_HOLDER = "update pylash_lanes set holder = ? where lane = ?"

# One row for each concurrency key: its lock, and the last place of a held run.
_LOCK_SLOT = """
insert into pylash_lanes(lane, last_seq) values (?, 1)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + 1 returning last_seq"""

_SET_STREAK = "update pylash_lanes set streak = ? where lane = ? and streak <> ?"

_NEXT_SESSION_NUMBER = "{next_session_number}"

_ADD_SESSION = """
update pylash_lanes set number = ?, revision = ?, calls = ? where lane = ? and number is null"""

_SET_COUNTS = "update pylash_lanes set revision = ?, calls = ? where lane = ?"

# Every node up to the new head must belong to this turn; otherwise another run has written there meanwhile.
_MOVE_HEAD = """
update pylash_lanes set head = ?, revision = revision + 1, calls = ?, usage = ?
where lane = ? and number = ? and head = ?
  and (select count(*) from pylash_nodes n where n.id > ? and n.id <= ? and n.run = ?) = ?"""

_IMPORT = """
update pylash_lanes set number = ?, holder = ?, last_seq = {greatest}(last_seq, ?), head = ?, revision = ?, calls = ?,
  streak = ?, usage = ? where lane = ? and number is null and holder is null"""

# The row stays with its last_seq: the places of a new session continue after those of the old one.
_CLEAR = """
update pylash_lanes set holder = null, number = null, head = 0, revision = 0, calls = 0, streak = 0,
  usage = null where lane = ?"""


def import_lane(lane: str, number: int, row: tuple[Any, ...]) -> Steps[bool]:
    """Create a session of another store; False if there is one. ``row``: holder, last_seq, head, revision, calls, streak, usage."""
    yield from lock_lane(lane)
    return bool((yield Statement(_IMPORT, (number, *row, lane))).changed)


def join_lane(lane: str, run: int) -> Steps[tuple[int, int]]:
    """Lock a lane and give the run a place in it; return the holder, which is the run if the lane was free."""
    holder, seq = (yield Statement(_JOIN, (lane, run))).rows[0]
    return holder, seq


def lock_lane(lane: str) -> Steps[int | None]:
    """Lock a lane, even if no run has used it yet; return its holder."""
    holder: int | None = (yield Statement(_LOCK, (lane,))).rows[0][0]
    return holder


def lock_held_lane(lane: str, following: int | None) -> Steps[None]:
    """Lock a lane that a run holds; raise Again if ``following``, a locked run, is not the next one."""
    yield Statement(_LOCK_HELD, (lane,))
    if (yield from next_in_lane(lane)) != following:
        raise Again


def lane_holder(lane: str) -> Steps[int | None]:
    """Return the holder of a lane, without a lock."""
    rows = (yield Statement(_HOLDER, (lane,))).rows
    return rows[0][0] if rows else None


def next_in_lane(lane: str) -> Steps[int | None]:
    """Return the first run that waits for a lane, without a lock."""
    rows = (yield Statement(_NEXT, (lane,))).rows
    return rows[0][0] if rows else None


def set_holder(lane: str, run: int | None) -> Steps[None]:
    """Set or clear the holder of a locked lane."""
    yield Statement(_SET_HOLDER, (run, lane))


def lock_slot(slot: str) -> Steps[int]:
    """Lock a concurrency key; return the place that a held run would get now."""
    return int((yield Statement(_LOCK_SLOT, (f"slot:{slot}",))).rows[0][0])


def set_streak(lane: str, streak: int) -> Steps[None]:
    """Set how many turns of a session in a row began without a person. Its lane is locked."""
    yield Statement(_SET_STREAK, (streak, lane, streak))


def next_session_number() -> Steps[int]:
    """Return a number that no session has or had.

    On PostgreSQL it is from a sequence, which no transaction locks and no rollback resets. On SQLite a row counts:
    a rollback resets the row together with everything that was written under the number.
    """
    return int((yield Statement(_NEXT_SESSION_NUMBER)).rows[0][0])


def add_session_number(lane: str, number: int, counts: tuple[int, int]) -> Steps[bool]:
    """Create the session of a locked lane; ``counts`` are its turns and model calls. False if there is one."""
    return bool((yield Statement(_ADD_SESSION, (number, *counts, lane))).changed)


def set_counts(lane: str, counts: tuple[int, int]) -> Steps[None]:
    """Set the turns and model calls that the empty session of a locked lane inherits."""
    yield Statement(_SET_COUNTS, (*counts, lane))


def move_head(params: tuple[Any, ...]) -> Steps[bool]:
    """Move the head of a session; False if it has moved since the turn began, or a node is of another turn."""
    return bool((yield Statement(_MOVE_HEAD, params)).changed)


def clear_lane(lane: str) -> Steps[None]:
    """Remove the session and the holder of a locked lane; places in the lane are never reused."""
    yield Statement(_CLEAR, (lane,))
