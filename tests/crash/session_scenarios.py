"""Scenarios of crashes: sessions, their turns and queues, forks and deletions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from pylash.durable.commands import (
    AppendEvent,
    AwaitTurn,
    CancelProcess,
    GrantHandle,
    StartProcess,
)
from pylash.durable.processes import Registration, SessionTurnInput, Success
from pylash.durable.runs import Fence, JournalEntry, RunState
from pylash.durable.scopes import TurnScope
from pylash.durable.sessions import NewTurn, Policy, Queued, SessionRecord, TurnCommit, Writing
from pylash.durable.stores import WaitOpening
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.values.canonical import encode
from tests.crash.process_scenarios import ANN, asking, leased, members, started, subscribed
from tests.crash.run_scenarios import NAME, NOTES, OPEN, STEP
from tests.crash.statements import W1, Scenario, part, reach, tick

S = "s1"
START = JournalEntry("start", "process", b"hash", b"{}", started=1)
HUGE = JournalEntry("huge", "tool", b"h", None, b"x" * 1_100_000, 1_100_000)
WRITING = Writing(
    entries=(STEP, HUGE),
    nodes=((1, b"one"), (2, b"two")),
    envs=(("e" * 64, b"env"),),
    attachments=(("a" * 64, b"bytes"),),
)


class Mine(NamedTuple):
    """A turn that is ours."""

    fence: Fence
    session: SessionRecord
    run: int


def asked(turn_id: str = "t1", text: bytes = b"hello") -> NewTurn:
    return NewTurn(
        scope=TurnScope(S, turn_id), digest=text.ljust(32), body=text, options={"model": "m"}
    )


async def turning(store: SqlStore, turn_id: str = "t1") -> Mine:
    """Submit a turn that is ours."""
    await members(store)
    await tick()
    got = await store.sessions.submit(asked(turn_id), "token", W1)
    assert got.fence is not None
    await tick()
    return Mine(got.fence, got.session, got.turn.run)


async def one_waits(store: SqlStore) -> Mine:
    mine = await turning(store)
    await store.sessions.submit(asked("t2"), "token 2", W1)
    await tick()
    return mine


async def waiting(store: SqlStore) -> Mine:
    mine = await one_waits(store)
    await store.waits.open_for(mine.fence, OPEN, WaitOpening(name=NAME, title="Go?"))
    assert await store.runs.park(mine.fence, 0)
    return mine


async def blocked(store: SqlStore) -> Mine:
    mine = await turning(store)
    await store.runs.block(mine.fence, "why")
    return mine


async def stirred(store: SqlStore) -> Mine:
    """Queue words while a turn runs."""
    mine = await turning(store)
    for word in ("one", "two"):
        await store.sessions.enqueue(S, word, {"said": word}, Policy.NOW)
    return mine


def commit_of(mine: Mine, *, settle: bool = True, fresh: bool = False) -> TurnCommit:
    return TurnCommit(
        session=mine.session,
        writing=WRITING,
        head=mine.session.head + 2,
        calls=1,
        usage={"tokens": 1},
        state=RunState.COMPLETED,
        result={"status": "completed"},
        settle=settle,
        fresh=fresh,
    )


async def written(store: SqlStore) -> Mine:
    mine = await turning(store)
    left = Writing(nodes=((1, b"old"), (2, b"old"), (3, b"old")))
    await store.sessions.record(mine.fence, mine.session, left)
    return mine


async def in_a_process(store: SqlStore) -> Mine:
    fence = await leased(store)
    return Mine(fence, await store.sessions.open(S), fence.run)


async def committed(store: SqlStore) -> SessionRecord:
    mine = await turning(store)
    await store.sessions.commit(mine.fence, commit_of(mine))
    session = await store.sessions.get(S)
    assert session is not None
    return session


async def forked(store: SqlStore) -> SessionRecord:
    session = await committed(store)
    await store.sessions.fork(session, "fork", 2, (1, 1))
    return session


async def full(store: SqlStore) -> Mine:
    """Make a session with everything that a deletion removes."""
    await committed(store)
    mine = await turning(store, "t2")
    left = Writing(nodes=((3, b"three"),), entries=(STEP,))
    await store.sessions.record(mine.fence, mine.session, left)
    await store.sessions.submit(asked("t3"), "token 3", W1)
    await tick()
    await store.waits.open_for(mine.fence, OPEN, WaitOpening(name=NAME, title="Go?"))
    await store.sessions.enqueue(S, "k", "words", Policy.NOW)
    await leased(store)
    await store.processes.perform(GrantHandle(ANN, "p"))
    return mine


async def depended_on(store: SqlStore) -> Mine:
    """Make a session whose turn a process waits for, and which has a subagent."""
    mine = await turning(store, "t2")
    waiting_for_it = await leased(store)
    await store.sessions.watch(waiting_for_it, OPEN, AwaitTurn(S, "t2"), encode)
    await tick()
    subagent = SessionTurnInput("sub", {}, lanes=(S,))
    start = StartProcess(Registration(id="sub", input=subagent))
    await store.processes.perform_for(mine.fence, START, start, encode)
    return mine


async def beside_a_turn(store: SqlStore) -> Fence:
    await turning(store)
    return await leased(store)


async def played(store: SqlStore) -> Mine:
    """Make a session that belongs to a subagent."""
    mine = await depended_on(store)
    await store.sessions.open("sub")
    return mine


AGENT = StartProcess(Registration(id=S, input=SessionTurnInput(S, {}, {"model": "m"})))


async def agent(store: SqlStore) -> Fence:
    """Start a process that plays the session; a turn and a message wait for it."""
    await members(store)
    await tick()
    mine = await store.processes.start(AGENT, W1)
    assert mine is not None
    await tick()
    await store.sessions.submit(asked("t2"), "token 2", W1)
    await tick()
    return mine.fence


async def agent_with_words(store: SqlStore) -> Fence:
    """Start a process that plays the session; only a message waits for it."""
    await members(store)
    await tick()
    mine = await store.processes.start(AGENT, W1)
    assert mine is not None
    await store.sessions.enqueue(S, "k", "words", Policy.NOW)
    await tick()
    return mine.fence


async def agent_without_lane(store: SqlStore) -> Fence:
    """Start a process that plays the session as an earlier version does, which gives it no lane."""
    await members(store)
    await tick()
    mine = await store.processes.start(AGENT, W1)
    assert mine is not None

    def steps() -> Steps[None]:
        yield Statement("update pylash_lanes set holder = null where lane = ?", (f"session:{S}",))
        yield Statement("update pylash_processes set watched = 0 where id = ?", (S,))

    await store.driver.run(Operation("free", steps))
    return mine.fence


async def left_lane(store: SqlStore) -> Fence:
    """End an agent as an earlier version does, which leaves it the lane."""
    await members(store)
    await tick()
    mine = await store.processes.start(AGENT, W1)
    assert mine is not None
    await store.processes.settle(mine.fence, mine.number, Success(1))

    def steps() -> Steps[None]:
        lane = f"session:{S}"
        yield Statement("update pylash_lanes set holder = ? where lane = ?", (mine.fence.run, lane))

    await store.driver.run(Operation("left", steps))
    await tick()
    return mine.fence


async def agent_of_a_fork(store: SqlStore) -> tuple[SessionRecord, Fence]:
    """Start a process whose session begins with the nodes of another one."""
    source = await committed(store)
    await tick()
    given = Registration(id="fork", input=SessionTurnInput("fork", {}))
    mine = await store.processes.start(StartProcess(given), W1)
    assert mine is not None
    return source, mine.fence


async def dead(store: SqlStore) -> Mine:
    mine = await full(store)
    await reach(store, "_forget_runs", store.sessions.delete(S))
    return mine


def deletion_part(
    name: str,
    prepare: Callable[[SqlStore], Awaitable[object]],
    session_id: str = S,
    *,
    same: bool = True,
) -> Scenario:
    return part(name, prepare, lambda s: s.sessions.delete(session_id), same=same)


async def waited_for(store: SqlStore) -> None:
    """Make a session's row that has no number."""
    await members(store)
    await store.waits.open(WaitOpening(name=NAME, title="Early"))


