"""Runs: scopes being executed, and the workers that execute them.

Rule 1. A run is written for only by the owner of its fence. A claim makes a new fence.
Rule 2. Expiry belongs to the worker, the fence to the run.
Rule 3. Whoever makes progress possible raises ``wake_seq``, also while the run is live.
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
    """Return the milliseconds in the id of a run, which order all ids but those of one millisecond."""
    return run >> 22


def first_run_id(at: int) -> int:
    """Return the least id of a run that is made at an instant: those made before have smaller ones."""
    return max(0, at // 1000 - _IDS_SINCE) << 22


class RunState(StrEnum):
    """Where a run stands."""

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
"""The token of a run that has ended: it can be read for ever and written no more."""


class Fence(msgspec.Struct, frozen=True):
    """The right to write for a run: refused once another claim has made a newer one."""

    run: int
    token: int
    scope: ExecutionScope

    @property
    def name(self) -> str:
        """The run as people read it."""
        return scope_name(self.scope)


class JournalEntry(msgspec.Struct, frozen=True, gc=False):
    """One recorded effect.

    ``outcome`` is None while the effect is open, and also when it is large and not loaded yet:
    ``size`` tells the two apart. ``due`` is a sleep's end, ``wait`` the wait it stands for.
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
    """A run that this worker owns now, with everything recorded for it."""

    fence: Fence
    now: Instant
    entries: dict[str, JournalEntry] = {}


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to enqueue. ``lane`` admits one run at a time; ``at`` delays it."""

    scope: ExecutionScope
    kind: str
    target: str = ""
    lane: str | None = None
    at: Instant | None = None
    input: bytes | None = None


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
    """A run that was claimed: its fence, and the ``wake_seq`` seen with it."""

    fence: Fence
    run: RunView


class LeaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """How long a worker's lease lives and how often it is renewed, in microseconds."""

    ttl: int = 15 * SECOND
    renew_every: int = 5 * SECOND

    def __post_init__(self) -> None:
        if not 0 < 2 * self.renew_every <= self.ttl:
            raise ValueError(
                f"ttl={self.ttl} must be at least twice renew_every={self.renew_every}"
            )
