"""Forks: a process that continues from the recorded effects of another one."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from pylash.durable.effects import EffectKind
from pylash.durable.processes import Failure, ForkOrigin, Output, Registration, SessionTurnInput
from pylash.durable.runs import JournalEntry
from pylash.durable.stores import Store
from pylash.durable.waits import STILL_OPEN
from pylash.engine.records import WITHDRAWN, Failed
from pylash.values.process_errors import ForkInvalid, NotSupported, ProcessUnknown

AWAIT = EffectKind.AWAIT_EVENT

_LATER_ATTEMPT: Final = re.compile(r"[/.]attempt\.\d+$")


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
        forked_from=(*given.origins, ForkOrigin(given.id, record.state.epoch)),
        parent=None,
        attached=False,
    )
    effects = await store.journal.timeline(record.run)
    return registration, _copied_effects(process_id, effects, from_effect, record.state.output)


def _copied_effects(
    process_id: str, effects: list[JournalEntry], from_effect: str | None, output: Output | None
) -> list[str]:
    """Return the keys of the effects that had ended when ``from_effect`` began.

    Answered waits are left out: the fork opens them again.

    Without ``from_effect`` all are kept; of a process that failed because an effect did, those that began before the failure.
    """
    done = [entry for entry in effects if entry.size or entry.due is not None]
    done = [
        entry
        for entry in done
        if (entry.kind != AWAIT or entry.outcome == STILL_OPEN)
        and not entry.key.startswith("!cancel")
    ]
    if from_effect is None:
        return _before_failure(done, output)
    began = [entry.started for entry in effects if entry.key == from_effect]
    if not began:
        raise ForkInvalid(process_id, from_effect)
    return [
        entry.key
        for entry in done
        if entry.key != from_effect and (entry.ended or entry.due or 0) <= began[0]
    ]


def _before_failure(done: list[JournalEntry], output: Output | None) -> list[str]:
    """Return the keys of effects without those of the failure that ended the process, and without what came after it.

    Parallel effects that succeeded are kept, also if they ended after the failure: they would be executed a second time.
    """
    failed = next((entry for entry in reversed(done) if _is_cause(entry, output)), None)
    if failed is None:
        return [entry.key for entry in done]
    step, over = _LATER_ATTEMPT.sub("", failed.key), failed.ended or failed.started
    return [
        entry.key
        for entry in done
        if entry.started < over
        and entry.key != step
        and not entry.key.startswith((f"{step}.", f"{step}/"))
        and not (entry.outcome or b"").startswith(WITHDRAWN)
    ]


def _is_cause(entry: JournalEntry, output: Output | None) -> bool:
    """Return whether a process failed because this effect did."""
    if not isinstance(output, Failure) or b'"type":"failed"' not in (entry.outcome or b"")[:200]:
        return False
    try:
        failed = msgspec.json.decode(entry.outcome or b"", type=Failed)
    except msgspec.DecodeError:  # too long to be loaded as a whole
        return False
    return (failed.code, failed.message) == (output.code, output.message)
