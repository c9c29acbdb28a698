"""What every store promises of processes that may not run: slots, crash loops, unknown targets."""

from __future__ import annotations

import asyncio

from pylash.durable.commands import CancelProcess, StartProcess
from pylash.durable.processes import ProcessFilter, Slot, Success
from pylash.durable.runs import SECOND, Claim, RunState, WorkerId
from pylash.durable.stores import Store
from pylash.testing.laws.stores.subjects import (
    LEASE,
    OVER,
    TARGET,
    SubjectStore,
    ask,
    claim_processes,
    ids,
    joined,
    record_of,
    recorded,
    started,
    woken_by_signal,
    work,
)
from pylash.testing.laws.suites import equal, holds, together

LOOPS = 10
"""Claims without progress after which a run is blocked."""


def _slot(limit: int = 1) -> Slot:
    return Slot(f"key-{next(ids)}", limit)


async def _queue(store: Store, slot: Slot, count: int) -> list[str]:
    """Start processes one after the other, so that the store's clock can tell them apart."""
    processes = []
    for _ in range(count):
        processes.append(await started(store, slot=slot))
        await asyncio.sleep(0.003)
    return processes


async def _settle(store: Store, claim: Claim) -> None:
    await store.processes.settle(claim.fence, claim.fence.run, Success(None))


# --- slots ---


async def a_key_admits_as_many_as_its_limit_in_order(store: SubjectStore) -> None:
    slot, worker = _slot(2), await joined(store)
    processes = await _queue(store, slot, 4)
    free = await started(store, slot=_slot())
    claims = {claim.run.scope.id: claim for claim in await claim_processes(store, worker)}
    equal(set(claims), {*processes[:2], free}, "what runs")
    equal(await claim_processes(store, worker), [], "what else can be claimed")
    for ending, following in zip(processes[:2], processes[2:], strict=True):
        await _settle(store, claims[ending])
        (claim,) = await claim_processes(store, worker)
        equal(claim.run.scope.id, following, "the next")


async def the_next_is_let_in_when_one_stops_executing(store: SubjectStore) -> None:
    worker, slot = await joined(store), _slot()
    processes = await _queue(store, slot, 4)
    (parks,) = await claim_processes(store, worker)
    equal(parks.run.scope.id, processes[0], "the first")
    holds(await store.runs.park(parks.fence, parks.run.wake_seq), "it parks")
    (blocks,) = await claim_processes(store, worker)
    equal(blocks.run.scope.id, processes[1], "who is let in by one that waits")
    await store.runs.block(blocks.fence, "why")
    (settles,) = await claim_processes(store, worker)
    equal(settles.run.scope.id, processes[2], "who is let in by one that is blocked")
    await woken_by_signal(store, parks)
    equal(await claim_processes(store, worker), [], "one that waited takes a slot like the others")
    await store.processes.perform(CancelProcess(processes[2], force=True))
    (last,) = await claim_processes(store, worker)
    equal(last.run.scope.id, processes[3], "who is let in by force")
    await _settle(store, last)
    (again,) = await claim_processes(store, worker)
    equal(again.run.scope.id, processes[0], "the one that waited")


async def going_on_gives_the_slot_to_the_next(store: SubjectStore) -> None:
    worker, slot = await joined(store), _slot()
    first, second = await _queue(store, slot, 2)
    (claim,) = await claim_processes(store, worker)
    await store.processes.continue_as(claim.fence, work(first, slot=slot))
    (claim,) = await claim_processes(store, worker)
    equal(claim.run.scope.id, second, "the next")
    await _settle(store, claim)
    (claim,) = await claim_processes(store, worker)
    equal(claim.run.scope.id, first, "the one that goes on")


async def a_slot_survives_its_worker(store: SubjectStore) -> None:
    slot, gone, me = _slot(), await joined(store, OVER), await joined(store)
    first, _ = await _queue(store, slot, 2)
    await claim_processes(store, gone)
    await store.workers.bury_the_dead(me)
    (claim,) = await claim_processes(store, me)
    equal(claim.run.scope.id, first, "the one that had the slot")


async def never_more_than_the_limit_execute_and_none_is_left_behind(store: SubjectStore) -> None:
    clients = (store, await store.second() or store)
    workers = [(client, await joined(client)) for client in clients for _ in range(2)]
    slot, count = _slot(2), 40
    ended, executing, most = set[int](), 0, 0
    for _ in range(count):
        await started(store, slot=slot)

    async def run(client: Store, claim: Claim, n: int) -> None:
        nonlocal executing, most
        executing += 1
        most = max(most, executing)
        await asyncio.sleep(0.001)
        executing -= 1
        if n % 3 == 0 and claim.run.attempts == 1 and not claim.run.wake_seq:
            await client.runs.park(claim.fence, claim.run.wake_seq)
            await woken_by_signal(client, claim)
        elif n % 7 == 0:
            await client.journal.release(claim.fence)
        else:
            await _settle(client, claim)
            ended.add(claim.fence.run)

    async def work_on(client: Store, worker: WorkerId) -> None:
        while len(ended) < count:
            for claim in await claim_processes(client, worker, 3):
                await run(client, claim, next(ids))
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await together(*(work_on(*worker) for worker in workers))
    holds(most <= slot.limit, f"{most} executed at once under a limit of {slot.limit}")


async def claims_at_once_never_exceed_the_limit(store: SubjectStore) -> None:
    clients = (store, await store.second() or store)
    workers = [(client, await joined(client)) for client in clients for _ in range(3)]
    for n in range(15):
        slot = _slot(2)
        processes = await together(*(started(store, slot=slot) for _ in range(12)))
        batches = await together(*(claim_processes(*worker, 2) for worker in workers))
        claims = [claim for batch in batches for claim in batch]
        equal(len(claims), slot.limit, f"try {n}: what runs")
        for process in processes:
            await store.processes.perform(CancelProcess(process, force=True))


