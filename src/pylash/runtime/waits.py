"""Waits as people see them, and how they answer."""

from __future__ import annotations

from typing import Any

from pylash.durable import (
    ACCEPTED,
    UNKNOWN_OR_REVOKED,
    EffectHost,
    Err,
    Ok,
    ProcessScope,
    ProcessSignal,
    ResolveOutcome,
    SignalProcess,
    SignalWait,
    WaitName,
    key_parts,
)
from pylash.runtime.journal import JournalHost, OpenWait
from pylash.runtime.signatures import Shape
from pylash.values import ArgumentsInvalid, Misuse


async def open_waits(host: JournalHost, session_id: str | None = None) -> list[OpenWait]:
    """Return the open waits, oldest first, each with the key that answers it."""
    found = await host.open_waits(session_id)
    if session_id is None:
        found += [_shown(host, wait) for wait in await host.store.processes.signal_waits()]
    return sorted(found, key=lambda wait: wait.opened)


def _shown(host: JournalHost, wait: SignalWait) -> OpenWait:
    name = WaitName(ProcessScope(wait.process_id), _identity(wait), wait.epoch)
    key = host.signer.key(name.scope, name.wait, name.generation)
    return OpenWait(name, "signal", wait.name, None, None, wait.opened, wait.deadline, key)


def _identity(wait: SignalWait) -> ProcessSignal:
    """Return which wait of which branch this is: its effect's key says it."""
    branch, _, effect = wait.key.partition(":process:")
    count = key_parts(effect.rpartition("/")[2])[-1][1]
    signal = wait.name if branch == "root" else f"{wait.name}\x1f{branch}"
    return ProcessSignal(wait.process_id, signal, count)


async def resolve_wait(
    host: JournalHost, effects: EffectHost, key: str, value: Any, error: str | None, by: str | None
) -> ResolveOutcome:
    """Answer a wait; answering a wait for a signal sends the signal."""
    name = host.signer.name(key)
    if name is not None and isinstance(name.wait, ProcessSignal):
        if error is not None:
            raise ArgumentsInvalid("resolve", "a wait for a signal takes a value, not an error")
        return await _send(host, name, name.wait, value)
    plain = Shape(Any).dump(value)
    resolution = Ok(plain) if error is None else Err("wait_failed", error, plain)
    return await effects.resolve(key, resolution, by=by)


async def _send(
    host: JournalHost, name: WaitName, wait: ProcessSignal, value: Any
) -> ResolveOutcome:
    waits = await host.store.processes.signal_waits(wait.process_id)
    if not any(one.epoch == name.generation and _identity(one) == wait for one in waits):
        known = await host.store.processes.known([wait.process_id])
        return ResolveOutcome("already_resolved") if known else UNKNOWN_OR_REVOKED
    signal, _, branch = wait.signal_name.partition("\x1f")
    signal_id = f"wait:{name.generation}:{branch}:{wait.ordinal}"
    try:
        await host.store.processes.perform(
            SignalProcess(wait.process_id, signal, signal_id, Shape(Any).dump(value))
        )
    except Misuse as refusal:
        if refusal.code == "process_event_conflict":
            return ResolveOutcome("already_resolved")
        return UNKNOWN_OR_REVOKED
    return ACCEPTED
