"""The listening connection to PostgreSQL, whose session also holds the advisory locks of our workers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg

from pylash.durable.runs import WorkerId
from pylash.values.errors import StoreBusy

CONNECT_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 30.0
BACKOFF_SECONDS: Final = 0.1
LOCKS_SETTLE_SECONDS: Final = 3.0
"""After a restart of the server, locks are free until their workers reconnect: so long, none counts as dead."""
PING_SECONDS: Final = 5.0
RETAKE_TRIES: Final = 50
CHANNEL: Final = "pylash"

_TRY_LOCK = "select pg_try_advisory_lock($1)"
_UNLOCK = "select pg_advisory_unlock($1)"

LOST = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # it was interrupted and cannot be used again
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,  # a transaction was idle for too long
)


class AdvisoryLocks:
    """A connection that listens for notifications, and whose session holds our workers' locks."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        on_notification: Callable[[str], None],
        publish: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._on_notification = on_notification
        self._publish = publish
        self._held: set[WorkerId] = set()  # workers whose locks a new connection must take again
        self._lost = asyncio.Event()  # set while the connection is broken
        self._asking = asyncio.Lock()  # held during each statement: a connection runs one at a time
        self._settled_at = 0.0  # before that, a free lock does not mean that its worker is dead

    async def connect(self) -> None:
        """Listen, and take the locks of the last connection again."""
        self._lost.clear()
        connection = await self._connect()
        try:
            connection.add_termination_listener(lambda _: self._lost.set())
            await connection.add_listener(
                CHANNEL, lambda _connection, _pid, _channel, payload: self._on_notification(payload)
            )
            for worker in tuple(self._held):
                await _retake(connection, worker)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection

    async def keep(self) -> None:
        """Reconnect whenever the connection is lost; then the blank topic makes listeners read everything."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_SECONDS):
                    await self._lost.wait()
            if not self._lost.is_set():
                await self._ping()
                continue
            try:
                await self.connect()
            except (*LOST, asyncpg.PostgresError):
                self._lost.set()
                await asyncio.sleep(BACKOFF_SECONDS)
                continue
            self._settled_at = asyncio.get_running_loop().time() + LOCKS_SETTLE_SECONDS
            self._publish("")

    async def _ping(self) -> None:
        """Detect a half-open connection, which receives no notifications and holds no locks."""
        try:
            async with self._asking:
                await self._connection.fetchval("select 1", timeout=CONNECT_SECONDS)
        except (*LOST, asyncpg.PostgresError):
            self._connection.terminate()
            self._lost.set()

    async def disconnect(self) -> None:
        """Close the connection."""
        with contextlib.suppress(*LOST, asyncpg.PostgresError):
            await self._connection.close(timeout=CONNECT_SECONDS)

    async def acquire(self, worker: WorkerId) -> None:
        """Take worker's lock for as long as the connection lives; it is taken again after a reconnect."""
        if worker in self._held:
            return
        answer = await self._ask(_TRY_LOCK, worker)
        while answer is None:  # the connection is being replaced
            await asyncio.sleep(BACKOFF_SECONDS)
            answer = await self._ask(_TRY_LOCK, worker)
        if not answer:
            raise StoreBusy(f"The worker name {worker!r} is in use: choose another.")
        self._held.add(worker)

    async def is_free(self, worker: WorkerId) -> bool:
        """Return whether worker's lock is free."""
        if worker in self._held or asyncio.get_running_loop().time() < self._settled_at:
            return False
        if not await self._ask(_TRY_LOCK, worker):
            return False  # held, or unknown while the connection is replaced
        await self._ask(_UNLOCK, worker)
        return True

    async def release(self, worker: WorkerId) -> None:
        """Release worker's lock."""
        self._held.discard(worker)
        await self._ask(_UNLOCK, worker)

    async def _ask(self, sql: str, worker: WorkerId) -> bool | None:
        """Return the answer of the server, or None while the connection is being replaced."""
        async with self._asking:
            try:
                number = _number(worker)
                return bool(await self._connection.fetchval(sql, number, timeout=COMMAND_SECONDS))
            except (*LOST, asyncpg.PostgresError):
                return None


async def _retake(connection: Any, worker: WorkerId) -> None:
    """Take worker's lock on a new connection, once the server has closed the session of the old one."""
    for _ in range(RETAKE_TRIES):
        if await connection.fetchval(_TRY_LOCK, _number(worker)):
            return
        await asyncio.sleep(BACKOFF_SECONDS)
    raise ConnectionError("the server has not closed the session of the last connection")


def _number(worker: WorkerId) -> int:
    digest = hashlib.blake2b(f"pylash:{worker}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
