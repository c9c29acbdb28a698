"""A host that keeps the effects it was given, for tests of code that uses the boundary."""

from __future__ import annotations

from dataclasses import dataclass

from pylash.durable.effects import (
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    Outcome,
    RuntimeScope,
    Sleep,
    SleepOutcome,
)
from pylash.durable.ports import EffectController, EffectHost, LocalExecutor, ScopedController
from pylash.durable.scopes import ExecutionScope
from pylash.values.errors import RecordingEffectHostUnsupportedCommand


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """One envelope the host was given."""

    runtime_scope: RuntimeScope
    execution_scope: ExecutionScope
    effect_id: str
    effect_kind: EffectKind
    replay_key: str | None
    envelope_hash: str


class RecordingHost(EffectHost):
    """Keeps every scope and every envelope; sleeps end at once, and steps return their input.

    >>> host = RecordingHost()
    >>> host.scopes, host.effects
    ([], [])
    """

    def __init__(self) -> None:
        self.scopes: list[ExecutionScope] = []
        self.effects: list[RecordedEffect] = []

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        """Return a controller that records into this host."""
        scoped = ScopedController(_RecordingController(self, scope), scope)
        self.scopes.append(scope)
        return scoped


class _RecordingController(EffectController):
    def __init__(self, host: RecordingHost, scope: ExecutionScope) -> None:
        self._host = host
        self._scope = scope

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:  # noqa: ARG002 - nothing runs
        invocation, command = envelope.invocation, envelope.command
        self._host.effects.append(
            RecordedEffect(
                invocation.scope,
                self._scope,
                invocation.effect_id,
                command.kind,
                invocation.replay_key,
                envelope.stable_hash(),
            )
        )
        match command:
            case Sleep():
                return SleepOutcome()
            case DurableStep():
                return DurableStepOutcome(command.input)
            case _:
                raise RecordingEffectHostUnsupportedCommand(command.kind)
