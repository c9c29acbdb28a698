"""What every process registry promises: registrations, logs, signals and wakes."""

from __future__ import annotations

import asyncio

from pylash.durable.commands import (
    AppendEvent,
    CancelProcess,
    GrantHandle,
    SignalProcess,
    StartProcess,
)
from pylash.durable.processes import (
    STATES,
    Aborted,
    EventType,
    Failure,
    Semantics,
    SessionRef,
    Slot,
    Success,
    ending,
    fold,
)
from pylash.durable.runs import Fence, RunState, WorkerId
from pylash.durable.stores import Store
from pylash.testing.laws.stores.subjects import (
    TARGET,
    SubjectStore,
    asked,
    claim_processes,
    effect,
    ids,
    joined,
    log_of,
    new_session,
    record_of,
    running,
    started,
    work,
)
from pylash.testing.laws.suites import equal, holds, refused, together
from pylash.values.canonical import decode, encode

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TYPES = (
    EventType("note", NUMBER),
    EventType("alarm", semantics=Semantics.WAKE),
    EventType("over", semantics=Semantics.TERMINAL),
)


# --- registrations ---


async def a_process_carries_its_references(store: SubjectStore) -> None:
    session = new_session()
    registration = work(
        event_types=TYPES, originator=session, wake_target=session, env="e" * 64, timeout=5
    )
    await store.processes.start(StartProcess(registration))
    record = await record_of(store, registration.id)
    equal(record.registration, registration, "what was registered")
    equal((record.state.status, record.run_state), ("open", RunState.QUEUED), "where it stands")
    equal(await log_of(store, registration.id), [("process.started", None)], "its log")


async def the_same_id_with_the_same_input_is_the_same_process(store: SubjectStore) -> None:
    registration, worker = work(arguments={"n": 1}), await joined(store)
    first = await store.processes.start(StartProcess(registration), worker)
    equal(await store.processes.start(StartProcess(registration), worker), None, "the second start")
    await store.processes.perform(StartProcess(registration))
    record = await record_of(store, registration.id)
    equal(record.number, first and first.number, "the process")
    equal(record.state.sequence, 1, "its log was left alone")


async def another_input_under_an_id_is_a_conflict(store: SubjectStore) -> None:
    process, worker = await started(store, arguments={"n": 1}), await joined(store)
    other = StartProcess(work(process, arguments={"n": 2}))
    for start in (
        store.processes.start(other),
        store.processes.start(other, worker),
        store.processes.perform(other),
    ):
        await refused(start, "process_conflict", "another input")
    own = await running(store)
    asking = store.processes.perform_for(own.fence, effect(), other, encode)
    await refused(asking, "process_conflict", "another input, as an effect")


async def a_process_started_by_many_at_once_is_started_once(store: SubjectStore) -> None:
    other = await store.second() or store
    workers = [await joined(client) for client in (store, other)]
    for _ in range(20):
        command = StartProcess(work())

        async def start(n: int, command: StartProcess = command) -> bool:
            client = (store, other)[n % 2]
            return await client.processes.start(command, workers[n % 2]) is not None

        leased = await together(*(start(n) for n in range(6)))
        equal(leased.count(True), 1, "who was told to run it")
        equal(len(await log_of(store, command.registration.id)), 1, "its log")


async def an_end_of_every_kind_is_in_the_log_the_record_and_the_run(store: SubjectStore) -> None:
    outputs = (Success({"n": [1]}), Failure("ValueError", "boom", "It broke."), Aborted("why"))
    worker = await joined(store)
    for output in outputs:
        command = StartProcess(work(arguments={"n": 1}))
        process = command.registration.id
        leased = await store.processes.start(command, worker)
        assert leased is not None
        await store.processes.settle(leased.fence, leased.number, output)
        kind, payload = ending(output)
        log = [("process.started", None), (kind, payload)]
        equal(await log_of(store, process), log, "its log")
        equal((await store.processes.outputs([process]))[process], output, "how it ended")
        record = await record_of(store, process)
        equal(record.state.status, STATES[type(output)].value, "where it stands")
        equal(record.run_state, STATES[type(output)], "where its run stands")
        equal(await store.processes.start(command, worker), None, "the second start")
        await refused(store.journal.record(leased.fence, effect()), "lease_lost", "writing on")
    equal(await store.runs.owned_by(worker), [], "what its worker owns")


async def a_start_by_an_unknown_worker_is_queued(store: SubjectStore) -> None:
    command = StartProcess(work())
    gone = await store.processes.start(command, WorkerId("gone"))
    equal(gone, None, "the lease")
    record = await record_of(store, command.registration.id)
    equal((record.state.status, record.run_state), ("open", RunState.QUEUED), "where it stands")


