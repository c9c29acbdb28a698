"""Starting here: what is started is executed by who started it, and at once.

Rule 1. Whoever asked may leave: what was started is executed all the same.
Rule 2. A process that nobody else can know of begins before its start is written; see ``beginnings``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from pylash.durable import (
    Attached,
    Fence,
    LeasedStart,
    Output,
    ProcessScope,
    StartProcess,
    checked_registration,
    just_started,
)
from pylash.runtime.beginnings import Beginning, Writing
from pylash.runtime.journal import JournalHost
from pylash.runtime.orphans import Orphans
from pylash.runtime.runs import LiveRun
from pylash.runtime.slots import SlotPool, Slots
from pylash.runtime.standings import Standing
from pylash.tasks import TaskOwner
from pylash.values import StoreClosed

T = TypeVar("T")


class Executes(Slots, Protocol):
    """Who executes what is started."""

    def made(self, standing: Standing, wake_seq: int) -> LiveRun:
        """Return a run that stands like this."""
        ...

    def adopt(self, run: LiveRun) -> None:
        """Know a run as executed here."""
        ...

    def drive(self, run: LiveRun) -> Coroutine[Any, Any, None]:
        """Execute a run until it ends, or is detached."""
        ...


class Launches:
    """What is being started here. ``pending``: how many the store has not answered yet."""

    def __init__(
        self,
        host: JournalHost,
        worker: Executes,
        slots: SlotPool,
        orphans: Orphans,
        tasks: TaskOwner,
    ) -> None:
        self.pending = 0
        self._host = host
        self._worker = worker
        self._slots = slots
        self._orphans = orphans
        self._tasks = tasks

    async def launched(self, starting: Awaitable[T], stands: Callable[[T], Standing | None]) -> T:
        """Execute what is being started, if it is ours then."""
        self._slots.reserve()
        self.pending += 1
        asker: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tasks.serve(self._launch(starting, stands, asker))
        return await asker

    async def _launch(
        self,
        starting: Awaitable[T],
        stands: Callable[[T], Standing | None],
        asker: asyncio.Future[T],
    ) -> None:
        """Wait for the store's answer in the task that executes what was started: it is there by then."""
        try:
            answer = await starting
        except BaseException as error:  # noqa: BLE001 - it is the asker's
            self._orphans.suspected = True  # it may have been started before the store went away
            self._slots.give_back()
            if not asker.done():  # we are cancelled when who closes does not wait for the answer
                is_late = isinstance(error, asyncio.CancelledError)
                asker.set_exception(StoreClosed() if is_late else error)
            return
        finally:
            self.pending -= 1
        if not asker.done():
            asker.set_result(answer)
        standing = stands(answer)
        if standing is None:
            self._slots.give_back()
        else:
            await self._worker.drive(self._worker.made(standing, 0))

    async def begun(self, command: StartProcess) -> None:
        """Execute a process up to where it first waits, and write then that it was started."""
        registration = checked_registration(command.registration)
        host, worker, loop = self._host, self._host.membership.worker, asyncio.get_running_loop()
        fence = Fence(host.new_run(), 1, ProcessScope(registration.id))
        asker: asyncio.Future[None] = loop.create_future()

        def write(end: Output | None) -> Awaitable[LeasedStart | None]:
            return host.store.processes.start(command, worker, number=fence.run, end=end)

        def answered(writing: Writing) -> bool:
            self.pending -= 1
            error = StoreClosed() if writing.cancelled() else writing.exception()
            leased = None if error is not None else writing.result()
            is_ours = leased is not None and leased.fence == fence
            if leased is not None and is_ours:
                run.record = just_started(registration, fence.run, leased.now)
                run.beginning = controller.beginning = (
                    None  # so that nothing waits for the collector
                )
                controller.adopt(Attached(fence, leased.now))
                self._worker.adopt(run)
            else:
                run.close()
                self._orphans.suspected |= error is not None
                self._orphans.add(() if leased is None else (leased.fence,))
            if error is None and not asker.done():
                asker.set_result(None)
            elif error is not None and not asker.done():
                asker.set_exception(error)
            return is_ours

        self._slots.reserve()
        self.pending += 1
        beginning = Beginning(write, answered, self._tasks)
        record = just_started(registration, fence.run, host.clock.now())
        controller = host.begin(fence.scope, beginning)
        run = LiveRun(record, fence, controller, self._worker, self._tasks)
        run.beginning = beginning
        self._tasks.serve(self._worker.drive(run))
        loop.call_soon(beginning.begin)  # after the task's first step
        await asker
