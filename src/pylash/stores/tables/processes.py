"""Processes, their logs and their tags: this module owns every write to the three tables.

Rule 1. The row of a process is the fold of its log: an event is appended in the transaction that changes the
        row, while the row is locked.
Rule 2. ``watched`` has two bits: 1 if a listener outside of runs is notified of the end, 2 if runs wait for it,
        children are attached, or it holds the lane of a session. They are set in the transaction that begins to wait. An end without bit 2 wakes no
        run, so one statement can write many such ends.

``tables.bulk`` writes starts and ends of many processes on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pylash.durable.processes import CANCEL_REQUESTED, CONTINUED, STARTED
from pylash.stores.operation import Statement, Steps
from pylash.values.process_errors import ProcessUnknown

_ADD = """
insert into pylash_processes(id, number, run, registration, digest, env, parent, created)
values (?, ?, ?, ?, ?, ?, ?, {now})"""

_ADD_EVENT = """
insert into pylash_process_events(process, sequence, type, payload, key, at, taken)
values (?, ?, ?, ?, ?, {now}, ?)"""

_LOCK = """
select id, number, run, sequence, status, registration, cancel, epoch
from pylash_processes where id = ? {update}"""

_COUNT_EVENT = "update pylash_processes set sequence = sequence + 1 where id = ?"

_REQUEST_CANCEL = "update pylash_processes set sequence = sequence + 1, cancel = 1 where id = ?"

_CONTINUE = """
update pylash_processes set sequence = sequence + 1, epoch = epoch + 1, run = ?, registration = ?,
  cancel = case when ? then 2 else cancel end where id = ?"""

_END = """
update pylash_processes set sequence = sequence + 1, status = ?, output = ?, settled = {now} where id = ?"""

_FINISH = """
update pylash_processes set status = 'completed', output = ?, settled = {now} where id = ?"""

_WATCH = "update pylash_processes set watched = watched | 2 where id = ? returning status, output"

# SKIP LOCKED avoids a deadlock of two transactions that lock many rows.
_OBSERVE = """
with seen as (select number from pylash_processes where id in ({texts}) and status = 'open'
              and watched & 1 = 0 order by number {skip})
update pylash_processes set watched = watched | 1 where number in (select number from seen)"""

_TAKE_SIGNAL = """
update pylash_process_events set taken = 1 where process = ? and sequence = ? and taken = 0"""

_IMPORT = """
insert into pylash_processes(id, number, run, registration, digest, env, parent, sequence, status, output, cancel, epoch,
  watched, created, settled) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 2, ?, ?)"""

_IMPORT_EVENT = """
insert into pylash_process_events(process, sequence, type, payload, key, at, taken) values (?, ?, ?, ?, ?, ?, ?)"""


_ADD_TAG = "insert into pylash_process_tags(tag, number) values (?, ?)"


class LockedProcess(NamedTuple):
    """The row of a process that this transaction has locked."""

    id: str
    number: int
    run: int
    sequence: int
    status: str
    registration: bytes
    cancel: int
    epoch: int


def lock_process(process_id: str) -> Steps[LockedProcess]:
    """Lock a process, and return its row."""
    rows = (yield Statement(_LOCK, (process_id,))).rows
    if not rows:
        raise ProcessUnknown(process_id)
    return LockedProcess(*rows[0])


def add_process(
    process_id: str, run: int, given: tuple[Any, ...], parent: str | None
) -> Steps[None]:
    """Add a process, after its first run; ``given``: its registration, digest and environment."""
    yield Statement(_ADD, (process_id, run, run, *given, parent))
    yield Statement(_ADD_EVENT, (run, 1, STARTED, None, None, None))


def add_tags(number: int, tags: Iterable[str]) -> Steps[None]:
    """Add the tags of a process that was just added; they never change."""
    for tag in tags:
        yield Statement(_ADD_TAG, (tag, number))


def import_process(row: tuple[Any, ...], events: Iterable[tuple[Any, ...]]) -> Steps[None]:
    """Add a process of another store with its log, after its run. Runs may wait for its end, so it is watched."""
    yield Statement(_IMPORT, row)
    for event in events:
        yield Statement(_IMPORT_EVENT, (row[1], *event))


def append_event(
    process: LockedProcess,
    kind: str,
    payload: bytes,
    key: str | None,
    taken: int | None = None,
) -> Steps[None]:
    """Append an event. ``taken`` is 0 for a signal, which was not received yet."""
    yield Statement(_COUNT_EVENT, (process.id,))
    yield Statement(_ADD_EVENT, (process.number, process.sequence + 1, kind, payload, key, taken))


def append_cancel(process: LockedProcess, payload: bytes, key: str) -> Steps[None]:
    """Append the cancel request."""
    yield Statement(_REQUEST_CANCEL, (process.id,))
    event = (process.number, process.sequence + 1, CANCEL_REQUESTED, payload, key, None)
    yield Statement(_ADD_EVENT, event)


def append_continuation(
    process: LockedProcess, run: int, registration: bytes, arguments: bytes, *, cancelled: bool
) -> Steps[None]:
    """Append that the process continues with another run, in its next epoch.

    ``cancelled``: the cancel request was delivered, and is not delivered again.
    """
    yield Statement(_CONTINUE, (run, registration, cancelled, process.id))
    event = (process.number, process.sequence + 1, CONTINUED, arguments, None, None)
    yield Statement(_ADD_EVENT, event)


def append_end(
    process: LockedProcess, status: str, output: bytes, kind: str, payload: bytes
) -> Steps[None]:
    """Append the end of an open process."""
    yield Statement(_END, (status, output, process.id))
    yield Statement(_ADD_EVENT, (process.number, process.sequence + 1, kind, payload, None, None))


def finish_process(process: LockedProcess, output: bytes) -> Steps[None]:
    """End a process whose last event has terminal semantics; that event was appended before."""
    yield Statement(_FINISH, (output, process.id))


def take_signal(number: int, sequence: int) -> Steps[bool]:
    """Mark a signal as received; False if it was received before."""
    return bool((yield Statement(_TAKE_SIGNAL, (number, sequence))).changed)


def watch_process(process: str) -> Steps[tuple[str, bytes | None] | None]:
    """Note that a run waits for a process or is attached to it; return its status and output, None if it is unknown."""
    rows = (yield Statement(_WATCH, (process,))).rows
    return (rows[0][0], rows[0][1]) if rows else None


def observe_processes(processes: Sequence[str]) -> Steps[None]:
    """Note that a listener waits for the ends of open processes; locked rows are skipped."""
    yield Statement(_OBSERVE, (list(processes),))
