"""Exports and imports in SQL: processes and sessions are read from one store and written to another.

Rule 1. An export is one transaction that locks the runs first, so that no effect, signal or answer is written between two reads.
Rule 2. An import is one transaction: workers see all of it or nothing. It adds rows and changes none.
Rule 3. Runs keep their numbers, which grow with time, unless the other store has given one to another run. Sessions get new
        numbers: those are counted.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from pylash.durable.exports import (
    FORMAT,
    NOTHING,
    VERSION,
    Export,
    ExportedEvent,
    ExportedHandle,
    ExportedKey,
    ExportedMessage,
    ExportedNode,
    ExportedProcess,
    ExportedSession,
    ExportedTurn,
    ExportedWait,
    column,
    exported_effect,
    imported_entry,
    needed_outside,
    raw,
    scopes_of,
    started_by,
    turn_scope,
)
from pylash.durable.processes import (
    REGISTRATIONS,
    HandleGrant,
    LashlangInput,
    Registration,
    SessionRef,
    SessionTurnInput,
)
from pylash.durable.runs import JournalEntry, RunState
from pylash.durable.scopes import ProcessScope, scope_from_text, scope_text, session_of
from pylash.durable.sessions import Segment, session_lane
from pylash.durable.waits import WAIT_NAMES
from pylash.stores.operation import Again, Notify, Statement, Steps, operation
from pylash.stores.ports.numbers import RunPort
from pylash.stores.ports.process_handles import HOLDERS, add_grant
from pylash.stores.ports.session_deletion import FencedOff
from pylash.stores.tables import effects, lanes, queue, runs
from pylash.stores.tables import processes as table
from pylash.stores.tables import sessions as sessions_table
from pylash.stores.tables.contents import PUT_ATTACHMENT, PUT_ENV
from pylash.stores.tables.packed_effects import NODE_BITS, pack_effects, unpack_effects
from pylash.stores.tables.waits import IMPORT_WAIT
from pylash.values.canonical import encode
from pylash.values.process_errors import ImportConflict, ImportIncomplete, ProcessUnknown
from pylash.values.turn_errors import SessionUnknown

REFS_AT_ONCE: Final = 500

_OPEN_STATES: Final = frozenset({RunState.QUEUED, RunState.RUNNING})

_REFERENCE: Final = re.compile(rb"[0-9a-f]{64}")

_PROCESS = """
select p.number, p.run, p.registration, p.sequence, p.output, p.cancel, p.epoch, p.created, p.settled,
       r.target, r.state, r.reason, r.at
