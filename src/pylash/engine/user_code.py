"""Calling user code: which of its exceptions are failures.

Rule 1. Whatever user code raises is its failure, whether or not it is an ``Exception``. Only control flow of
        the runtime, a cancellation of the task and a Ctrl-C pass through.
Rule 2. An error of ours that user code raises (a StoreError, a DurabilityError) is about some other store or
        run. It is never taken for trouble of the run that called the code.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction
from types import TracebackType
from typing import Any

from pylash.tasks import in_thread, outcome_in_thread


class Control(BaseException):
    """Control flow of the runtime that passes through user code; never a failure of that code."""


def current_task() -> asyncio.Task[Any] | None:
    """Return the running task, also where there is no event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def is_failure(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether user code that ran in a task has failed; anything else must be raised again.

    Exceptions that arise while another task runs, or none, come from a coroutine that is being closed: it
    must not await anything any more.
    """
    if isinstance(error, Control) or current_task() is not task:
        return False
    if isinstance(error, asyncio.CancelledError):
        # ``cancelling`` counts the requests to cancel the task. Without one, the code has raised the exception itself.
        return task is None or not task.cancelling()
    return not is_interrupt(error)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C, and not a KeyboardInterrupt that user code raised itself.

    Python calls the handler of the signal in the main thread. A handler written in Python, as asyncio's is,
    is in the traceback. The default handler is not, and its interrupts look like any other: all of them pass.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    # The handler of this moment: asyncio replaces it while a loop runs, by a ``partial`` of a method.
    handler: Any = signal.getsignal(signal.SIGINT)
    codes = _codes_of(error.__traceback__)
    if handler is signal.default_int_handler:
        return outcome_in_thread.__code__ not in codes  # threads are never interrupted
    return getattr(getattr(handler, "func", handler), "__code__", None) in codes


def _codes_of(trace: TracebackType | None) -> list[Any]:
    codes = []
    while trace is not None:
        codes.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    return codes


class FailsAs:
    """A block of user code whose failures are raised as something else.

    ``describe`` returns what is raised in place of a failure, or the failure itself. A class and not a
    generator: a generator cannot pass a StopIteration on, nor an exception that takes no new traceback.
    """

    def __init__(self, describe: Callable[[BaseException], BaseException]) -> None:
        self._describe = describe

    def __enter__(self) -> None:
        # Compared when the block is left: a coroutine that is closed from elsewhere leaves it in another task, or in none.
        # There is one, so an object of this class serves one block at a time.
        self._task = current_task()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or not is_failure(error, self._task):
            return
        described = self._describe(error)
        if described is not error:
            raise described from error


async def call_function(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function: an async one here, a plain one in a thread."""
    # Decided before the call: a plain function may block, and must not begin on the event loop.
    is_async = iscoroutinefunction(function)
    if not is_async and not isinstance(function, type):
        is_async = iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an object may be called
    if is_async:
        return await function(*args, **kwargs)
    value = await in_thread(function, *args, **kwargs)
    # A lambda around an async function is a plain one that returns a coroutine: that runs on the loop, in this task.
    return await value if isawaitable(value) else value
