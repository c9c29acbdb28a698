"""Waiting in this process for the results of processes and turns, wherever they run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pylash.durable.session_store import Sessions
from pylash.engine.hub import RETRY_SECONDS, Hub, Watch
from pylash.tasks import TaskOwner
from pylash.values.errors import StoreError
from pylash.values.process_errors import AppNotOpen, ProcessUnknown

# Delivered in place of a result for an id that the store does not have.
_UNKNOWN: Final = object()


class ResultSource(Protocol):
    """Where results are read."""

    def observe(self, ids: Sequence[str]) -> Awaitable[Mapping[str, Any]]:
        """Make the store notify of the ends of runs; return those that it notifies of, or that have ended.

        The value of a run that has not ended is None. A run that exists and is left out is locked: call again.
        """
        ...

    def outputs(self, ids: Sequence[str]) -> Awaitable[Mapping[str, Any]]:
        """Return the results of the ids that have ended; the others are left out."""
        ...

    def known(self, ids: Sequence[str]) -> Awaitable[set[str]]:
        """Return the ids that exist in the store."""
        ...


class TurnSource:
    """Reads the results of turns. The store notifies of every end of a turn, so ``observe`` writes nothing."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def observe(self, ids: Sequence[str]) -> Mapping[str, Any]:
        """Return every turn that exists, with its result if it has ended."""
        # None for every turn that exists, replaced by the result of each that has ended.
        return {**dict.fromkeys(await self.known(ids)), **await self.outputs(ids)}

    def outputs(self, ids: Sequence[str]) -> Awaitable[Mapping[str, Any]]:
        """Return the results of the ids that have ended; the others are left out."""
        return self._sessions.results(ids)

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Return the ids that exist in the store."""
        return set(await self._sessions.states(ids))


class RunResults:
    """The tasks that wait for the results of processes, or of turns.

    ``topic`` is the kind of topic that notifies of ends: "process" or "turn". The worker of this process delivers the
    results of runs that end here. The results of all others are read from the store.
    """

    def __init__(
        self,
        hub: Hub,
        topic: str,
        source: ResultSource,
        runs_here: Callable[[str], bool],
        tasks: TaskOwner,
    ) -> None:
        self._hub = hub
        self._source = source
        self._runs_here = runs_here
        # Ids to pass to ``observe`` at the next read: the store may not notify of their ends yet.
        self._unobserved: set[str] = set()
        self._watch = Watch(self._read, tasks)
        hub.subscribe(self._on_topic, topic)

    async def wait(self, name: str) -> Any:
        """Return the result of a process or turn, once it has ended."""
        result = None
        # None: the run has left this worker without an end (it was parked, released or blocked, or its lease was lost),
        # and may end in another process; or the hub was closed.
        while result is None:
            # Checked before each wait: a hub that closes delivers None once, so a task that waits afterwards gets nothing.
            if self._hub.is_closed:
                raise AppNotOpen
            with self._watch.waiter(name) as future:
                # The worker delivers the result of a run that is executed here, or None when the run leaves.
                if not self._runs_here(name):
                    self._unobserved.add(name)
                    self._watch.read_soon(name)
                result = await future
        if result is _UNKNOWN:
            # A turn is submitted before a caller waits for it, so it can be missing only if its row was deleted since.
            raise ProcessUnknown(name)
        return result

    def deliver(self, name: str, result: Any) -> None:
        """Wake the tasks that wait for a run: with its result if it ended here, with None if it left without one."""
        self._watch.deliver(name, result)

    def _on_topic(self, topic: str) -> None:
        name = topic.partition(":")[2]
        if self._hub.is_closed:
            self._watch.deliver("", None)  # to all waiters: ``wait`` then finds the hub closed
        # A run that is executed here is not read: its worker calls ``deliver``.
        elif not self._runs_here(name):
            self._watch.read_soon(name)

    async def _read(self, names: list[str]) -> Mapping[str, Any]:
        # Emptied before the read: an id that is added during the read stays for the next one. Ids that are not among
        # ``names`` are dropped: ``wait`` also calls ``read_soon`` for each, so their waiters have left.
        new, self._unobserved = self._unobserved.intersection(names), set()
        try:
            if new:
                await self._observe(list(new))
            others = [name for name in names if name not in new]
            return await self._source.outputs(others) if others else {}
        except StoreError:
            self._unobserved |= new
            raise

    async def _observe(self, names: list[str]) -> None:
        """Make the store notify of the ends of runs, and deliver the results of those that have ended."""
        observed = dict(await self._source.observe(names))
        missing = [name for name in names if name not in observed]
        known = await self._source.known(missing) if missing else set()
        for name, result in observed.items():
            if result is not None:
                self._watch.deliver(name, result)
        for name in missing:
            if name not in known:
                self._watch.deliver(name, _UNKNOWN)
        if known:  # a transaction has locked their rows: observe them again
            await asyncio.sleep(RETRY_SECONDS)
            self._unobserved |= known
            for name in known:
                self._watch.read_soon(name)
