"""What every store promises about sessions: turns are accepted once, one at a time, and committed once."""

from __future__ import annotations

from pylash.durable.commands import CancelProcess, StartProcess
from pylash.durable.processes import Registration, SessionTurnInput, Success
from pylash.durable.runs import RunState, WorkerId
from pylash.durable.scopes import QueueDrainScope
from pylash.durable.sessions import Policy, SessionRecord, Writing
from pylash.durable.stores import Store, WaitOpening
from pylash.testing.laws.stores.subjects import (
    OVER,
    SubjectStore,
    Turning,
    claim_turns,
    ended,
    ending_with,
    history_of,
    ids,
    joined,
    new_turn,
    nodes_after,
    raced,
    record_of,
    recorded,
    run_of,
    running,
    session_of_id,
    submitted,
    turning,
    turns_waiting,
    wait_of,
)
from pylash.testing.laws.suites import Suite, equal, holds, refused, together

SESSIONS_AT_ONCE = 100
MANY_NODES = 4_200

# --- submitting ---


async def a_turn_is_accepted_once(store: SubjectStore) -> None:
    worker, new = await joined(store), new_turn(text=b"first", options={"model": "m"})
    one = await submitted(store, new, worker)
    two = await submitted(store, new, worker)
    equal(two.turn.run, one.turn.run, "the turn submitted again")
    equal((one.turn.body, two.turn.body), (b"first", b"first"), "what was asked")
    holds(one.fence is not None and two.fence is None, "only the first is ours to run")
    equal(one.session.options, {"model": "m"}, "the session's options")
    known = await store.sessions.turn(new.scope)
    holds(known is not None and known.run == one.turn.run, "the turn, looked up")


async def another_input_under_a_turns_id_is_refused(store: SubjectStore) -> None:
    new = new_turn(text=b"first")
    await submitted(store, new)
    other = new_turn(new.scope.session_id, new.scope.id, b"second")
    await refused(submitted(store, other), "turn_input_conflict", "another input")
    elsewhere = await submitted(store, new_turn(turn_id=new.scope.id, text=b"second"))
    equal(elsewhere.turn.body, b"second", "the same id in another session")


async def a_submission_repeated_after_a_lost_answer_is_the_same(store: SubjectStore) -> None:
    worker, new = await joined(store), new_turn()
    one = await store.sessions.submit(new, "the-token", worker)
    two = await store.sessions.submit(new, "the-token", worker)
    equal(two.fence, one.fence, "the fence")
    equal((two.stirred, two.session), (one.stirred, one.session), "the rest of the answer")


async def the_first_turn_is_leased_and_the_next_waits_in_order(store: SubjectStore) -> None:
    worker = await joined(store)
    first = await turning(store, worker=worker)
    session_id = first.session.id
    later = [new_turn(session_id) for _ in range(3)]
    for new in later:
        got = await submitted(store, new, worker)
        holds(got.fence is None and got.turn.state is RunState.QUEUED, "the next is queued")
    equal(await claim_turns(store, worker), [], "while the first has the lane")
    holder = first
    for new in later:
        await ended(store, holder)
        (holder,) = await turns_waiting(store, worker, session_id)
        equal(holder.turn.scope, new.scope, "the turn that is next")
        equal(await claim_turns(store, worker), [], "while it has the lane")
        current = await store.sessions.current(session_id)
        equal(current and current.run, holder.fence.run, "the turn that has the lane, looked up")
    await ended(store, holder)
    equal(await claim_turns(store, worker), [], "after the last")
    equal(await store.sessions.current(session_id), None, "the turn that has the lane, at the end")
    equal((await session_of_id(store, session_id)).revision, 4, "the turns committed")


