"""A host that takes one effect at a time, as a distributed engine may."""

from __future__ import annotations

from pylash.durable.effects import Envelope, Outcome
from pylash.durable.ports import (
    Cancellation,
    EffectController,
    EffectHost,
    LocalExecutor,
    ScopedController,
)
from pylash.durable.scopes import ExecutionScope
from pylash.durable.waits import OpenWait, Resolution, ResolveOutcome, WaitIdentity, WaitName
from pylash.engine.hosts.inline import InlineHost
from pylash.values.durations import Duration
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

    def sign(self, name: WaitName) -> str:
        return self._inner.sign(name)

    def name_in(self, key: str) -> WaitName:
        return self._inner.name_in(key)

    async def open_waits(self, session_id: str | None = None) -> list[OpenWait]:
        return await self._inner.open_waits(session_id)

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
