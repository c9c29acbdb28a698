"""A host that delegates to another one and records the requests."""

from __future__ import annotations

from typing import Any

from pylash.durable.effects import Envelope, Outcome, Process
from pylash.durable.ports import (
    Clock,
    EffectController,
    EffectHost,
    LocalExecutor,
    ScopedController,
)
from pylash.durable.run_memory import RunMemory
from pylash.durable.runs import Attached
from pylash.durable.scopes import ExecutionScope
from pylash.durable.waits import OpenWait, Resolution, ResolveOutcome, WaitIdentity, WaitName
from pylash.testing import RecordedEffect


class ObservingHost(EffectHost):
    """Keeps every scope and every envelope, as RecordingHost does, and lets another host do the work."""

    supports_durable_effects = True

    def __init__(self, inner: EffectHost) -> None:
        self.durability = inner.durability
        self.scopes: list[ExecutionScope] = []
        self.effects: list[RecordedEffect] = []
        self._inner = inner

    @property
    def commands(self) -> list[RecordedEffect]:
        """The process commands among the effects."""
        return [one for one in self.effects if one.effect_kind == Process.kind]

    def clear(self) -> None:
        """Forget what was asked for until now."""
        self.scopes.clear()
        self.effects.clear()

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        self.scopes.append(scope)
        inner = self._inner.scoped(scope).controller
        return ScopedController(_Observing(self, scope, inner), scope)

    def adopt(self, attached: Attached, clock: Clock) -> tuple[EffectController, RunMemory]:
        inner, memory = self._inner.adopt(attached, clock)
        return _Observing(self, attached.fence.scope, inner), memory

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

    async def wait(self, key: str, **options: Any) -> Resolution:
        return await self._inner.wait(key, **options)

    async def revoke_waits(self, session_id: str) -> None:
        await self._inner.revoke_waits(session_id)


class _Observing(EffectController):
    supports_durable_effects = True

    def __init__(self, host: ObservingHost, scope: ExecutionScope, inner: EffectController) -> None:
        self.durability = inner.durability
        self._host = host
        self._scope = scope
        self._inner = inner

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        invocation = envelope.invocation
        self._host.effects.append(
            RecordedEffect(
                invocation.scope,
                self._scope,
                invocation.effect_id,
                envelope.command.kind,
                invocation.replay_key,
                envelope.stable_hash(),
            )
        )
        return await self._inner.execute(envelope, local)
