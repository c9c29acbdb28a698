"""The queue of a session in SQL: what processes and people say to it while it is busy, or asleep.

Rule 1. Words are queued and whoever must hear them is woken in one transaction: the run that has the
        session's lane, or a new one if nobody has it.
Rule 2. Taking words is an effect of a turn: they leave the queue and become nodes at once.
Rule 3. Turns that no person asked for are counted: after so many a person must say something first.
Rule 4. A session's lane row is its lock: it is locked before the session is written, and before the row
        from which new sessions get their numbers.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final

from pylash.durable import (
    SUPERSEDED,
    TURN_TARGET,
    Cancelled,
    Instant,
    Policy,
    Queued,
    QueueDrainScope,
    scope_text,
    session_lane,
)
from pylash.stores.lanes import JOIN_LANE, LOCK_LANE, LOCK_USED_LANE, NEXT_IN_LANE, hand_over
from pylash.stores.runs import wake_run
from pylash.stores.session_rows import SESSION, opened_session
from pylash.stores.sql import Again, Notify, Statement, Steps
from pylash.values import decode, write, write_payload

MAX_STREAK: Final = 20
"""How many turns may begin in a row without a person."""

# Words are in the order in which they came, whatever the clock says: the lane is locked meanwhile.
_ADD_WORDS = """
insert into pylash_queue(session, process, sequence, body, at, policy) values (?, ?, ?, ?,
  {greatest}({now}, coalesce((select max(at) + 1 from pylash_queue where session = ?), 0)), ?)
on conflict do nothing"""

WORDS = """
select process, sequence, body, policy, at from pylash_queue where session = ?
order by at, process, sequence"""

TAKE_WORDS = "delete from pylash_queue where session = ? and process = ? and sequence = ?"

_THESE_WORDS = """
select process from pylash_queue where session = ? and process in ({texts})
order by at, process, sequence {update}"""

_HAS_WORDS = "select 1 from pylash_queue where session = ? limit 1"

_HOLDER = "select holder from pylash_lanes where lane = ?"

_SET_STREAK = "update pylash_lanes set streak = ? where lane = ? and streak <> ?"

_ADD_DRAIN = """
insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, at, created)
values (?, ?, 'queue_drain', ?, ?, ?, 'queued', {now}, {now}) on conflict (id) do nothing"""

_WAITERS = """
select distinct e.run from pylash_waits w join pylash_effects e on e.wait = w.id
where w.session = ? and w.terminal is null and w.opened is not null and e.outcome is null order by 1"""

_OPEN_WAITS = """
select id from pylash_waits where session = ? and terminal is null and opened is not null order by id
{update}"""

_SUPERSEDE = """
update pylash_waits set terminal = ?, answered_by = ?, resolved = {now}
where id = ? and terminal is null"""


def has_words(session_id: str) -> Steps[bool]:
    """Return whether anything waits for a session."""
    return bool((yield Statement(_HAS_WORDS, (session_id,))).rows)


def lane_holder(session_id: str) -> Steps[int | None]:
    """Return the run that has a session's lane, as it is this moment."""
    rows = (yield Statement(_HOLDER, (session_lane(session_id),))).rows
    return rows[0][0] if rows else None


def locked_lane(session_id: str, locked: Container[int] | None = None) -> Steps[int | None]:
    """Lock a session's lane; return the run that has it, which must be among those locked before."""
    holder: int | None = (yield Statement(LOCK_LANE, (session_lane(session_id),))).rows[0][0]
    if holder is not None and locked is not None and holder not in locked:
        raise Again  # it began after we looked
    return holder


def add_words(
    session_id: str, source: str, sequence: int, body: Any, policy: Policy
) -> Steps[bool]:
    """Queue words for a session whose lane is locked; False if they are there."""
    words = (session_id, source, sequence, write_payload(body, 1), session_id, policy)
    return bool((yield Statement(_ADD_WORDS, words)).changed)