async def a_process_that_plays_a_session_holds_its_lane(store: SubjectStore) -> None:
    worker = await joined(store)
    for forced in (False, True):
        session_id = f"session-{next(ids)}"
        played = SessionTurnInput(session_id, {}, {"model": "m"})
        start = StartProcess(Registration(id=session_id, input=played))
        player = await store.processes.start(start, worker)
        assert player is not None
        again = await store.processes.start(start, worker)
        holds(again is None, "the same start again is the same process")
        new = new_turn(session_id)
        got = await submitted(store, new, worker)
        holds(got.fence is None, "a turn waits for the process")
        equal(got.turn.options, {"model": "m"}, "the options of the session")
        equal(await claim_turns(store, worker), [], "while the process has the lane")
        await store.sessions.cancel(session_id, "why")
        equal((await record_of(store, session_id)).state.cancel, True, "a cancel of the session")
        if forced:
            await store.processes.perform(CancelProcess(session_id, "why", force=True))
        else:
            await store.processes.settle(player.fence, player.number, Success(1))
        (next_turn,) = await claim_turns(store, worker)
        equal((next_turn.turn.scope, next_turn.turn.cancel), (new.scope, False), "the next turn")
        await ended(store, next_turn)
        other = Registration(id=next_turn.session.id, input=SessionTurnInput(session_id, {"n": 2}))
        await refused(
            store.processes.start(StartProcess(other)), "process_conflict", "another start"
        )
    busy = await turning(store, worker=worker)
    late = Registration(id=busy.session.id, input=SessionTurnInput(busy.session.id, {}))
    begin = StartProcess(late)
    await refused(store.processes.start(begin), "session_exists", "a session with a running turn")
    await ended(store, busy)
    await refused(store.processes.start(begin), "session_exists", "a session with messages")


async def a_turn_that_nobody_can_run_here_is_anyones(store: SubjectStore) -> None:
    worker, gone = await joined(store), await joined(store, OVER)
    await store.workers.bury_the_dead(worker)
    got = await submitted(store, new_turn(), gone)
    holds(got.fence is None, "a worker that was given up owns nothing")
    (claim,) = await turns_waiting(store, worker, got.session.id)
    equal(claim.turn.scope, got.turn.scope, "the turn")


