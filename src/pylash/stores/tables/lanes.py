"""Lanes: of the runs of a lane one at a time holds it, in the order in which they came.

This module owns every write to ``pylash_lanes``, which has four kinds of rows: the lane of a session (named
``session:<id>``) with the session's number and head, so that a turn writes one page less (decision 0019); lanes
without a session; one row a concurrency key (``slot:<key>``) that is its lock and counts the runs held for it; and
on SQLite the row ``sessions`` that counts session numbers.

Rule 1. A lane's row is its lock. The rows of runs are locked before it.
"""

from __future__ import annotations

from typing import Any

from pylash.stores.operation import Again, Statement, Steps

# The update happens whether or not the lane is free: it locks the row and counts the run.
_JOIN = """
insert into pylash_lanes(lane, holder, last_seq) values (?, ?, 1)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + 1,
  holder = coalesce(pylash_lanes.holder, excluded.holder)
returning holder, last_seq"""

# A lane without a row must be locked, too. The update of an existing row only locks it.
_LOCK = """
insert into pylash_lanes(lane, last_seq) values (?, 0)
on conflict (lane) do update set lane = excluded.lane returning holder"""

_LOCK_HELD = "select holder from pylash_lanes where lane = ? {update}"

_HOLDER = "select holder from pylash_lanes where lane = ?"

# Runs that wait for their lane have no time. Places are given under the lane's lock, so they are in order.
_NEXT = """
select id from pylash_runs where lane = ? and state = 'queued' and at is null
order by lane_seq limit 1"""

# Only under the lane's lock, together with the transition that admits or removes the run.
_SET_HOLDER = "update pylash_lanes set holder = ? where lane = ?"

# One row for each concurrency key: its lock, and the place of a run that is held.
_LOCK_SLOT = """
insert into pylash_lanes(lane, last_seq) values (?, 1)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + 1 returning last_seq"""

_SET_STREAK = "update pylash_lanes set streak = ? where lane = ? and streak <> ?"

_NEXT_SESSION_NUMBER = "{next_session_number}"

_ADD_SESSION = """
update pylash_lanes set number = ?, revision = ?, calls = ? where lane = ? and number is null"""

# Every node up to the new head must be the turn's: another's in its place means another wrote meanwhile.
_MOVE_HEAD = """
update pylash_lanes set head = ?, revision = revision + 1, calls = ?, usage = ?
where lane = ? and number = ? and head = ?
  and (select count(*) from pylash_nodes n where n.id > ? and n.id <= ? and n.run = ?) = ?"""

# The row stays, and last_seq with it: places of a new session go on behind those of the old one.
_CLEAR = """
update pylash_lanes set holder = null, number = null, head = 0, revision = 0, calls = 0, streak = 0,
  usage = null where lane = ?"""


def join_lane(lane: str, run: int) -> Steps[tuple[int, int]]:
    """Lock a lane and give the run a place in it; return the lane's holder, which is the run if it was free."""
    holder, seq = (yield Statement(_JOIN, (lane, run))).rows[0]
    return holder, seq


def lock_lane(lane: str) -> Steps[int | None]:
    """Lock a lane, also one that no run has used yet; return its holder."""
    holder: int | None = (yield Statement(_LOCK, (lane,))).rows[0][0]
    return holder


def lock_held_lane(lane: str, following: int | None) -> Steps[None]:
    """Lock a lane that a run holds. ``following`` was locked before; if it is not the next run, raise Again."""
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
    """Give a lane that is locked to a run, or to none."""
    yield Statement(_SET_HOLDER, (run, lane))


def lock_slot(slot: str) -> Steps[int]:
    """Lock a concurrency key; return the place of a run that would be held for it now."""
    return int((yield Statement(_LOCK_SLOT, (f"slot:{slot}",))).rows[0][0])


def set_streak(lane: str, streak: int) -> Steps[None]:
    """Set how many turns of a session, whose lane is locked, began in a row without a person."""
    yield Statement(_SET_STREAK, (streak, lane, streak))


def next_session_number() -> Steps[int]:
    """Return a number that no session has, or had.

    On PostgreSQL a sequence gives it, which no transaction locks and no rollback sets back. On SQLite it is counted
    in a row: a rollback sets the row back, together with everything that was written under the number.
    """
    return int((yield Statement(_NEXT_SESSION_NUMBER)).rows[0][0])


def add_session_number(lane: str, number: int, counts: tuple[int, int]) -> Steps[bool]:
    """Make a session of a lane that is locked; ``counts`` are its turns and model calls. False if it is one."""
    return bool((yield Statement(_ADD_SESSION, (number, *counts, lane))).changed)


def move_head(params: tuple[Any, ...]) -> Steps[bool]:
    """Move the head of a session from where a turn began; False if it has moved, or a node is another turn's."""
    return bool((yield Statement(_MOVE_HEAD, params)).changed)


def clear_lane(lane: str) -> Steps[None]:
    """Remove the session of a lane that is locked, and its holder; places in the lane go on."""
    yield Statement(_CLEAR, (lane,))
