"""The inline host: effects run in this process and nothing is recorded.

Its outcomes, failures and waits are those of the durable hosts, so that code written against it works on them; but its
waits live in memory and end with the process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from pylash.durable.commands import Awaited, process_command
from pylash.durable.effects import (
    AwaitEvent,
    AwaitEventOutcome,
    Envelope,
    Outcome,
    Process,
    Sleep,
    SleepOutcome,
)
from pylash.durable.ports import (
    Cancellation,
    Clock,
    EffectController,
    EffectHost,
    Entropy,
    LocalExecutor,
    ScopedController,
)
from pylash.durable.run_memory import NullMemory
from pylash.durable.runs import Attached, Instant
from pylash.durable.scopes import ExecutionScope, session_of
from pylash.durable.waits import (
    ACCEPTED,
    UNKNOWN_OR_REVOKED,
    Cancelled,
    OpenWait,
    Resolution,
    ResolveOutcome,
    Signer,
    Timeout,
    WaitIdentity,
    WaitName,
    check_answer,
    checked_resolution,
)
from pylash.engine.executors import Executor
from pylash.engine.hosts.registry_work import perform_registry_work
from pylash.engine.races import cancelled_first, sleep_unless, wait_until_done
from pylash.engine.records import check_call, perform
from pylash.engine.system import SystemClock, system_entropy
from pylash.tasks import TaskOwner
from pylash.values.durations import Duration, micros
from pylash.values.errors import AwaitEventUnknownOrRevoked


class MemoryWaits:
    """Waits that end with the process."""

    def __init__(self, entropy: Entropy) -> None:
        self._signer = Signer([entropy(32)])
        # How often the waits of a session were revoked. A key of an earlier generation is unknown.
        self._generations: Counter[str | None] = Counter()
        # Created by the first waiter or the first answer, and kept: a later answer finds that it is late.
        self._ends: dict[tuple[str | None, str], asyncio.Future[Resolution]] = {}
        # By key. Tasks that wait under one key share the entry, and the first of them to stop waiting removes it.
        self.open: dict[str, OpenWait] = {}
        # The JSON Schemas of the answers to open waits, by key.
        self._schemas: dict[str, Any] = {}

    @contextmanager
    def shown(self, command: AwaitEvent, now: Instant, timeout: int | None) -> Iterator[None]:
        """Show a wait to people for as long as it is open."""
        name = self.name_in(command.key)
        deadline = None if timeout is None else Instant(now + timeout)
        kind, title = command.wait_kind, command.title
        self.open[command.key] = OpenWait(
            name, kind, title, command.tool, command.arguments, now, deadline, command.key
        )
        if command.schema is not UNSET:
            self._schemas[command.key] = command.schema
        try:
            yield
        finally:
            self.open.pop(command.key, None)
            self._schemas.pop(command.key, None)

    def key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait."""
        return self._signer.key(scope, wait, self._generations[session_of(scope)])

    def sign(self, name: WaitName) -> str:
        """Return the key of a wait; one whose session's waits were revoked here gets a new generation."""
        return self._signer.sign(
            replace(
                name, generation=max(name.generation, self._generations[session_of(name.scope)])
            )
        )

    def resolve(self, key: str, resolution: Resolution) -> ResolveOutcome:
        """End a wait, once."""
        resolution = checked_resolution(resolution)
        name = self._valid(key)
        if name is None:
            return UNKNOWN_OR_REVOKED
        end = self._end(name)
        # Nothing is awaited between this check and ``set_result``, so exactly one answer is the first.
        if end.done():
            return ResolveOutcome("already_resolved", end.result())
        check_answer(resolution, self._schemas.get(key))
        end.set_result(resolution)
        return ACCEPTED

    async def wait(
        self,
        key: str,
        clock: Clock,
        cancel: Cancellation | None,
        timeout: int | None,
        within: int | None = None,
    ) -> Resolution:
        """Return how a wait ended; after ``within`` it may be still open."""
        name = self._valid(key)
        if name is None:
            raise AwaitEventUnknownOrRevoked
        end = self._end(name)
        # A cancel and a deadline are answers too: each does nothing if another answer was first.
        # The key was checked above and not again: a revocation meanwhile has ended the future with an exception.
        # If the time of this waiter ends first, the wait stays open: nothing is resolved.
        leaves = within is not None and (timeout is None or within < timeout)
        if not end.done():
            waiting = wait_until_done(end, clock, within if leaves else timeout)
            if await cancelled_first(waiting, cancel):
                self.resolve(key, Cancelled())
        if not end.done() and leaves:
            return Timeout(still_open=True)
        if not end.done():
            self.resolve(key, Timeout())
        return end.result()

    def revoke(self, session_id: str) -> None:
        """Make the session's keys unknown, and wake the tasks that wait for one."""
        self._generations[session_id] += 1
        # An end that is there stays: a task that has its answer and did not run yet gets it.
        for wait, end in tuple(self._ends.items()):
            if not end.done() and wait[0] == session_id:
                end.set_exception(AwaitEventUnknownOrRevoked())
                end.exception()  # marks it as retrieved: perhaps no task waits

    def name_in(self, key: str) -> WaitName:
        """Return the wait that key names, or refuse a key that is not ours."""
        name = self._valid(key)
        if name is None:
            raise AwaitEventUnknownOrRevoked
        return name

    def _valid(self, key: str) -> WaitName | None:
        name = self._signer.name(key)
        if name is None or name.generation < self._generations[session_of(name.scope)]:
            return None
        return name

    def _end(self, name: WaitName) -> asyncio.Future[Resolution]:
        wait = (session_of(name.scope), name.id)
        if wait not in self._ends:
            self._ends[wait] = asyncio.get_running_loop().create_future()
        return self._ends[wait]


