"""The boundary of one attempt: effects are entries of the engine's journal.

Rule 1. The entry of an effect has its replay key as its name. Its result has the hash of the command, the time and the
        outcome; failures are outcomes. A replay compares the hash.
Rule 2. An effect whose work is in the store (process commands, waits) is done by the store's own operation, which keeps a row
        under the key: the engine may perform an action twice, and the second one finds the row.
Rule 3. This code runs on the stage, and the actions on the real loop. An action that raises ends the attempt, and the
        engine tries again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from pylash.durable.commands import Awaited, ProcessCommand, WaitSignal, process_command
from pylash.durable.effects import (
    COMPOSITE,
    AwaitEvent,
    AwaitEventOutcome,
    Envelope,
    Outcome,
    Process,
    Sleep,
    SleepOutcome,
    is_same_start,
)
from pylash.durable.ports import LocalExecutor
from pylash.durable.run_memory import Progress
from pylash.durable.runs import Fence, JournalEntry
from pylash.durable.stores import WaitStatus
from pylash.engine.hosts.controller import HostedController, opening_of
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.hosts.journal_memory import EffectRequest, effect_request
from pylash.engine.races import wait_until_done
from pylash.engine.records import (
    NEVER_RECORDED,
    answer,
    check_call,
    failed,
    perform,
    withdrawn,
    wrapped,
)
from pylash.engine.registry_waits import look
from pylash.engine.store_answers import STORE_AWAY_SECONDS
from pylash.restate.engine_mark import mark_for_restate
from pylash.restate.memory import PositionalMemory
from pylash.restate.stage import Stage
from pylash.values.canonical import digest_for_difference, first_difference
from pylash.values.errors import (
    AwaitEventUnknownOrRevoked,
    EffectReplayMismatch,
    LashError,
    MissingReplayKey,
    Misuse,
    StoreError,
    StoreRefused,
)
from pylash.values.process_errors import ProcessSignalWaitCancelled

T = TypeVar("T")

NAME_HASH: Final = 12
"""How many characters of the hash are part of the name of a timer, whose entry has no result to keep it in."""


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of the store to a call that is safe to repeat, on the real loop, however long it is away."""
    while True:
        try:
            return await ask()
        except StoreRefused:
            raise
        except StoreError:
            await asyncio.sleep(STORE_AWAY_SECONDS)


class EffectRecord(msgspec.Struct, frozen=True, rename={"digest": "hash"}, omit_defaults=True):
    """The result of an effect's entry; it is stored, so fields are only added, with defaults.

    ``command`` is what the hash covers, as far as it is kept to explain a difference; ``message`` is that of an effect of a
    turn; ``woken``: the run was woken meanwhile, so a message that came before the end of the effect joins the turn after it.
    """

    digest: str
    at: int
    outcome: msgspec.Raw
    command: bytes | None = None
    message: str = ""
    woken: bool = False


class StoredEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of an entry whose work is in the store: the row under its key, and how it stands."""

    at: int
    entry: JournalEntry | None = None
    status: WaitStatus | None = None
    remaining: int | None = None
    # A refusal of the store, as the record of a failure.
    refused: msgspec.Raw = msgspec.Raw(b"")


_EFFECTS = msgspec.json.Decoder(EffectRecord)
_STORED = msgspec.json.Decoder(StoredEntry)


class Execution(NamedTuple):
    """One effect that is being executed: what was asked, and where its progress is reported."""

    asked: EffectRequest
    local: LocalExecutor
    progress: Progress


class Wakes(NamedTuple):
    """Wake-ups that the record of an effect reports, because that of the watch may come after it.

    ``take`` is called on the real loop, and returns whether there is one. ``tell`` is called on the stage.
    """

    take: Callable[[], bool]
    tell: Callable[[], None]


class StageController(HostedController):
    """The boundary of one attempt of a run."""

    def __init__(
        self,
        host: JournalHost,
        stage: Stage,
        memory: PositionalMemory,
        fence: Fence,
        wakes: Wakes,
    ) -> None:
        super().__init__(host)
        self._wakes = wakes
        self._stage = stage
        self._memory = memory
        self._fence = fence
        memory.cancel_waits = self._cancel_waits

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        """Return the outcome of the effect: the recorded one, or that of performing it."""
        check_call(envelope, local)
        key = envelope.invocation.replay_key
        if not key:
            raise MissingReplayKey(envelope.invocation.effect_id)
        command = envelope.command
        if command.kind in COMPOSITE:
            return (await perform(envelope, local)).answer(command.kind)
        asked = effect_request(envelope, key)
        execution = Execution(asked, local, self._memory.progress_of(key))
        match command:
            case Sleep() if local.cancel is None:
                local.check(command)
                return await self._sleep(execution, command)
            case AwaitEvent():
                return await self._await(execution, command)
            case Process(command=given):
                return await self._process(execution, process_command(given))
            case _:
                return await self._perform(execution)

    # --- effects that leave the store ---

    async def _perform(self, execution: Execution) -> Outcome:
        asked, local, progress = execution
        context, tasks = copy_context(), self._host.tasks
        work: list[asyncio.Task[bytes]] = []

        async def action() -> bytes:
            # A task of its own: it has the context of the caller, and can be cancelled without ending the entry's own task.
            task = tasks.start(self._performed(asked, local), context)
            work.append(task)
            return await task

        try:
            data = await self._stage.run(asked.key, action)
        except asyncio.CancelledError:
            # The run was cancelled here, or the attempt is over: the outcome is not needed, whatever it is.
            if work and progress.is_stopped:
                work[0].cancel()
            raise
        record = _EFFECTS.decode(data)
        self._memory.advance(record.at)
        self._check(asked, record.digest, record.command)
        if local.messages is not None:
            local.messages.receive(record.message.encode())
        if record.woken:
            self._wakes.tell()
        return answer(bytes(record.outcome), asked.envelope.command.kind)

    async def _performed(self, asked: EffectRequest, local: LocalExecutor) -> bytes:
        """Perform an effect on the real loop; return its record."""
        try:
            performed = await perform(asked.envelope, local)
        except NEVER_RECORDED as error:
            # A mistake of the caller is raised there, and its entry needs a result.
            performed = failed(error, asked.envelope.command.kind)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            performed = failed(error, asked.envelope.command.kind)  # it cancelled its own task
        message = b""
        if local.messages is not None and performed.cause is None:
            message = await local.messages.carry(asked.key)
        record = EffectRecord(
            asked.digest.hex(),
            self._host.clock.now(),
            msgspec.Raw(performed.data),
            digest_for_difference(asked.canonical),
            message.decode(),
            self._wakes.take(),
        )
        return msgspec.json.encode(record)

    def _check(self, asked: EffectRequest, digest: str, command: bytes | None) -> None:
        if digest != asked.digest.hex():
            raise EffectReplayMismatch(asked.key, first_difference(command, asked.canonical))

    # --- timers ---

    async def _sleep(self, execution: Execution, command: Sleep) -> Outcome:
        asked, _, progress = execution
        due = self._memory.now() + command.duration_ms * 1000
        timer = self._stage.sleep(
            f"{asked.key} {asked.digest.hex()[:NAME_HASH]}", command.duration_ms / 1000
        )
        progress.rest(due)
        await timer
        self._memory.advance(due)
        return SleepOutcome()

    # --- effects in the store ---

    async def _stored(self, name: str, ask: Callable[[], Awaitable[StoredEntry]]) -> StoredEntry:
        """Return the answer of the store, as it was recorded the first time."""

        async def action() -> bytes:
            return msgspec.json.encode(await until_answered(ask))

        stored = _STORED.decode(await self._stage.run(name, action))
        self._memory.advance(stored.at)
        return stored

    async def _process(self, execution: Execution, command: ProcessCommand) -> Outcome:
        """Do what the registry is asked, or wait for it."""
        asked, _, progress = execution
        if isinstance(command, Awaited):
            return await self._happened(execution, command)
        # From here on it cannot be cancelled: the registry does it, and no attempt could tell that it did not.
        progress.recording()

        async def ask() -> StoredEntry:
            now = self._host.clock.now()
            closing = replace(asked.entry(now), ended=now)
            try:
                entry = await self._host.store.processes.perform_for(
                    self._fence, closing, mark_for_restate(command), wrapped, ()
                )
            except Misuse as error:  # the registry refused, and nothing was written
                return self._refused(asked, error)
            return StoredEntry(now, entry)

        return self._outcome(asked, await self._stored(asked.key, ask))

    def _refused(self, asked: EffectRequest, error: LashError) -> StoredEntry:
        data = failed(error, asked.envelope.command.kind).data
        return StoredEntry(self._host.clock.now(), refused=msgspec.Raw(data))

    def _outcome(self, asked: EffectRequest, stored: StoredEntry) -> Outcome:
        """Return the outcome in the store's row, or raise the failure in it."""
        kind = asked.envelope.command.kind
        if stored.entry is None:
            return answer(bytes(stored.refused), kind)
        entry = stored.entry
        if entry.hash != asked.digest and not (
            entry.command is not None and is_same_start(entry.command, asked.canonical)
        ):
            raise EffectReplayMismatch(asked.key, first_difference(entry.command, asked.canonical))
        assert entry.outcome is not None
        return answer(entry.outcome, kind)

    async def _happened(self, execution: Execution, command: Awaited) -> Outcome:
        """Wait until a signal has come, or another run has ended."""
        asked, local, progress = execution
        store, memory = self._host.store, self._memory

        async def ask() -> StoredEntry:
            now = self._host.clock.now()
            try:
                entry, remaining = await look(
                    store, self._fence, asked.entry(now), command, local.timeout, ()
                )
            except Misuse as error:
                return self._refused(asked, error)
            return StoredEntry(now, entry, remaining=remaining)

        while True:
            # The bell is taken before the store is read, so that a wake-up in between is not missed.
            bell = memory.bell(progress)
            try:
                stored = await self._stored(asked.key, ask)
                if stored.entry is None or stored.entry.size:
                    return self._outcome(asked, stored)
                if stored.entry.hash != asked.digest:
                    difference = first_difference(stored.entry.command, asked.canonical)
                    raise EffectReplayMismatch(asked.key, difference)
                if not bell.done():
                    progress.rest(stored.entry.due)
                await wait_until_done(bell, self._host.clock, stored.remaining)
                if stored.entry.due is not None and not bell.done():
                    memory.advance(stored.entry.due)
            finally:
                memory.drop_bell(bell)
            progress.stir()

    async def _await(self, execution: Execution, command: AwaitEvent) -> Outcome:
        """Wait until a wait is resolved, or its time is over."""
        asked, local, progress = execution
        waits, memory = self._host.store.waits, self._memory
        name = self._host.name_in(command.key)
        opening = opening_of(command, name, local.timeout)

        async def open_wait() -> StoredEntry:
            now = self._host.clock.now()
            entry, status = await waits.open_for(self._fence, asked.entry(now), opening, ())
            return StoredEntry(now, entry, status)

        async def end_wait() -> StoredEntry:
            status = await waits.expire(opening.name)
            if status.terminal is None and not status.revoked and opening.within is not None:
                status = await waits.leave(self._fence, asked.key, opening.name)
            return StoredEntry(self._host.clock.now(), status=status)

        ask, is_opened = open_wait, False
        while True:
            # The bell is taken before the store is read, so that a wake-up in between is not missed.
            bell = memory.bell(progress)
            try:
                stored = await self._stored(asked.key, ask)
                status = self._open_status(asked, stored)
                if status.terminal is not None:
                    return AwaitEventOutcome(status.terminal)
                if not is_opened and local.opened is not None:
                    local.opened()
                is_opened, remaining = True, status.remaining
                if not bell.done() and (remaining is None or remaining > 0):
                    progress.rest(None if remaining is None else memory.now() + remaining)
                await wait_until_done(bell, self._host.clock, remaining)
                ask = open_wait if bell.done() else end_wait
            finally:
                memory.drop_bell(bell)
            progress.stir()

    async def _cancel_waits(self, name: str, effects: list[Envelope]) -> set[str]:
        """Cancel effects in the store, where a wait may have ended by now; return the keys of those that had not."""

        async def cancel() -> bytes:
            now = self._host.clock.now()
            entries = [_cancelled(envelope, now) for envelope in effects]
            keys = await self._host.store.journal.deliver(self._fence, (), entries)
            return msgspec.json.encode(sorted(keys))

        data = await self._stage.run(name, partial(until_answered, cancel))
        return set(msgspec.json.decode(data, type=list[str]))

    def _open_status(self, asked: EffectRequest, stored: StoredEntry) -> WaitStatus:
        """Return the status of the wait of an effect; raises if it is another one, or was revoked."""
        entry, status = stored.entry, stored.status
        if entry is not None and entry.hash != asked.digest:
            difference = first_difference(entry.command, asked.canonical)
            raise EffectReplayMismatch(asked.key, difference)
        if status is None or (status.revoked and status.terminal is None):
            raise AwaitEventUnknownOrRevoked
        return status


def _cancelled(envelope: Envelope, now: int) -> JournalEntry:
    """Return the row of a wait that is cancelled."""
    command = envelope.command
    is_signal = isinstance(command, Process) and isinstance(
        process_command(command.command), WaitSignal
    )
    data = withdrawn(ProcessSignalWaitCancelled.default_code if is_signal else "cancelled")
    return effect_request(envelope, str(envelope.invocation.replay_key)).entry(now, data, now)
