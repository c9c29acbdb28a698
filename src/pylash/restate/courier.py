"""The courier: tells the engine which runs are ready, and rings the bells of those that were woken.

Rule 1. The store is the outbox. A row that is ready is sent after the transaction that made it ready has committed, and
        again until the engine has taken the run; sending twice changes nothing.
Rule 2. A server that is away is asked whether it is ready, with pauses, before anything is sent: the pause until a run is due
        again grows with each time that it is sent.
Rule 3. Any number of couriers may work on one store. A courier that dies has lost nothing: the row is due again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from pylash.durable.runs import MOVES, SECOND, Dispatch
from pylash.durable.scopes import ExecutionScope, ProcessScope, QueueDrainScope, TurnScope
from pylash.durable.stores import Store
from pylash.engine.hub import NET_SECONDS, Hub, wait_for_hint
from pylash.restate.clients import PROCESS_SERVICE, TURN_SERVICE, BackOff, RestateClient
from pylash.restate.engine_mark import ENGINE
from pylash.values.errors import StoreError
from pylash.values.process_errors import RestateRefused

BATCH: Final = 100
"""How many runs are read from the store at a time."""
CONCURRENCY: Final = 16
"""How many of them are sent at a time."""

_EPOCH: Final = re.compile(r"(?<!~)((?:~~)*)~\d+(?:~\d+)?$")

REPLACE_TRIES, REPLACE_SECONDS = 10, 0.05
"""How often, and after which pauses, the key of an invocation that was killed is asked for before the next delivery."""

_log = logging.getLogger("pylash")


class Courier:
    """Sends the ready runs of a store to a Restate server."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        client: RestateClient,
        targets: Callable[[], Awaitable[Sequence[str]]],
        store_id: str,
    ) -> None:
        self.kick = asyncio.Event()
        self._store = store
        self._hub = hub
        self._client = client
        # Asked for every time: an app may declare processes while it is open.
        self._targets = targets
        self._store_id = store_id
        self._free = asyncio.Semaphore(CONCURRENCY)
        # Failures in a row. While there are any, and at first, the server is asked whether it is ready before runs are sent.
        self._back_off: BackOff | None = BackOff()
        # Why a run of the current batch could not be sent: the others are not sent either.
        self._failure: StoreError | None = None

    async def work_forever(self) -> None:
        """Send what is ready, now and whenever a hint comes, a delay is over or a hint may have been lost."""
        unsubscribe = self._hub.subscribe(lambda _: self.kick.set(), "runs")
        try:
            while True:
                try:
                    seconds = await self._work()
                except StoreError as error:  # the store or the server is away for the moment
                    await asyncio.sleep(self._pause_after(error))
                except Exception as error:  # noqa: BLE001 - one broken row must not stop the others
                    _log.exception("the courier failed and continues")
                    await asyncio.sleep(self._pause_after(error))
                else:
                    await wait_for_hint(self.kick, seconds)
        finally:
            unsubscribe()

    async def _work(self) -> float:
        """Send what is ready; return the seconds until more is due."""
        if self._back_off is not None:
            await self._client.check_ready()
        seconds = await self._send_ready()
        if self._back_off is not None and self._back_off.failures:
            _log.info("runs are sent to Restate again")
        self._back_off = None
        return seconds

    def _pause_after(self, error: Exception) -> float:
        """Return how long to wait after a failure; only the first of several in a row is logged."""
        if self._back_off is None:
            self._back_off = BackOff()
        if not self._back_off.failures and isinstance(error, StoreError):
            _log.warning("runs are not sent to Restate for now: %s", error)
        return self._back_off.seconds()

    async def _send_ready(self) -> float:
        """Send the runs that are ready; return the seconds until the next one is due."""
        for run, bell in await self._store.runs.ended_elsewhere(self._targets, BATCH):
            await self._end(run, bell)
        self._failure = None
        rows, due = await self._store.runs.dispatch(ENGINE, await self._targets(), BATCH)
        async with asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(self._send(row))
        if self._failure is not None:
            raise self._failure
        if len(rows) == BATCH:
            return 0.0
        return NET_SECONDS if due is None else min(NET_SECONDS, max(0.0, due / SECOND))

    async def _end(self, run: int, bell: str) -> None:
        """Let the server end the invocation of a run that was ended by force, or with its session."""
        try:
            if is_invocation(bell):
                await self._client.kill(bell)
            else:
                await self._client.ring(bell)  # its next attempt learns that the run has ended
            await self._store.runs.forget_bell(run)
        except StoreError as error:
            _log.warning("the invocation of run %d is ended later: %s", run, error)

    async def _send(self, row: Dispatch) -> None:
        """Ring the bell of a parked run, or send a run that the engine does not execute."""
        async with self._free:
            if self._failure is not None:
                return
            try:
                await self._deliver(row)
            except StoreError as error:
                if isinstance(error, RestateRefused) and not error.data["is_general"]:
                    _log.warning("%s was refused, and is sent again later: %s", row.scope.id, error)
                else:
                    self._failure = error

    async def _deliver(self, row: Dispatch) -> None:
        if row.bell is not None and not is_invocation(row.bell):
            await self._client.ring(row.bell)
            return
        service, key = service_and_key(row.scope, row.epoch, row.moves)
        given = {"run": row.run, "store": self._store_id}
        invocation = await self._client.send(service, key, given)
        if invocation is None:
            return
        known = await self._client.input_of(invocation)
        if known.get("store") == self._store_id and known["run"] != row.run:
            await self._replace(invocation, partial(self._client.send, service, key, given))
        else:
            # The engine executes the run again by itself, unless it is paused because it was blocked.
            await self._client.resume(invocation)

    async def _replace(self, invocation: str, send: Callable[[], Awaitable[str | None]]) -> None:
        """Send a run whose key was that of an earlier one, which has ended: a session was deleted, and its ids are used again."""
        await self._client.kill(invocation)
        for _ in range(REPLACE_TRIES):
            await self._client.purge(invocation)
            if await send() is None:
                return
            await asyncio.sleep(REPLACE_SECONDS)