async def idle(store: SqlStore) -> None:
    """End a turn of the session that a process can wake."""
    await started(store)
    await subscribed(store)
    await tick()
    await store.sessions.open(ANN.session_id)


def heard(words: list[Queued]) -> Writing:
    """Return the rows of a turn that looks ahead: it does not record that nothing was queued."""
    nodes = tuple((n, encode(word.body)) for n, word in enumerate(words, 1))
    return Writing(entries=(STEP,), nodes=nodes) if words else Writing()


SESSION_SCENARIOS = {
    "watch: turn": Scenario(
        beside_a_turn,
        lambda s, f: s.sessions.watch(f, OPEN, AwaitTurn(S, "t1"), encode, NOTES),
    ),
    "submit": Scenario(members, lambda s, _: s.sessions.submit(asked(), "token", W1)),
    "submit: anyone's": Scenario(members, lambda s, _: s.sessions.submit(asked(), "token")),
    "submit: held lane": Scenario(
        turning, lambda s, _: s.sessions.submit(asked("t2"), "token", W1)
    ),
    "submit: without a number": Scenario(
        waited_for, lambda s, _: s.sessions.submit(asked(), "token", W1)
    ),
    "submit: with words": Scenario(
        stirred, lambda s, _: s.sessions.submit(asked("t2"), "token", W1)
    ),
    "submit: a deleted id": Scenario(
        dead, lambda s, _: s.sessions.submit(asked("t2", b"other"), "token", W1)
    ),
    "submit: left lane": Scenario(left_lane, lambda s, _: s.sessions.submit(asked(), "token", W1)),
    "_enqueue: left lane": Scenario(
        left_lane, lambda s, _: s.sessions.enqueue(S, "k", "words", Policy.NOW)
    ),
    "start: agent": Scenario(members, lambda s, _: s.processes.start(AGENT, W1)),
    "hold": Scenario(agent_without_lane, lambda s, f: s.sessions.hold(f, S)),
    "settle: agent": Scenario(agent, lambda s, f: s.processes.settle(f, f.run, Success(1))),
    "settle: agent with words": Scenario(
        agent_with_words, lambda s, f: s.processes.settle(f, f.run, Success(1))
    ),
    "perform: force an agent to end": Scenario(
        agent, lambda s, _: s.processes.perform(CancelProcess(S, "why", force=True))
    ),
    "_fence_off: agent": deletion_part("_fence_off", agent),
    "open: session": Scenario(members, lambda s, _: s.sessions.open(S, {"model": "m"})),
    "open: options": Scenario(committed, lambda s, _: s.sessions.open(S, {"model": "n"})),
    "open: without a number": Scenario(waited_for, lambda s, _: s.sessions.open(S)),
    "record: turn": Scenario(turning, lambda s, m: s.sessions.record(m.fence, m.session, WRITING)),
    "commit": Scenario(turning, lambda s, m: s.sessions.commit(m.fence, commit_of(m))),
    "commit: one waits": Scenario(one_waits, lambda s, m: s.sessions.commit(m.fence, commit_of(m))),
    "commit: words": Scenario(stirred, lambda s, m: s.sessions.commit(m.fence, commit_of(m))),
    "commit: fresh": Scenario(
        written, lambda s, m: s.sessions.commit(m.fence, commit_of(m, fresh=True))
    ),
    "commit: in a process": Scenario(
        in_a_process, lambda s, m: s.sessions.commit(m.fence, commit_of(m, settle=False))
    ),
    "_enqueue: idle": Scenario(
        members, lambda s, _: s.sessions.enqueue(S, "k", "words", Policy.NEXT_TURN)
    ),
    "_enqueue: running": Scenario(
        turning, lambda s, _: s.sessions.enqueue(S, "k", "words", Policy.NOW)
    ),
    "_enqueue: interrupt": Scenario(
        waiting, lambda s, _: s.sessions.enqueue(S, "k", "words", Policy.INTERRUPT)
    ),
    # A repetition in another process would read the recorded effect instead of taking again.
    "_take": Scenario(stirred, lambda s, m: s.sessions.take(m.fence, m.session, heard), same=False),
    "_take: nothing": Scenario(
        turning,
        lambda s, m: s.sessions.take(m.fence, m.session, lambda _: Writing(entries=(STEP,))),
    ),
    # Those that were taken back before are not taken back again.
    "_take_back": Scenario(
        stirred, lambda s, _: s.sessions.take_back(S, ["one", "three"]), same=False
    ),
    "_cancel": Scenario(waiting, lambda s, _: s.sessions.cancel(S, "why")),
    "_cancel: agent": Scenario(agent, lambda s, _: s.sessions.cancel(S, "why")),
    "_cancel: blocked": Scenario(blocked, lambda s, _: s.sessions.cancel(S, "why")),
    "_fork": Scenario(committed, lambda s, m: s.sessions.fork(m, "fork", 2, (1, 1))),
    "_fork: for an agent": Scenario(
        agent_of_a_fork,
        lambda s, m: s.sessions.fork(m[0], "fork", 2, (1, 1), player=m[1].run),
    ),
    "_fork: of a fork": Scenario(
        forked, lambda s, m: s.sessions.fork(m, "another", m.head, (1, 1))
    ),
    "_fence_off": deletion_part("_fence_off", full),
    "_fence_off: a fork": deletion_part("_fence_off", forked, "fork"),
    "_fence_off: waited for": deletion_part("_fence_off", waited_for, same=False),
    "_fence_off: depended on": deletion_part("_fence_off", depended_on, same=False),
    "_fence_off: played": deletion_part("_fence_off", played, "sub", same=False),
    "_kept": deletion_part("_kept", forked),
    "_delete_nodes": deletion_part("_delete_nodes", full, same=False),
    "_forget_line": deletion_part("_forget_line", full),
    "_forget_runs": deletion_part("_forget_runs", full),
    "put: attachment": Scenario(members, lambda s, _: s.attachments.put("a" * 64, b"bytes")),
    "perform: wake of an idle session": Scenario(
        idle, asking(AppendEvent("p", "alarm", "text", "k"))
    ),
}
