"""The durable controller: effects are recorded once and answered from the record ever after.

Rule 1. Same key, same hash: the recorded outcome, and nothing runs. Same key, other hash:
        ``effect_replay_mismatch``. No key: refused.
Rule 2. Executing an effect costs no read and one write; the journal was loaded when the run was
        attached.
Rule 3. A sleep is recorded as its end and a wait as its wait, before anyone waits: a restart
        waits only for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from pylash.durable import (
    COMPOSITE,
    RESOLUTIONS,
    SECOND,
    SETTLED,
    Attached,
    AwaitEvent,
    AwaitEventOutcome,
    AwaitProcess,
    AwaitTurn,
    Cancellation,
    EffectController,
    EffectKind,
    Envelope,
    ExecutionScope,
    Fence,
    JournalEntry,
    LocalExecutor,
    Outcome,
    Process,
    ProcessCommand,
    Resolution,
    ResolveOutcome,
    Sleep,
    SleepOutcome,
    Store,
    WaitIdentity,
    WaitOpening,
    WaitSignal,
    WaitStatus,
    process_command,
    scope_name,
)
from pylash.runtime.executors import rung_in_time, sleep_unless
from pylash.runtime.flights import Flight
from pylash.runtime.journal_state import Asked, JournalState, asked_of
from pylash.runtime.records import WITHDRAWN, answer, check_call, failed, perform, wrapped
from pylash.values import (
    Duration,
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
    encode,
    first_difference,
    storable,
    write,
)

if TYPE_CHECKING:
    from pylash.runtime.journal import JournalHost

WARN_ENTRIES: Final = 5_000
MAX_ENTRIES: Final = 50_000

Awaited = WaitSignal | AwaitProcess | AwaitTurn
"""What the registry is asked for that may not have happened yet."""

_log = logging.getLogger("pylash")


class JournalController(JournalState, EffectController):
    """The boundary of one scope, over its journal."""

    supports_durable_effects = True

    def __init__(self, host: JournalHost, scope: ExecutionScope) -> None:
        super().__init__(host.store.journal, host.clock)
        self.durability = host.durability
        self._host = host
        self._scope = scope
        self._attaching = asyncio.Lock()
        self._lost = False
        self._given_up = host.membership.times_given_up

    @property
    def is_stopping(self) -> bool:
        """Whether tasks here are cancelled because the host closes or the event loop ends."""
        return self._host.tasks.is_stopping

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        """Return what the effect returned the first time, or perform it and record it.

        Cancellation: safe before ``local`` returns (nothing is recorded); after it, the record
        is written all the same.
        """
        check_call(envelope, local)
        key = envelope.invocation.replay_key
        if not key:
            raise MissingReplayKey(envelope.invocation.effect_id)
        kind = envelope.command.kind
        if kind in COMPOSITE:
            return (await perform(envelope, local)).answer(kind)
        asked = asked_of(envelope, key)
        attached = self._attached or await self._attach()
        entry = self._entries.get(key)
        if entry is not None:
            self.unread.discard(key)
            if entry.outcome is not None and entry.hash == asked.digest:
                return _recorded(entry.outcome, kind)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._take_off(asked, entry, attached.fence, local)
        elif flight.digest != asked.digest:
            raise EffectReplayMismatch(key, first_difference(flight.canonical, asked.canonical))
        return await flight.join()

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

    # --- the record ---

    async def _attach(self) -> Attached:
        """Own our run and load its journal; whoever comes first does it for all."""
        membership, journal = self._host.membership, self._host.store.journal
        async with self._attaching:
            if self._attached is not None:
                return self._attached
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
            self._attached_at = self._host.clock.monotonic()
            self._entries = dict(attached.entries)
            self._attached = attached
        self._warn_if_long()
        return attached

    def _warn_if_long(self) -> None:
        if len(self._entries) >= WARN_ENTRIES:
            _log.warning("%s has recorded %d effects", scope_name(self._scope), len(self._entries))

    async def _mismatch(self, asked: Asked) -> EffectReplayMismatch:
        """Say what was recorded under the key instead."""
        assert self._attached is not None
        whole = await self._host.store.journal.entry(self._attached.fence.run, asked.key)
        kept = None if whole is None else whole.command
        return EffectReplayMismatch(asked.key, first_difference(kept, asked.canonical))

    async def _replay(self, entry: JournalEntry, asked: Asked) -> Outcome:
        """Return the recorded outcome, or raise the recorded failure."""
        data = entry.outcome or await self._outcome_of(entry)
        return _recorded(data, asked.envelope.command.kind)

    async def _outcome_of(self, entry: JournalEntry) -> bytes:
        """Return a recorded outcome that was too large to be loaded with its journal."""
        assert self._attached is not None
        whole = await self._host.store.journal.entry(self._attached.fence.run, entry.key)
        assert whole is not None
        assert whole.outcome is not None
        return whole.outcome

    def detach(self) -> None:
        """Let everyone go who still waits for an effect: the host has closed."""
        for flight in tuple(self._flights.values()):
            flight.abandon()

    # --- the flight ---

    def _take_off(
        self, asked: Asked, entry: JournalEntry | None, fence: Fence, local: LocalExecutor
    ) -> Flight:
        """Begin an effect, or the read of a record that is not in memory.

        That read is a flight too: a run whose branch only seemed to wait would be parked, and nobody would
        wake it.
        """
        is_recorded = entry is not None and (entry.size or entry.hash != asked.digest)
        if not is_recorded:
            self._check_ownership(fence)
        flight = Flight(asked.entry(self._host.clock.now()), asked.canonical, self.board)
        if entry is not None and is_recorded:
            flight.recording = True  # as one whose record is being written, it cannot be cancelled
            flight.start(self._stand(entry, asked), self._host.tasks)
        else:
            flight.start(self._flown(asked, fence, local, flight), self._host.tasks)
        return flight

    def _check_ownership(self, fence: Fence) -> None:
        """Refuse to start what could not be recorded."""
        if not self._host.is_open:
            raise StoreClosed
        if fence.token == SETTLED:
            raise RunSettled(fence.name)
        if self._lost:
            raise LeaseLost(fence.name)

    async def _flown(
        self, asked: Asked, fence: Fence, local: LocalExecutor, flight: Flight
    ) -> Outcome:
        try:
            return await self._route(asked, fence, local, flight)
        except LeaseLost:
            self._lost = True
            self._host.forget(self._scope, self)
            raise

    def _route(
        self, asked: Asked, fence: Fence, local: LocalExecutor, flight: Flight
    ) -> Coroutine[Any, Any, Outcome]:
        """Choose how the effect is executed."""
        if len(self._entries) >= MAX_ENTRIES and asked.key not in self._entries:
            raise JournalFull(fence.name, MAX_ENTRIES)
        match asked.envelope.command:
            case Sleep() as command:
                local.check(command)
                return self._sleep(asked, fence, local.cancel, flight)
            case AwaitEvent() as command:
                opening = WaitOpening(
                    name=self._host.name_in(command.key),
                    kind=command.wait_kind,
                    title=storable(command.title),
                    tool=None if command.tool is None else storable(command.tool),
                    arguments=None if command.arguments is None else write(command.arguments),
                    timeout=local.timeout,
                )
                return self._await(asked, fence, local, opening, flight)
            case Process(command=command):
                if getattr(local, "processes", None) is None:
                    raise RuntimeEffectLocalExecutorUnavailable(EffectKind.PROCESS)
                return self._process(asked, fence, process_command(command), local, flight)
            case _:
                return self._perform(asked, fence, local, flight)

    async def _perform(
        self, asked: Asked, fence: Fence, local: LocalExecutor, flight: Flight
    ) -> Outcome:
        host = self._host
        if host.membership.lease_is_over and not await host.membership.renew():
            raise LeaseLost(fence.name)
        if self._given_up != host.membership.times_given_up:
            await self._check_fence(fence)
        started = host.clock.now()
        try:
            performed = await perform(asked.envelope, local)
        except asyncio.CancelledError as error:
            if flight.is_stopped or self.is_stopping:
                raise
            performed = failed(error, asked.envelope.command.kind)  # it cancelled its own task
        if performed.cause is not None and (flight.is_stopped or self.is_stopping):
            raise asyncio.CancelledError  # it was stopped: how it failed then is no outcome
        flight.recording = True
        entry = asked.entry(started, performed.data, host.clock.now())
        await self._record_riders(fence)
        record = getattr(local, "record", None) or host.store.journal.record
        stands: JournalEntry = await record(fence, entry)
        if stands is not entry:
            return await self._stand(stands, asked)
        self._entries[asked.key] = entry
        return performed.answer(asked.envelope.command.kind)

    async def _check_fence(self, fence: Fence) -> None:
        """Look whether the run is still ours: others gave this worker up since we attached it."""
        given_up = self._host.membership.times_given_up
        standing = await self._host.store.runs.wake_seqs([fence.run])
        if standing.get(fence.run, (0, -1))[1] != fence.token:
            raise LeaseLost(fence.name)
        self._given_up = given_up

    async def _stand(self, entry: JournalEntry, asked: Asked) -> Outcome:
        """Take the entry that holds our key, whoever wrote it, and answer with it."""
        self._entries[asked.key] = entry
        if entry.hash != asked.digest:
            raise await self._mismatch(asked)
        return await self._replay(entry, asked)

    async def _sleep(
        self, asked: Asked, fence: Fence, cancel: Cancellation | None, flight: Flight
    ) -> Outcome:
        clock, journal, command = self._host.clock, self._host.store.journal, asked.envelope.command
        assert isinstance(command, Sleep)
        entry = self._entries.get(asked.key)
        if entry is None:
            await self._record_riders(fence)
            begun = asked.entry(clock.now())
            entry, now = await journal.begin_sleep(fence, begun, command.duration_ms * 1000)
            self._entries[asked.key] = entry
            if entry.hash != asked.digest:
                raise await self._mismatch(asked)
        else:
            now = self.now()
        assert entry.due is not None
        if entry.due <= now:  # it is over, whatever came afterwards
            return SleepOutcome()
        flight.rest(entry.due)
        try:
            await sleep_unless(clock, (entry.due - now) / SECOND, cancel)
        except RuntimeEffectSleepCancelled as error:
            flight.recording = True
            data = failed(error, command.kind).data
            ended = replace(entry, outcome=data, size=len(data), ended=clock.now())
            return await self._stand(await journal.close(fence, ended), asked)
        return SleepOutcome()

    async def _await(
        self,
        asked: Asked,
        fence: Fence,
        local: LocalExecutor,
        opening: WaitOpening,
        flight: Flight,
    ) -> Outcome:
        async def open_wait() -> WaitStatus:
            await self._record_riders(fence)
            entry = asked.entry(self._host.clock.now())
            stands, status = await self._host.store.waits.open_for(fence, entry, opening)
            self._entries[asked.key] = replace(stands, outcome=None, size=0)
            if stands.hash != asked.digest:
                raise await self._mismatch(asked)
            if status.terminal is None and not status.revoked:
                if (opened := getattr(local, "opened", None)) is not None:
                    opened()
                rest = status.remaining
                flight.rest(None if rest is None else self.now() + rest)
            return status

        waiting = self._host.live.wait(opening.name, open_wait(), local.cancel, fence, flight.wake)
        resolution = await waiting
        data = encode(resolution)
        opened = self._entries[asked.key]
        self._entries[asked.key] = replace(opened, outcome=data, size=len(data))
        return AwaitEventOutcome(RESOLUTIONS.decode(data))

    # --- processes ---

    async def _process(
        self,
        asked: Asked,
        fence: Fence,
        command: ProcessCommand,
        local: LocalExecutor,
        flight: Flight,
    ) -> Outcome:
        """Do what the registry is asked and record it at once, or wait for it."""
        await self._record_riders(fence)
        processes, clock = self._host.store.processes, self._host.clock
        opening = asked.entry(clock.now())
        try:
            if isinstance(command, Awaited):
                return await self._happened(asked, fence, command, local.timeout, flight)
            flight.recording = True
            closing = replace(opening, ended=clock.now())
            entry = await processes.perform_for(fence, closing, command, wrapped)
        except Misuse as error:  # the registry refused, and nothing was written
            flight.recording = True
            data = failed(error, asked.envelope.command.kind).data
            refusal = replace(opening, outcome=data, size=len(data), ended=clock.now())
            entry = await self._host.store.journal.record(fence, refusal)
            if not entry.size:  # it is open: the refusal came after the wait had begun
                entry = await self._host.store.journal.close(fence, refusal)
        return await self._stand(entry, asked)

    async def _happened(
        self, asked: Asked, fence: Fence, command: Awaited, timeout: int | None, flight: Flight
    ) -> Outcome:
        opening = asked.entry(self._host.clock.now())
        while True:
            bell = self._bell(flight)
            entry, remaining = await look(self._host.store, fence, opening, command, timeout)
            if entry.size:
                self._bells.pop(bell, None)
                return await self._stand(entry, asked)
            self._entries[asked.key] = entry
            if entry.hash != asked.digest:
                raise await self._mismatch(asked)
            await self._rest(flight, bell, entry.due, remaining)

    def _bell(self, flight: Flight) -> asyncio.Future[None]:
        """Return what rings when the run is woken: taken before the look, so that nothing is missed."""
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bells[bell] = flight
        return bell

    async def _rest(
        self, flight: Flight, bell: asyncio.Future[None], due: int | None, remaining: int | None
    ) -> None:
        """Wait for the bell, or until due."""
        if not bell.done():
            flight.rest(due)
        try:
            if remaining is None:
                await bell
            else:
                await rung_in_time(bell, self._host.clock, remaining / SECOND)
        finally:
            self._bells.pop(bell, None)
        flight.wake()


def _recorded(data: bytes, kind: EffectKind) -> Outcome:
    """Return the outcome in a record, or raise the failure in it."""
    if kind is EffectKind.AWAIT_EVENT and not data.startswith(WITHDRAWN):
        return AwaitEventOutcome(RESOLUTIONS.decode(data))
    return answer(data, kind)


async def look(
    store: Store, fence: Fence, entry: JournalEntry, command: Awaited, timeout: int | None
) -> tuple[JournalEntry, int | None]:
    """Begin to wait for a signal or an end, or end the wait; return it and how long it may last."""
    match command:
        case WaitSignal(name=name):
            taken, now = await store.processes.take_signal(fence, entry, name, timeout, wrapped)
            return taken, None if taken.due is None else taken.due - now
        case AwaitProcess():
            return await store.processes.watch(fence, entry, command, wrapped), None
        case AwaitTurn():
            return await store.sessions.watch(fence, entry, command, wrapped), None
