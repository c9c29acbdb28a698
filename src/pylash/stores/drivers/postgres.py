"""PostgreSQL: short transactions at READ COMMITTED, with retries.

Rule 1. Every operation may be repeated: after a deadlock, a lost connection, and a COMMIT whose answer was
        lost. So operations have idempotency tokens.
Rule 2. An operation runs in its own task, so that a cancelled caller does not interrupt a transaction.
Rule 3. One connection listens for notifications; its session holds the advisory locks of our workers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, TypeVar

import asyncpg

from pylash.durable.ports import Clock, Entropy
from pylash.stores.drivers.fair_queue import FairQueue
from pylash.stores.drivers.postgres_bulk import BulkWriter
from pylash.stores.drivers.postgres_connections import Link, Pool
from pylash.stores.drivers.postgres_listener import (
    BACKOFF_SECONDS,
    CHANNEL,
    LOST,
    AdvisoryLocks,
)
from pylash.stores.operation import (
    MAX_REPEATS,
    Again,
    Operation,
    Publisher,
    Rows,
    too_many_conflicts,
)
from pylash.tasks import TaskOwner
from pylash.values.canonical import decode, encode
from pylash.values.errors import (
    Misuse,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUrlInvalid,
)
from pylash.values.secrets import hide_secrets, url_secrets

T = TypeVar("T")

BAD_PORT: Final = "cannot be parsed (its port is not a number; a '/', '?', '#' or '@' in a password must be escaped)"
NEWCOMERS: Final = 4
"""How many connections operations that start new work may use; the others are for work in progress."""
RETRY_SECONDS: Final = 30.0
"""How long an operation is retried while the server cannot be reached."""
REPEAT_SECONDS: Final = 0.001
"""The pause before an operation is repeated after a conflict; it grows each time, up to 50 times this."""
NOTIFY_BYTES: Final = 7_900
"""The most bytes of one notification, with a margin."""

_REPEAT = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, Again)


class PostgresDriver(Publisher):
    """Runs operations on one PostgreSQL database, on the event loop."""

    def __init__(self, url: str, clock: Clock | None, entropy: Entropy) -> None:
        super().__init__()
        self._url = url
        self._name = entropy(8).hex()  # the sender of our notifications
        self.pool = Pool(url, clock)
        self.bulk = BulkWriter(self._execute, self._run, self.publish)
        self.locks = AdvisoryLocks(self.pool.connect, self.on_notification, self.publish)
        self._newcomers = FairQueue[asyncio.Future[None]](NEWCOMERS)
        self._tasks = TaskOwner()  # run until the store closes
        # One task for each operation under way: they end before the store closes.
        self._operations = TaskOwner()
        self._open = False

    # --- opening and closing ---

    async def open(self) -> None:
        """Open the pool and the listening connection."""
        self._loop = asyncio.get_running_loop()
        try:
            await self.locks.connect()
        except asyncpg.PostgresError as error:
            raise StoreUnavailable(
                f"PostgreSQL refused the connection ({self._hidden(error)}): check the database, the user "
                "and the password in the store URL."
            ) from None
        except LOST as error:
            raise _unreachable(self._hidden(error)) from None
        except ValueError:  # its text quotes the part of the URL that was taken for a port
            raise StoreUrlInvalid(self._url, BAD_PORT) from None
        self._tasks.serve(self.locks.keep())
        self._tasks.serve(self.pool.end_unanswered())
        self.bulk.open()
        self._open = True

    async def close(self) -> None:
        """Finish the operations that were submitted, then disconnect."""
        if not self._open:
            return
        self._open = False
        await self.bulk.close()
        await self._operations.finish()
        await self._tasks.close()
        await self.locks.disconnect()
        await self.pool.close()

    def _hidden(self, error: BaseException) -> str:
        """Return the text of an error without the passwords in the URL."""
        return hide_secrets(str(error), url_secrets(self._url)) or type(error).__name__

    # --- operations ---

    def run(self, operation: Operation[T]) -> Awaitable[T]:
        """Run operation, with retries; operations with a bulk row are batched."""
        if not self._open:
            raise StoreClosed
        if operation.bulk is not None:
            return self.bulk.submit(operation, operation.bulk)
        return self._operations.complete(self._run(operation), quiet=Misuse)

    def on_notification(self, payload: str) -> None:
        """Publish the topics of another process; our own were published after the commit."""
        sender, *topics = decode(payload.encode())
        if sender != self._name:
            for topic in topics:
                self.publish(topic)

    async def _run(self, operation: Operation[T]) -> T:
        until: float | None = None
        repeats = 0
        while True:
            try:
                flow = operation.flow
                async with (
                    contextlib.nullcontext() if flow is None else self._admitted(flow),
                    self.pool.lend(urgent=operation.urgent) as link,
                ):
                    return await self._drive(link, operation)
            # While the operation waits for its next attempt, it holds neither a connection nor a place in the queue.
            except _REPEAT as error:
                repeats += 1
                if repeats > MAX_REPEATS:
                    raise too_many_conflicts(f"The operation {operation.name!r}") from error
                await asyncio.sleep(REPEAT_SECONDS * min(repeats, 50))
            except LOST as error:
                if isinstance(error, ValueError):  # a parameter asyncpg cannot encode
                    raise _store_error(error) from error
                until = until or self._loop.time() + RETRY_SECONDS
                if self._loop.time() >= until:
                    raise _unreachable(self._hidden(error)) from error
                await asyncio.sleep(BACKOFF_SECONDS)
            except asyncpg.PostgresError as error:
                raise _store_error(error) from error

    async def _drive(self, link: Link, operation: Operation[T]) -> T:
        """Run the statements of an operation on link, in a transaction unless it needs none."""
        topics: dict[str, None] = {}
        if operation.bare or operation.read_only:
            result = await link.run(operation.steps(), topics)
        else:
            await link.command("begin")
            try:
                result = await link.run(operation.steps(), topics)
                await link.command(self._notifications(list(topics)) + "commit")
            except (*LOST, asyncio.CancelledError):
                raise  # the connection is closed, and its transaction with it
            except BaseException:
                await link.command("rollback")
                raise
        # After the commit, so that a listener that reads finds the change.
        for topic in topics:
            self.publish(topic)
        return result

    def _notifications(self, topics: list[str]) -> str:
        """Return the statements that notify other processes of topics."""
        if not topics:
            return ""
        # A text between $$ has no escapes, so a $ in the JSON, which is always inside a string, is escaped.
        payload = encode([self._name, *topics]).decode().replace("$", "\\u0024")
        if len(payload.encode()) <= NOTIFY_BYTES:
            return f"select pg_notify('{CHANNEL}', $${payload}$$); "
        if len(topics) == 1:  # a very long name: the blank topic makes listeners read everything
            return self._notifications([""])
        half = len(topics) // 2
        return self._notifications(topics[:half]) + self._notifications(topics[half:])

    async def _execute(self, sql: str, params: tuple[Any, ...]) -> Rows:
        """Run one statement in its own transaction."""
        async with self.pool.lend() as link:
            return await link.execute(sql, params)

    # --- the queue of new work ---

    @contextlib.asynccontextmanager
    async def _admitted(self, flow: str) -> AsyncIterator[None]:
        """Wait for the turn of a flow, and hold its place in the block."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._newcomers.add(flow, turn)
        self._admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._newcomers.done()
                self._admit()

    def _admit(self) -> None:
        for turn in self._newcomers.take():
            if turn.done():  # its operation was cancelled while it waited
                self._newcomers.done()
            else:
                turn.set_result(None)


def _unreachable(reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"PostgreSQL cannot be reached ({reason}): "
        "check the store URL, and that the server runs and accepts connections."
    )


def _store_error(error: Exception) -> StoreError:
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull(
            f"PostgreSQL's disk is full and nothing of the operation was written ({error})."
        )
    return StoreRefused(f"PostgreSQL refused the operation ({error}).")
