"""Scenarios of crashes: concurrency keys, and workers whose runs are taken over."""

from __future__ import annotations

from pylash.durable.commands import CancelProcess, StartProcess
from pylash.durable.processes import Slot, Success
from pylash.durable.runs import Fence
from pylash.stores.store import SqlStore
from pylash.stores.tables.runs import BLOCKED_AFTER
from tests.backends import lockless
from tests.crash.process_scenarios import STEP, TARGET, asking, leased, members, work
from tests.crash.run_scenarios import claimed, owned
from tests.crash.statements import ALIVE, W1, W2, Scenario, tick

ONE = Slot("key", 1)


async def slotted(store: SqlStore) -> None:
    """Start three processes of which one may run."""
    await members(store)
    for n in range(3):
        await tick()
        await store.processes.start(StartProcess(work(f"p{n}", slot=ONE)))


async def executing(store: SqlStore) -> Fence:
    """Run the first of them and hold the others back."""
    await slotted(store)
    (claim,) = await store.runs.claim(W1, limit=5, targets=[TARGET])
    return claim.fence


async def one_more(store: SqlStore) -> None:
    await executing(store)
    await tick()
    await store.processes.start(StartProcess(work("p3", slot=ONE)))


async def parked(store: SqlStore) -> Fence:
    fence = await executing(store)
    await store.runs.park(fence, 0)
    return fence


async def progressed(store: SqlStore) -> Fence:
    fence = await leased(store)
    await store.journal.record(fence, STEP)
    return fence


async def looping(store: SqlStore) -> None:
    """Let a process with a slot crash as often as it may."""
    await slotted(store)
    for n in range(BLOCKED_AFTER):
        await lockless(store).join(W1, ALIVE, [TARGET])
        await store.runs.claim(W1, limit=5, targets=[TARGET], suspect=n >= 3)
        if n < BLOCKED_AFTER - 1:
            await lockless(store).bury_the_dead(W2)


SLOT_SCENARIOS = {
    "start: slot": Scenario(
        members, lambda s, _: s.processes.start(StartProcess(work(slot=ONE)), W1)
    ),
    "claim: slots": Scenario(
        slotted, lambda s, _: s.runs.claim(W2, limit=5, targets=[TARGET]), same=False
    ),
    "claim: held back": Scenario(
        one_more, lambda s, _: s.runs.claim(W2, limit=5, targets=[TARGET]), same=False
    ),
    "claim: the next": Scenario(
        parked, lambda s, _: s.runs.claim(W2, limit=5, targets=[TARGET]), same=False
    ),
    "park: slot": Scenario(executing, lambda s, f: s.runs.park(f, 0)),
    "postpone: slot": Scenario(executing, lambda s, f: s.runs.postpone(f, "why")),
    "block: slot": Scenario(executing, lambda s, f: s.runs.block(f, "why")),
    "settle: slot": Scenario(executing, lambda s, f: s.processes.settle(f, f.run, Success(1))),
    "continue_as: slot": Scenario(
        executing, lambda s, f: s.processes.continue_as(f, work("p0", slot=ONE))
    ),
    "perform: cancel by force, slot": Scenario(
        executing, asking(CancelProcess("p0", "why", force=True))
    ),
    "_take_over": Scenario(claimed, lambda s, _: lockless(s).bury_the_dead(W2), same=False),
    "_take_over: progress": Scenario(
        progressed, lambda s, _: lockless(s).bury_the_dead(W2), same=False
    ),
    "_take_over: crash loop": Scenario(
        looping, lambda s, _: lockless(s).bury_the_dead(W2), same=False
    ),
    "_take_over: left": Scenario(owned, lambda s, _: lockless(s).leave(W1), same=False),
}
