"""What every process registry promises of handles: which sessions may use which processes."""

from __future__ import annotations

from typing import Any

from pylash.durable.commands import (
    AppendEvent,
    AwaitProcess,
    CancelProcess,
    CancelUnreferenced,
    DeleteSessionProcesses,
    GrantHandle,
    ListProcesses,
    ProcessCommand,
    RevokeHandle,
    SignalProcess,
    StartProcess,
    TransferHandles,
)
from pylash.durable.processes import HandleGrant, SessionRef, Success
from pylash.durable.runs import WorkerId
from pylash.durable.stores import Store
from pylash.testing.laws.stores.subjects import (
    SubjectStore,
    ask,
    asked,
    effect,
    joined,
    log_of,
    new_session,
    raced,
    record_of,
    running,
    started,
    work,
)
from pylash.testing.laws.suites import equal, refused, together
from pylash.values.canonical import encode
from pylash.values.errors import LashError


async def handles_belong_to_a_session_and_a_frame(store: SubjectStore) -> None:
    ann, bob = new_session(), new_session()
    frame = SessionRef(ann.session_id, "planner")
    process, other = await started(store), await started(store)
    await store.processes.perform(GrantHandle(ann, process, "mine"))
    await store.processes.perform(GrantHandle(frame, other))
    equal(await store.processes.grants(ann), [HandleGrant(ann, process, "mine")], "the session's")
    equal(await store.processes.grants(frame), [HandleGrant(frame, other)], "the frame's")
    equal(await store.processes.grants(bob), [], "another session's")
    equal(await store.processes.perform(RevokeHandle(ann, process)), True, "the handle is taken")
    equal(await store.processes.perform(RevokeHandle(ann, process)), False, "it is taken once")
    equal(await store.processes.grants(ann), [], "the session's, without it")
    equal(
        await store.processes.grants(frame), [HandleGrant(frame, other)], "the frame's, as before"
    )


async def handles_are_listed_live_or_all(store: SubjectStore) -> None:
    ann, worker = new_session(), await joined(store)
    own, other = await running(store, worker), await running(store, worker)
    for process in (own.id, other.id):
        await store.processes.perform(GrantHandle(ann, process))
    await store.processes.settle(own.fence, own.number, Success(1))
    live = await store.processes.perform(ListProcesses(ann))
    equal([(one["id"], one["status"]) for one in live], [(other.id, "running")], "the live ones")
    everything = await store.processes.perform(ListProcesses(ann, "all"))
    shown = {one["id"]: one["status"] for one in everything}
    equal(shown, {own.id: "completed", other.id: "running"}, "all of them")


async def handles_are_transferred(store: SubjectStore) -> None:
    ann, bob = new_session(), new_session()
    process, kept = await started(store), await started(store)
    for one in (process, kept):
        await store.processes.perform(GrantHandle(ann, one, "mine"))
    await store.processes.perform(TransferHandles(ann, bob, (process,)))
    equal(await store.processes.grants(ann), [HandleGrant(ann, kept, "mine")], "who gave")
    equal(await store.processes.grants(bob), [HandleGrant(bob, process, "mine")], "who got")
    await store.processes.perform(TransferHandles(ann, bob, ()))
    await store.processes.perform(TransferHandles(bob, bob, (process,)))
    equal(await store.processes.grants(bob), [HandleGrant(bob, process, "mine")], "to oneself")
    stranger = new_session()
    for giver, receiver in ((stranger, ann), (stranger, stranger), (ann, stranger)):
        giving = store.processes.perform(TransferHandles(giver, receiver, (kept, process)))
        await refused(giving, "process_not_visible", "a handle that neither session holds")
    equal(len(await store.processes.grants(ann)), 1, "the handles that stay, if one is not held")


