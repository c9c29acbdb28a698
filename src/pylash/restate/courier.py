"""The courier: tells the engine which runs are ready, and rings the bells of those that were woken.

Rule 1. The store is the outbox. A row that is ready is sent after the transaction that made it ready has committed, and
        again until the engine has taken the run; sending twice changes nothing.
Rule 2. Any number of couriers may work on one store. A courier that dies has lost nothing: the row is due again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from pylash.durable.runs import SECOND, Dispatch
from pylash.durable.scopes import ProcessScope, QueueDrainScope, TurnScope
from pylash.durable.stores import Store
from pylash.engine.hub import NET_SECONDS, Hub, wait_for_hint
from pylash.restate.carried import ENGINE
from pylash.restate.clients import PROCESS_SERVICE, TURN_SERVICE, RestateClient
from pylash.values.errors import LashError, StoreError

BATCH: Final = 100
"""How many runs are read from the store at a time."""
CONCURRENCY: Final = 16
"""How many of them are sent at a time."""
RETRY_SECONDS: Final = 0.2

_log = logging.getLogger("pylash")


class Courier:
    """Sends the ready runs of a store to a Restate server."""

    def __init__(
        self, store: Store, hub: Hub, client: RestateClient, targets: Sequence[str]
    ) -> None:
        self.kick = asyncio.Event()
        self._store = store
        self._hub = hub
        self._client = client
        self._targets = list(targets)
        self._free = asyncio.Semaphore(CONCURRENCY)

    async def work_forever(self) -> None:
        """Send what is ready, now and whenever a hint comes, a delay is over or a hint may have been lost."""
        unsubscribe = self._hub.subscribe(lambda _: self.kick.set(), "runs")
        try:
            while True:
                try:
                    seconds = await self._send_ready()
                except StoreError as error:  # away for the moment
                    _log.debug("the courier could not read the store: %s", error)
                    seconds = RETRY_SECONDS
                except Exception:  # noqa: BLE001 - one broken row must not stop the others
                    _log.exception("the courier failed and continues")
                    seconds = RETRY_SECONDS
                await wait_for_hint(self.kick, seconds)
        finally:
            unsubscribe()

    async def _send_ready(self) -> float:
        """Send the runs that are ready; return the seconds until the next one is due."""
        for run, bell in await self._store.runs.ended_elsewhere(self._targets, BATCH):
            await self._end(run, bell)
        while rows := await self._store.runs.dispatch(ENGINE, self._targets, BATCH):
            async with asyncio.TaskGroup() as group:
                for row in rows:
                    group.create_task(self._send(row))
            if len(rows) < BATCH:
                break
        due, _ = await self._store.runs.next_due(self._targets)
        return NET_SECONDS if due is None else min(NET_SECONDS, max(0.0, due / SECOND))

    async def _end(self, run: int, bell: str) -> None:
        """Let the server end the invocation of a run that was ended by force, or with its session."""
        try:
            if is_invocation(bell):
                await self._client.kill(bell)
            else:
                await self._client.ring(bell)  # its next attempt learns that the run has ended
            await self._store.runs.forget_bell(run)
        except LashError as error:
            _log.warning("the invocation of run %d is ended later: %s", run, error)

    async def _send(self, row: Dispatch) -> None:
        """Ring the bell of a parked run, or send a run that the engine does not execute."""
        async with self._free:
            try:
                if row.bell is not None and not is_invocation(row.bell):
                    await self._client.ring(row.bell)
                    return
                service, key = await self._address(row)
                invocation = await self._client.send(service, key, row.run)
                # The engine knows the run. It executes it again by itself, unless it is paused because it was blocked.
                if invocation is not None:
                    await self._client.resume(invocation)
            except LashError as error:
                _log.warning(
                    "%s could not be sent and is sent again later: %s", row.scope.id, error
                )

    async def _address(self, row: Dispatch) -> tuple[str, str]:
        """Return the service of a run, and its key there."""
        match row.scope:
            case ProcessScope(process_id=process_id):
                record = await self._store.processes.get(process_id)
                epoch = 0 if record is None else record.state.epoch
                return PROCESS_SERVICE, process_key(process_id, epoch, row.moves)
            case TurnScope(session_id=session, turn_id=turn):
                return TURN_SERVICE, f"{_escaped(session)}|{_escaped(turn)}"
            case QueueDrainScope(session_id=session, drain_id=drain):
                return TURN_SERVICE, f"{_escaped(session)}||{_escaped(drain)}"
            case scope:
                raise AssertionError(f"no run of {scope} is sent")


def is_invocation(bell: str) -> bool:
    """Return whether a bell is the invocation of a blocked run, and not what wakes a parked one."""
    return bell.startswith("inv_")


def process_key(process_id: str, epoch: int, moves: int) -> str:
    """Return the key of a process's workflow: its id, the number of its journal after ``continue_as``, and of its moves.

    >>> process_key("order-7", 0, 0), process_key("order-7", 2, 0), process_key("order-7", 0, 1)
    ('order-7', 'order-7~2', 'order-7~0~1')
    """
    name = process_id.replace("~", "~~")
    if moves:
        return f"{name}~{epoch}~{moves}"
    return name if epoch == 0 else f"{name}~{epoch}"


def _escaped(name: str) -> str:
    return name.replace("|", "~|").replace("~", "~~") if "|" in name else name
