"""What every process registry promises of ends: who waits is woken, and who was late writes nothing.

The laws that race do so hundreds of times: the naive version of each rule fails within a few tries.
"""

from __future__ import annotations

from msgspec.structs import replace

from pylash.durable.commands import (
    AppendEvent,
    AwaitProcess,
    CancelProcess,
    SignalProcess,
    StartProcess,
)
from pylash.durable.processes import Aborted, EngineInput, Success, engine_target
from pylash.durable.runs import SETTLED, RunState, WorkerId
from pylash.durable.scopes import ProcessScope
from pylash.durable.stores import Store
from pylash.durable.waits import Ok, WaitName
from pylash.testing.laws.stores.processes import TYPES
from pylash.testing.laws.stores.subjects import (
    OVER,
    RACES,
    Running,
    SubjectStore,
    ask,
    asked,
    claim_processes,
    effect,
    fresh_answer,
    joined,
    log_of,
    pause,
    raced,
    record_of,
    recorded,
    running,
    started,
    wait_name,
    waiting_effect,
    work,
)
from pylash.testing.laws.suites import equal, holds, refused, together
from pylash.values.canonical import decode, encode
from pylash.values.errors import LeaseLost

# --- waiting for an end ---


async def _watched(store: Store, parent: Running, child: str) -> object:
    """Wait for child as an effect of parent; return its end, or None if it is open."""
    entry = await store.processes.watch(parent.fence, effect("wait"), AwaitProcess(child), encode)
    return decode(entry.outcome)["output"] if entry.outcome else None


async def _settle(store: Store, own: Running, value: object = None) -> None:
    await store.processes.settle(own.fence, own.number, Success(value))


async def _state_of(store: Store, own: Running) -> RunState:
    run = await store.runs.get(own.fence.scope)
    assert run is not None
    return run.state


async def a_parent_that_waits_is_woken_by_the_end(store: SubjectStore) -> None:
    parent, child = await running(store), await running(store)
    equal(await _watched(store, parent, child.id), None, "while the child runs")
    holds(await store.runs.park(parent.fence, 0), "the parent parks")
    await _settle(store, child, 7)
    equal(await _state_of(store, parent), RunState.QUEUED, "the parent")
    end = await _watched(store, parent, child.id)
    equal(end, {"status": "completed", "value": 7}, "what it is told")


async def an_end_that_was_before_the_wait_is_told_at_once(store: SubjectStore) -> None:
    parent, child = await running(store), await running(store)
    await _settle(store, child, 7)
    end = await _watched(store, parent, child.id)
    equal(end, {"status": "completed", "value": 7}, "what it is told")
    nobody = store.processes.watch(parent.fence, effect("w"), AwaitProcess("nobody"), encode)
    await refused(nobody, "process_unknown", "a process that is not there")


async def a_terminal_event_wakes_who_waits(store: SubjectStore) -> None:
    parent, child = await running(store), await started(store, event_types=TYPES)
    await _watched(store, parent, child)
    holds(await store.runs.park(parent.fence, 0), "the parent parks")
    await store.processes.perform(AppendEvent(child, "over", 7))
    equal(await _state_of(store, parent), RunState.QUEUED, "the parent")


async def an_end_is_written_once(store: SubjectStore) -> None:
    own = await running(store)
    for _ in range(2):
        await _settle(store, own, 7)
    equal(len(await log_of(store, own.id)), 2, "its log")
    record = await record_of(store, own.id)
    equal((record.state.output, record.run_state), (Success(7), RunState.COMPLETED), "its end")
    seen = await store.processes.observe([own.id, "nobody"])
    equal(seen, {own.id: Success(7)}, "what who comes late is told")


