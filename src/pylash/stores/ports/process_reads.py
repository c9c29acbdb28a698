"""Reads of processes: the read-only operations of ``SqlProcesses``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pylash.durable.processes import (
    OUTPUTS,
    REGISTRATIONS,
    SIGNAL,
    Output,
    ProcessEvent,
    ProcessFilter,
    ProcessRecord,
    ProcessState,
    ProcessView,
    Resumed,
    SignalWait,
)
from pylash.durable.runs import Instant, RunState
from pylash.stores.operation import Statement, Steps
from pylash.stores.ports.journal import journals_of
from pylash.stores.ports.process_log import WHERE
from pylash.stores.process_lists import list_processes
from pylash.stores.run_lists import ROWS, view_from
from pylash.stores.tables.workers import known_targets
from pylash.values.canonical import decode
from pylash.values.process_errors import ProcessUnknown

_EVENTS = """
select sequence, type, payload, key, at from pylash_process_events
where process = ? and sequence > ? order by sequence limit ?"""

_UNRECEIVED = """
select e.sequence, e.type, e.payload, e.key, e.at from pylash_process_events e
join pylash_processes p on p.number = e.process where p.id = ? and e.taken = 0 order by e.sequence"""

_PROCESS = """
select p.registration, p.number, p.run, p.sequence, p.status, p.output, p.cancel, p.epoch, r.state, r.reason,
       p.created, p.settled
