"""Scenarios of crashes: the journal, waits, runs and workers."""

from __future__ import annotations

from pylash.durable.commands import CancelProcess, StartProcess
from pylash.durable.processes import EngineInput, Registration
from pylash.durable.runs import SECOND, Fence, JournalEntry
from pylash.durable.scopes import ProcessScope, TurnScope
from pylash.durable.stores import Answer, WaitOpening
from pylash.durable.waits import CustomWait, Ok, WaitName
from pylash.stores.store import SqlStore
from tests.backends import lockless
from tests.crash.statements import ALIVE, W1, W2, Scenario, part, tick

SESSION = TurnScope("s1", "t1")
NAME = WaitName(SESSION, CustomWait("go"))
SCOPES = [ProcessScope(f"p{n}") for n in range(4)]
STEP = JournalEntry("step", "durable_step", b"hash", b"{}", b"1", 1, started=1)
OPEN = JournalEntry("open", "sleep", b"hash", b"{}", started=1)
HUGE = JournalEntry("huge", "durable_step", b"h", None, b"x" * 1_100_000, 1_100_000)
NOTES = [JournalEntry(key, "now", b"", None, b"1", 1, started=1, ended=1) for key in ("now", "!p")]


async def nothing(store: SqlStore) -> None:
    await lockless(store).join(W2, ALIVE)


async def owned(store: SqlStore, ttl: int = ALIVE) -> Fence:
    await lockless(store).join(W1, ttl)
    await lockless(store).join(W2, ALIVE)
    return (await store.journal.attach(SCOPES[0], W1)).fence


async def expired(store: SqlStore) -> Fence:
    return await owned(store, 0)


async def sleeping(store: SqlStore) -> Fence:
    fence = await owned(store)
    await store.journal.begin_sleep(fence, OPEN, SECOND)
    return fence


async def waiting(store: SqlStore) -> Fence:
    fence = await claimed(store)
    await store.waits.open_for(fence, OPEN, WaitOpening(name=NAME, timeout=500 * SECOND))
    await store.runs.park(fence, 0)
    return fence


async def waiting_long(store: SqlStore) -> Fence:
    fence = await claimed(store)
    await store.waits.open_for(fence, OPEN, WaitOpening(name=NAME))
    await store.runs.park(fence, 0)
    return fence


async def waiting_briefly(store: SqlStore) -> Fence:
    fence = await owned(store)
    await store.waits.open_for(fence, OPEN, WaitOpening(name=NAME, within=SECOND))
    return fence


async def enqueued(store: SqlStore) -> None:
    await lockless(store).join(W1, ALIVE)
    await lockless(store).join(W2, ALIVE)
    for scope in SCOPES[:3]:
        await tick()
        registration = Registration(id=scope.id, input=EngineInput("python", "work", {}))
        await store.processes.start(StartProcess(registration))


async def claimed(store: SqlStore) -> Fence:
    await enqueued(store)
    (claim,) = await store.runs.claim(W1, limit=1, targets=["python:work"])
    return claim.fence


async def blocked(store: SqlStore) -> Fence:
    fence = await claimed(store)
    await store.runs.block(fence, "why")
    return fence


async def tried(store: SqlStore) -> Fence:
    fence = await claimed(store)
    await store.runs.block(fence, "process_code_error: why")
    assert await store.runs.begin_trials(["python:work"], ["process_code_error"], 0, 5)
    return fence


async def carried(store: SqlStore) -> int:
    """Enqueue a run of another engine."""
    await lockless(store).join(W1, ALIVE)
    given = Registration(id="far", input=EngineInput("python", "work", {}), carrier="restate")
    await store.processes.start(StartProcess(given))
    record = await store.processes.get("far")
    assert record is not None
    return record.run


async def parked_far(store: SqlStore) -> Fence:
    (taken,) = (await store.runs.take([await carried(store)], W1, "token")).values()
    assert await store.runs.park(taken.fence, taken.wake_seq, None, "bell-1")
    return taken.fence


async def taken_far(store: SqlStore) -> Fence:
    (taken,) = (await store.runs.take([await carried(store)], W1, "token")).values()
    return taken.fence


async def blocked_far(store: SqlStore) -> Fence:
    fence = await taken_far(store)
    await store.runs.block(fence, "why")
    return fence


