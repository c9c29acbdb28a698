"""Looking at processes in SQL: nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pylash.durable import (
    OUTPUTS,
    SIGNAL,
    HandleGrant,
    Instant,
    Output,
    ProcessEvent,
    ProcessRecord,
    ProcessView,
    QueuedWake,
    Resumed,
    RunState,
    SessionRef,
    SignalWait,
    shown_target,
)
from pylash.stores.ends import WHERE
from pylash.stores.handles import (
    HOLDERS,
    grant_from,
    grants_of,
)
from pylash.stores.journal import journals_of
from pylash.stores.logs import (
    RECORD,
    event_from,
    record_from,
)
from pylash.stores.run_lists import OF_RUN, PAGE, SHOWN, Lists, for_conditions, listed
from pylash.stores.sql import (
    Port,
    Statement,
    Steps,
    operation,
)
from pylash.values import (
    ProcessUnknown,
    decode,
)

_EVENTS = """
select sequence, type, payload, key, at from pylash_process_events
where process = ? and sequence > ? order by sequence limit ?"""

_QUEUED = "select process, sequence, body, at from pylash_queue where session = ? order by at, process, sequence"

_OF_FIRST_RUNS = RECORD.replace(
    "where p.id = ?", "where p.number in ({bigints}) and p.run = p.number"
)

_OF_LATER_RUNS = RECORD.replace(
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

_TARGETS = "select targets from pylash_workers where expires > {now}"

_COLUMNS = f"""
p.number, {SHOWN} as shown, r.kind, p.created, p.id, r.target, coalesce(r.reason, 'unknown_target') as reason, p.settled,
case when r.target = 'lashlang' then p.registration end"""

_VIEW = f"""
select {_COLUMNS} from pylash_processes p join pylash_runs r on r.id = p.run where p.id = ?"""

_LISTS = Lists(
    f"""
select {_COLUMNS}
from (select * from pylash_processes where number < ? order by number desc limit {PAGE}) as p
join pylash_runs r on r.id = p.run order by p.number desc""",
    for_conditions(f"""
select * from (
  select {_COLUMNS}, r.id as run from pylash_runs r join pylash_processes p on {OF_RUN}
  where {{where}} and r.kind = ?) as v
where shown in ({{texts}}) order by run desc limit ?"""),
)

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

_NOW = "select {now}"

EVENTS_AT_ONCE: Final = 500


class SqlLookups(Port):
    """What can be seen of processes."""

    @operation(read_only=True)
    def get(self, process_id: str) -> Steps[ProcessRecord | None]:
        """Return a process."""
        rows = (yield Statement(RECORD, (process_id,))).rows
        return record_from(rows[0]) if rows else None

    @operation(read_only=True)
    def resume(self, runs: Sequence[int]) -> Steps[dict[int, Resumed]]:
        """Return what is needed to go on with runs, by run."""
        now = Instant((yield Statement(_NOW)).rows[0][0])
        journals = yield from journals_of(runs)
        resumed = {}
        for row in (yield Statement(_RECORDS, (list(runs), list(runs)))).rows:
            try:
                record = record_from(row)
            except ValueError:  # written by code we do not understand
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
        rows = (yield Statement(_VIEW, (known, process_id))).rows
        return _view(rows[0]) if rows else None

    @operation(read_only=True)
    def listed(self, status: str | None, limit: int) -> Steps[list[ProcessView]]:
        """Return processes as people see them, the newest first."""
        known = yield from known_targets()
        statuses = list(RunState) if status is None else [status]
        return [_view(row) for row in (yield from listed(_LISTS, statuses, known, limit))]

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

    @operation(read_only=True)
    def holders(self, process_id: str) -> Steps[list[HandleGrant]]:
        """Return who holds a process's handle."""
        return [grant_from(row) for row in (yield Statement(HOLDERS, (process_id,))).rows]

    @operation(read_only=True)
    def queued(self, session_id: str) -> Steps[list[QueuedWake]]:
        """Return the wakes that wait for a session, the oldest first."""
        rows = (yield Statement(_QUEUED, (session_id,))).rows
        return [
            QueuedWake(process, seq, decode(body), Instant(at)) for process, seq, body, at in rows
        ]


def known_targets() -> Steps[list[str]]:
    """Return what the workers that are alive can run."""
    rows = (yield Statement(_TARGETS)).rows
    return sorted({target for (targets,) in rows for target in decode(targets.encode())})


def _view(row: tuple[Any, ...]) -> ProcessView:
    _, shown, _, created, process, target, reason, settled, registration, *_ = row
    status = RunState(shown)
    why = reason if status is RunState.BLOCKED else None
    named = shown_target(target, registration)
    return ProcessView(process, named, status, why, created, settled)