async def a_slot_is_not_given_to_one_that_is_ended_meanwhile(store: SubjectStore) -> None:
    other, worker = await store.second() or store, await joined(store)
    for n in range(40):
        slot = _slot()
        processes = [await started(store, slot=slot) for _ in range(2)]
        (claim,) = await claim_processes(store, worker)
        held = next(one for one in processes if one != claim.run.scope.id)
        await together(_settle(store, claim), ask(other, CancelProcess(held, force=True)))
        await started(store, slot=slot)
        (claim,) = await claim_processes(store, worker)
        await _settle(store, claim)
        holds(claim, f"try {n}: the slot is free")


# --- attempts ---


async def _crash(store: Store, *, progress: bool = False, suspect: bool = False) -> list[str]:
    """Claim what is ready on a worker that dies of it; return what it claimed."""
    gone = await joined(store, OVER)
    claims = await claim_processes(store, gone, suspect=suspect)
    for claim in claims:
        if progress:
            await store.journal.record(claim.fence, recorded(f"step-{next(ids)}"))
    await store.workers.bury_the_dead(await joined(store))
    return [claim.run.scope.id for claim in claims]


async def who_crashes_three_times_without_progress_runs_alone(store: SubjectStore) -> None:
    process, me = await started(store), await joined(store)
    for _ in range(3):
        equal(await _crash(store), [process], "what the dead had claimed")
    equal(await claim_processes(store, me), [], "what runs beside others")
    equal((await store.runs.next_due([TARGET]))[1], True, "a suspect is ready")
    (claim,) = await claim_processes(store, me, suspect=True)
    equal(claim.run.scope.id, process, "what runs alone")


async def who_crashes_ten_times_without_progress_is_blocked(store: SubjectStore) -> None:
    slot = _slot()
    process, following = await _queue(store, slot, 2)
    for n in range(LOOPS):
        equal(await _crash(store, suspect=n >= 3), [process], "what the dead had claimed")
    record = await record_of(store, process)
    equal((record.run_state, record.reason), (RunState.BLOCKED, "crash_loop"), "the process")
    (claim,) = await claim_processes(store, await joined(store))
    equal(claim.run.scope.id, following, "who gets its slot")
    holds(await store.runs.retry(record.run, "token"), "it is tried again")
    await _settle(store, claim)
    (claim,) = await claim_processes(store, await joined(store))
    equal((claim.run.scope.id, claim.run.attempts), (process, 1), "and counted anew")


async def progress_ends_the_count(store: SubjectStore) -> None:
    process = await started(store)
    for n in range(LOOPS + 2):
        equal(await _crash(store, progress=n % 2 == 0), [process], "what the dead had claimed")
    equal((await record_of(store, process)).run_state, RunState.QUEUED, "the process")


async def giving_up_in_order_never_counts(store: SubjectStore) -> None:
    process = await started(store)
    for n in range(LOOPS + 2):
        worker = await joined(store)
        (claim,) = await claim_processes(store, worker)
        equal((claim.run.scope.id, claim.run.attempts), (process, 1), "the claim")
        match n % 3:
            case 0:
                await store.journal.release(claim.fence)
            case 1:
                await store.workers.leave(worker)
            case _:
                await store.runs.park(claim.fence, claim.run.wake_seq)
                await woken_by_signal(store, claim)


# --- targets ---


BLOCKED = ProcessFilter(statuses=("blocked",))


async def an_unknown_target_is_shown_as_blocked_and_nobody_wrote_it(store: SubjectStore) -> None:
    process, later = await started(store), work()
    await store.processes.start(StartProcess(later, delay=3_600 * SECOND))
    view = await store.processes.view(process)
    holds(view, "the process")
    shown = view and (view.status, view.reason, view.target)
    equal(shown, (RunState.BLOCKED, "unknown_target", TARGET), "what is shown")
    blocked = await store.processes.listed(BLOCKED, 10)
    equal([one.id for one in blocked], [process], "what is listed as blocked")
    record = await record_of(store, process)
    equal((record.run_state, record.reason), (RunState.QUEUED, None), "what is written")
    worker = WorkerId(f"worker-{next(ids)}")
    await store.workers.join(worker, LEASE, [TARGET])
    view = await store.processes.view(process)
    equal(view and (view.status, view.reason), (RunState.QUEUED, None), "once a worker knows it")
    equal(await store.processes.listed(BLOCKED, 10), [], "what is listed as blocked then")
    newest = [one.id for one in await store.processes.listed(ProcessFilter(), 1)]
    equal(newest, [later.id], "the newest of all")
    equal(await store.processes.view("nobody"), None, "a process that is not there")


SLOT_LAWS = (
    a_key_admits_as_many_as_its_limit_in_order,
    the_next_is_let_in_when_one_stops_executing,
    going_on_gives_the_slot_to_the_next,
    a_slot_survives_its_worker,
    never_more_than_the_limit_execute_and_none_is_left_behind,
    claims_at_once_never_exceed_the_limit,
    a_slot_is_not_given_to_one_that_is_ended_meanwhile,
    who_crashes_three_times_without_progress_runs_alone,
    who_crashes_ten_times_without_progress_is_blocked,
    progress_ends_the_count,
    giving_up_in_order_never_counts,
    an_unknown_target_is_shown_as_blocked_and_nobody_wrote_it,
)
