"""The same app without ``await``, for scripts and notebooks: one event loop in a thread of its own.

>>> from pylash.sync import Lash
>>> with Lash("sqlite:///agents.db") as app:
...     print(app.start(greet, name="Ann").result())
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from pylash.app import Lash as AsyncLash
from pylash.durable import (
    Delivery,
    ProcessEvent,
    ProcessView,
    ResolveOutcome,
    RunState,
    SubscriptionView,
)
from pylash.runtime import (
    Effect,
    OpenWait,
    Prepared,
    ProcessDefinition,
)
from pylash.runtime import ProcessHandle as AsyncHandle
from pylash.values import AppNotOpen, Duration

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Loop:
    """An event loop that runs in a thread for as long as the app is open."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pylash", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what work returns; an interrupt cancels it."""
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


class ProcessHandle(Generic[R]):
    """A process, wherever it runs."""

    def __init__(
        self, handle: AsyncHandle[R], run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self.id = handle.id
        self._handle = handle
        self._run = run

    def status(self) -> RunState:
        """Return where the process stands."""
        status: RunState = self._run(self._handle.status())
        return status

    def result(self, timeout: Duration | None = None) -> R:
        """Return what the process returned, once it has."""
        value: R = self._run(self._handle.result(timeout))
        return value

    def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> None:  # noqa: A002 - the public name
        """Send a signal; the same ``id`` again is the same signal."""
        self._run(self._handle.signal(name, payload, id=id))

    def cancel(self, reason: str | None = None, force: bool = False) -> None:
        """Ask the process to end; ``force`` ends it without asking."""
        self._run(self._handle.cancel(reason, force))

    def timeline(self) -> list[Effect]:
        """Return what the process did so far and when."""
        effects: list[Effect] = self._run(self._handle.timeline())
        return effects

    def events(self, after: int = 0, follow: bool = False) -> Iterator[ProcessEvent]:
        """Yield the process's log after a sequence; ``follow`` waits for more until it ends."""
        events = self._handle.events(after, follow)
        while (event := self._run(_next(events))) is not None:
            yield event


class Triggers:
    """Subscriptions of processes to events."""

    def __init__(self, app: AsyncLash, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._app = app
        self._run = run

    def register(self, type: str, **options: Any) -> None:  # noqa: A002 - the public name
        """Start a process whenever an event of a type comes from a source."""
        self._run(self._app.triggers.register(type, **options))

    def emit(self, type: str, **options: Any) -> list[Delivery]:  # noqa: A002 - the public name
        """Record an event and start what is subscribed to it."""
        started: list[Delivery] = self._run(self._app.triggers.emit(type, **options))
        return started

    def list(self, session_id: str | None = None) -> list[SubscriptionView]:
        """Return the subscriptions, the oldest first."""
        found: list[SubscriptionView] = self._run(self._app.triggers.list(session_id))
        return found

    def cancel(self, key: str) -> bool:
        """End a subscription; False if there is none."""
        return bool(self._run(self._app.triggers.cancel(key)))


class Lash:
    """An app without ``await``: the same arguments and the same names."""

    def __init__(self, store: str | None = None, **options: Any) -> None:
        self._app = AsyncLash(store, **options)
        self._loop: Loop | None = None
        self.process = self._app.process
        self.trigger = self._app.trigger
        self.triggers = Triggers(self._app, self._run)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the store and start the worker, in a thread."""
        if self._loop is None:
            self._loop = Loop()
            try:
                self._run(self._app.open())
            except BaseException:
                self._stop()
                raise

    def close(self) -> None:
        """Drain, and end the thread."""
        if self._loop is not None:
            try:
                self._run(self._app.close())
            finally:
                self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise AppNotOpen
        return self._loop.run(work)

    def start(
        self, target: ProcessDefinition[P, R] | Prepared[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> ProcessHandle[R]:
        """Start a process; the same id with the same input again is the same process."""
        return ProcessHandle(self._run(self._app.start(target, *args, **kwargs)), self._run)

    def process_handle(self, process_id: str) -> ProcessHandle[Any]:
        """Return the handle of a process."""
        if self._loop is None:
            raise AppNotOpen
        return ProcessHandle(self._app.process_handle(process_id), self._run)

    def processes(
        self, *, status: RunState | str | None = None, limit: int = 100
    ) -> list[ProcessView]:
        """Return processes, the newest first."""
        return self._run(self._app.processes(status=status, limit=limit))

    def retry(self, process_id: str) -> None:
        """Let a blocked process go on."""
        self._run(self._app.retry(process_id))

    def fork_process(
        self,
        process_id: str,
        *,
        from_effect: str | None = None,
        id: str | None = None,  # noqa: A002 - as in options
    ) -> ProcessHandle[Any]:
        """Start a process with what another recorded before an effect."""
        work = self._app.fork_process(process_id, from_effect=from_effect, id=id)
        return ProcessHandle(self._run(work), self._run)

    def waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits, oldest first."""
        return self._run(self._app.waits(session_id))

    def resolve(
        self, key: str, value: Any = None, *, error: str | None = None, by: str | None = None
    ) -> ResolveOutcome:
        """Answer a wait, with a value or an error. The first answer wins."""
        return self._run(self._app.resolve(key, value, error=error, by=by))


async def _next(events: Any) -> ProcessEvent | None:
    found: ProcessEvent | None = await anext(events, None)
    return found
