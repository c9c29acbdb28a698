"""Waiting in this process for what happens to processes elsewhere.

Rule 1. Whoever waits is registered before it looks, so that nothing happens unseen in between.
Rule 2. A hint only says "look". The database decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from pylash.durable import Sessions, Store
from pylash.tasks import TaskOwner
from pylash.values import AppNotOpen, ProcessUnknown, StoreError

AGAIN_SECONDS: Final = 0.01
NET_SECONDS: Final = 5.0
"""How often everything that is waited for is looked at, hint or no hint."""


Waiting = dict[str, set[asyncio.Future[Any]]]
"""Who waits, by process or turn."""


class Ends(Protocol):
    """Where it is written how things ended."""

    def observe(self, ids: Sequence[str]) -> Awaitable[Mapping[str, Any]]:
        """Say that somebody waits for ends; return what is watched now, or has ended, with how."""
        ...

    def outputs(self, ids: Sequence[str]) -> Awaitable[Mapping[str, Any]]:
        """Return how those ended that have."""
        ...

    def known(self, ids: Sequence[str]) -> Awaitable[set[str]]:
        """Return those that are known at all."""
        ...


class TurnEnds:
    """How turns ended: whoever waits need not say so, for every end of a turn is told."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def observe(self, ids: Sequence[str]) -> Mapping[str, Any]:
        """Return every turn that is known, with how it ended if it has."""
        known = await self._sessions.states(ids)
        return {**dict.fromkeys(known), **await self.outputs(ids)}

    def outputs(self, ids: Sequence[str]) -> Awaitable[Mapping[str, Any]]:
        """Return how those ended that have."""
        return self._sessions.results(ids)

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Return those that are known."""
        return set(await self._sessions.states(ids))


class Observers:
    """Who waits for the end, or the next event, of which process; or for the end of which turn."""

    def __init__(
        self,
        store: Store,
        runs_here: Callable[[str], bool],
        tasks: TaskOwner,
        ends: Ends | None = None,
        topic: str = "process",
    ) -> None:
        self._store = store
        self._source = ends or store.processes
        self._topic = topic
        self._runs_here = runs_here
        self._ends: Waiting = {}
        self._events: Waiting = {}
        self._suspects: set[str] = set()
        self._unseen: set[str] = set()
        self._wake = asyncio.Event()
        self._closed = False
        self._unsubscribe = store.subscribe(self._hear)
        tasks.serve(self._look_forever())

    def close(self) -> None:
        """Stop listening; who still waits is told, and who comes back to wait again."""
        self._closed = True
        self._unsubscribe()
        waiting: list[asyncio.Future[Any]] = [one for each in self._ends.values() for one in each]
        waiting += [one for each in self._events.values() for one in each]
        for future in waiting:
            if not future.done():
                future.set_exception(AppNotOpen())

    async def end(self, process_id: str) -> Any:
        """Return how a process ended, once it has."""
        while True:
            ended = self._registered(self._ends, process_id)
            try:
                if not self._runs_here(process_id):
                    # It may end in another process: from now on its end is news.
                    self._unseen.add(process_id)
                    self._wake.set()
                output = await ended
            finally:
                _forget(self._ends, process_id, ended)
            if output is not None:
                return output

    async def news(self, process_id: str, after: int) -> None:
        """Return once a process's log may be longer, or it has ended."""
        heard = self._registered(self._events, process_id)
        try:
            record = await self._store.processes.get(process_id)
            if record is None:
                raise ProcessUnknown(process_id)
            if record.state.sequence > after or record.state.status != "open":
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(NET_SECONDS):
                    await heard
        finally:
            _forget(self._events, process_id, heard)

    def _registered(self, board: Waiting, name: str) -> asyncio.Future[Any]:
        """Return a future that is told what becomes of name."""
        if self._closed:
            raise AppNotOpen
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        board.setdefault(name, set()).add(future)
        return future

    def tell(self, process_id: str, output: Any) -> None:
        """Tell who waits here how a process ended, or that it goes on elsewhere."""
        for waiting in self._ends.get(process_id, ()):
            if not waiting.done():
                waiting.set_result(output)

    def _hear(self, topic: str) -> None:
        kind, _, process = topic.partition(":")
        if not topic:
            self._suspects.update(self._ends)
            for heard in tuple(self._events):
                self._ring(heard)
        elif kind in (self._topic, "events"):
            self._ring(process)
            if kind == self._topic and process in self._ends and not self._runs_here(process):
                self._suspects.add(process)
        if self._suspects:
            self._wake.set()

    def _ring(self, process_id: str) -> None:
        for heard in self._events.get(process_id, ()):
            if not heard.done():
                heard.set_result(None)

    async def _look_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(NET_SECONDS):
                    await self._wake.wait()
            if not self._wake.is_set():
                self._suspects.update(self._ends)
            self._wake.clear()
            suspects, self._suspects = self._suspects, set()
            unseen, self._unseen = self._unseen, set()
            try:
                await self._begin([one for one in unseen if one in self._ends])
                known = [one for one in suspects if one in self._ends]
                if known:
                    self._tell_all(await self._source.outputs(known))
            except StoreError:  # away for the moment
                self._unseen |= unseen
                await asyncio.sleep(AGAIN_SECONDS)
                self._wake.set()

    async def _begin(self, processes: list[str]) -> None:
        """Watch processes that nobody here watched before; tell who waits for what has ended."""
        while processes:
            seen = await self._source.observe(processes)
            self._tell_all(seen)
            left = [one for one in processes if one not in seen]
            busy = await self._source.known(left) if left else set()
            for one in left:
                if one not in busy:
                    self._refuse(one)
            processes = [one for one in left if one in busy]
            if processes:  # being written this moment
                await asyncio.sleep(AGAIN_SECONDS)

    def _tell_all(self, seen: Mapping[str, Any]) -> None:
        for process, output in seen.items():
            if output is not None:
                self.tell(process, output)

    def _refuse(self, process_id: str) -> None:
        for waiting in self._ends.get(process_id, ()):
            if not waiting.done():
                waiting.set_exception(ProcessUnknown(process_id))


def _forget(board: Waiting, name: str, future: asyncio.Future[Any]) -> None:
    waiting = board[name]
    waiting.discard(future)
    if not waiting:
        del board[name]
