"""The state of a run when this worker starts to execute it: the run, and its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pylash.durable.processes import ProcessRecord
from pylash.durable.runs import Attached, Fence
from pylash.durable.sessions import SessionRecord, Submitted, TurnRecord
from pylash.durable.stores import Store


class LoadedTurn(msgspec.Struct, frozen=True):
    """The session of a turn, and the nodes that the turn has written so far, by place."""

    session: SessionRecord
    nodes: dict[int, bytes] = {}
    # Whether messages may be queued for the turn. False is possible only if the turn was submitted just now.
    stirred: bool = True
    # Whether the turn was claimed: then a listener in another process may have requested its events already.
    claimed: bool = True


class LoadedRun(msgspec.Struct, frozen=True):
    """A process or turn, its fence and its recorded effects."""

    subject: ProcessRecord | TurnRecord
    attached: Attached
    turn: LoadedTurn | None = None


def loaded_turn(submitted: Submitted) -> LoadedRun | None:
    """Return a turn that was submitted just now; None if it does not run in this process yet."""
    if submitted.fence is None:
        return None
    turn = LoadedTurn(submitted.session, stirred=submitted.stirred, claimed=False)
    return LoadedRun(submitted.turn, Attached(submitted.fence, submitted.now), turn)


async def load_runs(
    store: Store, fences: Mapping[int, Fence], processes: Sequence[int]
) -> dict[int, LoadedRun]:
    """Read runs by their fences and return them by number; runs that cannot be read are left out.

    ``processes`` are the numbers of those that are processes; the others are turns.
    """
    # Called after the runs were claimed: from then on their fences refuse writes of an earlier owner, so that the
    # journals that are read here stay complete.
    turns = [run for run in fences if run not in processes]
    loaded: dict[int, LoadedRun] = {}
    if processes:
        for run, known in (await store.processes.resume(processes)).items():
            attached = Attached(fences[run], known.now, known.entries)
            loaded[run] = LoadedRun(known.record, attached)
    if turns:
        for run, turn in (await store.sessions.resume(turns)).items():
            attached = Attached(fences[run], turn.now, turn.entries)
            loaded[run] = LoadedRun(turn.turn, attached, LoadedTurn(turn.session, turn.nodes))
    return loaded
