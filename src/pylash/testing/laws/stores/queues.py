"""What every store promises about words that are queued for sessions, wakes of processes, and cancels."""

from __future__ import annotations

from typing import Any

from pylash.durable.commands import AppendEvent
from pylash.durable.effects import AwaitEvent
from pylash.durable.processes import SessionRef
from pylash.durable.runs import JournalEntry, RunState, WorkerId
from pylash.durable.scopes import QueueDrainScope
from pylash.durable.sessions import Policy, Writing
from pylash.durable.stores import Store, WaitOpening
from pylash.durable.waits import Cancelled, Ok, WaitName
from pylash.testing.laws.stores.processes import TYPES
from pylash.testing.laws.stores.subjects import (
    RACES,
    SubjectStore,
    Turning,
    ask,
    claim_turns,
    ended,
    fresh_answer,
    history_of,
    ids,
    joined,
    new_turn,
    pause,
    raced,
    run_of,
    session_of_id,
    started,
    submitted,
    taken,
    turning,
    turns_waiting,
    wait_of,
)
from pylash.testing.laws.suites import equal, holds, together

IN_A_ROW = 20


async def said(
    store: Store, session_id: str, body: Any, policy: Policy = Policy.NOW, key: str | None = None
) -> bool:
    """Queue a person's words, under a key of their own unless one is given."""
    return await store.sessions.enqueue(session_id, key or f"key-{next(ids)}", body, policy)


async def waker(store: Store, session_id: str) -> str:
    """Start a process that can wake a session."""
    return await started(store, event_types=TYPES, wake_target=SessionRef(session_id))


async def woken(store: Store, process: str) -> None:
    """Let a process wake its session."""
    await ask(store, AppendEvent(process, "alarm", f"alarm-{next(ids)}"))


async def waiting(store: Store, mine: Turning, key: str = "go") -> WaitName:
    """Open a wait as an effect of a turn."""
    name = wait_of(mine.session.id, key)
    entry = JournalEntry(key, AwaitEvent("key").kind, b"hash", b"{}", started=1)
    await store.waits.open_for(mine.fence, entry, WaitOpening(name=name, title="A wait"))
    return name


# --- words ---


async def words_to_an_idle_session_start_one_turn(store: SubjectStore) -> None:
    worker, session_id = await joined(store), f"session-{next(ids)}"
    for body in ("one", "two", "three"):
        equal(await said(store, session_id, body), True, "new words")
    (drain,) = await turns_waiting(store, worker, session_id)
    holds(isinstance(drain.turn.scope, QueueDrainScope), "a turn for what is queued")
    equal(drain.turn.body, b"", "what it was asked")
    holds(drain.session.number > 0, "its session has a number")
    equal(
        [one.body for one in await store.sessions.queued(session_id)], ["one", "two", "three"], ""
    )
    equal(await taken(store, drain), ["one", "two", "three"], "what it takes, in order")
    await ended(store, drain, b'"one"', b'"two"', b'"three"')
    equal(await claim_turns(store, worker), [], "after it")
    equal(await store.sessions.queued(session_id), [], "the queue")


async def words_to_a_running_session_wake_it(store: SubjectStore) -> None:
    mine = await turning(store)
    before = (await run_of(store, mine)).wake_seq
    await said(store, mine.session.id, "now")
    equal((await run_of(store, mine)).wake_seq, before + 1, "its wake-ups")
    equal(await store.runs.park(mine.fence, before), False, "it does not park")
    equal(await taken(store, mine), ["now"], "what it takes")
    await ended(store, mine, b'"now"')
    equal(await claim_turns(store, await joined(store)), [], "no turn is started for them")


async def words_to_a_waiting_session_wake_it(store: SubjectStore) -> None:
    mine, worker = await turning(store), await joined(store)
    await store.runs.park(mine.fence, 0)
    await said(store, mine.session.id, "now")
    (again,) = await turns_waiting(store, worker, mine.session.id)
    equal(again.turn.run, mine.turn.run, "the turn that waited")


async def words_arrive_once(store: SubjectStore) -> None:
    mine = await turning(store)
    session_id = mine.session.id
    equal(await said(store, session_id, "hi", key="k"), True, "the first time")
    equal(await said(store, session_id, "hi", key="k"), False, "again")
    equal(await taken(store, mine), ["hi"], "what is taken")
    equal(await said(store, session_id, "hi", key="k"), False, "again, after they were taken")
    equal(await store.sessions.queued(session_id), [], "the queue")
    await ended(store, mine, b'"hi"')
    equal(await said(store, session_id, "hi", key="k"), False, "again, after the commit")
    equal(await claim_turns(store, await joined(store)), [], "what they start")
    equal(await said(store, f"session-{next(ids)}", "hi", key="k"), True, "in another session")


