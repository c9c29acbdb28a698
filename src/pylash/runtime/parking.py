"""Parking: runs that only wait are dropped from memory, and keep one row.

Parking is a compare-and-set on how often the run was woken; while it is under way no branch goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from pylash.durable import Runs
from pylash.runtime.runs import LiveRun
from pylash.tasks import TaskOwner
from pylash.values import LeaseLost, StoreError

MAX_IDLE: Final = 256
"""How many runs may wait in memory; beyond that the longest idle is parked."""

DETACH_GRACE: Final = 1.0
"""How long the code of a parked run may take to end."""


class Parking:
    """The runs that are idle, the longest first."""

    def __init__(
        self,
        runs: Runs,
        park_after: float,
        relook: Callable[[LiveRun, int], Awaitable[None]],
        tasks: TaskOwner,
    ) -> None:
        self.changed = asyncio.Event()
        self._runs = runs
        self._park_after = park_after
        self._relook = relook
        self._tasks = tasks
        self._idle: dict[LiveRun, float] = {}

    def add(self, run: LiveRun) -> None:
        """Hear that a run is idle."""
        self._idle[run] = asyncio.get_running_loop().time()
        self.changed.set()

    def remove(self, run: LiveRun) -> None:
        """Hear that a run is not idle any more."""
        self._idle.pop(run, None)

    async def park_forever(self) -> None:
        """Park the runs that have been idle long enough."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next(loop.time())):
                    await self.changed.wait()
            self.changed.clear()
            due = self._due(loop.time())
            if due:
                await asyncio.wait([self._tasks.start(self.park(run)) for run in due])

    async def park(self, run: LiveRun) -> None:
        """Drop an idle run and keep its row, unless it was woken meanwhile."""
        if run.parking is not None or run.closed or not run.is_idle or run.journal is None:
            return
        run.parking = asyncio.get_running_loop().create_future()
        woken = away = False
        try:
            woken = not await self._runs.park(run.fence, run.wake_seq, run.until())
            if not woken:
                run.parked = True
                run.close()
        except LeaseLost as error:
            run.close(error)
        except StoreError:  # for the moment: wait as long again
            away = True
            self.remove(run)
            if run.is_idle:
                self.add(run)
        finally:
            verdict, run.parking = run.parking, None
            verdict.set_result(None)
        if woken:
            await self._woken(run)
        elif not away:
            await run.finish(DETACH_GRACE)

    async def _woken(self, run: LiveRun) -> None:
        """Look at everything the run waits for; it may be idle again after that."""
        self.remove(run)
        with suppress(StoreError):
            standing = await self._runs.wake_seqs([run.record.run])
            await self._relook(run, standing[run.record.run][0])
        if run.is_idle and not run.closed:
            self.add(run)

    def _next(self, now: float) -> float | None:
        """Return how long until the next run is due, if one is idle."""
        if not self._idle:
            return None
        if len(self._idle) > MAX_IDLE:
            return 0
        return max(0.0, next(iter(self._idle.values())) + self._park_after - now)

    def _due(self, now: float) -> list[LiveRun]:
        over = len(self._idle) - MAX_IDLE
        due = []
        for place, (run, since) in enumerate(self._idle.items()):
            if place >= over and since + self._park_after > now:
                break
            due.append(run)
        return due
