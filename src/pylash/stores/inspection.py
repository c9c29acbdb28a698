"""Reads of runs, waits and workers for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pylash.durable.keys import PATCHED, patch_of
from pylash.durable.processes import ProcessFilter, carrier_target
from pylash.durable.runs import EngineRun, Instant, RunState, WorkerId
from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_from_text, scope_text
from pylash.durable.sessions import session_lane
from pylash.stores.operation import Port, Statement, Steps, operation, store_time
from pylash.stores.ports.process_reads import OF_PROCESS
from pylash.stores.process_lists import list_processes
from pylash.stores.run_lists import (
    PROCESS_RUNS,
    ROWS,
    RUNS,
    RunRow,
    list_runs,
    run_from,
)
from pylash.stores.tables.packed_effects import NODE_BITS
from pylash.stores.tables.workers import known_targets
from pylash.values.canonical import decode, encode

MATCHES: Final = 10
"""The most runs that a search by prefix returns."""

RECENT: Final = 10_000
"""How many of the newest runs are scanned if no index serves a search."""

_ALL: Final = 1 << 63

_OF_SCOPES = ROWS.replace("{where}", "r.scope in ({texts})")

_OF_RUNS = ROWS.replace("{where}", "r.id in ({bigints})") + " order by number desc limit ?"

_RECENT = ROWS.replace("{where}", "true").replace(
    "from pylash_runs r", f"from (select * from pylash_runs order by id desc limit {RECENT}) as r"
)

_PROCESSES_LIKE = f"{_RECENT} where substr(process, 1, ?) = ? order by number desc limit {MATCHES}"

# replace() changes a text that contains the other. LIKE would ignore case in one database, not in the other.
_TURNS_LIKE = f"""{_RECENT}
where kind in ('turn', 'queue_drain') and (replace(scope, ?, '') <> scope or replace(scope, ?, '') <> scope)
order by number desc limit {MATCHES}"""

_TURNS_OF_LANE_LIKE = _TURNS_LIKE.replace("where kind", "where lane = ? and kind")

_SESSIONS_LIKE = f"""
select substr(lane, 9) from pylash_lanes where number is not null and lane {{from}} ? and lane {{below}} ?
order by lane {{by_bytes}} limit {MATCHES}"""

_LAST: Final = "\U0010ffff"
"""The greatest character: it ends the range of texts with a prefix."""

_LANE = "select number, holder from pylash_lanes where lane = ?"

_QUEUED = "select id from pylash_runs where lane = ? and state = 'queued' and at is null"

NODES_AT_ONCE: Final = 500

_RUNS_OF_NODES = f"""
select id, run from pylash_nodes where id > ? and id <= ? order by id desc limit {NODES_AT_ONCE}"""

# The end of a sleep is not written, and the end of a wait only in the row of the wait.
_OPEN = """
select e.run, e.kind, coalesce(e.label, e.key), e.wait, e.due
from pylash_effects e left join pylash_waits w on w.id = e.wait
where e.run in ({bigints}) and e.outcome is null and e.attachment is null and w.terminal is null
  and (e.kind <> 'sleep' or e.due > {now}) order by e.started, e.key"""

_ANSWERED = """
select w.kind, w.title, w.tool, w.arguments, w.terminal, w.answered_by
from pylash_effects e join pylash_waits w on w.id = e.wait
where e.run = ? and e.outcome is null and w.terminal is not null order by e.started, e.key"""

_WORKERS = """
select w.id, w.joined, w.expires, w.expires <= {now}, w.targets,
       (select count(*) from pylash_runs r
        where r.owner = w.id and r.state = 'running' and r.settled is null)
