"""Sessions in SQL: turns are submitted, write as they go, and commit.

Rule 1. A turn's row is its run's. Whoever submits one joins the session's lane in the same transaction.
Rule 2. Nodes are numbered within their session: ``number << 24 | place``. A place is written once.
Rule 3. A commit writes the nodes that are left, moves the head from where the turn began, ends the run and
        hands the lane on, at once. Repeated after a lost answer it changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from pylash.durable import (
    SAID,
    AwaitTurn,
    Clock,
    Entropy,
    Fence,
    Instant,
    JournalEntry,
    NewTurn,
    Policy,
    Queued,
    QueueDrainScope,
    ResumedTurn,
    RunState,
    Segment,
    SessionRecord,
    Submitted,
    SubmitTurn,
    TurnCommit,
    TurnRecord,
    TurnScope,
    WorkerId,
    Writing,
    checked_scope,
    checked_session,
    scope_from_text,
    scope_text,
    session_lane,
    session_of,
)
from pylash.stores.carried import NODE_BITS, carried_in
from pylash.stores.ends import ATTACHED, end_waits
from pylash.stores.journal import (
    close_effect,
    fenced,
    is_member,
    journals_of,
    open_effect,
    recorded,
    standing,
)
from pylash.stores.lanes import JOIN_LANE
from pylash.stores.logs import WAITING_RUNS, ask_cancel, lock_runs
from pylash.stores.numbers import DrawsNumbers, Numbers
from pylash.stores.queue import (
    TAKE_WORDS,
    WORDS,
    add_words,
    hand_lane_on,
    has_words,
    lane_holder,
    locked_lane,
    locked_next,
    next_in_lane,
    person_spoke,
    queued_from,
    supersede_waits,
    told,
    waiters_of,
)
from pylash.stores.runs import wake_run
from pylash.stores.session_ends import DELETED, SqlSessionEnds, forget_run
from pylash.stores.session_rows import (
    DIGEST_BYTES,
    NODES,
    SESSION,
    TURN,
    is_ours,
    is_written,
    left_by,
    nodes_of,
    opened_session,
    plain,
    session_from,
    turn_from,
    turn_row,
    uncommitted,
    written,
)
from pylash.stores.sql import Again, Driver, Notify, Operation, Statement, Steps, operation
from pylash.stores.turn_events import FORGET_EVENTS
from pylash.values import (
    LeaseLost,
    SessionMoved,
    TurnInputConflict,
    TurnUnknown,
    write,
    write_payload,
)

_SESSIONS = SESSION.replace("l.lane = 'session:' || ?", "l.lane in ({texts})")

TURN_OF_RUN = TURN.replace("scope = ?", "id = ?")

_TURNS = TURN.replace("scope = ?", "id in ({bigints}) and kind in ('turn', 'queue_drain')")

_NOW = "select {now}"

_ADD_TURN = """
insert into pylash_runs(id, scope, kind, target, lane, lane_seq, state, at, input, options, owner, token,
  fence, attempts, created)
values (?, ?, ?, ?, ?, ?, ?, case when ? then {now} end, ?, ?, ?, ?, ?, ?, {now}) on conflict do nothing"""

_DONE = "select 1 from pylash_runs where id = ? and token = ?"

# Every node up to the new head must be the turn's: another's in its place means another wrote meanwhile.
_MOVE_HEAD = """
update pylash_lanes set head = ?, revision = revision + 1, calls = ?, usage = ?
where lane = ? and number = ? and head = ?
  and (select count(*) from pylash_nodes n where n.id > ? and n.id <= ? and n.run = ?) = ?"""

_SETTLE = """
update pylash_runs set state = ?, result = ?, settled = {now}, at = null, owner = null,
  fence = fence + 1, token = ? where id = ?"""

# Who is asked to end does not wait for a retry; why is kept where the result will be.
_ASK_CANCEL = """
update pylash_runs set cancel = case when cancel = 0 then 1 else cancel end,
  result = case when cancel = 0 then ? else result end, reason = null, attempts = 0,
  at = case when state = 'blocked' then {now} else at end,
  state = case when state = 'blocked' then 'queued' else state end