async def no_end_is_lost_while_the_parent_parks(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        parent, child = await running(one, worker), await running(one, worker)

        async def wait() -> None:
            await pause(n, 5)
            if await _watched(one, parent, child.id) is None:
                await one.runs.park(parent.fence, 0)

        async def end() -> None:
            await pause(n, 7)
            await _settle(other, child, n)

        await together(wait(), end())
        await _is_awake(one, parent, n)
        holds(await _watched(one, parent, child.id), f"try {n}: the end")

    await raced(store, race, RACES)


async def no_signal_is_lost_while_the_process_parks(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        own = await running(one, worker)

        async def wait() -> None:
            await pause(n, 5)
            entry, _ = await one.processes.take_signal(own.fence, effect(), "go", None, encode)
            if not entry.size:
                await one.runs.park(own.fence, 0)

        async def send() -> None:
            await pause(n, 7)
            await ask(other, SignalProcess(own.id, "go", "1", n))

        await together(wait(), send())
        await _is_awake(one, own, n)
        entry, _ = await one.processes.take_signal(own.fence, effect(), "go", None, encode)
        holds(entry.size, f"try {n}: the signal")

    await raced(store, race, RACES)


async def no_answer_is_lost_while_the_process_parks(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        own, name = await running(one, worker), wait_name()

        async def wait() -> None:
            await pause(n, 5)
            _, status = await one.waits.open_for(own.fence, *waiting_effect(name))
            if status.terminal is None:
                await one.runs.park(own.fence, 0)

        async def answer(name: WaitName = name) -> None:
            await pause(n, 7)
            await other.waits.resolve(name, Ok(n), fresh_answer())

        await together(wait(), answer())
        await _is_awake(one, own, n)

    await raced(store, race, RACES)


async def no_cancel_is_lost_while_the_process_parks(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        own = await running(one, worker)

        async def wait() -> None:
            await pause(n, 5)
            asked_to_end, _ = await one.processes.look(own.id)
            if not asked_to_end:
                await one.runs.park(own.fence, 0)

        async def cancel() -> None:
            await pause(n, 7)
            await ask(other, CancelProcess(own.id))

        await together(wait(), cancel())
        await _is_awake(one, own, n)

    await raced(store, race, RACES)


async def _is_awake(store: Store, own: Running, n: int) -> None:
    holds(await _state_of(store, own) is not RunState.WAITING, f"try {n}: the run sleeps on")


# --- stale owners ---


async def a_stale_owner_writes_nothing(store: SubjectStore) -> None:
    own = await running(store, await joined(store, OVER))
    other = await running(store)
    await store.processes.perform(SignalProcess(own.id, "go", "1"))
    await store.workers.bury_the_dead(await joined(store))
    log, child = await log_of(store, own.id), work(parent=own.id)
    fence, processes = own.fence, store.processes
    for late in (
        _settle(store, own),
        processes.continue_as(fence, work(own.id)),
        processes.take_signal(fence, effect(), "go", None, encode),
        processes.watch(fence, effect(), AwaitProcess(other.id), encode),
        processes.perform_for(fence, effect(), AppendEvent("", "note", 1, "1"), encode),
        processes.perform_for(fence, effect(), StartProcess(child), encode),
        processes.perform_for(fence, effect(), SignalProcess(other.id, "go", "1"), encode),
        processes.perform_for(fence, effect(), CancelProcess(other.id), encode),
        store.journal.deliver(fence, [recorded()], []),
        store.runs.park(fence, 0),
        store.runs.block(fence, "why"),
    ):
        await refused(late, "lease_lost", "what a stale owner does")
    equal(await log_of(store, own.id), log, "the log")
    equal(await store.processes.get(child.id), None, "the child")
    equal(len(await log_of(store, other.id)), 1, "the log of another")
    equal(await store.journal.timeline(fence.run), [], "the journal")
    equal((await store.processes.look(own.id))[1], {"go"}, "the signal is still there")


async def an_owner_that_was_paused_ends_nothing_after_the_takeover(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        late = await joined(other, OVER)
        own = await running(other, late)

        async def settle() -> bool:
            await pause(n, 5)
            try:
                await _settle(other, own, "late")
            except LeaseLost:
                return False
            return True

        async def take_over() -> bool:
            await pause(n, 7)
            return (await one.journal.attach(own.fence.scope, worker)).fence.token != SETTLED

        ended, taken = await together(settle(), take_over())
        equal(ended, not taken, f"try {n}: one of them has it")
        status = (await record_of(one, own.id)).state.status
        equal(status, "completed" if ended else "open", f"try {n}: what the late owner was told")

    await raced(store, race)


# --- force, and what is attached ---


async def force_ends_a_process_and_fences_its_owner(store: SubjectStore) -> None:
    parent, own = await running(store), await running(store)
    await _watched(store, parent, own.id)
    await store.runs.park(parent.fence, 0)
    for _ in range(2):
        await store.processes.perform(CancelProcess(own.id, "why", force=True))
    record = await record_of(store, own.id)
    equal((record.state.output, record.run_state), (Aborted("why"), RunState.CANCELLED), "its end")
    await refused(_settle(store, own), "lease_lost", "its owner's end")
    equal(await _state_of(store, parent), RunState.QUEUED, "who waited")
    waiting = await started(store)
    await store.processes.perform(CancelProcess(waiting, force=True))
    claims = await claim_processes(store, await joined(store))
    equal([claim.run.scope.id for claim in claims], [parent.id], "what can be claimed")


async def attached_children_are_asked_to_end_with_their_parent(store: SubjectStore) -> None:
    for force in (False, True):
        own = await running(store)
        attached, free = work(parent=own.id, attached=True), work(parent=own.id)
        await asked(store, own.fence, StartProcess(attached), "attached")
        await asked(store, own.fence, StartProcess(free), "free")
        if force:
            await store.processes.perform(CancelProcess(own.id, force=True))
        else:
            await _settle(store, own)
        log = await log_of(store, attached.id)
        equal(log[1:], [("process.cancel_requested", {"reason": "its parent ended"})], "the child")
        equal(len(await log_of(store, free.id)), 1, "a child that is not attached")


async def no_attached_child_is_left_behind_by_force(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, worker: WorkerId, n: int) -> None:
        own = await running(one, worker)
        child = work(parent=own.id, attached=True)

        async def start() -> None:
            await pause(n, 5)
            try:
                await asked(one, own.fence, StartProcess(child))
            except LeaseLost:
                return

        async def end() -> None:
            await pause(n, 7)
            await ask(other, CancelProcess(own.id, force=True))

        await together(start(), end())
        record = await one.processes.get(child.id)
        holds(record is None or record.state.cancel, f"try {n}: the child goes on")

    await raced(store, race)


# --- going on, and forks ---


async def a_process_goes_on_with_a_fresh_journal(store: SubjectStore) -> None:
    own = await running(store)
    await store.journal.record(own.fence, recorded())
    await store.processes.perform(SignalProcess(own.id, "go", "1", "kept"))
    following = work(own.id, arguments={"n": 2})
    for _ in range(2):
        await store.processes.continue_as(own.fence, following)
    record = await record_of(store, own.id)
    equal((record.number, record.state.epoch), (own.number, 1), "the process")
    equal(record.registration, following, "its arguments")
    late = store.journal.record(own.fence, recorded("late"))
    await refused(late, "lease_lost", "a record under the old fence")
    await refused(_settle(store, own), "lease_lost", "an end under the old fence")
    (claim,) = await claim_processes(store, await joined(store))
    equal(claim.fence.scope, ProcessScope(own.id), "the run that goes on")
    resumed = (await store.processes.resume([claim.fence.run]))[claim.fence.run]
    equal(resumed.entries, {}, "its journal")
    entry, _ = await store.processes.take_signal(claim.fence, effect(), "go", None, encode)
    equal(decode(entry.outcome or b"")["payload"], "kept", "the signal that was on its way")
    await store.processes.settle(claim.fence, own.number, Success(2))
    kinds = [kind for kind, _ in await log_of(store, own.id)]
    expected = ["process.started", "signal.go", "process.continued", "process.completed"]
    equal(kinds, expected, "one log")
    first = await store.processes.start(StartProcess(work(own.id)))
    equal(first, None, "it is still the process that was started with the first input")


async def a_continuation_has_the_target_of_its_registration(store: SubjectStore) -> None:
    own = await running(store)
    given = EngineInput("python", "work", {"n": 2}).of_version(2)
    await store.processes.continue_as(own.fence, replace(work(own.id), input=given))
    equal((await record_of(store, own.id)).registration.input, given, "its input")
    worker = await joined(store)
    equal(await claim_processes(store, worker), [], "what a worker of the first target claims")
    target = engine_target("python", "work", 2)
    (claim,) = await store.runs.claim(worker, limit=10, targets=[target])
    equal(claim.fence.scope, ProcessScope(own.id), "what a worker of the new target claims")
    await store.processes.continue_as(claim.fence, work(own.id))
    equal(len(await claim_processes(store, worker)), 1, "after it went back to the first")


async def a_fork_begins_with_what_it_takes_over(store: SubjectStore) -> None:
    own = await running(store)
    for key, ended in (("early", 5), ("late", 50)):
        await store.journal.record(own.fence, replace(recorded(key), ended=ended))
    await store.processes.take_signal(own.fence, effect("open"), "go", None, encode)
    copy = work(seed=own.id)
    for _ in range(2):
        await store.processes.fork(own.id, copy, ["early"])
    (claim,) = await claim_processes(store, await joined(store))
    equal(claim.fence.scope, ProcessScope(copy.id), "the fork")
    resumed = (await store.processes.resume([claim.fence.run]))[claim.fence.run]
    equal(set(resumed.entries), {"early"}, "what it begins with")
    equal(len(await log_of(store, own.id)), 1, "the log of what was forked")
    await refused(store.processes.fork("nobody", work(), []), "process_unknown", "its source")


ENDING_LAWS = (
    a_parent_that_waits_is_woken_by_the_end,
    an_end_that_was_before_the_wait_is_told_at_once,
    a_terminal_event_wakes_who_waits,
    an_end_is_written_once,
    no_end_is_lost_while_the_parent_parks,
    no_signal_is_lost_while_the_process_parks,
    no_answer_is_lost_while_the_process_parks,
    no_cancel_is_lost_while_the_process_parks,
    a_stale_owner_writes_nothing,
    an_owner_that_was_paused_ends_nothing_after_the_takeover,
    force_ends_a_process_and_fences_its_owner,
    attached_children_are_asked_to_end_with_their_parent,
    no_attached_child_is_left_behind_by_force,
    a_process_goes_on_with_a_fresh_journal,
    a_continuation_has_the_target_of_its_registration,
    a_fork_begins_with_what_it_takes_over,
)
