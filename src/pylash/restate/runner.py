"""The runner on Restate: runs are sent to the server, and the server calls the workers that execute their attempts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from restate.exceptions import SuspendedException

from pylash.durable.commands import CancelProcess, StartProcess
from pylash.durable.processes import ProcessRecord, carried_target
from pylash.durable.runs import Attached, Taken
from pylash.durable.scopes import ExecutionScope, ProcessScope, session_of
from pylash.durable.sessions import NewTurn
from pylash.engine.runner_parts import RunnerParts
from pylash.engine.runs.standings import Standing, TurnStanding
from pylash.engine.store_answers import STORE_AWAY_SECONDS
from pylash.engine.worker.blocked_runs import retry_fitting
from pylash.restate.attempt import Attempt, AttemptEnd
from pylash.restate.attempt_journal import EngineRefused, Suspended
from pylash.restate.carried import ENGINE, carried
from pylash.restate.controller import until_answered, whole_result
from pylash.restate.courier import Courier, process_key
from pylash.restate.recorded import divergence, read_names, read_recorded, was_paused
from pylash.restate.sdk_journal import SdkJournal
from pylash.tasks import TaskOwner
from pylash.values.durations import seconds
from pylash.values.errors import LashError, StoreError

if TYPE_CHECKING:
    from pylash.restate.host import RestateHost

CANCELLED: Final = "cancelled in Restate"

_log = logging.getLogger("pylash")


class AttemptFailed(Exception):
    """Ends an attempt whose run is blocked, or is executed again by the server."""


class RestateRunner:
    """Has the runs of an app executed by a Restate server, in this process and in others."""

    def __init__(self, host: RestateHost, parts: RunnerParts) -> None:
        self._host = host
        self._journal = parts.journal
        self._parts = parts
        self._park_after = seconds(parts.config.park_after)
        self._tasks = TaskOwner()
        # Effects under way. Closed after the endpoint, so that their results are still proposed to the server.
        self._attempt_tasks = TaskOwner()
        # The attempts that are executed here, by the number of their run.
        self._live: dict[int, Attempt] = {}
        self.is_open = False
        self._targets = [carried_target(ENGINE, one) for one in parts.programs.targets()]
        self._courier: Courier | None = None

    # --- opening and closing ---

    async def open(self) -> None:
        """Serve the endpoint, register it, and send what is ready."""
        journal = self._journal
        await journal.membership.announce(self._targets)
        self.is_open = True
        client = await self._host.connect()
        self._courier = Courier(journal.store, journal.hub, client, self._targets)
        self._unsubscribe = journal.hub.subscribe(self._on_topic, "wake", "cancel")
        self._endpoint = await self._host.open_endpoint(self._tasks)
        self._tasks.serve(self._courier.work_forever())
        parts = self._parts
        self._tasks.serve(retry_fitting(journal, parts.programs, parts.drives, self._host))

    async def close(self) -> None:
        """End the attempts that are executed here: the server continues them elsewhere, or later."""
        if not self.is_open:
            return
        self.is_open = False
        self._unsubscribe()
        for attempt in tuple(self._live.values()):
            attempt.stop()
        if self._endpoint is not None:
            await self._endpoint.close()
        await self._attempt_tasks.close()
        await self._tasks.close()
        await self._host.client.close()

    # --- starting ---

    def start(self, command: StartProcess) -> Awaitable[Any]:
        """Start a process: a row that the courier sends."""
        return self._start(command)

    async def _start(self, command: StartProcess) -> Any:
        command = carried(command)
        await self._journal.store.processes.start(command)
        return {"id": command.registration.id}

    async def submit(self, new: NewTurn) -> None:
        """Submit a turn: a row that the courier sends."""
        await self._journal.store.sessions.submit(new, self._journal.new_token())

    def has(self, run_id: str) -> bool:  # noqa: ARG002 - results come through the store
        """Return False: the store has the results."""
        return False

    def turn_of(self, session_id: str) -> str | None:  # noqa: ARG002
        """Return None: the server decides where turns are executed."""
        return None

    async def quiet(self) -> None:
        """Return at once: a simulated clock cannot advance the time of a server."""

    # --- hints ---

    def _on_topic(self, topic: str) -> None:
        _, _, rest = topic.partition(":")
        attempts = self._live.values() if not rest else filter(None, (self._live.get(int(rest)),))
        for attempt in tuple(attempts):
            attempt.hint()

    # --- attempts ---

    async def execute(self, context: Any, run: int) -> None:
        """Execute one attempt of a run in a handler of the server."""
        invocation = context.request().id
        taken = await self._take(run)
        if taken is None:
            await self._end_invocation(context, invocation)
            return
        standing = await self._standing(taken)
        if is_outdated(context, taken, standing):
            await self._host.client.kill(invocation)
            raise AttemptFailed(f"{taken.fence.name} was moved to another invocation")
        client = self._host.client
        journal = SdkJournal(
            context,
            self._attempt_tasks,
            partial(self._request_cancel, taken.fence.scope),
            partial(read_names, client, invocation),
        )
        attempt = Attempt(
            self._journal,
            journal,
            self._parts.drives,
            self._park_after,
            self._host.client.ring,
            lambda: self.is_open,
        )

        async def explain(refusal: EngineRefused) -> LashError | None:
            # It was resumed by a retry or a cancel: a person has decided that it goes on, by key. The records of a turn
            # have no such form, because its messages are written with its end.
            is_process = isinstance(taken.fence.scope, ProcessScope)
            if is_process and await was_paused(client, invocation):
                return None
            names = await journal.recorded()
            return divergence(attempt.run, taken.fence, refusal, names)

        self._live[run] = attempt
        try:
            end = await attempt.execute(taken, standing, explain)
        except Suspended:
            raise SuspendedException from None
        except EngineRefused as refusal:
            trouble = await explain(refusal)
            if trouble is None:
                await self._move(taken, invocation)
                raise AttemptFailed(f"{taken.fence.name} goes on in another invocation") from None
            await self._block(taken, trouble)
            end = AttemptEnd.BLOCKED
        finally:
            if self._live.get(run) is attempt:
                del self._live[run]
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

    async def _take(self, run: int) -> Taken | None:
        """Own the run for this attempt; None if it has ended."""
        membership, token = self._journal.membership, self._journal.new_token()
        while True:
            try:
                return await self._journal.store.runs.take(run, membership.worker, token)
            except StoreError:
                if not self.is_open:
                    raise
                await asyncio.sleep(STORE_AWAY_SECONDS)
            except LashError:
                await membership.renew()  # others gave us up: join again
                await asyncio.sleep(STORE_AWAY_SECONDS)

    async def _standing(self, taken: Taken) -> Standing:
        """Return the process or turn of a run as it is in the store."""
        store, fence = self._journal.store, taken.fence
        attached = Attached(fence, taken.now)
        if isinstance(fence.scope, ProcessScope):
            process = (await until_answered(partial(store.processes.resume, [fence.run])))[
                fence.run
            ]
            return Standing(process.record, Attached(fence, taken.now, process.entries))
        turn = (await until_answered(partial(store.sessions.resume, [fence.run])))[fence.run]
        return Standing(turn.turn, attached, TurnStanding(turn.session))

    async def _end_invocation(self, context: Any, invocation: str) -> None:
        """End an invocation whose run has ended in the store."""
        # An attempt that has recorded entries must ask for them before it may return, so it cannot end by itself.
        if context.vm.is_replaying():
            await self._host.client.kill(invocation)
            raise AttemptFailed("the run has ended")

    async def _move(self, taken: Taken, invocation: str) -> None:
        """Let a run that was retried continue by key in a new invocation: its code asks in another order than the recorded one."""
        store, client = self._journal.store, self._host.client
        whole = partial(whole_result, store.attachments)
        recorded = await read_recorded(client, invocation, whole)
        _log.info("%s goes on with what it has recorded, by key", taken.fence.name)
        move = partial(store.journal.move, taken.fence, *recorded, taken.moves + 1)
        await until_answered(move)
        # Only now: what it has recorded is in the store.
        await client.kill(invocation)

    async def _block(self, taken: Taken, trouble: LashError) -> None:
        _log.warning("%s is blocked: %s", taken.fence.name, trouble)
        reason = f"{trouble.code}: {trouble.message}"
        await self._journal.store.runs.block(taken.fence, reason)

    async def _request_cancel(self, scope: ExecutionScope) -> None:
        """Request the cancel of a run whose invocation was cancelled at the server."""
        store, session = self._journal.store, session_of(scope)
        if session is None:
            await store.processes.perform(CancelProcess(scope.id, CANCELLED), None)
        else:
            await store.sessions.cancel(session, CANCELLED)


def is_outdated(context: Any, taken: Taken, standing: Standing) -> bool:
    """Return whether the run was moved to another invocation than the one of an attempt."""
    if not isinstance(standing.subject, ProcessRecord):
        return False
    subject = standing.subject
    return bool(context.key() != process_key(subject.id, subject.state.epoch, taken.moves))
