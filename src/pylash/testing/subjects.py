"""Stores under test, and what the laws of stores begin with."""

from __future__ import annotations

import itertools
from typing import Protocol

from pylash.durable import (
    SECOND,
    Answer,
    AwaitEvent,
    Claim,
    CustomWait,
    Fence,
    JournalEntry,
    NewRun,
    ProcessScope,
    RuntimeScope,
    Store,
    WaitName,
    WaitOpening,
    WorkerId,
    envelope,
)

TRIES = 100
"""How often a race is run."""

LEASE = 60 * SECOND
OVER = 0
ids = itertools.count(1)


class SubjectStore(Store, Protocol):
    """A store under test: it can be opened a second time, as another process would."""

    async def second(self) -> Store | None:
        """Open the same database beside this one; None if nobody else can see it."""
        ...


def new_scope() -> ProcessScope:
    """Return a scope nobody used before."""
    return ProcessScope(f"process-{next(ids)}")


async def joined(store: Store, ttl: int = LEASE) -> WorkerId:
    """Join a new worker, whose lease lasts ttl."""
    worker = WorkerId(f"worker-{next(ids)}")
    await store.workers.join(worker, ttl)
    return worker


async def owned(store: Store, ttl: int = LEASE) -> Fence:
    """Return the fence of a fresh run, owned by a worker whose lease lasts ttl."""
    return (await store.journal.attach(new_scope(), await joined(store, ttl))).fence


def recorded(
    key: str = "step", outcome: bytes | None = b"1", digest: bytes = b"hash"
) -> JournalEntry:
    """Return an entry to record."""
    return JournalEntry(key, "durable_step", digest, b"{}", outcome, len(outcome or b""), started=1)


def wait_name(key: str = "go") -> WaitName:
    """Return a wait nobody used before."""
    return WaitName(new_scope(), CustomWait(key))


def waiting_effect(name: WaitName) -> tuple[JournalEntry, WaitOpening]:
    """Return a wait as an effect: the entry to record and the wait to open."""
    asked = envelope(AwaitEvent("key"), scope=RuntimeScope(), effect_id="wait", replay_key="wait")
    entry = JournalEntry("wait", asked.command.kind, b"hash", b"{}", started=1)
    return entry, WaitOpening(name=name, title="A wait")


def fresh_answer() -> Answer:
    """Return an answer that nobody gave before."""
    return Answer(f"answer-{next(ids)}")


async def enqueued(store: Store, lane: str | None = None, target: str = "work") -> ProcessScope:
    """Enqueue a new run and return its scope."""
    scope = new_scope()
    await store.runs.enqueue(NewRun(scope=scope, kind="process", target=target, lane=lane))
    return scope


async def claim_ready(store: Store, worker: WorkerId, limit: int = 100) -> list[Claim]:
    """Claim what is ready, under a token of its own."""
    return await store.runs.claim(worker, f"token-{next(ids)}", limit=limit, targets=["work"])


async def claimed(store: Store) -> Claim:
    """Enqueue a new run and claim it."""
    worker = await joined(store)
    scope = await enqueued(store)
    return next(claim for claim in await claim_ready(store, worker) if claim.run.scope == scope)


async def owner_of(store: Store, fence: Fence) -> WorkerId:
    """Return who owns the run."""
    run = await store.runs.get(fence.scope)
    assert run is not None
    assert run.owner is not None
    return run.owner
