"""The machine of a worker: its slots, the runs that are idle, suspects, and closing. It does no I/O.

Rule 1. A slot is free, reserved for a claim or a start, or held by a run. Runs that continue take precedence over new
        runs: a returned slot goes to the run that has waited longest, and is free only if none waits.
Rule 2. A suspect is a run that may be the cause of crashes: it is executed alone. While it waits for that, no run
        starts and idle runs are parked; but only for a limited time, then other runs may start again.
Rule 3. A worker that closes starts nothing. It parks idle runs, and detaches the others when its grace period is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

MAX_IDLE: Final = 256
"""How many runs may wait in memory; beyond that the run that has been idle longest is parked."""
CLEARING_SECONDS: Final = 10.0
"""How long a suspect may delay all other runs, and for how long after that it may not."""


class WorkerPhase(StrEnum):
    """Which runs a worker may start."""

    OPEN = "open"
    CLEARING = "clearing"
    """A suspect waits until nothing else runs here."""
    ALONE = "alone"
    """A suspect runs here, and nothing else."""
    CLOSING = "closing"


OPEN, CLEARING, ALONE, CLOSING = WorkerPhase


class GrantSlot(msgspec.Struct, frozen=True, gc=False):
    """Report ``slot_granted`` to a run."""

    run: Any


class ParkRun(msgspec.Struct, frozen=True, gc=False):
    """Report ``park_due`` to a run."""

    run: Any


class DetachRun(msgspec.Struct, frozen=True, gc=False):
    """Release a run: the worker closes."""

    run: Any


class LookForWork(msgspec.Struct, frozen=True, gc=False):
    """Read the store for ready runs; then report ``looked``."""


class ClaimSuspect(msgspec.Struct, frozen=True, gc=False):
    """Claim one suspect with the slot that is reserved for it; then report ``suspect_claimed``."""


class AllGone(msgspec.Struct, frozen=True, gc=False):
    """Nothing is left to wait for: the worker may be closed."""


WorkerDecision = GrantSlot | ParkRun | DetachRun | LookForWork | ClaimSuspect | AllGone
WorkerDecisions = Sequence[WorkerDecision]

ANY_PHASE: Final = tuple(WorkerPhase)

WORKER_FACTS: Final[Mapping[str, Collection[WorkerPhase]]] = {
    "claim_sent": (OPEN,),
    "claim_answered": ANY_PHASE,
    "slot_wanted": ANY_PHASE,
    "slot_returned": ANY_PHASE,
    "became_idle": ANY_PHASE,
    "became_busy": ANY_PHASE,
    "run_gone": ANY_PHASE,
    "time_passed": ANY_PHASE,
    "looked": ANY_PHASE,
    "suspect_claimed": (CLEARING, CLOSING),
    "close": ANY_PHASE,
    "grace_over": (CLOSING,),
}
"""The phases in which each fact is possible."""


class ImpossibleWorkerFact(RuntimeError):
    """The driver reported a fact to the machine of a worker that cannot have happened."""

    def __init__(self, phase: WorkerPhase, fact: str, detail: str = "") -> None:
        self.phase = phase
        self.fact = fact
        where = f"{phase} ({detail})" if detail else str(phase)
        super().__init__(f"Impossible fact {fact!r} of a worker that is {where}.")


class WorkerMachine:
    """The runs and slots of one worker; a run is any hashable object of the driver."""

    __slots__ = (
        "_claims_suspect",
        "_cleared_since",
        "_has_backlog",
        "_idle",
        "_park_after",
        "_phase",
        "_size",
        "_waiting",
        "free",
        "live",
        "pending",
    )

    def __init__(self, slots: int, park_after: float) -> None:
        # Every slot is free, pending, or held by a run. A run that is idle, or waits for a slot, holds none.
        self.free = self._size = slots
        self.live: set[Hashable] = set()
        self._park_after = park_after
        self._phase = OPEN
        # Slots that are reserved: starts and claims that the store has not answered.
        self.pending = 0
        # Runs that wait for a slot; empty while a slot is free.
        self._waiting: deque[Hashable] = deque()
        # Idle runs that are not being parked, and since when, the longest first.
        self._idle: dict[Hashable, float] = {}
        # Whether runs are ready for which there was no slot.
        self._has_backlog = False
        # When it last started to wait for a suspect.
        self._cleared_since: float | None = None
        # Whether a suspect is being claimed: until the store answers, ``looked`` changes no phase.
        self._claims_suspect = False

    @property
    def phase(self) -> WorkerPhase:
        """The phase of the worker: which runs it may start."""
        return self._phase

    @property
    def room(self) -> int:
        """How many runs may be claimed: there are slots, and runs that are idle take memory too."""
        if self._phase is not OPEN:
            return 0
        return max(0, min(self.free, self._size + MAX_IDLE - len(self.live) - self.pending))

    @property
    def may_start(self) -> bool:
        """Whether a new run may start here at once: no ready run takes precedence."""
        return self.room > 0 and not self._has_backlog

    @property
    def next_due(self) -> float | None:
        """When the first of the idle runs is to be parked."""
        since = next(iter(self._idle.values()), None)
        return None if since is None else since + self._park_after

    # --- starts and claims ---

    def claim_sent(self, limit: int) -> WorkerDecisions:
        """Reserve slots for runs that are being claimed, or one for a run that is being started."""
        self._check("claim_sent")
        if limit > self.free:
            raise ImpossibleWorkerFact(self._phase, "claim_sent", f"{self.free} slots are free")
        self.free -= limit
        self.pending += limit
        return ()

    def claim_answered(self, limit: int, runs: Collection[Hashable]) -> WorkerDecisions:
        """Note that these runs were claimed, of at most ``limit``."""
        self._check("claim_answered")
        return self._begin(limit, runs)

    def looked(self, *, backlog: bool, suspect: bool, now: float) -> WorkerDecisions:
        """Note whether ready runs found no slot, and whether a suspect is ready."""
        self._check("looked")
        self._has_backlog = backlog
        if self._phase not in (OPEN, CLEARING) or self._claims_suspect:
            return ()
        self._phase = CLEARING if suspect and self._may_clear(now) else OPEN
        if self._phase is OPEN:
            return self._look_if_room()  # a slot may have been given back during the read
        return [*self._park(list(self._idle)), *self._claim_suspect_if_alone()]

    def suspect_claimed(self, run: Hashable | None) -> WorkerDecisions:
        """Note that a suspect was claimed, or that there is none left."""
        self._check("suspect_claimed")
        if not self._claims_suspect:
            raise ImpossibleWorkerFact(self._phase, "suspect_claimed", "none is being claimed")
        self._claims_suspect = False
        # CLOSING never changes: a suspect that was claimed last is detached like any other run.
        if self._phase is CLEARING:
            self._phase = OPEN if run is None else ALONE
        decisions = self._begin(1, () if run is None else (run,))
        return decisions if run is not None else [*decisions, LookForWork()]

    # --- slots ---

    def slot_wanted(self, run: Hashable) -> WorkerDecisions:
        """Grant a slot to a run that continues, now or when its turn comes."""
        self._check("slot_wanted")
        if run in self._waiting:
            raise ImpossibleWorkerFact(self._phase, "slot_wanted", "it waits for one")
        # While a slot is free no run waits for one, so this run overtakes none.
        if self.free:
            self.free -= 1
            return (GrantSlot(run),)
        self._waiting.append(run)
        return ()

    def slot_returned(self) -> WorkerDecisions:
        """Hand a slot on to the run that has waited longest."""
        self._check("slot_returned")
        return self._give_back(1)

    # --- idle runs ---

    def became_idle(self, run: Hashable, now: float, *, park_now: bool = False) -> WorkerDecisions:
        """Note that a run may be parked; its idle time starts again if it was idle before."""
        self._check("became_idle")
        if run not in self.live:
            raise ImpossibleWorkerFact(self._phase, "became_idle", "it is not executed here")
        # Removed first, so that the order of the dict stays that of the times.
        self._idle.pop(run, None)
        self._idle[run] = now
        if park_now or self._phase in (CLEARING, CLOSING):
            return self._park([run])
        if len(self._idle) > MAX_IDLE:
            return self._park([next(iter(self._idle))])
        return ()

    def became_busy(self, run: Hashable) -> WorkerDecisions:
        """Note that a run must no longer be parked."""
        self._check("became_busy")
        self._idle.pop(run, None)
        return ()

    def time_passed(self, now: float) -> WorkerDecisions:
        """Park the runs that have been idle long enough."""
        self._check("time_passed")
        due = []
        for run, since in self._idle.items():
            if since + self._park_after > now:
                break
            due.append(run)
        return self._park(due)

    # --- the end ---

    def run_gone(self, run: Hashable) -> WorkerDecisions:
        """Note that a run is no longer executed here; its slot is returned separately."""
        self._check("run_gone")
        self.live.discard(run)
        self._idle.pop(run, None)
        if self._phase is ALONE:
            self._phase = OPEN
            return (LookForWork(),)
        if self._phase is CLEARING:
            return self._claim_suspect_if_alone()
        return self._all_gone() if self._phase is CLOSING else self._look_if_room()

    def close(self) -> WorkerDecisions:
        """Stop starting runs, and park those that are idle."""
        self._check("close")
        self._phase = CLOSING
        return [*self._park(list(self._idle)), *self._all_gone()]

    def grace_over(self) -> WorkerDecisions:
        """Release the runs that have not ended or been parked."""
        self._check("grace_over")
        return [DetachRun(run) for run in self.live]

    # --- helpers ---

    def _park(self, runs: list[Hashable]) -> list[WorkerDecision]:
        """Remove runs from the list of idle ones; a run that is not parked after all reports again that it is idle."""
        for run in runs:
            del self._idle[run]
        return [ParkRun(run) for run in runs]

    def _check(self, fact: str) -> None:
        if self._phase not in WORKER_FACTS[fact]:
            raise ImpossibleWorkerFact(self._phase, fact)

    def _begin(self, reserved: int, runs: Collection[Hashable]) -> WorkerDecisions:
        if len(runs) > reserved or reserved > self.pending:
            raise ImpossibleWorkerFact(self._phase, "begin", f"{self.pending} slots are reserved")
        # Runs first: a slot that is given back must not let a suspect be claimed beside them.
        self.pending -= reserved
        self.live.update(runs)
        return [*self._give_back(reserved - len(runs)), *self._all_gone()]

    def _give_back(self, slots: int) -> list[WorkerDecision]:
        granted = [self._waiting.popleft() for _ in range(min(slots, len(self._waiting)))]
        self.free += slots - len(granted)
        decisions: list[WorkerDecision] = [GrantSlot(run) for run in granted]
        if self._phase is CLEARING:
            decisions += self._claim_suspect_if_alone()
        return [*decisions, *self._look_if_room()]

    def _look_if_room(self) -> WorkerDecisions:
        """Return LookForWork if there is a backlog, and room for some of it.

        The backlog flag stays set until the worker has read the store, so that no new start takes the slot first.
        """
        return (LookForWork(),) if self._has_backlog and self.room else ()

    def _may_clear(self, now: float) -> bool:
        """Return whether a suspect may delay all other runs: for a while, and then not for the same time."""
        since = self._cleared_since
        if since is None or now - since > 2 * CLEARING_SECONDS:
            since = self._cleared_since = now
        return now - since < CLEARING_SECONDS

    def _claim_suspect_if_alone(self) -> WorkerDecisions:
        # Every change of one of these three calls this again, so the claim is not forgotten.
        if self.live or self.pending or not self.free:
            return ()
        self.free -= 1
        self.pending += 1
        self._claims_suspect = True
        return (ClaimSuspect(),)

    def _all_gone(self) -> WorkerDecisions:
        is_over = self._phase is CLOSING and not (self.live or self.pending)
        return (AllGone(),) if is_over else ()
