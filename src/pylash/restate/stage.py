"""The event loop on which the code of a run is executed by an engine that replays by position.

Rule 1. The loop is deterministic: with the same completions in the same order, the same code asks for the same entries
        of the journal in the same order. So nothing here depends on a clock, on a thread, or on the tasks of the real loop.
Rule 2. Callbacks are executed until none is ready; only then the next completion is taken from the journal, and one at
        a time. A second one would be delivered before the code has reacted to the first.
Rule 3. Everything that takes real time happens on the real loop: the actions of entries, and ``outside``. During
        ``outside`` no completion is taken, so the code cannot tell how long it took.
Rule 4. A timer of asyncio is a timer of the engine. Its time is logical: it moves when a timer is due.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, Final, NoReturn, TypeVar

from pylash.restate.attempt_journal import Action, AttemptJournal, Bell, EngineRefused, Ticket
from pylash.values.process_errors import EffectOutsideStep

T = TypeVar("T")

TIMER: Final = "!timer"
"""The name of the entry of a timer that plain asyncio code asks for."""

_log = logging.getLogger("pylash")


class DurableTimer(asyncio.TimerHandle):
    """A timer of the stage; its entry is dropped when it is cancelled."""

    ticket: Ticket | None = None


class StageTask(asyncio.Task[T]):
    """A task of a stage.

    Its hash is its number: asyncio keeps tasks in sets and cancels the tasks of a group in the order of the set, which
    with the default hash is another one in every attempt.
    """

    def __init__(self, number: int, coro: Coroutine[Any, Any, T], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class StageClosed(BaseException):
    """Raised in code that asks for an entry after its attempt has ended."""


class Stage(asyncio.AbstractEventLoop):
    """A deterministic event loop over the journal of one attempt."""

    def __init__(self, journal: AttemptJournal) -> None:
        self._journal = journal
        self._ready: collections.deque[asyncio.Handle] = collections.deque()
        # The entries that are awaited, in the order in which they were asked for. An entry that nobody awaits any more is
        # removed: its completion is ignored, and its action is not started by a later attempt.
        self._awaited: dict[Ticket, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._outside: collections.deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]]
        self._outside = collections.deque()
        # How many tasks were started.
        self._started = 0
        self._time = 0.0
        self._failure: BaseException | None = None
        self._is_open = True
        self._real: asyncio.AbstractEventLoop | None = None

    # --- what the code of a run asks for ---

    def run(self, name: str, action: Action) -> asyncio.Future[bytes]:
        """Return a future of the result of an action, which is performed on the real loop unless it is recorded."""
        return self._await(self._open_journal().run(name, action))

    def sleep(self, name: str, seconds: float) -> asyncio.Future[bytes]:
        """Return a future that completes when a timer is due."""
        return self._await(self._open_journal().sleep(name, seconds))

    def bell(self) -> tuple[str, asyncio.Future[bytes]]:
        """Return the id of an entry that is completed from outside, and a future of its result."""
        bell: Bell = self._open_journal().bell()
        return bell.id, self._await(bell.ticket)

    async def outside(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what a call on the real loop returns. It is not recorded: each attempt makes it again."""
        if not self._is_open:
            raise StageClosed
        future: asyncio.Future[T] = self.create_future()
        # In the context of the caller, as if it had made the call itself.
        context = contextvars.copy_context()
        self._outside.append((lambda: _in_context(ask, context), future))
        return await future

    def _open_journal(self) -> AttemptJournal:
        if not self._is_open:
            raise StageClosed
        return self._journal

    def _await(self, ticket: Ticket) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = self.create_future()
        self._awaited[ticket] = future

        def forget(_: asyncio.Future[bytes]) -> None:
            self._awaited.pop(ticket, None)

        future.add_done_callback(forget)
        return future

    # --- driving ---

    async def drive(
        self,
        main: Coroutine[Any, Any, T],
        on_end: Callable[[], None],
        on_refused: Callable[[EngineRefused], Awaitable[bool]] | None = None,
    ) -> T:
        """Execute the code until it returns.

        If the journal raises (the attempt is suspended, refused or disconnected), ``on_end`` is called, so that the code is
        told that its execution is over, and what it does then has no effect. ``on_refused`` may tell it so before: if
        it returns True, the code can still make calls outside, to write why it ends.
        """
        self._real = asyncio.get_running_loop()
        task = self.create_task(main)
        try:
            while True:
                await self._step_all()
                if task.done():
                    return task.result()
                if not self._awaited:
                    raise RuntimeError("the code of the run waits for nothing that can happen")
                try:
                    ticket, result = await self._journal.next_completed(list(self._awaited))
                except EngineRefused as refusal:
                    if on_refused is not None and await on_refused(refusal):
                        await self._step_all()
                        if task.done():
                            return task.result()
                    raise
                future = self._awaited.pop(ticket)
                if not future.done():
                    future.set_result(result)
        finally:
            self._is_open = False
            on_end()
            self._unwind()

    async def _step_all(self) -> None:
        """Execute all callbacks, and the calls outside that they ask for, one after another."""
        self._step()
        while self._outside:
            call, future = self._outside.popleft()
            if future.done():
                continue
            try:
                result = await call()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                future.cancel()
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)
            self._step()

    def _step(self) -> None:
        """Execute callbacks until none is ready, with this loop as the running one."""
        real = self._real
        assert real is not None
        current = asyncio.current_task(real)
        # The task of the real loop is suspended here, as at an await, so that tasks of the stage can be the current ones.
        if current is not None:
            asyncio.tasks._leave_task(real, current)  # noqa: SLF001 - a loop must
        asyncio._set_running_loop(self)  # noqa: SLF001 - a loop must
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._close_generator)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - a loop must
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(real)  # noqa: SLF001 - a loop must
            if current is not None:
                asyncio.tasks._enter_task(real, current)  # noqa: SLF001 - a loop must
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _close_generator(self, generator: AsyncGenerator[Any, None]) -> None:
        """Let an async generator that the code has dropped end here, and not on the real loop."""
        if self._is_open:
            self.create_task(generator.aclose())

    def _unwind(self) -> None:
        """Let the code end after it was told that its execution is over, and drop what does not end."""
        try:
            self._step()
        except BaseException:  # noqa: BLE001 - whatever it is, the attempt has ended
            _log.exception("the code of a run failed after its attempt had ended")
        for task in list(self._tasks):
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
            coroutine = task.get_coro()
            try:
                if coroutine is not None:
                    coroutine.close()
            except BaseException as error:  # noqa: BLE001 - a block that awaits while it is closed
                _log.debug("code of a run ignores that its attempt has ended: %s", error)
        self._ready.clear()

    # --- asyncio ---

    def get_debug(self) -> bool:
        """Return False: asyncio checks nothing more."""
        return False

    def is_running(self) -> bool:
        """Return True: it runs as long as its attempt."""
        return True

    def is_closed(self) -> bool:
        """Return False: what is closed is the journal."""
        return False

    def time(self) -> float:
        """Return the logical time, which moves when a timer is due."""
        return self._time

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Start a task of this loop."""
        self._started += 1
        task = StageTask(self._started, coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def get_task_factory(self) -> None:
        """Return None: tasks are plain."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what nobody handles."""
        error = context.get("exception")
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._failure = error
            return
        _log.error("%s", context.get("message"), exc_info=error)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Execute a callback after those that are ready."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Execute a callback when a timer of the engine is due."""
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Execute a callback when a timer of the engine is due."""
        timer = DurableTimer(when, callback, args, self, context)
        if when <= self._time or not self._is_open:
            self._ready.append(timer)
            return timer
        ticket = timer.ticket = self._journal.sleep(TIMER, when - self._time)
        due = self.create_future()
        self._awaited[ticket] = due

        def fire(_: asyncio.Future[Any]) -> None:
            self._time = max(self._time, when)
            if not timer.cancelled():
                timer._run()  # noqa: SLF001 - a loop must

        due.add_done_callback(fire)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, DurableTimer) and handle.ticket is not None:
            self._awaited.pop(handle.ticket, None)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call a function in a thread. It is not recorded, as no code between effects is."""
        real = self._real
        assert real is not None

        async def call() -> T:
            return await real.run_in_executor(executor, func, *args)

        return self.create_task(self.outside(call))

    def _refuse_io(self, *_: Any, **__: Any) -> NoReturn:
        raise EffectOutsideStep

    create_connection = create_datagram_endpoint = create_server = _refuse_io
    create_unix_connection = subprocess_exec = subprocess_shell = _refuse_io
    getaddrinfo = getnameinfo = _refuse_io
    add_reader = add_writer = _refuse_io  # type: ignore[assignment]
    sock_connect = sock_recv = sock_sendall = _refuse_io


def new_stage(journal: AttemptJournal) -> Stage:
    """Return a stage over a journal. What a loop of asyncio has besides is not there, and raises NotImplementedError."""
    return Stage(journal)  # type: ignore[abstract]


async def _in_context(ask: Callable[[], Awaitable[T]], context: Context) -> T:
    """Make a call on the real loop in a context."""

    async def call() -> T:
        return await ask()

    # A task of its own: a coroutine takes its context from the task that awaits it.
    return await asyncio.get_running_loop().create_task(call(), context=context)
