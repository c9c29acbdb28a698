"""Handles of processes in SQL: which sessions may use which processes."""

from __future__ import annotations

from typing import Any

from pylash.durable import (
    CancelUnreferenced,
    HandleGrant,
    ListProcesses,
    SessionRef,
    SessionReport,
    TransferHandles,
)
from pylash.stores.logs import ask_cancel, record_of, shown_state
from pylash.stores.sql import (
    Statement,
    Steps,
)
from pylash.values import SessionIdInvalid, check_name, storable

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

_FORGET_QUEUE = "delete from pylash_queue where session = ?"

_FORGET_TRIGGERS = "delete from pylash_triggers where session = ?"


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


def listed(command: ListProcesses) -> Steps[Any]:
    """Return a session's processes."""
    found = []
    for grant in (yield from grants_of(command.holder)):
        record = yield from record_of(grant.process_id)
        if command.mode == "all" or record.state.status == "open":
            found.append(
                {"id": record.id, "status": shown_state(record).value, "label": grant.label}
            )
    return found


def transfer(command: TransferHandles) -> Steps[Any]:
    """Give handles of one session to another."""
    source, target = command.source, command.target
    for process in command.process_ids if source != target else ():
        held = (process, source.session_id, source.frame or "")
        yield Statement(_TRANSFER, (target.session_id, target.frame or "", *held))
        yield Statement(REVOKE, held)
    return {"transferred": list(command.process_ids)}


def dropped(command: CancelUnreferenced) -> Steps[list[HandleGrant]]:
    """Return the handles that are not kept."""
    held = yield from grants_of(command.holder)
    return [grant for grant in held if grant.process_id not in command.keep]


def cancel_unreferenced(command: CancelUnreferenced) -> Steps[Any]:
    """Let go of handles; cancel what nobody else holds, and return it."""
    cancelled = []
    for grant in (yield from dropped(command)):
        holder = grant.holder
        yield Statement(REVOKE, (grant.process_id, holder.session_id, holder.frame or ""))
        if not (yield Statement(HOLDERS, (grant.process_id,))).rows:
            yield from ask_cancel(grant.process_id, "requested by host")
            cancelled.append(grant.process_id)
    return cancelled


def delete_session(session: str) -> Steps[Any]:
    """Forget what a session holds, and report it."""
    report = SessionReport(
        handles=(yield Statement(_FORGET_GRANTS, (session,))).changed,
        wakes=(yield Statement(_FORGET_QUEUE, (session,))).changed,
        subscriptions=(yield Statement(_FORGET_TRIGGERS, (session,))).changed,
    )
    return {
        "handles": report.handles,
        "wakes": report.wakes,
        "subscriptions": report.subscriptions,
    }
