"""Waits as people see them, and how they answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pylash.durable import (
    ACCEPTED,
    BRANCH_OF_SIGNAL,
    UNKNOWN_OR_REVOKED,
    EffectHost,
    Err,
    Ok,
    ProcessScope,
    ProcessSignal,
    ResolveOutcome,
    SessionTurnInput,
    SignalProcess,
    SignalWait,
    WaitName,
    key_parts,
    session_of,
)
from pylash.runtime.inline import InlineHost
from pylash.runtime.journal import JournalHost, OpenWait
from pylash.runtime.signatures import Shape
from pylash.values import ArgumentsInvalid, ProcessEnded, ProcessEventConflict, ProcessUnknown


async def open_waits(
    host: JournalHost, effects: EffectHost, session_id: str | None = None
) -> list[OpenWait]:
    """Return the open waits, oldest first, each with the key that answers it."""
    here = _inline(effects)
    if session_id is not None:
        found = await host.open_waits(session_id)
        found += [wait for wait in here if session_of(wait.name.scope) == session_id]
        found += await _of_subagents(host, [*await host.open_waits(), *here], session_id)
    else:
        found = [*await host.open_waits(), *here]
        found += [_shown(host, wait) for wait in await host.store.processes.signal_waits()]
    return sorted(found, key=lambda wait: wait.opened)


def _inline(effects: EffectHost) -> list[OpenWait]:
    """Return the waits that are in no store."""
    if not isinstance(effects, InlineHost):
        return []
    waits = effects.open_waits()
    return [OpenWait(**msgspec.structs.asdict(view), key=key) for key, view in waits.items()]


async def _of_subagents(
    host: JournalHost, waits: Sequence[OpenWait], session_id: str
) -> list[OpenWait]:
    """Return what subagents wait for: those that a session waits for, and those of its own turn."""
    found = []
    for wait in waits:
        scope = wait.name.scope
        if isinstance(scope, ProcessScope) and wait.kind in ("approval", "deferred"):
            record = await host.store.processes.get(scope.process_id)
            given = None if record is None else record.registration.input
            if isinstance(given, SessionTurnInput) and session_id in (
                given.session_id,
                *given.lanes,
            ):
                found.append(wait)
    return found


def _shown(host: JournalHost, wait: SignalWait) -> OpenWait:
    name = WaitName(ProcessScope(wait.process_id), _identity(wait), wait.epoch)
    key = host.signer.sign(name)
    return OpenWait(name, "signal", wait.name, None, None, wait.opened, wait.deadline, key)


def _identity(wait: SignalWait) -> ProcessSignal:
    """Return which wait of which branch this is: its effect's key says it."""
    branch, _, effect = wait.key.partition(":process:")
    count = key_parts(effect.rpartition("/")[2])[-1][1]
    signal = wait.name if branch == "root" else f"{wait.name}{BRANCH_OF_SIGNAL}{branch}"
    return ProcessSignal(wait.process_id, signal, count)


async def resolve_wait(
    host: JournalHost, effects: EffectHost, key: str, value: Any, error: str | None, by: str | None
) -> ResolveOutcome:
    """Answer a wait; answering a wait for a signal sends the signal."""
    if value is not None and error is not None:
        reason = "a wait is answered with a value or an error, not both: leave one of them out"
        raise ArgumentsInvalid("resolve", reason)
    name = host.signer.name(key)
    if name is not None and isinstance(name.wait, ProcessSignal):
        if error is not None:
            raise ArgumentsInvalid("resolve", "a wait for a signal takes a value, not an error")
        if by is not None:
            raise ArgumentsInvalid("resolve", "a signal records nobody, so leave by out")
        return await _send(host, name, name.wait, value)
    plain = Shape(Any).dump(value)
    if name is not None and is_approval(name) and error is None:
        trouble = approval_trouble(plain)
        if trouble is not None:
            raise ArgumentsInvalid("resolve", trouble)
    resolution = Ok(plain) if error is None else Err("wait_failed", error)
    return await effects.resolve(key, resolution, by=by)


def is_approval(name: WaitName) -> bool:
    """Return whether a wait is for a person to agree to a tool call."""
    return getattr(name.wait, "key", "").startswith("approval:")


def approval_trouble(answer: Any) -> str | None:
    """Return why something is no answer to an approval: a slip must not count as a no."""
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
        return "corrected arguments are a record of all arguments by name"
    return None


async def _send(
    host: JournalHost, name: WaitName, wait: ProcessSignal, value: Any
) -> ResolveOutcome:
    waits = await host.store.processes.signal_waits(wait.process_id)
    if not any(one.epoch == name.generation and _identity(one) == wait for one in waits):
        known = await host.store.processes.known([wait.process_id])
        return ResolveOutcome("already_resolved") if known else UNKNOWN_OR_REVOKED
    signal, _, branch = wait.signal_name.partition(BRANCH_OF_SIGNAL)
    signal_id = f"wait:{name.generation}:{branch}:{wait.ordinal}"
    try:
        await host.store.processes.perform(
            SignalProcess(wait.process_id, signal, signal_id, Shape(Any).dump(value))
        )
    except ProcessEventConflict:
        return ResolveOutcome("already_resolved")
    except (ProcessUnknown, ProcessEnded):
        return UNKNOWN_OR_REVOKED
    return ACCEPTED
