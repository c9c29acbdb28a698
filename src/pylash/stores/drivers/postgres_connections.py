"""Connections to PostgreSQL with their prepared statements, and a pool of connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, TypeVar
from weakref import WeakSet

import asyncpg

from pylash.durable.ports import Clock
from pylash.stores.drivers.postgres_dialect import dialect
from pylash.stores.drivers.postgres_listener import COMMAND_SECONDS, CONNECT_SECONDS, LOST
from pylash.stores.operation import Notify, Rows, Steps

T = TypeVar("T")

CONNECTIONS: Final = 8
LOOKS: Final = 10
"""How often a connection is checked while it waits for one answer, before it is terminated."""

# Statements with arrays would otherwise be planned at every call, which takes longer than their execution.
SETTINGS = {
    "application_name": "pylash",
    "plan_cache_mode": "force_generic_plan",
    # A worker that is paused, or whose event loop is blocked, must not keep the locks of an open
    # transaction: its runs could not be taken over. The limit is well below the default lease.
    "idle_in_transaction_session_timeout": "3s",
}


class Link:
    """A connection with its prepared statements.

    ``looks`` counts the checks of the pool while it waits for one answer; None while it waits for none.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.looks: int | None = None
        self._prepared: dict[str, Any] = {}

    async def execute(self, sql: str, params: tuple[Any, ...]) -> Rows:
        """Run a statement."""
        self.looks = 0
        try:
            statement = self._prepared.get(sql)
            if statement is None:
                statement = self._prepared[sql] = await self.connection.prepare(dialect(sql))
            records = await statement.fetch(*params)
        finally:
            self.looks = None
        if records:
            return Rows([tuple(record) for record in records], len(records))
        changed = statement.get_statusmsg().rpartition(" ")[2]
        return Rows([], int(changed) if changed.isdigit() else 0)

    async def command(self, sql: str) -> None:
        """Run statements without parameters and results, in one round trip."""
        self.looks = 0
        try:
            await self.connection.execute(sql)
        finally:
            self.looks = None

    async def run(self, steps: Steps[T], topics: dict[str, None]) -> T:
        """Run the statements of an operation; its notifications are added to topics."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Notify):
                    topics[step.topic] = None
                    step = steps.send(Rows([], 0))
                else:
                    step = steps.send(await self.execute(step.sql, step.params))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # a generator's value has no type at run time


class Pool:
    """Connections to one database: at most ``CONNECTIONS`` are lent at once, plus those for urgent operations.

    A connection has one borrower at a time. It is closed if it failed or its borrower was cancelled, because its
    transaction may still be open.
    """

    def __init__(self, url: str, clock: Clock | None) -> None:
        self._url = url
        self._clock = clock  # a simulated clock, which sets the time of the database
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[Link] = []  # open and not lent
        self._links: WeakSet[Link] = WeakSet()  # open, lent or not

    async def connect(self) -> Any:
        """Return a new connection, which is not part of the pool."""
        return await asyncpg.connect(self._url, timeout=CONNECT_SECONDS, server_settings=SETTINGS)

    @contextlib.asynccontextmanager
    async def lend(self, *, urgent: bool = False) -> AsyncIterator[Link]:
        """Lend a connection. An urgent borrower does not wait: it gets an additional one."""
        async with contextlib.nullcontext() if urgent else self._room:
            # The connection that was returned last: it has the most prepared statements.
            link = self._idle.pop() if self._idle else Link(await self.connect())
            self._links.add(link)
            try:
                if self._clock is not None:
                    now = str(self._clock.now())
                    await link.execute("select set_config('pylash.now', ?, false)", (now,))
                yield link
            except (*LOST, asyncio.CancelledError):
                link.connection.terminate()
                raise
            except BaseException:
                self._idle.append(link)
                raise
            self._idle.append(link)

    async def end_unanswered(self) -> None:
        """Terminate connections whose server does not answer, forever; their borrowers try again.

        A periodic check of all connections costs less than a timer for each statement.
        """
        while True:
            await asyncio.sleep(COMMAND_SECONDS / LOOKS)
            for link in tuple(self._links):
                if link.looks is not None:
                    link.looks += 1
                    if link.looks > LOOKS:
                        link.connection.terminate()

    async def close(self) -> None:
        """Close the connections; none of them is lent."""
        for link in self._idle:
            with contextlib.suppress(*LOST):
                await link.connection.close(timeout=CONNECT_SECONDS)
