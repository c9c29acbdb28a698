"""The logs of processes in SQL: events, signals, cancel requests and ends, and their effects on other runs.

Rule 1. All runs that an operation touches are locked first, in the order of their ids; then slots, then processes.
Rule 2. The set of those runs is read without locks. If it has changed once they are locked, the operation starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, NamedTuple

from pylash.durable.commands import AppendEvent, CancelProcess, SignalProcess
from pylash.durable.processes import (
    REGISTRATIONS,
    STATES,
    WAKE,
    Aborted,
    Output,
    Semantics,
    Success,
    check_signal,
    ending,
    semantics_of,
    signal_key,
    signal_type,
)
from pylash.durable.runs import Fence
from pylash.durable.sessions import Policy, session_lane
from pylash.stores.operation import Again, Notify, Statement, Steps
from pylash.stores.tables import processes as table
from pylash.stores.tables import queue, runs
from pylash.stores.tables.effects import waiting_runs
from pylash.stores.tables.lanes import lane_holder, lock_held_lane, next_in_lane
from pylash.stores.tables.processes import LockedProcess, lock_process
from pylash.stores.tables.waits import supersede
from pylash.values.canonical import write_payload
from pylash.values.process_errors import ProcessEnded, ProcessEventConflict, ProcessUnknown

WHERE = "select number, run, status from pylash_processes where id = ?"

ATTACHED = """
select id, run from pylash_processes where parent = ? and status = 'open' order by run"""

_IS_AWAITED = "select 1 from pylash_processes where id = ? and watched >= 2"

_OPEN_WAITS = """
select w.id from pylash_waits w join pylash_effects e on e.wait = w.id
where e.run = ? and e.outcome is null and w.terminal is null order by w.id"""

REGISTRATION = "select registration from pylash_processes where id = ?"

_EVENT_OF_KEY = """
select sequence, type, payload from pylash_process_events where process = ? and key = ?"""

_HELD_LANE = """
select 1 from pylash_lanes l join pylash_processes p on p.run = l.holder where l.lane = ? and p.id = ?"""


class _Dependents(NamedTuple):
    """What the end of a process touches.

    ``waiting`` are the runs that wait for it, ``attached`` its attached children, each with its run. If it holds the
    lane of its session, ``following`` is the next turn of that lane.
    """

    waiting: list[int]
    attached: list[Any]
    holds_lane: bool = False
    following: int | None = None

    @property
    def runs(self) -> list[int]:
        """The runs to lock."""
        following = [] if self.following is None else [self.following]
        return [*self.waiting, *(run for _, run in self.attached), *following]


# --- events, signals, cancel requests ---


def append_event(command: AppendEvent, locked: Container[int], new_run: int) -> Steps[Any]:
    """Append an event, once; wake the session or the waiting runs that it concerns. Their runs are ``locked``."""
    process = yield from lock_process(command.process_id)
    registration = REGISTRATIONS.decode(process.registration)
    semantics = semantics_of(registration, command.type, command.payload)
    key = command.key or f"process:{process.id}:event:{process.sequence + 1}"
    known = yield from _append(process, command, key)
    if known is not None:
        return {"sequence": known}
    if semantics is Semantics.WAKE and registration.wake_target is not None:
        session = registration.wake_target.session_id
        text = command.payload.get("text") if command.type == WAKE else command.payload
        holder = yield from queue.lock_lane(session, locked)
        yield from queue.add_message(session, process.id, process.sequence + 1, text, Policy.WAKE)
        yield from queue.wake_session(session, holder, new_run)
    elif semantics is Semantics.TERMINAL:
        yield from table.finish_process(process, write_payload(Success(command.payload), 1))
        for run in (yield from waiting_runs(f"process:{process.id}")):
            if run not in locked:
                raise Again  # it began to wait after the read without locks
            yield from runs.wake(run)
        yield Notify(f"process:{process.id}")
    return {"sequence": process.sequence + 1}


def append_signal(command: SignalProcess) -> Steps[Any]:
    """Append a signal, once, and wake the process. Its run is locked."""
    kind = signal_type(command.name)
    process = yield from lock_process(command.process_id)
    key = signal_key(process.id, command.name, command.signal_id)
    event = AppendEvent(process.id, kind, command.payload, key)
    known = yield from _append(process, event, key, command.name)
    if known is not None:
        return {"sequence": known}
    yield from runs.wake(process.run)
    return {"sequence": process.sequence + 1}


def _append(
    process: LockedProcess, event: AppendEvent, key: str, signal: str | None = None
) -> Steps[int | None]:
    """Append an event, or a signal of a name; if the key is taken, return the sequence of its event."""
    # The process is locked, so the key cannot be taken between this read and the insert.
    payload = write_payload(event.payload, 1)
    for sequence, kind, body in (yield Statement(_EVENT_OF_KEY, (process.number, key))).rows:
        if kind != event.type or bytes(body or b"null") != payload:
            raise ProcessEventConflict(process.id, key)
        return int(sequence)
    if process.status != "open":
        raise ProcessEnded(process.id)
    if signal is not None:
        check_signal(REGISTRATIONS.decode(process.registration), signal, event.payload)
    taken = None if signal is None else 0
    yield from table.append_event(process, event.type, payload, key, taken)
    yield Notify(f"events:{process.id}")
    return None


def request_cancel(process_id: str, reason: str | None) -> Steps[bool]:
    """Append a cancel request, once, and wake the process; return whether it was open without an earlier request.

    Its run is locked.
    """
    process = yield from lock_process(process_id)
    is_first = not process.cancel and process.status == "open"
    if is_first:
        payload = write_payload({"reason": reason}, 1)
        yield from table.append_cancel(process, payload, f"process:{process_id}:cancel")
        yield from runs.hurry(process.run)
        yield Notify(f"events:{process_id}")
    return is_first


def session_holder(process: str) -> Steps[list[int]]:
    """Return the run that holds the lane of the session that a process wakes, as it is this moment."""
    for (body,) in (yield Statement(REGISTRATION, (process,))).rows:
        target = REGISTRATIONS.decode(body).wake_target
        if target is not None:
            holder = yield from lane_holder(session_lane(target.session_id))
            return [] if holder is None else [holder]
    return []


# --- ends ---


def settle(fence: Fence, output: Output, token: str, draw: Callable[[], int]) -> Steps[None]:
    """End a process and its run, unless another worker owns it now. ``draw`` returns the number of a new run."""
    # Read without locks, because runs are locked before processes; _end compares under the lock of the process.
    dependents = yield from _dependents(fence.scope.id)
    if not (yield from runs.lock_owned(fence, dependents.runs, token)):
        return
    if dependents.holds_lane:
        yield from lock_held_lane(session_lane(fence.scope.id), dependents.following)
    process = yield from lock_process(fence.scope.id)
    yield from _end(process, fence.run, token, output, dependents)
    if dependents.holds_lane:
        yield from queue.pass_lane_on(process.id, dependents.following, draw())


def force_end(command: CancelProcess, draw: Callable[[], int]) -> Steps[Any]:
    """End a process regardless of its owner, whose fence is stale from then on."""
    dependents = yield from _dependents(command.process_id)
    known = (yield Statement(WHERE, (command.process_id,))).rows
    if not known:
        raise ProcessUnknown(command.process_id)
    run = known[0][1]
    # Waits are locked before processes, so end_waits comes first although the process may have ended meanwhile.
    yield from runs.lock_runs([run, *dependents.runs])
    if dependents.holds_lane:
        yield from lock_held_lane(session_lane(command.process_id), dependents.following)
    yield from end_waits(run)
    process = yield from lock_process(command.process_id)
    if process.status == "open":
        if process.run != run:
            raise Again
        yield from _end(process, run, "forced", Aborted(command.reason), dependents)
        if dependents.holds_lane:
            yield from queue.pass_lane_on(process.id, dependents.following, draw())
        yield Notify(f"wake:{run}")
        yield Notify(f"cancel:{run}")  # its code may execute, and not wait
        yield Notify("runs")  # another engine may have it
    return {"id": process.id}


def end_waits(run: int) -> Steps[None]:
    """End the open waits of a locked run, which will take no answer."""
    for (wait,) in (yield Statement(_OPEN_WAITS, (run,))).rows:
        yield from supersede(wait)


def runs_of_end(process: str) -> Steps[list[int]]:
    """Return the runs that the end of a process touches: its own, and those of its dependents."""
    dependents = yield from _dependents(process)
    own = (yield Statement(WHERE, (process,))).rows
    return [*(row[1] for row in own), *dependents.runs]


def _dependents(process: str) -> Steps[_Dependents]:
    """Return what the end of a process touches, without locks."""
    if not (yield Statement(_IS_AWAITED, (process,))).rows:
        return _Dependents([], [])
    waiting = yield from waiting_runs(f"process:{process}")
    attached = (yield Statement(ATTACHED, (process,))).rows
    lane = session_lane(process)
    if not (yield Statement(_HELD_LANE, (lane, process))).rows:
        return _Dependents(waiting, attached)
    return _Dependents(waiting, attached, True, (yield from next_in_lane(lane)))


def _end(
    process: LockedProcess, run: int, token: str, output: Output, dependents: _Dependents
) -> Steps[None]:
    """Write the end of a process, wake the runs that wait for it, and cancel its attached children.

    Its run and those of its dependents are locked. Raises Again if the dependents have changed since they were read.
    """
    # A run that begins to wait, and a child that attaches, set a bit of the process's row, which is locked: from here
    # on the dependents cannot change.
    if (yield from _dependents(process.id)) != dependents:
        raise Again
    state = STATES[type(output)].value
    yield from runs.settle_process(run, state, token)
    if process.status == "open":
        kind, value = ending(output)
        body, payload = write_payload(output, 2), write_payload(value, 2)
        yield from table.append_end(process, state, body, kind, payload)
    for waiter in dependents.waiting:
        yield from runs.wake(waiter)
    yield Notify(f"process:{process.id}")
    # In the same transaction, so that all attached children of an ended parent have a cancel request.
    for child, _ in dependents.attached:
        yield from request_cancel(child, "its parent ended")
