"""What every store promises: fences, waits, wake-ups, lanes, liveness.

The laws that race do so many times: the naive version of each rule fails within a few tries.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from pylash.durable import (
    SECOND,
    AwaitEvent,
    Claim,
    CustomWait,
    Fence,
    JournalEntry,
    NewRun,
    Ok,
    ProcessScope,
    ResolveOutcome,
    RunState,
    RuntimeScope,
    Store,
    Timeout,
    TurnScope,
    WaitName,
    WaitOpening,
    WorkerId,
    envelope,
)
from pylash.testing.suites import Broken, Suite, equal, holds, refused, together
from pylash.values import LeaseLost

TRIES = 100
"""How often a race is run."""

_LEASE = 60 * SECOND
_OVER = 0
_ids = itertools.count(1)


class SubjectStore(Store, Protocol):
    """A store under test: it can be opened a second time, as another process would."""

    async def second(self) -> Store | None:
        """Open the same database beside this one; None if nobody else can see it."""
        ...


def _scope() -> ProcessScope:
    return ProcessScope(f"process-{next(_ids)}")


async def _worker(store: Store, ttl: int = _LEASE) -> WorkerId:
    worker = WorkerId(f"worker-{next(_ids)}")
    await store.workers.join(worker, ttl)
    return worker


async def _owned(store: Store, ttl: int = _LEASE) -> Fence:
    """Return the fence of a fresh run, owned by a worker whose lease lasts ttl."""
    return (await store.journal.attach(_scope(), await _worker(store, ttl))).fence


def _entry(
    key: str = "step", outcome: bytes | None = b"1", digest: bytes = b"hash"
) -> JournalEntry:
    return JournalEntry(key, "durable_step", digest, b"{}", outcome, len(outcome or b""), started=1)


def _name(key: str = "go") -> WaitName:
    return WaitName(_scope(), CustomWait(key))


def _waiting(name: WaitName) -> tuple[JournalEntry, WaitOpening]:
    asked = envelope(AwaitEvent("key"), scope=RuntimeScope(), effect_id="wait", replay_key="wait")
    entry = JournalEntry("wait", asked.command.kind, b"hash", b"{}", started=1)
    return entry, WaitOpening(name=name, title="A wait")


# --- the journal ---


async def the_first_record_of_a_key_stands(store: SubjectStore) -> None:
    fence = await _owned(store)
    first = await store.journal.record(fence, _entry(outcome=b"first"))
    second = await store.journal.record(fence, _entry(outcome=b"second"))
    equal((first.outcome, second.outcome), (b"first", b"first"), "what both writers got")


async def a_journal_belongs_to_the_whole_scope(store: SubjectStore) -> None:
    worker = await _worker(store)
    one = await store.journal.attach(TurnScope("s1", "t1"), worker)
    two = await store.journal.attach(TurnScope("s2", "t1"), worker)
    await store.journal.record(one.fence, _entry())
    again = await store.journal.attach(TurnScope("s2", "t1"), worker)
    equal((dict(two.entries), dict(again.entries)), ({}, {}), "the journal of the other session")


async def what_was_recorded_is_loaded(store: SubjectStore) -> None:
    worker = await _worker(store)
    scope = _scope()
    fence = (await store.journal.attach(scope, worker)).fence
    for name, size in (("small", 10), ("large", 10_000), ("huge", 2_000_000)):
        await store.journal.record(fence, _entry(name, b"x" * size))
    loaded = (await store.journal.attach(scope, worker)).entries
    equal(loaded["small"].outcome, b"x" * 10, "a small outcome")
    for name, size in (("large", 10_000), ("huge", 2_000_000)):
        holds(
            loaded[name].outcome is None and loaded[name].size, f"{name} is loaded when asked for"
        )
        whole = await store.journal.entry(fence.run, name)
        holds(whole is not None and whole.outcome == b"x" * size, f"the {name} outcome, asked for")


async def an_acknowledged_record_is_there_for_others(store: SubjectStore) -> None:
    fence = await _owned(store)
    other = await store.second()
    if other is None:
        return
    for n in range(20):
        await store.journal.record(fence, _entry(f"step-{n}"))
        seen = await other.journal.entry(fence.run, f"step-{n}")
        holds(seen is not None, "a record that was acknowledged must be committed")


async def a_sleep_keeps_its_end(store: SubjectStore) -> None:
    fence = await _owned(store)
    entry = _entry("nap", None)
    first, now = await store.journal.begin_sleep(fence, entry, 5 * SECOND)
    second, _ = await store.journal.begin_sleep(fence, entry, 90 * SECOND)
    equal(second.due, first.due, "the end of a sleep that was begun twice")
    holds(first.due is not None and 4 * SECOND < first.due - now <= 5 * SECOND, "when it ends")


async def an_outcome_given_to_an_open_effect_stands(store: SubjectStore) -> None:
    fence = await _owned(store)
    await store.journal.begin_sleep(fence, _entry("nap", None), SECOND)
    first = await store.journal.close(fence, _entry("nap", b"first"))
    second = await store.journal.close(fence, _entry("nap", b"second"))
    equal((first.outcome, second.outcome), (b"first", b"first"), "the outcome")


async def a_live_owner_keeps_its_run(store: SubjectStore) -> None:
    fence = await _owned(store)
    asked = store.journal.attach(fence.scope, await _worker(store))
    await refused(asked, "lease_held", "attaching a run whose owner is alive")


async def a_stale_owner_writes_nothing(store: SubjectStore) -> None:
    stale = await _owned(store, ttl=_OVER)
    fresh = (await store.journal.attach(stale.scope, await _worker(store))).fence
    holds(fresh.token != stale.token, "a takeover must make a new fence")
    entry, opening = _waiting(_name())
    for what, work in {
        "record": store.journal.record(stale, _entry("record")),
        "begin_sleep": store.journal.begin_sleep(stale, _entry("begin_sleep", None), SECOND),
        "close": store.journal.close(stale, _entry("close")),
        "open_for": store.waits.open_for(stale, entry, opening),
        "park": store.runs.park(stale, 0),
        "settle": store.runs.settle(stale, RunState.COMPLETED, None),
        "block": store.runs.block(stale, "stale"),
    }.items():
        await refused(work, "lease_lost", what)
    entries = (await store.journal.attach(fresh.scope, await _worker_of(store, fresh))).entries
    equal(dict(entries), {}, "what the stale owner wrote")
    equal(await store.waits.listed(), [], "the waits it opened")


async def _worker_of(store: Store, fence: Fence) -> WorkerId:
    run = await store.runs.get(fence.scope)
    assert run is not None
    assert run.owner is not None
    return run.owner


async def an_expired_lease_that_nobody_took_may_still_write(store: SubjectStore) -> None:
    fence = await _owned(store, ttl=_OVER)
    equal((await store.journal.record(fence, _entry())).outcome, b"1", "the record")


async def no_stale_record_slips_past_a_takeover(store: SubjectStore) -> None:
    for n in range(TRIES):
        stale = await _owned(store, ttl=_OVER)
        successor = await _worker(store)

        async def record(after: float, fence: Fence = stale) -> set[str]:
            key = f"stale-{after}"
            await asyncio.sleep(after)
            try:
                await store.journal.record(fence, _entry(key))
            except LeaseLost:
                return set()
            return {key}

        async def take_over(fence: Fence = stale, worker: WorkerId = successor) -> set[str]:
            return set((await store.journal.attach(fence.scope, worker)).entries)

        delays = (0.0001 * (n % 4 + 4 * late) for late in range(6))
        seen, *written = await together(take_over(), *map(record, delays))
        slipped = set().union(*written) - seen
        holds(not slipped, f"try {n}: the stale owner wrote what the new one did not see")


JOURNAL_STORE = Suite[SubjectStore](
    "journal_store",
    (
        the_first_record_of_a_key_stands,
        a_journal_belongs_to_the_whole_scope,
        what_was_recorded_is_loaded,
        an_acknowledged_record_is_there_for_others,
        a_sleep_keeps_its_end,
        an_outcome_given_to_an_open_effect_stands,
        a_live_owner_keeps_its_run,
        a_stale_owner_writes_nothing,
        an_expired_lease_that_nobody_took_may_still_write,
        no_stale_record_slips_past_a_takeover,
    ),
)


# --- waits ---


async def an_open_wait_is_listed_with_what_people_need(store: SubjectStore) -> None:
    name = WaitName(TurnScope("s1", "t1"), CustomWait("approve"))
    opening = WaitOpening(
        name=name, kind="approval", title="Refund?", tool="refund", arguments=b'{"cents":5}'
    )
    await store.waits.open(opening)
    await store.waits.open(WaitOpening(name=_name()))
    (wait,) = await store.waits.listed("s1")
    shown = (wait.name, wait.kind, wait.title, wait.tool, wait.arguments)
    equal(shown, (name, "approval", "Refund?", "refund", {"cents": 5}), "what is shown")
    equal(len(await store.waits.listed()), 2, "the waits of all sessions")
    await store.waits.resolve(name, Ok(True))
    equal(await store.waits.listed("s1"), [], "after the answer")


async def an_answer_after_the_deadline_is_too_late(store: SubjectStore) -> None:
    name = _name()
    await store.waits.open(WaitOpening(name=name, timeout=0))
    outcome = await store.waits.resolve(name, Ok("late"))
    equal(outcome, ResolveOutcome("already_resolved", Timeout()), "the late answer")


async def the_earliest_deadline_counts(store: SubjectStore) -> None:
    name = _name()
    await store.waits.open(WaitOpening(name=name))
    first = await store.waits.open(WaitOpening(name=name, timeout=5 * SECOND))
    second = await store.waits.open(WaitOpening(name=name, timeout=90 * SECOND))
    holds(first.remaining and second.remaining, "both have a deadline")
    holds((second.remaining or 0) <= (first.remaining or 0), "a later one does not push it back")


async def an_end_wakes_a_parked_run(store: SubjectStore) -> None:
    claim = await _claimed(store)
    entry, opening = _waiting(_name())
    await store.waits.open_for(claim.fence, entry, opening)
    holds(await store.runs.park(claim.fence, claim.run.wake_seq), "the run parks")
    await store.waits.resolve(opening.name, Ok(1))
    run = await store.runs.get(claim.run.scope)
    holds(run and run.state is RunState.QUEUED and run.at is not None, "the end makes it ready")


async def no_wake_up_is_lost_between_looking_and_parking(store: SubjectStore) -> None:
    for n in range(TRIES):
        claim = await _claimed(store)
        entry, opening = _waiting(_name())

        async def run(
            claim: Claim = claim, what: tuple[JournalEntry, WaitOpening] = (entry, opening)
        ) -> None:
            _, status = await store.waits.open_for(claim.fence, *what)
            if status.terminal is None:
                await store.runs.park(claim.fence, claim.run.wake_seq)

        async def answer(name: WaitName = opening.name, after: float = 0.0002 * (n % 10)) -> None:
            await asyncio.sleep(after)
            await store.waits.resolve(name, Ok(1))

        await together(run(), answer())
        view = await store.runs.get(claim.run.scope)
        holds(
            view is not None and view.state is not RunState.WAITING, f"try {n}: the run sleeps on"
        )


async def revoking_wakes_a_parked_run(store: SubjectStore) -> None:
    claim = await _claimed(store)
    entry, opening = _waiting(WaitName(TurnScope("revoked", "t1"), CustomWait("go")))
    await store.waits.open_for(claim.fence, entry, opening)
    await store.runs.park(claim.fence, claim.run.wake_seq)
    await store.waits.revoke("revoked", await store.waits.generation("revoked"))
    run = await store.runs.get(claim.run.scope)
    holds(run is not None and run.state is RunState.QUEUED, "the revocation makes it ready")


async def revoking_again_after_a_lost_answer_changes_nothing(store: SubjectStore) -> None:
    await store.waits.revoke("twice", 0)
    await store.waits.revoke("twice", 0)
    equal(await store.waits.generation("twice"), 1, "the generation")


WAIT_STORE = Suite[SubjectStore](
    "wait_store",
    (
        an_open_wait_is_listed_with_what_people_need,
        an_answer_after_the_deadline_is_too_late,
        the_earliest_deadline_counts,
        an_end_wakes_a_parked_run,
        no_wake_up_is_lost_between_looking_and_parking,
        revoking_wakes_a_parked_run,
        revoking_again_after_a_lost_answer_changes_nothing,
    ),
)


# --- runs ---


async def _enqueued(store: Store, lane: str | None = None, target: str = "work") -> ProcessScope:
    scope = _scope()
    await store.runs.enqueue(NewRun(scope=scope, kind="process", target=target, lane=lane))
    return scope


async def _claim(store: Store, worker: WorkerId, limit: int = 100) -> list[Claim]:
    return await store.runs.claim(worker, f"token-{next(_ids)}", limit=limit, targets=["work"])


async def _claimed(store: Store) -> Claim:
    worker = await _worker(store)
    scope = await _enqueued(store)
    return next(claim for claim in await _claim(store, worker) if claim.run.scope == scope)


async def a_run_is_enqueued_once(store: SubjectStore) -> None:
    new = NewRun(scope=_scope(), kind="process", target="work", input=b"first")
    first = await store.runs.enqueue(new)
    second = await store.runs.enqueue(NewRun(scope=new.scope, kind="process", input=b"second"))
    equal((second.id, second.input), (first.id, b"first"), "the run enqueued again")


async def a_run_is_claimed_once(store: SubjectStore) -> None:
    scopes = {await _enqueued(store) for _ in range(30)}
    workers = [await _worker(store) for _ in range(6)]
    batches = await together(*(_claim(store, worker, 7) for worker in workers))
    claimed = [claim.run.scope for batch in batches for claim in batch]
    equal(len(claimed), len(set(claimed)), "runs claimed, each by one worker")
    claimed += [claim.run.scope for claim in await _claim(store, workers[0])]
    equal(set(claimed), scopes, "the runs claimed in the end")


async def a_claim_repeated_after_a_lost_answer_is_the_same(store: SubjectStore) -> None:
    worker = await _worker(store)
    await _enqueued(store)
    first = await store.runs.claim(worker, "the-token", limit=10, targets=["work"])
    second = await store.runs.claim(worker, "the-token", limit=10, targets=["work"])
    equal([claim.fence for claim in second], [claim.fence for claim in first], "the claims")


async def only_known_targets_are_claimed(store: SubjectStore) -> None:
    worker = await _worker(store)
    await _enqueued(store, target="unknown")
    equal(await _claim(store, worker), [], "the claims of a worker that does not know the target")


async def a_run_that_was_woken_does_not_park(store: SubjectStore) -> None:
    claim = await _claimed(store)
    await store.runs.wake(claim.fence.run)
    equal(await store.runs.park(claim.fence, claim.run.wake_seq), False, "parking")
    view = await store.runs.get(claim.run.scope)
    holds(view and view.state is RunState.RUNNING, "it goes on running")
    holds(view and await store.runs.park(claim.fence, view.wake_seq), "after another look it parks")


async def a_parked_run_is_ready_when_its_time_has_come(store: SubjectStore) -> None:
    claim, worker = await _claimed(store), await _worker(store)
    now = (await store.journal.attach(_scope(), worker)).now
    await store.runs.park(claim.fence, claim.run.wake_seq, now)
    due = await store.runs.next_due()
    holds(due is not None and due <= 0, "the scheduler must look now")
    (again,) = await _claim(store, worker)
    equal(again.run.scope, claim.run.scope, "the run that is due")
    holds(again.fence.token != claim.fence.token, "a claim makes a new fence")


async def a_lane_runs_one_at_a_time_in_order(store: SubjectStore) -> None:
    worker = await _worker(store)
    scopes = [await _enqueued(store, lane="lane") for _ in range(4)]
    for scope in scopes:
        (claim,) = await _claim(store, worker)
        equal(claim.run.scope, scope, "the run whose turn it is")
        equal(await _claim(store, worker), [], "what else can be claimed")
        await store.runs.settle(claim.fence, RunState.COMPLETED, b"1")
    equal(await _claim(store, worker), [], "after the last")


async def a_waiting_or_blocked_run_keeps_its_lane(store: SubjectStore) -> None:
    worker = await _worker(store)
    first, second = await _enqueued(store, lane="kept"), await _enqueued(store, lane="kept")
    (claim,) = await _claim(store, worker)
    await store.runs.park(claim.fence, claim.run.wake_seq)
    equal(await _claim(store, worker), [], "while the first waits")
    await store.runs.wake(claim.fence.run)
    (claim,) = await _claim(store, worker)
    await store.runs.block(claim.fence, "crash_loop")
    equal(await _claim(store, worker), [], "while the first is blocked")
    equal(await store.runs.retry(claim.fence.run), True, "a blocked run is retried")
    (claim,) = await _claim(store, worker)
    equal(claim.run.scope, first, "the first, retried")
    await store.runs.settle(claim.fence, RunState.COMPLETED, None)
    (claim,) = await _claim(store, worker)
    equal(claim.run.scope, second, "the second, in its turn")


async def racing_claims_never_share_a_lane(store: SubjectStore) -> None:
    workers = [await _worker(store) for _ in range(4)]
    left, running, most = 60, 0, 0

    async def enqueue() -> None:
        for _ in range(15):
            await _enqueued(store, lane="busy")

    async def work(worker: WorkerId) -> None:
        nonlocal left, running, most
        while left:
            for claim in await _claim(store, worker, 3):
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.001)
                running -= 1
                await store.runs.settle(claim.fence, RunState.COMPLETED, None)
                left -= 1

    async with asyncio.timeout(30):
        await together(*(enqueue() for _ in range(4)), *(work(worker) for worker in workers))
    equal(most, 1, "runs of one lane at the same time")


async def settling_again_after_a_lost_answer_changes_nothing(store: SubjectStore) -> None:
    claim = await _claimed(store)
    for _ in range(2):
        await store.runs.settle(claim.fence, RunState.COMPLETED, b"result")
    view = await store.runs.get(claim.run.scope)
    holds(view and (view.state, view.result) == (RunState.COMPLETED, b"result"), "the run's end")
    late = store.journal.record(claim.fence, _entry("late"))
    await refused(late, "lease_lost", "a record after the end")
    await store.runs.wake(claim.fence.run)
    view = await store.runs.get(claim.run.scope)
    holds(view and view.state is RunState.COMPLETED, "a wake-up after the end")


RUN_STORE = Suite[SubjectStore](
    "run_store",
    (
        a_run_is_enqueued_once,
        a_run_is_claimed_once,
        a_claim_repeated_after_a_lost_answer_is_the_same,
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
    worker, me = await _worker(store), await _worker(store)
    fence = (await store.journal.attach(_scope(), worker)).fence
    equal(await store.workers.bury_the_dead(me), [], "the dead")
    equal((await store.journal.record(fence, _entry())).outcome, b"1", "its next record")
    equal(await store.workers.beat(worker, _LEASE), True, "its next beat")


async def the_runs_of_an_expired_worker_are_ready(store: SubjectStore) -> None:
    scope = await _enqueued(store)
    gone = await _worker(store, ttl=_OVER)
    (claim,) = await _claim(store, gone)
    me = await _worker(store)
    equal(await store.workers.bury_the_dead(me), [gone], "the workers given up")
    (again,) = await _claim(store, me)
    equal(again.run.scope, scope, "its run")
    late = store.journal.record(claim.fence, _entry())
    await refused(late, "lease_lost", "a record of the worker that was given up")
    equal(await store.workers.beat(gone, _LEASE), False, "its next beat")


async def leaving_gives_the_runs_back(store: SubjectStore) -> None:
    scope = await _enqueued(store)
    leaver, me = await _worker(store), await _worker(store)
    await _claim(store, leaver)
    await store.workers.leave(leaver)
    (again,) = await _claim(store, me)
    equal(again.run.scope, scope, "the run of the worker that left")


async def a_listener_hears_of_changes(store: SubjectStore) -> None:
    heard = list[str]()
    stop = store.subscribe(heard.append)
    name = _name()
    await store.waits.resolve(name, Ok(1))
    await asyncio.sleep(0)
    holds(f"wait:{name.id}" in heard, "the end of a wait, in this process")
    stop()


async def a_listener_elsewhere_hears_of_changes(store: SubjectStore) -> None:
    other = await store.second()
    if other is None:
        return
    heard = asyncio.Event()
    other.subscribe(_setting(heard))
    await store.waits.resolve(_name(), Ok(1))
    async with asyncio.timeout(10):
        await heard.wait()


def _setting(event: asyncio.Event) -> Callable[[str], None]:
    return lambda _: event.set()


WORKER_STORE = Suite[SubjectStore](
    "worker_store",
    (
        a_live_worker_is_left_alone,
        the_runs_of_an_expired_worker_are_ready,
        leaving_gives_the_runs_back,
        a_listener_hears_of_changes,
        a_listener_elsewhere_hears_of_changes,
    ),
)

__all__ = ("JOURNAL_STORE", "RUN_STORE", "WAIT_STORE", "WORKER_STORE", "Broken", "SubjectStore")