where id = ? and settled is null and (cancel = 0 or state = 'blocked')"""

_IS_BLOCKED = "select 1 from pylash_runs where id = ? and state = 'blocked'"

_IS_CANCELLED = "select 1 from pylash_runs where id = ? and cancel > 0"

_SAY = "insert into pylash_said(session, key, token, at) values (?, ?, ?, {now})"

_SAID = "select token from pylash_said where session = ? and key = ?"

_LOCK_WORDS = WORDS + " {update}"

_DROP_NODES = "delete from pylash_nodes where id > ? and id <= ?"

_RESULTS = """
select scope, state, result from pylash_runs where scope in ({texts}) and settled is not null"""

_BLOCKED = "select scope, state, reason from pylash_runs where scope in ({texts})"


class SqlSessions(SqlSessionEnds, DrawsNumbers):
    """Sessions in SQL."""

    def __init__(self, driver: Driver, clock: Clock, entropy: Entropy) -> None:
        super().__init__(driver)
        self.is_far = driver.is_far
        self._clock = clock
        self._entropy = entropy
        self._free: deque[int] = deque()

    def submit(
        self, new: NewTurn, token: str, worker: WorkerId | None = None
    ) -> Awaitable[Submitted]:
        """Accept a turn, once; owned by worker from the first moment if its session is free."""
        numbers = Numbers(self._free)

        def steps() -> Steps[Submitted]:
            numbers.reserved.clear()
            return (yield from accepted(new, self._draw(), token, worker, numbers))

        # Also if it has a slot: turns of a session begin in the order in which they were asked for.
        flow = f"session:{new.scope.session_id}"
        submitting = self.driver.run(Operation("submit", steps, flow=flow))
        if isinstance(submitting, asyncio.Future):  # else what it reserves is never used
            submitting.add_done_callback(numbers.keep)
        return submitting

    @operation(read_only=True)
    def resume(self, runs: Sequence[int]) -> Steps[dict[int, ResumedTurn]]:
        """Return what is needed to go on with turns, by run; a turn that cannot be read is left out."""
        now = Instant((yield Statement(_NOW)).rows[0][0])
        journals = yield from journals_of(runs)
        turns: list[TurnRecord] = []
        for row in (yield Statement(_TURNS, (list(runs),))).rows:
            with suppress(ValueError):  # written by code we do not understand
                turns.append(turn_from(row))
        lanes = [session_lane(turn.scope.session_id) for turn in turns]
        rows = {row[0]: row for row in (yield Statement(_SESSIONS, (lanes,))).rows}
        resumed = {}
        for turn in turns:
            known = rows.get(turn.scope.session_id)
            if known is None or known[1] is None:
                continue  # deleted meanwhile, and the turn with it
            with suppress(ValueError):
                session = session_from(known)
                nodes, carried = yield from left_by(session, turn.run)
                entries = {**carried, **journals[turn.run]}
                resumed[turn.run] = ResumedTurn(turn, session, entries, nodes, now)
        return resumed

    @operation()
    def open(self, session_id: str, options: Any = None) -> Steps[SessionRecord]:
        """Return a session, made if it is missing."""
        return (yield from opened_session(checked_session(session_id), options))

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
        return (yield from nodes_of(segment, after))

    def reader(self, segments: Sequence[Segment]) -> Callable[[], list[bytes]] | None:
        """Return how a thread that may wait reads the nodes of segments; None if none can."""

        def steps() -> Steps[list[bytes]]:
            bodies: list[bytes] = []
            for segment in segments:
                bodies += yield from nodes_of(segment)
            return bodies

        return self.driver.reader(Operation("nodes", steps, read_only=True))

    @operation(read_only=True)
    def uncommitted(self, session: SessionRecord) -> Steps[dict[int, bytes]]:
        """Return the nodes behind the head, by place: those of a turn that has not ended."""
        return (yield from uncommitted(session))

    @operation()
    def record(self, fence: Fence, session: SessionRecord, writing: Writing) -> Steps[None]:
        """Write what a turn did, all of it or nothing; what is there already stays."""
        yield from fenced(fence)
        yield from written(fence, session, writing)

    @operation()
    def commit(self, fence: Fence, commit: TurnCommit) -> Steps[None]:
        """Append a turn to its session, and end its run."""
        token, scope = f"settled:{fence.token}", scope_text(fence.scope)
        session = commit.session
        concerned = yield from _concerned(scope, commit)
        waiting, attached = concerned
        following = (yield from next_in_lane(session.id)) if commit.settle else None
        others = [row[-1] for row in (*waiting, *attached)]
        others += [] if following is None else [following]
        locked = yield from lock_runs([fence.run, *others])
        if locked.get(fence.run) != fence.token:
            if (yield Statement(_DONE, (fence.run, token))).rows:
                return  # done by us already; the answer was lost
            raise LeaseLost(fence.name)
        if commit.settle:
            if (yield from _concerned(scope, commit)) != concerned:
                raise Again
            yield from locked_next(session.id, following)
        yield from _abandon(fence, commit, [process for process, _ in attached])
        base = session.number << NODE_BITS
        writing = commit.writing
        if commit.fresh:
            behind = Segment(session.number, (1 << NODE_BITS) - 1)
            carried = yield from carried_in(behind, session.head, fence.run)
            writing = replace(writing, entries=(*carried, *writing.entries))
            yield Statement(_DROP_NODES, (base + session.head, base + behind.upto))
        yield from written(fence, session, writing)
        if commit.settle:
            result = (commit.state, write_payload(commit.result, 2), token, fence.run)
            yield Statement(_SETTLE, result)
            yield from hand_lane_on(session.id, following, self._draw())
            yield Statement(FORGET_EVENTS, (fence.run,))
            for (run,) in waiting:
                yield from wake_run(run)
            yield Notify(f"turn:{scope}")
        moved = (commit.head, commit.calls, write(commit.usage), session_lane(session.id))
        line = (session.number, session.head)
        nodes = (base + session.head, base + commit.head, fence.run, commit.head - session.head)
        if not (yield Statement(_MOVE_HEAD, (*moved, *line, *nodes))).changed:
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
        locked = yield from lock_runs([fence.run, rows[0][1]])
        if locked.get(fence.run) != fence.token:
            raise LeaseLost(fence.name)
        known = yield from recorded(fence, entry.key)
        if known is not None and known.size:
            return known
        if known is None:
            yield from open_effect(fence, entry, f"turn:{text}")
        ended = (yield Statement(_RESULTS, ([text],))).rows
        if ended:
            result = yield from _told(command.session_id, plain(ended[0][2]))
            outcome = wrap({"state": ended[0][1], "result": result})
            yield from close_effect(fence, entry.key, outcome)
        return (yield from standing(fence, entry.key))

    # --- words ---

    def enqueue(self, session_id: str, key: str, body: Any, policy: Policy) -> Awaitable[bool]:
        """Queue a person's words, once, and wake or start the turn that hears them; False if known."""
        checked_session(session_id)
        token = self._entropy(8).hex()
        steps = partial(self._enqueue, session_id, (key, token), body, policy)
        # Not behind the session's turns: it may interrupt the one that runs.
        return self.driver.run(Operation("_enqueue", steps, flow=f"words:{session_id}"))

    def _enqueue(
        self, session_id: str, key: tuple[str, str], body: Any, policy: Policy
    ) -> Steps[bool]:
        interrupts = policy is Policy.INTERRUPT
        waiting = (yield from waiters_of(session_id)) if interrupts else []
        holder = yield from lane_holder(session_id)
        locked = yield from lock_runs(waiting if holder is None else [*waiting, holder])
        holder = yield from locked_lane(session_id, locked)
        if known := (yield Statement(_SAID, (session_id, key[0]))).rows:
            return bool(known[0][0] == key[1])  # said by us already; the answer was lost
        if interrupts and holder is not None:
            yield from supersede_waits(session_id, waiting)
        yield Statement(_SAY, (session_id, *key))
        yield from add_words(session_id, f"{SAID}{key[0]}", 0, body, policy)
        yield from opened_session(session_id)
        yield from told(session_id, holder, self._draw(), person=True)
        return True

    def take(
        self,
        fence: Fence,
        session: SessionRecord,
        make: Callable[[list[Queued]], Writing],
        *,
        begins: bool = True,
    ) -> Awaitable[list[Queued]]:
        """Take what is queued for a session, as an effect that ``make`` writes.

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
        """Take words. ``tried`` is what an attempt before this one took, if its answer was lost."""
        yield from fenced(fence)
        if tried and (yield from is_written(fence, session, tried[-1][1])):
            return tried[-1][0]  # what came meanwhile is for the next to take
        rows = (yield Statement(_LOCK_WORDS, (session.id,))).rows
        queued = [queued_from(row) for row in rows]
        words = [one for one in queued if begins or one.policy is not Policy.NEXT_TURN]
        if words:
            writing = make(words)
            tried.append((words, writing))
            yield from written(fence, session, writing)
            for one in words:
                yield Statement(TAKE_WORDS, (session.id, one.source, one.sequence))
        return words

    @operation(read_only=True)
    def queued(self, session_id: str) -> Steps[list[Queued]]:
        """Return what waits for a session, the oldest first."""
        return [queued_from(row) for row in (yield Statement(WORDS, (session_id,))).rows]

    def cancel(self, session_id: str, reason: str) -> Awaitable[TurnRecord | None]:
        """Ask the turn that has the session's lane to end; return it, if there is one."""
        return self._cancel(session_id, reason, [])

    @operation()
    def _cancel(self, session_id: str, reason: str, tried: list[int]) -> Steps[TurnRecord | None]:
        """Ask a turn to end. ``tried`` has the one that an attempt before this one asked."""
        holder = tried[-1] if tried else (yield from lane_holder(session_id))
        if holder is None:
            return None
        yield from lock_runs([holder])
        asked = tried and (yield Statement(_IS_CANCELLED, (holder,))).rows
        if not asked:  # else it was us; who has the lane now is another, whom nobody asks to end
            if (yield from lane_holder(session_id)) != holder:
                tried.clear()
                raise Again
            tried.append(holder)
            if (yield Statement(_ASK_CANCEL, (write({"cancelled": reason}), holder))).changed:
                yield from wake_run(holder)
                yield Notify(f"cancel:{holder}")
                yield Notify("runs")
        rows = (yield Statement(TURN_OF_RUN, (holder,))).rows
        return turn_from(rows[0]) if rows else None

    @operation(read_only=True)
    def blocked(self, session_id: str) -> Steps[int | None]:
        """Return the run of the turn that blocks a session, if one does."""
        holder = yield from lane_holder(session_id)
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
            results[text] = RunState(state), (yield from _told(session, plain(result)))
        return results

    @operation(read_only=True)
    def states(self, scopes: Sequence[str]) -> Steps[dict[str, tuple[RunState, str | None]]]:
        """Return where turns stand, and why those that are blocked are."""
        rows = (yield Statement(_BLOCKED, (list(scopes),))).rows
        return {row[0]: (RunState(row[1]), row[2]) for row in rows}


