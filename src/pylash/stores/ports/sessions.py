"""Sessions in SQL: turns are submitted, write nodes while they run, and commit.

Rule 1. The row of a turn is the row of its run. It joins the session's lane in the transaction that submits it.
Rule 2. Nodes are numbered within their session: ``number << 24 | place``. A place is written once.
Rule 3. A commit is one transaction: it writes the remaining nodes, moves the head from where the turn began, ends
        the run and passes the lane on. A repetition after a lost answer changes nothing.
Rule 4. A fork copies no node: it begins with nodes of another line, which are kept for as long as the fork exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from pylash.durable.commands import AwaitTurn
from pylash.durable.runs import Fence, JournalEntry, RunState, WorkerId
from pylash.durable.scopes import TurnScope, scope_text
from pylash.durable.sessions import (
    SAID,
    DeleteReport,
    NewTurn,
    Policy,
    Queued,
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
    reading,
    store_time,
)
from pylash.stores.ports import process_log as log
from pylash.stores.ports import session_reads as reads
from pylash.stores.ports.numbers import RunPort
from pylash.stores.ports.session_deletion import SessionDeletion
from pylash.stores.ports.turn_submission import hold_lane, submit_turn
from pylash.stores.tables import effects, lanes, queue, runs
from pylash.stores.tables import sessions as table
from pylash.stores.tables.packed_effects import NODE_BITS, effects_in
from pylash.stores.tables.processes import watch_process
from pylash.stores.tables.turn_events import FORGET_EVENTS
from pylash.values.canonical import write, write_payload
from pylash.values.turn_errors import (
    SessionExists,
    SessionMoved,
    SessionUnknown,
    TurnUnknown,
)

_SAID = "select token from pylash_said where session = ? and key = ?"

_LOCK_MESSAGES = queue.MESSAGES + " {update}"

_SHARE_SOURCE = "select head from pylash_lanes where lane = ? and number = ? {share}"


class SqlSessions(RunPort):
    """Sessions in SQL."""

    def submit(
        self, new: NewTurn, token: str, worker: WorkerId | None = None
    ) -> Awaitable[Submitted]:
        """Accept a turn, once; worker owns it at once if its session is free."""

        def steps() -> Steps[Submitted]:
            return (yield from submit_turn(new, self._draw(), token, worker))

        # Also if there is a slot for it: turns of a session begin in the order of their submission.
        flow = f"session:{new.scope.session_id}"
        return self.driver.run(Operation("submit", steps, flow=flow))

    @operation()
    def open(self, session_id: str, options: Any = None) -> Steps[SessionRecord]:
        """Return a session; create it if it is missing."""
        return (yield from table.open_session(checked_session(session_id), options))

    @operation()
    def hold(self, fence: Fence, session_id: str) -> Steps[None]:
        """Let the run of a process hold a session's lane until it ends; refuse a session that has other turns."""
        yield from runs.lock_fenced(fence, alone=True)
        yield from hold_lane(checked_session(session_id), fence.run, fence)
        yield from watch_process(fence.scope.id)

    @operation()
    def record(self, fence: Fence, session: SessionRecord, writing: Writing) -> Steps[None]:
        """Write rows of a turn, all or nothing; rows that exist already stay."""
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
        others = [*waiting, *(run for _, run in attached)]
        others += [] if following is None else [following]
        if not (yield from runs.lock_owned(fence, others, token)):
            return
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
            for run in waiting:
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
        self,
        fence: Fence,
        entry: JournalEntry,
        command: AwaitTurn,
        wrap: Callable[[Any], bytes],
        notes: Sequence[JournalEntry] = (),
    ) -> Steps[JournalEntry]:
        """Open a wait for a turn as an effect of a run, or close it if the turn has ended."""
        scope = TurnScope(command.session_id, command.turn_id)
        text, turn = scope_text(scope), (yield from reads.find_turn(scope))
        if turn is None:
            raise TurnUnknown(command.session_id, command.turn_id)
        yield from runs.lock_owned(fence, [turn.run])
        yield from effects.record_notes(fence, notes)
        known = yield from effects.find_effect(fence.run, entry.key)
        if known is not None and known.size:
            return known
        if known is None:
            known = yield from effects.open_effect(fence, entry, f"turn:{text}")
        ended = yield from reads.turn_results([text])
        if text not in ended:
            return known
        state, result = ended[text]
        outcome = wrap({"state": state, "result": result})
        now = yield from store_time()
        return (yield from effects.close_effect(fence, known, outcome, now))

    # --- the queue ---

    def enqueue(self, session_id: str, key: str, body: Any, policy: Policy) -> Awaitable[bool]:
        """Queue a person's message, once, and wake or start the turn that takes it; False if the key is known."""
        checked_session(session_id)
        token = self._entropy(8).hex()
        steps = partial(self._enqueue, session_id, (key, token), body, policy)
        # Not in the flow of the session's turns: it may interrupt the running one.
        return self.driver.run(Operation("_enqueue", steps, flow=f"queue:{session_id}"))

    def _enqueue(
        self, session_id: str, key: tuple[str, str], body: Any, policy: Policy
    ) -> Steps[bool]:
        interrupts = policy is Policy.INTERRUPT
        waiting = (yield from queue.waiters_of(session_id)) if interrupts else []
        holder = yield from lanes.lane_holder(session_lane(session_id))
        locked = yield from runs.lock_runs(waiting if holder is None else [*waiting, holder])
        holder = yield from queue.lock_lane(session_id, locked)
        if known := (yield Statement(_SAID, (session_id, key[0]))).rows:
            # The same token: an earlier attempt queued the message, and its answer was lost.
            return bool(known[0][0] == key[1])
        if interrupts and holder is not None:
            yield from queue.supersede_waits(session_id, waiting)
        yield Statement(table.REMEMBER_KEY, (session_id, *key))
        yield from queue.add_message(session_id, f"{SAID}{key[0]}", 0, body, policy)
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

        Only a turn that ``begins`` takes messages for the next turn.
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
        """Take messages. ``tried`` has those that an earlier attempt took, whose answer was lost."""
        yield from runs.lock_fenced(fence)
        if tried and (yield from table.is_written(fence, session, tried[-1][1])):
            return tried[-1][0]  # messages that arrived meanwhile are left for the next call
        rows = (yield Statement(_LOCK_MESSAGES, (session.id,))).rows
        queued = [queue.queued_from(row) for row in rows]
        words = [one for one in queued if begins or one.policy is not Policy.NEXT_TURN]
        writing = make(words)
        tried.append((words, writing))
        yield from table.write_turn(fence, session, writing)
        for one in words:
            yield Statement(queue.TAKE_MESSAGE, (session.id, one.source, one.sequence))
        return words

    def take_back(self, session_id: str, keys: Sequence[str]) -> Awaitable[list[str]]:
        """Remove queued messages of a person, if no turn has taken them; return the keys of the removed ones."""
        return self._take_back(session_id, [f"{SAID}{key}" for key in keys], {})

    @operation()
    def _take_back(
        self, session_id: str, sources: Sequence[str], tried: dict[str, None]
    ) -> Steps[list[str]]:
        """Remove messages. ``tried`` has those that earlier attempts removed."""
        tried.update(dict.fromkeys((yield from queue.take_back(session_id, sources))))
        return [source.removeprefix(SAID) for source in tried]

    # --- cancels, forks, deletions ---

    def cancel(self, session_id: str, reason: str) -> Awaitable[TurnRecord | None]:
        """Request the cancellation of the turn that holds the session's lane; return it, if there is one."""
        return self._cancel(session_id, reason, [])

    @operation()
    def _cancel(self, session_id: str, reason: str, tried: list[int]) -> Steps[TurnRecord | None]:
        """Cancel a turn. ``tried`` has the run that an earlier attempt cancelled."""
        holder = tried[-1] if tried else (yield from lanes.lane_holder(session_lane(session_id)))
        if holder is None:
            return None
        yield from runs.lock_runs([holder])
        # After an earlier attempt that cancelled it, the lane may be held by a different turn.
        agent = yield from reads.process_of_run(holder)
        was_requested = agent is not None or (yield from reads.is_cancel_requested(holder))
        if not (tried and was_requested):
            if (yield from lanes.lane_holder(session_lane(session_id))) != holder:
                tried.clear()
                raise Again
            tried.append(holder)
            if agent is None:
                yield from runs.hurry_turn(holder, reason)
        if agent is not None:  # done once, also if it is requested again
            yield from log.request_cancel(agent, reason)
        return (yield from reads.turn_of_run(holder))

    def fork(
        self,
        source: SessionRecord,
        new_id: str,
        head: int,
        counts: tuple[int, int],
        *,
        player: int | None = None,
    ) -> Awaitable[None]:
        """Create a session that begins with the nodes of another one, up to a place.

        ``counts`` are the turns and the model calls up to there. ``player`` is the run of a process that holds the
        lane of the new session, which may have been opened before, and is empty.
        """
        return self._fork(source, new_id, head, counts, player, [])

    @operation()
    def _fork(
        self,
        source: SessionRecord,
        new_id: str,
        head: int,
        counts: tuple[int, int],
        player: int | None,
        tried: list[bool],
    ) -> Steps[None]:
        known = yield from table.find_session(new_id)
        origin = (*source.origin, Segment(source.number, head))
        if known is not None:
            if known.origin == origin and (tried or known.head == 0):
                return  # an earlier attempt was committed and its answer lost
            is_held = (yield from lanes.lock_lane(session_lane(new_id))) == player
            if player is None or not is_held or known.head or known.origin:
                raise SessionExists(new_id)
        line = (session_lane(source.id), source.number)
        known_head = (yield Statement(_SHARE_SOURCE, line)).rows
        if not known_head or known_head[0][0] < head:
            raise SessionUnknown(source.id)  # deleted meanwhile, and its nodes are being deleted
        tried.append(True)
        if known is None:
            yield from table.add_session(new_id, counts)
        else:
            yield from lanes.set_counts(session_lane(new_id), counts)
        yield Statement(table.ADD_ORIGIN, (new_id, msgspec.json.encode(origin)))
        if source.options:
            forked = yield from table.find_session(new_id)
            assert forked is not None
            yield from table.set_options(forked, source.options)
        for number in sorted({segment.number for segment in origin}):
            yield Statement(table.ADD_FORK, (number, new_id))

    def delete(self, session_id: str) -> Awaitable[DeleteReport]:
        """Remove a session with its turns, nodes, waits and queued messages."""
        return SessionDeletion(self.driver).delete(session_id)

    # --- reading ---

    get = reading(table.find_session)
    nodes = reading(table.nodes_of)
    uncommitted = reading(table.uncommitted_nodes)
    turn = reading(reads.find_turn)
    turns = reading(reads.turns_of)
    listed = reading(reads.list_sessions)
    played = reading(reads.played_turn)
    current = reading(reads.current_turn)
    resume = reading(reads.resume_turns)
    queued = reading(reads.queued_messages)
    blocked = reading(reads.blocked_run)
    asked_to_end = reading(reads.is_cancel_requested)
    results = reading(reads.turn_results)
    states = reading(reads.turn_states)


