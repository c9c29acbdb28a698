"""Stores under test, and what the laws of stores begin with."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from pylash.durable.commands import ProcessCommand, SignalProcess, StartProcess
from pylash.durable.effects import AwaitEvent, RuntimeScope, envelope
from pylash.durable.processes import EngineInput, ProcessRecord, Registration, SessionRef
from pylash.durable.runs import (
    SECOND,
    Claim,
    Fence,
    JournalEntry,
    RunState,
    RunView,
    WorkerId,
)
from pylash.durable.scopes import ProcessScope, TurnScope
from pylash.durable.sessions import (
    TURN_TARGET,
    NewTurn,
    Queued,
    SessionRecord,
    Submitted,
    TurnCommit,
    TurnRecord,
    Writing,
)
from pylash.durable.stores import Answer, Store, Taken, WaitOpening
from pylash.durable.waits import CustomWait, WaitName
from pylash.testing.laws.suites import together
from pylash.values.canonical import encode

TRIES = 100
"""How often a race is run."""

RACES = 400
"""How often a race that could lose a wake-up is run, some of them at once."""

AT_ONCE = 5
"""Few enough that none of them queues for a connection: that would decide the race."""

TARGET = "python:work"
"""What the workers of the laws of processes know."""

ENGINE = "faraway"
FAR = f"{ENGINE}/{TARGET}"
"""What another engine knows, and no worker."""

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


async def enqueued(store: Store, name: str = "work") -> ProcessScope:
    """Enqueue the run of a new process; return its scope."""
    registration = Registration(id=new_scope().id, input=EngineInput("python", name, {}))
    await store.processes.start(StartProcess(registration))
    return ProcessScope(registration.id)


async def claim_ready(store: Store, worker: WorkerId, limit: int = 100) -> list[Claim]:
    """Claim what is ready."""
    return await store.runs.claim(worker, limit=limit, targets=[TARGET])


async def woken_by_signal(store: Store, claim: Claim) -> None:
    """Wake the run of a process."""
    await store.processes.perform(SignalProcess(claim.run.scope.id, "go", f"signal-{next(ids)}"))


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


async def sent_away(store: Store) -> int:
    """Enqueue a process of another engine; return its run."""
    given = Registration(id=new_scope().id, input=EngineInput("python", "work", {}), carrier=ENGINE)
    await store.processes.start(StartProcess(given))
    return (await record_of(store, given.id)).run


async def taken_by(store: Store, run: int, worker: WorkerId) -> Taken:
    """Take a run that has not ended."""
    return (await store.runs.take([run], worker, f"token-{next(ids)}"))[run]


async def log_of(store: Store, process_id: str) -> list[tuple[str, Any]]:
    """Return the types and payloads of a process's log."""
    return [(event.type, event.payload) for event in await store.processes.events(process_id)]


async def claim_processes(
    store: Store, worker: WorkerId, limit: int = 100, *, suspect: bool = False
) -> list[Claim]:
    """Claim the processes that are ready."""
    return await store.runs.claim(worker, limit=limit, targets=[TARGET], suspect=suspect)


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
    second = await store.second()
    other = second or store
    # One client orders its own operations, so that fewer tries show every order.
    times = times if second is not None else times // 4
    worker = await joined(store)
    for first in range(0, times, AT_ONCE):
        tries = range(first, first + AT_ONCE)
        await together(*(race(one, other, worker, n) for n in tries))
        one, other = other, one


async def pause(n: int, prime: int) -> None:
    """Let a moment pass that differs from try to try."""
    await asyncio.sleep(n * prime % 13 * 0.0004)


# --- sessions ---


class Turning(NamedTuple):
    """A turn that is ours to run, and its session as it was when the turn began."""

    turn: TurnRecord
    session: SessionRecord
    fence: Fence


