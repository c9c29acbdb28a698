"""Scenarios of crashes: the journal, waits, runs and workers."""

from __future__ import annotations

from pylash.durable import (
    SECOND,
    Answer,
    CustomWait,
    Fence,
    JournalEntry,
    NewRun,
    Ok,
    ProcessScope,
    RunState,
    TurnScope,
    WaitName,
    WaitOpening,
)
from pylash.stores import SqlStore
from tests.crash.statements import ALIVE, W1, W2, Scenario, tick

SESSION = TurnScope("s1", "t1")
NAME = WaitName(SESSION, CustomWait("go"))
SCOPES = [ProcessScope(f"p{n}") for n in range(4)]
STEP = JournalEntry("step", "durable_step", b"hash", b"{}", b"1", 1, started=1)
OPEN = JournalEntry("open", "sleep", b"hash", b"{}", started=1)


async def nothing(store: SqlStore) -> None:
    await store.workers._join(W2, ALIVE)


async def owned(store: SqlStore, ttl: int = ALIVE) -> Fence:
    await store.workers._join(W1, ttl)
    await store.workers._join(W2, ALIVE)
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


async def enqueued(store: SqlStore, lane: str | None = None) -> None:
    await store.workers._join(W1, ALIVE)
    await store.workers._join(W2, ALIVE)
    for scope in SCOPES[:3]:
        await tick()
        await store.runs.enqueue(NewRun(scope=scope, kind="process", target="work", lane=lane))


async def ready(store: SqlStore) -> int:
    await enqueued(store)
    run = await store.runs.get(SCOPES[1])
    assert run is not None
    return run.id


async def claimed(store: SqlStore) -> Fence:
    await enqueued(store)
    (claim,) = await store.runs.claim(W1, "first", limit=1, targets=["work"])
    return claim.fence


async def claimed_in_lane(store: SqlStore) -> Fence:
    await enqueued(store, "lane")
    (claim,) = await store.runs.claim(W1, "first", limit=5, targets=["work"])
    return claim.fence


async def blocked(store: SqlStore) -> Fence:
    fence = await claimed(store)
    await store.runs.block(fence, "why")
    return fence


def new_run(lane: str | None) -> NewRun:
    return NewRun(scope=SCOPES[3], kind="process", target="work", lane=lane)


RUN_SCENARIOS = {
    "_start": Scenario(nothing, lambda s, _: s.journal._start(SESSION, W2), same=False),
    "_resume: takeover": Scenario(expired, lambda s, _: s.journal._resume(SCOPES[0], W2)),
    "release": Scenario(owned, lambda s, fence: s.journal.release(fence)),
    "record": Scenario(owned, lambda s, fence: s.journal.record(fence, STEP)),
    "record: huge": Scenario(
        owned,
        lambda s, fence: s.journal.record(
            fence, JournalEntry("huge", "durable_step", b"h", None, b"x" * 1_100_000, 1_100_000)
        ),
    ),
    "begin_sleep": Scenario(owned, lambda s, fence: s.journal.begin_sleep(fence, OPEN, SECOND)),
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
    "resolve": Scenario(
        waiting_long, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t", "ann"))
    ),
    "resolve: late": Scenario(waiting, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t"))),
    "resolve: early": Scenario(nothing, lambda s, _: s.waits.resolve(NAME, Ok(1), Answer("t"))),
    "expire": Scenario(waiting, lambda s, _: s.waits.expire(NAME)),
    "revoke": Scenario(waiting_long, lambda s, _: s.waits.revoke("s1", 0)),
    "enqueue": Scenario(nothing, lambda s, _: s.runs.enqueue(new_run(None))),
    "enqueue: free lane": Scenario(nothing, lambda s, _: s.runs.enqueue(new_run("lane"))),
    "enqueue: held lane": Scenario(claimed_in_lane, lambda s, _: s.runs.enqueue(new_run("lane"))),
    "claim": Scenario(
        enqueued, lambda s, _: s.runs.claim(W2, "token", limit=2, targets=["work"], again=True)
    ),
    "park": Scenario(claimed, lambda s, fence: s.runs.park(fence, 0)),
    "settle": Scenario(claimed, lambda s, fence: s.runs.settle(fence, RunState.FAILED, b"no")),
    "settle: in lane": Scenario(
        claimed_in_lane, lambda s, fence: s.runs.settle(fence, RunState.COMPLETED, b"1")
    ),
    "block": Scenario(claimed, lambda s, fence: s.runs.block(fence, "why")),
    "postpone": Scenario(claimed, lambda s, fence: s.runs.postpone(fence, "why")),
    "postpone: away": Scenario(claimed, lambda s, fence: s.runs.postpone(fence, None)),
    "_block_ready": Scenario(ready, lambda s, run: s.runs._block_ready(run, "why")),
    "retry": Scenario(blocked, lambda s, fence: s.runs.retry(fence.run, "token")),
    "_join": Scenario(nothing, lambda s, _: s.workers._join(W2, ALIVE)),
    "beat": Scenario(owned, lambda s, _: s.workers.beat(W1, ALIVE)),
}
"""Every operation that writes. ``wake`` counts, so doing it twice is two wake-ups: no harm."""
