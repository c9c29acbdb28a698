"""What every store promises about forks and deletions of sessions."""

from __future__ import annotations

import hashlib

from pylash.durable.commands import (
    AwaitTurn,
    GrantHandle,
    StartProcess,
)
from pylash.durable.processes import (
    Aborted,
    Registration,
    SessionRef,
    SessionTurnInput,
)
from pylash.durable.runs import RunState, WorkerId
from pylash.durable.scopes import TurnScope
from pylash.durable.sessions import Policy, SessionRecord, Writing
from pylash.durable.stores import Store, WaitOpening
from pylash.durable.triggers import Subscription
from pylash.durable.waits import UNKNOWN_OR_REVOKED, Ok
from pylash.testing.laws.stores.queues import said, waiting, waker, woken
from pylash.testing.laws.stores.subjects import (
    SubjectStore,
    Turning,
    asked,
    claim_processes,
    claim_turns,
    effect,
    ended,
    fresh_answer,
    history_of,
    ids,
    joined,
    new_turn,
    nodes_after,
    raced,
    record_of,
    recorded,
    running,
    session_of_id,
    started,
    submitted,
    turning,
    wait_of,
    work,
)
from pylash.testing.laws.suites import equal, holds, refused, together
from pylash.values.canonical import encode


async def _talked(store: Store, *bodies: bytes, session_id: str | None = None) -> SessionRecord:
    """Return a session in which turns said bodies, one each."""
    session_id = session_id or f"session-{next(ids)}"
    for body in bodies:
        await ended(store, await turning(store, session_id), body)
    return await session_of_id(store, session_id)


async def _forked(store: Store, source: SessionRecord, head: int | None = None) -> str:
    new_id = f"session-{next(ids)}"
    at = source.head if head is None else head
    await store.sessions.fork(source, new_id, at, (at, at))
    return new_id


# --- forks ---


async def a_fork_begins_with_the_nodes_of_its_origin(store: SubjectStore) -> None:
    source = await _talked(store, b"a", b"b", b"c")
    fork = await _forked(store, source, 2)
    equal(await history_of(store, fork), [b"a", b"b"], "the fork")
    await _talked(store, b"x", session_id=fork)
    await _talked(store, b"d", session_id=source.id)
    equal(await history_of(store, fork), [b"a", b"b", b"x"], "what the fork says")
    equal(await history_of(store, source.id), [b"a", b"b", b"c", b"d"], "what its origin says")
    session = await session_of_id(store, fork)
    equal((session.revision, session.calls, session.head), (3, 3, 1), "its counts")
    own = await store.sessions.nodes(session.path[-1])
    equal(own, [b"x"], "it has copied nothing")
    equal(len(await store.sessions.turns(fork)), 3, "its turns")
    again = await _forked(store, session)
    equal(await history_of(store, again), [b"a", b"b", b"x"], "a fork of the fork")


async def a_fork_to_an_id_that_is_taken_is_refused(store: SubjectStore) -> None:
    source, other = await _talked(store, b"a"), await _talked(store, b"b")
    work = store.sessions.fork(source, other.id, 1, (1, 1))
    await refused(work, "session_exists", "the id of another session")
    fork = await _forked(store, source)
    await store.sessions.fork(source, fork, 1, (1, 1))  # the answer was lost
    await _talked(store, b"c", session_id=fork)
    work = store.sessions.fork(source, fork, 1, (1, 1))
    await refused(work, "session_exists", "a fork that was used")
    equal(await history_of(store, fork), [b"a", b"c"], "the fork")


async def a_fork_shares_only_what_is_committed(store: SubjectStore) -> None:
    source = await _talked(store, b"a")
    mine = await turning(store, source.id)
    left = Writing(nodes=nodes_after(mine.session, b"open"))
    await store.sessions.record(mine.fence, mine.session, left)
    fork = await _forked(store, source)
    equal(await history_of(store, fork), [b"a"], "the fork")
    beyond = store.sessions.fork(source, f"session-{next(ids)}", 2, (1, 1))
    await refused(beyond, "session_unknown", "nodes behind the head")


async def a_fork_survives_its_origin(store: SubjectStore) -> None:
    source = await _talked(store, b"a", b"b")
    fork = await _forked(store, source)
    report = await store.sessions.delete(source.id)
    equal((report.kept, report.messages), (2, 0), "nodes kept, nodes removed")
    equal(await history_of(store, fork), [b"a", b"b"], "the fork")
    equal(len(await store.sessions.turns(fork)), 2, "its turns")
    reborn = await _talked(store, b"new", session_id=source.id)
    equal(await history_of(store, reborn.id), [b"new"], "its origin's next life")
    equal(await history_of(store, fork), [b"a", b"b"], "the fork, still")
    gone = await store.sessions.delete(fork)
    equal((gone.kept, gone.messages), (0, 0), "the fork had no nodes of its own")
    equal(await store.sessions.nodes(source.path[-1]), [], "nobody needs the nodes any more")
    equal(await history_of(store, reborn.id), [b"new"], "the next life goes on")


