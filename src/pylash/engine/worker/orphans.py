"""Orphans: runs that this worker owns and does not execute, because the store was away when it mattered."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress

from pylash.durable.runs import Fence
from pylash.engine.hosts.journal import JournalHost
from pylash.values.errors import LeaseLost


class Orphans:
    """Gives up runs so that any worker may go on with them."""

    def __init__(self, host: JournalHost, live: Container[int]) -> None:
        # Whether there may be some that we do not know of.
        self.suspected = False
        # Called when some are known.
        self.on_found: Callable[[], None] = lambda: None
        self._host = host
        self._live = live
        self._known: list[Fence] = []

    def add(self, fences: Iterable[Fence]) -> None:
        """Give these up as soon as the store can be reached."""
        self._known += fences
        if self._known:
            self.on_found()

    async def find(self) -> None:
        """Find runs that the store says are ours, and that no task here executes."""
        # Cleared before the read: a claim whose answer is lost during the read sets it again.
        self.suspected = False
        owned = await self._host.store.runs.owned_by(self._host.membership.worker)
        self.add(fence for fence in owned if fence.run not in self._live)

    async def release(self) -> None:
        """Give up all that are known."""
        while self._known:
            with suppress(LeaseLost):
                await self._host.store.journal.release(self._known[-1])
            # After the write: if the store fails, this one is tried again.
            self._known.pop()