class InlineController(EffectController):
    """Runs effects at once. ``memory`` is that of the run whose effects they are, if they are a run's."""

    supports_durable_effects = True

    def __init__(
        self,
        waits: MemoryWaits,
        clock: Clock,
        tasks: TaskOwner,
        memory: NullMemory | None = None,
    ) -> None:
        # The waits and the tasks are those of the host, shared by all its controllers: an answer from outside finds the
        # wait of any run, and registry work continues after the run that requested it has ended.
        self._waits = waits
        self._clock = clock
        self._tasks = tasks
        self._memory = memory

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        """Run the effect; nothing is recorded."""
        command = envelope.command
        # Registry work that a step or tool asks for is not a part of it: it is an effect of another scope.
        check_call(envelope, local, nested=isinstance(command, Process))
        envelope.canonical()  # what a durable host could not record is refused here too
        match command:
            case Sleep(duration_ms=duration):
                local.check(command)
                with self._resting(envelope):
                    await sleep_unless(
                        _clock_of(local) or self._clock, duration / 1000, local.cancel
                    )
                return SleepOutcome()
            case AwaitEvent(key=key, within_ms=within_ms):
                with self._waits.shown(command, self._clock.now(), local.timeout):
                    # It is among the open waits by now: what the callback announces can be answered at once.
                    if local.opened is not None:
                        local.opened()
                    with self._resting(envelope):
                        within = None if within_ms is None else within_ms * 1000
                        waiting = self._waits.wait(
                            key, self._clock, local.cancel, local.timeout, within
                        )
                        return AwaitEventOutcome(await waiting)
            case Process():
                is_wait = local.processes is not None and isinstance(
                    process_command(command.command), Awaited
                )
                # Any other command is work until the registry has answered, also if its caller is cancelled.
                with self._resting(envelope) if is_wait else nullcontext():
                    return await perform_registry_work(self._tasks, command, local)
            case _:
                return (await perform(envelope, local)).answer(command.kind)

    @contextmanager
    def _resting(self, envelope: Envelope) -> Iterator[None]:
        """Report an effect that only waits as such: a simulated clock advances once all effects only wait."""
        key = envelope.invocation.replay_key
        if self._memory is None or key is None:
            yield
            return
        # Taken when the effect begins: after it was stopped, the key may belong to another effect.
        progress = self._memory.progress_of(key)
        progress.rest()
        try:
            yield
        finally:
            # Also when its task is cancelled: a clock must not go on while the code of the run unwinds.
            progress.stir()

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait."""
        return self._waits.key(scope, wait)

    async def resolve(
        self,
        key: str,
        resolution: Resolution,
        *,
        by: str | None = None,  # noqa: ARG002 - nothing is kept
    ) -> ResolveOutcome:
        """Answer a wait."""
        return self._waits.resolve(key, resolution)

    async def wait(
        self, key: str, *, cancel: Cancellation | None = None, timeout: Duration | None = None
    ) -> Resolution:
        """Return how the wait ended."""
        late = None if timeout is None else micros(timeout)
        return await self._waits.wait(key, self._clock, cancel, late)

    async def revoke_waits(self, session_id: str) -> None:
        """Make the session's keys unknown."""
        self._waits.revoke(session_id)


def _clock_of(local: LocalExecutor) -> Clock | None:
    """Return the clock that the sleeps of an executor were given, if any."""
    return local.clock if isinstance(local, Executor) else None


class InlineHost(InlineController, EffectHost):
    """Hands out controllers that run effects at once and record nothing.

    Sleeps and waits are timed by ``clock``. Without one the runs of an app use the app's clock.

    >>> host = InlineHost()
    >>> host.durability
    <DurabilityTier.INLINE: 'inline'>
    """

    def __init__(self, clock: Clock | None = None, entropy: Entropy = system_entropy) -> None:
        super().__init__(MemoryWaits(entropy), clock or SystemClock(), TaskOwner())
        self._given_clock = clock

    def sign(self, name: WaitName) -> str:
        """Return the key of a wait."""
        return self._waits.sign(name)

    def name_in(self, key: str) -> WaitName:
        """Return the wait that key names, or refuse a key of another host."""
        return self._waits.name_in(key)

    async def open_waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits, each with the key that answers it."""
        waits = self._waits.open.values()
        return [one for one in waits if session_id in (None, session_of(one.name.scope))]

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        """Return a controller for scope: the host itself, which keeps nothing by scope."""
        return ScopedController(self, scope)

    def adopt(self, attached: Attached, clock: Clock) -> tuple[InlineController, NullMemory]:  # noqa: ARG002 - nothing is recorded
        """Return the controller of a run that a worker has claimed, and its memory."""
        # One memory for each execution, because the receivers of progress belong to the machine of one.
        memory, timed_by = NullMemory(clock), self._given_clock or clock
        return InlineController(self._waits, timed_by, self._tasks, memory), memory
