"""Calling user code: which of its exceptions are failures.

Rule 1. Every exception that user code raises is its failure, whether or not it is an ``Exception``. Only control flow of
        the runtime, a cancellation of the task and a Ctrl-C pass through.
Rule 2. A StoreError or DurabilityError that user code raises is a failure too. The code used some other store or run,
        so the error says nothing about the store of the run that called the code, and does not detach that run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from pylash.tasks import in_thread, outcome_in_thread
from pylash.values.secrets import environment_secrets, hide_and_cut

MAX_FRAMES: Final = 10
MAX_FRAME_CHARACTERS: Final = 400

# Frames below these folders say nothing about the mistake of a user.
_NOT_USER_CODE: Final = tuple(
    f"{path}{os.sep}" for path in (Path(__file__).parents[1], Path(asyncio.__file__).parent)
)


class Control(BaseException):
    """Control flow of the runtime that passes through user code; never a failure of that code."""


def current_task() -> asyncio.Task[Any] | None:
    """Return the running task, also where there is no event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def is_failure(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether an exception of user code that ran in ``task`` is a failure; the caller raises any other again.

    If ``task`` is not the current task, the exception was raised while a coroutine is closed (by ``coroutine.close`` or
    the garbage collector). It is not a failure: recording one would await the store, and such a coroutine cannot await.
    """
    if isinstance(error, Control) or current_task() is not task:
        return False
    if isinstance(error, asyncio.CancelledError):
        # ``cancelling`` counts the requests to cancel the task. Without one, the code has raised the exception itself.
        return task is None or not task.cancelling()
    return not is_interrupt(error)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C, and not a KeyboardInterrupt that user code raised itself.

    Python calls the handler of SIGINT in the main thread. A handler that is a Python function, such as asyncio's, is in
    the traceback of its exception. The default handler is not: then every KeyboardInterrupt of the main thread counts
    as a Ctrl-C, except one that a plain function raised in a thread of ours.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    # Read now and not at import: while a loop runs, asyncio installs a ``functools.partial`` of a method as the handler.
    handler: Any = signal.getsignal(signal.SIGINT)
    codes = _codes_of(error.__traceback__)
    if handler is signal.default_int_handler:
        return outcome_in_thread.__code__ not in codes  # no signal handler runs in such a thread
    return getattr(getattr(handler, "func", handler), "__code__", None) in codes


def _codes_of(trace: TracebackType | None) -> list[Any]:
    codes = []
    while trace is not None:
        codes.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    return codes


def user_traceback(error: BaseException) -> str:
    """Return where user code raised an exception: the last frames that are not pylash's or asyncio's, secrets hidden.

    Of a group it is the traceback of its first exception.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_USER_CODE)
    ]
    # The last frames, where the exception was raised. Each is cut by itself, so that a long line does not hide the others.
    lines = traceback.format_list(frames[-MAX_FRAMES:])
    text = "".join(f"{line[:MAX_FRAME_CHARACTERS].rstrip()}\n" for line in lines)
    limit = MAX_FRAMES * (MAX_FRAME_CHARACTERS + 1)
    return hide_and_cut(text.rstrip(), limit, environment_secrets(os.environ))


def without_own_frames(error: BaseException) -> BaseException:
    """Remove the frames of pylash and asyncio from the traceback of an exception that is logged, and from its causes.

    A traceback without any other frame stays as it is. Returns the exception.
    """
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if (trace := _user_frames(one.__traceback__)) is not None:
            # Not ``one.with_traceback``, nor an assignment: a class of a user may refuse both.
            BaseException.with_traceback(one, trace)
        pending += (cause for cause in (one.__cause__, one.__context__) if cause is not None)
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions
    return error


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of pylash and asyncio; None if no other is left."""
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_NOT_USER_CODE):
            kept.append(trace)
        trace = trace.tb_next
    following: TracebackType | None = None
    for one in reversed(kept):
        following = TracebackType(following, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return following


class FailsAs:
    """A context manager around user code that replaces its failures by other exceptions.

    ``describe`` takes a failure and returns the exception to raise instead, or the failure itself to raise it unchanged.
    It is not a ``@contextmanager``, because a StopIteration cannot pass through a generator, nor can an exception
    whose ``__traceback__`` cannot be set.
    """

    def __init__(self, describe: Callable[[BaseException], BaseException]) -> None:
        self._describe = describe

    def __enter__(self) -> None:
        # ``__exit__`` compares it with the current task: a coroutine that is closed leaves the block in another task, or
        # in none. It is overwritten by the next block, so blocks of one object must not overlap.
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
    """Call a function and return its value: an async function in this task, any other in a thread."""
    # Decided before the call, because a plain function may block the event loop.
    is_async = iscoroutinefunction(function)
    if not is_async and not isinstance(function, type):
        is_async = iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an object with an async __call__
    if is_async:
        return await function(*args, **kwargs)
    value = await in_thread(function, *args, **kwargs)
    # A plain function may return a coroutine, as ``lambda: fetch(url)`` does. It is awaited in this task.
    return await value if isawaitable(value) else value
