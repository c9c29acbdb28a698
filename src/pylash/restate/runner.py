"""The runner on Restate: runs are sent to the server, and the server calls the workers that execute their attempts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from restate.exceptions import SuspendedException

from pylash.durable.commands import CancelProcess, StartProcess
from pylash.durable.processes import carried_target
from pylash.durable.runs import Attached, Taken
from pylash.durable.scopes import ExecutionScope, ProcessScope, session_of
from pylash.durable.sessions import NewTurn
from pylash.engine.runner_parts import RunnerParts
from pylash.engine.runs.standings import Standing, TurnStanding
from pylash.engine.store_answers import STORE_AWAY_SECONDS
from pylash.restate.attempt import Attempt, AttemptEnd
from pylash.restate.attempt_journal import EngineRefused, Suspended
from pylash.restate.carried import ENGINE, carried
from pylash.restate.controller import until_answered
from pylash.restate.courier import Courier
from pylash.tasks import TaskOwner
from pylash.values.durations import seconds
from pylash.values.errors import LashError, StoreError
from pylash.values.process_errors import ReplayRefused

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
        on_cancel = partial(self._request_cancel, taken.fence.scope)
        journal = self._host.open_journal(context, self._attempt_tasks, on_cancel)
        attempt = Attempt(
            self._journal,
            journal,
            self._parts.drives,
            self._park_after,
            self._host.client.ring,
            lambda: self.is_open,
        )
        self._live[run] = attempt
        try:
            end = await attempt.execute(taken, standing)
        except Suspended:
            raise SuspendedException from None
        except EngineRefused as refusal:
            await self._block(taken, ReplayRefused(taken.fence.name, str(refusal)))
            end = AttemptEnd.BLOCKED
        finally:
            if self._live.get(run) is attempt:
                del self._live[run]
            journal.stop()
        if end is AttemptEnd.BLOCKED:
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
            return Standing(process.record, attached)
        turn = (await until_answered(partial(store.sessions.resume, [fence.run])))[fence.run]
        return Standing(turn.turn, attached, TurnStanding(turn.session))

    async def _end_invocation(self, context: Any, invocation: str) -> None:
        """End an invocation whose run has ended in the store."""
        # An attempt that has recorded entries must ask for them before it may return, so it cannot end by itself.
        if context.vm.is_replaying():
            await self._host.client.kill(invocation)
            raise AttemptFailed("the run has ended")

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
