"""How the code of a run reaches the store between two effects.

On a worker it does so in its own task. An engine that executes the code on a deterministic loop makes these calls outside
of it: the connections of a store belong to the real loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pylash.engine.runs.run import LiveRun

T = TypeVar("T")


class Outside(Protocol):
    """Calls of the store for the code of one run."""

    async def call(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a call; a failure does not detach the run. Every execution makes the call again."""
        ...

    async def record(self, key: str, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer to a write that is safe to repeat under its key.

        An engine that replays by position records the answer.
        """
        ...

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work beside the code that uses the store, such as relaying its events."""
        ...


class DirectCalls:
    """Calls in the task of the code."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    async def call(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Make the call."""
        return await ask()

    async def record(self, key: str, ask: Callable[[], Awaitable[bytes]]) -> bytes:  # noqa: ARG002
        """Make the write; a replay finds it in the journal. Trouble with the store detaches the run."""
        return await self._run.write(ask)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of the run."""
        return self._run.tasks.start(work)
