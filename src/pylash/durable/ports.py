"""The ports of the running half: the world, and effect hosts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from pylash.durable.effects import Command, Envelope, Outcome
from pylash.durable.runs import (
    Instant,
)
from pylash.durable.scopes import ExecutionScope, checked_scope, turn_of
from pylash.durable.waits import (
    UNKNOWN_OR_REVOKED,
    Resolution,
    ResolveOutcome,
    WaitIdentity,
)
from pylash.values import AwaitEventUnsupported, Duration

# --- the world ---


@runtime_checkable
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
