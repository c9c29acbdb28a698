"""Sessions in SQL: turns are submitted, write as they go, and commit.

Rule 1. A turn's row is its run's. It joins the session's lane in the transaction that submits it.
Rule 2. Nodes are numbered within their session: ``number << 24 | place``. A place is written once.
Rule 3. A commit writes the nodes that are left, moves the head from where the turn began, ends the run and
        hands the lane on, at once. Repeated after a lost answer it changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from pylash.durable.commands import AwaitTurn, SubmitTurn
from pylash.durable.runs import Fence, Instant, JournalEntry, RunState, WorkerId
from pylash.durable.scopes import (
    QueueDrainScope,
    TurnScope,
    checked_scope,
    scope_from_text,
    scope_text,
    session_of,
)
from pylash.durable.sessions import (
    SAID,
    NewTurn,
    Policy,
    Queued,
    ResumedTurn,
    Segment,
    SessionRecord,
    Submitted,
    TurnCommit,
    TurnRecord,
    Writing,
    checked_session,
    session_lane,
)
from pylash.stores.operation import (
    Again,
    Notify,
    Operation,
    Statement,
    Steps,
    operation,
    store_time,
)
from pylash.stores.ports import process_log as log
from pylash.stores.ports.journal import journals_of
from pylash.stores.ports.numbers import RunPort
from pylash.stores.ports.session_deletion import SqlSessionEnds, forget_run
from pylash.stores.tables import effects, lanes, queue, runs
from pylash.stores.tables import sessions as table
from pylash.stores.tables.packed_effects import NODE_BITS, effects_in
from pylash.stores.tables.sessions import SESSION, TURN, plain, session_from, turn_from
from pylash.stores.tables.turn_events import FORGET_EVENTS
from pylash.stores.tables.workers import is_member
from pylash.values.canonical import write, write_payload
from pylash.values.errors import LeaseLost
from pylash.values.turn_errors import SessionMoved, TurnInputConflict, TurnUnknown

_SESSIONS = SESSION.replace("l.lane = 'session:' || ?", "l.lane in ({texts})")

TURN_OF_RUN = TURN.replace("scope = ?", "id = ?")

_TURNS = TURN.replace("scope = ?", "id in ({bigints}) and kind in ('turn', 'queue_drain')")

_IS_BLOCKED = "select 1 from pylash_runs where id = ? and state = 'blocked'"

_IS_CANCELLED = "select 1 from pylash_runs where id = ? and cancel > 0"

_SAID = "select token from pylash_said where session = ? and key = ?"

_LOCK_WORDS = queue.WORDS + " {update}"

_RESULTS = """
select scope, state, result from pylash_runs where scope in ({texts}) and settled is not null"""

_BLOCKED = "select scope, state, reason from pylash_runs where scope in ({texts})"


class SqlSessions(SqlSessionEnds, RunPort):
    """Sessions in SQL."""

    def submit(
        self, new: NewTurn, token: str, worker: WorkerId | None = None
    ) -> Awaitable[Submitted]:
        """Accept a turn, once; owned by worker from the first moment if its session is free."""

        def steps() -> Steps[Submitted]:
            return (yield from submit_turn(new, self._draw(), token, worker))

        # Also if it has a slot: turns of a session begin in the order in which they were asked for.
        flow = f"session:{new.scope.session_id}"
        return self.driver.run(Operation("submit", steps, flow=flow))

    @operation(read_only=True)
    def resume(self, claimed: Sequence[int]) -> Steps[dict[int, ResumedTurn]]:
        """Return what is needed to go on with turns, by run; a turn that cannot be read is left out."""
        now = yield from store_time()
        journals = yield from journals_of(claimed)
        turns: list[TurnRecord] = []
        for row in (yield Statement(_TURNS, (list(claimed),))).rows:
            with suppress(ValueError):  # written by newer code
                turns.append(turn_from(row))
        names = [session_lane(turn.scope.session_id) for turn in turns]
        rows = {row[0]: row for row in (yield Statement(_SESSIONS, (names,))).rows}
        resumed = {}
        for turn in turns:
            known = rows.get(turn.scope.session_id)
            if known is None or known[1] is None:
                continue  # the session was deleted meanwhile, and the turn with it
            with suppress(ValueError):
                session = session_from(known)
                nodes, carried = yield from table.read_uncommitted(session, turn.run)
                entries = {**carried, **journals[turn.run]}
                resumed[turn.run] = ResumedTurn(turn, session, entries, nodes, now)
        return resumed

    @operation()
    def open(self, session_id: str, options: Any = None) -> Steps[SessionRecord]:
        """Return a session, made if it is missing."""
        return (yield from table.open_session(checked_session(session_id), options))

    @operation(read_only=True)
    def get(self, session_id: str) -> Steps[SessionRecord | None]:
        """Return a session, if there is one."""
        rows = (yield Statement(SESSION, (session_id,))).rows
        return session_from(rows[0]) if rows and rows[0][1] is not None else None

    @operation(read_only=True)
    def turn(self, scope: TurnScope | QueueDrainScope) -> Steps[TurnRecord | None]:
        """Return a turn, if there is one."""
        rows = (yield Statement(TURN, (scope_text(scope),))).rows
        return turn_from(rows[0]) if rows else None

    @operation(read_only=True)
    def nodes(self, segment: Segment, after: int = 0) -> Steps[list[bytes]]:
        """Return the nodes of a segment after a place, the oldest first."""
        return (yield from table.nodes_of(segment, after))

    @operation(read_only=True)
    def uncommitted(self, session: SessionRecord) -> Steps[dict[int, bytes]]:
        """Return the nodes behind the head, by place: those of a turn that has not ended."""
        return (yield from table.uncommitted_nodes(session))

    @operation()
    def record(self, fence: Fence, session: SessionRecord, writing: Writing) -> Steps[None]:
        """Write what a turn did, all of it or nothing; what is there already stays."""
        yield from runs.lock_fenced(fence)
        yield from table.write_turn(fence, session, writing)

    @operation()
    def commit(self, fence: Fence, commit: TurnCommit) -> Steps[None]:
        """Append a turn to its session, and end its run."""
        token, scope = f"settled:{fence.token}", scope_text(fence.scope)
        session, lane = commit.session, session_lane(commit.session.id)
        dependents = yield from _dependents(scope, commit)
        waiting, attached = dependents
        following = (yield from lanes.next_in_lane(lane)) if commit.settle else None
        others = [row[-1] for row in (*waiting, *attached)]
        others += [] if following is None else [following]
        locked = yield from runs.lock_runs([fence.run, *others])
        if locked.get(fence.run) != fence.token:
            if (yield from runs.is_repeated(fence.run, token)):
                return  # an earlier attempt was committed and its answer lost
            raise LeaseLost(fence.name)
        if commit.settle:
            if (yield from _dependents(scope, commit)) != dependents:
                raise Again
            yield from lanes.lock_held_lane(lane, following)
        yield from _abandon(fence, commit, [process for process, _ in attached])
        base = session.number << NODE_BITS
        writing = commit.writing
        if commit.fresh:
            behind = Segment(session.number, (1 << NODE_BITS) - 1)
            carried = yield from effects_in(behind, session.head, fence.run)
            writing = replace(writing, entries=(*carried, *writing.entries))
            yield Statement(table.DROP_NODES, (base + session.head, base + behind.upto))
        yield from table.write_turn(fence, session, writing)
        if commit.settle:
            result = write_payload(commit.result, 2)
            yield from runs.settle_turn(fence.run, commit.state, result, token)
            yield from queue.pass_lane_on(session.id, following, self._draw())
            yield Statement(FORGET_EVENTS, (fence.run,))
            for (run,) in waiting:
                yield from runs.wake(run)
            yield Notify(f"turn:{scope}")
        moved = (commit.head, commit.calls, write(commit.usage), lane)
        line = (session.number, session.head)
        nodes = (base + session.head, base + commit.head, fence.run, commit.head - session.head)
        if not (yield from lanes.move_head((*moved, *line, *nodes))):
            yield from _check_moved(fence, commit)
        yield Notify(f"session:{session.id}")

    @operation()
    def watch(
        self, fence: Fence, entry: JournalEntry, command: AwaitTurn, wrap: Callable[[Any], bytes]
    ) -> Steps[JournalEntry]:
        """Begin to wait for a turn as an effect of a run, or end the wait if it has ended."""
        text = scope_text(TurnScope(command.session_id, command.turn_id))
        rows = (yield Statement(TURN, (text,))).rows
        if not rows:
            raise TurnUnknown(command.session_id, command.turn_id)
        locked = yield from runs.lock_runs([fence.run, rows[0][1]])
        if locked.get(fence.run) != fence.token:
            raise LeaseLost(fence.name)
        known = yield from effects.find_effect(fence.run, entry.key)
        if known is not None and known.size:
            return known
        if known is None:
            known = yield from effects.open_effect(fence, entry, f"turn:{text}")
        ended = (yield Statement(_RESULTS, ([text],))).rows
        if not ended:
            return known
        result = yield from _with_text(command.session_id, plain(ended[0][2]))
        outcome = wrap({"state": ended[0][1], "result": result})
        now = yield from store_time()
        return (yield from effects.close_effect(fence, known, outcome, now))

    # --- words ---

    def enqueue(self, session_id: str, key: str, body: Any, policy: Policy) -> Awaitable[bool]:
        """Queue a person's words, once, and wake or start the turn that takes them; False if they are known."""
        checked_session(session_id)
        token = self._entropy(8).hex()
        steps = partial(self._enqueue, session_id, (key, token), body, policy)
        # Not behind the session's turns: it may interrupt the one that runs.
        return self.driver.run(Operation("_enqueue", steps, flow=f"words:{session_id}"))

    def _enqueue(
        self, session_id: str, key: tuple[str, str], body: Any, policy: Policy
    ) -> Steps[bool]:
        interrupts = policy is Policy.INTERRUPT
        waiting = (yield from queue.waiters_of(session_id)) if interrupts else []
        holder = yield from lanes.lane_holder(session_lane(session_id))
        locked = yield from runs.lock_runs(waiting if holder is None else [*waiting, holder])
        holder = yield from queue.lock_lane(session_id, locked)
        if known := (yield Statement(_SAID, (session_id, key[0]))).rows:
            return bool(known[0][0] == key[1])  # equal: an earlier attempt's answer was lost
        if interrupts and holder is not None:
            yield from queue.supersede_waits(session_id, waiting)
        yield Statement(table.REMEMBER_KEY, (session_id, *key))
        yield from queue.add_words(session_id, f"{SAID}{key[0]}", 0, body, policy)
        yield from table.open_session(session_id)
        yield from queue.wake_session(session_id, holder, self._draw(), person=True)
        return True

    def take(
        self,
        fence: Fence,
        session: SessionRecord,
        make: Callable[[list[Queued]], Writing],
        *,
        begins: bool = True,
    ) -> Awaitable[list[Queued]]:
        """Take what is queued for a session, as an effect that ``make`` writes, also if there is nothing.

        Words for the next turn are left to it, unless this one ``begins``.
        """
        return self._take(fence, session, make, [], begins)

    @operation()
    def _take(
        self,
        fence: Fence,
        session: SessionRecord,
        make: Callable[[list[Queued]], Writing],
        tried: list[tuple[list[Queued], Writing]],
        begins: bool,
    ) -> Steps[list[Queued]]:
        """Take words. ``tried`` is what an earlier attempt took, whose answer was lost."""
        yield from runs.lock_fenced(fence)
        if tried and (yield from table.is_written(fence, session, tried[-1][1])):
            return tried[-1][0]  # words that came meanwhile are left for the next call
        rows = (yield Statement(_LOCK_WORDS, (session.id,))).rows
        queued = [queue.queued_from(row) for row in rows]
        words = [one for one in queued if begins or one.policy is not Policy.NEXT_TURN]
        writing = make(words)
        tried.append((words, writing))
        yield from table.write_turn(fence, session, writing)
        for one in words:
            yield Statement(queue.TAKE_WORDS, (session.id, one.source, one.sequence))
        return words

    @operation(read_only=True)
    def queued(self, session_id: str) -> Steps[list[Queued]]:
        """Return the words that are queued for a session, the oldest first."""
        return [
            queue.queued_from(row) for row in (yield Statement(queue.WORDS, (session_id,))).rows
        ]

    def cancel(self, session_id: str, reason: str) -> Awaitable[TurnRecord | None]:
        """Ask the turn that has the session's lane to end; return it, if there is one."""
        return self._cancel(session_id, reason, [])

    @operation()
    def _cancel(self, session_id: str, reason: str, tried: list[int]) -> Steps[TurnRecord | None]:
        """Ask a turn to end. ``tried`` has the one that an earlier attempt asked."""
        holder = tried[-1] if tried else (yield from lanes.lane_holder(session_lane(session_id)))
        if holder is None:
            return None
        yield from runs.lock_runs([holder])
        asked = tried and (yield Statement(_IS_CANCELLED, (holder,))).rows
        # Otherwise an earlier attempt asked it, and the lane may be held by a different turn now.
        if not asked:
            if (yield from lanes.lane_holder(session_lane(session_id))) != holder:
                tried.clear()
                raise Again
            tried.append(holder)
            yield from runs.hurry_turn(holder, reason)
        rows = (yield Statement(TURN_OF_RUN, (holder,))).rows
        return turn_from(rows[0]) if rows else None

    @operation(read_only=True)
    def blocked(self, session_id: str) -> Steps[int | None]:
        """Return the run of the turn that blocks a session, if one does."""
        holder = yield from lanes.lane_holder(session_lane(session_id))
        rows = (yield Statement(_IS_BLOCKED, (holder,))).rows
        return holder if rows else None

    @operation(read_only=True)
    def asked_to_end(self, run: int) -> Steps[bool]:
        """Return whether a turn was asked to end."""
        return bool((yield Statement(_IS_CANCELLED, (run,))).rows)

    @operation(read_only=True)
    def results(self, scopes: Sequence[str]) -> Steps[dict[str, tuple[RunState, Any]]]:
        """Return how those turns ended that have, by the text of their scopes."""
        rows = (yield Statement(_RESULTS, (list(scopes),))).rows
        results = {}
        for text, state, result in rows:
            session = session_of(scope_from_text(text)) or ""
            results[text] = RunState(state), (yield from _with_text(session, plain(result)))
        return results

    @operation(read_only=True)
    def states(self, scopes: Sequence[str]) -> Steps[dict[str, tuple[RunState, str | None]]]:
        """Return the states of turns, with the reasons of those that are blocked."""
        rows = (yield Statement(_BLOCKED, (list(scopes),))).rows
        return {row[0]: (RunState(row[1]), row[2]) for row in rows}


