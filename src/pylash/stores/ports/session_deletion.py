"""Forks and deletions of sessions in SQL.

Rule 1. A fork copies no node: it begins with those of another line, which are kept while a session begins with them.
Rule 2. A deletion fences the session off first (waits revoked, turns ended, waiting runs woken, subagents asked to
        end), in one transaction; then rows are deleted in small pieces. What is left to do is stored with the first
        transaction, so that a deletion that was interrupted can be completed by another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from pylash.durable.commands import CancelProcess
from pylash.durable.processes import REGISTRATIONS, SessionTurnInput
from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_from_text, scope_text
from pylash.durable.sessions import (
    SAID,
    DeleteReport,
    Segment,
    SessionRecord,
    TurnRecord,
    session_lane,
)
from pylash.stores.operation import Again, Notify, Port, Statement, Steps, operation
from pylash.stores.ports import process_log as log
from pylash.stores.ports.process_handles import forget_handles
from pylash.stores.tables import queue, runs
from pylash.stores.tables import sessions as table
from pylash.stores.tables.effects import FORGET_EFFECTS_OF_TURNS
from pylash.stores.tables.lanes import clear_lane, lane_holder
from pylash.stores.tables.packed_effects import NODE_BITS
from pylash.stores.tables.sessions import SESSION, TURN, session_from, turn_from
from pylash.stores.tables.turn_events import FORGET_EVENTS
from pylash.values.canonical import write
from pylash.values.turn_errors import SessionExists, SessionUnknown

ROWS_AT_ONCE: Final = 500

# In two statements: PostgreSQL would read all runs rather than guess how few a range of nodes has.
_RUNS_OF_NODES = "select distinct run from pylash_nodes where id > ? and id <= ? order by run"

_TURNS_OF = TURN.replace("scope = ?", "id in ({bigints}) and kind <> 'process' order by id")

# The run that holds the lane, and those that wait for it.
_RUNS_OF = """
select holder as id from pylash_lanes where lane = ? and holder is not null
union all select id from pylash_runs where lane = ? and state = 'queued' and at is null
order by id"""

_SCOPES_OF = "select scope from pylash_runs where id in ({bigints}) order by id"

_OPEN_PROCESS = "select registration from pylash_processes where id = ? and status = 'open'"

_DELETED_REASON: Final = "its session was deleted"

_GENERATION = "select generation from pylash_sessions where id = ?"

_FORKS_OF = """
select s.origin from pylash_forks f join pylash_sessions s on s.id = f.session
where f.number = ? and s.origin is not null"""

_SHARE_SOURCE = "select head from pylash_lanes where lane = ? and number = ? {share}"

_DEAD_OF = "select body from pylash_dead_lines where session = ? order by number desc"

_DEAD = "select number, session from pylash_dead_lines where number in ({bigints}) order by number"

_SCOPES = "select id, scope from pylash_runs where kind <> 'process' and id in ({bigints})"

_SOME_NODES = "select id, run from pylash_nodes where id > ? and id <= ? order by id limit ?"


class FencedOff(msgspec.Struct, frozen=True):
    """What is left to do for a session that was fenced off: its lines, those it shared, its last turns.

    It is stored with a dead line.
    """

    report: DeleteReport = DeleteReport()
    lines: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()


class SqlSessionEnds(Port):
    """Forks and deletions."""

    def fork(
        self, source: SessionRecord, new_id: str, head: int, counts: tuple[int, int]
    ) -> Awaitable[None]:
        """Make a session that begins with another one's nodes, up to a place.

        ``counts`` are the turns and the model calls up to there.
        """
        return self._fork(source, new_id, head, counts, [])

    @operation()
    def _fork(
        self,
        source: SessionRecord,
        new_id: str,
        head: int,
        counts: tuple[int, int],
        tried: list[bool],
    ) -> Steps[None]:
        rows = (yield Statement(SESSION, (new_id,))).rows
        origin = (*source.origin, Segment(source.number, head))
        if rows and rows[0][1] is not None:
            known = session_from(rows[0])
            if known.origin == origin and (tried or known.head == 0):
                return  # an earlier attempt was committed and its answer lost
            raise SessionExists(new_id)
        line = (session_lane(source.id), source.number)
        known_head = (yield Statement(_SHARE_SOURCE, line)).rows
        if not known_head or known_head[0][0] < head:
            raise SessionUnknown(source.id)  # deleted meanwhile, and its nodes are being deleted
        tried.append(True)
        yield from table.add_session(new_id, counts)
        yield Statement(table.ADD_ORIGIN, (new_id, msgspec.json.encode(origin)))
        if source.options:
            yield from table.set_options(new_id, source.options)
        for number in sorted({segment.number for segment in origin}):
            yield Statement(table.ADD_FORK, (number, new_id))

    def take_back(self, session_id: str, keys: Sequence[str]) -> Awaitable[list[str]]:
        """Delete a person's words that no turn has taken yet; return their keys."""
        return self._take_back(session_id, [f"{SAID}{key}" for key in keys], {})

    @operation()
    def _take_back(
        self, session_id: str, sources: Sequence[str], tried: dict[str, None]
    ) -> Steps[list[str]]:
        """Take words back. ``tried`` has those that earlier attempts found."""
        tried.update(dict.fromkeys((yield from queue.take_words_back(session_id, sources))))
        return [source.removeprefix(SAID) for source in tried]

    @operation(read_only=True)
    def current(self, session_id: str) -> Steps[TurnRecord | None]:
        """Return the turn that holds the session's lane: it runs, waits, is blocked, or is next."""
        holder = yield from lane_holder(session_lane(session_id))
        rows = (yield Statement(_TURNS_OF, ([holder],))).rows if holder is not None else ()
        return turn_from(rows[0]) if rows else None

    @operation(read_only=True)
    def turns(self, session_id: str) -> Steps[list[TurnRecord]]:
        """Return the turns of a session, the oldest first."""
        rows = (yield Statement(SESSION, (session_id,))).rows
        if not rows or rows[0][1] is None:
            return []
        turns: list[TurnRecord] = []
        for segment in session_from(rows[0]).path:
            base = segment.number << NODE_BITS
            written = (yield Statement(_RUNS_OF_NODES, (base, base + segment.upto))).rows
            found = (yield Statement(_TURNS_OF, ([run for (run,) in written],))).rows
            turns += [turn_from(row) for row in found]
        return turns

    async def delete(self, session_id: str) -> DeleteReport:
        """Remove a session."""
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
        if rows[0][5] > generation:  # an earlier attempt was committed and its answer lost
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
        if dependents.player is not None:  # without its messages it cannot go on
            yield from log.force_end(CancelProcess(dependents.player, _DELETED_REASON, force=True))
        queued = (yield Statement(queue.FORGET_WORDS, (session_id,))).changed
        yield Statement(table.FORGET_KEYS, (session_id,))
        removed = yield from forget_handles(session_id)
        report = DeleteReport(
            waits=waits,
            queued=queued,
            handles=removed["handles"],
            subscriptions=removed["subscriptions"],
        )
        yield Statement(table.CLEAR_SESSION, (session_id,))
        yield Notify("")
        if session is None:  # an earlier deletion may not have come to its end
            before = yield from _fenced_before(session_id)
            return replace(before, report=report, runs=(*before.runs, *turns))
        shared = tuple(segment.number for segment in session.origin)
        yield Statement(table.FORGET_FORKS, (list(shared), session_id))
        fenced = FencedOff(report, (session.number,), shared, tuple(turns))
        line = (session.number, session_id, msgspec.json.encode(fenced))
        yield Statement(table.ADD_DEAD_LINE, line)
        return fenced

    async def _reclaim(self, line: int) -> tuple[int, list[int]]:
        """Delete the nodes of a deleted session's line but those that a fork begins with.

        Returns how many are kept, and of each node that is gone the turn.
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
        """Return how many nodes of a deleted session's line its forks keep; None if it was not deleted.

        The turns that are kept get another name, so that a new session of the same id can use theirs.
        """
        dead = (yield Statement(_DEAD, ([line],))).rows
        if not dead:
            return None
        forks = (yield Statement(_FORKS_OF, (line,))).rows
        origins = (msgspec.json.decode(origin, type=tuple[Segment, ...]) for (origin,) in forks)
        kept = max((one.upto for path in origins for one in path if one.number == line), default=0)
        base = line << NODE_BITS
        turns = (yield Statement(_RUNS_OF_NODES, (base, base + kept))).rows
        for run, text in (yield Statement(_SCOPES, ([run for (run,) in turns],))).rows:
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
        """Delete some nodes of a line, with what their turns recorded; return the turns, one a node."""
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
    """What a session that is deleted leaves behind.

    ``waiting`` are the runs that wait for its turns. ``subagents`` are the open processes that are attached to them,
    with their runs. ``player`` is the process that plays a turn of it, if it is a subagent's session, and
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
    """Return what depends on the turns of a session, as it is this moment.

    Other processes that were started on behalf of the session go on without it.
    """
    waiting: list[int] = []
    subagents: list[tuple[str, int]] = []
    for (scope,) in (yield Statement(_SCOPES_OF, (list(turns),))).rows:
        waiting += [run for (run,) in (yield Statement(log.WAITING_RUNS, (f"turn:{scope}",))).rows]
        subagents += (yield Statement(log.ATTACHED, (scope,))).rows
    player, touched = None, list[int]()
    for (body,) in (yield Statement(_OPEN_PROCESS, (session_id,))).rows:
        given = REGISTRATIONS.decode(body).input
        if isinstance(given, SessionTurnInput) and given.session_id == session_id:
            player, touched = session_id, (yield from log.runs_of_end(session_id))
    return _Dependents(sorted(set(waiting)), subagents, player, sorted(set(touched)))


def _fenced_before(session_id: str, *, last: bool = False) -> Steps[FencedOff]:
    """Return what is left to do for a session that was fenced off before, once or several times."""
    rows = (yield Statement(_DEAD_OF, (session_id,))).rows
    lives = [msgspec.json.decode(body, type=FencedOff) for (body,) in rows[: 1 if last else None]]
    return FencedOff(
        lives[0].report if lives else DeleteReport(),
        tuple(line for life in lives for line in life.lines),
        tuple(line for life in lives for line in life.shared),
        tuple(run for life in lives for run in life.runs),
    )


def forget_run(run: int) -> Steps[None]:
    """Free the id of a turn that ended with its session."""
    yield Statement(FORGET_EFFECTS_OF_TURNS, ([run], [run]))
    yield from runs.free_id(run)
