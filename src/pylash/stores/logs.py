"""The logs of processes in SQL: what is appended to them, and the rows that are their folds.

Rule 1. The row is a fold of the log: whatever appends an event writes both in one transaction.
Rule 2. All runs that an operation touches are locked first, in the order of their ids; then slots,
        then processes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from pylash.durable import (
    CANCEL_REQUESTED,
    OUTPUTS,
    REGISTRATIONS,
    WAKE,
    AppendEvent,
    Instant,
    Policy,
    ProcessEvent,
    ProcessRecord,
    ProcessState,
    RunState,
    Semantics,
    SignalProcess,
    Success,
    check_signal,
    semantics_of,
    signal_key,
    signal_type,
)
from pylash.stores.queue import add_words, lane_holder, locked_lane, told
from pylash.stores.runs import wake_run
from pylash.stores.sql import (
    Again,
    Notify,
    Statement,
    Steps,
)
from pylash.values import (
    ProcessEnded,
    ProcessEventConflict,
    ProcessUnknown,
    decode,
    write_payload,
)

ADD_EVENT = """
insert into pylash_process_events(process, sequence, type, payload, key, at, taken)
values (?, ?, ?, ?, ?, {now}, ?)"""

RECORD = """
select p.registration, p.number, p.run, p.sequence, p.status, p.output, p.cancel, p.epoch, r.state, r.reason,
       p.created, p.settled
from pylash_processes p join pylash_runs r on r.id = p.run where p.id = ?"""

_LOCK_RUNS = (
    "select id, fence, state, slot from pylash_runs where id in ({bigints}) order by id {update}"
)

LOCK_PROCESS = """
select p.number, p.run, p.sequence, p.status, p.registration, p.cancel, p.epoch
from pylash_processes p where p.id = ? {update}"""

_REGISTRATION = "select registration from pylash_processes where id = ?"

_APPENDED = "update pylash_processes set sequence = sequence + 1 where id = ?"

_EVENT_OF_KEY = """
select sequence, type, payload, key, at from pylash_process_events where process = ? and key = ?"""

_ASK_CANCEL = "update pylash_processes set sequence = sequence + 1, cancel = 1 where id = ?"


# Who is asked to end does not wait for its time, nor for a retry.
_HURRY = """
update pylash_runs set state = 'queued', at = {now}, reason = null, attempts = 0
where id = ? and (state = 'blocked' or (state = 'queued' and at > {now}))"""

_FINISH = """
update pylash_processes set status = 'completed', output = ?, settled = {now} where id = ?"""

CANCEL_DELIVERED = 2
"""The value of a process's cancel once an earlier run of it has heard of it."""

WAITING_RUNS = (
    "select distinct run from pylash_effects where wait = ? and outcome is null order by 1"
)


def lock_runs(runs: Sequence[int]) -> Steps[dict[int, int]]:
    """Lock runs in the order of their ids; return their fences."""
    if not runs:
        return {}
    rows = (yield Statement(_LOCK_RUNS, (list(runs),))).rows
    return {row[0]: row[1] for row in rows}


def locked_process(process_id: str) -> Steps[tuple[Any, ...]]:
    """Return the row of a process, locked."""
    rows = (yield Statement(LOCK_PROCESS, (process_id,))).rows
    if not rows:
        raise ProcessUnknown(process_id)
    return rows[0]


def append_event(command: AppendEvent, locked: Container[int], new_run: int) -> Steps[Any]:
    """Append an event, once; do what its type means to others, whose runs are locked."""
    number, _, sequence, status, body, *_ = yield from locked_process(command.process_id)
    registration = REGISTRATIONS.decode(body)
    semantics = semantics_of(registration, command.type, command.payload)
    payload = write_payload(command.payload, 1)
    key = command.key or f"process:{command.process_id}:event:{sequence + 1}"
    if (known := (yield from _same_event(command, number, key, payload))) is not None:
        return {"sequence": known}
    if status != "open":
        raise ProcessEnded(command.process_id)
    yield Statement(_APPENDED, (command.process_id,))
    yield Statement(ADD_EVENT, (number, sequence + 1, command.type, payload, key, None))
    yield Notify(f"events:{command.process_id}")
    if semantics is Semantics.WAKE and registration.wake_target is not None:
        session = registration.wake_target.session_id
        text = command.payload.get("text") if command.type == WAKE else command.payload
        holder = yield from locked_lane(session, locked)
        yield from add_words(session, command.process_id, sequence + 1, text, Policy.WAKE)
        yield from told(session, holder, new_run)
    elif semantics is Semantics.TERMINAL:
        output = Success(command.payload)
        yield Statement(_FINISH, (write_payload(output, 1), command.process_id))
        for (run,) in (yield Statement(WAITING_RUNS, (f"process:{command.process_id}",))).rows:
            if run not in locked:
                raise Again  # it began to wait after we looked
            yield from wake_run(run)
        yield Notify(f"process:{command.process_id}")
    return {"sequence": sequence + 1}