def _dependents(scope: str, commit: TurnCommit) -> Steps[tuple[list[Any], list[Any]]]:
    """Return the runs that wait for a turn, and the subagents that it leaves behind, with their runs.

    A turn that ends in order has waited for its subagents; one that was cancelled, or drops what it did, may
    not have.
    """
    if not commit.settle:
        return [], []
    waiting = (yield Statement(log.WAITING_RUNS, (f"turn:{scope}",))).rows
    left = commit.fresh or commit.state is RunState.CANCELLED
    return waiting, (yield Statement(log.ATTACHED, (scope,))).rows if left else []


def _abandon(fence: Fence, commit: TurnCommit, subagents: Sequence[str]) -> Steps[None]:
    """End what a turn still waits for, if it was cancelled, and the subagents that it leaves behind."""
    if commit.state is RunState.CANCELLED:
        yield from log.end_waits(fence.run)
    for process in subagents:
        yield from log.request_cancel(process, "the turn that asked it ended")


def submit_turn(
    new: NewTurn, run: int, token: str, worker: WorkerId | None = None
) -> Steps[Submitted]:
    """Accept a turn, once, as a run of its session's lane."""
    checked_scope(new.scope)
    session_id = new.scope.session_id
    text = scope_text(new.scope)
    now = yield from store_time()
    if known := (yield Statement(TURN, (text,))).rows:
        *_, is_forgotten = known[0]
        if not is_forgotten:
            return (yield from _submitted_before(new, known[0], now, token))
        yield from forget_run(known[0][1])  # its session was deleted: the id is free
    if worker is not None and not (yield from is_member(worker)):
        worker = None
    holder, seq = yield from lanes.join_lane(session_lane(session_id), run)
    free = holder == run
    session = yield from table.open_session(session_id, new.options)
    if new.person and session.streak:
        yield from lanes.set_streak(session_lane(session_id), 0)
    options, fence, state = session.options, None, RunState.QUEUED
    if free and worker is not None:
        yield from runs.start_turn(run, new, options, seq, worker, token)
        fence, state = Fence(run, 1, new.scope), RunState.RUNNING
    else:
        yield from runs.enqueue_turn(run, new, options, seq, ready=free)
    turn = TurnRecord(new.scope, run, new.body, state, None, None, now, options=options or {})
    return Submitted(turn, session, now, fence, (yield from queue.has_words(session_id)))


