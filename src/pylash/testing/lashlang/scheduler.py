"""Coroutines without threads or a real clock.

1. Jobs run one at a time, in the order in which they became ready, until nothing can run; only then does the
   clock jump to the next due time. The same jobs therefore always do the same things in the same order.
2. A job waits for promises and nothing else. A promise is kept once.
3. What a job raises is a defect: it leaves `run`. `Cancelled` is not: the code that started the job catches it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

START = 1_767_225_600_000
"""2026-01-01T00:00:00Z, in milliseconds since 1970."""


class Cancelled(BaseException):
    """Thrown into a job that waits and is to end now. Not an error, so not an Exception."""


class Promise:
    """A value that is still to come."""

    def __init__(self) -> None:
        self.kept = False
        self.value: Any = None
        self.waiting: list[Job] = []

    def __await__(self) -> Generator[Promise, None, Any]:
        while not self.kept:
            yield self
        return self.value


class Job:
    """A coroutine in progress."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work = work
        self.ended = Promise()
        self.waits_for: Promise | None = None
        self.cancelled = False


class Scheduler:
    """The jobs of one case and their clock."""

    def __init__(self) -> None:
        self.now = START
        self._ready: deque[Job] = deque()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Job:
        """Run work when its turn comes."""
        job = Job(work)
        self._ready.append(job)
        return job

    def keep(self, promise: Promise, value: Any = None) -> None:
        """Resolve a promise and wake its waiters; a promise that is resolved already stays as it is."""
        if promise.kept:
            return
        promise.kept, promise.value = True, value
        self._ready.extend(promise.waiting)
        promise.waiting.clear()

    def at(self, due: int, act: Callable[[], None]) -> None:
        """Act at the time due; at the same time, in the order of the calls."""
        heapq.heappush(self._timers, (due, next(self._order), act))

    def cancel(self, job: Job) -> None:
        """End a job where it waits; a job that does not wait is left alone."""
        if job.waits_for is not None and job in job.waits_for.waiting:
            job.waits_for.waiting.remove(job)
            job.cancelled = True
            self._ready.append(job)

    def settle(self) -> None:
        """Run until nothing can run at this time."""
        while self._ready:
            self._step(self._ready.popleft())

    def run(self, until: Job | None = None) -> None:
        """Run until the job has ended, or nothing can run at any time."""
        self.settle()
        while self._timers and not (until is not None and until.ended.kept):
            due, _, act = heapq.heappop(self._timers)
            self.now = max(self.now, due)
            act()
            self.settle()

    def _step(self, job: Job) -> None:
        job.waits_for = None
        try:
            if job.cancelled:
                job.cancelled = False
                promise = job.work.throw(Cancelled())
            else:
                promise = job.work.send(None)
        except StopIteration as end:
            self.keep(job.ended, end.value)
        else:
            job.waits_for = promise
            promise.waiting.append(job)


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """Return what work returns without ever waiting."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("the work waits")