def _concerned(scope: str, commit: TurnCommit) -> Steps[tuple[list[Any], list[Any]]]:
    """Return the runs that wait for a turn, and the subagents that it leaves behind, with their runs.

    A turn that ends in order has waited for its subagents; one that was cancelled, or drops what it did, may
    not have.
    """
    if not commit.settle:
        return [], []
    waiting = (yield Statement(WAITING_RUNS, (f"turn:{scope}",))).rows
    left = commit.fresh or commit.state is RunState.CANCELLED
    return waiting, (yield Statement(ATTACHED, (scope,))).rows if left else []


def _abandon(fence: Fence, commit: TurnCommit, subagents: Sequence[str]) -> Steps[None]:
    """End what a turn still waits for, if it was cancelled, and the subagents that it leaves behind."""
    if commit.state is RunState.CANCELLED:
        yield from end_waits(fence.run)
    for process in subagents:
        yield from ask_cancel(process, "the turn that asked it ended")


def accepted(
    new: NewTurn,
    run: int,
    token: str,
    worker: WorkerId | None = None,
    numbers: Numbers | None = None,
) -> Steps[Submitted]:
    """Accept a turn, once, as a run of its session's lane."""
    checked_scope(new.scope)
    session_id = new.scope.session_id
    text = scope_text(new.scope)
    now = Instant((yield Statement(_NOW)).rows[0][0])
    if known := (yield Statement(TURN, (text,))).rows:
        if known[0][-1] != DELETED:
            return (yield from _known(new, known[0], now, token))
        yield from forget_run(known[0][1])  # its session was deleted: the id is free
    if worker is not None and not (yield from is_member(worker)):
        worker = None
    holder, seq = (yield Statement(JOIN_LANE, (session_lane(session_id), run))).rows[0]
    free = holder == run
    session = yield from opened_session(session_id, new.options, numbers)
    if new.person and session.streak:
        yield from person_spoke(session_id)
    leased = free and worker is not None
    ready, owner, options = free and not leased, (worker, token), session.options
    row = turn_row(run, new, options, seq, leased=leased, ready=ready, owner=owner)
    if not (yield Statement(_ADD_TURN, row)).changed:
        # Submitted by another meanwhile, or the number is taken: what we did to the lane is undone with us.
        raise Again
    if free and not leased:
        yield Notify(f"runs:{run}")
    state = RunState.RUNNING if leased else RunState.QUEUED
    turn = TurnRecord(new.scope, run, new.body, state, None, None, now, options=options or {})
    fence = Fence(run, 1, new.scope) if leased else None
    return Submitted(turn, session, now, fence, (yield from has_words(session_id)))