def _dependents(scope: str, commit: TurnCommit) -> Steps[tuple[list[int], list[Any]]]:
    """Return the runs that wait for a turn, and the subagents that it leaves running, with their runs.

    A turn that completes has waited for its subagents. A cancelled turn, or one that discards its nodes, may not have.
    """
    if not commit.settle:
        return [], []
    waiting = yield from effects.waiting_runs(f"turn:{scope}")
    left = commit.fresh or commit.state is RunState.CANCELLED
    return waiting, (yield Statement(log.ATTACHED, (scope,))).rows if left else []


def _abandon(fence: Fence, commit: TurnCommit, subagents: Sequence[str]) -> Steps[None]:
    """End the waits of a cancelled turn, and cancel the subagents that it leaves running."""
    if commit.state is RunState.CANCELLED:
        yield from log.end_waits(fence.run)
    for process in subagents:
        yield from log.request_cancel(process, "the turn that asked it ended")


def _check_moved(fence: Fence, commit: TurnCommit) -> Steps[None]:
    """Accept a head that an earlier attempt of this commit moved; raise SessionMoved if another turn moved it."""
    session, now = commit.session, (yield from table.find_session(commit.session.id))
    is_moved = now is not None and now.number == session.number and now.head >= commit.head
    if not is_moved or not (yield from table.is_ours(fence, session, commit.head)):
        raise SessionMoved(session.id)
