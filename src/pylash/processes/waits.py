"""Waits of processes: how they are cancelled, listed and answered.

Rule 1. Every key is signed and read by the host of the app's effects. A wait for a signal is in the registry; the host
        only signs its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pylash.durable.commands import ProcessCommand, SignalProcess, WaitSignal
from pylash.durable.keys import key_parts
from pylash.durable.ports import EffectHost
from pylash.durable.processes import SessionTurnInput, SignalWait
from pylash.durable.scopes import ProcessScope
from pylash.durable.stores import Processes
from pylash.durable.waits import (
    ACCEPTED,
    BRANCH_OF_SIGNAL,
    UNKNOWN_OR_REVOKED,
    Err,
    Ok,
    OpenWait,
    ProcessSignal,
    ResolveOutcome,
    WaitName,
    is_well_formed,
)
from pylash.engine.runs.run import LiveRun
from pylash.processes.control import ProcessControl
from pylash.tools.signatures import ANY
from pylash.values.errors import (
    AwaitEventUnknownOrRevoked,
    AwaitEventUnsupported,
    WaitKeyInvalid,
)
from pylash.values.process_errors import (
    ArgumentsInvalid,
    ProcessEnded,
    ProcessEventConflict,
    ProcessSignalWaitCancelled,
    ProcessUnknown,
)
from pylash.values.texts import clipped


@contextmanager
def signal_wait(run: LiveRun, key: str, command: ProcessCommand) -> Iterator[None]:
    """Wait for a signal in a block; any other command is performed as it is.

    A cancel that is delivered at the wait is raised as a CancelledError whose cause is ProcessSignalWaitCancelled. The class
    of the exception stays: ``asyncio.timeout`` and others compare it.
    """
    try:
        yield
    except asyncio.CancelledError:
        if not isinstance(command, WaitSignal) or not run.was_cancelled_at(key):
            raise
        error = ProcessSignalWaitCancelled(command.name)
        raise asyncio.CancelledError(error.message) from error


async def open_waits(
    host: EffectHost, processes: Processes, session_id: str | None = None
) -> list[OpenWait]:
    """Return the open waits, oldest first, each with the key that answers it."""
    found = await host.open_waits(session_id)
    if session_id is not None:
        found += await _subagent_waits(processes, await host.open_waits(), session_id)
    else:
        with suppress(AwaitEventUnsupported):  # without keys they cannot be answered here
            found += [_open_wait(host, wait) for wait in await processes.signal_waits()]
    return sorted(found, key=lambda wait: wait.opened)


async def _subagent_waits(
    processes: Processes, waits: Sequence[OpenWait], session_id: str
) -> list[OpenWait]:
    """Return the waits of a session's subagents, and of its own turn if that runs as a process."""
    found = []
    for wait in waits:
        scope = wait.name.scope
        if isinstance(scope, ProcessScope) and wait.kind in ("approval", "deferred"):
            record = await processes.get(scope.process_id)
            given = None if record is None else record.registration.input
            if not isinstance(given, SessionTurnInput):
                continue
            if session_id in (given.session_id, *given.lanes):
                found.append(wait)
    return found


def _open_wait(host: EffectHost, wait: SignalWait) -> OpenWait:
    name = WaitName(ProcessScope(wait.process_id), _identity(wait), wait.epoch)
    key = host.sign(name)
    return OpenWait(name, "signal", wait.name, None, None, wait.opened, wait.deadline, key)


def wait_name(host: EffectHost, key: str) -> WaitName | None:
    """Return the wait that a key names; None for a key of another host, or if the host has no waits."""
    try:
        return host.name_in(key)
    except (AwaitEventUnknownOrRevoked, AwaitEventUnsupported):
        return None


def _identity(wait: SignalWait) -> ProcessSignal:
    """Return the identity of a wait for a signal: the branch and the count are in the key of its effect."""
    branch, _, effect = wait.key.partition(":process:")
    count = key_parts(effect.rpartition("/")[2])[-1][1]
    signal = wait.name if branch == "root" else f"{wait.name}{BRANCH_OF_SIGNAL}{branch}"
    return ProcessSignal(wait.process_id, signal, count)


async def resolve_wait(
    control: ProcessControl,
    key: str,
    value: Any = None,
    error: str | None = None,
    by: str | None = None,
) -> ResolveOutcome:
    """Answer a wait; answering a wait for a signal sends the signal."""
    if value is not None and error is not None:
        reason = "a wait is answered with a value or an error, not both: leave one of them out"
        raise ArgumentsInvalid("resolve", reason)
    name = wait_name(control.effects, key)
    # Checked second: another host may have keys of another form.
    if name is None and not is_well_formed(key):
        raise WaitKeyInvalid(clipped(key, 40) if isinstance(key, str) else key)
    if name is not None and isinstance(name.wait, ProcessSignal):
        if error is not None:
            raise ArgumentsInvalid("resolve", "a wait for a signal takes a value, not an error")
        if by is not None:
            raise ArgumentsInvalid("resolve", "a signal does not record its sender: leave out by=")
        return await _send_signal(control, name, name.wait, value)
    plain = ANY.dump(value)
    if name is not None and is_approval(name) and error is None:
        problem = approval_problem(plain)
        if problem is not None:
            raise ArgumentsInvalid("resolve", problem)
    resolution = Ok(plain) if error is None else Err("wait_failed", error)
    return await control.effects.resolve(key, resolution, by=by)


def is_approval(name: WaitName) -> bool:
    """Return whether a wait is for the approval of a tool call."""
    return getattr(name.wait, "key", "").startswith("approval:")


def approval_problem(answer: Any) -> str | None:
    """Return why a value is not an answer to an approval, or None: a typo must not count as a rejection."""
    if isinstance(answer, bool):
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("approved"), bool):
        return "an approval is answered with true or false, or a record whose approved is true or false"
    unknown = sorted(set(answer) - {"approved", "reason", "by", "arguments"})
    if unknown:
        return (
            f"the answer to an approval has approved, reason, by and arguments, not {unknown[0]!r}"
        )
    if answer.get("arguments") is not None and not isinstance(answer["arguments"], dict):
        return "corrected arguments must be a record of all arguments by name"
    return None


async def _send_signal(
    control: ProcessControl, name: WaitName, wait: ProcessSignal, value: Any
) -> ResolveOutcome:
    processes = control.registry
    waits = await processes.signal_waits(wait.process_id)
    if not any(one.epoch == name.generation and _identity(one) == wait for one in waits):
        known = await processes.known([wait.process_id])
        return ResolveOutcome("already_resolved") if known else UNKNOWN_OR_REVOKED
    signal, _, branch = wait.signal_name.partition(BRANCH_OF_SIGNAL)
    signal_id = f"wait:{name.generation}:{branch}:{wait.ordinal}"
    try:
        await control.perform(SignalProcess(wait.process_id, signal, signal_id, ANY.dump(value)))
    except ProcessEventConflict:
        return ResolveOutcome("already_resolved")
    except (ProcessUnknown, ProcessEnded):
        return UNKNOWN_OR_REVOKED
    return ACCEPTED