async def a_blank_id_is_refused(store: SubjectStore) -> None:
    for blank in (" ", "\t", "a\0b"):
        command = StartProcess(work(blank))
        asking = _asking(store, command)
        await refused(asking, "missing_process_execution_id", f"the id {blank!r}")


async def an_originator_without_a_session_is_refused(store: SubjectStore) -> None:
    asking = _asking(store, StartProcess(work(originator=SessionRef(" "))))
    await refused(asking, "process_originator_invalid", "a blank session")


async def _asking(store: Store, command: StartProcess) -> None:
    await store.processes.start(command)


async def a_process_that_comes_later_or_has_a_slot_is_leased_to_nobody(store: SubjectStore) -> None:
    later = StartProcess(work(), delay=3_600_000_000)
    equal(await store.processes.start(later, await joined(store)), None, "the lease")
    due, _ = await store.runs.next_due([TARGET])
    holds(due is not None and due > 0, "it comes later")
    slotted = StartProcess(work(slot=Slot(f"key-{next(ids)}", 1)))
    equal(await store.processes.start(slotted, await joined(store)), None, "the lease")


# --- logs ---


async def an_event_is_validated(store: SubjectStore) -> None:
    process = await started(store, event_types=TYPES)
    await store.processes.perform(AppendEvent(process, "note", {"n": 1}))
    for kind, payload in (
        ("note", {"n": "one"}),
        ("note", None),
        ("unknown", 1),
        ("", 1),
        ("process.completed", {"value": 1}),
        ("signal.go", 1),
        ("process.wake", "no object"),
    ):
        appending = store.processes.perform(AppendEvent(process, kind, payload))
        await refused(appending, "process_event_invalid", f"{kind!r} with {payload!r}")
    log = await log_of(store, process)
    equal(log[1:], [("note", {"n": 1})], "what was appended")
    anything = await started(store)
    await store.processes.perform(AppendEvent(anything, "whatever", [1]))


async def an_event_is_appended_once_under_its_key(store: SubjectStore) -> None:
    process = await started(store)
    for _ in range(2):
        told = await store.processes.perform(AppendEvent(process, "note", {"a": 1, "b": 2}, "k"))
        equal(told, {"sequence": 2}, "where it is")
    for kind, payload in (("note", 2), ("other", {"a": 1, "b": 2})):
        other = AppendEvent(process, kind, payload, "k")
        appending = store.processes.perform(other)
        await refused(appending, "process_event_conflict", "another event under the key")
    equal(len(await log_of(store, process)), 2, "the log")


async def sequences_have_no_gaps(store: SubjectStore) -> None:
    process, other = await started(store), await store.second() or store

    async def append(n: int) -> None:
        client = (store, other)[n % 2]
        for k in range(5):
            await client.processes.perform(AppendEvent(process, "note", [n, k]))

    await together(*(append(n) for n in range(20)))
    events = await store.processes.events(process)
    equal([event.sequence for event in events], list(range(1, 102)), "the sequences")
    for n in range(20):
        mine = [event.payload[1] for event in events[1:] if event.payload[0] == n]
        equal(mine, list(range(5)), "the order of one that appends")
    tail = await store.processes.events(process, after=98, limit=2)
    equal([event.sequence for event in tail], [99, 100], "a part of the log")


async def nothing_is_appended_after_the_end(store: SubjectStore) -> None:
    own = await running(store)
    await store.processes.perform(AppendEvent(own.id, "note", 1, "k"))
    await store.processes.settle(own.fence, own.number, Success(1))
    log = await log_of(store, own.id)
    for late in (AppendEvent(own.id, "note", 2), SignalProcess(own.id, "go", "1")):
        await refused(store.processes.perform(late), "process_ended", "what comes late")
    told = await store.processes.perform(AppendEvent(own.id, "note", 1, "k"))
    equal(told, {"sequence": 2}, "an append repeated after a lost answer")
    await store.processes.perform(CancelProcess(own.id))
    equal(await log_of(store, own.id), log, "the log after the end")


async def a_terminal_event_ends_the_process(store: SubjectStore) -> None:
    own = await running(store, event_types=TYPES)
    await store.processes.perform(AppendEvent(own.id, "over", {"n": 1}))
    await store.processes.settle(own.fence, own.number, Success("ignored"))
    record = await record_of(store, own.id)
    equal(record.state.output, Success({"n": 1}), "how it ended")
    equal(record.state, fold(await store.processes.events(own.id), TYPES), "the fold")
    equal(len(await log_of(store, own.id)), 2, "the log has one end")


