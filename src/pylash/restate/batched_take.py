"""Attempts that begin at about the same time take their runs in one transaction.

Rule 1. One transaction is under way at a time. Runs that are asked for meanwhile wait, and the next one takes them all.
Rule 2. A run is at most once in a transaction: two attempts of one run get different fences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pylash.durable.stores import Taken
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.store_answers import STORE_AWAY_SECONDS
from pylash.tasks import TaskOwner
from pylash.values.errors import LashError, StoreError


class BatchedTake:
    """Takes runs for the attempts of this process."""

    def __init__(self, journal: JournalHost, tasks: TaskOwner, is_open: Callable[[], bool]) -> None:
        self._journal = journal
        self._tasks = tasks
        self._is_open = is_open
        # The attempts that wait, in order. An attempt that was cancelled has a future that is done.
        self._asked: list[tuple[int, asyncio.Future[Taken | None]]] = []
        # Whether a task serves them. Only that task removes attempts.
        self._is_serving = False

    async def take(self, run: int) -> Taken | None:
        """Own a run for an attempt; None if it has ended."""
        future: asyncio.Future[Taken | None] = asyncio.get_running_loop().create_future()
        self._asked.append((run, future))
        if not self._is_serving:
            self._is_serving = True
            self._tasks.serve(self._serve())
        return await future

    async def _serve(self) -> None:
        """Take what is asked for until nothing is."""
        try:
            while batch := self._next_batch():
                try:
                    taken = await self._take_all(list(batch))
                except Exception as error:  # noqa: BLE001 - it is that of the attempts
                    for future in batch.values():
                        if not future.done():
                            future.set_exception(error)
                    continue
                for run, future in batch.items():
                    if not future.done():
                        future.set_result(taken.get(run))
        finally:
            self._is_serving = False

    def _next_batch(self) -> dict[int, asyncio.Future[Taken | None]]:
        """Remove the attempts of the next transaction, and return them by run."""
        batch: dict[int, asyncio.Future[Taken | None]] = {}
        left = []
        for run, future in self._asked:
            if run in batch:
                left.append((run, future))
            elif not future.done():
                batch[run] = future
        self._asked = left
        return batch

    async def _take_all(self, runs: list[int]) -> dict[int, Taken]:
        membership, token = self._journal.membership, self._journal.new_token()
        while True:
            try:
                return await self._journal.store.runs.take(runs, membership.worker, token)
            except LashError as error:
                if not self._is_open():
                    raise
                if not isinstance(error, StoreError):
                    await membership.renew()  # others gave us up: join again
                await asyncio.sleep(STORE_AWAY_SECONDS)
