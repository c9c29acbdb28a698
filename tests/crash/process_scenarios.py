"""Scenarios of crashes: processes, their logs and handles, triggers and environments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from pylash.durable.commands import (
    AppendEvent,
    AwaitProcess,
    CancelProcess,
    CancelUnreferenced,
    DeleteSessionProcesses,
    GrantHandle,
    ProcessCommand,
    RevokeHandle,
    SignalProcess,
    StartProcess,
    TransferHandles,
)
from pylash.durable.exports import Export
from pylash.durable.processes import (
    EngineInput,
    EventType,
    Failure,
    Registration,
    Semantics,
    SessionRef,
    Success,
)
from pylash.durable.runs import SECOND, Fence, JournalEntry, WorkerId
from pylash.durable.stores import WaitOpening
from pylash.durable.triggers import EventBinding, Occurrence, Subscription
from pylash.stores.store import SqlStore
from pylash.values.canonical import encode
from pylash.values.process_errors import ImportConflict
from tests.backends import lockless
from tests.crash.run_scenarios import NAME, NOTES
from tests.crash.statements import ALIVE, W1, W2, Memo, Scenario, part, tick

TARGET = "python:work"
ANN, BOB = SessionRef("ann"), SessionRef("bob")
WAIT = JournalEntry("wait", "process", b"hash", b"{}", started=1)
STEP = JournalEntry("step", "durable_step", b"hash", b"{}", b"1", 1, started=1, ended=2)
LATER = JournalEntry("later", "durable_step", b"hash", b"{}", b"2", 1, started=3, ended=9)
COMMAND = JournalEntry("command", "process", b"hash", b"{}", started=1)
SLEEP = JournalEntry("sleep", "sleep", b"hash", b"{}", started=1)
TYPES = (
    EventType("note"),
    EventType("alarm", semantics=Semantics.WAKE),
    EventType("over", semantics=Semantics.TERMINAL),
)
FAILED = Failure("ValueError", "boom", "It broke.", {"why": 1})
Act = Callable[[SqlStore, Memo], Awaitable[object]]


def work(process: str = "p", **options: Any) -> Registration:
    return Registration(id=process, input=EngineInput("python", "work", {"n": 1}), **options)


async def members(store: SqlStore) -> None:
    await lockless(store).join(W1, ALIVE, [TARGET])
    await lockless(store).join(W2, ALIVE, [TARGET])


async def leased(store: SqlStore, process: str = "p", **options: Any) -> Fence:
    """Start a process that is ours from the first moment."""
    await members(store)
    await tick()
    started = await store.processes.start(StartProcess(work(process, **options)), W1)
    assert started is not None
    return started.fence


async def started(store: SqlStore) -> Fence:
    return await leased(store, event_types=TYPES, wake_target=ANN)


async def parked(store: SqlStore) -> Fence:
    fence = await started(store)
    await store.processes.take_signal(fence, WAIT, "go", None, encode)
    assert await store.runs.park(fence, 0)
    return fence


async def family(store: SqlStore) -> list[Fence]:
    """Make a parent that waits, parked, for a child with an attached child of its own."""
    parent, child = await leased(store, "parent"), await leased(store, "child", event_types=TYPES)
    await store.processes.watch(parent, WAIT, AwaitProcess("child"), encode)
    assert await store.runs.park(parent, 0)
    await tick()
    attached = work("grandchild", parent="child", attached=True)
    await store.processes.start(StartProcess(attached))
    return [parent, child]


async def held(store: SqlStore) -> Fence:
    """Give handles: ann holds three processes, bob one of them."""
    fence = await leased(store)
    for process in ("q", "r"):
        await leased(store, process)
    for process in ("p", "q", "r"):
        await store.processes.perform(GrantHandle(ANN, process, "mine"))
    await store.processes.perform(GrantHandle(BOB, "r"))
    return fence


async def session(store: SqlStore) -> Fence:
    fence = await started(store)
    await store.processes.perform(GrantHandle(ANN, "p"))
    await tick()  # the wake starts a turn, whose id differs
    await store.processes.perform(AppendEvent("p", "alarm", 1, "k"))
    await subscribed(store)
    return fence


async def signalled(store: SqlStore) -> Fence:
    fence = await started(store)
    for n in (1, 2):
        await store.processes.perform(SignalProcess("p", "go", str(n), n))
    return fence


async def late(store: SqlStore) -> Fence:
    fence = await started(store)
    await store.processes.take_signal(fence, WAIT, "go", SECOND, encode)
    return fence


async def waiting_for_ended(store: SqlStore) -> Fence:
    parent, child = await leased(store, "parent"), await leased(store, "child")
    await store.processes.watch(parent, WAIT, AwaitProcess("child"), encode)
    await store.processes.settle(child, child.run, Success(1))
    return parent


async def strangers(store: SqlStore) -> list[Fence]:
    return [await leased(store, "parent"), await leased(store, "child")]


async def finished(store: SqlStore) -> list[Fence]:
    parent, child = await strangers(store)
    await store.processes.settle(child, child.run, FAILED)
    return [parent, child]


async def finished_by_its_log(store: SqlStore) -> Fence:
    fence = await started(store)
    await store.processes.perform(AppendEvent("p", "over", {"n": 1}, "k"))
    return fence


async def recorded(store: SqlStore) -> Fence:
    fence = await started(store)
    await store.journal.record(fence, LATER, [STEP])
    await store.journal.begin_sleep(fence, SLEEP, SECOND)
    return fence


async def ended_long_ago(store: SqlStore) -> None:
    fence = await recorded(store)
    await store.processes.settle(fence, fence.run, Success(1))
    for _ in range(2):
        await tick()


async def resting(store: SqlStore) -> Fence:
    fence = await started(store)
    await store.journal.begin_sleep(fence, SLEEP, SECOND)
    await store.waits.open_for(fence, WAIT, WaitOpening(name=NAME))
    return fence


SUBSCRIPTION = Subscription(
    key="ci",
    type="push",
    source="repo",
    template=work("", originator=ANN, wake_target=ANN),
    inputs={"event": EventBinding()},
    session_id="ann",
)
PUSH = Occurrence(type="push", source="repo", payload={"n": 1}, idempotency_key="k")


async def subscribed(store: SqlStore) -> None:
    await store.triggers.register(SUBSCRIPTION)


def closed(entry: JournalEntry, wait: str | None = None) -> JournalEntry:
    """Return entry as it is recorded when its effect is cancelled."""
    return JournalEntry(entry.key, entry.kind, entry.hash, None, b'"x"', 3, wait=wait, started=1)


def decided(key: str) -> JournalEntry:
    return JournalEntry(key, "decision", b"", None, b"1", 1, started=1, ended=1)


def asking(command: ProcessCommand) -> Act:
    return lambda store, _: store.processes.perform(command)


def asking_for(command: ProcessCommand, notes: Sequence[JournalEntry] = ()) -> Act:
    """Ask as an effect of the run that was prepared (of the first, if there are several)."""

    def act(store: SqlStore, memo: Memo) -> Awaitable[object]:
        fence = memo[0] if isinstance(memo, list) else memo
        return store.processes.perform_for(fence, COMMAND, command, encode, notes)

    return act


def forked(store: SqlStore) -> Awaitable[None]:
    return store.processes.fork("p", work("copy", seed="p"), ["step"])


async def exported(store: SqlStore) -> Export:
    """Return an export of a process under another id, so that the same store can import it."""
    await recorded(store)
    export = await store.exports.read("p", None, children=False)
    (process,) = export.processes
    copy = replace(process, id="copy", run=process.run + 1, number=process.number + 1)
    return replace(export, id="copy", processes=(copy,))


async def imported(store: SqlStore, export: Export) -> None:
    with suppress(ImportConflict):  # it was imported before the crash
        await store.exports.write(export)


PROCESS_SCENARIOS = {
    # starting
    "start": Scenario(members, lambda s, _: s.processes.start(StartProcess(work()))),
    "start: leased": Scenario(members, lambda s, _: s.processes.start(StartProcess(work()), W1)),
    "start: by a stranger": Scenario(
        members, lambda s, _: s.processes.start(StartProcess(work()), WorkerId("gone"))
    ),
    "start: later": Scenario(
        members, lambda s, _: s.processes.start(StartProcess(work(), delay=SECOND), W1)
    ),
    "start: attached, granted": Scenario(
        started,
        lambda s, _: s.processes.start(
            StartProcess(work("child", parent="p", attached=True), grant=ANN)
        ),
    ),
    "fork": Scenario(recorded, lambda s, _: forked(s)),
    "write": Scenario(exported, imported, same=False),
    # commands
    "perform: start": Scenario(members, asking(StartProcess(work(), grant=ANN))),
    "perform: signal": Scenario(parked, asking(SignalProcess("p", "go", "1", {"n": 1}))),
    "perform: cancel": Scenario(parked, asking(CancelProcess("p", "why"))),
    "perform: cancel by force": Scenario(family, asking(CancelProcess("child", "why", force=True))),
    "perform: append": Scenario(started, asking(AppendEvent("p", "note", 1, "k"))),
    "perform: append without a key": Scenario(started, asking(AppendEvent("p", "note", 1))),
    "perform: append, wake": Scenario(
        started, asking(AppendEvent("p", "process.wake", {"text": "hi"}, "k"))
    ),
    "perform: append, terminal": Scenario(family, asking(AppendEvent("child", "over", 1, "k"))),
    "perform: transfer": Scenario(held, asking(TransferHandles(ANN, BOB, ("p", "r")))),
    "perform: delete_session": Scenario(session, asking(DeleteSessionProcesses("ann")), same=False),
    "perform: cancel_unreferenced": Scenario(
        held, asking(CancelUnreferenced(ANN, keep=("q",))), same=False
    ),
    # commands as effects
    "perform_for: start": Scenario(
        started, asking_for(StartProcess(work("child", parent="p", attached=True)))
    ),
    "perform_for: start, notes": Scenario(
        started, asking_for(StartProcess(work("child", parent="p", attached=True)), NOTES)
    ),
    "perform_for: signal": Scenario(family, asking_for(SignalProcess("child", "go", "1"))),
    "perform_for: cancel": Scenario(family, asking_for(CancelProcess("child", "why"))),
    "perform_for: cancel by force": Scenario(
        family, asking_for(CancelProcess("child", "why", force=True))
    ),
    "perform_for: append": Scenario(started, asking_for(AppendEvent("", "note", 1, "1"))),
    "perform_for: append, wake": Scenario(started, asking_for(AppendEvent("", "alarm", 1, "1"))),
    "perform_for: append without a key": Scenario(started, asking_for(AppendEvent("p", "note", 1))),
    "perform_for: append, terminal": Scenario(started, asking_for(AppendEvent("", "over", 1, "1"))),
    "perform_for: delete_session": Scenario(session, asking_for(DeleteSessionProcesses("ann"))),
    "perform_for: cancel_unreferenced": Scenario(held, asking_for(CancelUnreferenced(ANN))),
    "perform_for: transfer": Scenario(held, asking_for(TransferHandles(ANN, BOB, ("p",)))),
    # waiting
    "watch: open": Scenario(
        strangers, lambda s, f: s.processes.watch(f[0], WAIT, AwaitProcess("child"), encode)
    ),
    "watch: open, notes": Scenario(
        strangers, lambda s, f: s.processes.watch(f[0], WAIT, AwaitProcess("child"), encode, NOTES)
    ),
    "watch: ended": Scenario(
        finished, lambda s, f: s.processes.watch(f[0], WAIT, AwaitProcess("child"), encode)
    ),
    "watch: ended meanwhile": Scenario(
        waiting_for_ended, lambda s, f: s.processes.watch(f, WAIT, AwaitProcess("child"), encode)
    ),
    "take_signal: none": Scenario(
        started, lambda s, f: s.processes.take_signal(f, WAIT, "go", SECOND, encode)
    ),
    "take_signal: none, notes": Scenario(
        started, lambda s, f: s.processes.take_signal(f, WAIT, "go", SECOND, encode, NOTES)
    ),
    "take_signal: taken": Scenario(
        signalled, lambda s, f: s.processes.take_signal(f, WAIT, "go", None, encode)
    ),
    "take_signal: late": Scenario(
        late, lambda s, f: s.processes.take_signal(f, WAIT, "go", SECOND, encode)
    ),
    "observe": Scenario(started, lambda s, _: s.processes.observe(["p"])),
    # ending
    "settle: process": Scenario(started, lambda s, f: s.processes.settle(f, f.run, Success(1))),
    "settle: watched process": Scenario(
        family, lambda s, f: s.processes.settle(f[1], f[1].run, FAILED)
    ),
    "settle: ended by its log": Scenario(
        finished_by_its_log, lambda s, f: s.processes.settle(f, f.run, Success(1))
    ),
    "continue_as": Scenario(recorded, lambda s, f: s.processes.continue_as(f, work(env="e"))),
    # handles
    "perform: grant a handle": Scenario(
        started, lambda s, _: s.processes.perform(GrantHandle(ANN, "p", "mine"))
    ),
    "perform: revoke a handle": Scenario(
        held, lambda s, _: s.processes.perform(RevokeHandle(ANN, "p")), same=False
    ),
    # the journal
    "_forget": part("_forget", ended_long_ago, lambda s: s.journal.prune(SECOND, 10)),
    "deliver": Scenario(
        resting,
        lambda s, f: s.journal.deliver(
            f, [decided("race")], [closed(SLEEP), closed(WAIT, NAME.id), closed(LATER)]
        ),
    ),
    "deliver: signal": Scenario(
        late, lambda s, f: s.journal.deliver(f, [], [closed(WAIT, f"signal:{f.run}:go")])
    ),
    # triggers and environments
    "register": Scenario(members, lambda s, _: subscribed(s)),
    "register: again": Scenario(
        subscribed, lambda s, _: s.triggers.register(replace(SUBSCRIPTION, source="other"))
    ),
    "emit": Scenario(subscribed, lambda s, _: s.triggers.emit(PUSH)),
    "emit: to nobody": Scenario(members, lambda s, _: s.triggers.emit(PUSH)),
    "cancel": Scenario(subscribed, lambda s, _: s.triggers.cancel("ci"), same=False),
    "cancel_owned": Scenario(
        subscribed, lambda s, _: s.triggers.cancel_owned("ci", "ann"), same=False
    ),
    "put": Scenario(members, lambda s, _: s.envs.put("ref", b"body")),
}
"""What is not repeated with its first answer counted rows that the first time has removed."""
