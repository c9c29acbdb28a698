"""Forks: a process that goes on from what another one recorded."""

from __future__ import annotations

import msgspec

from pylash.durable import Registration, Store
from pylash.values import ForkInvalid, ProcessUnknown


async def fork_registration(
    store: Store, process_id: str, from_effect: str | None, new_id: str
) -> tuple[Registration, int]:
    """Return the registration of a fork, and the time up to which it takes what was recorded."""
    record = await store.processes.get(process_id)
    if record is None:
        raise ProcessUnknown(process_id)
    given = record.registration
    registration = msgspec.structs.replace(
        given, id=new_id, seed=given.seed or given.id, parent=None
    )
    effects = {entry.key: entry for entry in await store.journal.timeline(record.run)}
    if from_effect is None:
        return registration, max(
            (entry.ended or entry.started for entry in effects.values()), default=0
        )
    if from_effect not in effects:
        raise ForkInvalid(process_id, from_effect)
    return registration, effects[from_effect].started