from pylash_processes p join pylash_runs r on r.id = p.run where p.id = ?"""

_PROCESS_NOW = _PROCESS.replace("select ", "select {now}, ")

_OF_FIRST_RUNS = _PROCESS_NOW.replace(
    "where p.id = ?", "where p.number in ({bigints}) and p.run = p.number"
)

_OF_LATER_RUNS = _PROCESS_NOW.replace(
    "where p.id = ?", "where p.run in ({bigints}) and p.run <> p.number"
)

# Two statements, because most processes are found by one index and those that continued themselves by another.
_RECORDS = f"{_OF_FIRST_RUNS} union all {_OF_LATER_RUNS}"

_ATTENTION = """
select p.cancel, e.type from pylash_processes p
left join pylash_process_events e on e.process = p.number and e.taken = 0 where p.id = ?"""

_IDS = "select id from pylash_processes where id in ({texts})"

_CANCEL_REASON = """
select e.payload from pylash_process_events e
join pylash_processes p on p.number = e.process and e.key = ? where p.id = ?"""

_OUTPUTS = """
select id, output from pylash_processes where id in ({texts}) and output is not null"""

OF_PROCESS = ROWS.replace("{where}", "r.id = (select q.run from pylash_processes q where q.id = ?)")

_SIGNAL_WAITS = """
select run, key, wait, label, started, due from pylash_effects
where substr(wait, 1, 7) = 'signal:' and outcome is null order by started, key"""

_OPEN_OF_RUNS = """
select p.run, p.id, p.epoch from pylash_processes p
where p.number in ({bigints}) and p.run = p.number and p.status = 'open'
union all select p.run, p.id, p.epoch from pylash_processes p
where p.run in ({bigints}) and p.run <> p.number and p.status = 'open'"""

_SIGNAL_WAITS_OF = """
select p.id, e.key, e.wait, e.label, e.started, e.due, p.epoch from pylash_processes p
join pylash_effects e on e.run = p.run
where p.id = ? and p.status = 'open' and substr(e.wait, 1, 7) = 'signal:' and e.outcome is null
order by e.started, e.key"""

EVENTS_AT_ONCE: Final = 500

CANCEL_DELIVERED: Final = 2
"""The value of the column ``cancel`` after the cancel was delivered to an earlier run of the process."""


def find_process(process_id: str) -> Steps[ProcessRecord | None]:
    """Return a process."""
    rows = (yield Statement(_PROCESS, (process_id,))).rows
    return _record_from(rows[0]) if rows else None


def resume_processes(runs: Sequence[int]) -> Steps[dict[int, Resumed]]:
    """Return the input for continuing runs, by run; a process that cannot be read is left out."""
    journals = yield from journals_of(runs)
    resumed = {}
    for now, *row in (yield Statement(_RECORDS, (list(runs), list(runs)))).rows:
        try:
            record = _record_from(row)
        except ValueError:  # written by newer code
            continue
        resumed[record.run] = Resumed(record, journals[record.run], now)
    return resumed


def process_records(runs: Sequence[int]) -> Steps[dict[int, ProcessRecord]]:
    """Return the processes of runs; one that newer code has written is left out."""
    records: dict[int, ProcessRecord] = {}
    if runs:
        for _, *row in (yield Statement(_RECORDS, (list(runs), list(runs)))).rows:
            with suppress(ValueError):
                record = _record_from(row)
                records[record.run] = record
    return records


def look_at_process(process_id: str) -> Steps[tuple[bool, set[str]]]:
    """Return whether a process has a cancel request, and the names of signals that it has not received."""
    rows = (yield Statement(_ATTENTION, (process_id,))).rows
    names = {row[1].removeprefix(SIGNAL) for row in rows if row[1] is not None}
    return bool(rows) and bool(rows[0][0]), names


def unreceived_signals(process_id: str) -> Steps[list[ProcessEvent]]:
    """Return the signals that a process has not received, the oldest first."""
    return [_event_from(row) for row in (yield Statement(_UNRECEIVED, (process_id,))).rows]


def cancel_reason(process_id: str) -> Steps[str | None]:
    """Return the reason of the cancel request of a process."""
    rows = (yield Statement(_CANCEL_REASON, (f"process:{process_id}:cancel", process_id))).rows
    return decode(rows[0][0])["reason"] if rows else None


def process_view(process_id: str) -> Steps[ProcessView | None]:
    """Return the view of a process."""
    known = yield from known_targets()
    rows = (yield Statement(OF_PROCESS, (known, process_id))).rows
    return view_from(rows[0]) if rows else None


def processes_listed(wanted: ProcessFilter, limit: int) -> Steps[list[ProcessView]]:
    """Return the views of processes, the newest first."""
    return [view_from(row) for row in (yield from list_processes(wanted, limit))]


def signal_waits(process_id: str | None = None) -> Steps[list[SignalWait]]:
    """Return the open waits for signals, the oldest first."""
    if process_id is not None:
        rows = (yield Statement(_SIGNAL_WAITS_OF, (process_id,))).rows
        return [SignalWait(*row) for row in rows]
    waits = (yield Statement(_SIGNAL_WAITS)).rows
    runs = sorted({run for run, *_ in waits})
    found = (yield Statement(_OPEN_OF_RUNS, (runs, runs))).rows if runs else []
    names = {run: (process, epoch) for run, process, epoch in found}
    return [
        SignalWait(names[run][0], key, wait, label, started, due, names[run][1])
        for run, key, wait, label, started, due in waits
        if run in names
    ]


def process_outputs(process_ids: Sequence[str]) -> Steps[dict[str, Output]]:
    """Return the outputs of the processes that have ended."""
    rows = (yield Statement(_OUTPUTS, (list(process_ids),))).rows
    return {process: OUTPUTS.decode(output) for process, output in rows}


def known_processes(process_ids: Sequence[str]) -> Steps[set[str]]:
    """Return the ids that exist."""
    return {row[0] for row in (yield Statement(_IDS, (list(process_ids),))).rows}


def process_events(
    process_id: str, after: int = 0, limit: int = EVENTS_AT_ONCE
) -> Steps[list[ProcessEvent]]:
    """Return the log of a process after a sequence, the oldest first."""
    known = (yield Statement(WHERE, (process_id,))).rows
    if not known:
        raise ProcessUnknown(process_id)
    rows = (yield Statement(_EVENTS, (known[0][0], after, limit))).rows
    return [_event_from(row) for row in rows]


def _record_from(row: Sequence[Any]) -> ProcessRecord:
    """Return the process in a row of ``_PROCESS``."""
    body, number, run, sequence, status, output, cancel, epoch, state, reason, created, settled = (
        row
    )
    end = None if output is None else OUTPUTS.decode(output)
    return ProcessRecord(
        REGISTRATIONS.decode(body),
        number,
        run,
        ProcessState(sequence, status, end, bool(cancel), epoch),
        RunState(state),
        reason,
        created,
        settled,
        cancel == CANCEL_DELIVERED,
    )


def _event_from(row: tuple[Any, ...]) -> ProcessEvent:
    """Return the event in a row."""
    sequence, kind, payload, key, at = row
    body = None if payload is None else decode(payload)
    return ProcessEvent(sequence, kind, body, key, Instant(at))
