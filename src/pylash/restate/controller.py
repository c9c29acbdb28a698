"""The boundary of one attempt: effects are entries of the engine's journal.

Rule 1. The entry of an effect has its replay key as its name. Its result has the hash of the command, the time and the
        outcome; failures are outcomes. A replay compares the hash.
Rule 2. An effect whose work is in the store (process commands, waits) is done by the store's own operation, which keeps a row
        under the key: the engine may perform an action twice, and the second one finds the row.
Rule 3. This code runs on the stage, and the actions on the real loop. An action that raises ends the attempt, and the
        engine tries again later.
Rule 4. An effect that has ended in the seed of the run is answered from it, and asks the engine for nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
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
    EffectKind,
    Envelope,
    Outcome,
    Process,
    Sleep,
    SleepOutcome,
    is_same_start,
)
from pylash.durable.ports import LocalExecutor
from pylash.durable.run_memory import Progress
from pylash.durable.runs import SECOND, Fence, Instant, JournalEntry
from pylash.durable.session_store import Attachments
from pylash.durable.stores import WaitStatus
from pylash.engine.hosts.controller import HostedController, opening_of, recorded_outcome
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
from pylash.restate.attempt_journal import Action
from pylash.restate.engine_mark import mark_for_restate
from pylash.restate.memory import PositionalMemory
from pylash.restate.stage import Stage
from pylash.values.canonical import first_difference
from pylash.values.errors import (
    AwaitEventUnknownOrRevoked,
    EffectReplayMismatch,
    JournalFull,
    LashError,
    MissingReplayKey,
    Misuse,
    StoreError,
    StoreRefused,
)
from pylash.values.process_errors import ProcessSignalWaitCancelled

T = TypeVar("T")

WARN_ENTRIES: Final = 5_000
MAX_ENTRIES: Final = 10_000
"""How many effects a run may have: each attempt gets all of them from the engine again."""

INLINE_BYTES: Final = 1024 * 1024
"""Results over this size are attachments of the store, and their entries have references."""

_log = logging.getLogger("pylash")


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of the store to a call that is safe to repeat, on the real loop, however long it is away."""
    while True:
        try:
            return await ask()
        except StoreRefused:
            raise
        except StoreError:
            await asyncio.sleep(STORE_AWAY_SECONDS)


# The results of entries are stored: fields are only added, with defaults, and tags are never renamed.


class EffectRecord(
    msgspec.Struct, frozen=True, tag="effect", rename={"digest": "hash"}, omit_defaults=True
):
    """The result of an effect's entry.

    ``command`` is what the hash covers, as far as it is kept to explain a difference; ``message`` is that of an effect of a
    turn; ``woken``: the run was woken meanwhile, so a message that came before the end of the effect joins the turn after it.
    ``kind``, ``label``, ``started`` and ``notes``, which are entries that the effect may depend on, are for a seed.
    """

    digest: str
    at: int
    outcome: msgspec.Raw
    command: bytes | None = None
    message: str = ""
    woken: bool = False
    kind: str = ""
    label: str | None = None
    started: int = 0
    notes: tuple[JournalEntry, ...] = ()


class StoredEntry(msgspec.Struct, frozen=True, tag="stored", omit_defaults=True):
    """The result of an entry whose work is in the store: the row under its key, and how it stands.

    If the store refused it, there is no row, and ``entry`` has the failure.
    """

    at: int
    entry: JournalEntry | None = None
    status: WaitStatus | None = None
    remaining: int | None = None
    notes: tuple[JournalEntry, ...] = ()


class Notes(msgspec.Struct, frozen=True, tag="notes"):
    """The result of an entry that has only notes: those before a timer, which has no result."""

    notes: tuple[JournalEntry, ...]


class Reference(msgspec.Struct, frozen=True, tag="reference"):
    """The result of an entry whose result is an attachment of the store."""

    attachment: str


NOTES: Final = "!notes"
"""The name of an entry that has only notes."""

_EFFECTS = msgspec.json.Decoder(EffectRecord)
_STORED = msgspec.json.Decoder(StoredEntry)
_REFERENCES = msgspec.json.Decoder(Reference)
_IS_REFERENCE: Final = b'{"type":"reference"'


class JournaledCalls:
    """Entries of one attempt. A large result is an attachment of the store, and the entry has a reference to it."""

    def __init__(self, stage: Stage, attachments: Attachments) -> None:
        self._stage = stage
        self._attachments = attachments

    async def run(self, name: str, action: Action) -> bytes:
        """Return the result of an action, which is performed on the real loop unless it is recorded."""

        async def shortened() -> bytes:
            result = await action()
            if len(result) <= INLINE_BYTES:
                return result
            digest = hashlib.sha256(result).hexdigest()
            await until_answered(partial(self._attachments.put, digest, result))
            return msgspec.json.encode(Reference(digest))

        result = await self._stage.run(name, shortened)
        if not result.startswith(_IS_REFERENCE):
            return result
        return await self._stage.outside(partial(whole_result, self._attachments, result))