def is_invocation(bell: str) -> bool:
    """Return whether a bell is the invocation of a blocked run, and not what wakes a parked one."""
    return bell.startswith("inv_")


async def address_of(store: Store, scope: ExecutionScope) -> tuple[str, str]:
    """Return the service of a run, and its key there."""
    if not isinstance(scope, ProcessScope):
        return service_and_key(scope)
    record = await store.processes.get(scope.process_id)
    if record is None:
        return service_and_key(scope)
    note = await store.journal.entry(record.run, MOVES)
    moves = 0 if note is None else int(note.outcome or b"0")
    return service_and_key(scope, record.state.epoch, moves)


def service_and_key(scope: ExecutionScope, epoch: int = 0, moves: int = 0) -> tuple[str, str]:
    """Return the service of a run, and its key there.

    ``epoch`` is the number of a process's journal, after ``continue_as``, and ``moves`` how often its records were moved.

    >>> [service_and_key(ProcessScope("order-7"), *one)[1] for one in ((0, 0), (2, 0), (0, 1))]
    ['order-7', 'order-7~2', 'order-7~0~1']
    """
    match scope:
        case ProcessScope(process_id=process_id):
            name = process_id.replace("~", "~~")
            if moves:
                return PROCESS_SERVICE, f"{name}~{epoch}~{moves}"
            return PROCESS_SERVICE, name if epoch == 0 else f"{name}~{epoch}"
        case TurnScope(session_id=session, turn_id=turn):
            return TURN_SERVICE, f"{_escaped(session)}|{_escaped(turn)}"
        case QueueDrainScope(session_id=session, drain_id=drain):
            return TURN_SERVICE, f"{_escaped(session)}||{_escaped(drain)}"
        case _:
            raise AssertionError(f"no run of {scope} is sent")


def without_epoch(key: str) -> str:
    """Return the key of a process's first journal."""
    return _EPOCH.sub(r"\1", key)


def _escaped(name: str) -> str:
    return name.replace("|", "~|").replace("~", "~~") if "|" in name else name
