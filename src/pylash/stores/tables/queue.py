"""The queue of a session in SQL: messages of processes and people that no turn has taken yet.

Rule 1. A message is queued in the transaction that wakes the run that will take it: the holder of the session's
        lane, or a new run if the lane is free.
Rule 2. Taking messages is an effect of a turn: one transaction removes them from the queue and writes their nodes.
Rule 3. The row of a session's lane is its lock: it is locked before the session is written.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final

from pylash.durable.runs import Instant
from pylash.durable.sessions import Policy, Queued, session_lane
from pylash.stores.operation import Again, Notify, Statement, Steps
from pylash.stores.tables import lanes
from pylash.stores.tables.runs import admit_next, enqueue_drain, has_ended, wake
from pylash.stores.tables.sessions import SESSION, open_session
from pylash.stores.tables.waits import supersede
from pylash.values.canonical import decode, write_payload

MAX_STREAK: Final = 20
"""How many turns in a row may begin without a person."""

# Messages keep the order of arrival even if the clock goes back. The lane is locked.
_ADD_MESSAGE = """
insert into pylash_queue(session, process, sequence, body, at, policy) values (?, ?, ?, ?,
  {greatest}({now}, coalesce((select max(at) + 1 from pylash_queue where session = ?), 0)), ?)
on conflict do nothing"""

MESSAGES = """
select process, sequence, body, policy, at from pylash_queue where session = ?
order by at, process, sequence"""

IMPORT_MESSAGE = """
insert into pylash_queue(session, process, sequence, policy, at, body) values (?, ?, ?, ?, ?, ?)"""

TAKE_MESSAGE = "delete from pylash_queue where session = ? and process = ? and sequence = ?"

_LOCK_MESSAGES = """
select process from pylash_queue where session = ? and process in ({texts})
order by at, process, sequence {update}"""

FORGET_MESSAGES = "delete from pylash_queue where session = ?"

_HAS_MESSAGES = "select 1 from pylash_queue where session = ? limit 1"

_SESSIONS = "select distinct session from pylash_queue where session in ({texts})"

_WAITERS = """
select distinct e.run from pylash_waits w join pylash_effects e on e.wait = w.id
where w.session = ? and w.terminal is null and w.opened is not null and e.outcome is null order by 1"""

_OPEN_WAITS = """
select id from pylash_waits where session = ? and terminal is null and opened is not null order by id
{update}"""


def has_messages(session_id: str) -> Steps[bool]:
    """Return whether a session has queued messages."""
    return bool((yield Statement(_HAS_MESSAGES, (session_id,))).rows)


def with_messages(sessions: Sequence[str]) -> Steps[set[str]]:
    """Return those of some sessions that have queued messages."""
    return {row[0] for row in (yield Statement(_SESSIONS, (list(sessions),))).rows}


def lock_lane(session_id: str, locked: Container[int] | None = None) -> Steps[int | None]:
    """Lock a session's lane and return its holder; raise Again if that is not one of ``locked``, if given."""
    holder = yield from lanes.lock_lane(session_lane(session_id))
    if holder is not None and locked is not None and holder not in locked:
        raise Again  # it took the lane after the read without locks
    return holder


def add_message(
    session_id: str, source: str, sequence: int, body: Any, policy: Policy
) -> Steps[bool]:
    """Queue a message for a session whose lane is locked; False if it is queued already."""
    row = (session_id, source, sequence, write_payload(body, 1), session_id, policy)
    return bool((yield Statement(_ADD_MESSAGE, row)).changed)


def take_back(session_id: str, sources: Sequence[str]) -> Steps[list[str]]:
    """Delete messages that no turn has taken, and return their sources.

    The lock of the lane keeps other transactions from starting a turn for them.
    """
    yield from lock_lane(session_id)
    rows = (yield Statement(_LOCK_MESSAGES, (session_id, list(sources)))).rows
    for (source,) in rows:
        yield Statement(TAKE_MESSAGE, (session_id, source, 0))
    return [source for (source,) in rows]


def wake_session(
    session_id: str, holder: int | None, new_run: int, *, person: bool = False
) -> Steps[None]:
    """Wake the run that holds a session's locked lane, or enqueue a turn for the queued messages."""
    if person:
        yield from lanes.set_streak(session_lane(session_id), 0)
    if holder is not None and (yield from has_ended(holder)):
        # A worker of an earlier version ended the process of an agent, and did not pass its lane on.
        yield from lanes.set_holder(session_lane(session_id), None)
        holder = None
    if holder is None:
        yield from _start_drain(session_id, new_run, person=person)
    else:
        yield from wake(holder)
    yield Notify(f"queue:{session_id}")


def _start_drain(session_id: str, run: int, *, person: bool = False) -> Steps[None]:
    """Enqueue a turn for the queued messages of a session whose lane is free.

    Turns without a person are counted, and after ``MAX_STREAK`` in a row no more are enqueued.
    """
    rows = (yield Statement(SESSION, (session_id,))).rows
    if rows and rows[0][1] is None and rows[0][5] and not person:
        return  # it was deleted, and a message of a process does not create it again
    session = yield from open_session(session_id)
    if not person and session.streak >= MAX_STREAK:
        return
    # The lane is locked and free, so the new run holds it and is ready at once.
    yield from enqueue_drain(run, session_id)
    if not person:
        yield from lanes.set_streak(session_lane(session_id), session.streak + 1)
    yield Notify(f"runs:{run}")


def pass_lane_on(session_id: str, following: int | None, new_run: int) -> Steps[None]:
    """Give a session's lane to the next turn, or to a new turn for queued messages."""
    # The lock of the lane keeps messages from arriving between this read of the queue and the end of the turn.
    yield from admit_next(session_lane(session_id), following)
    if following is None and (yield from has_messages(session_id)):
        yield from _start_drain(session_id, new_run)


def waiters_of(session_id: str) -> Steps[list[int]]:
    """Return the runs that wait for open waits of a session, without locks."""
    return [run for (run,) in (yield Statement(_WAITERS, (session_id,))).rows]


def supersede_waits(session_id: str, waiters: Sequence[int]) -> Steps[int]:
    """End every open wait of a session, and wake the locked runs that wait for them; return how many ended."""
    # The waits are locked now. A run that began to wait after the read without locks is not locked.
    waits = (yield Statement(_OPEN_WAITS, (session_id,))).rows
    if (yield from waiters_of(session_id)) != waiters:
        raise Again
    for (wait,) in waits:
        yield from supersede(wait)
    for run in waiters:
        yield from wake(run)
    return len(waits)


def queued_from(row: Sequence[Any]) -> Queued:
    """Return the message in a row."""
    source, sequence, body, policy, at = row
    return Queued(source, sequence, decode(bytes(body)), Policy(policy), Instant(at))
