"""Runs: executions of scopes, owned by workers.

Rule 1. Only the owner of a run's fence writes for it. Each claim creates a new fence.
Rule 2. The lease belongs to the worker, the fence to the run.
Rule 3. Every write that lets a run continue increments its ``wake_seq``, also while the run is live.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NewType

import msgspec

from pylash.durable.scopes import ExecutionScope, scope_name

Instant = NewType("Instant", int)
"""Microseconds since 1970, on the store's clock."""

WorkerId = NewType("WorkerId", str)

SECOND: Final = 1_000_000
"""Microseconds in a second."""


_IDS_SINCE: Final = 1_704_067_200_000
"""Run ids count milliseconds from 2024, so that they fit 63 bits until 2093."""


def new_run_id(now: int, entropy: Callable[[int], bytes]) -> int:
    """Return a 63-bit id that grows with time: 41 bits of milliseconds, then 22 random ones."""
    return (now // 1000 - _IDS_SINCE) << 22 | int.from_bytes(entropy(3), "big") >> 2


def run_id_time(run: int) -> int:
    """Return the milliseconds in the id of a run. Ids of the same millisecond have no order."""
    return run >> 22


def first_run_id(at: int) -> int:
    """Return the smallest id of a run that is created at an instant; earlier runs have smaller ids."""
    return max(0, at // 1000 - _IDS_SINCE) << 22


class RunState(StrEnum):
    """The state of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


TERMINAL: Final = frozenset(
    {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.STOPPED}
)


SETTLED: Final = -1
"""The token of a run that has ended: it can be read but not written."""


class Fence(msgspec.Struct, frozen=True):
    """The right to write for a run. It ends when another claim creates a newer fence."""

    run: int
    token: int
    scope: ExecutionScope

    @property
    def name(self) -> str:
        """The name of the run for display."""
        return scope_name(self.scope)


class JournalEntry(msgspec.Struct, frozen=True, gc=False):
    """One recorded effect.

    ``outcome`` is None while the effect is open, and also if it is large and not loaded yet;
    ``size`` is 0 only while the effect is open. ``due`` is the end of a sleep, ``wait`` the id of a wait.
    """

    key: str
    kind: str
    hash: bytes
    command: bytes | None = None
    outcome: bytes | None = None
    size: int = 0
    due: int | None = None
    wait: str | None = None
    started: int = 0
    ended: int | None = None
    label: str | None = None


class Attached(msgspec.Struct, frozen=True):
    """A run that the worker owns now, with everything recorded for it."""

    fence: Fence
    now: Instant
    entries: dict[str, JournalEntry] = {}


class RunView(msgspec.Struct, frozen=True):
    """A run's row."""

    id: int
    scope: ExecutionScope
    kind: str
    target: str
    lane: str | None
    state: RunState
    reason: str | None
    at: Instant | None
    wake_seq: int
    owner: WorkerId | None
    fence: int
    attempts: int
    input: bytes | None
    result: bytes | None


class Claim(msgspec.Struct, frozen=True):
    """A run that was claimed: its fence, and its row, whose ``wake_seq`` a later park is compared with."""

    fence: Fence
    run: RunView


MOVES: Final = "!moves"
"""The key of the note of how often the records of a run were moved to a new journal of its engine."""


class Dispatch(msgspec.Struct, frozen=True):
    """A ready run that is to be sent to its engine; ``bell``: what wakes it there, if it is parked.

    ``moves``: how often its records were moved to a new journal of the engine.
    """

    run: int
    scope: ExecutionScope
    kind: str
    bell: str | None
    # How often a process has continued as a fresh run.
    epoch: int = 0
    moves: int = 0


class EngineRun(msgspec.Struct, frozen=True):
    """A run of another engine that has not ended."""

    scope: ExecutionScope
    state: RunState


class LeaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """How long a worker's lease lives and how often it is renewed, in microseconds."""

    ttl: int = 15 * SECOND
    renew_every: int = 5 * SECOND

    def __post_init__(self) -> None:
        if not 0 < 2 * self.renew_every <= self.ttl:
            raise ValueError(
                f"ttl={self.ttl} must be at least twice renew_every={self.renew_every}"
            )
