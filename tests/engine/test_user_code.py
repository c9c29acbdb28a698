"""Which exceptions of user code are failures, and which pass."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import pytest

from pylash.engine.runs.driver import Detached
from pylash.engine.user_code import FailsAs, call_function, current_task, is_failure, is_interrupt
from pylash.tasks import in_thread


@pytest.fixture
def handle() -> Iterator[Callable[[Any], object]]:
    """Give what installs a handler of Ctrl-C for the test."""
    before = signal.getsignal(signal.SIGINT)
    yield partial(signal.signal, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def press() -> None:
    """Do what Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


def caught(work: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - whatever it is
        work()
    return raised.value


def raise_it() -> NoReturn:
    raise KeyboardInterrupt


def stop() -> NoReturn:
    raise asyncio.CancelledError


def first_match() -> int:
    return next(number for number in (1, 2) if number > 2)


def test_a_ctrl_c_differs_from_an_interrupt_that_code_raises(
    handle: Callable[[Any], object],
) -> None:
    def handler(number: int, frame: FrameType | None, extra: int = 0) -> NoReturn:
        raise_it()

    for installed in (handler, partial(handler, extra=1)):
        handle(installed)
        assert is_interrupt(caught(press))
        assert not is_interrupt(caught(raise_it))
    handle(signal.SIG_IGN)
    assert not is_interrupt(caught(raise_it))
    assert not is_interrupt(ValueError())


def test_under_the_default_handler_every_interrupt_of_the_main_thread_passes(
    handle: Callable[[Any], object],
) -> None:
    handle(signal.default_int_handler)
    assert is_interrupt(caught(press))
    assert is_interrupt(caught(raise_it))
    found: list[bool] = []

    def look() -> None:
        found.append(is_interrupt(caught(raise_it)))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [False]


async def test_an_interrupt_that_a_plain_function_raises_in_its_thread_is_a_failure(
    handle: Callable[[Any], object],
) -> None:
    handle(signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt) as raised:
        await call_function(raise_it, (), {})
    assert is_failure(raised.value, current_task())


async def test_a_cancellation_of_the_task_passes_and_another_is_a_failure() -> None:
    found: list[bool] = []

    async def work(*, cancel: bool) -> None:
        task = current_task()
        assert task is not None
        if cancel:
            task.cancel()
        try:
            await asyncio.sleep(0)
            stop()
        except asyncio.CancelledError as error:
            found.append(is_failure(error, task))

    for cancel in (True, False):
        await asyncio.get_running_loop().create_task(work(cancel=cancel))
    assert found == [False, True]


async def test_what_a_coroutine_raises_while_it_is_closed_is_no_failure() -> None:
    """Nothing may be recorded then: it could not wait for the store."""
    found: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            found.append(is_failure(error, task))
            raise

    task = current_task()
    closed = work()
    closed.send(None)
    elsewhere = asyncio.get_running_loop().create_task(asyncio.sleep(0))
    task = elsewhere
    closed.close()
    await elsewhere
    assert found == [False]


def test_control_flow_of_the_runtime_passes_through_user_code() -> None:
    with pytest.raises(Detached), FailsAs(lambda _: ValueError()):
        raise Detached
    with pytest.raises(ValueError, match="said"), FailsAs(lambda _: ValueError("said")):
        raise StopIteration


async def test_a_stop_iteration_leaves_a_thread_as_it_leaves_a_coroutine() -> None:
    with pytest.raises(RuntimeError, match="first_match raised StopIteration") as raised:
        await in_thread(first_match)
    assert isinstance(raised.value.__cause__, StopIteration)
