"""Forks and deletions of sessions in SQL, and what is taken back.

Rule 1. A fork copies no node: it begins with another line's, which stay while anyone needs them.
Rule 2. A deletion fences the session first (waits revoked, runs ended, who waits for them woken, subagents
        asked to end); then rows go in small pieces. What
        is left to do is written with the fence, so that whoever deletes it again comes to the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from pylash.durable import (
    REGISTRATIONS,
    SAID,
    CancelProcess,
    DeleteReport,
    QueueDrainScope,
    Segment,
    SessionRecord,
    SessionTurnInput,
    TurnRecord,
    TurnScope,
    scope_from_text,
    scope_text,
    session_lane,
)
from pylash.stores.carried import NODE_BITS
from pylash.stores.ends import ATTACHED, force_end, runs_concerned
from pylash.stores.handles import delete_session
from pylash.stores.logs import WAITING_RUNS, ask_cancel, lock_runs
from pylash.stores.queue import (
    lane_holder,
    locked_lane,
    supersede_waits,
    take_words_back,
    waiters_of,
)
from pylash.stores.runs import wake_run
from pylash.stores.session_rows import (
    SESSION,
    TURN,
    add_origin,
    add_session,
    session_from,
    set_options,
    turn_from,
)
from pylash.stores.sql import Again, Notify, Port, Statement, Steps, operation
from pylash.stores.turn_events import FORGET_EVENTS
from pylash.values import SessionExists, SessionUnknown, write

ROWS_AT_ONCE: Final = 500

DELETED: Final = "deleted"
"""The token of a turn that ended because its session was deleted."""

# In two statements: PostgreSQL would read all runs rather than guess how few a range of nodes has.
_RUNS_OF_NODES = "select distinct run from pylash_nodes where id > ? and id <= ? order by run"

_TURNS_OF = TURN.replace("scope = ?", "id in ({bigints}) and kind <> 'process' order by id")

# Who has the lane, and who waits for it.
_RUNS_OF = """
select holder as id from pylash_lanes where lane = ? and holder is not null
union all select id from pylash_runs where lane = ? and state = 'queued' and at is null
order by id"""

_SCOPES_OF = "select scope from pylash_runs where id in ({bigints}) order by id"

_OPEN_PROCESS = "select registration from pylash_processes where id = ? and status = 'open'"

_DELETED_REASON: Final = "its session was deleted"

_END_RUN = f"""
update pylash_runs set state = 'cancelled', result = ?, settled = {{now}}, at = null, owner = null, cancel = 1,
  fence = fence + 1, token = '{DELETED}', lane = null where id = ?"""

_FREE_LANE = """
update pylash_lanes set holder = null, number = null, head = 0, revision = 0, calls = 0, streak = 0,
  usage = null where lane = ?"""

_GENERATION = "select generation from pylash_sessions where id = ?"

# A session that never was has waits too, that were answered before anyone waited.
_CLEAR = """
insert into pylash_sessions(id, generation) values (?, 1)
on conflict (id) do update set generation = pylash_sessions.generation + 1, options = null, origin = null"""

_FORGET_QUEUE = "delete from pylash_queue where session = ?"

_FORGET_SAID = "delete from pylash_said where session = ?"

_ADD_FORK = "insert into pylash_forks(number, session) values (?, ?)"

_FORGET_FORKS = "delete from pylash_forks where number in ({bigints}) and session = ?"

_FORKS_OF = """
select s.origin from pylash_forks f join pylash_sessions s on s.id = f.session
where f.number = ? and s.origin is not null"""

_SHARE_SOURCE = "select head from pylash_lanes where lane = ? and number = ? {share}"

_ADD_DEAD = "insert into pylash_dead_lines(number, session, body) values (?, ?, ?)"

_DEAD_OF = "select body from pylash_dead_lines where session = ? order by number desc"

_DEAD = "select number, session from pylash_dead_lines where number in ({bigints}) order by number"

_FORGET_DEAD = "delete from pylash_dead_lines where number = ?"

_SCOPES = "select id, scope from pylash_runs where kind <> 'process' and id in ({bigints})"

_RENAME = "update pylash_runs set scope = ? where id = ?"

_SOME_NODES = "select id, run from pylash_nodes where id > ? and id <= ? order by id limit ?"

_DELETE_NODES = "delete from pylash_nodes where id in ({bigints})"

_DELETE_EFFECTS = """
delete from pylash_effects where run in ({bigints})
  and run in (select id from pylash_runs where id in ({bigints}) and kind <> 'process')"""

# Whoever waits for a turn that ended with its session still reads how; its row goes with its id.
_DELETE_RUNS = f"""
delete from pylash_runs where id in ({{bigints}}) and kind <> 'process' and settled is not null
  and token <> '{DELETED}'"""

_FREE_ID = "delete from pylash_runs where id = ? and token = ?"


class FencedOff(msgspec.Struct, frozen=True):
    """What is left to do for a session that was fenced off: its lines, those it shared, its last turns."""

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
                return  # done by us already; the answer was lost
            raise SessionExists(new_id)
        line = (session_lane(source.id), source.number)
        known_head = (yield Statement(_SHARE_SOURCE, line)).rows
        if not known_head or known_head[0][0] < head:
            raise SessionUnknown(source.id)  # deleted meanwhile: its nodes are on their way out
        tried.append(True)
        yield from add_session(new_id, counts)
        yield from add_origin(new_id, origin)
        if source.options:
            yield from set_options(new_id, source.options)
        for number in sorted({segment.number for segment in origin}):
            yield Statement(_ADD_FORK, (number, new_id))

    def take_back(self, session_id: str, keys: Sequence[str]) -> Awaitable[list[str]]:
        """Forget a person's words that no turn has heard yet; return the keys of those."""
        return self._take_back(session_id, [f"{SAID}{key}" for key in keys], {})

    @operation()
    def _take_back(
        self, session_id: str, sources: Sequence[str], tried: dict[str, None]
    ) -> Steps[list[str]]:
        """Take words back. ``tried`` has those that an attempt before this one found."""
        tried.update(dict.fromkeys((yield from take_words_back(session_id, sources))))
        return [source.removeprefix(SAID) for source in tried]

    @operation(read_only=True)
    def current(self, session_id: str) -> Steps[TurnRecord | None]:
        """Return the turn that has the session's lane: it runs, waits, is blocked, or is next."""
        holder = yield from lane_holder(session_id)
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
            runs = (yield Statement(_RUNS_OF_NODES, (base, base + segment.upto))).rows
            found = (yield Statement(_TURNS_OF, ([run for (run,) in runs],))).rows
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
        runs = [run for (run,) in (yield Statement(_RUNS_OF, (lane, lane))).rows]
        waiting = yield from waiters_of(session_id)
        dependents = yield from _dependents(session_id, runs)
        yield from lock_runs([*runs, *waiting, *dependents.runs])
        yield from locked_lane(session_id)
        if [run for (run,) in (yield Statement(_RUNS_OF, (lane, lane))).rows] != runs:
            raise Again
        if (yield from _dependents(session_id, runs)) != dependents:
            raise Again
        rows = (yield Statement(SESSION, (session_id,))).rows
        if rows[0][5] > generation:  # done already; the answer was lost
            return (yield from _fenced_before(session_id, last=True))
        session = session_from(rows[0]) if rows[0][1] is not None else None
        result = write({"status": "cancelled", "error": _DELETED_REASON, "code": "turn_cancelled"})
        for run in runs:
            yield Statement(_END_RUN, (result, run))
            yield Statement(FORGET_EVENTS, (run,))
            yield Notify(f"wake:{run}")
        for run in dependents.waiting:
            yield from wake_run(run)
        yield Statement(_FREE_LANE, (lane,))
        waits = yield from supersede_waits(session_id, waiting)
        for process, _ in dependents.subagents:
            yield from ask_cancel(process, _DELETED_REASON)
        if dependents.player is not None:  # without its messages it cannot go on
            yield from force_end(CancelProcess(dependents.player, _DELETED_REASON, force=True))
        queued = (yield Statement(_FORGET_QUEUE, (session_id,))).changed
        yield Statement(_FORGET_SAID, (session_id,))
        removed = yield from delete_session(session_id)
        report = DeleteReport(
            waits=waits,
            queued=queued,
            handles=removed["handles"],
            subscriptions=removed["subscriptions"],
        )
        yield Statement(_CLEAR, (session_id,))
        yield Notify("")
        if session is None:  # an earlier deletion may not have come to its end
            before = yield from _fenced_before(session_id)
            return replace(before, report=report, runs=(*before.runs, *runs))
        shared = tuple(segment.number for segment in session.origin)
        yield Statement(_FORGET_FORKS, (list(shared), session_id))
        fenced = FencedOff(report, (session.number,), shared, tuple(runs))
        yield Statement(_ADD_DEAD, (session.number, session_id, msgspec.json.encode(fenced)))
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

        The turns that are kept get another name: theirs is free for the session's next life.
        """
        dead = (yield Statement(_DEAD, ([line],))).rows
        if not dead:
            return None
        forks = (yield Statement(_FORKS_OF, (line,))).rows
        origins = (msgspec.json.decode(origin, type=tuple[Segment, ...]) for (origin,) in forks)
        kept = max((one.upto for path in origins for one in path if one.number == line), default=0)
        base = line << NODE_BITS
        runs = (yield Statement(_RUNS_OF_NODES, (base, base + kept))).rows
        for run, text in (yield Statement(_SCOPES, ([run for (run,) in runs],))).rows:
            scope = scope_from_text(text)
            assert isinstance(scope, TurnScope | QueueDrainScope)
            if scope.session_id == dead[0][1]:
                renamed = replace(scope, session_id=f"{scope.session_id}#{line}")
                yield Statement(_RENAME, (scope_text(renamed), run))
        return kept

    @operation()
    def _forget_runs(self, runs: Sequence[int]) -> Steps[None]:
        yield Statement(_DELETE_EFFECTS, (list(runs), list(runs)))

    @operation()
    def _delete_nodes(self, number: int, after: int) -> Steps[list[int]]:
        """Delete some nodes of a line, with what their turns recorded; return the turns, one a node."""
        base = number << NODE_BITS
        last = base + (1 << NODE_BITS) - 1
        rows = (yield Statement(_SOME_NODES, (base + after, last, ROWS_AT_ONCE))).rows
        if rows:
            runs = sorted({run for _, run in rows})
            yield Statement(_DELETE_NODES, ([node for node, _ in rows],))
            yield Statement(_DELETE_EFFECTS, (runs, runs))
            yield Statement(_DELETE_RUNS, (runs,))
        return [run for _, run in rows]

    @operation()
    def _forget_line(self, number: int) -> Steps[None]:
        yield Statement(_FORGET_DEAD, (number,))


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

    Whatever else was started on behalf of the session goes on without it.
    """
    waiting: list[int] = []
    subagents: list[tuple[str, int]] = []
    for (scope,) in (yield Statement(_SCOPES_OF, (list(turns),))).rows:
        waiting += [run for (run,) in (yield Statement(WAITING_RUNS, (f"turn:{scope}",))).rows]
        subagents += (yield Statement(ATTACHED, (scope,))).rows
    player, touched = None, list[int]()
    for (body,) in (yield Statement(_OPEN_PROCESS, (session_id,))).rows:
        given = REGISTRATIONS.decode(body).input
        if isinstance(given, SessionTurnInput) and given.session_id == session_id:
            player, touched = session_id, (yield from runs_concerned(session_id))
    return _Dependents(sorted(set(waiting)), subagents, player, sorted(set(touched)))


def _fenced_before(session_id: str, *, last: bool = False) -> Steps[FencedOff]:
    """Return what is left to do for a session that was fenced off before, once or in many lives."""
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
    yield Statement(_DELETE_EFFECTS, ([run], [run]))
    yield Statement(_FREE_ID, (run, DELETED))
