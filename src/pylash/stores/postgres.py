"""PostgreSQL: short transactions at READ COMMITTED, run again when the server says so.

Rule 1. Every operation may be run again: after a deadlock, a lost connection, and a COMMIT whose
        answer was lost. That is why operations carry their own idempotency tokens.
Rule 2. Rows of one statement that arrive together are written together; a row that did not come
        back is run alone, so that it gets its own verdict.
Rule 3. One connection is the anchor: it listens, and holds the locks that die with us.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from weakref import WeakSet

import asyncpg
import msgspec

from pylash.durable import Clock, Entropy
from pylash.stores.anchor import (
    BACKOFF_SECONDS,
    CHANNEL,
    COMMAND_SECONDS,
    CONNECT_SECONDS,
    LOST,
    AdvisoryLocks,
)
from pylash.stores.fair_queue import FairQueue
from pylash.stores.postgres_links import Link, Loan, statements
from pylash.stores.sql import MAX_REPEATS, Again, Bulk, Operation, Publisher, gave_up
from pylash.tasks import TaskOwner, at_once
from pylash.values import (
    StoreClosed,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUrlInvalid,
    decode,
    encode,
    hide_secrets,
    url_secrets,
)

T = TypeVar("T")

BAD_PORT: Final = "is not understood (its port is no number; a '/', '?', '#' or '@' in a password must be escaped)"
CONNECTIONS: Final = 8
NEWCOMERS: Final = 4
"""How many connections operations that bring new work may have: the others are for work under way."""
WRITERS: Final = 2
"""How many batches of rows are on their way at once."""
BATCH_ROWS: Final = 512
SHARED_ROWS: Final = 64
"""More of them are shared by the writers: while the server writes some, the loop goes on with others."""
RETRY_SECONDS: Final = 30.0
"""How long an operation waits for a server that went away."""
REPEAT_SECONDS: Final = 0.001
"""How long to wait before an operation is repeated after a conflict; longer each time, up to 50 times this."""
LOOKS: Final = 10
"""How often a link is looked at while it waits for an answer, before it is given up."""
RECEIVE_BYTES: Final = 64 * 1024
NOTIFY_BYTES: Final = 7_900
"""What one notification can carry, with a margin."""

# Statements with arrays would be planned at every call, which takes longer than running them.
SETTINGS = {
    "application_name": "pylash",
    "plan_cache_mode": "force_generic_plan",
    # A worker whose event loop is blocked, or that is paused, must not keep the locks of a transaction
    # that it had begun: nobody could take its runs over. It is well below the default lease.
    "idle_in_transaction_session_timeout": "3s",
}


_REPEAT = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, Again)


class _Row(msgspec.Struct, eq=False):
    """A row on its way, with the operation that writes it alone."""

    operation: Operation[Any]
    bulk: Bulk
    future: asyncio.Future[Any]


class PostgresDriver(Publisher):
    """Runs operations on one PostgreSQL database."""

    is_far = True

    def __init__(self, url: str, clock: Clock | None, entropy: Entropy) -> None:
        self._url = url
        self._clock = clock
        self._name = entropy(8).hex()
        super().__init__()
        self._idle: list[Link] = []
        self._links: WeakSet[Link] = WeakSet()
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._newcomers = FairQueue[asyncio.Future[None]](NEWCOMERS)
        self._rows: list[_Row] = []
        self._alone = False
        self._landing: asyncio.Future[None] | None = None
        self._resting: list[asyncio.Future[None]] = []
        self._scheduled = False
        self._open = False
        self._tasks = TaskOwner()
        self._writes = TaskOwner()
        self._operations = TaskOwner()
        self.locks = AdvisoryLocks(self.connection, self.hear, self.publish)

    # --- opening and closing ---

    async def open(self) -> None:
        """Connect, and drop the anchor."""
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
        self._tasks.serve(self._hang_up())
        self._open = True
        for _ in range(WRITERS):
            self._writes.serve(self._write_rows())

    def _hidden(self, error: BaseException) -> str:
        """Return the text of an error without the passwords in the URL."""
        return hide_secrets(str(error), url_secrets(self._url)) or type(error).__name__

    async def close(self) -> None:
        """Finish what was submitted, then disconnect."""
        if not self._open:
            return
        self._open = False
        try:
            if self._alone:
                self._landing = self._loop.create_future()
                await self._landing
        finally:
            for bell in self._resting:
                bell.set_result(None)
        await self._writes.finish()
        await self._operations.finish()
        await self._tasks.close()
        await self.locks.disconnect()
        for link in self._idle:
            with contextlib.suppress(*LOST):
                await link.connection.close(timeout=CONNECT_SECONDS)

    async def connection(self, **options: Any) -> Any:
        """Return a new connection."""
        made = await asyncpg.connect(
            self._url, timeout=CONNECT_SECONDS, server_settings=SETTINGS, **options
        )
        # The loop allocates this much for each answer, however short; more of it would come from mmap.
        with contextlib.suppress(AttributeError):  # of a loop that is not asyncio's
            made._transport.max_size = RECEIVE_BYTES  # noqa: SLF001 - there is no other way
        return made

    async def _connect(self) -> Link:
        link = Link(await self.connection())
        self._links.add(link)
        return link

    async def _hang_up(self) -> None:
        """End connections whose server does not answer: who waits for it tries again.

        One look at all of them now and then costs less than a timer for each statement.
        """
        while True:
            await asyncio.sleep(COMMAND_SECONDS / LOOKS)
            for link in tuple(self._links):
                if link.looks is not None:
                    link.looks += 1
                    if link.looks > LOOKS:
                        link.connection.terminate()

    # --- operations ---

    def run(self, operation: Operation[T]) -> Awaitable[T]:
        """Run operation, again if the server says so; rows that come together go together."""
        if not self._open:
            raise StoreClosed
        if operation.bulk is None:
            # A task of its own: cancelling the caller leaves no transaction half-way.
            return asyncio.shield(self._operations.start(self._run(operation)))
        row = _Row(operation, operation.bulk, self._loop.create_future())
        if self._nothing_else(row.bulk):
            at_once(self._write_at_once(row))
        else:
            self._rows.append(row)
            self._ring()
        return row.future

    def reader(self, operation: Operation[T]) -> Callable[[], T]:
        """Return how a thread that may wait runs an operation that reads."""

        async def read() -> T:
            now = asyncio.get_running_loop().time
            until = now() + RETRY_SECONDS
            while True:
                try:
                    connection = await self.connection(command_timeout=COMMAND_SECONDS)
                    try:
                        return await statements(Link(connection), operation.steps(), {})
                    finally:
                        connection.terminate()
                except LOST:
                    if now() >= until:
                        raise
                    await asyncio.sleep(BACKOFF_SECONDS)

        def read_elsewhere() -> T:
            # On a loop of its own: ours may be what waits.
            with ThreadPoolExecutor(1) as thread:
                try:
                    return thread.submit(asyncio.run, read()).result()
                except LOST as error:
                    raise _unreachable(self._hidden(error)) from error
                except asyncpg.PostgresError as error:
                    raise _refused(error) from error

        return read_elsewhere

    def hear(self, payload: str) -> None:
        """Take what another process notified; our own echo is known already."""
        sender, *topics = decode(payload.encode())
        if sender != self._name:
            for topic in topics:
                self.publish(topic)

    async def _run(self, operation: Operation[T]) -> T:
        until: float | None = None
        repeats = 0
        while True:
            try:
                async with (
                    self._admitted(operation.flow),
                    self._borrowed(urgent=operation.urgent) as link,
                ):
                    return await self._drive(link, operation)
            except _REPEAT as error:
                repeats += 1
                if repeats > MAX_REPEATS:
                    raise gave_up(f"The operation {operation.name!r}") from error
                await asyncio.sleep(REPEAT_SECONDS * min(repeats, 50))
            except LOST as error:
                if isinstance(error, ValueError):  # a parameter asyncpg cannot encode
                    raise _refused(error) from error
                until = until or self._loop.time() + RETRY_SECONDS
                if self._loop.time() >= until:
                    raise _unreachable(self._hidden(error)) from error
                await asyncio.sleep(BACKOFF_SECONDS)
            except asyncpg.PostgresError as error:
                raise _refused(error) from error

    @contextlib.asynccontextmanager
    async def _admitted(self, flow: str | None) -> AsyncIterator[None]:
        """Wait until it is the flow's turn, if there is one."""
        if flow is None:
            yield
            return
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

    def _borrowed(self, *, urgent: bool = False) -> Loan:
        """Lend a connection; what is urgent does not queue: it gets a connection more."""
        return Loan(self._idle, None if urgent else self._room, self._connect)

    async def _drive(self, link: Link, operation: Operation[T]) -> T:
        """Run operation's statements on link, in a transaction unless it needs none."""
        await self._set_time(link)
        topics: dict[str, None] = {}
        if operation.bare or operation.read_only:
            result = await statements(link, operation.steps(), topics)
        else:
            await link.say("begin")
            try:
                result = await statements(link, operation.steps(), topics)
                for payload in self._payloads(list(topics)):
                    await link.execute(f"select pg_notify('{CHANNEL}', ?)", (payload,))
                await link.say("commit")
            except (*LOST, asyncio.CancelledError):
                raise  # the connection is thrown away, and its transaction with it
            except BaseException:
                await link.say("rollback")
                raise
        for topic in topics:
            self.publish(topic)
        return result

    def _payloads(self, topics: list[str]) -> list[str]:
        """Return what tells others of topics, each short enough for one notification."""
        if not topics:
            return []
        payload = encode([self._name, *topics]).decode()
        if len(payload.encode()) <= NOTIFY_BYTES:
            return [payload]
        if len(topics) == 1:  # a very long name: everyone looks at everything
            return self._payloads([""])
        half = len(topics) // 2
        return self._payloads(topics[:half]) + self._payloads(topics[half:])

    async def _set_time(self, link: Link) -> None:
        """Make a simulated clock the database's."""
        if self._clock is not None:
            now = str(self._clock.now())
            await link.execute("select set_config('pylash.now', ?, false)", (now,))

    # --- rows that go together ---

    def _ring(self) -> None:
        """Wake a writer that rests, if none is about to wake."""
        if self._resting and not self._scheduled:
            self._scheduled = True
            self._resting.pop().set_result(None)

    def _nothing_else(self, bulk: Bulk) -> bool:
        """Return whether nothing is on its way: then a row need not wait for others to go with."""
        if bulk.lone is None or self._rows or self._alone or self._clock is not None:
            return False
        resting = len(self._resting) == WRITERS and not self._scheduled
        return resting and bool(self._idle) and self._idle[-1].knows(bulk.lone)

    async def _write_at_once(self, row: _Row) -> None:
        """Write a row that is alone. If that fails, it waits for a writer as others do."""
        bulk, link, written = row.bulk, self._idle.pop(), list[tuple[Any, ...]]()
        assert bulk.lone is not None
        self._alone = True
        try:
            written = (await link.execute(bulk.lone, bulk.row)).rows
            self._idle.append(link)
        except Exception:  # noqa: BLE001 - whatever it was, the writer will find out
            link.connection.terminate()
        self._alone = False
        if self._landing is not None:
            _answer(self._landing, None)
        if written:
            self._tell(row, written[0][len(bulk.key) :])
        else:
            self._rows.append(row)
            self._ring()

    async def _write_rows(self) -> None:
        """Write what has come in by now, and what comes in meanwhile; rest when nothing is left."""
        while True:
            while self._rows:
                batch = self._next_rows()
                if self._rows:
                    self._ring()
                await self._write(batch)
            if not self._open:
                return
            bell: asyncio.Future[None] = self._loop.create_future()
            self._resting.append(bell)
            await bell
            self._scheduled = False

    def _next_rows(self) -> list[_Row]:
        """Take the rows that one statement can write together with the oldest."""
        if len(self._rows) == 1:
            return [self._rows.pop()]
        many = self._rows[0].bulk.many
        size = min(BATCH_ROWS, max(SHARED_ROWS, len(self._rows) // WRITERS))
        batch = [row for row in self._rows if row.bulk.many is many][:size]
        taken = set(map(id, batch))
        self._rows = [row for row in self._rows if id(row) not in taken]
        return batch

    async def _write(self, batch: list[_Row]) -> None:
        if len(batch) == 1:
            await self._write_one(batch[0])
            return
        # Of two rows with one key the database would keep either: each of them asks by itself.
        firsts = {row.bulk.key: row for row in reversed(batch)}
        together = list(firsts.values())
        only = together[0].bulk.one is not None and len(together) == 1
        written = {} if only else await self._write_together(together)
        others: list[_Row] = []
        for row in batch:
            key = row.bulk.key
            if key in written and firsts[key] is row:
                self._tell(row, written[key])
            else:
                others.append(row)
        if others:
            async with asyncio.TaskGroup() as group:
                for row in others:
                    group.create_task(self._write_alone(row))

    async def _write_one(self, row: _Row) -> None:
        """Write a row that came by itself: in one statement for that, if it has one."""
        bulk = row.bulk
        if bulk.lone is not None and (written := await self._attempt(bulk.lone, bulk.row)):
            self._tell(row, written[0][len(bulk.key) :])
        else:
            await self._write_alone(row)

    def _tell(self, row: _Row, rest: tuple[Any, ...]) -> None:
        """Tell of a row that was written, with what came back after its key."""
        bulk = row.bulk
        _answer(row.future, bulk.value if bulk.read is None else bulk.read(rest))
        if bulk.topic is not None:
            self.publish(bulk.topic)

    async def _write_together(self, batch: list[_Row]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Write the rows of batch in one statement; return what came back, by key."""
        first = batch[0].bulk
        size = len(first.key)
        rows = (row.bulk.row for row in batch)
        params = tuple(list(column) for column in zip(*rows, strict=True))
        return {row[:size]: row[size:] for row in await self._attempt(first.many, params)}

    async def _attempt(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return what a statement writes: nothing if it fails, for each row will find out for itself."""
        try:
            async with self._borrowed() as link:
                await self._set_time(link)
                return (await link.execute(sql, params)).rows
        except Exception:  # noqa: BLE001 - whatever it was
            return []

    async def _write_alone(self, row: _Row) -> None:
        try:
            _answer(row.future, await self._run(row.operation))
        except Exception as error:  # noqa: BLE001 - it is the caller's, not ours
            if not row.future.done():
                row.future.set_exception(error)


def _answer(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _unreachable(reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"PostgreSQL cannot be reached ({reason}): "
        "check the store URL, and that the server runs and accepts connections."
    )


def _refused(error: Exception) -> StoreError:
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull(
            f"PostgreSQL's disk is full and nothing of the operation was written ({error})."
        )
    return StoreRefused(f"PostgreSQL refused the operation ({error}).")
