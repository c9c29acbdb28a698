"""A host that takes one effect at a time, as a distributed engine may."""

from __future__ import annotations

from pylash.durable import (
    Cancellation,
    EffectController,
    EffectHost,
    Envelope,
    ExecutionScope,
    LocalExecutor,
    Outcome,
    Resolution,
    ResolveOutcome,
    ScopedController,
    WaitIdentity,
)
from pylash.runtime import InlineHost
from pylash.values import Duration
from tests.backends import OpenedHost


class SerialController(EffectController):
    """Fails at once if a second effect is started while one is running."""

    supports_durable_effects = True
    supports_concurrent_effects = False

    def __init__(self, inner: EffectController) -> None:
        self.durability = inner.durability
        self._inner = inner
        self._running: str | None = None

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        name = envelope.invocation.effect_id
        assert self._running is None, f"{name} overlaps {self._running} on a serial host"
        self._running = name
        try:
            return await self._inner.execute(envelope, local)
        finally:
            self._running = None


class SerialHost(EffectHost):
    """A host whose controllers take one effect at a time."""

    supports_durable_effects = True
    supports_concurrent_effects = False

    def __init__(self, inner: OpenedHost | InlineHost) -> None:
        self.durability = inner.durability
        self._inner = inner

    async def reopen(self) -> SerialHost:
        assert isinstance(self._inner, OpenedHost)
        reopened = await self._inner.reopen()
        assert isinstance(reopened, OpenedHost)
        return SerialHost(reopened)

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        return ScopedController(SerialController(self._inner.scoped(scope).controller), scope)

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        return await self._inner.wait_key(scope, wait)

    async def resolve(
        self, key: str, resolution: Resolution, *, by: str | None = None
    ) -> ResolveOutcome:
        return await self._inner.resolve(key, resolution, by=by)

    async def wait(
        self, key: str, *, cancel: Cancellation | None = None, timeout: Duration | None = None
    ) -> Resolution:
        return await self._inner.wait(key, cancel=cancel, timeout=timeout)

    async def revoke_waits(self, session_id: str) -> None:
        await self._inner.revoke_waits(session_id)