def take_words_back(session_id: str, sources: Sequence[str]) -> Steps[list[str]]:
    """Forget words that nobody has heard, and return whose they were.

    The lane is locked: whoever gives it on meanwhile begins no turn for them.
    """
    yield from locked_lane(session_id)
    rows = (yield Statement(_THESE_WORDS, (session_id, list(sources)))).rows
    for (source,) in rows:
        yield Statement(TAKE_WORDS, (session_id, source, 0))
    return [source for (source,) in rows]


def told(session_id: str, holder: int | None, new_run: int, *, person: bool = False) -> Steps[None]:
    """Wake the run that has a session's lane, which is locked, or make one for what was queued."""
    if person:
        yield from person_spoke(session_id)
    if holder is None:
        yield from _stir(session_id, new_run, person=person)
    else:
        yield from wake_run(holder)
    yield Notify(f"queue:{session_id}")


def person_spoke(session_id: str) -> Steps[None]:
    """Count anew how many turns begin without a person."""
    yield Statement(_SET_STREAK, (0, session_lane(session_id), 0))


def _stir(session_id: str, run: int, *, person: bool = False) -> Steps[None]:
    """Start a turn for what waits in a session's queue: nobody has its lane."""
    rows = (yield Statement(SESSION, (session_id,))).rows
    if rows and rows[0][1] is None and rows[0][5] and not person:
        return  # it was deleted: a process does not bring it back
    session = yield from opened_session(session_id)
    if not person and session.streak >= MAX_STREAK:
        return
    lane = session_lane(session_id)
    holder, seq = (yield Statement(JOIN_LANE, (lane, run))).rows[0]
    if holder != run:
        raise Again
    scope = scope_text(QueueDrainScope(session_id, f"{run:x}"))
    if not (yield Statement(_ADD_DRAIN, (run, scope, TURN_TARGET, lane, seq))).changed:
        raise Again  # the number is taken: the lane was given to it, which is undone with us
    if not person:
        yield Statement(_SET_STREAK, (session.streak + 1, lane, session.streak + 1))
    yield Notify(f"runs:{run}")


def locked_next(session_id: str, following: int | None) -> Steps[None]:
    """Lock a lane that a run has; the turn that is next must be the one that was locked before."""
    yield Statement(LOCK_USED_LANE, (session_lane(session_id),))
    if (yield from next_in_lane(session_id)) != following:
        raise Again


def next_in_lane(session_id: str) -> Steps[int | None]:
    """Return the turn that is next in a session's lane, if there is one, as it is this moment."""
    rows = (yield Statement(NEXT_IN_LANE, (session_lane(session_id),))).rows
    return rows[0][0] if rows else None


def hand_lane_on(session_id: str, following: int | None, new_run: int) -> Steps[None]:
    """Give a session's lane to the next turn, or to a new one for what waits in its queue.

    Nobody asks for that one now, so it counts: turns that never take their words do not go on for ever.
    """
    yield from hand_over(session_lane(session_id), following)
    if following is None and (yield from has_words(session_id)):
        yield from _stir(session_id, new_run)


def waiters_of(session_id: str) -> Steps[list[int]]:
    """Return the runs that wait for open waits of a session, as they are this moment."""
    return [run for (run,) in (yield Statement(_WAITERS, (session_id,))).rows]


def supersede_waits(session_id: str, waiters: Sequence[int]) -> Steps[int]:
    """End every open wait of a session, and wake who waits for them, whose runs are locked."""
    waits = (yield Statement(_OPEN_WAITS, (session_id,))).rows
    if (yield from waiters_of(session_id)) != waiters:
        raise Again  # one began to wait after we looked
    for (wait,) in waits:
        yield from supersede(wait)
    for run in waiters:
        yield from wake_run(run)
    return len(waits)


def supersede(wait: str) -> Steps[None]:
    """End an open wait: something takes the place of its answer."""
    yield Statement(_SUPERSEDE, (write(Cancelled()), SUPERSEDED, wait))
    yield Notify(f"wait:{wait}")


def queued_from(row: Sequence[Any]) -> Queued:
    """Return the words in a row."""
    source, sequence, body, policy, at = row
    return Queued(source, sequence, decode(bytes(body)), Policy(policy), Instant(at))
