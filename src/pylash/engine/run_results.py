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
        """Have the ends of runs notified; return the runs that are observed now or have ended, with their results."""
        ...

    def outputs(self, ids: Sequence[str]) -> Awaitable[Mapping[str, Any]]:
        """Return the results of those that have ended."""
        ...

    def known(self, ids: Sequence[str]) -> Awaitable[set[str]]:
        """Return those that exist."""
        ...


class TurnSource:
    """Reads the results of turns. The end of a turn is always notified, so observing only reads."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def observe(self, ids: Sequence[str]) -> Mapping[str, Any]:
        """Return every turn that exists, with its result if it has ended."""
        return {**dict.fromkeys(await self.known(ids)), **await self.outputs(ids)}

    def outputs(self, ids: Sequence[str]) -> Awaitable[Mapping[str, Any]]:
        """Return the results of those that have ended."""
        return self._sessions.results(ids)

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Return those that exist."""
        return set(await self._sessions.states(ids))


class RunResults:
    """The tasks that wait for the results of processes, or of turns.

    The worker delivers the results of runs that end here; the others are read from the store.
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
        # Ids that must be observed before they are read: their ends may not be notified yet.
        self._unobserved: set[str] = set()
        self._watch = Watch(self._read, tasks)
        hub.subscribe(self._on_topic, topic)

    async def wait(self, name: str) -> Any:
        """Return the result of a process or turn, once it has ended."""
        result = None
        while result is None:  # without a result it was parked, and may end in another process
            # In every round, before it waits: a hub that closes wakes the waiters with None once, and no later one.
            if self._hub.is_closed:
                raise AppNotOpen
            with self._watch.waiter(name) as future:
                # A run that is executed here delivers its result by itself, or None if it leaves.
                if not self._runs_here(name):
                    self._unobserved.add(name)
                    self._watch.read_soon(name)
                result = await future
        if result is _UNKNOWN:
            raise ProcessUnknown(name)
        return result

    def deliver(self, name: str, result: Any) -> None:
        """Pass on the result of a run that ended here; None if the run left without one."""
        self._watch.deliver(name, result)

    def _on_topic(self, topic: str) -> None:
        name = topic.partition(":")[2]
        if self._hub.is_closed:
            self._watch.deliver("", None)
        # Its worker delivers the result of a run that is executed here, and None when the run leaves.
        elif not self._runs_here(name):
            self._watch.read_soon(name)

    async def _read(self, names: list[str]) -> Mapping[str, Any]:
        # Taken before the read: an id that is added during the read is observed by the next one. An id that is not
        # among ``names`` has no waiter any more, because ``wait`` suspects what it adds.
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
        """Have the ends of runs notified, and deliver the results of those that have ended."""
        observed = dict(await self._source.observe(names))
        missing = [name for name in names if name not in observed]
        known = await self._source.known(missing) if missing else set()
        for name, result in (observed | dict.fromkeys(missing, _UNKNOWN)).items():
            if name not in known and result is not None:
                self._watch.deliver(name, result)
        if known:  # a writer has locked them: observe them again
            await asyncio.sleep(RETRY_SECONDS)
            self._unobserved |= known
            for name in known:
                self._watch.read_soon(name)
