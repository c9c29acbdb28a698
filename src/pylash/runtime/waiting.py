"""Waiting in this process for waits that end elsewhere.

Rule 1. Whoever waits is registered before it looks, so that nothing ends unseen in between.
Rule 2. A hint only says "look". The database decides, and every waiter gets its word.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from pylash.durable import (
    SECOND,
    Answer,
    Cancellation,
    Cancelled,
    Clock,
    Entropy,
    Fence,
    Resolution,
    ResolveOutcome,
    Store,
    WaitName,
    WaitStatus,
)
from pylash.runtime.executors import cancelled_first
from pylash.tasks import TaskOwner
from pylash.values import AwaitEventUnknownOrRevoked, StoreError

NET_SECONDS: Final = 5.0
"""How often every open wait is looked at, hint or no hint."""

_PREFIX = "wait:"


class LiveWaits:
    """The waits that somebody in this process waits for."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy, tasks: TaskOwner) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._names: dict[str, WaitName] = {}
        self._waiters: defaultdict[str, dict[asyncio.Future[WaitStatus], Callable[[], None]]]
        self._waiters = defaultdict(dict)
        self._suspects: set[str] = set()
        self._wake = asyncio.Event()
        self._unsubscribe = store.subscribe(self._hear)
        tasks.serve(self._look_forever())

    def close(self) -> None:
        """Stop listening."""
        self._unsubscribe()

    async def wait(
        self,
        name: WaitName,
        opening: Awaitable[WaitStatus],
        cancel: Cancellation | None,
        fence: Fence | None = None,
        heard: Callable[[], None] = lambda: None,
    ) -> Resolution:
        """Open the wait and return how it ended; a cancel or a deadline is an end of its own.

        ``heard`` is called the moment its end is known here, before anyone goes on.
        """
        with self._registered(name, heard) as ended:
            status = await opening
            if ended.done():
                heard()
            while status.terminal is None and not status.revoked:
                if await cancelled_first(self._until(status, ended), cancel):
                    status = await self._cancelled(name, fence)
                elif ended.done():
                    status = ended.result()
                else:
                    status = await self._store.waits.expire(name)
        if status.terminal is None:
            raise AwaitEventUnknownOrRevoked
        return status.terminal

    async def resolve(
        self, name: WaitName, resolution: Resolution, by: str | None
    ) -> ResolveOutcome:
        """End a wait, and tell who waits for it here at once."""
        answer = Answer(self._entropy(8).hex(), by)
        outcome = await self._store.waits.resolve(name, resolution, answer)
        if outcome.status == "accepted":
            self._deliver(name.id, WaitStatus(resolution))
        return outcome

    async def _until(self, status: WaitStatus, ended: asyncio.Future[WaitStatus]) -> None:
        """Return once the wait ended or its deadline has come."""
        if status.remaining is None:
            await asyncio.wait((ended,))
            return
        async with asyncio.TaskGroup() as group:
            timer = group.create_task(self._clock.sleep(max(0, status.remaining) / SECOND))
            await asyncio.wait((ended, timer), return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()

    async def _cancelled(self, name: WaitName, fence: Fence | None) -> WaitStatus:
        answer = Answer(self._entropy(8).hex(), fence=fence)
        outcome = await self._store.waits.resolve(name, Cancelled(), answer)
        if outcome.status == "unknown_or_revoked":
            return WaitStatus(revoked=True)
        return WaitStatus(outcome.terminal or Cancelled())

    async def look_at(self, waits: Sequence[str]) -> None:
        """Look at once at waits that somebody waits for here."""
        names = [self._names[wait] for wait in waits if wait in self._names]
        if names:
            await self._look(names)

    # --- hints ---

    @contextmanager
    def _registered(
        self, name: WaitName, heard: Callable[[], None]
    ) -> Iterator[asyncio.Future[WaitStatus]]:
        future: asyncio.Future[WaitStatus] = asyncio.get_running_loop().create_future()
        waiters = self._waiters[name.id]
        self._names[name.id] = name
        waiters[future] = heard
        try:
            yield future
        finally:
            waiters.pop(future, None)
            if not waiters and self._waiters.get(name.id) is waiters:
                del self._waiters[name.id], self._names[name.id]

    def _hear(self, topic: str) -> None:
        if not topic:
            self._suspects.update(self._names)
        elif topic.startswith(_PREFIX) and (wait := topic[len(_PREFIX) :]) in self._names:
            self._suspects.add(wait)
        if self._suspects:
            self._wake.set()

    def _deliver(self, wait: str, status: WaitStatus) -> None:
        self._suspects.discard(wait)
        for future, heard in self._waiters.get(wait, {}).items():
            if not future.done():
                heard()
                future.set_result(status)

    async def _look_forever(self) -> None:
        loop = asyncio.get_running_loop()
        everything_at = loop.time() + NET_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(everything_at):
                    await self._wake.wait()
            if loop.time() >= everything_at:
                everything_at = loop.time() + NET_SECONDS
                self._suspects.update(self._names)
            self._wake.clear()
            suspects, self._suspects = self._suspects, set()
            names = [self._names[wait] for wait in suspects if wait in self._names]
            if names:
                with suppress(StoreError):  # it is away for the moment; the net will look again
                    await self._look(names)

    async def _look(self, names: list[WaitName]) -> None:
        seen = await self._store.waits.look(names)
        for wait, status in seen.items():
            if status.terminal is not None or status.revoked:
                self._deliver(wait, status)
