"""The one place that starts background tasks, and calls functions in threads.

Rule 1. A task has an owner you can point at; closing the owner ends it.
Rule 2. A failure that nobody awaits is raised when the owner closes, never lost.
Rule 3. A future refuses some exceptions, and then whoever awaits it waits for ever. A call in a thread hands
        over what it raised as a value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
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
    """Owns tasks that outlive the call that started them."""

    def __init__(self) -> None:
        self._awaited: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._serving: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []

    @property
    def is_stopping(self) -> bool:
        """Whether its work is being cancelled: the owner closes, or the event loop ends.

        Both cancel what is served together with everything else, before any task runs again. So code that cancels
        the task it runs in is told apart, as long as something is served and that is not the code itself.
        """
        return not self._serving or any(task.cancelling() for task in self._serving)

    def start(
        self, work: Coroutine[Any, Any, T], context: Context | None = None
    ) -> asyncio.Task[T]:
        """Start work whose outcome somebody awaits, and who keeps the task until then."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._awaited.add(task)
        return task

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that nobody awaits; its failure is raised when the owner closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._serving.add(task)
        task.add_done_callback(self._served)

    def future(self, awaited: Awaitable[T]) -> asyncio.Future[T]:
        """Return what is awaited as a future: itself if it is one, else a task that awaits it."""
        if isinstance(awaited, asyncio.Future):
            return awaited
        return self.start(_awaited(awaited))

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task failed", exc_info=error)
            self._failures.append(error)

    async def finish(self) -> None:
        """Wait until all work has ended, what it starts meanwhile included."""
        while tasks := self._undone():
            await asyncio.wait(tasks)
        await self.close()

    def _undone(self) -> set[asyncio.Task[Any]]:
        return {task for task in (*self._awaited, *self._serving) if not task.done()}

    async def close(self) -> None:
        """Cancel every task, wait for their ends, and raise the first failure nobody saw."""
        tasks = self._undone()
        for task in tasks:
            task.cancel()
        if tasks:
            _, stubborn = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
            for task in stubborn:
                _log.warning("abandoned a task that ignores being cancelled: %s", task)
        if self._failures:
            raise self._failures.pop(0)


async def _awaited(awaited: Awaitable[T]) -> T:
    return await awaited


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run work up to where it waits, and the rest when that is there: a task would begin in the loop's next turn.

    It is no task: it cannot be cancelled, may wait for futures alone, and must not fail.
    """
    try:
        awaited = work.send(None)
    except StopIteration:
        return
    awaited._asyncio_future_blocking = False  # noqa: SLF001 - so a task says that it has heard
    awaited.add_done_callback(lambda _: at_once(work))


# --- threads ---


class _Ended(NamedTuple):
    """How a call ended: a value, or what it raised."""

    value: Any
    error: BaseException | None


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads of user code: not the loop's, so that slow functions delay nothing else."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="pylash-step")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns that is called in a thread, or raise what it raises.

    A StopIteration cannot leave a coroutine: as one raised by an async function, it becomes a RuntimeError.
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
) -> _Ended:
    """Call a function; return how that ended."""
    try:
        return _Ended(function(*args, **kwargs), None)
    except BaseException as error:  # noqa: BLE001 - raised again where the call is awaited
        return _Ended(None, error)
