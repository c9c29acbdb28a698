"""Executing a process here: from its first line to what is written in the end.

Rule 1. Whatever user code raises is the process's failure. Our own trouble is raised as Detached, where it arises.
Rule 2. Who was detached writes nothing of what its code did after that.
Rule 3. Why a process was cancelled is what the recorded request says: a timeout is one of the reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from pylash.durable import Aborted, CancelProcess, Failure, Output, Success
from pylash.runtime.branches import CURRENT, LANES
from pylash.runtime.config import Programs
from pylash.runtime.endings import STORE_AWAY_SECONDS, Unanswered, answer_of, let_go, persist
from pylash.runtime.failures import failure_of
from pylash.runtime.journal import JournalHost
from pylash.runtime.runs import ContinueAs, Detached, LiveRun
from pylash.runtime.user_code import current_task, is_failure
from pylash.tasks import TaskOwner
from pylash.values import (
    LashError,
    Misuse,
    ProcessTimeout,
    StoreError,
    StoreRefused,
    WorkflowFailed,
)

TIMED_OUT: Final = "its timeout is over"
"""The reason with which a process is asked to end when its time is over."""

_log = logging.getLogger("pylash")


class Cancelled:
    """A program ended because its process was asked to end; the store knows why."""


class Execution:
    """Drives the processes of one worker, each in a task of its own."""

    def __init__(
        self, host: JournalHost, programs: Programs, tasks: TaskOwner, is_open: Callable[[], bool]
    ) -> None:
        self._host = host
        self._programs = programs
        self._tasks = tasks
        self._is_open = is_open

    async def drive(self, run: LiveRun) -> Output | None:
        """Execute the run until it ends or is detached; return how its process ended, if it did."""
        run.root.task = asyncio.current_task()
        CURRENT.set(run.root)
        if LANES.get():
            LANES.set(frozenset())  # the tool that started it does not wait for it
        try:
            end = await self._outcome(run)
        finally:
            CURRENT.set(None)
        is_over = isinstance(end, Output) and not run.closed
        if run.beginning is not None and not (is_over or await run.beginning.stands()):
            return None
        if end is None:
            run.close()
        if end is None or run.closed:
            await let_go(self._host.store, run, self._is_open)
            return None
        return await self._ended(run, end)

    async def _outcome(self, run: LiveRun) -> Output | ContinueAs | Cancelled | None:
        """Return how the program ended; None if it was detached."""
        task = current_task()
        try:
            with run.guarded():
                await self._programs.check(run.process.registration)
            if run.process.state.cancel and not (run.cancelled or run.record.cancel_delivered):
                run.root.cancelling = run.cancelled = True
            if run.deadline is not None:
                run.expiring = self._tasks.start(self._expire(run))
            return Success(await self._programs.run(run))
        except Detached:
            return None
        except asyncio.CancelledError as error:
            return self._cancelled(run, error)
        except ContinueAs as again:
            return again
        except BaseException as error:
            if not is_failure(error, task):
                raise
            if isinstance(error, BaseExceptionGroup):
                continued = error.subgroup(ContinueAs)
                if continued is not None:
                    return first_of(continued)
            _tell(run, error)
            return failure_of(error)

    def _cancelled(self, run: LiveRun, error: BaseException) -> Failure | Cancelled | None:
        """Return how a cancelled program ended: a process that nobody cancelled goes on elsewhere."""
        is_cancelled = run.is_cancelled_here()
        if not is_cancelled and run.is_stopped(run.root.task):
            run.close()
            return None
        if not (is_cancelled and run.cancelled):
            return Failure(
                type(error).__name__, "process_failed", "it raised CancelledError itself"
            )
        return Cancelled()

    async def _ended(self, run: LiveRun, end: Output | ContinueAs | Cancelled) -> Output | None:
        """Write how the run ended; return how the process did, if it has."""
        if run.journal is not None:
            run.closed = True
            run.journal.break_off(Detached())
        if isinstance(end, ContinueAs):
            return await self._continued(run, end)
        try:
            if isinstance(end, Cancelled):
                end = await self._why_cancelled(run)
            return end if await self._settled(run, end) else None
        except Unanswered:
            return None
        except (Misuse, StoreRefused) as error:  # it cannot be written as it is
            broken = failure_of(error)
            await self._settled(run, broken)
            return broken

    async def _why_cancelled(self, run: LiveRun) -> Output:
        """Return the end of a process that was asked to end."""
        ask = partial(self._host.store.processes.cancel_reason, run.id)
        reason = await answer_of(run, ask, self._is_open)
        if run.deadline is not None and reason == TIMED_OUT:
            return failure_of(ProcessTimeout(run.id))
        return Aborted(reason)

    async def _settled(self, run: LiveRun, end: Output) -> bool:
        beginning = run.beginning
        if beginning is not None and not beginning.is_sent:
            beginning.send(end)
            return await beginning.stands()
        if beginning is not None and not await beginning.stands():
            return False
        settle = self._host.store.processes.settle
        return await persist(
            run, partial(settle, run.fence, run.process.number, end), self._is_open
        )

    async def _continued(self, run: LiveRun, end: ContinueAs) -> Output | None:
        """Go on with a fresh run; return how the process ended if it cannot."""
        given = run.process.registration.input
        changed = msgspec.structs.replace(given, arguments=end.arguments)
        registration = msgspec.structs.replace(run.process.registration, input=changed)
        cancelled = run.was_told or run.record.cancel_delivered
        again = self._host.store.processes.continue_as
        write = partial(again, run.fence, registration, cancelled=cancelled)
        try:
            await persist(run, write, self._is_open)
        except (Misuse, StoreRefused) as error:  # it cannot be written as it is
            broken = failure_of(error)
            return broken if await self._settled(run, broken) else None
        return None

    async def _expire(self, run: LiveRun) -> None:
        """Ask a process to end when its time is over."""
        remaining = run.remaining()
        if remaining is not None:
            await self._host.clock.sleep(remaining)
        while not run.closed:
            try:
                await self._host.store.processes.perform(CancelProcess(run.id, TIMED_OUT))
            except StoreError:  # away for the moment
                await asyncio.sleep(STORE_AWAY_SECONDS)
            except LashError:  # it has ended
                return
            else:
                return


def _tell(run: LiveRun, error: BaseException) -> None:
    if isinstance(
        error, WorkflowFailed
    ):  # a program that is not Python's: Python's stack says nothing
        _log.warning("%s failed: %s", run.fence.name, error)
    else:
        _log.warning("%s failed", run.fence.name, exc_info=error)


def first_of(group: BaseExceptionGroup[ContinueAs]) -> ContinueAs:
    """Return the first of the exceptions in a group, however deep."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first
