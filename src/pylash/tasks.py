"""The one place that starts background tasks.

Rule 1. A task has an owner you can point at; closing the owner ends it.
Rule 2. A failure that nobody awaits is raised when the owner closes, never lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskOwner:
    """Owns tasks that outlive the call that started them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures: list[BaseException] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work whose outcome somebody awaits."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that runs until the owner closes; its failure is raised there."""
        self.start(work).add_done_callback(self._keep_failure)

    def _keep_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    async def finish(self) -> None:
        """Wait until every task has ended, those they start included."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.close()

    async def close(self) -> None:
        """Cancel every task, wait for their ends, and raise the first failure nobody saw."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._failures:
            raise self._failures.pop(0)
