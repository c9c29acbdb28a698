"""The process registry in SQL: starting, waiting, ending and looking.

Rule 1. What a run does to processes is done and recorded in one transaction.
Rule 2. A start and an end are written more than once: as statements that run anywhere, and for many of
        them at once (``fused``). A test compares the rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from pylash.durable import (
    CONTINUED,
    OUTPUTS,
    STARTED,
    STATES,
    AppendEvent,
    AwaitProcess,
    CancelProcess,
    CancelUnreferenced,
    Clock,
    DeleteSessionProcesses,
    Entropy,
    Fence,
    HandleGrant,
    Instant,
    JournalEntry,
    LeasedStart,
    ListProcesses,
    Output,
    ProcessCommand,
    ProcessScope,
    Registration,
    SessionRef,
    SignalProcess,
    StartProcess,
    SubmitTurn,
    TransferHandles,
    WorkerId,
    Wrap,
    checked_registration,
    command_of,
    ending,
    scope_text,
    signal_type,
)
from pylash.stores.ends import IS_SETTLED, WHERE, force_end, runs_concerned, settle
from pylash.stores.fused import (
    LIFE_MANY,
    LIFE_ONE,
    LIFE_PARTS,
    SETTLE_MANY,
    SETTLE_ONE,
    SETTLE_PARTS,
    START_MANY,
    START_ONE,
    START_PARTS,
)
from pylash.stores.handles import (
    REVOKE,
    add_grant,
    cancel_unreferenced,
    delete_session,
    dropped,
    listed,
    transfer,
)
from pylash.stores.journal import (
    EFFECT_COLUMNS,
    close_effect,
    fenced,
    is_member,
    open_effect,
    recorded,
    standing,
)
from pylash.stores.logs import (
    ADD_EVENT,
    LOCK_PROCESS,
    WAITING_RUNS,
    append_event,
    append_signal,
    ask_cancel,
    lock_runs,
    wakes,
)
from pylash.stores.lookups import SqlLookups
from pylash.stores.numbers import DrawsNumbers
from pylash.stores.runs import release_slot, slot_name
from pylash.stores.sessions import submitted
from pylash.stores.sql import (
    Again,
    Bulk,
    Driver,
    Notify,
    Operation,
    Statement,
    Steps,
    operation,
)
from pylash.values import (
    LeaseLost,
    ProcessConflict,
    ProcessUnknown,
    decode,
    encode,
    write_payload,
)

_NOW = "select {now}"

_ADD = """
insert into pylash_processes(id, number, run, registration, digest, env, parent, created)
values (?, ?, ?, ?, ?, ?, ?, {now})"""

# Changes nothing if the scope or the number is taken; _IS_TAKEN tells which.
_ADD_RUN = """
insert into pylash_runs(id, scope, kind, target, state, at, owner, token, fence, attempts, slot, slot_limit,
  created) values (?, ?, 'process', ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}) on conflict do nothing"""

_IS_TAKEN = "select 1 from pylash_runs where scope = ?"

_KNOWN = """
select p.digest, p.number, r.token, r.owner, r.fence, p.run from pylash_processes p
join pylash_runs r on r.id = p.run where p.id = ?"""

_WATCH = """
update pylash_processes set watched = watched | 2 where id = ? returning status, output, number"""

# What is being ended this moment is skipped: two who lock many rows must not wait for each other.
_OBSERVE = """
with seen as (select number from pylash_processes where id in ({texts}) and status = 'open'
              and watched & 1 = 0 order by number {skip})