from pylash_processes p join pylash_runs r on r.id = p.run where p.id = ?"""

_EVENTS = """
select sequence, type, at, key, taken, payload from pylash_process_events where process = ? order by sequence"""

# Not with the ends of waits: those are in the rows of the waits.
_EFFECTS = """
select e.key, e.kind, e.hash, e.command, coalesce(e.outcome, a.body), 0, e.due, e.wait, e.started, e.ended, e.label
from pylash_effects e left join pylash_attachments a on a.digest = e.attachment
where e.run = ? order by e.started, e.key"""

_WAIT = """
select name, kind, title, tool, opened, deadline, resolved, answered_by, arguments, schema, terminal from pylash_waits"""

# By name, because an answer may have come before the run began to wait.
_WAITS_OF_SCOPE = f"{_WAIT} where substr(name, 1, ?) = ? order by id"

_WAITS_OF_SESSION = f"{_WAIT} where session = ? order by id"

_LANE = "select number, head, revision, calls, streak, last_seq, holder, usage from pylash_lanes where lane = ? {update}"

_SESSION = "select generation, options, origin from pylash_sessions where id = ?"

_NODES = "select id, run, body, effects from pylash_nodes where id > ? and id <= ? order by id"

_TURNS = f"""
select id, scope, target, state, reason, at, lane_seq, input, options, result, cancel, cancel_reason, created, settled
from pylash_runs where lane = ? and not {runs.FORGOTTEN} order by lane_seq, id"""

_KEYS = "select key, at from pylash_said where session = ? order by at, key"

_ENVS = "select ref, body from pylash_envs where ref in ({texts})"

_ATTACHMENTS = "select digest, body from pylash_attachments where digest in ({texts})"

_KNOWN_PROCESSES = "select id from pylash_processes where id in ({texts}) order by id"

_KNOWN_SCOPES = "select scope from pylash_runs where scope in ({texts}) order by scope"

_KNOWN_RUNS = "select id from pylash_runs where id in ({bigints})"


class SqlExports(RunPort):
    """Exports and imports in SQL."""

    @operation()
    def read(
        self, process_id: str | None, session_id: str | None, *, children: bool
    ) -> Steps[Export]:
        """Return a process or a session; with ``children`` everything that they started or waited for."""
        # Twice: the first read finds the runs to lock, in the order of their ids as in all operations.
        found = yield from _collect(process_id, session_id, children=children)
        yield from runs.lock_runs([run.run for run in found.runs])
        again = yield from _collect(process_id, session_id, children=children)
        if {run.run for run in again.runs} != {run.run for run in found.runs}:
            raise Again
        return (yield from _with_bodies(again))

    @operation()
    def write(self, export: Export, *, partial: bool = False) -> Steps[None]:
        """Add everything in an export, or nothing. ``partial``: it may wait for what is not there."""
        yield from _check_free(export)
        outside = yield from _waiting_outside(export, partial=partial)
        numbers = yield from self._numbers(export)
        for ref, text in export.environments.items():
            yield Statement(PUT_ENV, (ref, text.encode()))
        for digest, body in export.attachments.items():
            yield Statement(PUT_ATTACHMENT, (digest, base64.b64decode(body)))
        for process in sorted(export.processes, key=lambda one: one.run):
            yield from _write_process(process, numbers, is_ready=process.id in outside)
        for session in export.sessions:
            yield from _write_session(session, numbers)
        for wait in export.waits:
            yield from _write_wait(wait)
        yield Notify("runs")

    def _numbers(self, export: Export) -> Steps[dict[int, int]]:
        """Return the numbers that runs get here: their own, unless another run has it."""
        wanted = {run.run for run in export.runs} | {one.number for one in export.processes}
        taken = {run for (run,) in (yield Statement(_KNOWN_RUNS, (sorted(wanted),))).rows}
        return {run: self._draw() if run in taken else run for run in wanted}


# --- reading ---


def _collect(process_id: str | None, session_id: str | None, *, children: bool) -> Steps[Export]:
    """Return the requested process or session and everything that belongs to it, without bodies."""
    processes: dict[str, ExportedProcess] = {}
    sessions: dict[str, ExportedSession] = {}
    todo: list[tuple[str, str]] = []
    todo += [("process", process_id)] if process_id is not None else []
    todo += [("session", session_id)] if session_id is not None else []
    asked, name = todo[0]
    while todo:
        kind, one = todo.pop(0)
        if one in (processes if kind == "process" else sessions):
            continue
        is_first = not processes and not sessions
        if kind == "process":
            process, journal = yield from _read_process(one)
            if process is None:
                if is_first:
                    raise ProcessUnknown(one)
                continue  # a child that was deleted
            processes[one] = process
            given = REGISTRATIONS.decode(bytes(process.registration)).input
            todo += [("session", given.session_id)] if isinstance(given, SessionTurnInput) else []
        else:
            session, journal = yield from _read_session(one)
            if session is None:
                if is_first:
                    raise SessionUnknown(one)
                continue
            sessions[one] = session
        if children:
            todo += [("process", child) for child in started_by(journal)]
            todo += [("session", child) for child in _awaited_sessions(journal)]
    return Export(
        format=FORMAT,
        version=VERSION,
        kind="process" if asked == "process" else "session",
        id=name,
        processes=tuple(processes.values()),
        sessions=tuple(sessions.values()),
    )


def _awaited_sessions(journal: Iterable[JournalEntry]) -> Iterable[str]:
    for entry in journal:
        if entry.wait is not None and entry.wait.startswith("turn:"):
            yield session_of(scope_from_text(entry.wait.removeprefix("turn:"))) or ""


def _read_process(process_id: str) -> Steps[tuple[ExportedProcess | None, list[JournalEntry]]]:
    rows = (yield Statement(_PROCESS, (process_id,))).rows
    if not rows:
        return None, []
    number, run, registration, sequence, output, cancel, epoch, created, settled, *state = rows[0]
    target, status, reason, at = state
    journal = yield from _read_effects(run)
    events = (yield Statement(_EVENTS, (number,))).rows
    # The name of a wait begins with its scope.
    scope = b'{"scope":' + encode(ProcessScope(process_id)) + b","
    waits = (yield Statement(_WAITS_OF_SCOPE, (len(scope.decode()), scope.decode()))).rows
    handles = (yield Statement(HOLDERS, (process_id,))).rows
    process = ExportedProcess(
        id=process_id,
        target=target,
        status=status,
        reason=reason,
        at=at,
        run=run,
        number=number,
        created=created,
        settled=settled,
        sequence=sequence,
        epoch=epoch,
        cancel=cancel,
        registration=raw(registration),
        output=raw(output),
        events=tuple(_event(row) for row in events),
        effects=tuple(map(exported_effect, journal)),
        waits=tuple(map(_wait, waits)),
        handles=tuple(
            ExportedHandle(session=session, frame=frame, label=label)
            for _, session, frame, label in handles
        ),
    )
    return process, journal


def _event(row: tuple[Any, ...]) -> ExportedEvent:
    sequence, kind, at, key, taken, payload = row
    return ExportedEvent(
        sequence=sequence, type=kind, at=at, key=key, taken=taken, payload=raw(payload)
    )


def _wait(row: tuple[Any, ...]) -> ExportedWait:
    name, kind, title, tool, opened, deadline, resolved, answered_by, *values = row
    arguments, schema, terminal = map(raw, values)
    return ExportedWait(
        name=raw(name.encode()),
        kind=kind,
        title=title,
        tool=tool,
        opened=opened,
        deadline=deadline,
        resolved=resolved,
        answered_by=answered_by,
        arguments=arguments,
        schema=schema,
        terminal=terminal,
    )


def _read_effects(run: int) -> Steps[list[JournalEntry]]:
    return [JournalEntry(*row) for row in (yield Statement(_EFFECTS, (run,))).rows]


def _read_session(session_id: str) -> Steps[tuple[ExportedSession | None, list[JournalEntry]]]:
    lane = session_lane(session_id)
    rows = (yield Statement(_LANE, (lane,))).rows
    if not rows or rows[0][0] is None:
        return None, []
    number, head, revision, calls, streak, last_seq, holder, usage = rows[0]
    stored = (yield Statement(_SESSION, (session_id,))).rows or [(0, None, None)]
    generation, options, origin = stored[0]
    segments = () if origin is None else msgspec.json.decode(origin, type=tuple[Segment, ...])
    journal: list[JournalEntry] = []
    turns = []
    for row in (yield Statement(_TURNS, (lane,))).rows:
        recorded = yield from _read_effects(row[0])
        turns.append(_turn(row, recorded))
        journal += recorded
    messages = yield from _read_nodes(number, (1 << NODE_BITS) - 1)
    for node in messages:
        journal += map(imported_entry, node.effects)
    inherited: list[list[ExportedNode]] = []
    for segment in segments:
        inherited += [(yield from _read_nodes(segment.number, segment.upto))]
    queued = (yield Statement(queue.MESSAGES, (session_id,))).rows
    keys = (yield Statement(_KEYS, (session_id,))).rows
    waits = (yield Statement(_WAITS_OF_SESSION, (session_id,))).rows
    session = ExportedSession(
        id=session_id,
        head=head,
        revision=revision,
        calls=calls,
        streak=streak,
        generation=generation,
        last_seq=last_seq,
        holder=holder,
        usage=raw(usage),
        options=raw(options),
        messages=tuple(messages),
        inherited=tuple(map(tuple, inherited)),
        turns=tuple(turns),
        queue=tuple(
            ExportedMessage(source=source, sequence=place, policy=policy, at=at, body=raw(body))
            for source, place, body, policy, at in queued
        ),
        keys=tuple(ExportedKey(key=key, at=at) for key, at in keys),
        waits=tuple(map(_wait, waits)),
    )
    return session, journal


def _turn(row: tuple[Any, ...], journal: Sequence[JournalEntry]) -> ExportedTurn:
    run, text, target, status, reason, at, lane_seq, given, options, result, cancel, *rest = row
    cancel_reason, created, settled = rest
    scope = scope_from_text(text)
    size, body = sessions_table.DIGEST_BYTES, bytes(given or b"")
    return ExportedTurn(
        id=scope.id,
        kind="turn" if hasattr(scope, "turn_id") else "queue_drain",
        status=status,
        reason=reason,
        at=at,
        run=run,
        target=target,
        lane_seq=lane_seq,
        digest=body[:size].hex() if body else None,
        input=raw(body[size:]) if body[size:] else NOTHING,
        options=raw(options),
        result=raw(result),
        cancel=cancel,
        cancel_reason=cancel_reason,
        created=created,
        settled=settled,
        effects=tuple(map(exported_effect, journal)),
    )


def _read_nodes(number: int, upto: int) -> Steps[list[ExportedNode]]:
    base = number << NODE_BITS
    return [
        ExportedNode(
            place=node - base,
            run=run,
            message=raw(body),
            effects=tuple(map(exported_effect, unpack_effects(bytes(packed)) if packed else ())),
        )
        for node, run, body, packed in (yield Statement(_NODES, (base, base + upto))).rows
    ]


def _with_bodies(export: Export) -> Steps[Export]:
    """Return an export with the bodies whose hashes occur in it, and in those bodies."""
    environments: dict[str, str] = {}
    attachments: dict[str, str] = {}
    seen: set[str] = set()
    new = {found.decode() for found in _REFERENCE.findall(msgspec.json.encode(export))}
    new |= {ref for one in export.processes for ref in _module_refs(one)}
    while new:
        seen |= new
        bodies: list[bytes] = []
        asked = sorted(new)
        for start in range(0, len(asked), REFS_AT_ONCE):
            some = asked[start : start + REFS_AT_ONCE]
            for ref, body in (yield Statement(_ENVS, (some,))).rows:
                environments[ref] = bytes(body).decode()
                bodies.append(bytes(body))
            for digest, body in (yield Statement(_ATTACHMENTS, (some,))).rows:
                attachments[digest] = base64.b64encode(bytes(body)).decode()
        new = {found.decode() for body in bodies for found in _REFERENCE.findall(body)} - seen
    return msgspec.structs.replace(
        export,
        environments=dict(sorted(environments.items())),
        attachments=dict(sorted(attachments.items())),
    )


def _module_refs(process: ExportedProcess) -> Iterable[str]:
    given = REGISTRATIONS.decode(bytes(process.registration)).input
    return [given.module_ref] if isinstance(given, LashlangInput) else []


# --- writing ---


def _check_free(export: Export) -> Steps[None]:
    """Raise ImportConflict if anything in an export exists here."""
    ids = [process.id for process in export.processes]
    for (process,) in (yield Statement(_KNOWN_PROCESSES, (ids,))).rows:
        raise ImportConflict("process", process)
    for session in export.sessions:
        known = (yield Statement(_LANE, (session_lane(session.id),))).rows
        if known and (known[0][0] is not None or known[0][6] is not None):
            raise ImportConflict("session", session.id)
    for (scope,) in (yield Statement(_KNOWN_SCOPES, (list(scopes_of(export)),))).rows:
        raise ImportConflict("run", scope)


def _waiting_outside(export: Export, *, partial: bool) -> Steps[set[str]]:
    """Return the runs that need a process or a turn that is not in the export; raise ImportIncomplete if the store lacks it."""
    waiting: set[str] = set()
    for run, needed in needed_outside(export):
        kind, _, name = needed.partition(":")
        known = _KNOWN_PROCESSES if kind == "process" else _KNOWN_SCOPES
        if not partial and not (yield Statement(known, ([name],))).rows:
            raise ImportIncomplete(run, f"{kind} {name!r}")
        waiting.add(run)
    return waiting


def _write_run(row: tuple[Any, ...]) -> Steps[None]:
    if not (yield from runs.import_run(row)):
        raise Again  # another transaction took the scope or the number meanwhile


def _state(run: ExportedProcess | ExportedTurn, *, is_ready: bool) -> tuple[str, int | None, bool]:
    """Return the state of a run here, when a worker must look at it, and whether that is now if there is no time."""
    if run.settled is not None or run.status == RunState.BLOCKED:
        return run.status, None, False
    if run.status in _OPEN_STATES or is_ready:
        return RunState.QUEUED.value, run.at if run.status == RunState.QUEUED else None, True
    return run.status, run.at, False


def _write_process(
    process: ExportedProcess, numbers: dict[int, int], *, is_ready: bool
) -> Steps[None]:
    registration: Registration = REGISTRATIONS.decode(bytes(process.registration))
    run, number = numbers[process.run], numbers[process.number]
    state, at, now = _state(process, is_ready=is_ready)
    scope = scope_text(ProcessScope(process.id))
    slot = registration.slot
    limits = (None, None) if slot is None else (runs.slot_name(slot.key), slot.limit)
    what = (scope, "process", registration.target, None, None, state, process.reason, at, now)
    ends = (*limits, 0, None, process.created, process.settled)
    yield from _write_run((run, *what, None, None, None, *ends))
    parent = registration.parent if registration.attached else None
    output = column(process.output)
    given = (column(process.registration), registration.digest, registration.env, parent)
    status = "open" if process.settled is None else process.status
    folded = (process.sequence, status, output, process.cancel, process.epoch)
    events = [
        (one.sequence, one.type, column(one.payload), one.key, one.at, one.taken)
        for one in process.events
    ]
    row = (process.id, number, run, *given, *folded, process.created, process.settled)
    yield from table.import_process(row, events)
    yield from table.add_tags(number, registration.tags)
    for effect in process.effects:
        yield from effects.import_effect(run, imported_entry(effect, number))
    for handle in process.handles:
        holder = SessionRef(handle.session, handle.frame or None)
        yield from add_grant(HandleGrant(holder, process.id, handle.label))


def _write_session(session: ExportedSession, numbers: dict[int, int]) -> Steps[None]:
    lane = session_lane(session.id)
    for turn in sorted(session.turns, key=lambda one: one.run):
        yield from _write_turn(session, turn, numbers)
    number = yield from lanes.next_session_number()
    holder = None if session.holder is None else numbers.get(session.holder)
    counts = (session.head, session.revision, session.calls, session.streak)
    row = (holder, session.last_seq, *counts, column(session.usage))
    if not (yield from lanes.import_lane(lane, number, row)):
        raise ImportConflict("session", session.id)
    yield from _write_nodes(number, session.messages, numbers)
    origin = []
    for nodes in session.inherited:
        # The nodes of another line, as if its session had been deleted: they are kept for as long as this one exists.
        line = yield from lanes.next_session_number()
        yield from _write_nodes(line, nodes, numbers)
        yield Statement(sessions_table.ADD_DEAD_LINE, (line, "", msgspec.json.encode(FencedOff())))
        yield Statement(sessions_table.ADD_FORK, (line, session.id))
        origin.append(Segment(line, max((node.place for node in nodes), default=0)))
    stored = msgspec.json.encode(origin) if origin else None
    given = (session.id, session.generation, column(session.options), stored)
    if not (yield Statement(sessions_table.IMPORT_SESSION, given)).changed:
        raise ImportConflict("deleted session", session.id)
    yield from sessions_table.change_tags(
        number, None, sessions_table.plain(column(session.options))
    )
    for one in session.queue:
        place = (session.id, one.source, one.sequence, one.policy, one.at)
        yield Statement(queue.IMPORT_MESSAGE, (*place, column(one.body)))
    for key in session.keys:
        yield Statement(sessions_table.IMPORT_KEY, (session.id, key.key, key.at))


def _write_turn(
    session: ExportedSession, turn: ExportedTurn, numbers: dict[int, int]
) -> Steps[None]:
    run = numbers[turn.run]
    state, at, now = _state(turn, is_ready=False)
    # A turn that waits for its session has no time at which a worker must look.
    is_held = state == RunState.QUEUED and session.holder != turn.run
    given = (
        None if turn.digest is None else bytes.fromhex(turn.digest) + (column(turn.input) or b"")
    )
    place = (session_lane(session.id), turn.lane_seq, state, turn.reason)
    what = (turn_scope(session.id, turn), turn.kind, turn.target, *place, at, now and not is_held)
    body = (given, column(turn.options), column(turn.result))
    ends = (turn.cancel, turn.cancel_reason, turn.created, turn.settled)
    yield from _write_run((run, *what, *body, None, None, *ends))
    for effect in turn.effects:
        yield from effects.import_effect(run, imported_entry(effect))


def _write_nodes(
    number: int, nodes: Iterable[ExportedNode], numbers: dict[int, int]
) -> Steps[None]:
    base = number << NODE_BITS
    for node in nodes:
        packed = pack_effects(map(imported_entry, node.effects))
        row = (base + node.place, numbers.get(node.run, node.run), column(node.message), packed)
        yield Statement(sessions_table.IMPORT_NODE, row)


def _write_wait(wait: ExportedWait) -> Steps[None]:
    name = WAIT_NAMES.decode(bytes(wait.name))
    row = (name.id, encode(name).decode(), session_of(name.scope), name.generation)
    shown = (wait.kind, wait.title, wait.tool)
    values = tuple(map(column, (wait.arguments, wait.schema, wait.terminal)))
    times = (wait.opened, wait.deadline, wait.resolved)
    yield Statement(IMPORT_WAIT, (*row, *shown, *values, wait.answered_by, *times))