async def forced_far(store: SqlStore) -> Fence:
    fence = await parked_far(store)
    await store.processes.perform(CancelProcess("far", "enough", force=True), None)
    return fence


RUN_SCENARIOS = {
    "collect": Scenario(
        taken_far, lambda s, fence: s.journal.collect(fence.run, [STEP, HUGE, *NOTES])
    ),
    "move": Scenario(
        taken_far, lambda s, fence: s.journal.move(fence, [STEP, HUGE, *NOTES], [OPEN], 1)
    ),
    "note_invocation": Scenario(
        blocked_far, lambda s, fence: s.runs.note_invocation(fence, "inv_1")
    ),
    "forget_bell": Scenario(forced_far, lambda s, fence: s.runs.forget_bell(fence.run)),
    "take": Scenario(carried, lambda s, run: s.runs.take([run], W1, "token")),
    "unpark": Scenario(parked_far, lambda s, fence: s.runs.unpark(fence, W1)),
    "_start": Scenario(nothing, lambda s, _: s.journal.attach(SESSION, W2), same=False),
    "_resume: takeover": part("_resume", expired, lambda s: s.journal.attach(SCOPES[0], W2)),
    "release": Scenario(owned, lambda s, fence: s.journal.release(fence)),
    "record": Scenario(owned, lambda s, fence: s.journal.record(fence, STEP)),
    "record: huge": Scenario(owned, lambda s, fence: s.journal.record(fence, HUGE)),
    "record: notes": Scenario(owned, lambda s, fence: s.journal.record(fence, STEP, NOTES)),
    "record: huge, notes": Scenario(owned, lambda s, fence: s.journal.record(fence, HUGE, NOTES)),
    "begin_sleep": Scenario(owned, lambda s, fence: s.journal.begin_sleep(fence, OPEN, SECOND)),
    "begin_sleep: notes": Scenario(
        owned, lambda s, fence: s.journal.begin_sleep(fence, OPEN, SECOND, NOTES)
    ),
    "close": Scenario(
        sleeping,
        lambda s, fence: s.journal.close(
            fence, JournalEntry("open", "sleep", b"hash", outcome=b"9")
        ),
    ),
    "open": Scenario(nothing, lambda s, _: s.waits.open(WaitOpening(name=NAME, title="Go?"))),
    "open_for": Scenario(
        owned, lambda s, fence: s.waits.open_for(fence, OPEN, WaitOpening(name=NAME))
    ),
    "open_for: notes": Scenario(
        owned, lambda s, fence: s.waits.open_for(fence, OPEN, WaitOpening(name=NAME), NOTES)
    ),
    "leave": Scenario(waiting_briefly, lambda s, fence: s.waits.leave(fence, OPEN.key, NAME)),
    "resolve": Scenario(
        waiting_long, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t", "ann"))
    ),
    "resolve: late": Scenario(waiting, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t"))),
    "resolve: early": Scenario(nothing, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t"))),
    "expire": Scenario(waiting, lambda s, _: s.waits.expire(NAME)),
    "revoke": Scenario(waiting_long, lambda s, _: s.waits.revoke("s1", 0)),
    "claim": Scenario(
        enqueued, lambda s, _: s.runs.claim(W2, limit=5, targets=["python:work"]), same=False
    ),
    "park": Scenario(claimed, lambda s, fence: s.runs.park(fence, 0)),
    "block": Scenario(claimed, lambda s, fence: s.runs.block(fence, "why")),
    "postpone": Scenario(claimed, lambda s, fence: s.runs.postpone(fence, "why")),
    "postpone: away": Scenario(claimed, lambda s, fence: s.runs.postpone(fence, None)),
    "_block_ready": part(
        "_block_ready",
        enqueued,
        lambda s: s.runs.claim(W1, limit=1, targets=["python:work"]),
        refused="claim",
    ),
    "end_trials": Scenario(tried, lambda s, fence: s.runs.end_trials([fence.run])),
    "retry": Scenario(blocked, lambda s, fence: s.runs.retry(fence.run, "token")),
    "_join": Scenario(nothing, lambda s, _: lockless(s).join(W2, ALIVE)),
    "beat": Scenario(owned, lambda s, _: s.workers.beat(W1, ALIVE)),
}
"""Every operation that writes."""
