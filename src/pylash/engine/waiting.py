"""Waiting in this process for waits that are answered here or elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pylash.durable.ports import Cancellation, Clock, Entropy
from pylash.durable.runs import Fence
from pylash.durable.stores import Answer, Store, WaitStatus
from pylash.durable.waits import Cancelled, Resolution, ResolveOutcome, WaitName
from pylash.engine.hub import Hub, Watch
from pylash.engine.races import cancelled_first, wait_until_done
from pylash.tasks import TaskOwner
from pylash.values.errors import AwaitEventUnknownOrRevoked


class LiveWaits:
    """The waits that tasks of this process wait for."""

    def __init__(
        self, store: Store, hub: Hub, clock: Clock, entropy: Entropy, tasks: TaskOwner
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        # It is given ends only (see ``_read``), so the result of a waiter is final: a wait never opens again.
        self._watch = Watch(self._read, tasks)
        hub.subscribe(lambda topic: self._watch.read_soon(topic.partition(":")[2]), "wait")

    async def wait(
        self,
        name: WaitName,
        opening: Awaitable[WaitStatus],
        cancel: Cancellation | None,
        fence: Fence | None = None,
        on_end: Callable[[], None] = lambda: None,
        late: Callable[[], Awaitable[WaitStatus]] | None = None,
    ) -> Resolution:
        """Open the wait and return how it ended; a cancel or a deadline is an end of its own.

        ``on_end`` is called as soon as its end is known here, before any task that waits for it goes on, and when its time
        is over by our clock; then ``late`` asks the store, which by default ends a wait whose deadline has passed.
        """
        # Registered before the wait is opened: an answer that comes meanwhile is not missed.
        with self._watch.waiter(name.id, on_end) as ended:
            status = await opening
            if ended.done():
                on_end()  # again: opening may have marked the effect as waiting since
            while status.terminal is None and not status.revoked:
                waiting = wait_until_done(ended, self._clock, status.remaining)
                if await cancelled_first(waiting, cancel):
                    status = await self._cancelled(name, fence)
                elif ended.done():
                    status = ended.result()
                else:  # the store decides, as an answer may have been first
                    on_end()
                    status = await (self._store.waits.expire(name) if late is None else late())
        if status.terminal is None:
            raise AwaitEventUnknownOrRevoked
        return status.terminal

    async def resolve(
        self, name: WaitName, resolution: Resolution, by: str | None
    ) -> ResolveOutcome:
        """End a wait, and wake the tasks that wait for it here at once."""
        answer = Answer(self._entropy(8).hex(), by)
        outcome = await self._store.waits.resolve(name, resolution, answer)
        # Any other answer is not the end of the wait: its tasks read the first one from the store.
        if outcome.status == "accepted":
            self._watch.deliver(name.id, WaitStatus(resolution))
        return outcome

    async def _cancelled(self, name: WaitName, fence: Fence | None) -> WaitStatus:
        # With the fence of its run, so that a worker that lost the run cannot end the wait of the next owner.
        answer = Answer(self._entropy(8).hex(), fence=fence)
        outcome = await self._store.waits.resolve(name, Cancelled(), answer)
        if outcome.status == "unknown_or_revoked":
            return WaitStatus(revoked=True)
        # If an answer was first, that one counts, and the cancel changes nothing.
        return WaitStatus(outcome.terminal or Cancelled())

    async def check(self, waits: Sequence[str]) -> None:
        """Read now those of the waits that a task waits for here."""
        await self._watch.check(waits)

    async def _read(self, waits: list[str]) -> dict[str, WaitStatus]:
        """Return how those of the waits ended that have."""
        seen = await self._store.waits.look(waits)
        return {
            wait: status
            for wait, status in seen.items()
            if status.terminal is not None or status.revoked
        }