async def whole_result(attachments: Attachments, result: bytes) -> bytes:
    """Return the result of an entry, which may be a reference to it."""
    if not result.startswith(_IS_REFERENCE):
        return result
    digest = _REFERENCES.decode(result).attachment
    body = await until_answered(partial(attachments.get, digest))
    if body is None:
        raise StoreRefused(f"The attachment {digest} is missing: restore it from a backup.")
    return body


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
        self._calls = JournaledCalls(stage, host.store.attachments)
        self._memory = memory
        self._fence = fence
        memory.cancel_waits = self._cancel_waits
        # The effects that were asked for in this attempt: as many as the run has.
        self._asked = 0

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
        self._count()
        entry, progress = self._memory.ask(key), self._memory.progress_of(key)
        if self._memory.seeded(key) is not None:
            assert entry is not None
            return await self._from_seed(entry, asked)
        execution = Execution(asked, local, progress)
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

    def _count(self) -> None:
        """Count an effect; refuse it if there are too many. One that is recorded is never refused."""
        self._asked += 1
        if self._memory.is_replaying:
            return
        if self._asked > MAX_ENTRIES:
            raise JournalFull(self._fence.name, MAX_ENTRIES)
        if self._asked == WARN_ENTRIES:
            _log.warning(
                "%s has recorded %d effects, and at most %d are possible: use ctx.continue_as",
                self._fence.name, WARN_ENTRIES, MAX_ENTRIES,
            )  # fmt: skip

    async def _from_seed(self, entry: JournalEntry, asked: EffectRequest) -> Outcome:
        """Return the outcome of an effect that has ended in the seed of the run, or raise its failure."""
        store, run = self._host.store, self._fence.run
        if entry.hash != asked.digest and not await self._stage.outside(
            partial(self._is_same, entry, asked)
        ):
            raise await self._mismatch(entry, asked)
        if entry.outcome is None:  # too large to be loaded with the others
            ask = partial(until_answered, partial(store.journal.entry, run, entry.key))
            whole = await self._stage.outside(ask)
            assert whole is not None
            entry = whole
        self._memory.advance(entry.ended or entry.started)
        assert entry.outcome is not None
        return recorded_outcome(entry.outcome, asked.envelope.command.kind)

    async def _is_same(self, entry: JournalEntry, asked: EffectRequest) -> bool:
        return await self.is_same(self._fence.scope, entry, asked)

    async def _mismatch(self, entry: JournalEntry, asked: EffectRequest) -> EffectReplayMismatch:
        """Return the error of an effect that was recorded for something else."""
        kept = entry.command
        if kept is None:
            ask = partial(self._host.store.journal.entry, self._fence.run, entry.key)
            whole = await self._stage.outside(partial(until_answered, ask))
            kept = None if whole is None else whole.command
        return EffectReplayMismatch(asked.key, first_difference(kept, asked.canonical))

    # --- effects that leave the store ---

    async def _perform(self, execution: Execution) -> Outcome:
        asked, local, progress = execution
        context, tasks = copy_context(), self._host.tasks
        work: list[asyncio.Task[bytes]] = []
        started, notes = self._memory.start_time(), tuple(self._memory.notes.values())

        async def action() -> bytes:
            # A task of its own: it has the context of the caller, and can be cancelled without ending the entry's own task.
            task = tasks.start(self._performed(asked, local, started, notes), context)
            work.append(task)
            return await task

        try:
            data = await self._calls.run(asked.key, action)
        except asyncio.CancelledError:
            # The run was cancelled here, or the attempt is over: the outcome is not needed, whatever it is.
            if work and progress.is_stopped:
                work[0].cancel()
            raise
        record = _EFFECTS.decode(data)
        self._memory.forget_notes(notes)
        self._memory.advance(record.at)
        self._check(asked, record.digest, record.command)
        if local.messages is not None:
            local.messages.receive(record.message.encode())
        if record.woken:
            self._wakes.tell()
        return answer(bytes(record.outcome), asked.envelope.command.kind)

    async def _performed(
        self,
        asked: EffectRequest,
        local: LocalExecutor,
        started: Instant,
        notes: tuple[JournalEntry, ...],
    ) -> bytes:
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
        opening = asked.entry(started)
        record = EffectRecord(
            asked.digest.hex(),
            self._host.clock.now(),
            msgspec.Raw(performed.data),
            opening.command,
            message.decode(),
            self._wakes.take(),
            opening.kind,
            opening.label,
            started,
            notes,
        )
        return msgspec.json.encode(record)

    def _check(self, asked: EffectRequest, digest: str, command: bytes | None) -> None:
        if digest != asked.digest.hex():
            raise EffectReplayMismatch(asked.key, first_difference(command, asked.canonical))

    # --- timers ---

    async def _sleep(self, execution: Execution, command: Sleep) -> Outcome:
        asked, _, progress = execution
        entry, left = self._memory.seed.get(asked.key), command.duration_ms / 1000
        if entry is not None:
            if entry.hash != asked.digest:
                raise await self._mismatch(entry, asked)
            left = self._memory.seconds_left(entry)
            if left <= 0:
                return SleepOutcome()
        due = self._memory.now() + int(left * SECOND)
        self._record_notes()
        timer = self._stage.sleep(timer_name(asked), left)
        progress.rest(due)
        await timer
        self._memory.advance(due)
        return SleepOutcome()

    def _record_notes(self) -> None:
        """Record the notes before a timer in an entry of their own. Nobody awaits it: they are needed for a seed only."""
        notes = tuple(self._memory.notes.values())
        if notes:

            async def action() -> bytes:
                return msgspec.json.encode(Notes(notes))

            self._stage.run(NOTES, action).add_done_callback(
                lambda _: self._memory.forget_notes(notes)
            )

    # --- effects in the store ---

    async def _stored(self, name: str, ask: Callable[[], Awaitable[StoredEntry]]) -> StoredEntry:
        """Return the answer of the store, as it was recorded the first time."""
        notes = tuple(self._memory.notes.values())

        async def action() -> bytes:
            return msgspec.json.encode(replace(await until_answered(ask), notes=notes))

        stored = _STORED.decode(await self._calls.run(name, action))
        self._memory.forget_notes(notes)
        self._memory.advance(stored.at)
        return stored

    async def _process(self, execution: Execution, command: ProcessCommand) -> Outcome:
        """Do what the registry is asked, or wait for it."""
        asked, _, progress = execution
        if isinstance(command, Awaited):
            return await self._happened(execution, command)
        # From here on it cannot be cancelled: the registry does it, and no attempt could tell that it did not.
        progress.recording()
        opening = asked.entry(self._memory.start_time())

        async def ask() -> StoredEntry:
            now = self._host.clock.now()
            closing = replace(opening, ended=now)
            try:
                entry = await self._host.store.processes.perform_for(
                    self._fence, closing, mark_for_restate(command), wrapped, ()
                )
            except Misuse as error:  # the registry refused, and nothing was written
                return self._refused(opening, error)
            return StoredEntry(now, entry)

        return await self._outcome(asked, await self._stored(asked.key, ask))

    def _refused(self, opening: JournalEntry, error: LashError) -> StoredEntry:
        """Return the entry of an effect that the store refused."""
        now, data = self._host.clock.now(), failed(error, EffectKind.PROCESS).data
        return StoredEntry(now, replace(opening, outcome=data, size=len(data), ended=now))

    async def _outcome(self, asked: EffectRequest, stored: StoredEntry) -> Outcome:
        """Return the outcome in the store's row, or raise the failure in it."""
        entry = stored.entry
        assert entry is not None
        assert entry.outcome is not None
        if (
            entry.hash != asked.digest
            and not (entry.command is not None and is_same_start(entry.command, asked.canonical))
            and not await self._stage.outside(partial(self._is_same, entry, asked))
        ):
            raise await self._mismatch(entry, asked)
        return answer(entry.outcome, asked.envelope.command.kind)

    async def _happened(self, execution: Execution, command: Awaited) -> Outcome:
        """Wait until a signal has come, or another run has ended."""
        asked, local, progress = execution
        store, memory = self._host.store, self._memory
        opening = asked.entry(memory.start_time())

        async def ask() -> StoredEntry:
            try:
                entry, remaining = await look(
                    store, self._fence, opening, command, local.timeout, ()
                )
            except Misuse as error:
                return self._refused(opening, error)
            return StoredEntry(self._host.clock.now(), entry, remaining=remaining)

        while True:
            # The bell is taken before the store is read, so that a wake-up in between is not missed.
            bell = memory.bell(progress)
            try:
                stored = await self._stored(asked.key, ask)
                assert stored.entry is not None
                if stored.entry.size:
                    return await self._outcome(asked, stored)
                if stored.entry.hash != asked.digest:
                    raise await self._mismatch(stored.entry, asked)
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

        begun = asked.entry(memory.start_time())

        async def open_wait() -> StoredEntry:
            entry, status = await waits.open_for(self._fence, begun, opening, ())
            return StoredEntry(self._host.clock.now(), entry, status)

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


def timer_name(asked: EffectRequest) -> str:
    """Return the name of a timer: it has the hash, because a timer has no result to keep it in."""
    return f"{asked.key} {asked.digest.hex()}"


def _cancelled(envelope: Envelope, now: int) -> JournalEntry:
    """Return the row of a wait that is cancelled."""
    command = envelope.command
    is_signal = isinstance(command, Process) and isinstance(
        process_command(command.command), WaitSignal
    )
    data = withdrawn(ProcessSignalWaitCancelled.default_code if is_signal else "cancelled")
    return effect_request(envelope, str(envelope.invocation.replay_key)).entry(now, data, now)
