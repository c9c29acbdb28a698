"""Lists of runs by their displayed status.

Rule 1. The cost of a list depends on its length and on the open runs, never on the number of ended runs: completed
        runs are read backwards from the newest, and failed ones have a separate index.
Rule 2. A run whose target no live worker has is shown as blocked. That status is never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import msgspec

from pylash.durable.processes import (
    ProcessView,
    shown_label,
    shown_tags,
    shown_target,
    split_carrier,
    split_target,
)
from pylash.durable.runs import Instant, RunState, first_run_id, run_id_time
from pylash.durable.scopes import scope_from_text, session_of
from pylash.stores.operation import Statement, Steps
from pylash.stores.tables.runs import FORGOTTEN
from pylash.stores.tables.workers import known_targets

# The columns of a run r and its process p. The parameter is the list of targets that live workers know.
_COLUMNS: Final = """
       {number} as number,
       case when p.status <> 'open' then p.status
            when r.state in ('queued', 'waiting') and r.at <= {now} and r.target not in ({texts}) then 'blocked'
            else r.state end as shown,
       r.kind, r.created, r.id as run, r.scope, r.target, p.id as process, r.reason,
       coalesce(p.settled, r.settled) as settled, r.attempts, r.owner, r.lane,
       p.registration as registration,
       p.created as process_created"""

RUN_COLUMNS: Final = _COLUMNS.replace("{number}", "r.id")

PROCESS_COLUMNS: Final = _COLUMNS.replace("{number}", "p.number")
"""The same columns, for rows with the number of the process."""

# The earlier runs of a process that continued itself have another scope, and are not shown.
_VISIBLE: Final = f"substr(r.scope, length(r.scope), 1) = '}}' and not {FORGOTTEN}"

# A process has the number of its first run. A process that continued itself is found by its last run.
OF_RUN: Final = "((p.number = r.id and p.run = p.number) or (p.run = r.id and p.run <> p.number))"

ROWS: Final = f"""
select * from (select {RUN_COLUMNS}
  from pylash_runs r left join pylash_processes p on {OF_RUN} where {_VISIBLE} and {{where}}) as v"""
"""Runs by a condition, which replaces ``{where}``; ``run_from`` and ``view_from`` decode the rows."""

RUNNING: Final = "r.settled is null and r.state = 'running'"
# Only running runs have an owner, so the index has the runs of every other state in the order of their ids.
_IDLE: Final = "r.settled is null and r.state = ? and r.owner is null"
UNKNOWN: Final = """
r.id in (select q.id from pylash_runs q where q.at is not null and q.at <= {now}
         and q.state in ('queued', 'waiting') and q.target not in ({texts}))"""
_FAILED: Final = "r.state = ? and r.state in ('failed', 'cancelled', 'stopped')"

PAGE: Final = 50
"""How many rows are read at once, from the newest backwards. With more, PostgreSQL joins whole tables."""

NO_ID: Final = (1 << 63) - 1


class Lists(NamedTuple):
    """The statements of a list of runs.

    ``newest`` returns a page of rows, the greatest number first; its parameters are the known targets and a number
    that limits the page. ``of_status`` has a statement for each condition that is served by one index; its parameters
    are the known targets, those of the condition, a kind, the statuses and a limit.
    """

    newest: str
    of_status: dict[str, str]


def _lists(newest: str, columns: str, join: str) -> Lists:
    of_status = f"""
select * from (select {columns} from pylash_runs r {join} pylash_processes p on {OF_RUN}
  where {_VISIBLE} and {{where}} and r.kind = ?) as v
where shown in ({{texts}}) order by run desc limit ?"""
    conditions = (RUNNING, _IDLE, UNKNOWN, _FAILED)
    return Lists(newest, {one: of_status.replace("{where}", one) for one in conditions})


NEWEST_PROCESSES = f"""
select {PROCESS_COLUMNS}
from (select * from pylash_processes where number < ? order by number desc limit {PAGE}) as p
join pylash_runs r on r.id = p.run order by p.number desc"""

PROCESS_RUNS: Final = _lists(NEWEST_PROCESSES, RUN_COLUMNS, "left join")
"""Runs of processes, including open ones that a host's controller created under the name of a process."""