async def what_came_after_a_fork_goes_with_its_origin(store: SubjectStore) -> None:
    source = await _talked(store, b"a", b"b", b"c")
    short, long = await _forked(store, source, 1), await _forked(store, source, 2)
    report = await store.sessions.delete(source.id)
    equal((report.turns, report.messages, report.kept), (1, 1, 2), "turns, nodes removed, kept")
    equal(await store.sessions.nodes(source.path[-1]), [b"a", b"b"], "what the longer one keeps")
    await store.sessions.delete(long)
    equal(await store.sessions.nodes(source.path[-1]), [b"a"], "what the shorter one keeps")
    equal(await history_of(store, short), [b"a"], "the shorter one")
    equal(len(await store.sessions.turns(short)), 1, "its turns")
    await store.sessions.delete(short)
    equal(await store.sessions.nodes(source.path[-1]), [], "nobody needs the nodes any more")


async def a_fork_of_what_is_being_deleted_is_whole_or_refused(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, _: WorkerId, n: int) -> None:
        source = await _talked(one, b"a", b"b")
        new_id = f"session-{next(ids)}"

        async def fork() -> bool:
            try:
                await one.sessions.fork(source, new_id, 2, (2, 2))
            except Exception as error:  # noqa: BLE001 - looked at below
                equal(getattr(error, "code", error), "session_unknown", f"try {n}: the refusal")
                return False
            return True

        async def delete() -> bool:
            await other.sessions.delete(source.id)
            return True

        forked, _deleted = await together(fork(), delete())
        if forked:
            equal(await history_of(one, new_id), [b"a", b"b"], f"try {n}: the fork")
        else:
            equal(await one.sessions.get(new_id), None, f"try {n}: the fork")

    await raced(store, race)


# --- deletions ---


async def a_deletion_leaves_nothing_and_says_what_was_there(store: SubjectStore) -> None:
    worker = await joined(store)
    session = await _talked(store, b"a", b"b")
    session_id, ref = session.id, SessionRef(session.id)
    mine = await turning(store, session_id, worker)
    writing = Writing(entries=(recorded("llm"),), nodes=nodes_after(mine.session, b"c"))
    await store.sessions.record(mine.fence, mine.session, writing)
    queued = await submitted(store, new_turn(session_id), worker)
    await waiting(store, mine)
    await said(store, session_id, "words")
    await woken(store, await waker(store, session_id))
    await store.processes.perform(GrantHandle(ref, await started(store), "mine"))
    await store.triggers.register(
        Subscription(
            key=f"sub-{next(ids)}",
            type="push",
            source="s",
            template=work(""),
            session_id=session_id,
        )
    )
    report = await store.sessions.delete(session_id)
    equal((report.turns, report.messages), (4, 3), "turns and messages")
    equal((report.waits, report.queued, report.handles), (1, 2, 1), "waits, words, handles")
    equal((report.subscriptions, report.kept), (1, 0), "subscriptions, and what was kept")
    equal(await store.sessions.get(session_id), None, "the session")
    equal(await store.sessions.turns(session_id), [], "its turns")
    for turn in (mine.turn, queued.turn):  # whoever waits for them still hears how they ended
        ended_so = await store.sessions.turn(turn.scope)
        equal(ended_so and ended_so.state, RunState.CANCELLED, "a turn that had not ended")
    equal(await store.sessions.uncommitted(mine.session), {}, "its nodes")
    equal(await store.sessions.nodes(session.path[-1]), [], "its history")
    equal(await store.journal.entry(mine.turn.run, "llm"), None, "its effects")
    equal(await store.sessions.queued(session_id), [], "its queue")
    equal(await store.processes.grants(ref), [], "its handles")
    equal(await store.triggers.listed(session_id), [], "its subscriptions")
    equal(await store.waits.listed(session_id), [], "its waits")
    equal(await claim_turns(store, worker), [], "what is left to run")


async def a_deletion_fences_who_runs_its_turn(store: SubjectStore) -> None:
    mine = await turning(store)
    await store.sessions.delete(mine.session.id)
    await refused(ended(store, mine, b"late"), "lease_lost", "its commit")
    again = await turning(store, mine.session.id)
    await refused(ended(store, mine, b"late"), "lease_lost", "its commit, later")
    await ended(store, again, b"new")
    equal(await history_of(store, mine.session.id), [b"new"], "the history")


