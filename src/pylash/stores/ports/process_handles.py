"""Handles of processes in SQL: which sessions may use which processes.

Rule. A session may see, await, signal and cancel a process if it holds the process's handle, or if the requesting run
      started the process itself. Only ``check_access`` decides this. The app may use every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pylash.durable.commands import (
    By,
    CancelUnreferenced,
    GrantHandle,
    ListProcesses,
    RevokeHandle,
    StartProcess,
    TransferHandles,
)
from pylash.durable.processes import REGISTRATIONS, HandleGrant, SessionRef, shown_label
from pylash.stores.operation import Statement, Steps
from pylash.stores.ports.process_log import REGISTRATION, WHERE, request_cancel
from pylash.stores.tables.queue import FORGET_MESSAGES
from pylash.stores.tables.triggers import FORGET_SUBSCRIPTIONS
from pylash.values.names import check_name, storable
from pylash.values.process_errors import ProcessNotVisible, ProcessUnknown
from pylash.values.turn_errors import SessionIdInvalid

_GRANT = """
insert into pylash_process_grants(process, session, frame, label) values (?, ?, ?, ?)
on conflict (session, frame, process) do update set label = excluded.label"""

REVOKE = "delete from pylash_process_grants where process = ? and session = ? and frame = ?"

_IS_HELD = """
select 1 from pylash_process_grants where process = ? and session = ? and frame = ?"""

# Subqueries instead of joins: a planner may join by scanning all processes there ever were.
_LISTED = """
select g.process, g.label, (select p.status from pylash_processes p where p.id = g.process),
  (select r.state from pylash_processes p join pylash_runs r on r.id = p.run where p.id = g.process),
  (select p.registration from pylash_processes p where p.id = g.process)
from pylash_process_grants g where g.session = ? and g.frame = ? order by g.process"""

# With a lock: a deletion of the session comes before or after the start of a child, as a whole.
_HELD_BY = """
select 1 from pylash_process_grants where process = ? and session = ? and frame = ? {share}"""

_GRANTS = """
select process, session, frame, label from pylash_process_grants where session = ? and frame = ?
order by process"""

HOLDERS = """
select process, session, frame, label from pylash_process_grants where process = ?
order by session, frame"""

# The delete comes first and locks the row: of two transfers, or a transfer and a revoke, the second finds nothing.
_TAKE = f"{REVOKE} returning label"

_RECEIVE = """
insert into pylash_process_grants(process, session, frame, label) values (?, ?, ?, ?)
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


def start_of(command: StartProcess, asker: str | None) -> Steps[StartProcess]:
    """Return the start that a run asks for; without the grant if the session has given up the process that asks.

    A turn asks for its own session, also the turn of a process, whose session has the id of the process.
    """
    holder = command.grant
    if holder is None or asker is None or asker == holder.session_id:
        return command
    held = (asker, holder.session_id, holder.frame or "")
    if (yield Statement(_HELD_BY, held)).rows or not (yield Statement(WHERE, (asker,))).rows:
        return command
    return msgspec.structs.replace(command, grant=None)


def grant_from(row: tuple[Any, ...]) -> HandleGrant:
    """Return the grant in a row."""
    process, session, frame, label = row
    return HandleGrant(SessionRef(session, frame or None), process, label)


def grants_of(holder: SessionRef) -> Steps[list[HandleGrant]]:
    """Return the handles that a session holds."""
    rows = (yield Statement(_GRANTS, (holder.session_id, holder.frame or ""))).rows
    return [grant_from(row) for row in rows]


def is_held(holder: SessionRef, process_id: str) -> Steps[bool]:
    """Return whether a session holds the handle of a process."""
    held = (process_id, holder.session_id, holder.frame or "")
    return bool((yield Statement(_IS_HELD, held)).rows)