from pylash_workers w order by w.joined, w.id"""

# A target is empty if a host's controller created the run under the name of a process. The states let SQLite use the index over
# open runs, and not the one over the targets of all processes.
_LIVE_PROCESSES = """
select r.id, r.scope, r.target, r.created from pylash_runs r
where r.settled is null and r.state in ('queued', 'running', 'waiting', 'blocked')
  and r.kind = 'process' and r.target <> '' order by r.created, r.id"""

# replace() changes a key that contains the other text; the rest of the key is decoded by ``patch_of``.
# Batches of runs instead of a join, for which SQLite scans all effects.
_PATCHES = """
select run, key from pylash_effects
where run in ({bigints}) and kind = 'now' and replace(key, ?, '') <> key"""

RUNS_AT_ONCE: Final = 1_000
"""How many runs have their patches read by one statement."""

# A turn gets its target when it is sent.
_OF_ENGINE = """
select r.scope, r.state from pylash_runs r
where r.settled is null and r.state in ('queued', 'running', 'waiting', 'blocked')
  and substr(r.target, 1, ?) = ? order by r.id limit ?"""

_OVERDUE = "select count(*) from pylash_runs where at is not null and at <= {now} - ?"

# Ids grow with time.
_NEWEST = "select created from pylash_runs order by id desc limit 1"

_ENDED_WAIT = """
select 1 from pylash_waits
where id >= ? and id < ? and substr(id, 1, ?) = ? and terminal is not null limit 1"""


class OpenEffect(msgspec.Struct, frozen=True):
    """An effect that has not ended; ``wait`` is the id of its wait, ``due`` the time at which it ends by itself."""

    run: int
    kind: str
    name: str
    wait: str | None
    due: Instant | None


class Answered(msgspec.Struct, frozen=True):
    """A wait that has ended: the question, such as the proposed tool call, and the answer."""

    kind: str
    title: str
    tool: str | None
    arguments: Any
    answer: Any
    by: str | None


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker: its lease, its targets, and how many runs it owns."""

    id: WorkerId
    joined: Instant
    expires: Instant
    expired: bool
    targets: tuple[str, ...]
    runs: int


class LiveProcess(msgspec.Struct, frozen=True):
    """A process that has not ended: the target and start of its current run, and the patches that it recorded."""

    id: str
    target: str
    created: Instant
    patches: frozenset[str]


