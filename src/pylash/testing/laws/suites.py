"""Suites of laws.

Rule 1. A law is one small function whose name states the rule; each can fail alone.
Rule 2. A suite runs every law, each on a fresh subject, and reports all that do not hold.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from pylash.values.errors import LashError

S = TypeVar("S")
T = TypeVar("T")

Make = Callable[[], S | Awaitable[S]]
"""Returns a fresh, open subject."""

Law = Callable[[S], Coroutine[Any, Any, None]]
"""Checks one rule on a subject; raises if it does not hold."""

ReplayLaw = Callable[[S], AsyncGenerator[None, S]]
"""A law in two parts: it records, yields, and is sent the subject that replays."""


class Broken(AssertionError):
    """A law does not hold."""


def holds(condition: object, because: str) -> None:
    """Raise Broken unless condition holds."""
    if not condition:
        raise Broken(because)


def equal(actual: object, expected: object, because: str) -> None:
    """Raise Broken unless actual is expected, by value and by type."""
    if actual != expected or type(actual) is not type(expected):
        raise Broken(f"{because}: expected {expected!r}, got {actual!r}")


async def refused(work: Awaitable[object], code: str, because: str) -> LashError:
    """Return the error with code that work raises, or raise Broken."""
    try:
        value = await work
    except LashError as error:
        equal(error.code, code, because)
        return error
    raise Broken(f"{because}: expected {code}, got {value!r}")


async def together(*works: Coroutine[Any, Any, T]) -> list[T]:
    """Run works at once and return their results in order."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


async def made(make: Make[S]) -> S:
    """Return a fresh subject from a function that may be async."""
    subject = make()
    if inspect.isawaitable(subject):
        return await subject
    return subject


class Suite(Generic[S]):
    """Laws that every subject of a kind must keep: call it with a factory of subjects."""

    def __init__(self, name: str, laws: tuple[Law[S], ...]) -> None:
        self.name = name
        self.laws = laws

    async def __call__(self, make: Make[S]) -> None:
        """Check every law on a subject of its own; raise an ExceptionGroup of those that broke."""
        failures: list[Exception] = []
        for law in self.laws:
            try:
                await law(await made(make))
            except Exception as error:  # noqa: BLE001 - each failure is reported under its law
                error.add_note(f"law: {law.__name__}")
                failures.append(error)
        report(self.name, failures, len(self.laws))


def report(name: str, failures: list[Exception], total: int) -> None:
    """Raise an ExceptionGroup of the broken laws, if there are any."""
    if failures:
        raise ExceptionGroup(f"{name}: {len(failures)} of {total} laws do not hold", failures)