async def a_deleted_id_can_be_used_again(store: SubjectStore) -> None:
    worker = await joined(store)
    session_id, turn_ids = f"session-{next(ids)}", ("t1", "t2", "t3")
    for text in (b"first life", b"second life"):
        got = []
        for turn_id in turn_ids:  # the first is committed, the second runs, the third waits
            new = new_turn(session_id, turn_id, text, options={"life": text.decode()})
            got.append(await submitted(store, new, worker))
            if turn_id == "t1":
                assert got[0].fence is not None
                one = Turning(got[0].turn, got[0].session, got[0].fence)
                await ended(store, one, text)
        equal([one.fence is not None for one in got], [True, True, False], f"{text!r}: owners")
        equal(await history_of(store, session_id), [text], "the history")
        session = await session_of_id(store, session_id)
        equal((session.revision, session.calls), (1, 1), "its counts")
        equal(session.options, {"life": text.decode()}, "its options")
        equal(await said(store, session_id, "hi", key="k"), True, "words under a key")
        await store.sessions.delete(session_id)


async def a_deleted_id_of_a_forked_session_can_be_used_again(store: SubjectStore) -> None:
    worker, session_id = await joined(store), f"session-{next(ids)}"
    lives = []
    for text in (b"first life", b"second life"):
        got = await submitted(store, new_turn(session_id, "t1", text), worker)
        assert got.fence is not None
        await ended(store, Turning(got.turn, got.session, got.fence), text)
        lives.append(await _forked(store, await session_of_id(store, session_id)))
        await store.sessions.delete(session_id)
    equal(
        [await history_of(store, fork) for fork in lives], [[b"first life"], [b"second life"]], ""
    )
    (turn,) = await store.sessions.turns(lives[0])
    equal((turn.scope.id, turn.body), ("t1", b"first life"), "the turn of the first")


async def a_deletion_revokes_the_waits_and_the_next_life_has_its_own(store: SubjectStore) -> None:
    mine = await turning(store)
    name = await waiting(store, mine)
    generation = (await session_of_id(store, mine.session.id)).generation
    await store.sessions.delete(mine.session.id)
    late = await store.waits.resolve(name, Ok(1), fresh_answer())
    equal(late.status, UNKNOWN_OR_REVOKED.status, "an answer to the first life")
    again = await turning(store, mine.session.id)
    equal(again.session.generation, generation + 1, "the generation")
    live = wait_of(mine.session.id, generation=again.session.generation)
    await store.waits.open(WaitOpening(name=live, title="Again?"))
    equal(len(await store.waits.listed(mine.session.id)), 1, "the waits of the second life")
    equal((await store.waits.resolve(live, Ok(1), fresh_answer())).status, "accepted", "an answer")


async def a_deletion_wakes_whoever_waits_for_the_session(store: SubjectStore) -> None:
    # A process may wait for a wait that is named after a session's turn.
    mine = await turning(store)
    other = await turning(store)
    name = wait_of(mine.session.id)
    entry = recorded("wait", None)
    await store.waits.open_for(other.fence, entry, WaitOpening(name=name, title="Theirs"))
    await store.runs.park(other.fence, 0)
    await store.sessions.delete(mine.session.id)
    view = await store.runs.get(other.turn.scope)
    holds(view is not None and view.state is not RunState.WAITING, "it sleeps")


async def a_deletion_wakes_the_processes_that_wait_for_its_turns(store: SubjectStore) -> None:
    worker = await joined(store)
    mine = await turning(store, worker=worker)
    queued = await submitted(store, new_turn(mine.session.id))
    for turn in (mine.turn, queued.turn):
        process = await running(store, worker)
        command = AwaitTurn(mine.session.id, turn.scope.id)
        await store.sessions.watch(process.fence, effect(), command, encode)
        holds(await store.runs.park(process.fence, 0), "it waits")
    await store.sessions.delete(mine.session.id)
    claims = await claim_processes(store, worker)
    equal(len(claims), 2, "the processes that were woken")
    for claim, turn in zip(claims, (mine.turn, queued.turn), strict=True):
        command = AwaitTurn(mine.session.id, turn.scope.id)
        told = await store.sessions.watch(claim.fence, effect(), command, encode)
        holds(told.outcome is not None and b"was deleted" in told.outcome, "it is told why")