async def an_unknown_process_is_an_error(store: SubjectStore) -> None:
    nobody = "nobody"
    for command in (
        CancelProcess(nobody),
        CancelProcess(nobody, force=True),
        SignalProcess(nobody, "go", "1"),
        AppendEvent(nobody, "note"),
    ):
        await refused(store.processes.perform(command), "process_unknown", f"{command}")
    await refused(store.processes.events(nobody), "process_unknown", "its log")
    equal(await store.processes.observe([nobody]), {}, "its end")
    granting = store.processes.perform(GrantHandle(new_session(), nobody))
    await refused(granting, "process_unknown", "its handle")
    equal(await store.processes.get(nobody), None, "the process")


async def a_failure_keeps_its_class_code_message_and_raw_value(store: SubjectStore) -> None:
    own = await running(store)
    failure = Failure("ValueError", "boom", "It broke.", {"why": [1, None]})
    await store.processes.settle(own.fence, own.number, failure)
    record = await record_of(store, own.id)
    equal((record.state.status, record.state.output), ("failed", failure), "how it ended")
    equal(fold(await store.processes.events(own.id)), record.state, "the fold of its log")
    equal(await store.processes.outputs([own.id, "nobody"]), {own.id: failure}, "the ends")


# --- cancelling ---


async def cancelling_is_an_event_once(store: SubjectStore) -> None:
    own = await running(store)
    for reason in ("first", "second"):
        await store.processes.perform(CancelProcess(own.id, reason))
    log = await log_of(store, own.id)
    equal(log[1:], [("process.cancel_requested", {"reason": "first"})], "its log")
    equal((await store.processes.look(own.id))[0], True, "what the process sees")
    equal((await record_of(store, own.id)).state.cancel, True, "its row")


async def cancelling_before_the_start_is_seen_after_it(store: SubjectStore) -> None:
    process = await started(store)
    await store.processes.perform(CancelProcess(process))
    (claim,) = await claim_processes(store, await joined(store))
    resumed = (await store.processes.resume([claim.fence.run]))[claim.fence.run]
    equal((resumed.record.id, resumed.record.state.cancel), (process, True), "the claimed process")


# --- signals ---


async def signals_are_received_in_order(store: SubjectStore) -> None:
    own = await running(store)
    for n in range(3):
        await store.processes.perform(SignalProcess(own.id, "go", str(n), n))
    await store.processes.perform(SignalProcess(own.id, "other", "0", "other"))
    equal((await store.processes.look(own.id))[1], {"go", "other"}, "what waits for it")
    equal([await _taken(store, own.fence, f"w{n}") for n in range(3)], [0, 1, 2], "the signals")
    events = await store.processes.events(own.id)
    equal(events[1].key, f"process:{own.id}:signal.go:0", "the key of the first")
    equal((await store.processes.look(own.id))[1], {"other"}, "what is left")


async def two_signals_during_one_wait_are_both_received(store: SubjectStore) -> None:
    own = await running(store)
    equal(await _taken(store, own.fence, "w0"), None, "before the signals")
    for n in range(2):
        await store.processes.perform(SignalProcess(own.id, "go", str(n), n))
    equal([await _taken(store, own.fence, f"w{n}") for n in range(2)], [0, 1], "both")
    equal(await _taken(store, own.fence, "w0"), 0, "the first wait, again")


async def a_signal_after_a_wait_that_was_late_goes_to_the_next(store: SubjectStore) -> None:
    own = await running(store)
    for key, timeout in (("w0", 0), ("w1", 1)):
        await store.processes.take_signal(own.fence, effect(key), "go", timeout, encode)
    await asyncio.sleep(0.002)
    await store.processes.perform(SignalProcess(own.id, "go", "1", 1))
    for key in ("w0", "w1"):
        entry, _ = await store.processes.take_signal(own.fence, effect(key), "go", 1, encode)
        equal(decode(entry.outcome or b""), {"timeout": True}, "a wait that was late")
    equal(await _taken(store, own.fence, "w2"), 1, "the next wait")


async def two_branches_never_take_the_same_signal(store: SubjectStore) -> None:
    other = await store.second() or store
    for n in range(20):
        own = await running(store)
        await store.processes.perform(SignalProcess(own.id, "go", "1", n))
        taken = await together(
            *(_taken((store, other)[k % 2], own.fence, f"w{k}") for k in range(4))
        )
        equal([one for one in taken if one is not None], [n], "who took it")


