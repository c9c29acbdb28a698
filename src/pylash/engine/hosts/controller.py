"""The durable controller: effects are recorded once and answered from the record ever after.

Rule 1. Same key, same hash: the recorded outcome, and nothing runs. Same key, other hash:
        ``effect_replay_mismatch``. No key: refused.
Rule 2. Performing a new effect costs one write and no read, because the journal was loaded when the run was attached.
        Exceptions: a wait writes when it opens and reads the store after every wake-up; a large outcome is not loaded
        with the journal, and read when it is replayed.
Rule 3. A sleep is recorded as its end and a wait as its wait, before anyone waits: a restart
        waits only for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from pylash.durable.commands import Awaited, ProcessCommand, process_command
from pylash.durable.effects import (
    COMPOSITE,
    AwaitEvent,
    AwaitEventOutcome,
    DurableStep,
    EffectKind,
    Envelope,
    Outcome,
    Process,
    Sleep,
    SleepOutcome,
    is_same_start,
)
from pylash.durable.ports import Cancellation, EffectController, LocalExecutor
from pylash.durable.run_memory import Progress, ProgressOf
from pylash.durable.runs import SECOND, SETTLED, Attached, Fence, JournalEntry
from pylash.durable.scopes import ExecutionScope, ProcessScope, scope_name
from pylash.durable.stores import WaitOpening, WaitStatus
from pylash.durable.waits import (
    RESOLUTIONS,
    Resolution,
    ResolveOutcome,
    WaitIdentity,
    WaitName,
)
from pylash.engine.hosts.forked_effects import is_taken_over
from pylash.engine.hosts.journal_memory import EffectRequest, JournalMemory, effect_request
from pylash.engine.races import sleep_unless, wait_until_done
from pylash.engine.records import WITHDRAWN, answer, check_call, failed, perform, wrapped
from pylash.engine.registry_waits import look
from pylash.values.canonical import encode, first_difference, write
from pylash.values.durations import Duration
from pylash.values.errors import (
    EffectReplayMismatch,
    JournalFull,
    LeaseHeld,
    LeaseLost,
    MissingReplayKey,
    Misuse,
    RunSettled,
    RuntimeEffectLocalExecutorUnavailable,
    RuntimeEffectSleepCancelled,
    StoreClosed,
)
from pylash.values.names import storable

if TYPE_CHECKING:
    from pylash.engine.hosts.journal import JournalHost

WARN_ENTRIES: Final = 5_000
MAX_ENTRIES: Final = 50_000

_log = logging.getLogger("pylash")


class Execution(NamedTuple):
    """One effect that is being executed: its request, the fence of its run, and the receiver of its progress."""

    request: EffectRequest
    fence: Fence
    local: LocalExecutor
    progress: Progress


class HostedController(EffectController):
    """A controller whose waits are those of its host."""

    supports_durable_effects = True

    def __init__(self, host: JournalHost) -> None:
        self.durability = host.durability
        self._host = host

    async def is_same(
        self, scope: ExecutionScope, entry: JournalEntry, request: EffectRequest
    ) -> bool:
        """Return whether an older version recorded this effect, or if its run is a fork, the process that was forked."""
        envelope = request.envelope
        if isinstance(envelope.command, DurableStep):
            older = replace(envelope, command=envelope.command.as_older_versions())
            if effect_request(older, request.key).digest == entry.hash:
                return True
        if not isinstance(scope, ProcessScope):
            return False
        # Read at each such effect: only those whose input has the id of the process, or a key of it.
        record = await self._host.store.processes.get(scope.process_id)
        return record is not None and is_taken_over(
            record.registration, request.canonical, entry.hash, self._host.signer
        )

    async def wait_key(self, scope: ExecutionScope, wait: WaitIdentity) -> str:
        """Return the signed key of a wait: waits are the host's."""
        return await self._host.wait_key(scope, wait)

    async def resolve(
        self, key: str, resolution: Resolution, *, by: str | None = None
    ) -> ResolveOutcome:
        """Answer a wait."""
        return await self._host.resolve(key, resolution, by=by)

    async def wait(
        self, key: str, *, cancel: Cancellation | None = None, timeout: Duration | None = None
    ) -> Resolution:
        """Return how the wait ended."""
        return await self._host.wait(key, cancel=cancel, timeout=timeout)

    async def revoke_waits(self, session_id: str) -> None:
        """Make every key of the session unknown."""
        await self._host.revoke_waits(session_id)


