"""What every store promises about runs and workers: claims, lanes, parking, takeover.

The laws that race do so many times: the naive version of each rule fails within a few tries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pylash.durable.commands import CancelProcess, SignalProcess
from pylash.durable.processes import Success
from pylash.durable.runs import SECOND, RunState, WorkerId
from pylash.durable.waits import Ok
from pylash.testing.laws.stores.subjects import (
    ENGINE,
    FAR,
    LEASE,
    OVER,
    TARGET,
    SubjectStore,
    claim_ready,
    claim_turns,
    claimed,
    ended,
    enqueued,
    fresh_answer,
    ids,
    joined,
    new_scope,
    new_turn,
    record_of,
    recorded,
    run_of,
    sent_away,
    submitted,
    taken_by,
    wait_name,
    woken_by_signal,
)
from pylash.testing.laws.suites import Suite, equal, holds, refused, together

# --- runs ---


async def a_run_is_claimed_once(store: SubjectStore) -> None:
    scopes = {await enqueued(store) for _ in range(30)}
    workers = [await joined(store) for _ in range(6)]
    batches = await together(*(claim_ready(store, worker, 7) for worker in workers))
    claimed = [claim.run.scope for batch in batches for claim in batch]
    equal(len(claimed), len(set(claimed)), "runs claimed, each by one worker")
    claimed += [claim.run.scope for claim in await claim_ready(store, workers[0])]
    equal(set(claimed), scopes, "the runs claimed in the end")


async def runs_that_are_named_are_claimed_before_older_ones(store: SubjectStore) -> None:
    worker, scopes = await joined(store), [await enqueued(store) for _ in range(6)]
    runs = [await store.runs.get(scope) for scope in scopes]
    *_, later, named = [run.id for run in runs if run is not None]
    other = await store.runs.get(await enqueued(store, "unknown"))
    assert other is not None
    first = (named, other.id)  # which is not for this worker, and not claimed
    claims = await store.runs.claim(worker, limit=2, targets=[TARGET], first=first)
    equal(len(claims), 2, "runs claimed")
    holds(named in {claim.fence.run for claim in claims}, "the named run is claimed first")
    rest = await store.runs.claim(worker, limit=10, targets=[TARGET], first=[named, later])
    equal(len(rest), 4, "the others, each once")


async def a_worker_that_was_given_up_owns_nothing_until_it_joins_again(store: SubjectStore) -> None:
    gone, me = await joined(store, OVER), await joined(store)
    scope = await enqueued(store)
    await store.workers.bury_the_dead(me)
    equal(await claim_ready(store, gone), [], "what it claims")
    await refused(store.journal.attach(new_scope(), gone), "lease_lost", "what it attaches")
    await store.workers.join(gone, LEASE)
    (claim,) = await claim_ready(store, gone)
    equal(claim.run.scope, scope, "what it claims once it has joined again")


async def only_known_targets_are_claimed(store: SubjectStore) -> None:
    worker = await joined(store)
    await enqueued(store, "unknown")
    equal(
        await claim_ready(store, worker), [], "the claims of a worker that does not know the target"
    )


async def a_run_that_was_woken_does_not_park(store: SubjectStore) -> None:
    claim = await claimed(store)
    await woken_by_signal(store, claim)
    equal(await store.runs.park(claim.fence, claim.run.wake_seq), False, "parking")
    view = await store.runs.get(claim.run.scope)
    holds(view and view.state is RunState.RUNNING, "it goes on running")
    holds(view and await store.runs.park(claim.fence, view.wake_seq), "after another look it parks")


async def a_parked_run_is_ready_when_its_time_has_come(store: SubjectStore) -> None:
    claim, worker = await claimed(store), await joined(store)
    now = (await store.journal.attach(new_scope(), worker)).now
    await store.runs.park(claim.fence, claim.run.wake_seq, now)
    due, _ = await store.runs.next_due([TARGET])
    holds(due is not None and due <= 0, "the scheduler must look now")
    (again,) = await claim_ready(store, worker)
    equal(again.run.scope, claim.run.scope, "the run that is due")
    holds(again.fence.token != claim.fence.token, "a claim makes a new fence")


async def a_lane_runs_one_at_a_time_in_order(store: SubjectStore) -> None:
    worker, session = await joined(store), f"session-{next(ids)}"
    turns = [await submitted(store, new_turn(session)) for _ in range(4)]
    for submit in turns:
        (mine,) = await claim_turns(store, worker)
        equal(mine.turn.scope, submit.turn.scope, "the run whose turn it is")
        equal(await claim_turns(store, worker), [], "what else can be claimed")
        await ended(store, mine)
    equal(await claim_turns(store, worker), [], "after the last")


async def a_waiting_or_blocked_run_keeps_its_lane(store: SubjectStore) -> None:
    worker, session = await joined(store), f"session-{next(ids)}"
    first, second = [await submitted(store, new_turn(session)) for _ in range(2)]
    (mine,) = await claim_turns(store, worker)
    await store.runs.park(mine.fence, (await run_of(store, mine)).wake_seq)
    equal(await claim_turns(store, worker), [], "while the first waits")
    await store.turn_events.ask(mine.fence.run)  # which wakes it
    (mine,) = await claim_turns(store, worker)
    await store.runs.block(mine.fence, "crash_loop")
    equal(await claim_turns(store, worker), [], "while the first is blocked")
    equal(await store.runs.retry(mine.fence.run, "token"), True, "a blocked run is retried")
    (mine,) = await claim_turns(store, worker)
    equal(mine.turn.scope, first.turn.scope, "the first, retried")
    await ended(store, mine)
    (mine,) = await claim_turns(store, worker)
    equal(mine.turn.scope, second.turn.scope, "the second, in its turn")


async def racing_claims_never_share_a_lane(store: SubjectStore) -> None:
    workers, session = [await joined(store) for _ in range(4)], f"session-{next(ids)}"
    left, running, most = 60, 0, 0

    async def enqueue() -> None:
        for _ in range(15):
            await submitted(store, new_turn(session))

    async def work(worker: WorkerId) -> None:
        nonlocal left, running, most
        while left:
            for mine in await claim_turns(store, worker, 3):
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.001)
                running -= 1
                await ended(store, mine)
                left -= 1

    async with asyncio.timeout(30):
        await together(*(enqueue() for _ in range(4)), *(work(worker) for worker in workers))
    equal(most, 1, "runs of one lane at the same time")


async def settling_again_after_a_lost_answer_changes_nothing(store: SubjectStore) -> None:
    claim = await claimed(store)
    for _ in range(2):
        await store.processes.settle(claim.fence, claim.fence.run, Success("result"))
    view, record = await store.runs.get(claim.run.scope), await record_of(store, claim.run.scope.id)
    holds(view and view.state is RunState.COMPLETED, "the run's end")
    equal(record.state.output, Success("result"), "the result")
    late = store.journal.record(claim.fence, recorded("late"))
    await refused(late, "lease_lost", "a record after the end")
    await refused(woken_by_signal(store, claim), "process_ended", "a wake-up after the end")
    view = await store.runs.get(claim.run.scope)
    holds(view and view.state is RunState.COMPLETED, "the run after a wake-up")


# --- runs of other engines ---


async def a_run_of_another_engine_is_claimed_by_no_worker(store: SubjectStore) -> None:
    run, worker = await sent_away(store), await joined(store)
    equal(await claim_ready(store, worker), [], "what a worker claims")
    (row,), _ = await store.runs.dispatch(ENGINE, [FAR], 100)
    equal((row.run, row.bell), (run, None), "the run that its engine gets")


async def a_run_that_was_dispatched_is_dispatched_again_only_after_a_pause(
    store: SubjectStore,
) -> None:
    run = await sent_away(store)

    async def send() -> list[int]:
        rows, due = await store.runs.dispatch(ENGINE, [FAR], 100)
        holds(due is not None and 0 < due <= 5 * SECOND, "it is sent again in 5 seconds")
        return [row.run for row in rows]

    sent = [one for batch in await together(*(send() for _ in range(4))) for one in batch]
    equal(sent, [run], "what all couriers together send")


async def a_wake_up_makes_a_parked_run_ready_to_be_rung(store: SubjectStore) -> None:
    run, worker = await sent_away(store), await joined(store)
    taken = await taken_by(store, run, worker)
    equal(
        await store.runs.dispatch(ENGINE, [FAR], 100), ([], None), "what is sent of an executed run"
    )
    holds(await store.runs.park(taken.fence, taken.wake_seq, None, "bell-7"), "it is parked")
    equal(
        await store.runs.dispatch(ENGINE, [FAR], 100), ([], None), "what is sent of a waiting run"
    )
    await store.processes.perform(SignalProcess(taken.fence.scope.id, "go", f"signal-{next(ids)}"))
    (row,), _ = await store.runs.dispatch(ENGINE, [FAR], 100)
    equal((row.run, row.bell), (run, "bell-7"), "the run that was woken")
    wake_seq = await store.runs.unpark(taken.fence, worker)
    holds(wake_seq > taken.wake_seq, "the wake-up is seen by the attempt that had parked it")
    view = await store.runs.get(taken.fence.scope)
    holds(view and view.state is RunState.RUNNING, "it is executed again")


async def a_later_attempt_fences_out_the_earlier_one(store: SubjectStore) -> None:
    run, worker = await sent_away(store), await joined(store)
    earlier = await taken_by(store, run, worker)
    later = await taken_by(store, run, await joined(store))
    holds(later.fence.token > earlier.fence.token, "a new fence")
    await refused(store.runs.unpark(earlier.fence, worker), "lease_lost", "what it unparks")
    await refused(store.runs.park(earlier.fence, 0), "lease_lost", "what it parks")
    first = await store.runs.take([run], worker, "the same")
    again = await store.runs.take([run], worker, "the same")
    equal(again[run].fence, first[run].fence, "the fence of a repetition")


async def runs_are_taken_together_with_what_they_begin_with(store: SubjectStore) -> None:
    run, worker = await sent_away(store), await joined(store)
    turn = await submitted(store, new_turn())
    taken = await store.runs.take([run, turn.turn.run], worker, "both")
    process = taken[run]
    equal(process.subject, await record_of(store, process.fence.scope.id), "the process")
    mine = taken[turn.turn.run]
    equal(
        (mine.subject and mine.subject.run, mine.session), (turn.turn.run, turn.session), "the turn"
    )


async def a_run_that_has_ended_is_not_taken(store: SubjectStore) -> None:
    run, worker = await sent_away(store), await joined(store)
    taken = await taken_by(store, run, worker)
    record = await record_of(store, taken.fence.scope.id)
    await store.processes.settle(taken.fence, record.number, Success(1))
    equal(await store.runs.take([run], worker, "late"), {}, "what is taken")
    await refused(store.runs.take([run], WorkerId("nobody"), "t"), "lease_lost", "by no member")


async def a_turn_belongs_to_whichever_takes_it_first(store: SubjectStore) -> None:
    turn, worker = await submitted(store, new_turn()), await joined(store)
    rows, _ = await store.runs.dispatch(ENGINE, [], 100)
    holds(turn.turn.run in {row.run for row in rows}, "a courier takes a turn of no engine")
    equal(await claim_turns(store, worker), [], "what a worker claims after that")


async def a_turn_that_a_worker_has_begun_is_not_sent(store: SubjectStore) -> None:
    turn, worker = await submitted(store, new_turn()), await joined(store)
    (claim,) = await claim_turns(store, worker)
    await store.journal.release(claim.fence)
    rows, _ = await store.runs.dispatch(ENGINE, [], 100)
    holds(turn.turn.run not in {row.run for row in rows}, "its records are in the store")


async def a_run_whose_records_are_moved_is_sent_again_with_them(store: SubjectStore) -> None:
    run, worker = await sent_away(store), await joined(store)
    taken = await taken_by(store, run, worker)
    equal(taken.moves, 0, "the moves of a new run")
    await store.journal.collect(run, [recorded("charge", b"1")])
    entries = [recorded("charge", b"2"), recorded("ship", b"3")]
    for _ in range(2):  # the answer to the first may be lost
        await store.journal.move(taken.fence, entries, [], 1)
    ((row,), _) = await store.runs.dispatch(ENGINE, [FAR], 100)
    equal((row.run, row.bell, row.moves), (run, None, 1), "the run that is sent")
    again = await taken_by(store, run, worker)
    equal(again.moves, 1, "the moves that its attempt sees")
    known = (await store.processes.resume([run]))[run].entries
    equal({key: known[key].outcome for key in ("charge", "ship")}, {"charge": b"1", "ship": b"3"}, "the records")  # fmt: skip
    late = store.journal.move(taken.fence, entries, [], 2)
    await refused(late, "lease_lost", "the move by an earlier attempt")


async def a_run_that_is_ended_by_force_is_ended_at_its_engine_too(store: SubjectStore) -> None:
    worker = await joined(store)
    parked, blocked = [await taken_by(store, await sent_away(store), worker) for _ in range(2)]
    await store.runs.park(parked.fence, parked.wake_seq, None, "bell-7")
    await store.runs.block(blocked.fence, "why")
    await store.runs.note_invocation(blocked.fence, "inv_8")
    equal(await store.runs.ended_elsewhere([FAR], 100), [], "before the end")
    for taken in (parked, blocked):
        await store.processes.perform(CancelProcess(taken.fence.scope.id, "now", force=True), None)
    ended = await store.runs.ended_elsewhere([FAR], 100)
    equal(set(ended), {(parked.fence.run, "bell-7"), (blocked.fence.run, "inv_8")}, "what is ended")
    for run, _ in ended:
        await store.runs.forget_bell(run)
    equal(await store.runs.ended_elsewhere([FAR], 100), [], "after that")


RUN_STORE = Suite[SubjectStore](
    "run_store",
    (
        a_run_is_claimed_once,
        a_run_of_another_engine_is_claimed_by_no_worker,
        a_run_that_was_dispatched_is_dispatched_again_only_after_a_pause,
        a_wake_up_makes_a_parked_run_ready_to_be_rung,
        a_later_attempt_fences_out_the_earlier_one,
        runs_are_taken_together_with_what_they_begin_with,
        a_run_that_has_ended_is_not_taken,
        a_turn_belongs_to_whichever_takes_it_first,
        a_turn_that_a_worker_has_begun_is_not_sent,
        a_run_whose_records_are_moved_is_sent_again_with_them,
        a_run_that_is_ended_by_force_is_ended_at_its_engine_too,
        runs_that_are_named_are_claimed_before_older_ones,
        a_worker_that_was_given_up_owns_nothing_until_it_joins_again,
        only_known_targets_are_claimed,
        a_run_that_was_woken_does_not_park,
        a_parked_run_is_ready_when_its_time_has_come,
        a_lane_runs_one_at_a_time_in_order,
        a_waiting_or_blocked_run_keeps_its_lane,
        racing_claims_never_share_a_lane,
        settling_again_after_a_lost_answer_changes_nothing,
    ),
)


# --- workers ---


async def a_live_worker_is_left_alone(store: SubjectStore) -> None:
    worker, me = await joined(store), await joined(store)
    fence = (await store.journal.attach(new_scope(), worker)).fence
    equal(await store.workers.bury_the_dead(me), [], "the dead")
    equal((await store.journal.record(fence, recorded())).outcome, b"1", "its next record")
    equal(await store.workers.beat(worker, LEASE), True, "its next beat")


async def the_runs_of_an_expired_worker_are_ready(store: SubjectStore) -> None:
    scope = await enqueued(store)
    gone = await joined(store, ttl=OVER)
    (claim,) = await claim_ready(store, gone)
    me = await joined(store)
    equal(await store.workers.bury_the_dead(me), [gone], "the workers given up")
    (again,) = await claim_ready(store, me)
    equal(again.run.scope, scope, "its run")
    late = store.journal.record(claim.fence, recorded())
    await refused(late, "lease_lost", "a record of the worker that was given up")
    equal(await store.workers.beat(gone, LEASE), False, "its next beat")


async def leaving_gives_the_runs_back(store: SubjectStore) -> None:
    scope = await enqueued(store)
    leaver, me = await joined(store), await joined(store)
    await claim_ready(store, leaver)
    await store.workers.leave(leaver)
    (again,) = await claim_ready(store, me)
    equal(again.run.scope, scope, "the run of the worker that left")


async def a_listener_hears_of_changes(store: SubjectStore) -> None:
    heard = list[str]()
    stop = store.subscribe(heard.append)
    name = wait_name()
    await store.waits.resolve(name, Ok(1), fresh_answer())
    await asyncio.sleep(0)
    holds(f"wait:{name.id}" in heard, "the end of a wait, in this process")
    stop()


async def a_listener_elsewhere_hears_of_changes(store: SubjectStore) -> None:
    other = await store.second()
    if other is None:
        return
    heard = asyncio.Event()
    other.subscribe(_setting(heard))
    await store.waits.resolve(wait_name(), Ok(1), fresh_answer())
    async with asyncio.timeout(10):
        await heard.wait()


def _setting(event: asyncio.Event) -> Callable[[str], None]:
    return lambda _: event.set()


async def a_worker_without_targets_executes_nothing(store: SubjectStore) -> None:
    gone, me = await joined(store, OVER), await joined(store)
    await store.workers.join(gone, OVER, ["its"])
    equal(
        await store.workers.has_any(), False, "with one that only asks, and one whose lease is over"
    )
    await store.workers.join(me, LEASE, [TARGET])
    equal(await store.workers.has_any(), True, "with a target")


WORKER_STORE = Suite[SubjectStore](
    "worker_store",
    (
        a_live_worker_is_left_alone,
        the_runs_of_an_expired_worker_are_ready,
        leaving_gives_the_runs_back,
        a_worker_without_targets_executes_nothing,
        a_listener_hears_of_changes,
        a_listener_elsewhere_hears_of_changes,
    ),
)
