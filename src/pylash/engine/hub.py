"""Waiting for changes that other tasks and other processes commit to the store.

After a commit the store notifies its subscribers of topics, such as ``process:order-7``. After a reconnect, and
whenever notifications may be lost, the topic is blank: anything may have changed. A notification is only a hint to
read again: it may come late, twice or never, and what it is about may have changed once more since.

Every wait therefore has the same shape, and no change goes unnoticed:

1. It registers before it reads, so a change that is committed after the read notifies it.
2. It clears the hint before it reads, so a hint that comes during the read makes it read again.
3. It reads again every ``NET_SECONDS`` in case a notification was lost.

``Hub.listen`` is for one task that reads in a loop, ``Watch`` for many tasks that wait for results by id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, Generic, TypeVar

from pylash.durable.stores import Store
from pylash.tasks import TaskOwner
from pylash.values.errors import StoreClosed, StoreError
from pylash.values.process_errors import AppNotOpen

T = TypeVar("T")

NET_SECONDS: Final = 5.0
"""How often everything that is waited for is read, with or without a notification."""
RETRY_SECONDS: Final = 0.01
"""The pause after a read that the store could not answer."""


async def wait_for_hint(hint: asyncio.Event, seconds: float | None = NET_SECONDS) -> None:
    """Wait until a hint is set, at most so many seconds, and clear it: the caller reads after that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await hint.wait()
    hint.clear()


class Hub:
    """Passes the notifications of a store on to the subscribers of their topics."""

    def __init__(self, store: Store) -> None:
        self.is_closed = False
        # By topic, or its part before the colon. No list is empty.
        self._callbacks: dict[str, list[Callable[[str], None]]] = {}
        self._unsubscribe = store.subscribe(self._notify)

    def subscribe(self, callback: Callable[[str], None], *names: str) -> Callable[[], None]:
        """Call back with every topic that has one of the names, or its part before the colon; return how to stop.

        Every callback is called with a blank topic too.
        """
        for name in names:
            self._callbacks.setdefault(name, []).append(callback)

        def unsubscribe() -> None:
            for name in names:
                self._callbacks[name].remove(callback)
                if not self._callbacks[name]:
                    del self._callbacks[name]

        return unsubscribe

    @contextmanager
    def listen(self, *names: str) -> Iterator[Listener]:
        """Return a listener that is registered within the block: read inside it.

        A read that finds the store closed raises AppNotOpen, as ``Listener.wait`` does, if the hub was closed before it.
        """
        listener = Listener(self)
        unsubscribe = self.subscribe(lambda _: listener.wake(), *names)
        try:
            yield listener
        except StoreClosed:
            if self.is_closed:
                raise AppNotOpen from None
            raise
        finally:
            unsubscribe()

    def close(self) -> None:
        """Stop; tasks that wait raise AppNotOpen."""
        if not self.is_closed:
            # First the flag: tasks that the notification wakes must find the hub closed.
            self.is_closed = True
            self._unsubscribe()
            self._notify("")

    def _notify(self, topic: str) -> None:
        names = (topic, topic.partition(":")[0]) if topic else tuple(self._callbacks)
        # Each callback once, and from a copy: a callback may subscribe or unsubscribe.
        for callback in {one: None for name in names for one in self._callbacks.get(name, ())}:
            callback(topic)


class Listener:
    """Wakes one task that reads the store in a loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        # Set by notifications, cleared by ``wait`` before the task reads.
        self._hint = asyncio.Event()

    def wake(self) -> None:
        """Make the task read again."""
        self._hint.set()

    async def wait(self, seconds: float = NET_SECONDS) -> None:
        """Return when it is time to read again."""
        await wait_for_hint(self._hint, seconds)
        if self._hub.is_closed:
            raise AppNotOpen


class Watch(Generic[T]):
    """The tasks that wait for results, by id. One background task reads for all of them.

    ``read`` returns the results that are there; ids without one are left out.
    """

    def __init__(
        self, read: Callable[[list[str]], Awaitable[Mapping[str, T]]], tasks: TaskOwner
    ) -> None:
        self._read = read
        # No entry is empty: it is deleted with its last waiter.
        self._waiters: dict[str, dict[asyncio.Future[T], Callable[[], None]]] = {}
        # The ids to read next. Ids whose waiters have left may be among them.
        self._to_read: set[str] = set()
        # Set whenever ids are added to ``_to_read``. The reader clears it before it takes them, so ids that are added later
        # set it again.
        self._hint = asyncio.Event()
        tasks.serve(self._read_forever())

    @contextmanager
    def waiter(
        self, name: str, on_result: Callable[[], None] = lambda: None
    ) -> Iterator[asyncio.Future[T]]:
        """Return a future of a result, registered within the block: start the read inside it.

        ``on_result`` is called as soon as the result is known, before any task that waits for it goes on.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(name, {})
        waiters[future] = on_result
        try:
            yield future
        finally:
            # ``waiters`` is the dict of this name as long as it has an entry, so that this one is still in it.
            del waiters[future]
            if not waiters:
                del self._waiters[name]

    def read_soon(self, name: str) -> None:
        """Read an id soon, if a task waits for it; a blank id means all of them."""
        if not name:
            self._to_read.update(self._waiters)
        elif name in self._waiters:
            self._to_read.add(name)
        if self._to_read:
            self._hint.set()

    def deliver(self, name: str, result: T) -> None:
        """Complete the futures of an id; a blank id means all of them."""
        self._to_read.discard(name)
        for waiting in (name,) if name else tuple(self._waiters):
            for future, on_result in self._waiters.get(waiting, {}).items():
                # A waiter may have been cancelled, or have its result from an earlier read.
                if not future.done():
                    on_result()
                    future.set_result(result)

    async def check(self, names: Collection[str]) -> None:
        """Read those of the ids that tasks wait for, and deliver their results."""
        waited = [name for name in names if name in self._waiters]
        if waited:
            for name, result in (await self._read(waited)).items():
                self.deliver(name, result)

    async def _read_forever(self) -> None:
        loop = asyncio.get_running_loop()
        net = loop.time() + NET_SECONDS
        while True:
            await wait_for_hint(self._hint, net - loop.time())
            if loop.time() >= net:
                net = loop.time() + NET_SECONDS
                self._to_read.update(self._waiters)
            # Taken before the read: an id that is added during the read is read again.
            names, self._to_read = self._to_read, set()
            try:
                await self.check(names)
            except StoreError:  # it cannot answer for the moment
                await asyncio.sleep(RETRY_SECONDS)
                for name in names:
                    self.read_soon(name)
