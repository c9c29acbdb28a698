"""Connections to PostgreSQL: with their statements, and on loan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from pylash.stores.anchor import LOST
from pylash.stores.postgres_dialect import dialect
from pylash.stores.sql import Notify, Rows, Steps

T = TypeVar("T")


class Link:
    """A connection with its prepared statements. ``looks``: how often it was seen waiting for one answer."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.looks: int | None = None
        self._prepared: dict[str, Any] = {}

    def knows(self, sql: str) -> bool:
        """Return whether a statement was prepared."""
        return sql in self._prepared

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

    async def say(self, word: str) -> None:
        """Begin or end a transaction."""
        self.looks = 0
        try:
            await self.connection.execute(word)
        finally:
            self.looks = None


class Loan:
    """A connection on loan; one that failed under its borrower is thrown away."""

    def __init__(
        self,
        idle: list[Link],
        room: asyncio.Semaphore | None,
        connect: Callable[[], Awaitable[Link]],
    ) -> None:
        self._idle = idle
        self._room = room
        self._connect = connect

    async def __aenter__(self) -> Link:
        if self._room is not None:
            await self._room.acquire()
        try:
            self._link = self._idle.pop() if self._idle else await self._connect()
        except BaseException:
            self._release()
            raise
        return self._link

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, (*LOST, asyncio.CancelledError)):
            self._link.connection.terminate()
        else:
            self._idle.append(self._link)
        self._release()

    def _release(self) -> None:
        if self._room is not None:
            self._room.release()


async def statements(link: Link, steps: Steps[T], topics: dict[str, None]) -> T:
    """Run the statements of steps on link; note the topics that they tell of."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Notify):
                topics[step.topic] = None
                step = steps.send(Rows([], 0))
            else:
                step = steps.send(await link.execute(step.sql, step.params))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's value has no type at run time
