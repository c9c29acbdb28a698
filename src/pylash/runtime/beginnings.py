"""The beginning of a process that is executed here before its start is written.

Rule 1. Only plain code runs before that. An effect waits until the start is written, and so does whoever
        asked for it: a crash before it leaves nothing behind, and no promise.
Rule 2. The start is written when the code first waits for anything. If it ends before that, the start and
        the end are one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pylash.durable import LeasedStart, Output
from pylash.tasks import TaskOwner
from pylash.values import StoreError

Writing = asyncio.Future[LeasedStart | None]
"""The store's answer to a start."""


class Beginning:
    """A start that may not be written yet.

    ``write`` writes it, and the end if there is one; ``answered`` hears of it, and says whether the process
    is ours.
    """

    def __init__(
        self,
        write: Callable[[Output | None], Awaitable[LeasedStart | None]],
        answered: Callable[[Writing], bool],
        tasks: TaskOwner,
    ) -> None:
        self._tasks = tasks
        self._write = write
        self._answered = answered
        self._writing: Writing | None = None
        self._is_ours: bool | None = None

    @property
    def is_written(self) -> bool:
        """Whether the start is written, or on its way."""
        return self._writing is not None

    def begin(self, end: Output | None = None) -> Writing:
        """Write the start, unless that was done, together with ``end``."""
        if self._writing is None:
            try:
                self._writing = self._tasks.future(self._write(end))
            except StoreError as error:  # it closed this moment
                self._writing = asyncio.get_running_loop().create_future()
                self._writing.set_exception(error)
            self._writing.add_done_callback(self._hear)
        return self._writing

    async def begun(self, end: Output | None = None) -> bool:
        """Return whether the process is ours to execute, once its start is written."""
        writing = self.begin(end)
        with suppress(Exception):  # it is told to whoever asked for the start
            await asyncio.shield(writing)
        return self._hear(writing)

    def _hear(self, writing: Writing) -> bool:
        if self._is_ours is None:
            self._is_ours = self._answered(writing)
        return self._is_ours
