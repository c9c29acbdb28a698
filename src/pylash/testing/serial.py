"""A host that executes one effect at a time and has no look-ahead, like an engine that replays by position."""

from __future__ import annotations

from pylash.durable.effects import Envelope, Outcome
from pylash.durable.machines.replay_order import ReplayOrder
from pylash.durable.ports import (
    Cancellation,
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
from pylash.values.arguments import check_type
from pylash.values.durations import Duration


class SerialHost(EffectHost):
    """Wraps a host so that each run executes one effect at a time and cannot tell in advance what is recorded.

    An effect that starts while another effect of the same run is executed raises an AssertionError.

    >>> app = Lash("sqlite:///agents.db", host=SerialHost)
    """

    supports_concurrent_effects = False

    def __init__(self, inner: EffectHost) -> None:
        check_type("SerialHost", "inner", inner, EffectHost, "an EffectHost")
        self.durability = inner.durability
        self.supports_durable_effects = inner.supports_durable_effects
        self.requires_durable_attachment_store = inner.requires_durable_attachment_store
        self.gives_static_scopes = inner.gives_static_scopes
        self._inner = inner

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        """Return a controller of the wrapped host that takes one effect at a time."""
        return ScopedController(_SerialController(self._inner.scoped(scope).controller), scope)

    def adopt(self, attached: Attached, clock: Clock) -> tuple[EffectController, RunMemory]:
        """Return the controller of a claimed run, and its memory without look-ahead."""
        controller, memory = self._inner.adopt(attached, clock)
        return _SerialController(controller), _PositionalMemory(memory)

    def sign(self, name: WaitName) -> str:
        """Return the key of a wait."""
        return self._inner.sign(name)

    def name_in(self, key: str) -> WaitName:
        """Return the wait that a key names."""
        return self._inner.name_in(key)

    async def open_waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits of the wrapped host."""
        return await self._inner.open_waits(session_id)

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait."""
        return await self._inner.wait_key(scope, wait)

    async def resolve(
        self, key: str, resolution: Resolution, *, by: str | None = None
    ) -> ResolveOutcome:
        """Resolve a wait."""
        return await self._inner.resolve(key, resolution, by=by)

    async def wait(
        self, key: str, *, cancel: Cancellation | None = None, timeout: Duration | None = None
    ) -> Resolution:
        """Return the resolution of a wait."""
        return await self._inner.wait(key, cancel=cancel, timeout=timeout)

    async def revoke_waits(self, session_id: str) -> None:
        """Revoke every wait key of a session."""
        await self._inner.revoke_waits(session_id)


class _SerialController(EffectController):
    """Refuses a second effect while one is executed."""

    supports_concurrent_effects = False

    def __init__(self, inner: EffectController) -> None:
        self.durability = inner.durability
        self.supports_durable_effects = inner.supports_durable_effects
        self.requires_durable_attachment_store = inner.requires_durable_attachment_store
        self._inner = inner
        self._executing: str | None = None

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        name = envelope.invocation.effect_id
        if self._executing is not None:
            reason = "this host takes one effect at a time"
            raise AssertionError(
                f"Effect {name!r} began while {self._executing!r} was executed: {reason}."
            )
        self._executing = name
        try:
            return await self._inner.execute(envelope, local)
        finally:
            self._executing = None


class _PositionalMemory:
    """A memory that knows no key ahead: ``begun`` and ``recorded`` are always False. It knows whether the run is replayed."""

    looks_ahead = False
    replays_wakes = False

    def __init__(self, inner: RunMemory) -> None:
        self._inner = inner
        self.record_of, self.decision, self.note = inner.record_of, inner.decision, inner.note
        self.entries_for = inner.entries_for
        self.deliver, self.withdraw = inner.deliver, inner.withdraw
        self.observe, self.wake = inner.observe, inner.wake
        self.open_waits, self.now = inner.open_waits, inner.now

    @property
    def is_replaying(self) -> bool:
        return self._inner.is_replaying

    @property
    def replay(self) -> ReplayOrder | None:
        return self._inner.replay

    @property
    def cancels_tasks(self) -> bool:
        return self._inner.cancels_tasks

    @property
    def is_stopping(self) -> bool:
        return self._inner.is_stopping

    async def take_patch(self, key: str) -> bool:
        """Take a patch as the journal does."""
        return await self._inner.take_patch(key)

    def begun(self, key: str) -> bool:  # noqa: ARG002 - as for all keys
        return False

    def recorded(self, key: str) -> bool:  # noqa: ARG002 - as for all keys
        return False
