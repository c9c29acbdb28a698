"""The ports: what the runtime needs of the world, of stores, and of effect hosts.

Rule 1. Every operation of a store is atomic, and carries its own idempotency token: doing it
        again after a COMMIT whose answer was lost changes nothing.
Rule 2. An operation on behalf of a run takes its fence and writes nothing once it is stale.
Rule 3. Times are computed and compared with the store's clock; callers pass durations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from pylash.durable.effects import Command, Envelope, Outcome
from pylash.durable.runs import (
    Attached,
    Claim,
    Fence,
    Instant,
    JournalEntry,
    NewRun,
    RunState,
    RunView,
    WorkerId,
)
from pylash.durable.scopes import ExecutionScope, checked_scope, turn_of
from pylash.durable.waits import (
    UNKNOWN_OR_REVOKED,
    Resolution,
    ResolveOutcome,
    WaitIdentity,
    WaitName,
)
from pylash.values import AwaitEventUnsupported, Duration

# --- the world ---


class Clock(Protocol):
    """Time, as it was given to us."""

    def now(self) -> Instant:
        """Return the wall time."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait. Cancellation: safe, nothing is kept."""
        ...


class Entropy(Protocol):
    """Random bytes, as they were given to us."""

    def __call__(self, size: int) -> bytes:
        """Return size random bytes."""
        ...


class Cancellation(Protocol):
    """Says that a waiter was cancelled; ``asyncio.Event`` is one."""

    def is_set(self) -> bool:
        """Return whether it was."""
        ...

    async def wait(self) -> object:
        """Return once it was."""
        ...


# --- effect hosts ---


class DurabilityTier(StrEnum):
    """What survives the process."""

    INLINE = "inline"
    DURABLE = "durable"


class LocalExecutor(Protocol):
    """Runs one effect in this process, if nothing is recorded for it.

    ``cancel`` ends its sleeps and waits, ``timeout`` (microseconds) its waits.
    """

    @property
    def cancel(self) -> Cancellation | None:
        """What cancels a sleep or a wait."""
        ...

    @property
    def timeout(self) -> int | None:
        """How long a wait may take."""
        ...

    def check(self, command: Command) -> None:
        """Refuse a command that is not this executor's."""
        ...

    async def execute(self, envelope: Envelope) -> Outcome:
        """Return the outcome of envelope's command, or refuse a command that is not its own."""
        ...


class Boundary:
    """What hosts and controllers have in common: what they can do, and their waits."""

    durability: DurabilityTier = DurabilityTier.INLINE
    supports_durable_effects: bool = False
    supports_concurrent_effects: bool = True
    requires_durable_attachment_store: bool = False

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait: the same whenever and wherever it is asked for."""
        raise AwaitEventUnsupported

    async def resolve(
        self,
        key: str,
        resolution: Resolution,
        *,
        by: str | None = None,
    ) -> ResolveOutcome:
        """Answer a wait. The first answer wins.

        Cancellation: atomic.
        """
        return UNKNOWN_OR_REVOKED

    async def wait(
        self,
        key: str,
        *,
        cancel: Cancellation | None = None,
        timeout: Duration | None = None,
    ) -> Resolution:
        """Return how the wait ended; being cancelled, or late by ``timeout``, ends it for everyone.

        Cancellation: safe, the wait stays open; only ``cancel`` ends it.
        """
        raise AwaitEventUnsupported

    async def revoke_waits(self, session_id: str) -> None:
        """Make every key of the session unknown, and wake who waits for one."""


class EffectController(Boundary, ABC):
    """The boundary, for one scope."""

    @abstractmethod
    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        """Return what the effect returned the first time, or perform it and record it.

        Cancellation: safe before ``local`` returns (nothing is recorded); after it, the record
        is written all the same.
        """


class ScopedController(msgspec.Struct, frozen=True):
    """A controller together with the scope it serves."""

    controller: EffectController
    execution_scope: ExecutionScope

    def __post_init__(self) -> None:
        checked_scope(self.execution_scope)

    @property
    def scope_id(self) -> str:
        """The scope's id."""
        return self.execution_scope.id

    @property
    def turn_id(self) -> str | None:
        """The turn's id, if the scope is a turn."""
        return turn_of(self.execution_scope)

    def execute(self, envelope: Envelope, local: LocalExecutor) -> Awaitable[Outcome]:
        """Execute envelope with the controller."""
        return self.controller.execute(envelope, local)


class EffectHost(Boundary, ABC):
    """Hands out controllers, each for one scope."""

    gives_static_scopes: bool = True

    @abstractmethod
    def scoped(self, scope: ExecutionScope) -> ScopedController:
        """Return a controller for scope, for the caller's own use while it runs."""

    def scoped_static(self, scope: ExecutionScope) -> ScopedController | None:
        """Return a controller that a background worker may keep, or None if there is no such."""
        return self.scoped(scope) if self.gives_static_scopes else None


# --- stores ---


class WaitView(msgspec.Struct, frozen=True):
    """A wait as people see it."""

    name: WaitName
    kind: str
    title: str
    tool: str | None
    arguments: Any
    opened: Instant
    deadline: Instant | None


class WaitOpening(msgspec.Struct, frozen=True, kw_only=True):
    """A wait to open, and what people are shown of it."""

    name: WaitName
    kind: str = "custom"
    title: str = ""
    tool: str | None = None
    arguments: bytes | None = None
    timeout: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """Who answers a wait: the token makes a repeated answer the same one.

    ``fence`` is for a run that ends a wait of its own: refused once the run belongs to another.
    """

    token: str
    by: str | None = None
    fence: Fence | None = None


