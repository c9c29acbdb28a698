"""A simulated clock, with which a test of weeks takes milliseconds."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable

from pylash.durable.runs import SECOND, Instant
from pylash.values.durations import Duration, seconds


class SimClock:
    """A clock that does not move until it is advanced.

    >>> clock = SimClock()
    >>> before = clock.now()
    >>> asyncio.run(clock.advance("2d"))
    >>> (clock.now() - before) // SECOND
    172800
    """

    def __init__(self, start: int = 1_767_225_600 * SECOND) -> None:
        self._now = start
        self._start = start
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._watched: list[Callable[[], Awaitable[None]]] = []

    def now(self) -> Instant:
        """Return the simulated time."""
        return Instant(self._now)

    def monotonic(self) -> float:
        """Return the simulated seconds since the start."""
        return (self._now - self._start) / SECOND

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced that far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = self._now + round(seconds * SECOND)
        heapq.heappush(self._sleepers, (due, next(self._order), future))
        await future

    def watch(self, quiet: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Wait for ``quiet`` before time moves on: an open app registers itself this way.

        Returns a function that removes it.
        """
        self._watched.append(quiet)
        return lambda: self._watched.remove(quiet)

    def set_time(self, instant: int) -> None:
        """Set the time without waking sleepers, as after a pause of the whole process."""
        self._now = instant

    async def advance(self, duration: Duration) -> None:
        """Move time on, waking sleepers in the order of their times.

        Raises TimeoutError if the code of a process waits for something that is not a call of ``ctx``, such as a lock.
        """
        target = self._now + round(seconds(duration) * SECOND)
        await self._settled()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._now = max(self._now, due)
            future.set_result(None)
            await self._settled()
        self._now = target
        await self._settled()

    async def _settled(self) -> None:
        """Wait until the woken tasks, and all watched apps, are quiet."""
        await asyncio.sleep(0)
        for quiet in tuple(self._watched):
            await quiet()