RUNS: Final = _lists(
    f"""
select {RUN_COLUMNS}
from (select * from pylash_runs r where r.id < ? and {_VISIBLE} order by r.id desc limit {PAGE}) as r
left join pylash_processes p on {OF_RUN} order by r.id desc""",
    RUN_COLUMNS,
    "left join",
)


class RunRow(msgspec.Struct, frozen=True):
    """A process, a turn, or another run in a list.

    ``id`` is the id of a process, or ``session/turn`` for a turn.
    """

    run: int
    kind: str
    id: str
    target: str
    status: RunState
    reason: str | None
    created: Instant
    settled: Instant | None
    attempts: int
    owner: str | None
    scope: str
    label: str | None = None
    version: int = 1
    tags: tuple[str, ...] = ()
    # The engine that executes it; None for a worker of the store.
    engine: str | None = None

    @property
    def session(self) -> str | None:
        """The session of a turn."""
        return session_of(scope_from_text(self.scope))


def run_from(row: tuple[Any, ...]) -> RunRow:
    """Return the run in a row."""
    _, shown, kind, created, run, scope, target, process, reason, settled, attempts, owner = row[
        :12
    ]
    parsed = scope_from_text(scope)
    session = session_of(parsed)
    name = process or (parsed.id if session is None else f"{session}/{parsed.id}")
    version, engine = split_target(target)[1], split_carrier(target)[0] or None
    target, status = shown_target(target, row[13]), RunState(shown)
    why = (reason or "unknown_target") if status is RunState.BLOCKED else None
    times = (created, settled)
    ids = (attempts, owner, scope, shown_label(row[13]))
    tags, what = shown_tags(row[13]), (run, kind, name, target, status, why)
    return RunRow(*what, *times, *ids, version, tags, engine)


def view_from(row: tuple[Any, ...]) -> ProcessView:
    """Return the process in a row."""
    run = run_from(row)
    times = (row[14], run.settled)
    what, shown = (run.id, run.target, run.status, run.reason), (run.label, run.version)
    return ProcessView(*what, *times, *shown, tags=run.tags)


def list_runs(
    lists: Lists,
    statuses: Sequence[str],
    limit: int,
    kinds: Sequence[str] = ("process",),
    most: int = NO_ID,
    since: Instant | None = None,
) -> Steps[list[tuple[Any, ...]]]:
    """Return the newest runs of some kinds and statuses, the newest first.

    Completed runs have no index: they are searched among the newest ``most`` runs. ``since`` leaves out those that were started before.
    """
    known = yield from known_targets()
    least = 0 if since is None else first_run_id(since)
    rows: list[tuple[Any, ...]] = []
    if RunState.COMPLETED in statuses:  # then most of the newest runs are listed anyway
        before, seen = NO_ID, 0
        while len(rows) < limit and seen < most:
            page = (yield Statement(lists.newest, (known, before))).rows
            rows += (row for row in page if row[1] in statuses and row[2] in kinds)
            if len(page) < PAGE or page[-1][0] < least:
                break
            before, seen = page[-1][0], seen + PAGE
        return _newest_first(rows, least)[:limit]
    for (condition, given), kind in product(_places(statuses, known), dict.fromkeys(kinds)):
        params = (known, *given, kind, list(statuses), limit)
        rows += (yield Statement(lists.of_status[condition], params)).rows
    # Once each: a run without a worker meets the condition of its state, and that of runs which are shown as blocked.
    return _newest_first(list({row[4]: row for row in rows}.values()), least)[:limit]


def _newest_first(rows: list[tuple[Any, ...]], least: int) -> list[tuple[Any, ...]]:
    """Sort rows by the milliseconds in their numbers, and rows of one millisecond by their creation times; leave out smaller numbers."""
    wanted = (row for row in rows if row[0] >= least)
    return sorted(wanted, key=lambda row: (run_id_time(row[0]), row[3], row[0]), reverse=True)


def _places(statuses: Sequence[str], known: list[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the conditions that together find every run of some statuses, with their parameters."""
    for status in dict.fromkeys(statuses):
        match status:
            case RunState.RUNNING:
                yield RUNNING, ()
            case RunState.QUEUED | RunState.WAITING:
                yield _IDLE, (status,)
            case RunState.BLOCKED:
                yield _IDLE, (status,)
                yield UNKNOWN, (known,)
            case _:
                yield _FAILED, (status,)