async def a_handle_is_transferred_or_revoked_once(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, _worker: WorkerId, number: int) -> None:
        ann, bob, carol = new_session(), new_session(), new_session()
        process = await started(one)
        await one.processes.perform(GrantHandle(ann, process))
        if number % 2:
            rival: ProcessCommand = RevokeHandle(ann, process)
        else:
            rival = TransferHandles(ann, carol, (process,))
        transfer = TransferHandles(ann, bob, (process,))
        first, second = await together(answer_to(one, transfer), answer_to(other, rival))
        equal(second in (False, NOT_VISIBLE), first != NOT_VISIBLE, "only one of them succeeds")
        held = [len(await one.processes.grants(holder)) for holder in (ann, bob, carol)]
        lost = isinstance(rival, RevokeHandle)
        wanted = [0, 1, 0] if first != NOT_VISIBLE else [0, 0, 0 if lost else 1]
        equal(held, wanted, "how many handles each session has")

    await raced(store, race)


NOT_VISIBLE = "process_not_visible"


async def answer_to(store: Store, command: ProcessCommand) -> Any:
    """Return the registry's answer to a command, or the code of its refusal."""
    try:
        return await store.processes.perform(command)
    except LashError as error:
        return error.code


async def what_a_run_started_is_never_written_as_a_grant(store: SubjectStore) -> None:
    session = new_session()
    own = await running(store, originator=session)
    child = work(parent=own.id, originator=session)
    await asked(store, own.fence, StartProcess(child))
    equal(await store.processes.grants(session), [], "what the session holds")
    await asked(store, own.fence, CancelProcess(child.id), "cancel")
    equal((await record_of(store, child.id)).state.cancel, True, "the parent can cancel it")
    granted = work()
    await store.processes.start(StartProcess(granted, grant=session))
    equal(len(await store.processes.grants(session)), 1, "a grant that was asked for")


async def a_session_uses_the_processes_whose_handles_it_holds(store: SubjectStore) -> None:
    ann, bob = new_session(), new_session()
    frame = SessionRef(ann.session_id, "planner")
    process = await started(store)
    await store.processes.perform(GrantHandle(ann, process))
    log = await log_of(store, process)
    for stranger in (bob, frame):
        await _is_refused(store, stranger, process)
    await _is_refused(store, ann, "nobody")
    equal(await log_of(store, process), log, "its log")
    await store.processes.perform(SignalProcess(process, "go", "1", by=ann))
    await store.processes.perform(TransferHandles(ann, bob, (process,)))
    await _is_refused(store, ann, process)
    await store.processes.perform(SignalProcess(process, "go", "2", by=bob))
    await store.processes.perform(CancelProcess(process, by=bob))
    await store.processes.perform(RevokeHandle(bob, process))
    await _is_refused(store, bob, process)
    await store.processes.perform(SignalProcess(process, "go", "3"))  # of the app itself


async def _is_refused(store: SubjectStore, session: SessionRef, process: str) -> None:
    code, other = "process_not_visible", await running(store)
    for command in (
        SignalProcess(process, "go", "1", by=session),
        CancelProcess(process, by=session),
    ):
        await refused(store.processes.perform(command), code, f"{command}")
        await refused(asked(store, other.fence, command), code, f"{command} of a run")
    watching = store.processes.watch(
        other.fence, effect("watch"), AwaitProcess(process, by=session), encode
    )
    await refused(watching, code, "waiting for its end")
    await refused(store.processes.check_visible(session, [process]), code, "seeing it")


async def a_run_uses_the_processes_that_it_started(store: SubjectStore) -> None:
    session, worker = new_session(), await joined(store)
    own = await running(store, worker, originator=session)
    child = work(parent=own.id, originator=session)
    await asked(store, own.fence, StartProcess(child))
    await asked(store, own.fence, SignalProcess(child.id, "go", "1", by=session), "signal")
    awaiting = AwaitProcess(child.id, by=session)
    opened = await store.processes.watch(own.fence, effect("await"), awaiting, encode)
    equal(opened.outcome, None, "the wait for its end")
    await asked(store, own.fence, CancelProcess(child.id, by=session), "cancel")
    sibling = await running(store, worker, originator=session)
    reaching = asked(store, sibling.fence, SignalProcess(child.id, "go", "2", by=session))
    await refused(reaching, "process_not_visible", "a signal of another run of the session")


