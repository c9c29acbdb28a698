"""Executing a process here: from its first line to what is written in the end.

Rule 1. Every exception of user code is the process's failure; only our own troubles are not.
Rule 2. Who was detached writes nothing of what its code did after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from pylash.durable import Aborted, CancelProcess, Failure, Output, Success
from pylash.runtime.branches import CURRENT, LANES
from pylash.runtime.config import Programs
from pylash.runtime.endings import let_go, persist
from pylash.runtime.failures import failure_of
from pylash.runtime.journal import JournalHost
from pylash.runtime.runs import ContinueAs, Detached, LiveRun
from pylash.tasks import TaskOwner
from pylash.values import (
    LashError,
    Misuse,
    ProcessTimeout,
    StoreError,
    StoreRefused,
    WorkflowFailed,
)

_log = logging.getLogger("pylash")


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
        if run.closed:
            await let_go(self._host.store, run, self._is_open)
            return None
        return await self._ended(run, end)

    async def _outcome(self, run: LiveRun) -> Output | ContinueAs | None:
        """Return how the program ended; None if it was detached."""
        try:
            await self._programs.check(run.process.registration)
            if run.process.state.cancel and not (run.cancelled or run.record.cancel_delivered):
                run.root.cancelling = run.cancelled = True
            if run.deadline is not None:
                run.expiring = self._tasks.start(self._expire(run))
            return Success(await self._programs.run(run))
        except Detached:
            return None
        except asyncio.CancelledError as error:
            return await self._cancelled(run, error)
        except ContinueAs as again:
            return again
        except BaseExceptionGroup as group:
            continued = group.subgroup(ContinueAs)
            return failure_of(group) if continued is None else first_of(continued)
        except StoreError as error:  # not the program's: its environment could not be read
            run.close(error)
            return None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: every failure is its outcome
            _tell(run, error)
            return failure_of(error)

    async def _cancelled(self, run: LiveRun, error: BaseException) -> Output | None:
        """Return how a cancelled program ended: a process that nobody cancelled goes on elsewhere."""
        if not run.is_cancelled_here():
            run.close()
            return None
        if not run.cancelled:
            return Failure(
                type(error).__name__, "process_failed", "it raised CancelledError itself"
            )
        if run.deadline is not None and run.remaining() == 0:
            return failure_of(ProcessTimeout(run.id))
        return Aborted(await self._host.store.processes.cancel_reason(run.id))

    async def _ended(self, run: LiveRun, end: Output | ContinueAs | None) -> Output | None:
        """Write how the run ended; return how the process did, if it has."""
        if run.journal is not None:
            run.closed = True
            run.journal.break_off(Detached())
        if isinstance(end, ContinueAs):
            return await self._continued(run, end)
        if end is None:
            return None
        try:
            return end if await self._settled(run, end) else None
        except (Misuse, StoreRefused) as error:  # it cannot be written as it is
            broken = failure_of(error)
            await self._settled(run, broken)
            return broken

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
        if not run.closed:
            with suppress(LashError):
                command = CancelProcess(run.id, "its timeout is over")
                await self._host.store.processes.perform(command)


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
