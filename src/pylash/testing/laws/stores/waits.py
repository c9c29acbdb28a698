"""What every store promises about waits, and the wake-ups they cause.

The laws that race do so many times: the naive version of each rule fails within a few tries.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from pylash.durable.runs import SECOND, Claim, JournalEntry, RunState
from pylash.durable.scopes import TurnScope
from pylash.durable.stores import WaitOpening
from pylash.durable.waits import CustomWait, Ok, ResolveOutcome, Timeout, WaitName
from pylash.testing.laws.stores.subjects import (
    TRIES,
    SubjectStore,
    claimed,
    fresh_answer,
    wait_name,
    waiting_effect,
)
from pylash.testing.laws.suites import Suite, equal, holds, together


async def an_open_wait_is_listed_with_what_people_need(store: SubjectStore) -> None:
    name = WaitName(TurnScope("s1", "t1"), CustomWait("approve"))
    opening = WaitOpening(
        name=name, kind="approval", title="Refund?", tool="refund", arguments=b'{"cents":5}'
    )
    await store.waits.open(opening)
    await store.waits.open(WaitOpening(name=wait_name()))
    (wait,) = await store.waits.listed("s1")
    shown = (wait.name, wait.kind, wait.title, wait.tool, wait.arguments)
    equal(shown, (name, "approval", "Refund?", "refund", {"cents": 5}), "what is shown")
    equal(len(await store.waits.listed()), 2, "the waits of all sessions")
    await store.waits.resolve(name, Ok(True), fresh_answer())
    equal(await store.waits.listed("s1"), [], "after the answer")


async def who_only_waits_does_not_blank_what_is_shown(store: SubjectStore) -> None:
    name = wait_name()
    await store.waits.open(WaitOpening(name=name, kind="approval", title="Refund?", tool="refund"))
    await store.waits.open(WaitOpening(name=name))
    (wait,) = await store.waits.listed()
    equal((wait.kind, wait.title, wait.tool), ("approval", "Refund?", "refund"), "what is shown")


async def an_answer_repeated_after_it_was_lost_is_the_same(store: SubjectStore) -> None:
    name, same = wait_name(), fresh_answer()
    for _ in range(2):
        outcome = await store.waits.resolve(name, Ok(1), same)
        equal(outcome.status, "accepted", "the same answer")
    outcome = await store.waits.resolve(name, Ok(1), fresh_answer())
    equal(outcome.status, "already_resolved", "another answer")


async def a_run_that_waits_twice_for_one_wait_is_woken(store: SubjectStore) -> None:
    claim = await claimed(store)
    entry, opening = waiting_effect(wait_name())
    for key in ("wait", "wait#2"):
        effect = JournalEntry(key, entry.kind, entry.hash, entry.command, started=1)
        await store.waits.open_for(claim.fence, effect, opening)
    await store.runs.park(claim.fence, claim.run.wake_seq)
    async with asyncio.timeout(10):
        outcome = await store.waits.resolve(opening.name, Ok(1), fresh_answer())
    equal(outcome.status, "accepted", "the answer")
    run = await store.runs.get(claim.run.scope)
    holds(run is not None and run.state is RunState.QUEUED, "the end makes it ready")


async def an_answer_after_the_deadline_is_too_late(store: SubjectStore) -> None:
    name = wait_name()
    await store.waits.open(WaitOpening(name=name, timeout=0))
    outcome = await store.waits.resolve(name, Ok("late"), fresh_answer())
    equal(outcome, ResolveOutcome("already_resolved", Timeout()), "the late answer")


async def the_earliest_deadline_counts(store: SubjectStore) -> None:
    name = wait_name()
    await store.waits.open(WaitOpening(name=name))
    first = await store.waits.open(WaitOpening(name=name, timeout=5 * SECOND))
    second = await store.waits.open(WaitOpening(name=name, timeout=90 * SECOND))
    holds(first.remaining and second.remaining, "both have a deadline")
    holds((second.remaining or 0) <= (first.remaining or 0), "a later one does not push it back")


async def a_waiter_does_not_leave_before_its_time_is_over(store: SubjectStore) -> None:
    claim = await claimed(store)
    entry, opening = waiting_effect(wait_name())
    opening = replace(opening, within=90 * SECOND)
    await store.waits.open_for(claim.fence, entry, opening)
    status = await store.waits.leave(claim.fence, entry.key, opening.name)
    holds(status.terminal is None, "by the clock of the store it is too early")
    holds(0 < (status.remaining or 0) <= 90 * SECOND, "the rest of its time")
    equal(len(await store.waits.listed()), 1, "the waits that are listed")


async def an_answer_after_a_waiter_has_left_is_for_the_next_one(store: SubjectStore) -> None:
    claim = await claimed(store)
    entry, opening = waiting_effect(wait_name())
    await store.waits.open_for(claim.fence, entry, replace(opening, within=0))
    left = Timeout(still_open=True)
    status = await store.waits.leave(claim.fence, entry.key, opening.name)
    equal(status.terminal, left, "the end of the first")
    equal(await store.waits.listed(), [], "the waits that are listed")
    outcome = await store.waits.resolve(opening.name, Ok(1), fresh_answer())
    equal(outcome.status, "accepted", "the answer")
    status = await store.waits.leave(claim.fence, entry.key, opening.name)
    equal(status.terminal, left, "the end of the first, asked again after it was lost")
    following = replace(entry, key="wait#2")
    _, status = await store.waits.open_for(claim.fence, following, opening)
    equal(status.terminal, Ok(1), "the end of the next one")


async def a_waiter_that_was_cancelled_before_it_waits_is_not_listed(store: SubjectStore) -> None:
    claim = await claimed(store)
    entry, opening = waiting_effect(wait_name())
    cancelled = replace(entry, outcome=b"{}", size=2, ended=2)
    delivered = await store.journal.deliver(claim.fence, [], [cancelled])
    equal(delivered, {entry.key}, "the cancelled effects")
    stands, _ = await store.waits.open_for(claim.fence, entry, opening)
    equal(stands.outcome, b"{}", "what stands")
    equal(await store.waits.listed(), [], "the waits that are listed")


async def an_end_wakes_a_parked_run(store: SubjectStore) -> None:
    claim = await claimed(store)
    entry, opening = waiting_effect(wait_name())
    await store.waits.open_for(claim.fence, entry, opening)
    holds(await store.runs.park(claim.fence, claim.run.wake_seq), "the run parks")
    await store.waits.resolve(opening.name, Ok(1), fresh_answer())
    run = await store.runs.get(claim.run.scope)
    holds(run and run.state is RunState.QUEUED and run.at is not None, "the end makes it ready")


async def no_wake_up_is_lost_between_looking_and_parking(store: SubjectStore) -> None:
    for n in range(TRIES):
        claim = await claimed(store)
        entry, opening = waiting_effect(wait_name())

        async def run(
            claim: Claim = claim, what: tuple[JournalEntry, WaitOpening] = (entry, opening)
        ) -> None:
            _, status = await store.waits.open_for(claim.fence, *what)
            if status.terminal is None:
                await store.runs.park(claim.fence, claim.run.wake_seq)

        async def answer(name: WaitName = opening.name, after: float = 0.0002 * (n % 10)) -> None:
            await asyncio.sleep(after)
            await store.waits.resolve(name, Ok(1), fresh_answer())

        await together(run(), answer())
        view = await store.runs.get(claim.run.scope)
        holds(
            view is not None and view.state is not RunState.WAITING, f"try {n}: the run sleeps on"
        )


async def revoking_wakes_a_parked_run(store: SubjectStore) -> None:
    claim = await claimed(store)
    entry, opening = waiting_effect(WaitName(TurnScope("revoked", "t1"), CustomWait("go")))
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
        who_only_waits_does_not_blank_what_is_shown,
        an_answer_repeated_after_it_was_lost_is_the_same,
        a_run_that_waits_twice_for_one_wait_is_woken,
        an_answer_after_the_deadline_is_too_late,
        the_earliest_deadline_counts,
        a_waiter_does_not_leave_before_its_time_is_over,
        an_answer_after_a_waiter_has_left_is_for_the_next_one,
        a_waiter_that_was_cancelled_before_it_waits_is_not_listed,
        an_end_wakes_a_parked_run,
        no_wake_up_is_lost_between_looking_and_parking,
        revoking_wakes_a_parked_run,
        revoking_again_after_a_lost_answer_changes_nothing,
    ),
)
