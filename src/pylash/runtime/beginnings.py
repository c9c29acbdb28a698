"""The beginning of a process that is executed here before its start is written.

Rule 1. Only plain code runs before that. An effect waits until the start is written, and so does whoever
        asked for it: a crash before it leaves nothing behind, and no promise.
Rule 2. The start is written when the code first waits for anything. If it ends before that, the start and
        the end are one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pylash.durable import LeasedStart, Output
from pylash.tasks import TaskOwner
from pylash.values import Misuse

Writing = asyncio.Future[LeasedStart | None]
"""The store's answer to a start."""


class Beginning:
    """A start that may not be written yet.

    ``write`` writes it, together with the end if there is one. ``hear`` takes the answer, and says whether
    the process is ours to execute.
    """

    def __init__(
        self,
        write: Callable[[Output | None], Awaitable[LeasedStart | None]],
        hear: Callable[[Writing], bool],
        tasks: TaskOwner,
    ) -> None:
        self._write = write
        self._hear = hear
        self._tasks = tasks
        self._writing: Writing | None = None
        self._is_ours: bool | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_sent(self) -> bool:
        """Whether the start is written, or on its way."""
        return self._writing is not None

    def send(self, end: Output | None = None) -> None:
        """Write the start, unless that was done, together with ``end``.

        An end that cannot be written as it is raises Misuse, and nothing is sent.
        """
        if self._writing is not None:
            return
        try:
            writing = self._tasks.future(self._write(end))
        except Exception as error:
            if end is not None and isinstance(error, Misuse):
                raise
            writing = asyncio.get_running_loop().create_future()
            writing.set_exception(error)
        self._writing = writing
        writing.add_done_callback(self._answered)

    def give_up(self) -> None:
        """Wait for no answer any more."""
        if self._writing is not None:
            self._writing.cancel()

    async def stands(self) -> bool:
        """Return whether the process is ours to execute, once its start is written.

        Cancellation: safe, the start is written all the same.
        """
        self.send()
        if self._is_ours is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return bool(self._is_ours)

    def _answered(self, writing: Writing) -> None:
        self._is_ours = self._hear(writing)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