async def who_loses_a_handle_does_not_get_the_result(store: SubjectStore) -> None:
    ann, bob, worker = new_session(), new_session(), await joined(store)
    own, waiter = await running(store, worker), await running(store, worker)
    await store.processes.perform(GrantHandle(ann, own.id))
    awaiting = AwaitProcess(own.id, by=ann)
    await store.processes.watch(waiter.fence, effect("await"), awaiting, encode)
    await store.processes.perform(TransferHandles(ann, bob, (own.id,)))
    await store.processes.settle(own.fence, own.number, Success("secret"))
    looking = store.processes.watch(waiter.fence, effect("await"), awaiting, encode)
    await refused(looking, "process_not_visible", "the result")


async def only_what_nobody_else_holds_is_cancelled(store: SubjectStore) -> None:
    ann, bob = new_session(), new_session()
    frame = SessionRef(ann.session_id, "planner")
    alone, shared, kept, framed = [await started(store) for _ in range(4)]
    for process in (alone, shared, kept, framed):
        await store.processes.perform(GrantHandle(ann, process))
    await store.processes.perform(GrantHandle(bob, shared))
    await store.processes.perform(GrantHandle(frame, framed))
    logs = {process: await log_of(store, process) for process in (shared, kept, framed)}
    cancelled = await store.processes.perform(CancelUnreferenced(ann, keep=(kept,)))
    equal(cancelled, [alone], "what was cancelled")
    last = (await log_of(store, alone))[-1]
    equal(last, ("process.cancel_requested", {"reason": "requested by host"}), "its last event")
    for process, log in logs.items():
        equal(await log_of(store, process), log, "a log that is left alone")
    held = [grant.process_id for grant in await store.processes.grants(ann)]
    equal(held, [kept], "what the session still holds")


async def the_last_of_two_that_let_go_cancels(store: SubjectStore) -> None:
    async def race(one: Store, other: Store, _worker: WorkerId, _try: int) -> None:
        ann, bob, process = new_session(), new_session(), await started(one)
        for holder in (ann, bob):
            await one.processes.perform(GrantHandle(holder, process))
        answers = await together(
            ask(one, CancelUnreferenced(ann)),
            ask(other, CancelUnreferenced(bob)),
        )
        equal(sorted(map(len, answers)), [0, 1], "who cancelled it")

    await raced(store, race)


async def deleting_a_session_reports_what_was_removed(store: SubjectStore) -> None:
    ann, bob = new_session(), new_session()
    own = await running(store, wake_target=ann)
    for holder in (ann, SessionRef(ann.session_id, "planner"), bob):
        await store.processes.perform(GrantHandle(holder, own.id))
    await store.processes.perform(AppendEvent(own.id, "process.wake", {"text": "hi"}))
    report = await store.processes.perform(DeleteSessionProcesses(ann.session_id))
    equal(report, {"handles": 2, "wakes": 1, "subscriptions": 0}, "the report")
    equal(await store.sessions.queued(ann.session_id), [], "its wakes")
    for holder in (ann, SessionRef(ann.session_id, "planner")):
        equal(await store.processes.grants(holder), [], "its handles")
    equal(await store.processes.grants(bob), [HandleGrant(bob, own.id)], "another's handles")
    equal((await record_of(store, own.id)).state.cancel, False, "the process goes on")


HANDLE_LAWS = (
    handles_belong_to_a_session_and_a_frame,
    handles_are_listed_live_or_all,
    handles_are_transferred,
    a_handle_is_transferred_or_revoked_once,
    what_a_run_started_is_never_written_as_a_grant,
    a_session_uses_the_processes_whose_handles_it_holds,
    a_run_uses_the_processes_that_it_started,
    who_loses_a_handle_does_not_get_the_result,
    only_what_nobody_else_holds_is_cancelled,
    the_last_of_two_that_let_go_cancels,
    deleting_a_session_reports_what_was_removed,
)
