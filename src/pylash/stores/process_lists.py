"""Lists of processes by status, name, tag and time, in pages.

Rule 1. The order of a list depends only on what a process has from its start to its end: its number and its creation time. So a
        process that is started, continues itself or changes its status meanwhile makes no page skip or repeat another.
Rule 2. Each statement reads one index backwards, from the newest process. Everything else that is wanted is checked here: a list by
        status reads the open runs, or those that failed, and a list by name the processes of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pylash.durable.processes import (
    LASHLANG,
    ProcessFilter,
    is_named,
    shown_target,
    split_carrier,
    split_target,
)
from pylash.durable.runs import RunState, first_run_id, run_id_time
from pylash.stores.operation import Statement, Steps
from pylash.stores.run_lists import (
    NEWEST_PROCESSES,
    NO_ID,
    OF_RUN,
    PAGE,
    PROCESS_COLUMNS,
    RUN_COLUMNS,
    RUNNING,
    UNKNOWN,
)
from pylash.stores.tables.workers import known_targets
from pylash.values.process_errors import ProcessUnknown

# All statements take the known targets first and the number that limits the page last, and return a page of rows like those of
# ``run_lists``, the greatest number first. Rows of other runs have no process.

# A process has the number of its first run. The others of a target are later runs of processes.
_OF_TARGET = f"""
select {PROCESS_COLUMNS.replace("p.number", "f.id")}
from (select id from pylash_runs where kind = 'process' and target = ? and id < ? order by id desc limit {PAGE}) as f
left join pylash_processes p on p.number = f.id left join pylash_runs r on r.id = p.run order by f.id desc"""

_OF_TAG = f"""
select {PROCESS_COLUMNS.replace("p.number", "t.number")}
from (select number from pylash_process_tags where tag = ? and number < ? order by number desc limit {PAGE}) as t
left join pylash_processes p on p.number = t.number left join pylash_runs r on r.id = p.run order by t.number desc"""

_FAILED = NEWEST_PROCESSES.replace(
    "where number", "where status = ? and status in ('failed', 'cancelled') and number"
)

# Most processes have one run. Those that continued themselves are not in the order of their runs, so all that are open are sorted.
_IDLE = f"""
select {RUN_COLUMNS}
from (select * from pylash_runs where settled is null and state = ? and owner is null and id < ?
      order by id desc limit {PAGE}) as r
left join pylash_processes p on p.number = r.id and p.run = p.number order by r.id desc"""

_IDLE_CONTINUED = f"""
select {PROCESS_COLUMNS} from pylash_runs r cross join pylash_processes p
where p.run = r.id and p.run <> p.number and r.settled is null and r.state = ? and r.owner is null and p.number < ?
order by p.number desc limit {PAGE}"""

_SORTED = f"""
select {PROCESS_COLUMNS} from pylash_runs r join pylash_processes p on {OF_RUN}
where {{where}} and p.number < ? order by p.number desc limit {PAGE}"""

_RUNNING = _SORTED.replace("{where}", RUNNING)

_UNKNOWN = _SORTED.replace("{where}", UNKNOWN)

# Each target is one step through the index. There are few of them.
_TARGETS = """
with recursive t(target) as (
  select min(target) from pylash_runs where kind = 'process' and target > ''
  union all
  select (select min(r.target) from pylash_runs r where r.kind = 'process' and r.target > t.target) from t
  where t.target is not null)
select target from t where target is not null"""

_PLACE = "select number, created from pylash_processes where id = ?"

Row = tuple[Any, ...]
Source = tuple[str, tuple[Any, ...]]
"""A statement, and its parameters between the known targets and the limit of the page."""


def list_processes(wanted: ProcessFilter, limit: int) -> Steps[list[Row]]:
    """Return rows of processes, the newest first."""
    known = yield from known_targets()
    bound = NO_ID if wanted.before is None else first_run_id(wanted.before)
    last: tuple[int, int, int] | None = None
    if wanted.after is not None:
        places = (yield Statement(_PLACE, (wanted.after,))).rows
        if not places:
            raise ProcessUnknown(wanted.after)
        number, created = places[0]
        last = (run_id_time(number), created, number)
        # Its whole millisecond: processes of one are not in the order of their numbers.
        bound = min(bound, run_id_time(number) + 1 << 22)
    least = 0 if wanted.since is None else first_run_id(wanted.since)

    def is_wanted(row: Row) -> bool:
        return (
            row[7] is not None
            and row[0] >= least
            and (last is None or _place(row) < last)
            and (not wanted.statuses or row[1] in wanted.statuses)
            and (wanted.name is None or is_named(shown_target(row[6], row[13]), wanted.name))
        )

    found: dict[
        int, Row
    ] = {}  # a status has several sources, and a run may move from one to another between two reads
    for source in (yield from _sources(wanted, known)):
        rows = yield from _read(source, (known, bound, least), is_wanted, limit)
        found |= {row[0]: row for row in rows}
    return sorted(found.values(), key=_place, reverse=True)[:limit]


def _place(row: Row) -> tuple[int, int, int]:
    """Return the place of a process in all lists: the milliseconds in its number, then its creation time."""
    return run_id_time(row[0]), row[14], row[0]


def _read(
    source: Source,
    given: tuple[list[str], int, int],
    is_wanted: Callable[[Row], bool],
    limit: int,
) -> Steps[list[Row]]:
    """Return the wanted rows of a source: at least ``limit`` if there are so many, and of the last millisecond all."""
    (sql, params), (known, bound, least) = source, given
    rows: list[Row] = []
    while True:
        page = (yield Statement(sql, (known, *params, bound))).rows
        rows += filter(is_wanted, page)
        if len(page) < PAGE or page[-1][0] < least:
            return rows
        bound = page[-1][0]
        if len(rows) >= limit and run_id_time(bound) < run_id_time(rows[limit - 1][0]):
            return rows


def _sources(wanted: ProcessFilter, known: list[str]) -> Steps[list[Source]]:
    """Return the sources that together have all wanted processes, and few others."""
    if wanted.tag is not None:
        return [(_OF_TAG, (wanted.tag,))]
    if wanted.statuses and RunState.COMPLETED not in wanted.statuses:
        return [source for status in wanted.statuses for source in _of_status(status, known)]
    if wanted.name is None:
        return [(NEWEST_PROCESSES, ())]
    targets = [target for (target,) in (yield Statement(_TARGETS)).rows]
    return [
        (_OF_TARGET, (target,))
        for target in targets
        # The names of Lashlang processes are in their registrations.
        if split_carrier(target)[1] == LASHLANG
        or is_named(split_target(split_carrier(target)[1])[0], wanted.name)
    ]


def _of_status(status: str, known: list[str]) -> Iterator[Source]:
    match status:
        case RunState.RUNNING:
            yield _RUNNING, ()
        case RunState.QUEUED | RunState.WAITING | RunState.BLOCKED:
            yield _IDLE, (status,)
            yield _IDLE_CONTINUED, (status,)
            if status == RunState.BLOCKED:
                yield _UNKNOWN, (known,)
        case _:
            yield _FAILED, (status,)