async def a_signal_sent_twice_under_its_id_is_one_event(store: SubjectStore) -> None:
    own = await running(store)
    first = await store.processes.perform(SignalProcess(own.id, "go", "1", {"n": 1}))
    equal(await _taken(store, own.fence, "w0"), {"n": 1}, "the signal")
    second = await store.processes.perform(SignalProcess(own.id, "go", "1", {"n": 1}))
    equal(second, first, "the signal, sent again")
    equal(await _taken(store, own.fence, "w1"), None, "what else there is")
    other = store.processes.perform(SignalProcess(own.id, "go", "1", {"n": 2}))
    await refused(other, "process_event_conflict", "another payload under the id")
    await refused(
        store.processes.perform(SignalProcess(own.id, " ", "1")), "signal_name_invalid", "a name"
    )


async def a_process_that_waits_for_a_signal_is_listed(store: SubjectStore) -> None:
    own = await running(store)
    await store.processes.take_signal(own.fence, effect("w0"), "go", None, encode)
    (wait,) = await store.processes.signal_waits()
    equal((wait.process_id, wait.key), (own.id, "w0"), "the wait")
    for number in (1, 2):
        await store.processes.perform(SignalProcess(own.id, "go", str(number), number))
    there = await store.processes.unreceived(own.id)
    equal([(one.type, one.payload) for one in there], [("signal.go", 1), ("signal.go", 2)], "both")
    await store.processes.take_signal(own.fence, effect("w0"), "go", None, encode)
    equal(await store.processes.signal_waits(), [], "after the signal")
    equal(await store.processes.unreceived(own.id), there[1:], "after the first was received")


async def _taken(store: Store, fence: Fence, key: str) -> object:
    """Return what a wait for ``go`` took, or None if it waits."""
    entry, _ = await store.processes.take_signal(fence, effect(key), "go", None, encode)
    return decode(entry.outcome)["payload"] if entry.outcome else None


# --- wakes ---


async def a_wake_is_an_event_and_one_message_for_its_session(store: SubjectStore) -> None:
    session = new_session()
    own = await running(store, wake_target=session, event_types=TYPES)
    for _ in range(2):
        await asked(store, own.fence, AppendEvent("", "process.wake", {"text": "hi"}, "1"), "w1")
    events = await store.processes.events(own.id)
    equal([event.type for event in events], ["process.started", "process.wake"], "its log")
    equal(events[1].key, f"process:{own.id}:event:1", "the event's key")
    await asked(store, own.fence, AppendEvent("", "alarm", {"n": 1}, "2"), "w2")
    queued = await store.sessions.queued(session.session_id)
    shown = [(wake.source, wake.sequence, wake.body) for wake in queued]
    equal(shown, [(own.id, 2, "hi"), (own.id, 3, {"n": 1})], "what waits for the session")


async def a_wake_without_a_target_is_only_an_event(store: SubjectStore) -> None:
    session = new_session()
    own = await running(store, originator=session)
    await store.processes.perform(AppendEvent(own.id, "process.wake", {"text": "hi"}, "k"))
    equal(len(await log_of(store, own.id)), 2, "the log")
    equal(await store.sessions.queued(session.session_id), [], "what waits for the session")


REGISTRY_LAWS = (
    a_process_carries_its_references,
    the_same_id_with_the_same_input_is_the_same_process,
    another_input_under_an_id_is_a_conflict,
    a_process_started_by_many_at_once_is_started_once,
    an_end_of_every_kind_is_in_the_log_the_record_and_the_run,
    a_start_by_an_unknown_worker_is_queued,
    a_blank_id_is_refused,
    an_originator_without_a_session_is_refused,
    a_process_that_comes_later_or_has_a_slot_is_leased_to_nobody,
    an_event_is_validated,
    an_event_is_appended_once_under_its_key,
    sequences_have_no_gaps,
    nothing_is_appended_after_the_end,
    a_terminal_event_ends_the_process,
    an_unknown_process_is_an_error,
    a_failure_keeps_its_class_code_message_and_raw_value,
    cancelling_is_an_event_once,
    cancelling_before_the_start_is_seen_after_it,
    signals_are_received_in_order,
    two_signals_during_one_wait_are_both_received,
    a_signal_after_a_wait_that_was_late_goes_to_the_next,
    two_branches_never_take_the_same_signal,
    a_signal_sent_twice_under_its_id_is_one_event,
    a_process_that_waits_for_a_signal_is_listed,
    a_wake_is_an_event_and_one_message_for_its_session,
    a_wake_without_a_target_is_only_an_event,
)