def submitted(command: SubmitTurn, run: int) -> Steps[Any]:
    """Submit a turn for a process."""
    scope = TurnScope(command.session_id, command.turn_id)
    digest, body = bytes.fromhex(command.digest), write_payload(command.ask, 2)
    new = NewTurn(scope=scope, digest=digest, body=body, options=command.options)
    return {"state": (yield from accepted(new, run, "")).turn.state}


def _told(session_id: str, result: Any) -> Steps[Any]:
    """Return a result with its text, if that is the text of a node and stored only there."""
    if result is None or "text_at" not in result:
        return result
    rows = (yield Statement(SESSION, (session_id,))).rows
    if not rows or rows[0][1] is None:
        return result
    last = (rows[0][1] << NODE_BITS) + result["text_at"]
    found = (yield Statement(NODES, (last - 1, last))).rows
    return {**result, "text": plain(found[0][1]).get("text", "") if found else ""}


def _known(new: NewTurn, row: tuple[Any, ...], now: Instant, token: str) -> Steps[Submitted]:
    """Return a turn that was submitted before, or refuse another input under its id."""
    if bytes(row[2] or b"")[:DIGEST_BYTES] != new.digest:
        raise TurnInputConflict(new.scope.session_id, new.scope.id)
    rows = (yield Statement(SESSION, (new.scope.session_id,))).rows
    ours = row[-1] == token and row[-3] == 1  # done by us already; the answer was lost
    fence = Fence(row[1], 1, new.scope) if ours else None
    stirred = yield from has_words(new.scope.session_id)
    return Submitted(turn_from(row), session_from(rows[0]), now, fence, stirred)


def _check_moved(fence: Fence, commit: TurnCommit) -> Steps[None]:
    """Take a head that we have moved already; refuse one that another has."""
    session = commit.session
    rows = (yield Statement(SESSION, (session.id,))).rows
    moved = bool(rows) and rows[0][1] == session.number and rows[0][2] >= commit.head
    if not moved or not (yield from is_ours(fence, session, commit.head)):
        raise SessionMoved(session.id)