async def submitters_at_once_never_share_the_lane(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        session_id = f"session-{next(ids)}"
        clients = [one, other, one, other]
        got = await together(
            *(submitted(client, new_turn(session_id), worker) for client in clients)
        )
        leased = [each for each in got if each.fence is not None]
        equal(len(leased), 1, f"try {n}: turns that have the lane")
        equal({each.session.number for each in got}, {got[0].session.number}, f"try {n}: numbers")
        equal((await session_of_id(one, session_id)).number, got[0].session.number, "the session's")

    await raced(store, race)


async def the_same_turn_submitted_at_once_is_one(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        new = new_turn()
        got = await together(*(submitted(client, new, worker) for client in (one, other, one)))
        equal(len({each.turn.run for each in got}), 1, f"try {n}: runs")
        equal(len([each for each in got if each.fence]), 1, f"try {n}: owners")

    await raced(store, race)


# --- sessions ---


async def session_numbers_are_never_given_twice(store: SubjectStore) -> None:
    other: Store = await store.second() or store
    names = [f"session-{next(ids)}" for _ in range(SESSIONS_AT_ONCE)]

    async def opened(client: Store, session_id: str) -> SessionRecord:
        return await client.sessions.open(session_id, {"n": 1})

    clients = [store, other]
    made = await together(*(opened(clients[n % 2], name) for n, name in enumerate(names)))
    again = await together(*(opened(clients[n % 2], name) for n, name in enumerate(names, 1)))
    equal(len({session.number for session in made}), len(names), "the numbers")
    holds(all(session.number for session in made), "no number is 0")
    equal([one.number for one in again], [one.number for one in made], "opened again")


async def a_session_made_by_a_wait_gets_its_number(store: SubjectStore) -> None:
    session_id = f"session-{next(ids)}"
    await store.waits.open(WaitOpening(name=wait_of(session_id), title="Early"))
    equal(await store.sessions.get(session_id), None, "before its first turn")
    equal(await store.sessions.turns(session_id), [], "its turns")
    first = await turning(store, session_id)
    holds(first.session.number > 0, "a number of its own")
    await ended(store, first, b"one")
    equal(await history_of(store, session_id), [b"one"], "its history")
    equal(len(await store.waits.listed(session_id)), 1, "the wait")


async def options_are_those_of_the_last_opening(store: SubjectStore) -> None:
    session_id = f"session-{next(ids)}"
    equal((await store.sessions.open(session_id, {"a": 1})).options, {"a": 1}, "the first")
    equal((await store.sessions.open(session_id)).options, {"a": 1}, "without any")
    equal((await store.sessions.open(session_id, {"a": 2})).options, {"a": 2}, "the last")
    equal((await session_of_id(store, session_id)).options, {"a": 2}, "looked up")
    await refused(_opened(store, " "), "session_id_invalid", "a blank id")


async def _opened(store: Store, session_id: str) -> SessionRecord:
    return await store.sessions.open(session_id)


# --- recording ---


async def nodes_behind_the_head_are_seen_by_their_turn_alone(store: SubjectStore) -> None:
    first = await turning(store)
    writing = Writing(entries=(recorded("llm"),), nodes=nodes_after(first.session, b"a", b"b"))
    await store.sessions.record(first.fence, first.session, writing)
    equal(await history_of(store, first.session.id), [], "what others see")
    resumed = (await store.sessions.resume([first.fence.run]))[first.fence.run]
    equal(resumed.nodes, {1: b"a", 2: b"b"}, "what its next owner gets")
    equal(set(resumed.entries), {"llm"}, "what was recorded")
    equal(await store.sessions.uncommitted(first.session), {1: b"a", 2: b"b"}, "behind the head")
    await ended(store, first, b"a", b"b", b"c")
    equal(await history_of(store, first.session.id), [b"a", b"b", b"c"], "after the commit")


async def a_place_is_written_once(store: SubjectStore) -> None:
    first = await turning(store)
    for body in (b"first", b"second"):
        writing = Writing(nodes=nodes_after(first.session, body))
        await store.sessions.record(first.fence, first.session, writing)
    await ended(store, first, b"third")
    equal(await history_of(store, first.session.id), [b"first"], "the node")


async def what_another_turn_left_behind_the_head_is_nobodys(store: SubjectStore) -> None:
    # A turn in a process that was ended by force leaves nodes that were never committed.
    process = await running(store)
    session = await store.sessions.open(f"session-{next(ids)}")
    left = Writing(nodes=nodes_after(session, b"x", b"y", b"z"))
    await store.sessions.record(process.fence, session, left)
    await store.processes.settle(process.fence, process.number, Success(None))
    first = await turning(store, session.id)
    resumed = (await store.sessions.resume([first.fence.run]))[first.fence.run]
    equal(resumed.nodes, {}, "what the next turn gets")
    await ended(store, first, b"a")
    equal(await history_of(store, session.id), [b"a"], "the history")
    second = await turning(store, session.id)
    await ended(store, second, b"b", b"c")
    equal(await history_of(store, session.id), [b"a", b"b", b"c"], "and what follows")
    again = await running(store)
    await store.sessions.record(again.fence, session, left)
    equal(await history_of(store, session.id), [b"a", b"b", b"c"], "what is committed stays")


async def what_a_live_turn_wrote_is_not_taken_from_it(store: SubjectStore) -> None:
    session = await store.sessions.open(f"session-{next(ids)}")
    one, other = await running(store), await running(store)
    for process, body in ((one, b"one"), (other, b"other")):
        writing = Writing(nodes=nodes_after(session, body))
        await store.sessions.record(process.fence, session, writing)
    turn = (await turning(store)).turn
    late = ended(store, Turning(turn, session, other.fence), b"other", settle=False)
    await refused(late, "session_moved", "the commit of whom the place is not")
    await ended(store, Turning(turn, session, one.fence), b"one", settle=False)
    equal(await history_of(store, session.id), [b"one"], "the history")


async def a_large_outcome_is_kept_with_its_turn(store: SubjectStore) -> None:
    first = await turning(store)
    large = b'"' + b"x" * 1_200_000 + b'"'
    await store.sessions.record(
        first.fence, first.session, Writing(entries=(recorded("tool", large),))
    )
    entry = await store.journal.entry(first.fence.run, "tool")
    holds(entry is not None and entry.outcome == large, "the outcome")


async def a_stale_owner_writes_nothing(store: SubjectStore) -> None:
    gone, me = await joined(store, OVER), await joined(store)
    late = await turning(store, worker=gone)
    session_id = late.session.id
    await store.sessions.enqueue(session_id, "k", "words", Policy.NOW)
    await store.workers.bury_the_dead(me)
    (now,) = await turns_waiting(store, me, session_id)
    writing = Writing(
        entries=(recorded("late"),),
        nodes=nodes_after(late.session, b"late"),
        envs=(("e" * 64, b"late"),),
        attachments=(("a" * 64, b"late"),),
    )
    record = _recording(store, late, writing)
    await refused(record, "lease_lost", "its record")
    await refused(ended(store, late, b"late", writing=writing), "lease_lost", "its commit")
    await refused(_take(store, late, writing), "lease_lost", "its taking of words")
    equal(await history_of(store, session_id), [], "the history")
    resumed = (await store.sessions.resume([now.fence.run]))[now.fence.run]
    equal((resumed.nodes, resumed.entries), ({}, {}), "what it left")
    equal(await store.envs.get("e" * 64), None, "an environment")
    equal(await store.attachments.get("a" * 64), None, "an attachment")
    equal(len(await store.sessions.queued(session_id)), 1, "the words")
    await ended(store, now, b"mine")
    equal(await history_of(store, session_id), [b"mine"], "what the owner wrote")


async def _recording(store: Store, late: Turning, writing: Writing) -> None:
    await store.sessions.record(late.fence, late.session, writing)


async def _take(store: Store, late: Turning, writing: Writing) -> object:
    return await store.sessions.take(late.fence, late.session, lambda _: writing)


# --- committing ---


async def a_commit_moves_the_head(store: SubjectStore) -> None:
    first = await turning(store)
    await ended(store, first, b"a", b"b")
    session = await session_of_id(store, first.session.id)
    equal((session.head, session.revision, session.calls), (2, 1, 1), "head, revision, calls")
    equal(session.usage, {"tokens": 7}, "what it used")
    results = await store.sessions.results([first.turn.id])
    equal(results, {first.turn.id: (RunState.COMPLETED, {"status": "completed"})}, "the result")
    equal([turn.run for turn in await store.sessions.turns(session.id)], [first.turn.run], "turns")
    equal(await store.sessions.nodes(session.path[-1], 1), [b"b"], "after a place")


async def a_long_history_is_read_whole_and_in_order(store: SubjectStore) -> None:
    first = await turning(store)
    bodies = [str(n).encode() for n in range(MANY_NODES)]
    await ended(store, first, *bodies)
    session = await session_of_id(store, first.session.id)
    equal(await store.sessions.nodes(session.path[-1]), bodies, "all of it")
    equal(await store.sessions.nodes(session.path[-1], 5), bodies[5:], "after a place")


async def a_commit_repeated_after_a_lost_answer_changes_nothing(store: SubjectStore) -> None:
    worker = await joined(store)
    first = await turning(store, worker=worker)
    await submitted(store, new_turn(first.session.id), worker)
    commit = ending_with(first, b"a")
    await store.sessions.commit(first.fence, commit)
    (second,) = await turns_waiting(store, worker, first.session.id)
    await store.sessions.commit(first.fence, commit)
    equal((await run_of(store, second)).state, RunState.RUNNING, "the turn after it")
    await ended(store, second, b"b")
    await store.sessions.commit(first.fence, commit)
    session = await session_of_id(store, first.session.id)
    equal((session.head, session.revision), (2, 2), "the head")
    equal(await history_of(store, session.id), [b"a", b"b"], "the history")


async def a_moved_head_is_refused(store: SubjectStore) -> None:
    first = await turning(store)
    await ended(store, first, b"a")
    process = await running(store)
    stale = Turning(first.turn, first.session, process.fence)
    await refused(ended(store, stale, b"b", settle=False), "session_moved", "an old head")
    fresh = Turning(first.turn, await session_of_id(store, first.session.id), process.fence)
    await ended(store, fresh, b"b", settle=False)
    await ended(store, fresh, b"b", settle=False)  # the answer was lost
    equal(await history_of(store, first.session.id), [b"a", b"b"], "the history")
    after = await turning(store, first.session.id)
    await ended(store, after, b"c")
    await ended(store, fresh, b"b", settle=False)  # the answer was lost for long
    equal((await session_of_id(store, first.session.id)).head, 3, "the head")


async def committers_at_once_do_not_lose_a_node(store: SubjectStore) -> None:
    # Turns of processes begin at one head: one of them is committed, the others are refused.
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        session = await one.sessions.open(f"session-{next(ids)}")
        ready = await turning(one, worker=worker)
        fences = [(await running(one, worker)).fence for _ in range(2)]

        async def commit(client: Store, number: int) -> bool:
            mine = Turning(ready.turn, session, fences[number])
            try:
                await ended(client, mine, b"%d" % number, settle=False)
            except Exception as error:  # noqa: BLE001 - looked at below
                equal(getattr(error, "code", error), "session_moved", f"try {n}: the refusal")
                return False
            return True

        won = await together(commit(one, 0), commit(other, 1))
        equal(sum(won), 1, f"try {n}: commits")
        said = [b"%d" % won.index(True)]
        equal(await history_of(one, session.id), said, f"try {n}: the history")

    await raced(store, race)


async def a_fresh_commit_drops_what_was_written(store: SubjectStore) -> None:
    first = await turning(store)
    writing = Writing(nodes=nodes_after(first.session, b"x", b"y"))
    await store.sessions.record(first.fence, first.session, writing)
    await ended(store, first, b"a", fresh=True)
    second = await turning(store, first.session.id)
    await ended(store, second, b"b")
    equal(await history_of(store, first.session.id), [b"a", b"b"], "the history")


async def a_session_without_its_row_is_no_trouble_to_others(store: SubjectStore) -> None:
    first, other = await turning(store), await turning(store)
    await store.sessions.delete(first.session.id)
    resumed = await store.sessions.resume([first.fence.run, other.fence.run])
    equal(set(resumed), {other.fence.run}, "the turns that can go on")
    drain = QueueDrainScope(first.session.id, "unknown")
    equal(await store.sessions.turn(drain), None, "a turn that never was")


# --- bytes ---


async def an_attachment_is_kept_under_its_hash(store: SubjectStore) -> None:
    digest = "a" * 64
    equal(await store.attachments.get(digest), None, "before it is put")
    for body in (bytes(range(256)), bytes(range(256)), b"another"):
        await store.attachments.put(digest, body)
    equal(await store.attachments.get(digest), bytes(range(256)), "the attachment")
    equal(await store.attachments.get("b" * 64), None, "another")


async def an_attachment_is_there_for_others(store: SubjectStore) -> None:
    other = await store.second()
    if other is None:
        return
    await store.attachments.put("c" * 64, b"")
    await store.attachments.put("d" * 64, b"x" * 2_000_000)
    equal(await other.attachments.get("c" * 64), b"", "an empty one, elsewhere")
    equal(await other.attachments.get("d" * 64), b"x" * 2_000_000, "a large one, elsewhere")


async def attachments_put_at_once_are_one(store: SubjectStore) -> None:
    other: Store = await store.second() or store

    async def put(client: Store) -> None:
        await client.attachments.put("e" * 64, b"body")

    await together(*(put(client) for client in (store, other) * 5))
    equal(await other.attachments.get("e" * 64), b"body", "the attachment")


async def a_turn_writes_its_bytes_with_its_effects(store: SubjectStore) -> None:
    first = await turning(store)
    bodies = Writing(envs=(("1" * 64, b"env"),), attachments=(("2" * 64, b"bytes"),))
    for _ in range(2):
        await store.sessions.record(first.fence, first.session, bodies)
    equal(await store.envs.get("1" * 64), b"env", "the environment")
    equal(await store.attachments.get("2" * 64), b"bytes", "the attachment")


TURN_LAWS = (
    a_turn_is_accepted_once,
    another_input_under_a_turns_id_is_refused,
    a_submission_repeated_after_a_lost_answer_is_the_same,
    the_first_turn_is_leased_and_the_next_waits_in_order,
    a_process_that_plays_a_session_holds_its_lane,
    a_turn_that_nobody_can_run_here_is_anyones,
    submitters_at_once_never_share_the_lane,
    the_same_turn_submitted_at_once_is_one,
    session_numbers_are_never_given_twice,
    a_session_made_by_a_wait_gets_its_number,
    options_are_those_of_the_last_opening,
    nodes_behind_the_head_are_seen_by_their_turn_alone,
    a_place_is_written_once,
    what_another_turn_left_behind_the_head_is_nobodys,
    what_a_live_turn_wrote_is_not_taken_from_it,
    a_large_outcome_is_kept_with_its_turn,
    a_stale_owner_writes_nothing,
    a_commit_moves_the_head,
    a_long_history_is_read_whole_and_in_order,
    a_commit_repeated_after_a_lost_answer_changes_nothing,
    a_moved_head_is_refused,
    committers_at_once_do_not_lose_a_node,
    a_fresh_commit_drops_what_was_written,
    a_session_without_its_row_is_no_trouble_to_others,
)

ATTACHMENT_STORE = Suite[SubjectStore](
    "attachment_store",
    (
        an_attachment_is_kept_under_its_hash,
        an_attachment_is_there_for_others,
        attachments_put_at_once_are_one,
        a_turn_writes_its_bytes_with_its_effects,
    ),
)