class JournalController(HostedController):
    """The boundary of one scope, over its journal.

    It executes every request: a caller that may be one of several for the same key shares effects in a
    table of its own, as runs and SharedController do.
    """

    def __init__(self, host: JournalHost, scope: ExecutionScope) -> None:
        super().__init__(host)
        self.memory = JournalMemory(host.store.journal, host.clock, host.tasks)
        self._scope = scope
        self._attaching = asyncio.Lock()
        # Set for good when another worker has the run. The host forgets this controller, which then refuses all calls.
        self._lost = False
        # ``times_given_up`` of the membership when the run was last known to be ours. A larger one now means that other
        # workers may have taken the run over.
        self._given_up = host.membership.times_given_up

    async def execute(
        self, envelope: Envelope, local: LocalExecutor, progress_of: ProgressOf | None = None
    ) -> Outcome:
        """Return what the effect returned the first time, or perform it and record it.

        ``progress_of``: returns the receiver of its progress; the default is that of the run.

        Cancellation: safe before ``local`` returns (no outcome is recorded). After that the caller must not cancel it, so
        that the outcome is written: ``Progress.recording`` reports this moment. Runs and SharedController obey it.
        """
        check_call(envelope, local)
        key = envelope.invocation.replay_key
        if not key:
            raise MissingReplayKey(envelope.invocation.effect_id)
        kind, memory = envelope.command.kind, self.memory
        if kind in COMPOSITE:
            return (await perform(envelope, local)).answer(kind)
        request = effect_request(envelope, key)
        attached = memory.attached or await self._attach()
        entry = memory.entries.get(key)
        if entry is not None:
            memory.ask(key)
            if entry.outcome is not None and entry.hash == request.digest:
                return recorded_outcome(entry.outcome, kind)
        # Taken before anything is awaited: the effect of this key is the one that its caller has just begun.
        execution = Execution(
            request, attached.fence, local, (progress_of or memory.progress_of)(key)
        )
        memory.begin(request)
        try:
            # An entry with a size has an outcome, which was too large to load. One without a size is open, and its
            # effect is continued.
            if entry is not None and (entry.size or entry.hash != request.digest):
                execution.progress.recording()
                return await self._stand(entry, request)
            self._check_ownership(attached.fence)
            return await self._route(execution)
        except LeaseLost:
            self._lost = True
            self._host.forget(self._scope, self)
            raise
        finally:
            memory.end(request)

    # --- the record ---

    async def _attach(self) -> Attached:
        """Own our run and load its journal; the first caller does it for all."""
        membership, journal = self._host.membership, self._host.store.journal
        # One caller attaches for all: a second claim would take the run away from the first.
        async with self._attaching:
            if self.memory.attached is not None:
                return self.memory.attached
            try:
                attached = await journal.attach(self._scope, membership.worker)
            except LeaseHeld:
                attached = None
            except LeaseLost:
                if not self._host.is_open:
                    raise StoreClosed from None
                await membership.renew()  # others gave us up: join again
                attached = None
            if attached is None:
                await membership.bury_the_dead()  # its owner may have died this very second
                attached = await journal.attach(self._scope, membership.worker)
            self.memory.attach(attached)
        self._warn_if_long()
        return attached

    def _warn_if_long(self) -> None:
        if len(self.memory.entries) >= WARN_ENTRIES:
            _log.warning(
                "%s has recorded %d effects", scope_name(self._scope), len(self.memory.entries)
            )

    async def _mismatch(self, request: EffectRequest) -> EffectReplayMismatch:
        """Return the error that shows how the recorded command differs."""
        kept = await self._kept(request)
        return EffectReplayMismatch(request.key, first_difference(kept, request.canonical))

    async def _kept(self, request: EffectRequest) -> bytes | None:
        """Return the recorded command under a key; of a long one, only hashes are kept."""
        assert self.memory.attached is not None
        whole = await self._host.store.journal.entry(self.memory.attached.fence.run, request.key)
        return None if whole is None else whole.command

    async def _replay(self, entry: JournalEntry, request: EffectRequest) -> Outcome:
        """Return the recorded outcome, or raise the recorded failure."""
        data = entry.outcome or await self._outcome_of(entry)
        return recorded_outcome(data, request.envelope.command.kind)

    async def _outcome_of(self, entry: JournalEntry) -> bytes:
        """Return a recorded outcome that was too large to be loaded with its journal."""
        assert self.memory.attached is not None
        whole = await self._host.store.journal.entry(self.memory.attached.fence.run, entry.key)
        assert whole is not None
        assert whole.outcome is not None
        return whole.outcome

    # --- executing ---

    def _check_ownership(self, fence: Fence) -> None:
        """Refuse to start what could not be recorded."""
        if not self._host.is_open:
            raise StoreClosed
        if fence.token == SETTLED:
            raise RunSettled(fence.name)
        if self._lost:
            raise LeaseLost(fence.name)

    def _route(self, execution: Execution) -> Coroutine[Any, Any, Outcome]:
        """Choose how the effect is executed."""
        request, fence, local, _ = execution
        if len(self.memory.entries) >= MAX_ENTRIES and request.key not in self.memory.entries:
            raise JournalFull(fence.name, MAX_ENTRIES)
        match request.envelope.command:
            case Sleep() as command:
                local.check(command)
                return self._sleep(execution)
            case AwaitEvent() as command:
                opening = opening_of(command, self._host.name_in(command.key), local.timeout)
                return self._await(execution, opening)
            case Process(command=command):
                if local.processes is None:
                    raise RuntimeEffectLocalExecutorUnavailable(EffectKind.PROCESS)
                return self._process(execution, process_command(command))
            case _:
                return self._perform(execution)

    async def _perform(self, execution: Execution) -> Outcome:
        host, (request, fence, local, progress) = self._host, execution
        # A worker that was paused longer than its lease learns here, before user code acts, whether it was given up.
        if host.membership.lease_is_over and not await host.membership.renew():
            raise LeaseLost(fence.name)
        # Work of a run that another worker has taken over must not begin: it could not be recorded.
        if self._given_up != host.membership.times_given_up:
            await self._check_fence(fence)
        started = self.memory.start_time()
        try:
            performed = await perform(request.envelope, local)
        except asyncio.CancelledError as error:
            if progress.is_stopped or self.memory.is_stopping:
                raise
            performed = failed(error, request.envelope.command.kind)  # it cancelled its own task
        if performed.cause is not None and (progress.is_stopped or self.memory.is_stopping):
            raise asyncio.CancelledError  # it was stopped: how it failed then is no outcome
        # From here on the effect cannot be stopped: its outcome exists, and must be known to the next execution.
        progress.recording()
        entry = request.entry(started, performed.data, host.clock.now())
        record = local.record or host.store.journal.record
        stands = await self.memory.write_with_notes(partial(record, fence, entry))
        # The first row under a key counts: an earlier write whose answer was lost, or a cancel.
        if stands is not entry:
            return await self._stand(stands, request)
        self.memory.entries[request.key] = entry
        return performed.answer(request.envelope.command.kind)

    async def _check_fence(self, fence: Fence) -> None:
        """Look whether the run is still ours: others gave this worker up since we attached it."""
        # Read before the store is called: if we are given up during the read, the next effect checks again.
        given_up = self._host.membership.times_given_up
        found = await self._host.store.runs.wake_seqs([fence.run])
        if found.get(fence.run, (0, -1))[1] != fence.token:
            raise LeaseLost(fence.name)
        self._given_up = given_up

    async def _stand(self, entry: JournalEntry, request: EffectRequest) -> Outcome:
        """Keep the entry that the store has under our key, and answer with it."""
        self.memory.entries[request.key] = entry
        if entry.hash != request.digest and not await self.is_same(self._scope, entry, request):
            kept = await self._kept(request)
            if kept is None or not is_same_start(kept, request.canonical):
                raise EffectReplayMismatch(request.key, first_difference(kept, request.canonical))
        return await self._replay(entry, request)

    async def _sleep(self, execution: Execution) -> Outcome:
        clock, journal = self._host.clock, self._host.store.journal
        request, fence, local, progress = execution
        command = request.envelope.command
        assert isinstance(command, Sleep)
        entry = self.memory.entries.get(request.key)
        if entry is None:
            begun = request.entry(self.memory.start_time())
            begin = partial(journal.begin_sleep, fence, begun, command.duration_ms * 1000)
            stands = await self.memory.write_with_notes(begin)
            entry, now = stands
            self.memory.entries[request.key] = entry
            if entry.hash != request.digest:
                raise await self._mismatch(request)
        else:
            now = self.memory.now()
        assert entry.due is not None
        if entry.due <= now:  # it is over, even if a cancel came after that
            return SleepOutcome()
        progress.rest(entry.due)
        try:
            await sleep_unless(clock, (entry.due - now) / SECOND, local.cancel)
        except RuntimeEffectSleepCancelled as error:
            # ``stir`` first: it makes an idle run busy, so that it is not parked during the write. ``recording`` does not.
            progress.stir()
            progress.recording()
            data = failed(error, command.kind).data
            ended = replace(entry, outcome=data, size=len(data), ended=clock.now())
            return await self._stand(await journal.close(fence, ended), request)
        return SleepOutcome()

    async def _await(self, execution: Execution, opening: WaitOpening) -> Outcome:
        request, fence, local, progress = execution
        waits = self._host.store.waits

        async def open_wait() -> WaitStatus:
            entry = request.entry(self.memory.start_time())
            open_for = partial(waits.open_for, fence, entry, opening)
            stands, status = await self.memory.write_with_notes(open_for)
            # Open until the wait has returned below: an entry with an outcome is answered from memory.
            self.memory.entries[request.key] = replace(stands, outcome=None, size=0)
            if stands.hash != request.digest:
                raise await self._mismatch(request)
            if status.terminal is None and not status.revoked:
                if local.opened is not None:
                    local.opened()
                # Only now: a run that rests may be parked, and it is the stored wait that wakes it then. A wait whose time
                # is over does not rest: the run would be parked, and claimed again at once, before the end is written.
                rest = status.remaining
                if rest is None or rest > 0:
                    progress.rest(None if rest is None else self.memory.now() + rest)
            return status

        async def late() -> WaitStatus:
            status = await waits.expire(opening.name)
            # From the recorded entry and not from ``opening``: other code may have started the effect.
            is_limited = self.memory.entries[request.key].due is not None
            if status.terminal is None and not status.revoked and is_limited:
                status = await waits.leave(fence, request.key, opening.name)
            return status

        resolution = await self._host.live.wait(
            opening.name, open_wait(), local.cancel, fence, progress.stir, late
        )
        data = encode(resolution)
        opened = self.memory.entries[request.key]
        self.memory.entries[request.key] = replace(opened, outcome=data, size=len(data))
        return AwaitEventOutcome(RESOLUTIONS.decode(data))

    # --- processes ---

    async def _process(self, execution: Execution, command: ProcessCommand) -> Outcome:
        """Execute a command of the registry and record it at once, or wait for its event."""
        request, fence, _, progress = execution
        processes, clock = self._host.store.processes, self._host.clock
        opening = request.entry(self.memory.start_time())
        try:
            if isinstance(command, Awaited):
                return await self._happened(execution, command)
            progress.recording()
            closing = replace(opening, ended=clock.now())
            work = partial(processes.perform_for, fence, closing, command, wrapped)
            entry = await self.memory.write_with_notes(work)
        except Misuse as error:  # the registry refused, and nothing was written
            progress.recording()
            data = failed(error, request.envelope.command.kind).data
            refusal = replace(opening, outcome=data, size=len(data), ended=clock.now())
            record = partial(self._host.store.journal.record, fence, refusal)
            entry = await self.memory.write_with_notes(record)
            # ``record`` has written nothing, as the opening of the wait was the first row under the key.
            if not entry.size:  # it is open: the refusal came after the wait had begun
                entry = await self._host.store.journal.close(fence, refusal)
        return await self._stand(entry, request)

    async def _happened(self, execution: Execution, command: Awaited) -> Outcome:
        """Wait until a signal has come, or another run has ended."""
        request, fence, local, progress = execution
        opening = request.entry(self.memory.start_time())
        look_once = partial(look, self._host.store, fence, opening, command, local.timeout)
        while True:
            # The bell is taken before the look, so that a wake-up in between is not missed.
            bell = self.memory.bell(progress)
            try:
                entry, remaining = await self.memory.write_with_notes(look_once)
                if entry.size:
                    return await self._stand(entry, request)
                self.memory.entries[request.key] = entry
                if entry.hash != request.digest:
                    raise await self._mismatch(request)
                # A bell that has rung made the effect busy: it must read the store again before it rests.
                if not bell.done():
                    progress.rest(entry.due)
                await wait_until_done(bell, self._host.clock, remaining)
            finally:
                self.memory.drop_bell(bell)
            progress.stir()


def opening_of(command: AwaitEvent, name: WaitName, timeout: int | None) -> WaitOpening:
    """Return how the wait of a command is opened; ``timeout`` is in microseconds."""
    return WaitOpening(
        name=name,
        kind=command.wait_kind,
        title=storable(command.title),
        tool=None if command.tool is None else storable(command.tool),
        arguments=None if command.arguments is None else write(command.arguments),
        timeout=timeout,
        within=None if command.within_ms is None else command.within_ms * 1000,
        schema=None if command.schema is UNSET else write(command.schema),
    )


def recorded_outcome(data: bytes, kind: EffectKind) -> Outcome:
    """Return the outcome in a record, or raise the failure in it."""
    if kind is EffectKind.AWAIT_EVENT and not data.startswith(WITHDRAWN):
        return AwaitEventOutcome(RESOLUTIONS.decode(data))
    return answer(data, kind)
