"""The process registry in SQL: starting, waiting and ending.

Rule 1. A process command of a run is executed and recorded in one transaction.
Rule 2. Starts and ends exist twice: as statements for both databases, and for PostgreSQL as one statement for
        many of them (``tables.bulk``). A test compares the rows that both write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

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
    SubmitTurn,
    TransferHandles,
    command_of,
)
from pylash.durable.processes import (
    OUTPUTS,
    STATES,
    HandleGrant,
    LeasedStart,
    Output,
    Registration,
    SessionTurnInput,
    checked_registration,
    ending,
    signal_type,
)
from pylash.durable.runs import Fence, Instant, JournalEntry, WorkerId
from pylash.durable.scopes import ProcessScope, scope_text
from pylash.durable.stores import Wrap
from pylash.stores.operation import (
    Again,
    Bulk,
    Notify,
    Operation,
    Statement,
    Steps,
    operation,
    reading,
    store_time,
)
from pylash.stores.ports import process_handles as handles
from pylash.stores.ports import process_log as log
from pylash.stores.ports import process_reads as reads
from pylash.stores.ports.numbers import RunPort
from pylash.stores.ports.turn_submission import hold_lane, submit_for_process
from pylash.stores.tables import effects, runs
from pylash.stores.tables import processes as table
from pylash.stores.tables.bulk import SETTLE_MANY, START_MANY
from pylash.stores.tables.sessions import open_session
from pylash.stores.tables.workers import is_member
from pylash.values.canonical import decode, encode, write_payload
from pylash.values.errors import LeaseLost
from pylash.values.process_errors import ProcessConflict, ProcessUnknown

_KNOWN = """
select p.digest, p.number, r.token, r.owner, r.fence, p.run, {now} from pylash_processes p
join pylash_runs r on r.id = p.run where p.id = ?"""

_OBSERVED = "select id, output, watched & 1 from pylash_processes where id in ({texts})"

# The oldest signal by its sequence, from an index: an ORDER BY over the join would sort all signals.
_OLDEST_SIGNAL = """
select p.number, e.sequence, e.payload, e.at from pylash_processes p
left join pylash_process_events e on e.process = p.number and e.sequence =
  (select min(o.sequence) from pylash_process_events o
   where o.process = p.number and o.type = ? and o.taken = 0)
