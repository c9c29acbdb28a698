"""Deletions of sessions in SQL.

Rule 1. The first transaction fences the session off: it revokes waits, ends turns, wakes waiting runs and cancels
        subagents. Then rows are deleted in small batches. The first transaction stores what is left to do, so that
        another deletion can complete an interrupted one.
Rule 2. Nodes that a fork begins with are kept until the fork is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from pylash.durable.commands import CancelProcess
from pylash.durable.processes import REGISTRATIONS, SessionTurnInput
from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_from_text, scope_text
from pylash.durable.sessions import DeleteReport, Segment, session_lane
from pylash.stores.operation import Again, Notify, Port, Statement, Steps, operation
from pylash.stores.ports import process_log as log
from pylash.stores.ports.process_handles import forget_handles
from pylash.stores.tables import queue, runs
from pylash.stores.tables import sessions as table
from pylash.stores.tables.effects import FORGET_EFFECTS_OF_TURNS, waiting_runs
from pylash.stores.tables.lanes import clear_lane
from pylash.stores.tables.packed_effects import NODE_BITS
from pylash.stores.tables.sessions import SESSION, session_from
from pylash.stores.tables.turn_events import FORGET_EVENTS
from pylash.values.canonical import write

ROWS_AT_ONCE: Final = 500

# The turn that holds the lane, and those that wait for it. A process that holds it is the player of ``_Dependents``.
_RUNS_OF = """
select r.id from pylash_lanes l join pylash_runs r on r.id = l.holder where l.lane = ? and r.kind <> 'process'
union all select id from pylash_runs where lane = ? and state = 'queued' and at is null
order by id"""

_SCOPES_OF = "select scope from pylash_runs where id in ({bigints}) order by id"

_OPEN_PROCESS = "select registration from pylash_processes where id = ? and status = 'open'"

_DELETED_REASON: Final = "its session was deleted"

_GENERATION = "select generation from pylash_sessions where id = ?"

_FORKS_OF = """
select s.origin from pylash_forks f join pylash_sessions s on s.id = f.session
where f.number = ? and s.origin is not null"""

_DEAD_OF = "select body from pylash_dead_lines where session = ? order by number desc"

_DEAD = "select number, session from pylash_dead_lines where number in ({bigints}) order by number"

_SCOPES = "select id, scope from pylash_runs where kind <> 'process' and id in ({bigints})"

_SOME_NODES = "select id, run from pylash_nodes where id > ? and id <= ? order by id limit ?"


class FencedOff(msgspec.Struct, frozen=True):
    """The rest of a deletion: the lines of the session, the lines that it shared as a fork, and its last turns.

    It is stored with the dead line of the session.
    """

    report: DeleteReport = DeleteReport()
    lines: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()


class SessionDeletion(Port):
    """The deletion of sessions, in several transactions."""

    async def delete(self, session_id: str) -> DeleteReport:
        """Delete a session."""
        fenced = await self._fence_off(session_id, await self._generation(session_id))
        for line in fenced.shared:
            await self._reclaim(line)
        if fenced.runs:
            await self._forget_runs(fenced.runs)
        turns, messages, kept = set(fenced.runs), 0, 0
        for line in fenced.lines:
            left, removed = await self._reclaim(line)
            turns, messages, kept = turns | set(removed), messages + len(removed), kept + left
        return replace(fenced.report, turns=len(turns), messages=messages, kept=kept)

    @operation(read_only=True)
    def _generation(self, session_id: str) -> Steps[int]:
        rows = (yield Statement(_GENERATION, (session_id,))).rows
        return int(rows[0][0]) if rows else 0

    @operation()
    def _fence_off(self, session_id: str, generation: int) -> Steps[FencedOff]:
        """Revoke the waits of a session up to a generation, end its turns, and free its id."""
        lane = session_lane(session_id)
        turns = [run for (run,) in (yield Statement(_RUNS_OF, (lane, lane))).rows]
        waiting = yield from queue.waiters_of(session_id)
        dependents = yield from _dependents(session_id, turns)
        yield from runs.lock_runs([*turns, *waiting, *dependents.runs])
        yield from queue.lock_lane(session_id)
        if [run for (run,) in (yield Statement(_RUNS_OF, (lane, lane))).rows] != turns:
            raise Again
        if (yield from _dependents(session_id, turns)) != dependents:
            raise Again
        rows = (yield Statement(SESSION, (session_id,))).rows
        if rows[0][5] > generation:  # an earlier attempt was committed, and its answer lost
            return (yield from _fenced_before(session_id, last=True))
        session = session_from(rows[0]) if rows[0][1] is not None else None
        result = write({"status": "cancelled", "error": _DELETED_REASON, "code": "turn_cancelled"})
        for run in turns:
            yield from runs.settle_deleted(run, result)
            yield Statement(FORGET_EVENTS, (run,))
        for run in dependents.waiting:
            yield from runs.wake(run)
        yield from clear_lane(lane)
        waits = yield from queue.supersede_waits(session_id, waiting)
        for process, _ in dependents.subagents:
            yield from log.request_cancel(process, _DELETED_REASON)
        if dependents.player is not None:  # it cannot continue without its messages
            end = CancelProcess(dependents.player, _DELETED_REASON, force=True)
            yield from log.force_end(end, _no_run)
        queued = (yield Statement(queue.FORGET_MESSAGES, (session_id,))).changed
        yield Statement(table.FORGET_KEYS, (session_id,))
        removed = yield from forget_handles(session_id)
        report = DeleteReport(
            waits=waits,
            queued=queued,
            handles=removed["handles"],
            subscriptions=removed["subscriptions"],
        )
        if session is not None:
            yield from table.change_tags(session.number, session.options, None)
        yield Statement(table.CLEAR_SESSION, (session_id,))
        yield Notify("")
        if session is None:  # an earlier deletion may be incomplete
            before = yield from _fenced_before(session_id)
            return replace(before, report=report, runs=(*before.runs, *turns))
        shared = tuple(segment.number for segment in session.origin)
        yield Statement(table.FORGET_FORKS, (list(shared), session_id))
        fenced = FencedOff(report, (session.number,), shared, tuple(turns))
        line = (session.number, session_id, msgspec.json.encode(fenced))
        yield Statement(table.ADD_DEAD_LINE, line)
        return fenced

    async def _reclaim(self, line: int) -> tuple[int, list[int]]:
        """Delete the nodes of a dead line, except those that a fork begins with.

        Returns how many are kept, and the turns of the deleted nodes, one for each node.
        """
        kept = await self._kept(line)
        if kept is None:
            return 0, []
        turns: list[int] = []
        while removed := await self._delete_nodes(line, kept):
            turns += removed
        if not kept:
            await self._forget_line(line)
        return kept, turns

    @operation()
    def _kept(self, line: int) -> Steps[int | None]:
        """Return how many nodes of a dead line its forks keep; None if it is not a dead line.

        The turns that are kept are renamed, so that a new session of the same id can use their names.
        """
        dead = (yield Statement(_DEAD, ([line],))).rows
        if not dead:
            return None
        forks = (yield Statement(_FORKS_OF, (line,))).rows
        origins = (msgspec.json.decode(origin, type=tuple[Segment, ...]) for (origin,) in forks)
        kept = max((one.upto for path in origins for one in path if one.number == line), default=0)
        turns = yield from table.runs_of_nodes(Segment(line, kept))
        for run, text in (yield Statement(_SCOPES, (turns,))).rows:
            scope = scope_from_text(text)
            assert isinstance(scope, TurnScope | QueueDrainScope)
            if scope.session_id == dead[0][1]:
                renamed = replace(scope, session_id=f"{scope.session_id}#{line}")
                yield from runs.rename(run, scope_text(renamed))
        return kept

    @operation()
    def _forget_runs(self, turns: Sequence[int]) -> Steps[None]:
        yield Statement(FORGET_EFFECTS_OF_TURNS, (list(turns), list(turns)))

    @operation()
    def _delete_nodes(self, number: int, after: int) -> Steps[list[int]]:
        """Delete a batch of nodes with their turns and effects; return the turns, one for each node."""
        base = number << NODE_BITS
        last = base + (1 << NODE_BITS) - 1
        rows = (yield Statement(_SOME_NODES, (base + after, last, ROWS_AT_ONCE))).rows
        if rows:
            turns = sorted({run for _, run in rows})
            yield Statement(table.DELETE_NODES, ([node for node, _ in rows],))
            yield Statement(FORGET_EFFECTS_OF_TURNS, (turns, turns))
            yield from runs.forget(turns)
        return [run for _, run in rows]

    @operation()
    def _forget_line(self, number: int) -> Steps[None]:
        yield Statement(table.FORGET_DEAD_LINE, (number,))


class _Dependents(msgspec.Struct, frozen=True):
    """The runs and processes that depend on a session that is being deleted.

    ``waiting`` are the runs that wait for its turns. ``subagents`` are the open processes that are attached to them,
    with their runs. ``player`` is the process that executes a turn of the session, if it is that of a subagent, and
    ``touched`` are the runs that the end of that process touches.
    """

    waiting: list[int]
    subagents: list[tuple[str, int]]
    player: str | None
    touched: list[int]

    @property
    def runs(self) -> list[int]:
        """The runs to lock."""
        return [*self.waiting, *(run for _, run in self.subagents), *self.touched]


def _dependents(session_id: str, turns: Sequence[int]) -> Steps[_Dependents]:
    """Return the dependents of the turns of a session, without locks.

    Other processes that were started for the session continue without it.
    """
    waiting: list[int] = []
    subagents: list[tuple[str, int]] = []
    for (scope,) in (yield Statement(_SCOPES_OF, (list(turns),))).rows:
        waiting += yield from waiting_runs(f"turn:{scope}")
        subagents += (yield Statement(log.ATTACHED, (scope,))).rows
    player, touched = None, list[int]()
    for (body,) in (yield Statement(_OPEN_PROCESS, (session_id,))).rows:
        given = REGISTRATIONS.decode(body).input
        if isinstance(given, SessionTurnInput) and given.session_id == session_id:
            player, touched = session_id, (yield from log.runs_of_end(session_id))
    return _Dependents(sorted(set(waiting)), subagents, player, sorted(set(touched)))


def _no_run() -> int:
    """Fail: the lane is cleared before the player ends, so that no turn follows."""
    raise AssertionError("a deleted session has no next turn")


def _fenced_before(session_id: str, *, last: bool = False) -> Steps[FencedOff]:
    """Return the rest of the earlier deletions of a session, or of the ``last`` one only."""
    rows = (yield Statement(_DEAD_OF, (session_id,))).rows
    lives = [msgspec.json.decode(body, type=FencedOff) for (body,) in rows[: 1 if last else None]]
    return FencedOff(
        lives[0].report if lives else DeleteReport(),
        tuple(line for life in lives for line in life.lines),
        tuple(line for life in lives for line in life.shared),
        tuple(run for life in lives for run in life.runs),
    )
