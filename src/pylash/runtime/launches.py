"""Starting here: what is started is executed by who started it, and at once.

Rule 1. Whoever asked may leave: what was started is executed all the same.
Rule 2. A process that nobody else can know of begins before its start is written; see ``beginnings``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from pylash.durable import (
    REGISTRATIONS,
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
from pylash.values import LeaseLost, StoreClosed, write_payload

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
    """What is being started here."""

    def __init__(
        self,
        host: JournalHost,
        worker: Executes,
        slots: SlotPool,
        orphans: Orphans,
        tasks: TaskOwner,
    ) -> None:
        self._starting = 0
        self._beginnings: set[Beginning] = set()
        self._host = host
        self._worker = worker
        self._slots = slots
        self._orphans = orphans
        self._tasks = tasks

    @property
    def pending(self) -> int:
        """How many starts the store has not answered yet."""
        return self._starting + len(self._beginnings)

    async def launched(self, starting: Awaitable[T], stands: Callable[[T], Standing | None]) -> T:
        """Execute what is being started, if it is ours then."""
        self._slots.reserve()
        self._starting += 1
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
            self._starting -= 1
        if not asker.done():
            asker.set_result(answer)
        standing = stands(answer)
        if standing is None:
            self._slots.give_back()
        else:
            await self._worker.drive(self._worker.made(standing, 0))

    async def begin(self, command: StartProcess) -> None:
        """Execute a process up to where it first waits, and write then that it was started."""
        loop = asyncio.get_running_loop()
        registration = checked_registration(command.registration)
        # Its code may change what it is given before that is written.
        given = REGISTRATIONS.decode(write_payload(registration, 1))
        fence = Fence(self._host.new_run(), 1, ProcessScope(registration.id))
        record = just_started(given, fence.run, self._host.clock.now())
        run = LiveRun(record, fence, self._host.controller(fence.scope), self._worker, self._tasks)
        asker: asyncio.Future[None] = loop.create_future()
        run.beginning = Beginning(
            partial(self._write, command, fence.run), partial(self._hear, run, asker), self._tasks
        )
        self._slots.reserve()
        self._beginnings.add(run.beginning)
        self._tasks.serve(self._worker.drive(run))
        loop.call_soon(run.beginning.send)  # after the task's first step
        await asker

    def _write(
        self, command: StartProcess, number: int, end: Output | None
    ) -> Awaitable[LeasedStart | None]:
        worker = self._host.membership.worker
        return self._host.store.processes.start(command, worker, number=number, end=end)

    def _hear(self, run: LiveRun, asker: asyncio.Future[None], writing: Writing) -> bool:
        """Hear how the start of a run was answered; return whether the run is ours."""
        assert run.beginning is not None
        self._beginnings.discard(run.beginning)
        error = StoreClosed() if writing.cancelled() else writing.exception()
        leased = None if error is not None else writing.result()
        is_ours = leased is not None and run.root.task is not None
        if leased is not None and is_ours:
            self._stand(run, leased)
        else:
            run.close(LeaseLost(run.fence.name))
            self._orphans.suspected |= error is not None
            self._orphans.add(() if leased is None else (leased.fence,))
        if error is not None and not asker.done():
            asker.set_exception(error)
        elif not asker.done():
            asker.set_result(None)
        return is_ours

    def _stand(self, run: LiveRun, leased: LeasedStart) -> None:
        """Go on with a run whose start is written; if its number was taken, the store has given it another."""
        run.fence = leased.fence
        run.record = just_started(run.process.registration, leased.number, leased.now)
        run.beginning = None
        assert run.journal is not None
        run.journal.adopt(Attached(leased.fence, leased.now))
        self._worker.adopt(run)

    def give_up(self) -> None:
        """Wait no longer for the store: whoever asked is told that it closed."""
        for beginning in tuple(self._beginnings):
            beginning.give_up()