where p.id = ?"""


class SqlProcesses(RunPort):
    """The process registry in SQL."""

    # --- starting ---

    def start(
        self, command: StartProcess, worker: WorkerId | None = None
    ) -> Awaitable[LeasedStart | None]:
        """Start a process, once; worker owns it at once if one is given and it can run now."""
        registration = checked_registration(command.registration)
        token = self._entropy(8).hex()
        if command.delay or registration.slot is not None:
            worker = None  # it runs later, and slots are given when runs are claimed
        steps = partial(self._start, command, worker, token)
        flow = f"start:{registration.target}" if worker is None else None
        is_plain = command.grant is None and registration.parent is None and not registration.tags
        if worker is None or not is_plain or registration.plays_session:
            return self.driver.run(Operation("start", steps, flow=flow))
        number, scope = self._draw(), ProcessScope(registration.id)
        what = (number, registration.id, scope_text(scope), registration.target)
        row = (*what, *_body(registration), worker, token)
        read = partial(_leased, number, scope)
        bulk = Bulk(None, START_MANY, row, (number,), None, read=read)
        return self.driver.run(Operation("start", steps, bulk=bulk))

    def _start(
        self, command: StartProcess, worker: WorkerId | None, token: str
    ) -> Steps[LeasedStart | None]:
        registration = command.registration
        if worker is not None and not (yield from is_member(worker)):
            worker = None  # it was taken for dead: any worker may run the process
        number = yield from register_process(command, self._draws(), worker, token)
        if number is None:
            _, number, *last, _, now = yield from check_known(registration)
            if worker is None or last != [token, worker, 1]:
                return None
            # Otherwise an earlier attempt was committed and its answer lost.
        elif worker is None:
            return None
        else:
            now = yield from store_time()
        return LeasedStart(number, Fence(number, 1, ProcessScope(registration.id)), now)

    # --- commands ---

    def perform(self, command: ProcessCommand, asker: str | None = None) -> Awaitable[Any]:
        """Do what command asks; ``asker`` is the process, or the turn, that asks."""
        if asker is not None:
            command = command_of(asker, command)
        if isinstance(command, AppendEvent) and command.key is None:  # so that it happens once
            key = f"process:{command.process_id}:event:{self._entropy(8).hex()}"
            command = replace(command, key=key)
        return self.driver.run(Operation("perform", partial(self._perform, command, asker)))

    def _perform(self, command: ProcessCommand, asker: str | None) -> Steps[Any]:
        if isinstance(command, SignalProcess):
            locked = yield from runs.lock_run_of(command.process_id)
        else:
            locked = yield from runs.lock_runs((yield from self._touched(command)))
        return (yield from self._work(command, locked, asker))

    @operation()
    def perform_for(
        self,
        fence: Fence,
        entry: JournalEntry,
        command: ProcessCommand,
        wrap: Wrap,
        notes: Sequence[JournalEntry] = (),
    ) -> Steps[JournalEntry]:
        """Do what command asks as an effect of a run, and record it."""
        asker = _asker(fence)
        command = command_of(asker, command)
        touched = yield from self._touched(command)
        locked = yield from runs.lock_runs([*touched, fence.run])
        if locked.get(fence.run) != fence.token:
            raise LeaseLost(fence.name)
        yield from effects.record_notes(fence, notes)
        known = yield from effects.find_effect(fence.run, entry.key)
        if known is not None:
            return known
        outcome = wrap((yield from self._work(command, locked, asker)))
        done = replace(entry, outcome=outcome, size=len(outcome))
        yield from effects.record_effect(fence, done)
        return done

    def _touched(self, command: ProcessCommand) -> Steps[list[int]]:
        """Return the other runs that a command will wake, without locks."""
        match command:
            case SignalProcess(process_id=process) | CancelProcess(process_id=process, force=False):
                ids = [process]
            case CancelProcess(process_id=process):
                return (yield from log.runs_of_end(process))
            case AppendEvent(process_id=process):
                # The event may be terminal, or wake a session.
                waiting = yield from effects.waiting_runs(f"process:{process}")
                return waiting + (yield from log.session_holder(process))
            case CancelUnreferenced():
                ids = [grant.process_id for grant in (yield from handles.unkept_handles(command))]
            case _:
                return []
        touched = []
        for process in ids:
            touched += [row[1] for row in (yield Statement(log.WHERE, (process,))).rows]
        return touched

    def _work(  # noqa: C901, PLR0911, PLR0912 - one line a command
        self,
        command: ProcessCommand,
        locked: Container[int],
        asker: str | None,
    ) -> Steps[Any]:
        """Do what command asks."""
        if isinstance(command, SignalProcess | CancelProcess):
            yield from handles.check_access(command.by, command.process_id, asker)
        match command:
            case StartProcess(registration=registration):
                checked_registration(registration)
                start = yield from handles.start_of(command, asker)
                if (yield from register_process(start, self._draws())) is None:
                    yield from check_known(registration)
                return {"id": registration.id}
            case ListProcesses():
                return (yield from handles.list_processes(command))
            case TransferHandles():
                return (yield from handles.transfer_handles(command))
            case GrantHandle():
                return (yield from handles.grant_handle(command))
            case RevokeHandle():
                return (yield from handles.revoke_handle(command))
            case DeleteSessionProcesses(session_id=session):
                return (yield from handles.forget_handles(session))
            case CancelProcess(force=True):
                return (yield from log.force_end(command, self._draw))
            case CancelProcess(process_id=process, reason=reason):
                yield from log.request_cancel(process, reason)
                return {"id": process}
            case CancelUnreferenced():
                return (yield from handles.cancel_unreferenced(command))
            case SignalProcess():
                return (yield from log.append_signal(command))
            case SubmitTurn():
                return (yield from submit_for_process(command, self._draw()))
            case AppendEvent():
                return (yield from log.append_event(command, locked, self._draw()))
            case _:
                raise AssertionError(command)  # waits are opened with watch and take_signal

    # --- waiting ---

    @operation()
    def watch(
        self,
        fence: Fence,
        entry: JournalEntry,
        command: AwaitProcess,
        wrap: Wrap,
        notes: Sequence[JournalEntry] = (),
    ) -> Steps[JournalEntry]:
        """Open a wait for a process as an effect of a run, or close it if the process has ended."""
        now = yield from runs.lock_fenced(fence)
        yield from effects.record_notes(fence, notes)
        known = yield from effects.find_effect(fence.run, entry.key)
        if known is not None and known.size:
            return known
        # Checked at every read: a session that loses its access while it waits does not get the result.
        yield from handles.check_access(command.by, command.process_id, _asker(fence))
        row = yield from table.watch_process(command.process_id)
        if row is None:
            raise ProcessUnknown(command.process_id)
        status, output = row
        if known is None:
            known = yield from effects.open_effect(fence, entry, f"process:{command.process_id}")
        if status == "open":
            return known
        outcome = wrap({"output": decode(output or b"null")})
        return (yield from effects.close_effect(fence, known, outcome, now))

    @operation()
    def take_signal(
        self,
        fence: Fence,
        entry: JournalEntry,
        name: str,
        timeout: int | None,
        wrap: Wrap,
        notes: Sequence[JournalEntry] = (),
    ) -> Steps[tuple[JournalEntry, Instant]]:
        """Take the oldest signal of a name, or open a wait for one, or close a wait whose time is over."""
        now = yield from runs.lock_fenced(fence)
        yield from effects.record_notes(fence, notes)
        known = yield from effects.find_effect(fence.run, entry.key)
        if known is not None and known.size:
            return known, now
        oldest = (yield Statement(_OLDEST_SIGNAL, (signal_type(name), fence.scope.id))).rows[0]
        process, sequence, payload, at = oldest
        if known is None:
            due = None if timeout is None else Instant(now + timeout)
            known = yield from effects.open_effect(fence, entry, f"signal:{process}:{name}", due)
        if sequence is not None and (known.due is None or at <= known.due):
            if not (yield from table.take_signal(process, sequence)):
                raise Again  # another branch of this run took it
            taken = None if payload is None else decode(payload)
            outcome = wrap({"sequence": sequence, "payload": taken})
            return (yield from effects.close_effect(fence, known, outcome, now)), now
        if known.due is not None and known.due <= now:
            outcome = wrap({"timeout": True})
            return (yield from effects.close_effect(fence, known, outcome, now)), now
        return known, now

    @operation()
    def observe(self, process_ids: Sequence[str]) -> Steps[dict[str, Output | None]]:
        """Note that a listener waits for the ends of processes.

        Returns those that are observed now or have ended, with their outputs; call it again for the others.
        """
        ids = list(process_ids)
        yield from table.observe_processes(ids)
        rows = (yield Statement(_OBSERVED, (ids,))).rows
        return {
            process: None if output is None else OUTPUTS.decode(output)
            for process, output, watched in rows
            if watched or output is not None
        }

    # --- ending ---

    def settle(self, fence: Fence, number: int, output: Output) -> Awaitable[None]:
        """End a process and its run."""
        token = f"settled:{fence.token}"
        steps = partial(log.settle, fence, output, token, self._draw)
        state, body = STATES[type(output)].value, write_payload(output, 2)
        kind, value = ending(output)
        payload = write_payload(value, 2)
        news = encode(["", topic := f"process:{fence.scope.id}"]).decode()
        row = (fence.run, fence.token, number, state, body, kind, payload, token, news)
        bulk = Bulk(None, SETTLE_MANY, row, (number,), None, topic)
        return self.driver.run(Operation("settle", steps, bulk=bulk))

    @operation()
    def continue_as(
        self, fence: Fence, registration: Registration, *, cancelled: bool = False
    ) -> Steps[None]:
        """Settle the run and continue with a new one, under the same process and log.

        ``cancelled``: the cancel request was delivered, and is not delivered again.
        """
        token = f"continued:{fence.token}"
        if not (yield from runs.lock_owned(fence, token=token)):
            return
        process = yield from table.lock_process(registration.id)
        scope = scope_text(fence.scope)
        yield from runs.settle_continued(fence.run, scope, process.epoch, token)
        for following in self._draws():
            if (yield from runs.enqueue_next(following, scope, registration.target, fence.run)):
                break
        body = write_payload(registration, 2)
        arguments = write_payload(getattr(registration.input, "arguments", None), 2)
        yield from table.append_continuation(
            process, following, body, arguments, cancelled=cancelled
        )
        yield Notify("runs")

    @operation()
    def fork(self, process_id: str, registration: Registration, keys: Sequence[str]) -> Steps[None]:
        """Start a process with some of what another recorded."""
        command = StartProcess(registration, grant=registration.holder)
        number = yield from register_process(command, self._draws())
        if number is None:
            yield from check_known(registration)
        source = (yield Statement(log.WHERE, (process_id,))).rows
        if not source:
            raise ProcessUnknown(process_id)
        if number is not None:
            yield Statement(effects.COPY_EFFECTS, (number, source[0][1], list(keys)))

    # --- reading ---

    get = reading(reads.find_process)
    resume = reading(reads.resume_processes)
    look = reading(reads.look_at_process)
    unreceived = reading(reads.unreceived_signals)
    cancel_reason = reading(reads.cancel_reason)
    view = reading(reads.process_view)
    listed = reading(reads.processes_listed)
    signal_waits = reading(reads.signal_waits)
    outputs = reading(reads.process_outputs)
    known = reading(reads.known_processes)
    events = reading(reads.process_events)
    grants = reading(handles.grants_of)
    check_visible = reading(handles.check_visible)


def register_process(
    command: StartProcess,
    draws: Iterator[int],
    worker: WorkerId | None = None,
    token: str = "",
) -> Steps[int | None]:
    """Write the process, its run and its first event; return its number, or None if its id is taken.

    The run comes first: its row is unique by scope and by number, so that one insert checks both, and runs are locked
    before processes in all operations.
    """
    registration = command.registration
    number = yield from _add_run(command, draws, worker, token)
    if number is None:
        return None
    if isinstance(registration.input, SessionTurnInput) and registration.plays_session:
        # Opened now, so that a turn that waits for the lane gets the options of the session too.
        yield from hold_lane(registration.id, number)
        yield from open_session(registration.id, registration.input.options)
    parent = registration.parent if registration.attached else None
    yield from table.add_process(registration.id, number, _body(registration), parent)
    yield from table.add_tags(number, registration.tags)
    if parent is not None:
        yield from table.watch_process(parent)
    if registration.plays_session:
        yield from table.watch_process(registration.id)  # its end passes the lane on
    if command.grant is not None:
        yield from handles.add_grant(HandleGrant(command.grant, registration.id))
    if worker is None:
        yield Notify("runs")
    return number


def _add_run(
    command: StartProcess, draws: Iterator[int], worker: WorkerId | None, token: str
) -> Steps[int | None]:
    """Insert the first run of a process with a free number; None if its scope is taken."""
    registration = command.registration
    scope, target = scope_text(ProcessScope(registration.id)), registration.target
    slot = None if registration.slot is None else (registration.slot.key, registration.slot.limit)
    for number in draws:
        if worker is None:
            added = yield from runs.enqueue_process(number, scope, target, command.delay, slot)
        else:
            added = yield from runs.start_process(number, scope, target, worker, token)
        if added:
            return number
        if (yield from runs.is_scope_taken(scope)):
            break
    return None


def _body(registration: Registration) -> tuple[bytes, bytes, str | None]:
    """Return the columns of a process that come from its registration."""
    return write_payload(registration, 2), registration.digest, registration.env


def _leased(number: int, scope: ProcessScope, rest: tuple[Any, ...]) -> LeasedStart:
    return LeasedStart(number, Fence(number, 1, scope), Instant(rest[0]))


def check_known(registration: Registration) -> Steps[tuple[Any, ...]]:
    """Return the row of the process with the id, or raise ProcessConflict if its input differs.

    A scope can be taken without a process: by a controller of a host for the same name.
    """
    known = (yield Statement(_KNOWN, (registration.id,))).rows
    if not known or bytes(known[0][0]) != registration.digest:
        raise ProcessConflict(registration.id)
    return known[0]


def _asker(fence: Fence) -> str:
    """Return the id of the process, or the text of the turn, whose run has a fence."""
    scope = fence.scope
    return scope.id if isinstance(scope, ProcessScope) else scope_text(scope)
