"""The runner on Restate: runs are sent to the server, and the server calls the workers that execute their attempts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from restate.exceptions import SuspendedException

from pylash.durable.commands import CancelProcess, StartProcess
from pylash.durable.processes import ProcessRecord, Registration, carrier_target
from pylash.durable.runs import Attached
from pylash.durable.scopes import ExecutionScope, ProcessScope, session_of
from pylash.durable.sessions import NewTurn
from pylash.durable.stores import Store, Taken
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.hub import NET_SECONDS
from pylash.engine.runner_parts import RunnerParts
from pylash.engine.runs.loaded_runs import LoadedRun, LoadedTurn
from pylash.engine.runs.programs import Programs
from pylash.engine.runs.run import LiveRun, session_played
from pylash.engine.worker.blocked_runs import retry_fitting
from pylash.engine.worker.pruning import prune_forever
from pylash.restate.attempt import Attempt, AttemptEnd
from pylash.restate.attempt_journal import (
    ActionFailed,
    AttemptJournal,
    EngineRefused,
    Suspended,
)
from pylash.restate.batched_take import BatchedTake
from pylash.restate.controller import until_answered, whole_result
from pylash.restate.courier import Courier, service_and_key
from pylash.restate.engine_mark import ENGINE, mark_for_restate, store_id
from pylash.restate.recorded import divergence, read_recorded, was_paused
from pylash.tasks import TaskOwner
from pylash.values.durations import seconds
from pylash.values.errors import LashError, LeaseLost, StoreError
from pylash.values.process_errors import StoreOfOthers

if TYPE_CHECKING:
    from pylash.restate.clients import RestateClient
    from pylash.restate.host import RestateHost

CANCELLED: Final = "cancelled in Restate"

_log = logging.getLogger("pylash")


class AttemptFailed(Exception):
    """Ends an attempt whose run is blocked, or is executed again by the server."""


def _is_of_others(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], AttemptFailed))


# The SDK logs an error with a traceback for every handler that raises. We raise AttemptFailed on purpose, and have logged why.
logging.getLogger("restate.server").addFilter(_is_of_others)


class RestateRunner:
    """Has the runs of an app executed by a Restate server, in this process and in others."""

    def __init__(self, host: RestateHost, parts: RunnerParts) -> None:
        self._host = host
        self._parts = parts
        self._tasks = TaskOwner()
        # Effects under way. Closed after the endpoint, so that their results are still proposed to the server.
        self._attempt_tasks = TaskOwner()
        # The attempts that are executed here, by the number of their run.
        self._live: dict[int, Attempt] = {}
        # Set when an attempt ends.
        self._ended = asyncio.Event()
        self.is_open = False
        # Set while the app closes: new attempts are refused, and the server tries again, elsewhere or later.
        self._is_draining = False
        self._store_id = store_id(parts.journal.store.secret)
        # Whether that was logged: the server repeats each of them.
        self._has_foreign_runs = False
        self._batched_take = BatchedTake(parts.journal, self._tasks, lambda: self.is_open)

    @property
    def _journal(self) -> JournalHost:
        """The journal of the store."""
        return self._parts.journal

    # --- opening and closing ---

    async def open(self) -> None:
        """Serve the endpoint, register it, and send what is ready."""
        journal = self._journal
        await self._host.open(self)
        try:
            await self._announced_targets()
            self.is_open = True
            self._endpoint = await self._host.open_endpoint(self._tasks)
        except BaseException:
            self.is_open = False
            await self._host.close()
            raise
        courier = Courier(
            journal.store, journal.hub, self._host.client, self._announced_targets, self._store_id
        )
        self._unsubscribe = journal.hub.subscribe(self._on_topic, "wake", "cancel")
        self._tasks.serve(courier.work_forever())
        self._tasks.serve(self._find_lost_hints())
        parts = self._parts
        self._tasks.serve(prune_forever(journal.store.journal, parts.retention))
        self._tasks.serve(retry_fitting(journal, parts.programs, parts.drives, self._host))

    async def close(self) -> None:
        """Let the attempts that are executed here end within the grace period, and abort the rest.

        The server continues them elsewhere, or later.
        """
        if not self.is_open or self._is_draining:
            return
        self._is_draining = True
        for attempt in tuple(self._live.values()):
            attempt.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds(self._parts.config.grace)):
                await self._drained()
        self.is_open = False
        self._unsubscribe()
        for attempt in tuple(self._live.values()):
            attempt.stop()
        if self._endpoint is not None:
            await self._endpoint.close()
        await self._attempt_tasks.close()
        await self._tasks.close()
        await self._host.close()

    async def _drained(self) -> None:
        """Return once no attempt is executed here."""
        while self._live:
            self._ended.clear()
            await self._ended.wait()

    @property
    def busy(self) -> int:
        """How many runs must stop before the app is closed."""
        return len(self._live)

    async def _announced_targets(self) -> list[str]:
        """Return the targets of the app, after the other workers were told which it has."""
        membership = self._journal.membership
        targets = [carrier_target(ENGINE, one) for one in self._parts.programs.targets()]
        if targets != membership.targets:
            await membership.announce(targets)
        return targets

    # --- starting ---

    def start(self, command: StartProcess) -> Awaitable[Any]:
        """Start a process: a row that the courier sends."""
        return self._start(command)

    async def _start(self, command: StartProcess) -> Any:
        command = mark_for_restate(command)
        await self._journal.store.processes.start(command)
        return {"id": command.registration.id}

    def own(self, registration: Registration) -> Registration:
        """Return a registration with the mark of this engine."""
        return mark_for_restate(StartProcess(registration)).registration

    async def submit(self, new: NewTurn) -> None:
        """Submit a turn: a row that the courier sends."""
        await self._journal.store.sessions.submit(new, self._journal.new_token())

    def has(self, run_id: str) -> bool:
        """Return whether a turn is executed here, so that its events need no relay; results of others are in the store."""
        return any(run.id == run_id for run in self._turns())

    def turn_of(self, session_id: str) -> str | None:
        """Return the turn of a session that is executed here."""
        return next((run.id for run in self._turns() if session_played(run) == session_id), None)

    def _turns(self) -> Iterator[LiveRun]:
        runs = (attempt.run for attempt in self._live.values())
        return (run for run in runs if run is not None and session_played(run) is not None)

    async def quiet(self) -> None:
        """Return at once: a simulated clock cannot advance the time of a server."""

    # --- hints ---

    def _on_topic(self, topic: str) -> None:
        _, _, rest = topic.partition(":")
        attempts = self._live.values() if not rest else filter(None, (self._live.get(int(rest)),))
        for attempt in tuple(attempts):
            attempt.hint()

    async def _find_lost_hints(self) -> None:
        """Read now and then the wake-ups of all runs that are executed here: a hint may have been lost."""
        while True:
            await asyncio.sleep(NET_SECONDS)
            if not self._live:
                continue
            with suppress(StoreError):  # away for the moment
                found = await self._journal.store.runs.wake_seqs(list(self._live))
                for run, attempt in tuple(self._live.items()):
                    if attempt.known not in {None, found.get(run)}:
                        attempt.hint()

    # --- attempts ---

    async def execute(self, context: Any, run: int, store: str) -> None:
        """Execute one attempt of a run of a store in a handler of the server."""
        self._admit(run, store)
        invocation = context.request().id
        journal = self._host.open_journal(
            context, self._attempt_tasks, lambda: self._request_cancel(attempt.scope)
        )
        attempt = Attempt(
            self._journal,
            journal,
            self._parts.drives,
            seconds(self._parts.config.park_after),
            self._host.client.ring,
            lambda: self.is_open,
        )
        # Before the run is taken, so that the attempt gets the hint of every later wake-up.
        self._add(run, attempt)
        try:
            taken = await self._batched_take.take(run)
            if taken is None:
                await self._end_invocation(context, invocation)
                return
            if not is_known(self._parts.programs, taken):
                # Another worker behind the URL may have it. Until then lists show that no worker does.
                await until_answered(partial(self._journal.store.journal.release, taken.fence))
                raise AttemptFailed(f"this worker has no code for {taken.fence.name}")
            if is_outdated(context, taken):
                await self._host.client.kill(invocation)
                raise AttemptFailed(f"{taken.fence.name} was moved to another invocation")
            end = await self._end_of(attempt, taken, journal, invocation)
        finally:
            self._remove(run, attempt)
            journal.stop()
        await self._conclude(context, taken, end)

    async def _conclude(self, context: Any, taken: Taken, end: AttemptEnd) -> None:
        """Let the server do what follows from the end of an attempt."""
        invocation = context.request().id
        if end is AttemptEnd.OVER:
            await self._end_invocation(context, invocation)
        if end is AttemptEnd.BLOCKED:
            # Before the pause: a paused invocation does nothing by itself, so the store must know what to end.
            noting = partial(self._journal.store.runs.note_invocation, taken.fence, invocation)
            await until_answered(noting)
            await self._host.client.pause(invocation)
            raise AttemptFailed(f"{taken.fence.name} is blocked")
        if end is AttemptEnd.AGAIN:
            raise AttemptFailed(f"{taken.fence.name} is executed again")

    async def _end_of(
        self, attempt: Attempt, taken: Taken, journal: AttemptJournal, invocation: str
    ) -> AttemptEnd:
        """Execute an attempt that has its run."""

        async def explain(refusal: EngineRefused) -> LashError | None:
            # It was resumed by a retry or a cancel: a person has decided that it goes on, by key. The records of a turn
            # have no such form, because its messages are written with its end.
            is_process = isinstance(taken.fence.scope, ProcessScope)
            if is_process and await was_paused(self._host.client, invocation):
                return None
            return divergence(attempt.run, taken.fence, refusal, await journal.recorded())

        try:
            return await attempt.execute(taken, _loaded(taken), explain)
        except Suspended:
            raise SuspendedException from None
        except EngineRefused as refusal:
            trouble = await explain(refusal)
            if trouble is None:
                await move_records(self._journal.store, self._host.client, taken, invocation)
                raise AttemptFailed(f"{taken.fence.name} goes on in another invocation") from None
            await block(self._journal.store, taken, trouble)
            return AttemptEnd.BLOCKED
        except ActionFailed as failure:
            # Others own the run: an attempt that was taken over, or that ends this moment.
            is_expected = isinstance(failure.__cause__, LeaseLost)
            level = logging.DEBUG if is_expected else logging.WARNING
            _log.log(level, "%s is executed again: %s", taken.fence.name, failure)
            return AttemptEnd.AGAIN

    def _admit(self, run: int, store: str) -> None:
        """Refuse an attempt of a run that this worker cannot execute: the server tries again later."""
        if store != self._store_id:
            error = StoreOfOthers(run)
            if not self._has_foreign_runs:
                _log.error("%s", error)
            self._has_foreign_runs = True
            raise AttemptFailed(str(error))
        if self._is_draining:
            raise AttemptFailed("this worker is closing")

    def _add(self, run: int, attempt: Attempt) -> None:
        self._live[run] = attempt
        if self._is_draining:  # since the attempt was admitted
            attempt.drain()

    def _remove(self, run: int, attempt: Attempt) -> None:
        if self._live.get(run) is attempt:  # else a newer attempt is executed here
            del self._live[run]
            if attempt.run is not None:
                # Without a result: who waits for one reads it in the store.
                self._parts.on_end(attempt.run.id, None)
        self._ended.set()

    async def _end_invocation(self, context: Any, invocation: str) -> None:
        """End an invocation whose run has ended in the store."""
        # An attempt that has recorded entries must ask for them before it may return, so it cannot end by itself.
        if context.vm.is_replaying():
            await self._host.client.kill(invocation)
            raise AttemptFailed("the run has ended")

    async def _request_cancel(self, scope: ExecutionScope) -> None:
        """Request the cancel of a run whose invocation was cancelled at the server."""
        store, session = self._journal.store, session_of(scope)
        if session is None:
            await store.processes.perform(CancelProcess(scope.id, CANCELLED), None)
        else:
            await store.sessions.cancel(session, CANCELLED)


def is_known(programs: Programs, taken: Taken) -> bool:
    """Return whether the program of a run is here: workers of another version may be behind the same URL."""
    if not isinstance(taken.subject, ProcessRecord):
        return True
    target = taken.subject.registration.target
    return programs.knows(target.removeprefix(carrier_target(ENGINE, "")))


def is_outdated(context: Any, taken: Taken) -> bool:
    """Return whether the run was moved to another invocation than the one of an attempt."""
    subject = taken.subject
    if not isinstance(subject, ProcessRecord):
        return False
    _, key = service_and_key(taken.fence.scope, subject.state.epoch, taken.moves)
    return bool(context.key() != key)


def _loaded(taken: Taken) -> LoadedRun:
    """Return a run as it was taken."""
    if taken.subject is None:
        raise AttemptFailed(f"{taken.fence.name} cannot be read by this version")
    turn = None
    if taken.session is not None:
        turn = LoadedTurn(taken.session, stirred=taken.is_queued)
    return LoadedRun(taken.subject, Attached(taken.fence, taken.now), turn)


async def move_records(store: Store, client: RestateClient, taken: Taken, invocation: str) -> None:
    """Let a run that was retried continue by key in a new invocation: its code asks in another order than the recorded one."""
    recorded = await read_recorded(client, invocation, partial(whole_result, store.attachments))
    _log.info("%s goes on with what it has recorded, by key", taken.fence.name)
    move = partial(store.journal.move, taken.fence, *recorded, taken.moves + 1)
    await until_answered(move)
    # Only now: what it has recorded is in the store.
    await client.kill(invocation)


async def block(store: Store, taken: Taken, trouble: LashError) -> None:
    """Block a run whose attempt could not write that itself."""
    _log.warning("%s is blocked: %s", taken.fence.name, trouble)
    await store.runs.block(taken.fence, f"{trouble.code}: {trouble.message}")