async def that_no_words_were_taken_is_recorded_too(store: SubjectStore) -> None:
    mine = await turning(store)
    equal(await taken(store, mine), [], "what is taken")
    entry = await store.journal.entry(mine.turn.run, "words")
    equal(None if entry is None else entry.outcome, b"0", "its record")


async def words_are_in_the_order_in_which_they_came(store: SubjectStore) -> None:
    mine = await turning(store)
    process = await waker(store, mine.session.id)
    for n in range(9, 0, -1):
        await said(store, mine.session.id, n, key=f"k{n}")
    await woken(store, process)
    await said(store, mine.session.id, 0, key="a")
    words = await taken(store, mine)
    equal([*words[:9], words[10]], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], "the words")


async def words_are_taken_once(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        mine = await turning(one, worker=worker)
        for word in range(3):
            await said(one, mine.session.id, word)
        parts = await together(taken(one, mine), taken(other, mine))
        equal(sorted(parts), [[], [0, 1, 2]], f"try {n}: what the takers got")
        equal(await one.sessions.queued(mine.session.id), [], f"try {n}: the queue")

    await raced(store, race)


async def words_said_at_once_are_heard_once_by_one_turn(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        session_id = f"session-{next(ids)}"
        process = await waker(one, session_id)
        clients = [one, other, one, other]
        works = [said(client, session_id, 1, key=f"k{k // 2}") for k, client in enumerate(clients)]
        answers = await together(*works, _alarmed(other, process))
        equal(sum(answers), 3, f"try {n}: who said something new")
        later = await submitted(one, new_turn(session_id), worker)
        holds(later.fence is None, f"try {n}: somebody has the lane")
        equal(len(await one.sessions.queued(session_id)), 3, f"try {n}: the words")

    async def _alarmed(client: Store, process: str) -> bool:
        await woken(client, process)
        return True

    await raced(store, race)


async def a_commit_with_words_left_starts_a_turn(store: SubjectStore) -> None:
    mine, worker = await turning(store), await joined(store)
    session_id = mine.session.id
    await said(store, session_id, "later", Policy.NEXT_TURN)
    await ended(store, mine, b"a")
    (drain,) = await turns_waiting(store, worker, session_id)
    holds(isinstance(drain.turn.scope, QueueDrainScope), "a turn for what is queued")
    queued = await submitted(store, new_turn(session_id), worker)
    equal(await taken(store, drain), ["later"], "what it takes")
    await ended(store, drain, b'"later"')
    (following,) = await turns_waiting(store, worker, session_id)
    equal(following.turn.scope, queued.turn.scope, "a turn that was asked for comes first")
    equal(await history_of(store, session_id), [b"a", b'"later"'], "the history")


async def words_that_are_taken_back_start_no_turn(store: SubjectStore) -> None:
    mine, worker = await turning(store), await joined(store)
    session_id = mine.session.id
    await said(store, session_id, "heard", key="heard")
    equal(await taken(store, mine), ["heard"], "what the turn takes")
    await said(store, session_id, "later", Policy.NEXT_TURN, key="later")
    await said(store, session_id, "stays", Policy.NEXT_TURN, key="stays")
    equal(await store.sessions.take_back(session_id, ["heard", "later"]), ["later"], "taken back")
    equal([one.key for one in await store.sessions.queued(session_id)], ["stays"], "what is left")
    equal(await store.sessions.take_back(session_id, ["stays"]), ["stays"], "taken back then")
    await ended(store, mine, b'"heard"')
    equal(await turns_waiting(store, worker, session_id), [], "turns after it")


async def turns_that_never_take_their_words_come_to_an_end(store: SubjectStore) -> None:
    worker, session_id = await joined(store), f"session-{next(ids)}"
    await said(store, session_id, "hello")
    turns = 0
    while drains := await turns_waiting(store, worker, session_id):
        turns += 1
        holds(turns <= IN_A_ROW + 1, "it goes on for ever")
        await ended(store, drains[0], b"failed", state=RunState.FAILED)
    await said(store, session_id, "hello again")
    (drain,) = await turns_waiting(store, worker, session_id)
    equal(await taken(store, drain), ["hello", "hello again"], "once a person says something")


async def an_interruption_ends_the_waits_of_the_session(store: SubjectStore) -> None:
    mine, worker, other = await turning(store), await joined(store), await turning(store)
    name, others = await waiting(store, mine), await waiting(store, other)
    await store.runs.park(mine.fence, 0)
    await said(store, mine.session.id, "stop", Policy.INTERRUPT, key="k")
    look = await store.waits.look([name.id, others.id])
    equal(look[name.id].terminal, Cancelled(), "its wait")
    equal(look[others.id].terminal, None, "the wait of another session")
    (again,) = await turns_waiting(store, worker, mine.session.id)
    before = await waiting(store, again, "before they are heard")
    look = await store.waits.look([before.id])
    equal(look[before.id].terminal, Cancelled(), "a wait that comes after the words")
    await store.sessions.take(again.fence, again.session, lambda _: Writing())
    later = await waiting(store, again, "later")
    await said(store, mine.session.id, "stop", Policy.INTERRUPT, key="k")
    equal((await store.waits.look([later.id]))[later.id].terminal, None, "the same words again")


async def words_that_do_not_interrupt_leave_the_waits(store: SubjectStore) -> None:
    mine = await turning(store)
    name = await waiting(store, mine)
    for policy in (Policy.NOW, Policy.NEXT_TURN):
        await said(store, mine.session.id, "hi", policy)
    equal((await store.waits.look([name.id]))[name.id].terminal, None, "the wait")


# --- wakes ---


async def a_wake_to_an_idle_session_starts_a_turn(store: SubjectStore) -> None:
    worker, session_id = await joined(store), f"session-{next(ids)}"
    await ended(store, await turning(store, session_id))
    process = await waker(store, session_id)
    await woken(store, process)
    await woken(store, process)
    (drain,) = await turns_waiting(store, worker, session_id)
    holds(isinstance(drain.turn.scope, QueueDrainScope), "a turn for what is queued")
    equal(len(await taken(store, drain)), 2, "what it takes")


async def a_wake_to_a_session_that_never_was_makes_it(store: SubjectStore) -> None:
    worker, session_id = await joined(store), f"session-{next(ids)}"
    await store.waits.open(WaitOpening(name=wait_of(session_id), title="Early"))
    await woken(store, await waker(store, session_id))
    (drain,) = await turns_waiting(store, worker, session_id)
    holds(drain.session.number > 0, "its number")
    equal((await session_of_id(store, session_id)).streak, 1, "it is counted")


async def processes_alone_start_so_many_turns_and_no_more(store: SubjectStore) -> None:
    worker, session_id = await joined(store), f"session-{next(ids)}"
    process = await waker(store, session_id)
    for n in range(IN_A_ROW):
        await woken(store, process)
        (drain,) = await turns_waiting(store, worker, session_id)
        equal(len(await taken(store, drain)), 1, f"what turn {n} takes")
        await ended(store, drain, b"noted")
    await woken(store, process)
    equal(await claim_turns(store, worker), [], "the next one")
    equal(len(await store.sessions.queued(session_id)), 1, "the wake that waits")
    mine = await turning(store, session_id, worker)
    equal(len(await taken(store, mine)), 1, "a person's turn hears it")
    await ended(store, mine, b"noted")
    await woken(store, process)
    equal(len(await turns_waiting(store, worker, session_id)), 1, "and it is counted anew")


async def a_person_who_speaks_to_a_running_session_counts(store: SubjectStore) -> None:
    worker, session_id = await joined(store), f"session-{next(ids)}"
    process = await waker(store, session_id)
    for _ in range(IN_A_ROW):
        await woken(store, process)
        (drain,) = await turns_waiting(store, worker, session_id)
        await taken(store, drain)
        if (await session_of_id(store, session_id)).streak == IN_A_ROW:
            await said(store, session_id, "I am here")
            break
        await ended(store, drain, b"noted")
    equal((await session_of_id(store, session_id)).streak, 0, "turns without a person")


# --- cancels ---


async def a_cancel_marks_and_wakes_the_turn(store: SubjectStore) -> None:
    mine = await turning(store)
    equal(await store.sessions.asked_to_end(mine.turn.run), False, "before")
    asked = await store.sessions.cancel(mine.session.id, "why")
    holds(asked is not None and asked.run == mine.turn.run and asked.cancel, "the turn asked")
    equal(await store.sessions.asked_to_end(mine.turn.run), True, "after")
    equal(await store.runs.park(mine.fence, 0), False, "it does not park")
    again = await store.sessions.cancel(mine.session.id, "again")
    holds(again is not None and again.cancel_reason == "why", "the first reason counts")
    await ended(store, mine, b"cancelled", state=RunState.CANCELLED)
    equal(await store.sessions.cancel(mine.session.id, "late"), None, "of an idle session")
    equal(await store.sessions.cancel("no such session", "why"), None, "of none")


async def a_cancel_wakes_a_turn_that_waits(store: SubjectStore) -> None:
    mine, worker = await turning(store), await joined(store)
    await store.runs.park(mine.fence, 0)
    await store.sessions.cancel(mine.session.id, "why")
    (again,) = await turns_waiting(store, worker, mine.session.id)
    equal((again.turn.run, again.turn.cancel), (mine.turn.run, True), "the turn")


async def a_cancel_is_for_the_turn_that_has_the_lane(store: SubjectStore) -> None:
    worker = await joined(store)
    mine = await turning(store, worker=worker)
    following = await submitted(store, new_turn(mine.session.id), worker)
    await store.sessions.cancel(mine.session.id, "why")
    equal(await store.sessions.asked_to_end(following.turn.run), False, "the next turn")


async def a_cancel_unblocks_a_blocked_turn(store: SubjectStore) -> None:
    mine, worker = await turning(store), await joined(store)
    await store.runs.block(mine.fence, "it does not fit")
    states = await store.sessions.states([mine.turn.id])
    equal(states, {mine.turn.id: (RunState.BLOCKED, "it does not fit")}, "the blocked turn")
    equal(await claim_turns(store, worker), [], "before")
    await store.sessions.cancel(mine.session.id, "why")
    (again,) = await turns_waiting(store, worker, mine.session.id)
    equal((again.turn.run, again.turn.cancel), (mine.turn.run, True), "after")
    await store.runs.block(again.fence, "it still does not fit")
    await store.sessions.cancel(mine.session.id, "again")
    equal(len(await turns_waiting(store, worker, mine.session.id)), 1, "once more")


# --- wake-ups are not lost ---


async def no_words_are_lost_while_the_turn_parks_or_ends(store: SubjectStore) -> None:
    # Whatever the order, somebody is ready who hears them.
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        mine = await turning(one, worker=worker)
        session_id = mine.session.id
        process = await waker(one, session_id)

        async def go() -> None:
            await pause(n, 5)
            if n % 2:
                await ended(one, mine, b"a")
            else:
                await one.runs.park(mine.fence, 0)

        async def say() -> None:
            await pause(n, 3)
            if n % 3:
                await said(other, session_id, n, (Policy.NOW, Policy.INTERRUPT)[n % 5 % 2])
            else:
                await woken(other, process)

        await together(go(), say())
        equal(len(await one.sessions.queued(session_id)), 1, f"try {n}: the words")
        view = await run_of(one, mine)
        if view.state is RunState.COMPLETED:
            blocked = await submitted(one, new_turn(session_id), worker)
            holds(blocked.fence is None, f"try {n}: a turn was started for them")
        else:
            holds(view.state is not RunState.WAITING, f"try {n}: it sleeps over the words")
            holds(view.wake_seq > 0, f"try {n}: it was woken")

    await raced(store, race, RACES)


async def no_cancel_or_answer_is_lost_while_the_turn_parks(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        mine = await turning(one, worker=worker)
        name = await waiting(one, mine)

        async def park() -> None:
            await pause(n, 5)
            await one.runs.park(mine.fence, 0)

        async def interfere() -> None:
            await pause(n, 3)
            match n % 3:
                case 0:
                    await other.sessions.cancel(mine.session.id, "why")
                case 1:
                    await other.waits.resolve(name, Ok(n), fresh_answer())
                case _:
                    await said(other, mine.session.id, n, Policy.INTERRUPT)

        await together(park(), interfere())
        view = await run_of(one, mine)
        holds(view.state is not RunState.WAITING, f"try {n}: it sleeps")
        holds(view.wake_seq > 0, f"try {n}: it was not woken")

    await raced(store, race, RACES)


QUEUE_LAWS = (
    words_to_an_idle_session_start_one_turn,
    words_to_a_running_session_wake_it,
    words_to_a_waiting_session_wake_it,
    words_arrive_once,
    that_no_words_were_taken_is_recorded_too,
    words_are_in_the_order_in_which_they_came,
    words_are_taken_once,
    words_said_at_once_are_heard_once_by_one_turn,
    a_commit_with_words_left_starts_a_turn,
    words_that_are_taken_back_start_no_turn,
    turns_that_never_take_their_words_come_to_an_end,
    an_interruption_ends_the_waits_of_the_session,
    words_that_do_not_interrupt_leave_the_waits,
    a_wake_to_an_idle_session_starts_a_turn,
    a_wake_to_a_session_that_never_was_makes_it,
    processes_alone_start_so_many_turns_and_no_more,
    a_person_who_speaks_to_a_running_session_counts,
    a_cancel_marks_and_wakes_the_turn,
    a_cancel_wakes_a_turn_that_waits,
    a_cancel_is_for_the_turn_that_has_the_lane,
    a_cancel_unblocks_a_blocked_turn,
    no_words_are_lost_while_the_turn_parks_or_ends,
    no_cancel_or_answer_is_lost_while_the_turn_parks,
)
