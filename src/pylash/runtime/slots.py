"""Slots: how many runs execute here at once. Runs that go on come before runs that begin."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pylash.runtime.runs import LiveRun


class Slots(Protocol):
    """Who lends a run the right to execute, and hears when it waits."""

    async def take_slot(self, run: LiveRun) -> None:
        """Return once the run may execute."""
        ...

    def idle(self, run: LiveRun) -> None:
        """Hear that every branch of the run waits."""
        ...

    def busy(self, run: LiveRun) -> None:
        """Hear that a branch of the run goes on."""
        ...


class SlotPool:
    """The slots of a worker; ``freed`` is called when one is free and nobody waits for it."""

    def __init__(self, size: int, freed: Callable[[], None]) -> None:
        self.free = size
        self._freed = freed
        self._queue: deque[asyncio.Future[None]] = deque()

    def reserve(self, slots: int = 1) -> None:
        """Take slots that are free."""
        self.free -= slots

    async def take(self) -> None:
        """Return once a slot is ours.

        Cancellation: safe, none is taken.
        """
        if self.free > 0:
            self.free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    def give_back(self, slots: int = 1) -> None:
        """Give slots to those who wait for one, the longest first."""
        for _ in range(slots):
            while self._queue:
                turn = self._queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    break
            else:
                self.free += 1
        if self.free > 0:
            self._freed()
