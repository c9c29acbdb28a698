"""The state of a run when this worker starts to execute it: the run, and its records."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pylash.durable.processes import ProcessRecord
from pylash.durable.runs import Attached, Claim
from pylash.durable.sessions import SessionRecord, Submitted, TurnRecord
from pylash.durable.stores import Store


class TurnStanding(msgspec.Struct, frozen=True):
    """The session of a turn, and the nodes it has written so far, by place."""

    session: SessionRecord
    nodes: dict[int, bytes] = {}
    # Whether messages may be queued for the turn; known only of a turn that was submitted this moment.
    stirred: bool = True
    # Whether it was claimed: a listener in another process may have asked for its events before.
    claimed: bool = True


class Standing(msgspec.Struct, frozen=True):
    """A run to begin with."""

    subject: ProcessRecord | TurnRecord
    attached: Attached
    turn: TurnStanding | None = None


def standing_of(submitted: Submitted) -> Standing | None:
    """Return how a turn stands that was submitted this moment, if it is ours to run."""
    if submitted.fence is None:
        return None
    turn = TurnStanding(submitted.session, stirred=submitted.stirred, claimed=False)
    return Standing(submitted.turn, Attached(submitted.fence, submitted.now), turn)


async def standings(store: Store, claims: Sequence[Claim]) -> dict[int, Standing]:
    """Return the state of claimed runs, by run; runs that cannot be read are left out."""
    fences = {claim.fence.run: claim.fence for claim in claims}
    processes = [claim.fence.run for claim in claims if claim.run.kind == "process"]
    # The journals are read after the claim: what an earlier owner writes from then on is refused by the fence.
    turns = [run for run in fences if run not in processes]
    found: dict[int, Standing] = {}
    if processes:
        for run, known in (await store.processes.resume(processes)).items():
            attached = Attached(fences[run], known.now, known.entries)
            found[run] = Standing(known.record, attached)
    if turns:
        for run, turn in (await store.sessions.resume(turns)).items():
            attached = Attached(fences[run], turn.now, turn.entries)
            found[run] = Standing(turn.turn, attached, TurnStanding(turn.session, turn.nodes))
    return found
