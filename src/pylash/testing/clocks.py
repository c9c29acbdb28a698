"""Clocks for tests: weeks in milliseconds."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from pylash.durable import SECOND, Instant
from pylash.values import Duration, seconds


class SimClock:
    """A clock that stands still until it is advanced.

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

    async def advance(self, duration: Duration) -> None:
        """Move time on, waking sleepers in the order of their times."""
        target = self._now + round(seconds(duration) * SECOND)
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not future.done():
                future.set_result(None)
                await asyncio.sleep(0)
        self._now = target
        await asyncio.sleep(0)