class SqlInspection(Port):
    """Reads for the command line."""

    @operation(read_only=True)
    def runs(
        self,
        statuses: Sequence[str],
        kinds: Sequence[str],
        limit: int,
        since: Instant | None = None,
    ) -> Steps[list[RunRow]]:
        """Return runs, the newest first.

        Completed turns are searched among the newest runs only, unless processes are requested too.
        """
        lists = PROCESS_RUNS if set(kinds) == {"process"} else RUNS
        most = _ALL if "process" in kinds else RECENT
        return [
            run_from(row)
            for row in (yield from list_runs(lists, statuses, limit, kinds, most, since))
        ]

    @operation(read_only=True)
    def processes(self, wanted: ProcessFilter, limit: int) -> Steps[list[RunRow]]:
        """Return processes, the newest first."""
        return [run_from(row) for row in (yield from list_processes(wanted, limit))]

    @operation(read_only=True)
    def named(self, text: str) -> Steps[list[RunRow]]:
        """Return the process with this id, and the turns that ``session/turn`` can mean."""
        known = yield from known_targets()
        rows = (yield Statement(OF_PROCESS, (known, text))).rows
        if scopes := _scopes(text):
            rows = rows + (yield Statement(_OF_SCOPES, (known, scopes))).rows
        return [run_from(row) for row in rows]

    @operation(read_only=True)
    def turns(self, session_id: str, limit: int) -> Steps[list[RunRow]]:
        """Return the turns of a session that have written messages, run or are queued, the newest first."""
        lane = session_lane(session_id)
        rows = (yield Statement(_LANE, (lane,))).rows
        if not rows:
            return []
        number, holder = rows[0]
        runs = {run for (run,) in (yield Statement(_QUEUED, (lane,))).rows} | {holder}
        runs |= yield from _runs_of_line(number, limit)
        known = yield from known_targets()
        given = (known, [run for run in runs if run is not None], limit)
        return [run_from(row) for row in (yield Statement(_OF_RUNS, given)).rows]

    @operation(read_only=True)
    def beginning(self, text: str) -> Steps[list[RunRow]]:
        """Return processes and turns whose ids begin with a text, from the newest runs, the newest first.

        The text for a turn is its own id, or the session's id and a slash before it.
        """
        known = yield from known_targets()
        rows = (yield Statement(_PROCESSES_LIKE, (known, len(text), text))).rows
        rows = rows + (yield Statement(_TURNS_LIKE, (known, *_beginnings(text)))).rows
        for session, turn in _halves(text):
            given = (known, session_lane(session), *_beginnings(turn))
            rows = rows + (yield Statement(_TURNS_OF_LANE_LIKE, given)).rows
        return [run_from(row) for row in rows]

    @operation(read_only=True)
    def sessions_beginning(self, text: str) -> Steps[list[str]]:
        """Return sessions whose ids begin with a text, at most ``MATCHES``."""
        begins = session_lane(text)
        rows = (yield Statement(_SESSIONS_LIKE, (begins, begins + _LAST))).rows
        return [row[0] for row in rows]

    @operation(read_only=True)
    def open_effects(self, runs: Sequence[int]) -> Steps[list[OpenEffect]]:
        """Return the open effects of runs."""
        return [OpenEffect(*row) for row in (yield Statement(_OPEN, (list(runs),))).rows]

    @operation(read_only=True)
    def answered(self, run: int) -> Steps[list[Answered]]:
        """Return the waits of a run that have ended, in the order in which they began."""
        return [
            Answered(kind, title, tool, arguments and decode(arguments), decode(terminal), by)
            for kind, title, tool, arguments, terminal, by in (
                yield Statement(_ANSWERED, (run,))
            ).rows
        ]

    @operation(read_only=True)
    def workers(self) -> Steps[list[WorkerRow]]:
        """Return all workers, including those whose lease has expired."""
        return [
            WorkerRow(
                WorkerId(worker), joined, expires, bool(over), tuple(decode(can.encode())), runs
            )
            for worker, joined, expires, over, can, runs in (yield Statement(_WORKERS)).rows
        ]

    @operation(read_only=True)
    def live_processes(self) -> Steps[list[LiveProcess]]:
        """Return the processes that have not ended, those whose runs are the oldest first."""
        rows = (yield Statement(_LIVE_PROCESSES)).rows
        recorded: dict[int, set[str]] = {run: set() for run, *_ in rows}
        for start in range(0, len(rows), RUNS_AT_ONCE):
            runs = [run for run, *_ in rows[start : start + RUNS_AT_ONCE]]
            for run, key in (yield Statement(_PATCHES, (runs, PATCHED))).rows:
                if (patch := patch_of(key)) is not None:
                    recorded[run].add(patch)
        return [
            LiveProcess(scope_from_text(scope).id, target, created, frozenset(recorded[run]))
            for run, scope, target, created in rows
        ]

    @operation(read_only=True)
    def of_engine(self, carrier: str, limit: int) -> Steps[list[EngineRun]]:
        """Return the runs of another engine that have not ended, the oldest first."""
        prefix = carrier_target(carrier, "")
        rows = (yield Statement(_OF_ENGINE, (len(prefix), prefix, limit))).rows
        return [EngineRun(scope_from_text(scope), RunState(state)) for scope, state in rows]

    @operation(read_only=True)
    def overdue(self, age: int) -> Steps[int]:
        """Return how many runs have been ready for longer than age."""
        return int((yield Statement(_OVERDUE, (age,))).rows[0][0])

    @operation(read_only=True)
    def newest(self) -> Steps[Instant]:
        """Return when the newest run was started; 0 if there is none."""
        rows = (yield Statement(_NEWEST)).rows
        return Instant(rows[0][0] if rows else 0)

    @operation(read_only=True)
    def has_ended(self, wait: str) -> Steps[bool]:
        """Return whether a wait whose id begins with a text has ended."""
        given = (wait, f"{wait}g", len(wait), wait)  # ids are hexadecimal
        return bool((yield Statement(_ENDED_WAIT, given)).rows)

    @operation(read_only=True)
    def now(self) -> Steps[Instant]:
        """Return the time of the store."""
        return (yield from store_time())


def _runs_of_line(number: int | None, limit: int) -> Steps[set[int]]:
    """Return the last runs that wrote nodes of a session's line, at least ``limit`` if there are so many."""
    runs: set[int] = set()
    if number is None:
        return runs
    base = number << NODE_BITS
    last = base + (1 << NODE_BITS) - 1
    while len(runs) < limit:
        rows = (yield Statement(_RUNS_OF_NODES, (base, last))).rows
        runs.update(run for _, run in rows)
        if len(rows) < NODES_AT_ONCE:
            break
        last = rows[-1][0] - 1
    return runs


def _beginnings(text: str) -> tuple[str, str]:
    """Return the parts of a scope's text that a turn has whose id begins with a text."""
    begins = encode(text).decode()[:-1]
    return f'"turn_id":{begins}', f'"drain_id":{begins}'


def _halves(text: str) -> list[tuple[str, str]]:
    """Return the pairs of session and turn that ``session/turn`` can mean: both ids may contain slashes."""
    places = [place for place, character in enumerate(text) if character == "/"]
    return [(text[:place], text[place + 1 :]) for place in places]


def _scopes(text: str) -> list[str]:
    """Return the scopes of the turns that ``session/turn`` can mean."""
    return [
        scope_text(scope)
        for session, turn in _halves(text)
        for scope in (TurnScope(session, turn), QueueDrainScope(session, turn))
    ]