def submit_for_process(command: SubmitTurn, run: int) -> Steps[Any]:
    """Submit a turn for a process."""
    scope = TurnScope(command.session_id, command.turn_id)
    digest, body = bytes.fromhex(command.digest), write_payload(command.ask, 2)
    new = NewTurn(scope=scope, digest=digest, body=body, options=command.options)
    return {"state": (yield from submit_turn(new, run, "")).turn.state}


def _with_text(session_id: str, result: Any) -> Steps[Any]:
    """Return a result with its text, if that is the text of a node and stored only there."""
    if result is None or "text_at" not in result:
        return result
    rows = (yield Statement(SESSION, (session_id,))).rows
    if not rows or rows[0][1] is None:
        return result
    last = (rows[0][1] << NODE_BITS) + result["text_at"]
    found = (yield Statement(table.NODES, (last - 1, last))).rows
    return {**result, "text": plain(found[0][1]).get("text", "") if found else ""}


def _submitted_before(
    new: NewTurn, row: tuple[Any, ...], now: Instant, token: str
) -> Steps[Submitted]:
    """Return a turn that was submitted before, or refuse another input under its id."""
    if bytes(row[2] or b"")[: table.DIGEST_BYTES] != new.digest:
        raise TurnInputConflict(new.scope.session_id, new.scope.id)
    rows = (yield Statement(SESSION, (new.scope.session_id,))).rows
    number, last_token, _ = row[-3:]
    ours = last_token == token and number == 1  # an earlier attempt was committed, its answer lost
    fence = Fence(row[1], 1, new.scope) if ours else None
    stirred = yield from queue.has_words(new.scope.session_id)
    return Submitted(turn_from(row), session_from(rows[0]), now, fence, stirred)


def _check_moved(fence: Fence, commit: TurnCommit) -> Steps[None]:
    """Accept a head that an earlier attempt moved, whose answer was lost; refuse one that another turn moved."""
    session = commit.session
    rows = (yield Statement(SESSION, (session.id,))).rows
    moved = bool(rows) and rows[0][1] == session.number and rows[0][2] >= commit.head
    if not moved or not (yield from table.is_ours(fence, session, commit.head)):
        raise SessionMoved(session.id)
