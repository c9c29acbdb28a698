"""Lists of runs by the status that people see, each from an index that holds no more than it must.

Rule 1. A list costs what it shows and what is open, never what has ended: ended runs are found from the newest
        backwards, and those that ended badly in an index of their own.
Rule 2. A run that no live worker knows is shown as blocked. Nobody writes that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from pylash.durable import RunState, run_id_time
from pylash.stores.sql import Statement, Steps

SHOWN: Final = """
case when p.status <> 'open' then p.status
     when r.state in ('queued', 'waiting') and r.at <= {now} and r.target not in ({texts}) then 'blocked'
     else r.state end"""
"""The status of a run ``r`` and its process ``p``; takes the targets that live workers know."""

OF_RUN: Final = """
((p.number = r.id and p.run = p.number) or (p.run = r.id and p.run <> p.number))"""
"""How a process ``p`` is found by its run ``r``."""

_RUNNING: Final = "r.settled is null and r.state = 'running'"
# A run that does not execute has no owner: the index then has the runs of a state in the order of their ids.
_IDLE: Final = "r.settled is null and r.state = ? and r.owner is null"
_UNKNOWN: Final = """
r.id in (select q.id from pylash_runs q where q.at is not null and q.at <= {now}
         and q.state in ('queued', 'waiting') and q.target not in ({texts}))"""
_FAILED: Final = "r.state = ? and r.state in ('failed', 'cancelled', 'stopped')"

CONDITIONS: Final = (_RUNNING, _IDLE, _UNKNOWN, _FAILED)
"""Where runs of some statuses are found. Each is answered by one index."""

PAGE: Final = 50
"""How many rows are read at once on the way back from the newest. With more, PostgreSQL joins whole tables."""

_NO_ID: Final = (1 << 63) - 1


class Lists(NamedTuple):
    """The statements of a list of runs. A row begins with its number, status, kind and time of creation.

    ``newest`` takes the known targets and a number, and returns a page of rows with smaller numbers, the
    greatest first. ``of_status`` has a statement for each condition, which takes the known targets, what the
    condition takes, a kind, the statuses and a limit.
    """

    newest: str
    of_status: dict[str, str]


def for_conditions(sql: str) -> dict[str, str]:
    """Return a statement for each condition, which takes the place of ``{where}``."""
    return {condition: sql.replace("{where}", condition) for condition in CONDITIONS}


def listed(
    lists: Lists,
    statuses: Sequence[str],
    known: list[str],
    limit: int,
    kinds: Sequence[str] = ("process",),
    most: int = _NO_ID,
) -> Steps[list[tuple[Any, ...]]]:
    """Return the newest runs of some kinds and statuses, the newest first.

    Runs that ended well have no index of their own: they are looked for among the newest ``most``.
    """
    rows: list[tuple[Any, ...]] = []
    if RunState.COMPLETED in statuses:  # then most of the newest are wanted, whatever their status
        before, seen = _NO_ID, 0
        while len(rows) < limit and seen < most:
            page = (yield Statement(lists.newest, (known, before))).rows
            rows += (row for row in page if row[1] in statuses and row[2] in kinds)
            if len(page) < PAGE:
                break
            before, seen = page[-1][0], seen + PAGE
        return _newest_first(rows)[:limit]
    for (condition, given), kind in product(_places(statuses, known), dict.fromkeys(kinds)):
        params = (known, *given, kind, list(statuses), limit)
        rows += (yield Statement(lists.of_status[condition], params)).rows
    return _newest_first(rows)[:limit]


def _newest_first(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sort rows by their numbers, and those of one millisecond, whose numbers are in no order, by their times."""
    return sorted(rows, key=lambda row: (run_id_time(row[0]), row[3], row[0]), reverse=True)


def _places(statuses: Sequence[str], known: list[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Return the conditions that together find every run of some statuses, with their parameters."""
    for status in dict.fromkeys(statuses):
        match status:
            case RunState.RUNNING:
                yield _RUNNING, ()
            case RunState.QUEUED | RunState.WAITING:
                yield _IDLE, (status,)
            case RunState.BLOCKED:
                yield _IDLE, (status,)
                yield _UNKNOWN, (known,)
            case _:
                yield _FAILED, (status,)
