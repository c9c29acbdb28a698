"""Background tasks, and calls of functions in threads. Nothing else in pylash starts a task.

Rule 1. Every task has an owner; closing the owner ends it.
Rule 2. A failure of a task that is not awaited is raised when the owner closes. Work that outlives its caller is awaited as long as
        the caller waits; a later failure is logged.
Rule 3. A future refuses some exceptions, such as StopIteration, and then its waiters wait forever. So a call in a
        thread returns its exception as a value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from functools import cache, partial
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = 64

GRACE_SECONDS: Final = 10.0
"""How long a cancelled task may take to end."""

_log = logging.getLogger("pylash")


class TaskOwner:
    """Owner of tasks that outlive the call that started them."""

    def __init__(self) -> None:
        # Weak: a task that its caller dropped may be collected once it is done.
        self._awaited: WeakSet[asyncio.Task[Any]] = WeakSet()
        # Strong: the event loop has only weak references to its tasks.
        self._serving: set[asyncio.Task[None]] = set()
        # Of served tasks only; the caller of an awaited task gets its failure.
        self._failures: list[BaseException] = []

    @property
    def is_stopping(self) -> bool:
        """Whether all tasks are being cancelled: the owner closes, or the event loop ends.

        Both cancel the served tasks together with all others before any task runs again. This differs from user
        code that cancels its own task, as long as the owner serves a task that is not that code. One cancelled task
        is not enough: a task is also cancelled for a moment when an ``asyncio.timeout`` inside it expires.
        """
        return all(task.cancelling() for task in self._serving)

    def start(
        self, work: Coroutine[Any, Any, T], context: Context | None = None
    ) -> asyncio.Task[T]:
        """Start work whose outcome the caller awaits; the caller keeps the task until then."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._awaited.add(task)
        return task

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that is not awaited; its failure is raised when the owner closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._serving.add(task)
        task.add_done_callback(self._on_served_end)

    def complete(self, work: Awaitable[T], quiet: type[Exception]) -> asyncio.Future[T]:
        """Start work that is completed even if its caller is cancelled; return a future of its outcome.

        A failure after the caller has left is logged, unless it is ``quiet``.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.serve(_deliver(work, answer, quiet))
        return answer

    def _on_served_end(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task failed", exc_info=error)
            self._failures.append(error)

    async def finish(self, limit: float | None = None) -> None:
        """Wait until all work has ended, including work that it starts meanwhile; cancel it after ``limit`` seconds.

        Cancellation: safe, all work is cancelled.
        """
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    while (
                        tasks := self._unfinished()
                    ):  # again, because tasks may have started others
                        await asyncio.wait(tasks)
        finally:
            await self.close()

    def _unfinished(self) -> set[asyncio.Task[Any]]:
        return {task for task in (*self._awaited, *self._serving) if not task.done()}

    async def close(self) -> None:
        """Cancel every task, wait for their ends, and raise the first failure of a served task."""
        tasks = self._unfinished()
        for task in tasks:  # all of them before any runs again: ``is_stopping`` relies on it
            task.cancel()
        if tasks:
            _, stubborn = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
            for task in stubborn:
                _log.warning("abandoned a task that ignores being cancelled: %s", task)
        if self._failures:
            raise self._failures.pop(0)


async def _deliver(work: Awaitable[T], answer: asyncio.Future[T], quiet: type[Exception]) -> None:
    """Await work and give its outcome to the caller, if it still waits."""
    try:
        result = await work
    except asyncio.CancelledError:  # the owner closes
        answer.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - it is the caller's
        if not answer.done():
            answer.set_exception(error)
        elif not isinstance(error, quiet):
            _log.warning("work failed after its caller had left: %s", error)
    else:
        if not answer.done():
            answer.set_result(result)


# --- threads ---


class _Outcome(NamedTuple):
    """The outcome of a call: a value or an exception."""

    value: Any
    error: BaseException | None


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads for user code: not the loop's own, so that slow functions delay nothing else."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="pylash-step")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread; return its result or raise its exception.

    A StopIteration cannot leave a coroutine: it becomes a RuntimeError, as in an async function.
    """
    call = partial(copy_context().run, outcome_in_thread, function, args, kwargs)
    ended = await asyncio.get_running_loop().run_in_executor(_threads(), call)
    if ended.error is None:
        value: T = ended.value
        return value
    try:
        if isinstance(ended.error, StopIteration):
            name = getattr(function, "__name__", type(function).__name__)
            raise RuntimeError(f"{name} raised StopIteration") from ended.error  # noqa: TRY004
        raise ended.error
    finally:
        del ended  # its exception holds this frame


def outcome_in_thread(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Outcome:
    """Call a function and return its outcome."""
    try:
        return _Outcome(function(*args, **kwargs), None)
    except BaseException as error:  # noqa: BLE001 - raised again where the call is awaited
        return _Outcome(None, error)
