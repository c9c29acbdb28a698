"""Forks: a process that continues from the recorded effects of another one."""

from __future__ import annotations

import msgspec

from pylash.durable.effects import EffectKind
from pylash.durable.processes import Registration, SessionTurnInput
from pylash.durable.runs import JournalEntry
from pylash.durable.stores import Store
from pylash.durable.waits import Timeout
from pylash.values.canonical import encode
from pylash.values.process_errors import ForkInvalid, NotSupported, ProcessUnknown

AWAIT = EffectKind.AWAIT_EVENT

_STILL_OPEN = encode(Timeout(still_open=True))


async def fork_registration(
    store: Store, process_id: str, from_effect: str | None, new_id: str
) -> tuple[Registration, list[str]]:
    """Return the registration of a fork, and the keys of the effects that it takes over."""
    record = await store.processes.get(process_id)
    if record is None:
        raise ProcessUnknown(process_id)
    given = record.registration
    if isinstance(given.input, SessionTurnInput):
        instead = (
            "start an agent with fork= and at=, which continues from the messages of a session"
        )
        raise NotSupported(f"A fork of {process_id!r}, the process of an agent,", instead)
    registration = msgspec.structs.replace(
        given,
        id=new_id,
        seed=given.seed or given.id,
        seed_epoch=given.seed_epoch + record.state.epoch,
        recorded_id=given.recorded_id or given.id,
        parent=None,
        attached=False,
    )
    effects = await store.journal.timeline(record.run)
    return registration, _copied_effects(process_id, effects, from_effect)


def _copied_effects(
    process_id: str, effects: list[JournalEntry], from_effect: str | None
) -> list[str]:
    """Return the keys of the effects that had ended when ``from_effect`` began.

    Answered waits are left out: the fork opens them again.
    """
    done = [entry for entry in effects if entry.size or entry.due is not None]
    done = [
        entry
        for entry in done
        if (entry.kind != AWAIT or entry.outcome == _STILL_OPEN)
        and not entry.key.startswith("!cancel")
    ]
    if from_effect is None:
        return [entry.key for entry in done]
    began = [entry.started for entry in effects if entry.key == from_effect]
    if not began:
        raise ForkInvalid(process_id, from_effect)
    return [
        entry.key
        for entry in done
        if entry.key != from_effect and (entry.ended or entry.due or 0) <= began[0]
    ]
