"""The same app without ``await``, for scripts and notebooks: one event loop in a thread of its own.

>>> from pylash.sync import Lash
>>> with Lash("sqlite:///agents.db") as app:
...     print(app.start(greet, name="Ann").result())
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from pylash.app import Lash as AsyncLash
from pylash.durable import (
    DeleteReport,
    Delivery,
    ProcessEvent,
    ProcessView,
    ResolveOutcome,
    RunState,
    SubscriptionView,
)
from pylash.runtime import (
    Definition,
    Effect,
    Observed,
    OpenWait,
    Prepared,
    TurnResult,
)
from pylash.runtime import ProcessHandle as AsyncHandle
from pylash.runtime import Session as AsyncSession
from pylash.runtime import TurnStream as AsyncStream
from pylash.turn import Attachment, Message, TurnEvent, Usage
from pylash.values import AppNotOpen, Duration

if TYPE_CHECKING:
    from pylash.workflows import LashlangModule

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
        yield from _each(self._handle.events(after, follow), self._run)


class TurnStream:
    """A turn to listen to: leaving it never cancels the turn.

    >>> with session.stream("And order 8?") as stream:
    ...     for event in stream:
    ...         print(event.text, end="")
    >>> print(stream.result.usage)
    """

    def __init__(
        self, stream: AsyncStream[Any], run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._stream = stream
        self._run = run
        self._entered = False

    def __enter__(self) -> Self:
        if not self._entered:
            self._run(self._stream.__aenter__())
            self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave; the turn goes on."""

    def __iter__(self) -> Iterator[TurnEvent]:
        self.__enter__()
        return _each(aiter(self._stream), self._run)

    @property
    def turn_id(self) -> str:
        """The turn's id, once the stream was entered."""
        return self._stream.turn_id

    @property
    def result(self) -> TurnResult[Any]:
        """How the turn ended, once every event was heard."""
        return self._stream.result


class Session:
    """A conversation: a handle, made by the first use."""

    def __init__(
        self, session: AsyncSession, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self.id = session.id
        self._session = session
        self._run = run

    def turn(self, input: Any, **options: Any) -> TurnResult[Any]:  # noqa: A002 - the public name
        """Ask, and return how the turn ended. The same ``turn_id`` again gives the same result."""
        result: TurnResult[Any] = self._run(self._session.turn(input, **options))
        return result

    def stream(self, input: Any, **options: Any) -> TurnStream:  # noqa: A002 - the public name
        """Ask, and listen to the turn while it runs; of one that ran, hear what is recorded."""
        return TurnStream(self._session.stream(input, **options), self._run)

    def observe(self, cursor: str | None = None) -> Iterator[Observed]:
        """Yield what was said after a cursor, then what is said from now on; it can be reconnected."""
        return _each(self._session.observe(cursor), self._run)

    def timeline(self, turn_id: str) -> list[Effect]:
        """Return what a turn did and when."""
        effects: list[Effect] = self._run(self._session.timeline(turn_id))
        return effects

    def retry(self) -> bool:
        """Let the turn that is blocked go on; False if none is."""
        return bool(self._run(self._session.retry()))

    def enqueue(self, text: Any, when: Any = "next_turn", key: str | None = None) -> None:
        """Say something while the session may be busy."""
        self._run(self._session.enqueue(text, when, key))

    def cancel(self, reason: str = "cancelled") -> None:
        """Ask the turn that runs, waits or is blocked to end."""
        self._run(self._session.cancel(reason))

    def history(self) -> list[Message]:
        """Return everything that was said, the oldest first."""
        messages: list[Message] = self._run(self._session.history())
        return messages

    def usage(self) -> Usage:
        """Return what all turns of the session used."""
        usage: Usage = self._run(self._session.usage())
        return usage

    def fork(self, new_id: str, at: str | None = None) -> Session:
        """Return a new session that begins with this one's turns."""
        return Session(self._run(self._session.fork(new_id, at)), self._run)

    def delete(self) -> DeleteReport:
        """Remove the session, and say what was removed."""
        report: DeleteReport = self._run(self._session.delete())
        return report


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
        self.tool = self._app.tool
        self.add_tool = self._app.add_tool
        self.model = self._app.model
        self.use = self._app.use
        self.agent = self._app.agent
        self.subagents = self._app.subagents
        self.workflows = self._app.workflows
        self.trace_lashlang = self._app.trace_lashlang
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
        self, target: Definition[P, R] | Prepared[P, R], /, *args: P.args, **kwargs: P.kwargs
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

    def lashlang(self, source: str) -> LashlangModule:
        """Link a Lashlang program against the app's tools, and store it."""
        return self._run(self._app.lashlang(source))

    def session(self, id: str, **options: Any) -> Session:  # noqa: A002 - the public name
        """Return a conversation: a handle, made by the first use."""
        if self._loop is None:
            raise AppNotOpen
        return Session(self._app.session(id, **options), self._run)

    def attachment(self, found: Attachment | str) -> bytes:
        """Return the bytes of an attachment, or of its ``ref``."""
        return self._run(self._app.attachment(found))

    def waits(self, session_id: str | None = None) -> list[OpenWait]:
        """Return the open waits, oldest first."""
        return self._run(self._app.waits(session_id))

    def resolve(
        self, key: str, value: Any = None, *, error: str | None = None, by: str | None = None
    ) -> ResolveOutcome:
        """Answer a wait, with a value or an error. The first answer wins."""
        return self._run(self._app.resolve(key, value, error=error, by=by))


def _each(items: AsyncIterator[T], run: Callable[[Coroutine[Any, Any, Any]], Any]) -> Iterator[T]:
    """Yield what comes, one at a time; who leaves early listens no more."""
    try:
        while (item := run(_next(items))) is not None:
            yield item
    finally:
        with suppress(AppNotOpen):
            run(_closed(items))


async def _next(items: Any) -> Any:
    return await anext(items, None)


async def _closed(items: Any) -> None:
    await items.aclose()