def check_access(holder: By, process_id: str, asker: str | None) -> Steps[None]:
    """Raise ProcessNotVisible if a session may not use a process; ``asker`` is the requesting run, if any."""
    if isinstance(holder, msgspec.UnsetType):
        return
    if (yield from is_held(holder, process_id)):
        return
    if asker is not None:
        for (body,) in (yield Statement(REGISTRATION, (process_id,))).rows:
            if REGISTRATIONS.decode(body).parent == asker:
                return
    raise ProcessNotVisible(process_id, holder.session_id)


def check_visible(holder: SessionRef, process_ids: Sequence[str]) -> Steps[None]:
    """Raise ProcessNotVisible for a process whose handle a session does not hold."""
    for process in process_ids:
        yield from check_access(holder, process, None)


def list_processes(command: ListProcesses) -> Steps[Any]:
    """Return the processes whose handles a session holds; the label is the handle's, or else the process's own."""
    holder = command.holder
    rows = (yield Statement(_LISTED, (holder.session_id, holder.frame or ""))).rows
    return [
        {
            "id": process,
            "status": state if status == "open" else status,
            "label": label or shown_label(body) or "",
        }
        for process, label, status, state, body in rows
        if status == "open" or (status is not None and command.mode == "all")
    ]


def grant_handle(command: GrantHandle) -> Steps[Any]:
    """Give a session a handle of a process that exists."""
    if not (yield Statement(WHERE, (command.process_id,))).rows:
        raise ProcessUnknown(command.process_id)
    yield from add_grant(HandleGrant(command.holder, command.process_id, command.label))
    return {"id": command.process_id}


def revoke_handle(command: RevokeHandle) -> Steps[Any]:
    """Take a handle from a session; return whether the session had it."""
    holder = command.holder
    row = (command.process_id, holder.session_id, holder.frame or "")
    return bool((yield Statement(REVOKE, row)).changed)


def transfer_handles(command: TransferHandles) -> Steps[Any]:
    """Transfer handles of one session to another; raise ProcessNotVisible for one that neither holds.

    A transfer that has happened may be repeated: its answer, or its caller, may have been lost.
    """
    source, target = command.source, command.target
    for process in sorted(set(command.process_ids)):  # in the same order everywhere: no deadlock
        if source == target:
            yield from check_access(source, process, None)
            continue
        held = (process, source.session_id, source.frame or "")
        taken = (yield Statement(_TAKE, held)).rows
        if taken:
            row = (process, target.session_id, target.frame or "", taken[0][0])
            yield Statement(_RECEIVE, row)
        elif not (yield from is_held(target, process)):
            raise ProcessNotVisible(process, source.session_id)
    return {"transferred": list(command.process_ids)}


def unkept_handles(command: CancelUnreferenced) -> Steps[list[HandleGrant]]:
    """Return the handles of a session that the command does not keep."""
    held = yield from grants_of(command.holder)
    return [grant for grant in held if grant.process_id not in command.keep]


def cancel_unreferenced(command: CancelUnreferenced) -> Steps[Any]:
    """Revoke handles; cancel the processes that no other session holds, and return those that were not cancelled before."""
    cancelled = []
    for grant in (yield from unkept_handles(command)):
        holder = grant.holder
        row = (grant.process_id, holder.session_id, holder.frame or "")
        if not (yield Statement(REVOKE, row)).changed:
            continue  # it was transferred or revoked meanwhile
        if (yield Statement(HOLDERS, (grant.process_id,))).rows:
            continue
        if (yield from request_cancel(grant.process_id, "requested by host")):
            cancelled.append(grant.process_id)
    return cancelled


def forget_handles(session: str) -> Steps[Any]:
    """Delete the handles, queued messages and subscriptions of a session; return how many of each."""
    handles = (yield Statement(_FORGET_GRANTS, (session,))).changed
    # Again: the first statement waits for starts of children that hold a lock of ``start_of``, and does not see their grants.
    handles += (yield Statement(_FORGET_GRANTS, (session,))).changed
    return {
        "handles": handles,
        "wakes": (yield Statement(FORGET_MESSAGES, (session,))).changed,
        "subscriptions": (yield Statement(FORGET_SUBSCRIPTIONS, (session,))).changed,
    }
