"""Handles of processes in SQL: which sessions may use which processes."""

from __future__ import annotations

from typing import Any

from pylash.durable.commands import CancelUnreferenced, ListProcesses, TransferHandles
from pylash.durable.processes import HandleGrant, SessionRef
from pylash.stores.operation import Statement, Steps
from pylash.stores.ports.process_log import request_cancel
from pylash.stores.ports.process_reads import find_process
from pylash.stores.tables.queue import FORGET_WORDS
from pylash.stores.tables.triggers import FORGET_SUBSCRIPTIONS
from pylash.values.names import check_name, storable
from pylash.values.turn_errors import SessionIdInvalid

_GRANT = """
insert into pylash_process_grants(process, session, frame, label) values (?, ?, ?, ?)
on conflict (session, frame, process) do update set label = excluded.label"""

REVOKE = "delete from pylash_process_grants where process = ? and session = ? and frame = ?"

_GRANTS = """
select process, session, frame, label from pylash_process_grants where session = ? and frame = ?
order by process"""

HOLDERS = """
select process, session, frame, label from pylash_process_grants where process = ?
order by session, frame"""

_TRANSFER = """
insert into pylash_process_grants(process, session, frame, label)
select process, ?, ?, label from pylash_process_grants where process = ? and session = ? and frame = ?
on conflict do nothing"""

_FORGET_GRANTS = "delete from pylash_process_grants where session = ?"


def add_grant(grant: HandleGrant) -> Steps[None]:
    """Give a session a handle."""
    holder = grant.holder
    frame, label = holder.frame or "", storable(grant.label)
    check_name("session id", holder.session_id, error=SessionIdInvalid)
    if frame:
        check_name("frame", frame)
    yield Statement(_GRANT, (grant.process_id, holder.session_id, frame, label))


def grant_from(row: tuple[Any, ...]) -> HandleGrant:
    """Return the grant in a row."""
    process, session, frame, label = row
    return HandleGrant(SessionRef(session, frame or None), process, label)


def grants_of(holder: SessionRef) -> Steps[list[HandleGrant]]:
    """Return the handles that a session holds."""
    rows = (yield Statement(_GRANTS, (holder.session_id, holder.frame or ""))).rows
    return [grant_from(row) for row in rows]


def list_processes(command: ListProcesses) -> Steps[Any]:
    """Return a session's processes."""
    found = []
    for grant in (yield from grants_of(command.holder)):
        record = yield from find_process(grant.process_id)
        if record is None:
            continue
        is_open = record.state.status == "open"
        if is_open or command.mode == "all":
            status = record.run_state.value if is_open else record.state.status
            found.append({"id": record.id, "status": status, "label": grant.label})
    return found


def transfer_handles(command: TransferHandles) -> Steps[Any]:
    """Give handles of one session to another."""
    source, target = command.source, command.target
    for process in command.process_ids if source != target else ():
        held = (process, source.session_id, source.frame or "")
        yield Statement(_TRANSFER, (target.session_id, target.frame or "", *held))
        yield Statement(REVOKE, held)
    return {"transferred": list(command.process_ids)}


def unkept_handles(command: CancelUnreferenced) -> Steps[list[HandleGrant]]:
    """Return the handles that are not kept."""
    held = yield from grants_of(command.holder)
    return [grant for grant in held if grant.process_id not in command.keep]


def cancel_unreferenced(command: CancelUnreferenced) -> Steps[Any]:
    """Revoke handles; cancel the processes that no other session holds, and return those."""
    cancelled = []
    for grant in (yield from unkept_handles(command)):
        holder = grant.holder
        yield Statement(REVOKE, (grant.process_id, holder.session_id, holder.frame or ""))
        if not (yield Statement(HOLDERS, (grant.process_id,))).rows:
            yield from request_cancel(grant.process_id, "requested by host")
            cancelled.append(grant.process_id)
    return cancelled


def forget_handles(session: str) -> Steps[Any]:
    """Delete the handles, queued words and subscriptions of a session; return how many of each."""
    return {
        "handles": (yield Statement(_FORGET_GRANTS, (session,))).changed,
        "wakes": (yield Statement(FORGET_WORDS, (session,))).changed,
        "subscriptions": (yield Statement(FORGET_SUBSCRIPTIONS, (session,))).changed,
    }
