"""The app without ``await``, for scripts and notebooks: its event loop runs in a thread.

>>> from pylash.sync import Lash
>>> with Lash("sqlite:///agents.db") as app:
...     print(app.start(greet, name="Ann").result())
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from pylash.app import Lash as AsyncLash
from pylash.durable.processes import ProcessEvent
from pylash.processes.definition import Definition, Prepared
from pylash.processes.handles import ProcessHandle as AsyncHandle
from pylash.processes.operations.sessions import TurnResult
from pylash.processes.triggers import Triggers as AsyncTriggers
from pylash.sessions.observation import Observed
from pylash.sessions.session import Session as AsyncSession
from pylash.sessions.session import TurnStream as AsyncStream
from pylash.turn.events import TurnEvent
from pylash.values.durations import Duration
from pylash.values.process_errors import AppNotOpen

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the event loop of the app, and returns its result."""


class Loop:
    """An event loop that runs in a thread for as long as the app is open."""

    def __init__(self) -> None:
        # Only the thread touches the loop, except for the threadsafe calls below.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pylash", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Facade(Generic[A]):
    """An async object whose coroutines run on the event loop of the app while the caller waits."""

    def __init__(self, inner: A, run: Run) -> None:
        self._async = inner
        self._run = run


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[A], P], T]:
    """Return a blocking version of an async method, with the same parameters and docstring."""

    @wraps(method)
    def call(facade: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = facade._run(method(facade._async, *args, **kwargs))  # noqa: SLF001 - a method of it
        return result

    return call


class ProcessHandle(Facade[AsyncHandle[R]], Generic[R]):
    """A process, wherever it runs."""

    def __init__(self, handle: AsyncHandle[R], run: Run) -> None:
        super().__init__(handle, run)
        self.id = handle.id

    status = blocking(AsyncHandle.status)
    version = blocking(AsyncHandle.version)
    signal = blocking(AsyncHandle.signal)
    cancel = blocking(AsyncHandle.cancel)
    timeline = blocking(AsyncHandle.timeline)

    def result(self, timeout: Duration | None = None) -> R:
        """Return the result of the process, once it has ended."""
        value: R = self._run(self._async.result(timeout))
        return value

    def events(self, after: int = 0, follow: bool = False) -> Iterator[ProcessEvent]:
        """Yield the process's log after a sequence number; ``follow`` waits for more until the process has ended."""
        yield from _each(self._async.events(after, follow), self._run)


class TurnStream(Facade[AsyncStream[Any]]):
    """The events of a turn; leaving it never cancels the turn.

    >>> with session.stream("And order 8?") as stream:
    ...     for event in stream:
    ...         print(event.text, end="")
    >>> print(stream.result.usage)
    """

    _entered = False

    def __enter__(self) -> Self:
        if not self._entered:
            self._run(self._async.__aenter__())
            self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        """Leave; the turn continues."""

    def __iter__(self) -> Iterator[TurnEvent]:
        self.__enter__()
        return _each(aiter(self._async), self._run)

    @property
    def turn_id(self) -> str:
        """The turn's id, once the stream was entered."""
        return self._async.turn_id

    @property
    def result(self) -> TurnResult[Any]:
        """The result of the turn, once every event was read."""
        return self._async.result


class Session(Facade[AsyncSession]):
    """A session; its first use creates it."""

    def __init__(self, session: AsyncSession, run: Run) -> None:
        super().__init__(session, run)
        self.id = session.id

    turn = blocking(AsyncSession.turn)
    timeline = blocking(AsyncSession.timeline)
    retry = blocking(AsyncSession.retry)
    enqueue = blocking(AsyncSession.enqueue)
    cancel = blocking(AsyncSession.cancel)
    history = blocking(AsyncSession.history)
    view = blocking(AsyncSession.view)
    usage = blocking(AsyncSession.usage)
    delete = blocking(AsyncSession.delete)
    processes = blocking(AsyncSession.processes)
    grant_process = blocking(AsyncSession.grant_process)
    revoke_process = blocking(AsyncSession.revoke_process)
    transfer_processes = blocking(AsyncSession.transfer_processes)
    cancel_unreferenced_processes = blocking(AsyncSession.cancel_unreferenced_processes)

    def process_handle(self, process_id: str, *, frame: str | None = None) -> ProcessHandle[Any]:
        """Return the handle of a process with the rights of the session."""
        return ProcessHandle(self._async.process_handle(process_id, frame=frame), self._run)

    @overload
    def start(
        self, target: Definition[P, R] | Prepared[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ProcessHandle[R]: ...
    @overload
    def start(self, target: str, /, **kwargs: Any) -> ProcessHandle[Any]: ...
    def start(self, target: Any, /, *args: Any, **kwargs: Any) -> ProcessHandle[Any]:
        """Start a process for this session; a name is that of a tool."""
        return ProcessHandle(self._run(self._async.start(target, *args, **kwargs)), self._run)

    def stream(self, input: Any, **options: Any) -> TurnStream:  # noqa: A002 - the public name
        """Run a turn and stream its events; of a turn that has ended, the recorded ones."""
        return TurnStream(self._async.stream(input, **options), self._run)

    def observe(self, cursor: str | None = None) -> Iterator[Observed]:
        """Yield the messages after a cursor, then new messages and events; continue from any cursor later."""
        return _each(self._async.observe(cursor), self._run)

    def fork(self, new_id: str, at: str | None = None) -> Session:
        """Return a new session that begins with this one's turns."""
        return Session(self._run(self._async.fork(new_id, at)), self._run)


class Triggers(Facade[AsyncTriggers]):
    """Subscriptions of processes to events."""

    register = blocking(AsyncTriggers.register)
    emit = blocking(AsyncTriggers.emit)
    list = blocking(AsyncTriggers.list)
    cancel = blocking(AsyncTriggers.cancel)


class Lash(Facade[AsyncLash]):
    """An app without ``await``: the same arguments and the same names."""

    def __init__(self, store: str | None = None, **options: Any) -> None:
        app = AsyncLash(store, **options)
        super().__init__(app, self._run_here)
        self._loop: Loop | None = None
        self.process = app.process
        self.trigger = app.trigger
        self.tool = app.tool
        self.add_tool = app.add_tool
        self.model = app.model
        self.use = app.use
        self.agent = app.agent
        self.subagents = app.subagents
        self.workflows = app.workflows
        self.trace_lashlang = app.trace_lashlang
        self.triggers = Triggers(app.triggers, self._run)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the store and start the worker, in a thread."""
        if self._loop is None:
            self._loop = Loop()
            try:
                self._run(self._async.open())
            except BaseException:
                self._stop()
                raise

    def close(self) -> None:
        """Drain, and end the thread."""
        if self._loop is not None:
            try:
                self._run(self._async.close())
            finally:
                self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _run_here(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise AppNotOpen
        return self._loop.run(work)

    processes = blocking(AsyncLash.processes)
    sessions = blocking(AsyncLash.sessions)
    retry = blocking(AsyncLash.retry)
    lashlang = blocking(AsyncLash.lashlang)
    attachment = blocking(AsyncLash.attachment)
    waits = blocking(AsyncLash.waits)
    resolve = blocking(AsyncLash.resolve)
    export_process = blocking(AsyncLash.export_process)
    export_session = blocking(AsyncLash.export_session)

    def import_process(self, path: str | Path) -> ProcessHandle[Any]:
        """Add the process in a file to the store, where it goes on."""
        return ProcessHandle(self._run(self._async.import_process(path)), self._run)

    def import_session(self, path: str | Path) -> Session:
        """Add the session in a file to the store, where it goes on."""
        return Session(self._run(self._async.import_session(path)), self._run)

    def start(
        self, target: Definition[P, R] | Prepared[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ProcessHandle[R]:
        """Start a process; the same id with the same input again is the same process."""
        return ProcessHandle(self._run(self._async.start(target, *args, **kwargs)), self._run)

    @overload
    def process_handle(self, process_id: str) -> ProcessHandle[Any]: ...
    @overload
    def process_handle(
        self, process_id: str, process: Definition[Any, R] | Prepared[Any, R]
    ) -> ProcessHandle[R]: ...
    def process_handle(self, process_id: str, process: Any = None) -> ProcessHandle[Any]:
        """Return the handle of a process; ``process`` is its definition, which types the result."""
        handle = self._async.process_handle(process_id, process)
        return ProcessHandle(handle, self._run)

    def fork_process(
        self,
        process_id: str,
        *,
        from_effect: str | None = None,
        id: str | None = None,  # noqa: A002 - as in options
    ) -> ProcessHandle[Any]:
        """Start a process with the effects that another recorded before ``from_effect``."""
        work = self._async.fork_process(process_id, from_effect=from_effect, id=id)
        return ProcessHandle(self._run(work), self._run)

    def session(self, id: str, **options: Any) -> Session:  # noqa: A002 - the public name
        """Return the handle of a session; its first use creates it."""
        return Session(self._async.session(id, **options), self._run)


def _each(items: AsyncIterator[T], run: Run) -> Iterator[T]:
    """Yield items one at a time; a caller that leaves early closes the iterator."""
    try:
        while (item := run(_next(items))) is not None:
            yield item
    finally:
        with suppress(AppNotOpen):
            run(_close_iterator(items))


async def _next(items: Any) -> Any:
    return await anext(items, None)


async def _close_iterator(items: Any) -> None:
    await items.aclose()