update pylash_processes set watched = watched | 1 where number in (select number from seen)"""

_OBSERVED = "select id, output, watched & 1 from pylash_processes where id in ({texts})"

_ADD_EFFECT = f"""
insert into pylash_effects({EFFECT_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict do nothing"""

_OLDEST_SIGNAL = """
select sequence, payload, at from pylash_process_events
where process = ? and type = ? and taken = 0 order by sequence limit 1"""

_TAKE_SIGNAL = """
update pylash_process_events set taken = 1 where process = ? and sequence = ? and taken = 0"""

_RENAME_RUN = """
update pylash_runs set scope = ?, state = 'completed', settled = {now}, at = null, owner = null,
  fence = fence + 1, token = ? where id = ?"""

_NEXT_RUN = """
insert into pylash_runs(id, scope, kind, target, state, at, owner, fence, slot, slot_limit, created)
select ?, ?, kind, target, 'queued', {now}, null, 0, slot, slot_limit, {now} from pylash_runs where id = ?
on conflict (id) do nothing"""

_CONTINUE = """
update pylash_processes set sequence = sequence + 1, epoch = epoch + 1, run = ?, registration = ?,
  cancel = case when ? then 2 else cancel end where id = ?"""

_COPY_EFFECTS = f"""
insert into pylash_effects(run, wait, {EFFECT_COLUMNS.removeprefix("run, ")})
select cast(? as bigint), null, {EFFECT_COLUMNS.removeprefix("run, ")} from pylash_effects
where run = ? and key in ({{texts}})
on conflict do nothing"""


class SqlProcesses(SqlLookups, DrawsNumbers):
    """The process registry in SQL."""

    def __init__(self, driver: Driver, clock: Clock, entropy: Entropy) -> None:
        super().__init__(driver)
        self._clock = clock
        self._entropy = entropy

    # --- starting ---

    def start(
        self,
        command: StartProcess,
        worker: WorkerId | None = None,
        *,
        number: int | None = None,
        end: Output | None = None,
    ) -> Awaitable[LeasedStart | None]:
        """Start a process, once; owned by worker from the first moment if one is given."""
        registration = checked_registration(command.registration)
        number = number or self._draw()
        token = self._entropy(8).hex()
        if command.delay or registration.slot is not None:
            worker = None  # its time comes later, and slots are given where runs are claimed
        steps = partial(self._start, command, worker, token, end, number)
        flow = f"start:{registration.target}" if worker is None else None
        if worker is None or command.grant is not None or registration.parent is not None:
            return self.driver.run(Operation("start", steps, flow=flow))
        scope = ProcessScope(registration.id)
        where, target = scope_text(scope), registration.target
        body = (write_payload(registration, 2), registration.digest, registration.env)
        row = (number, registration.id, where, target, *body, worker)
        read = partial(_leased, number, scope)
        bulk = Bulk(None, START_MANY, (*row, token), (number,), None, read=read)
        bulk.parts, bulk.lone = START_PARTS, START_ONE
        if end is not None:
            kind, value = ending(end)
            ended = (STATES[type(end)].value, write_payload(end, 2), kind, write_payload(value, 2))
            bulk.row = (*row, f"settled:{token}", *ended)
            bulk.many, bulk.parts, bulk.lone = LIFE_MANY, LIFE_PARTS, LIFE_ONE
        return self.driver.run(Operation("start", steps, bulk=bulk))

    def _start(
        self,
        command: StartProcess,
        worker: WorkerId | None,
        token: str,
        end: Output | None,
        first: int,
    ) -> Steps[LeasedStart | None]:
        registration = command.registration
        if worker is not None and not (yield from is_member(worker)):
            worker = None  # others gave us up: it is anyone's
        draws = self._draws(first)
        number = yield from register_process(command, draws, worker, token)
        if number is not None:
            if worker is None:
                return None
            fence = Fence(number, 1, ProcessScope(registration.id))
            if end is not None:
                yield from settle(fence, end, f"settled:{token}")
            now = Instant((yield Statement(_NOW)).rows[0][0])
            return LeasedStart(number, fence, now)
        known = yield from check_known(registration)
        ours = (token, worker, 1) if end is None else (f"settled:{token}", None, 2)
        if worker is not None and known[2:5] == ours:  # done already; the answer was lost
            now = Instant((yield Statement(_NOW)).rows[0][0])
            return LeasedStart(known[1], Fence(known[5], 1, ProcessScope(registration.id)), now)
        return None

    # --- commands ---

    def perform(self, command: ProcessCommand) -> Awaitable[Any]:
        """Do what command asks."""
        if isinstance(command, AppendEvent) and command.key is None:  # so that it happens once
            key = f"process:{command.process_id}:event:{self._entropy(8).hex()}"
            command = replace(command, key=key)
        return self.driver.run(Operation("perform", partial(self._perform, command)))

    def _perform(self, command: ProcessCommand) -> Steps[Any]:
        locked = yield from lock_runs((yield from self._touched(command)))
        return (yield from self._work(command, locked))

    @operation()
    def perform_for(
        self, fence: Fence, entry: JournalEntry, command: ProcessCommand, wrap: Wrap
    ) -> Steps[JournalEntry]:
        """Do what command asks as an effect of a run, and record it."""
        scope = fence.scope
        asker = scope.id if isinstance(scope, ProcessScope) else scope_text(scope)
        command = command_of(asker, command)
        touched = yield from self._touched(command)
        locked = yield from lock_runs([*touched, fence.run])
        if locked.get(fence.run) != fence.token:
            raise LeaseLost(fence.name)
        known = yield from recorded(fence, entry.key)
        if known is not None:
            return known
        outcome = wrap((yield from self._work(command, locked)))
        done = replace(entry, outcome=outcome, size=len(outcome))
        row = (fence.run, entry.key, entry.kind, entry.hash, entry.command, outcome, None, None)
        yield Statement(_ADD_EFFECT, (*row, entry.started, entry.ended, entry.label))
        return done

    def _touched(self, command: ProcessCommand) -> Steps[list[int]]:
        """Return the runs of others that command will wake."""
        match command:
            case SignalProcess(process_id=process) | CancelProcess(process_id=process, force=False):
                ids: Iterable[str] = (process,)
            case CancelProcess(process_id=process):
                return (yield from runs_concerned(process))
            case AppendEvent(process_id=process):  # it may be the end, or wake a session
                rows = (yield Statement(WAITING_RUNS, (f"process:{process}",))).rows
                return [run for (run,) in rows] + (yield from wakes(process))
            case CancelUnreferenced():
                ids = [grant.process_id for grant in (yield from dropped(command))]
            case _:
                return []
        runs = []
        for process in ids:
            runs += [row[1] for row in (yield Statement(WHERE, (process,))).rows]
        return runs

    def _work(self, command: ProcessCommand, locked: Container[int]) -> Steps[Any]:  # noqa: C901, PLR0911, PLR0912 - one line a command
        match command:
            case StartProcess(registration=registration):
                checked_registration(registration)
                if (yield from register_process(command, self._draws())) is None:
                    yield from check_known(registration)
                return {"id": registration.id}
            case ListProcesses():
                return (yield from listed(command))
            case TransferHandles():
                return (yield from transfer(command))
            case DeleteSessionProcesses(session_id=session):
                return (yield from delete_session(session))
            case CancelProcess(force=True):
                return (yield from force_end(command))
            case CancelProcess(process_id=process, reason=reason):
                return (yield from ask_cancel(process, reason))
            case CancelUnreferenced():
                return (yield from cancel_unreferenced(command))
            case SignalProcess():
                return (yield from append_signal(command))
            case SubmitTurn():
                return (yield from submitted(command, self._draw()))
            case AppendEvent():
                return (yield from append_event(command, locked, self._draw()))
            case _:
                raise AssertionError(command)  # waits are begun with watch and take_signal

    # --- waiting ---

    @operation()
    def watch(
        self, fence: Fence, entry: JournalEntry, command: AwaitProcess, wrap: Wrap
    ) -> Steps[JournalEntry]:
        """Begin to wait for a process as an effect of a run, or end the wait if it has ended."""
        yield from fenced(fence)
        known = yield from recorded(fence, entry.key)
        if known is not None and known.size:
            return known
        process = command.process_id
        rows = (yield Statement(_WATCH, (process,))).rows
        if not rows:
            raise ProcessUnknown(process)
        status, output, _ = rows[0]
        if known is None:
            yield from open_effect(fence, entry, f"process:{process}")
        if status != "open":
            yield from close_effect(fence, entry.key, wrap({"output": decode(output)}))
        return (yield from standing(fence, entry.key))

    @operation()
    def take_signal(
        self, fence: Fence, entry: JournalEntry, name: str, timeout: int | None, wrap: Wrap
    ) -> Steps[tuple[JournalEntry, Instant]]:
        """Take the oldest signal of a name, or begin to wait for one, or end a wait that is late."""
        yield from fenced(fence)
        now = (yield Statement(_NOW)).rows[0][0]
        known = yield from recorded(fence, entry.key)
        if known is not None and known.size:
            return known, now
        process = (yield Statement(WHERE, (fence.scope.id,))).rows[0][0]
        due = known.due if known is not None else None if timeout is None else now + timeout
        if known is None:
            yield from open_effect(fence, entry, f"signal:{process}:{name}", due)
        oldest = (yield Statement(_OLDEST_SIGNAL, (process, signal_type(name)))).rows
        if oldest and (due is None or oldest[0][2] <= due):
            sequence, payload, _ = oldest[0]
            if not (yield Statement(_TAKE_SIGNAL, (process, sequence))).changed:
                raise Again  # another branch of this run took it
            taken = None if payload is None else decode(payload)
            outcome = wrap({"sequence": sequence, "payload": taken})
            yield from close_effect(fence, entry.key, outcome)
        elif due is not None and due <= now:
            yield from close_effect(fence, entry.key, wrap({"timeout": True}))
        return (yield from standing(fence, entry.key)), now

    @operation()
    def observe(self, process_ids: Sequence[str]) -> Steps[dict[str, Output | None]]:
        """Say that somebody outside waits for the ends of processes.

        Returns those that are known and watched now, or have ended, with how; ask again for the rest.
        """
        ids = list(process_ids)
        yield Statement(_OBSERVE, (ids,))
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
        steps = partial(settle, fence, output, token)
        state, body = STATES[type(output)].value, write_payload(output, 2)
        kind, value = ending(output)
        payload = write_payload(value, 2)
        news = encode(["", topic := f"process:{fence.scope.id}"]).decode()
        row = (fence.run, fence.token, number, state, body, kind, payload, token, news)
        bulk = Bulk(
            None, SETTLE_MANY, row, (number,), None, topic, parts=SETTLE_PARTS, lone=SETTLE_ONE
        )
        return self.driver.run(Operation("settle", steps, bulk=bulk))

    @operation()
    def continue_as(
        self, fence: Fence, registration: Registration, *, cancelled: bool = False
    ) -> Steps[None]:
        """Settle the run and go on with a fresh one, under the same process and log.

        ``cancelled``: the request to end was delivered, and is not delivered again.
        """
        token = f"continued:{fence.token}"
        locked = yield from lock_runs([fence.run])
        if locked.get(fence.run) != fence.token:
            if (yield Statement(IS_SETTLED, (fence.run, token))).rows:
                return  # done by us already; the answer was lost
            raise LeaseLost(fence.name)
        row = (yield Statement(LOCK_PROCESS, (registration.id,))).rows[0]
        number, sequence, epoch = row[0], row[2], row[6]
        scope = scope_text(fence.scope)
        yield Statement(_RENAME_RUN, (f"{scope}#{epoch}", token, fence.run))
        for following in self._draws():
            if (yield Statement(_NEXT_RUN, (following, scope, fence.run))).changed:
                break
        row = (following, write_payload(registration, 2), cancelled, registration.id)
        yield Statement(_CONTINUE, row)
        arguments = write_payload(getattr(registration.input, "arguments", None), 2)
        yield Statement(ADD_EVENT, (number, sequence + 1, CONTINUED, arguments, None, None))
        yield from release_slot(fence.run)
        yield Notify("runs")

    @operation()
    def fork(self, process_id: str, registration: Registration, keys: Sequence[str]) -> Steps[None]:
        """Start a process with some of what another recorded."""
        command = StartProcess(registration)
        number = yield from register_process(command, self._draws())
        if number is None:
            yield from check_known(registration)
        source = (yield Statement(WHERE, (process_id,))).rows
        if not source:
            raise ProcessUnknown(process_id)
        if number is not None:
            yield Statement(_COPY_EFFECTS, (number, source[0][1], list(keys)))

    @operation()
    def grant(self, grant: HandleGrant) -> Steps[None]:
        """Give a session a process's handle."""
        if not (yield Statement(WHERE, (grant.process_id,))).rows:
            raise ProcessUnknown(grant.process_id)
        yield from add_grant(grant)

    @operation()
    def revoke(self, holder: SessionRef, process_id: str) -> Steps[bool]:
        """Take a process's handle from a session; False if it had none."""
        row = (process_id, holder.session_id, holder.frame or "")
        return bool((yield Statement(REVOKE, row)).changed)


def register_process(
    command: StartProcess,
    draws: Iterator[int],
    worker: WorkerId | None = None,
    token: str | None = None,
) -> Steps[int | None]:
    """Write the process, its run and its first event; return its number, or None if its id is taken.

    The run comes first: its row is unique by scope and by number, so that one insert finds out about both, and
    runs are locked before processes everywhere.
    """
    registration = command.registration
    if worker is None:
        at = (yield Statement(_NOW)).rows[0][0] + command.delay
        how: tuple[Any, ...] = ("queued", at, None, None, 0, 0)
    else:
        how = ("running", None, worker, token, 1, 1)
    slot = registration.slot
    limits = (None, None) if slot is None else (slot_name(slot.key), slot.limit)
    number = yield from _add_run(registration, draws, (*how, *limits))
    if number is None:
        return None
    body = (write_payload(registration, 2), registration.digest, registration.env)
    parent = registration.parent if registration.attached else None
    yield Statement(_ADD, (registration.id, number, number, *body, parent))
    yield Statement(ADD_EVENT, (number, 1, STARTED, None, None, None))
    if parent is not None:
        yield Statement(_WATCH, (parent,))
    if command.grant is not None:
        yield from add_grant(HandleGrant(command.grant, registration.id))
    if worker is None:
        yield Notify("runs")
    return number


def _add_run(
    registration: Registration, draws: Iterator[int], columns: tuple[Any, ...]
) -> Steps[int | None]:
    """Insert the first run of a process with a number that is free; None if its scope is taken."""
    scope = scope_text(ProcessScope(registration.id))
    for number in draws:
        row = (number, scope, registration.target, *columns)
        if (yield Statement(_ADD_RUN, row)).changed:
            return number
        if (yield Statement(_IS_TAKEN, (scope,))).rows:
            break
    return None


def _leased(number: int, scope: ProcessScope, rest: tuple[Any, ...]) -> LeasedStart:
    return LeasedStart(number, Fence(number, 1, scope), Instant(rest[0]))


def check_known(registration: Registration) -> Steps[tuple[Any, ...]]:
    """Return the process that has the id, or refuse other input under it.

    A scope can be taken without a process: by a host's controller for the same name.
    """
    known = (yield Statement(_KNOWN, (registration.id,))).rows
    if not known or bytes(known[0][0]) != registration.digest:
        raise ProcessConflict(registration.id)
    return known[0]