async def a_deletion_cancels_the_subagents_of_its_turns(store: SubjectStore) -> None:
    mine, other = await turning(store), await turning(store)
    asked_by = {}
    for turn in (mine, other):
        process = f"process-{next(ids)}"
        subagent = SessionTurnInput(process, {}, lanes=(turn.session.id,))
        await asked(store, turn.fence, StartProcess(Registration(id=process, input=subagent)))
        asked_by[turn.session.id] = process
    independent = await started(store)
    await store.sessions.delete(mine.session.id)
    for process, cancelled in (
        (asked_by[mine.session.id], True),
        (asked_by[other.session.id], False),
        (independent, False),
    ):
        record = await record_of(store, process)
        equal(record.state.cancel, cancelled, f"whether {process} was asked to end")


async def a_deletion_ends_the_subagent_whose_session_it_is(store: SubjectStore) -> None:
    chief = await running(store)
    process = f"process-{next(ids)}"
    subagent = SessionTurnInput(process, {}, lanes=())
    await asked(store, chief.fence, StartProcess(Registration(id=process, input=subagent)))
    await store.sessions.open(process)
    await store.sessions.delete(process)
    record = await record_of(store, process)
    equal(record.state.output, Aborted("its session was deleted"), "how it ended")


async def a_process_does_not_bring_a_deleted_session_back(store: SubjectStore) -> None:
    worker = await joined(store)
    session = await _talked(store, b"a")
    process = await waker(store, session.id)
    await store.sessions.delete(session.id)
    await woken(store, process)
    equal(await claim_turns(store, worker), [], "what the wake starts")
    equal(await store.sessions.get(session.id), None, "the session")
    mine = await turning(store, session.id, worker)
    equal(len(await store.sessions.queued(session.id)), 1, "a person's turn hears it")
    await ended(store, mine, b"b")


async def a_deletion_and_a_submission_at_once_leave_a_session_that_works(
    store: SubjectStore,
) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        session_id = f"session-{next(ids)}"
        match n % 3:
            case 0:
                await _talked(one, b"a", session_id=session_id)
            case 1:
                await turning(one, session_id, worker)
            case _:
                await one.sessions.open(session_id)

        async def delete(client: Store) -> None:
            await client.sessions.delete(session_id)

        async def submit() -> None:
            await submitted(other, new_turn(session_id), worker)

        async def say() -> None:
            await said(one, session_id, n, Policy.INTERRUPT)

        await together(delete(one), submit(), say(), delete(other))
        await one.sessions.delete(session_id)
        mine = await turning(one, session_id, worker)
        await ended(one, mine, b"works")
        equal(await history_of(one, session_id), [b"works"], f"try {n}: the history")

    await raced(store, race)


async def what_never_was_can_be_deleted(store: SubjectStore) -> None:
    report = await store.sessions.delete(f"session-{next(ids)}")
    equal((report.turns, report.messages, report.waits), (0, 0, 0), "the report")
    waited = f"session-{next(ids)}"
    name = wait_of(waited)
    await store.waits.open(WaitOpening(name=name, title="Early"))
    equal((await store.sessions.delete(waited)).waits, 1, "a session that only has waits")
    late = await store.waits.resolve(name, Ok(1), fresh_answer())
    equal(late.status, UNKNOWN_OR_REVOKED.status, "its wait")


async def a_long_history_goes_in_pieces(store: SubjectStore) -> None:
    mine = await turning(store)
    bodies = [hashlib.sha256(b"%d" % n).digest() for n in range(1200)]
    await ended(store, mine, *bodies)
    report = await store.sessions.delete(mine.session.id)
    equal((report.turns, report.messages), (1, 1200), "the report")
    equal(await store.sessions.uncommitted(mine.session), {}, "what is left")
    equal(await store.sessions.turn(TurnScope(mine.session.id, mine.turn.scope.id)), None, "it")


END_LAWS = (
    a_fork_begins_with_the_nodes_of_its_origin,
    a_fork_to_an_id_that_is_taken_is_refused,
    a_fork_shares_only_what_is_committed,
    a_fork_survives_its_origin,
    what_came_after_a_fork_goes_with_its_origin,
    a_fork_of_what_is_being_deleted_is_whole_or_refused,
    a_deletion_leaves_nothing_and_says_what_was_there,
    a_deletion_fences_who_runs_its_turn,
    a_deleted_id_can_be_used_again,
    a_deleted_id_of_a_forked_session_can_be_used_again,
    a_deletion_revokes_the_waits_and_the_next_life_has_its_own,
    a_deletion_wakes_whoever_waits_for_the_session,
    a_deletion_wakes_the_processes_that_wait_for_its_turns,
    a_deletion_cancels_the_subagents_of_its_turns,
    a_deletion_ends_the_subagent_whose_session_it_is,
    a_process_does_not_bring_a_deleted_session_back,
    a_deletion_and_a_submission_at_once_leave_a_session_that_works,
    what_never_was_can_be_deleted,
    a_long_history_goes_in_pieces,
)
