"""Reads of processes in SQL. Nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pylash.durable.processes import (
    OUTPUTS,
    SIGNAL,
    HandleGrant,
    Output,
    ProcessEvent,
    ProcessRecord,
    ProcessView,
    Resumed,
    SessionRef,
    SignalWait,
)
from pylash.durable.runs import RunState
from pylash.stores.operation import Port, Statement, Steps, operation
from pylash.stores.ports.journal import journals_of
from pylash.stores.ports.process_handles import grants_of
from pylash.stores.ports.process_log import RECORD, WHERE, event_from, record_from
from pylash.stores.run_lists import PROCESSES, ROWS, list_runs, view_from
from pylash.stores.tables.workers import known_targets
from pylash.values.canonical import decode
from pylash.values.process_errors import ProcessUnknown

_EVENTS = """
select sequence, type, payload, key, at from pylash_process_events
where process = ? and sequence > ? order by sequence limit ?"""

_RECORD = RECORD.replace("select ", "select {now}, ")

_OF_FIRST_RUNS = _RECORD.replace(
    "where p.id = ?", "where p.number in ({bigints}) and p.run = p.number"
)

_OF_LATER_RUNS = _RECORD.replace(
    "where p.id = ?", "where p.run in ({bigints}) and p.run <> p.number"
)

# Apart, because most processes are found by one index and those that continued themselves by another.
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


class SqlLookups(Port):
    """Reads of processes."""

    @operation(read_only=True)
    def get(self, process_id: str) -> Steps[ProcessRecord | None]:
        """Return a process."""
        rows = (yield Statement(RECORD, (process_id,))).rows
        return record_from(rows[0]) if rows else None

    @operation(read_only=True)
    def resume(self, runs: Sequence[int]) -> Steps[dict[int, Resumed]]:
        """Return what is needed to go on with runs, by run."""
        journals = yield from journals_of(runs)
        resumed = {}
        for now, *row in (yield Statement(_RECORDS, (list(runs), list(runs)))).rows:
            try:
                record = record_from(row)
            except ValueError:  # written by newer code
                continue
            resumed[record.run] = Resumed(record, journals[record.run], now)
        return resumed

    @operation(read_only=True)
    def look(self, process_id: str) -> Steps[tuple[bool, set[str]]]:
        """Return whether the process was asked to end, and the names of signals that wait for it."""
        rows = (yield Statement(_ATTENTION, (process_id,))).rows
        names = {row[1].removeprefix(SIGNAL) for row in rows if row[1] is not None}
        return bool(rows) and bool(rows[0][0]), names

    @operation(read_only=True)
    def cancel_reason(self, process_id: str) -> Steps[str | None]:
        """Return why a process was asked to end."""
        rows = (yield Statement(_CANCEL_REASON, (f"process:{process_id}:cancel", process_id))).rows
        return decode(rows[0][0])["reason"] if rows else None

    @operation(read_only=True)
    def view(self, process_id: str) -> Steps[ProcessView | None]:
        """Return a process as people see it."""
        known = yield from known_targets()
        rows = (yield Statement(OF_PROCESS, (known, process_id))).rows
        return view_from(rows[0]) if rows else None

    @operation(read_only=True)
    def listed(self, status: str | None, limit: int) -> Steps[list[ProcessView]]:
        """Return processes as people see them, the newest first."""
        statuses = list(RunState) if status is None else [status]
        return [view_from(row) for row in (yield from list_runs(PROCESSES, statuses, limit))]

    @operation(read_only=True)
    def signal_waits(self, process_id: str | None = None) -> Steps[list[SignalWait]]:
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

    @operation(read_only=True)
    def outputs(self, process_ids: Sequence[str]) -> Steps[dict[str, Output]]:
        """Return how those processes ended that have."""
        rows = (yield Statement(_OUTPUTS, (list(process_ids),))).rows
        return {process: OUTPUTS.decode(output) for process, output in rows}

    @operation(read_only=True)
    def known(self, process_ids: Sequence[str]) -> Steps[set[str]]:
        """Return those of the ids that are processes."""
        return {row[0] for row in (yield Statement(_IDS, (list(process_ids),))).rows}

    @operation(read_only=True)
    def events(
        self, process_id: str, after: int = 0, limit: int = EVENTS_AT_ONCE
    ) -> Steps[list[ProcessEvent]]:
        """Return the log of a process after a sequence, the oldest first."""
        known = (yield Statement(WHERE, (process_id,))).rows
        if not known:
            raise ProcessUnknown(process_id)
        rows = (yield Statement(_EVENTS, (known[0][0], after, limit))).rows
        return [event_from(row) for row in rows]

    @operation(read_only=True)
    def grants(self, holder: SessionRef) -> Steps[list[HandleGrant]]:
        """Return the handles that a session holds."""
        return (yield from grants_of(holder))
