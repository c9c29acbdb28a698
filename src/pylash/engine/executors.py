"""Local executors: what runs an effect in this process when nothing is recorded for it.

Rule 1. An executor refuses commands that are not its own, before it does anything.
Rule 2. Sleeps and waits belong to the controller; an executor only says how they may be cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from pylash.durable.effects import (
    Command,
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    Outcome,
    Sleep,
    SleepOutcome,
)
from pylash.durable.ports import (
    Cancellation,
    Clock,
    MessageCarrier,
    RecordEffect,
    RegistryWork,
)
from pylash.engine.races import sleep_unless
from pylash.engine.system import SystemClock
from pylash.engine.user_code import call_function
from pylash.values.durations import Duration, micros
from pylash.values.errors import (
    RuntimeEffectLocalExecutorMismatch,
    RuntimeEffectLocalExecutorUnavailable,
)

Perform = Callable[[Envelope], Awaitable[Outcome]]
"""Runs one envelope's command."""

_CLOCK = SystemClock()

_EVERYTHING = frozenset(EffectKind)
_SLEEP = frozenset({EffectKind.SLEEP})
_TURN = frozenset(
    {
        EffectKind.LLM_CALL,
        EffectKind.TOOL_BATCH,
        EffectKind.EXEC_CODE,
        EffectKind.CHECKPOINT,
        EffectKind.SYNC_EXECUTION_ENVIRONMENT,
    }
)
_TOOL = frozenset({EffectKind.TOOL_BATCH, EffectKind.TOOL_ATTEMPT})
_DIRECT = frozenset({EffectKind.DIRECT})
_STEP = frozenset({EffectKind.DURABLE_STEP})


class Executor(msgspec.Struct):
    """Runs the commands of its kinds.

    ``cancel`` ends its sleeps and waits, ``timeout`` its waits; ``opened`` is called when a wait can be answered. ``clock``
    times its sleeps on a host that records nothing; None leaves that to the host.
    """

    name: str
    kinds: frozenset[EffectKind]
    perform: Perform
    cancel: Cancellation | None = None
    timeout: int | None = None
    clock: Clock | None = None
    processes: RegistryWork | None = None
    record: RecordEffect | None = None
    messages: MessageCarrier | None = None
    opened: Callable[[], None] | None = None

    def check(self, command: Command) -> None:
        """Refuse a command that is not this executor's."""
        if command.kind not in self.kinds:
            raise RuntimeEffectLocalExecutorMismatch(self.name, command.kind)

    async def execute(self, envelope: Envelope) -> Outcome:
        """Run envelope's command."""
        command = envelope.command
        self.check(command)
        if isinstance(command, Sleep) and self.kinds is not _EVERYTHING:
            await sleep_unless(self.clock or _CLOCK, command.duration_ms / 1000, self.cancel)
            return SleepOutcome()
        return await self.perform(envelope)


def step_executor(run: Callable[[Any], Any]) -> Executor:
    """Return an executor that runs a durable step: ``run`` takes the step's input.

    A plain function runs in a thread, so that it does not hold up the event loop.
    """

    async def perform(envelope: Envelope) -> Outcome:
        assert isinstance(envelope.command, DurableStep)  # the executor takes no other
        return DurableStepOutcome(await call_function(run, (envelope.command.input,), {}))

    return Executor("step", _STEP, perform)


def sleep_executor(cancel: Cancellation | None = None, clock: Clock | None = None) -> Executor:
    """Return an executor that only sleeps."""
    return Executor("sleep", _SLEEP, _unavailable, cancel, clock=clock)


def await_options(cancel: Cancellation | None = None, timeout: Duration | None = None) -> Executor:
    """Return how a wait may end early; it runs nothing itself."""
    late = None if timeout is None else micros(timeout)
    return Executor("await options", frozenset(), _unavailable, cancel, late)


def process_executor(
    processes: RegistryWork | None = None, timeout: Duration | None = None
) -> Executor:
    """Return the executor of process commands: it runs nothing itself, the controller asks the registry.

    ``processes`` does it for controllers that have no registry of their own.
    """
    late = None if timeout is None else micros(timeout)
    return Executor("process", frozenset(), _unavailable, timeout=late, processes=processes)


def turn_executor(
    perform: Perform,
    cancel: Cancellation | None = None,
    clock: Clock | None = None,
    *,
    record: RecordEffect | None = None,
    messages: MessageCarrier | None = None,
) -> Executor:
    """Return an executor of a turn's commands, and its sleeps; ``record`` writes an effect with its message."""
    kinds = _TURN | _SLEEP
    return Executor("turn", kinds, perform, cancel, clock=clock, record=record, messages=messages)


def tool_executor(
    perform: Perform, record: RecordEffect | None = None, messages: MessageCarrier | None = None
) -> Executor:
    """Return an executor of tool batches and attempts; ``record`` writes an attempt with its message."""
    return Executor("tool", _TOOL, perform, record=record, messages=messages)


def direct_executor(perform: Perform, clock: Clock | None = None) -> Executor:
    """Return an executor of direct completions, and their sleeps."""
    return Executor("direct", _DIRECT | _SLEEP, perform, clock=clock)


def any_executor(perform: Perform) -> Executor:
    """Return an executor that takes any command, for tests."""
    return Executor("testing", _EVERYTHING, perform)


class UnavailableExecutor:
    """Refuses everything: there is nothing here that could run an effect."""

    cancel: Cancellation | None = None
    timeout: int | None = None
    processes: RegistryWork | None = None
    record: RecordEffect | None = None
    messages: MessageCarrier | None = None
    opened: Callable[[], None] | None = None

    def check(self, command: Command) -> None:
        """Refuse."""
        raise RuntimeEffectLocalExecutorUnavailable(command.kind)

    async def execute(self, envelope: Envelope) -> Outcome:
        """Refuse."""
        raise RuntimeEffectLocalExecutorUnavailable(envelope.command.kind)


async def _unavailable(envelope: Envelope) -> Outcome:
    raise RuntimeEffectLocalExecutorUnavailable(envelope.command.kind)
