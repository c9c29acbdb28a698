"""Lanes in SQL: of the runs of a lane one at a time has it, in the order in which they came.

Rule 1. A lane's row is its lock. The rows of runs are locked before it.
"""

from __future__ import annotations

from pylash.stores.sql import Notify, Statement, Steps

JOIN_LANE = """
insert into pylash_lanes(lane, holder, last_seq) values (?, ?, 1)
on conflict (lane) do update set last_seq = pylash_lanes.last_seq + 1,
  holder = coalesce(pylash_lanes.holder, excluded.holder)
returning holder, last_seq"""

# A lane that nobody used yet must be locked too: the update only locks the row that is there.
LOCK_LANE = """
insert into pylash_lanes(lane, last_seq) values (?, 0)
on conflict (lane) do update set lane = excluded.lane returning holder"""

LOCK_USED_LANE = "select holder from pylash_lanes where lane = ? {update}"

NEXT_IN_LANE = """
select id from pylash_runs where lane = ? and state = 'queued' and at is null
order by lane_seq limit 1"""

_HAND_OVER = "update pylash_lanes set holder = ? where lane = ?"

_READY = "update pylash_runs set at = {now} where id = ?"


def hand_over(lane: str, following: int | None) -> Steps[None]:
    """Give a lane that is locked to the run that is next, which is locked too, or to nobody."""
    yield Statement(_HAND_OVER, (following, lane))
    if following is not None:
        yield Statement(_READY, (following,))
        yield Notify(f"runs:{following}")
