"""The ports of the runtime: clock, randomness, effect hosts, and runners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import msgspec

from pylash.durable.commands import ProcessCommand, StartProcess
from pylash.durable.effects import Command, Envelope, Outcome
from pylash.durable.processes import Registration
from pylash.durable.run_memory import NullMemory, RunMemory
from pylash.durable.runs import Attached, Fence, Instant, JournalEntry
from pylash.durable.scopes import ExecutionScope, checked_scope, turn_of
from pylash.durable.sessions import NewTurn
from pylash.durable.waits import (
    UNKNOWN_OR_REVOKED,
    OpenWait,
    Resolution,
    ResolveOutcome,
    WaitIdentity,
    WaitName,
)
from pylash.values.durations import Duration
from pylash.values.errors import AwaitEventUnsupported
from pylash.values.process_errors import StaticScopesRequired

# --- clock and randomness ---


@runtime_checkable
class Clock(Protocol):
    """A source of time; tests pass a simulated one."""

    def now(self) -> Instant:
        """Return the wall time."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait. Cancellation: safe, it has no state."""
        ...


@runtime_checkable
class WatchedClock(Clock, Protocol):
    """A clock that advances only when everything that uses it is idle."""

    def watch(self, quiet: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Wait for ``quiet`` before time moves on; return a function that stops it."""
        ...


class Entropy(Protocol):
    """A source of random bytes; tests pass a fixed one."""

    def __call__(self, size: int) -> bytes:
        """Return size random bytes."""
        ...


class Cancellation(Protocol):
    """A flag that cancels a sleep or a wait; ``asyncio.Event`` is one."""

    def is_set(self) -> bool:
        """Return whether it was set."""
        ...

    async def wait(self) -> object:
        """Return once it was set."""
        ...


# --- effect hosts ---


class DurabilityTier(StrEnum):
    """Whether the records of a host survive the operating system process."""

    INLINE = "inline"
    DURABLE = "durable"


RegistryWork = Callable[[ProcessCommand, int | None], Awaitable[Any]]
"""Executes a command of the process registry; the number is the timeout of a wait.

If it returns a future, the work is done in a separate task, which continues when the future is cancelled.
"""

RecordEffect = Callable[[Fence, JournalEntry, Sequence[JournalEntry]], Awaitable[JournalEntry]]
"""Writes the entry of an effect together with notes, and returns the recorded one: an earlier entry under the key wins."""


class MessageCarrier(Protocol):
    """Passes the message of an effect to and from an engine that records it with the outcome, and not in the store."""

    async def carry(self, key: str) -> bytes:
        """Store what the outcome of an effect refers to, and return its message to be recorded."""
        ...

    def receive(self, message: bytes) -> None:
        """Take the recorded message of an effect: it is written at the end of the turn."""
        ...


class LocalExecutor(Protocol):
    """Runs one effect in this process if no outcome is recorded for it."""

    @property
    def processes(self) -> RegistryWork | None:
        """Executes commands of the process registry, for a controller without one."""
        ...

    @property
    def record(self) -> RecordEffect | None:
        """Writes the effect together with its message, instead of the journal."""
        ...

    @property
    def messages(self) -> MessageCarrier | None:
        """Passes the message of the effect on, for an engine that records it with the outcome."""
        ...

    @property
    def opened(self) -> Callable[[], None] | None:
        """Callback for when the wait is open and can be resolved."""
        ...

    @property
    def cancel(self) -> Cancellation | None:
        """Ends a sleep or a wait early."""
        ...

    @property
    def timeout(self) -> int | None:
        """The timeout of a wait, in microseconds."""
        ...

    def check(self, command: Command) -> None:
        """Raise RuntimeEffectLocalExecutorMismatch for a command that this executor cannot run."""
        ...

    async def execute(self, envelope: Envelope) -> Outcome:
        """Perform the command of envelope and return its outcome."""
        ...


class Boundary:
    """The common part of hosts and controllers: their capabilities and their waits."""

    durability: DurabilityTier = DurabilityTier.INLINE
    supports_durable_effects: bool = False
    supports_concurrent_effects: bool = True
    requires_durable_attachment_store: bool = False

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait: always the same for the same wait."""
        raise AwaitEventUnsupported

    async def resolve(
        self,
        key: str,
        resolution: Resolution,
        *,
        by: str | None = None,
    ) -> ResolveOutcome:
        """Resolve a wait. The first resolution wins.

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
        """Return the resolution of a wait. ``cancel`` and ``timeout`` resolve it, also for all other waiters.

        Cancellation: safe, the wait stays open; only ``cancel`` ends it.
        """
        raise AwaitEventUnsupported

    async def revoke_waits(self, session_id: str) -> None:
        """Revoke every wait key of the session, and wake its waiters."""


class EffectController(Boundary, ABC):
    """The boundary of one scope."""

    @abstractmethod
    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        """Return the recorded outcome of the effect, or perform it and record its outcome.

        Cancellation: safe before ``local`` returns (nothing is recorded); after that, the outcome
        is recorded nevertheless.
        """


class ScopedController(msgspec.Struct, frozen=True):
    """A controller with its scope."""

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
    """Creates controllers, each for one scope."""

    gives_static_scopes: bool = True

    def sign(self, name: WaitName) -> str:
        """Return the signed key of a wait with its generation."""
        raise AwaitEventUnsupported

    def name_in(self, key: str) -> WaitName:
        """Return the wait that a key names; raises AwaitEventUnknownOrRevoked for a key of another host."""
        raise AwaitEventUnsupported

    async def open_waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits of this host, each with the key that resolves it."""
        return []

    async def recorded_outside(self, scope: ExecutionScope) -> list[JournalEntry]:
        """Return the effects of a run that this host has recorded outside the store, in the order in which they started."""
        return []

    @abstractmethod
    def scoped(self, scope: ExecutionScope) -> ScopedController:
        """Return a controller for scope, valid while the caller runs."""

    def scoped_static(self, scope: ExecutionScope) -> ScopedController | None:
        """Return a controller that a background worker may keep, or None if the host has none."""
        return self.scoped(scope) if self.gives_static_scopes else None

    def adopt(self, attached: Attached, clock: Clock) -> tuple[EffectController, RunMemory]:
        """Return the controller of a run that a worker has claimed, and the memory of the run.

        By default the memory is empty: a host that records effects overrides this.
        """
        scoped = self.scoped_static(attached.fence.scope)
        if scoped is None:
            raise StaticScopesRequired
        return scoped.controller, NullMemory(clock)


# --- runners ---


class Runner(Protocol):
    """Has runs executed, in this process or elsewhere. A run is named by the id of its process, or the scope of its turn."""

    async def open(self) -> None:
        """Begin to execute runs."""
        ...

    async def close(self) -> None:
        """Finish or give up the runs that are executed here: nothing that is recorded is lost."""
        ...

    def start(self, command: StartProcess) -> Awaitable[Any]:
        """Start a process, once, whether or not runs are executed here; the answer is its id, as ``{"id": …}``.

        If it returns a future, the start continues when the future is cancelled.
        """
        ...

    def own(self, registration: Registration) -> Registration:
        """Return the registration of a process so that it is executed by this runner, or others of its kind."""
        ...

    async def submit(self, new: NewTurn) -> None:
        """Submit a turn, once, whether or not runs are executed here."""
        ...

    def has(self, run_id: str) -> bool:
        """Return whether a run is executed here."""
        ...

    @property
    def busy(self) -> int:
        """How many runs must stop before the runner is closed."""
        ...

    def turn_of(self, session_id: str) -> str | None:
        """Return the turn of a session that is executed here, if there is one."""
        ...

    async def quiet(self) -> None:
        """Return once every run here waits, and none is ready: a simulated clock may then advance."""
        ...
