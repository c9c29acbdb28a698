"""Stores under test, and what the laws of stores begin with."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from pylash.durable import (
    SECOND,
    Answer,
    AwaitEvent,
    Claim,
    CustomWait,
    EngineInput,
    Fence,
    JournalEntry,
    NewRun,
    ProcessCommand,
    ProcessRecord,
    ProcessScope,
    Registration,
    RuntimeScope,
    SessionRef,
    StartProcess,
    Store,
    WaitName,
    WaitOpening,
    WorkerId,
    envelope,
)
from pylash.testing.suites import together
from pylash.values import encode

TRIES = 100
"""How often a race is run."""

RACES = 400
"""How often a race that could lose a wake-up is run, some of them at once."""

AT_ONCE = 5
"""Few enough that none of them queues for a connection: that would decide the race."""

TARGET = "python:work"
"""What the workers of the laws of processes know."""

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


# --- processes ---


class Running(NamedTuple):
    """A process that is ours to run."""

    id: str
    fence: Fence
    number: int


def new_session(frame: str | None = None) -> SessionRef:
    """Return a session nobody used before."""
    return SessionRef(f"session-{next(ids)}", frame)


def work(process_id: str | None = None, **options: Any) -> Registration:
    """Return a process to start, under an id nobody used before."""
    arguments = options.pop("arguments", {})
    given = EngineInput("python", "work", arguments)
    return Registration(id=process_id or f"process-{next(ids)}", input=given, **options)


async def started(store: Store, **options: Any) -> str:
    """Start a process that anyone may run, and return its id."""
    registration = work(**options)
    await store.processes.start(StartProcess(registration))
    return registration.id


async def running(store: Store, worker: WorkerId | None = None, **options: Any) -> Running:
    """Start a process that is ours to run."""
    registration = work(**options)
    owner = worker or await joined(store)
    leased = await store.processes.start(StartProcess(registration), owner)
    assert leased is not None
    return Running(registration.id, leased.fence, leased.number)


async def record_of(store: Store, process_id: str) -> ProcessRecord:
    """Return a process that is there."""
    record = await store.processes.get(process_id)
    assert record is not None
    return record


async def log_of(store: Store, process_id: str) -> list[tuple[str, Any]]:
    """Return the types and payloads of a process's log."""
    return [(event.type, event.payload) for event in await store.processes.events(process_id)]


async def claim_processes(
    store: Store, worker: WorkerId, limit: int = 100, *, suspect: bool = False
) -> list[Claim]:
    """Claim the processes that are ready, under a token of its own."""
    token = f"token-{next(ids)}"
    return await store.runs.claim(worker, token, limit=limit, targets=[TARGET], suspect=suspect)


def effect(key: str = "command") -> JournalEntry:
    """Return a command as an effect of a run."""
    return JournalEntry(key, "process", b"hash", b"{}", started=1)


async def ask(store: Store, command: ProcessCommand) -> Any:
    """Ask the registry, as a task that can race."""
    return await store.processes.perform(command)


async def asked(store: Store, fence: Fence, command: ProcessCommand, key: str = "command") -> bytes:
    """Ask the registry as an effect of a run; return what was recorded."""
    entry = await store.processes.perform_for(fence, effect(key), command, encode)
    assert entry.outcome is not None
    return entry.outcome


Race = Callable[[Store, Store, WorkerId, int], Coroutine[Any, Any, None]]
"""One try of a race: the store, the same database opened by another, a worker, the try's number."""


async def raced(store: SubjectStore, race: Race, times: int = TRIES) -> None:
    """Run a race often, some tries at once, against a second client if there can be one."""
    one: Store = store
    other = await store.second() or store
    worker = await joined(store)
    for first in range(0, times, AT_ONCE):
        tries = range(first, first + AT_ONCE)
        await together(*(race(one, other, worker, n) for n in tries))
        one, other = other, one


async def pause(n: int, prime: int) -> None:
    """Let a moment pass that differs from try to try."""
    await asyncio.sleep(n * prime % 13 * 0.0004)