def new_turn(
    session_id: str | None = None,
    turn_id: str | None = None,
    text: bytes = b"hello",
    **options: Any,
) -> NewTurn:
    """Return a turn to submit, of a session and under an id that nobody used before."""
    scope = TurnScope(session_id or f"session-{next(ids)}", turn_id or f"turn-{next(ids)}")
    return NewTurn(scope=scope, digest=hashlib.sha256(text).digest(), body=text, **options)


async def submitted(store: Store, new: NewTurn, worker: WorkerId | None = None) -> Submitted:
    """Submit a turn, under a token of its own."""
    return await store.sessions.submit(new, f"token-{next(ids)}", worker)


async def turning(
    store: Store, session_id: str | None = None, worker: WorkerId | None = None
) -> Turning:
    """Submit a turn that is ours to run."""
    got = await submitted(store, new_turn(session_id), worker or await joined(store))
    assert got.fence is not None
    return Turning(got.turn, got.session, got.fence)


async def claim_turns(store: Store, worker: WorkerId, limit: int = 100) -> list[Turning]:
    """Claim the turns that are ready."""
    claims = await store.runs.claim(worker, limit=limit, targets=[TURN_TARGET])
    resumed = await store.sessions.resume([claim.fence.run for claim in claims])
    return [
        Turning(resumed[claim.fence.run].turn, resumed[claim.fence.run].session, claim.fence)
        for claim in claims
    ]


async def turns_waiting(store: Store, worker: WorkerId, session_id: str) -> list[Turning]:
    """Claim what is ready; return what is a session's."""
    found = await claim_turns(store, worker)
    return [one for one in found if one.turn.scope.session_id == session_id]


def nodes_after(session: SessionRecord, *bodies: bytes) -> tuple[tuple[int, bytes], ...]:
    """Return nodes at the places behind a session's head."""
    return tuple((session.head + n, body) for n, body in enumerate(bodies, 1))


def ending_with(turning: Turning, *bodies: bytes, **options: Any) -> TurnCommit:
    """Return the commit of a turn that leaves nodes behind."""
    session = turning.session
    given: dict[str, Any] = {
        "writing": Writing(nodes=nodes_after(session, *bodies)),
        "head": session.head + len(bodies),
        "calls": session.calls + 1,
        "usage": {"tokens": 7},
        "state": RunState.COMPLETED,
        "result": {"status": "completed"},
    }
    return TurnCommit(session=session, **{**given, **options})


async def ended(store: Store, turning: Turning, *bodies: bytes, **options: Any) -> None:
    """Commit a turn that leaves nodes behind."""
    await store.sessions.commit(
        turning.fence, ending_with(turning, *(bodies or (b"said",)), **options)
    )


async def session_of_id(store: Store, session_id: str) -> SessionRecord:
    """Return a session that is there."""
    session = await store.sessions.get(session_id)
    assert session is not None
    return session


async def history_of(store: Store, session_id: str) -> list[bytes]:
    """Return what a session's committed nodes say."""
    session = await session_of_id(store, session_id)
    return [body for segment in session.path for body in await store.sessions.nodes(segment)]


async def run_of(store: Store, turning: Turning) -> RunView:
    """Return the row of a turn's run."""
    view = await store.runs.get(turning.turn.scope)
    assert view is not None
    return view


def heard(turning: Turning) -> Callable[[list[Queued]], Writing]:
    """Return what makes words the next nodes of a turn, as its effect ``words``."""

    def make(words: list[Queued]) -> Writing:
        bodies = [encode(one.body) for one in words]
        entry = JournalEntry("words", "queue", b"", None, encode(len(bodies)), 1, started=1)
        return Writing(entries=(entry,), nodes=nodes_after(turning.session, *bodies))

    return make


async def taken(store: Store, turning: Turning) -> list[Any]:
    """Take what is queued; return what it says."""
    words = await store.sessions.take(turning.fence, turning.session, heard(turning))
    return [one.body for one in words]


def wait_of(session_id: str, key: str = "go", generation: int = 0) -> WaitName:
    """Return a wait of a session's turn."""
    return WaitName(TurnScope(session_id, "turn"), CustomWait(key), generation)