class WaitStatus(msgspec.Struct, frozen=True):
    """Where a wait stands: its end, if it has one, else how long until its deadline."""

    terminal: Resolution | None = None
    revoked: bool = False
    remaining: int | None = None


class Journal(Protocol):
    """What was recorded, and the right to record more."""

    def attach(self, scope: ExecutionScope, worker: WorkerId) -> Awaitable[Attached]:
        """Own scope's run (made if missing) and return its journal; ``lease_held`` if another does."""
        ...

    def release(self, fence: Fence) -> Awaitable[None]:
        """Give the run up; nothing is lost, anyone may own it next."""
        ...

    def record(self, fence: Fence, entry: JournalEntry) -> Awaitable[JournalEntry]:
        """Record entry unless its key is taken; return the entry that holds the key."""
        ...

    def begin_sleep(
        self, fence: Fence, entry: JournalEntry, duration: int
    ) -> Awaitable[tuple[JournalEntry, Instant]]:
        """Record a sleep's end; return the entry that holds the key, and the time now."""
        ...

    def close(self, fence: Fence, entry: JournalEntry) -> Awaitable[JournalEntry]:
        """Give an open effect its outcome unless it has one; return the entry that stands."""
        ...

    def entry(self, run: int, key: str) -> Awaitable[JournalEntry | None]:
        """Return a whole entry: its command and its outcome, however large."""
        ...


class Waits(Protocol):
    """Waits and their ends."""

    def open(self, opening: WaitOpening) -> Awaitable[WaitStatus]:
        """Show a wait to the world (once), and return where it stands."""
        ...

    def open_for(
        self, fence: Fence, entry: JournalEntry, opening: WaitOpening
    ) -> Awaitable[tuple[JournalEntry, WaitStatus]]:
        """Open a wait as an effect of a run: recorded, so that its end wakes the run."""
        ...

    def resolve(
        self, name: WaitName, resolution: Resolution, answer: Answer
    ) -> Awaitable[ResolveOutcome]:
        """End a wait unless it has ended, is late or revoked; wake every run that waits for it."""
        ...

    def expire(self, name: WaitName) -> Awaitable[WaitStatus]:
        """End a wait whose deadline has passed; return where it stands."""
        ...

    def look(self, names: Sequence[WaitName]) -> Awaitable[dict[str, WaitStatus]]:
        """Return where waits stand, by id."""
        ...

    def listed(self, session_id: str | None = None) -> Awaitable[list[WaitView]]:
        """Return the open waits, oldest first."""
        ...

    def generation(self, session_id: str) -> Awaitable[int]:
        """Return how often the session's waits were revoked."""
        ...

    def revoke(self, session_id: str, generation: int) -> Awaitable[None]:
        """Revoke the session's waits up to generation, and wake the runs that wait for them."""
        ...


class Runs(Protocol):
    """Runs: enqueue, claim, park, wake, settle."""

    def enqueue(self, run: NewRun) -> Awaitable[RunView]:
        """Enqueue a run once; a run of a held lane stays out of sight until its turn."""
        ...

    def claim(
        self, worker: WorkerId, token: str, *, limit: int, targets: Sequence[str]
    ) -> Awaitable[list[Claim]]:
        """Claim ready runs of known targets. The same token again returns the same claims."""
        ...

    def park(self, fence: Fence, wake_seq: int, until: Instant | None = None) -> Awaitable[bool]:
        """Give the run up until it is woken; False if it was woken since ``wake_seq`` was read."""
        ...

    def wake(self, run: int) -> Awaitable[None]:
        """Say that the run can make progress."""
        ...

    def settle(self, fence: Fence, state: RunState, result: bytes | None) -> Awaitable[None]:
        """End the run, and give its lane to the next one."""
        ...

    def block(self, fence: Fence, reason: str) -> Awaitable[None]:
        """Stop the run with a reason. It keeps its lane."""
        ...

    def retry(self, run: int) -> Awaitable[bool]:
        """Make a blocked run ready again; False if it is not blocked."""
        ...

    def get(self, scope: ExecutionScope) -> Awaitable[RunView | None]:
        """Return the run of scope."""
        ...

    def next_due(self) -> Awaitable[int | None]:
        """Return the microseconds until the scheduler must look, or None if nothing is due."""
        ...


class Workers(Protocol):
    """Who is alive."""

    def join(self, worker: WorkerId, ttl: int) -> Awaitable[None]:
        """Take the lock that dies with this process, and a lease of ttl microseconds."""
        ...

    def beat(self, worker: WorkerId, ttl: int) -> Awaitable[bool]:
        """Renew the lease; False if others gave this worker up."""
        ...

    def leave(self, worker: WorkerId) -> Awaitable[None]:
        """Give up the lock, the lease and every run still owned."""
        ...

    def bury_the_dead(self, me: WorkerId) -> Awaitable[list[WorkerId]]:
        """Make the runs of dead and expired workers ready again; return those workers."""
        ...


class Store(Protocol):
    """A database, open."""

    durability: DurabilityTier

    @property
    def journal(self) -> Journal:
        """The journal."""
        ...

    @property
    def waits(self) -> Waits:
        """The waits."""
        ...

    @property
    def runs(self) -> Runs:
        """The runs."""
        ...

    @property
    def workers(self) -> Workers:
        """The workers."""
        ...

    @property
    def secret(self) -> bytes:
        """The secret this database made for itself, for signing wait keys."""
        ...

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call listener with a topic (blank: anything) after changes; return how to stop.

        A hint, never a promise: whoever depends on a change looks again now and then.
        """
        ...

    async def close(self) -> None:
        """Finish what was submitted and close."""
        ...