def wakes(process: str) -> Steps[list[int]]:
    """Return the run that has the lane of the session that a process wakes."""
    for (body,) in (yield Statement(_REGISTRATION, (process,))).rows:
        target = REGISTRATIONS.decode(body).wake_target
        if target is not None:
            holder = yield from lane_holder(target.session_id)
            return [] if holder is None else [holder]
    return []


def _same_event(command: AppendEvent, number: int, key: str, payload: bytes) -> Steps[int | None]:
    """Return the sequence of the event that holds key, or refuse another payload under it."""
    known = (yield Statement(_EVENT_OF_KEY, (number, key))).rows
    if not known:
        return None
    sequence, kind, body, *_ = known[0]
    if kind != command.type or bytes(body or b"null") != payload:
        raise ProcessEventConflict(command.process_id, key)
    return int(sequence)


def append_signal(command: SignalProcess) -> Steps[Any]:
    """Append a signal, once, and wake the process."""
    kind = signal_type(command.name)
    number, run, sequence, status, body, *_ = yield from locked_process(command.process_id)
    key = signal_key(command.process_id, command.name, command.signal_id)
    payload = write_payload(command.payload, 1)
    event = AppendEvent(command.process_id, kind, command.payload, key)
    if (known := (yield from _same_event(event, number, key, payload))) is not None:
        return {"sequence": known}
    if status != "open":
        raise ProcessEnded(command.process_id)
    check_signal(REGISTRATIONS.decode(body), command.name, command.payload)
    yield Statement(_APPENDED, (command.process_id,))
    yield Statement(ADD_EVENT, (number, sequence + 1, kind, payload, key, 0))
    yield from wake_run(run)
    yield Notify(f"events:{command.process_id}")
    return {"sequence": sequence + 1}


def ask_cancel(process_id: str, reason: str | None) -> Steps[Any]:
    """Append the request to end, once, and wake the process."""
    number, run, sequence, status, _, cancel, _ = yield from locked_process(process_id)
    if cancel or status != "open":
        return {"id": process_id}
    yield Statement(_ASK_CANCEL, (process_id,))
    payload, key = write_payload({"reason": reason}, 1), f"process:{process_id}:cancel"
    yield Statement(ADD_EVENT, (number, sequence + 1, CANCEL_REQUESTED, payload, key, None))
    yield Statement(_HURRY, (run,))
    yield from wake_run(run)
    yield Notify(f"cancel:{run}")
    yield Notify("runs")
    yield Notify(f"events:{process_id}")
    return {"id": process_id}


def record_of(process_id: str) -> Steps[ProcessRecord]:
    """Return a process."""
    rows = (yield Statement(RECORD, (process_id,))).rows
    if not rows:
        raise ProcessUnknown(process_id)
    return record_from(rows[0])


def record_from(row: tuple[Any, ...]) -> ProcessRecord:
    """Return the process in a row."""
    registration, number, run, sequence, status, output, cancel, epoch, state, reason, *times = row
    end = None if output is None else OUTPUTS.decode(output)
    return ProcessRecord(
        REGISTRATIONS.decode(registration),
        number,
        run,
        ProcessState(sequence, status, end, bool(cancel), epoch),
        RunState(state),
        reason,
        Instant(times[0]),
        None if times[1] is None else Instant(times[1]),
        cancel == CANCEL_DELIVERED,
    )


def shown_state(record: ProcessRecord) -> RunState:
    """Return the one word that people see: the log's if it says how it ended, else the run's."""
    status = record.state.status
    return record.run_state if status == "open" else RunState(status)


def event_from(row: tuple[Any, ...]) -> ProcessEvent:
    """Return the event in a row."""
    sequence, kind, payload, key, at = row
    body = None if payload is None else decode(payload)
    return ProcessEvent(sequence, kind, body, key, Instant(at))
