"""Membership: this process as a worker among others.

Rule 1. Our lease is one row, renewed by one small write, however much runs.
Rule 2. A worker that other workers gave up has lost its runs. It joins again to own new ones.
Rule 3. Dead workers are looked for when we join and every second after that.

Both go by real time, also under a simulated clock: they are maintenance, and nothing waits for them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from pylash.durable.ports import Clock, Entropy
from pylash.durable.runs import SECOND, LeaseTimings, WorkerId
from pylash.durable.stores import Store
from pylash.engine.system import process_name
from pylash.tasks import TaskOwner
from pylash.values.errors import StoreError

UNDERTAKER_SECONDS: Final = 1.0


class Membership:
    """A worker's place in its store."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy, timings: LeaseTimings) -> None:
        self.worker = WorkerId(f"{process_name()}-{entropy(4).hex()}")
        self._store = store
        self._clock = clock
        self._timings = timings
        # When our lease ends, by our monotonic clock. It is counted from before the write that renews it, so it ends
        # here no later than in the store.
        self._until = 0.0
        # What other workers know that we can run. Written by ``announce`` only.
        self.targets: list[str] = []
        # How often other workers gave us up. Each time all our runs may have new owners.
        self.times_given_up = 0

    @property
    def lease_is_over(self) -> bool:
        """Whether others may have given us up: nothing new is started until we renewed."""
        return self._clock.monotonic() >= self._until

    async def join(self, tasks: TaskOwner) -> None:
        """Become a member, and stay one until tasks ends."""
        asked = self._clock.monotonic()
        await self._store.workers.join(self.worker, self._timings.ttl, self.targets)
        self._until = asked + self._timings.ttl / SECOND
        await self.bury_the_dead()
        tasks.serve(self._renew_forever())
        tasks.serve(self._bury_forever())

    async def leave(self) -> None:
        """Give up the lease and every run still owned."""
        await self._store.workers.leave(self.worker)

    async def renew(self) -> bool:
        """Renew the lease; False if others had given us up: our runs are theirs now."""
        asked = self._clock.monotonic()
        kept = await self._store.workers.beat(self.worker, self._timings.ttl)
        if not kept:
            # Before the join is awaited: an effect that begins meanwhile must compare its fence with the store.
            self.times_given_up += 1
            await self._store.workers.join(self.worker, self._timings.ttl, self.targets)
        self._until = asked + self._timings.ttl / SECOND
        return kept

    async def announce(self, targets: list[str]) -> None:
        """Announce to other workers what this worker can run."""
        await self._store.workers.join(self.worker, self._timings.ttl, targets)
        self.targets = targets

    async def bury_the_dead(self) -> None:
        """Make the runs of dead workers ready for others."""
        await self._store.workers.bury_the_dead(self.worker)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._timings.renew_every / SECOND)
            with suppress(StoreError):  # away for the moment: the lease decides
                await self.renew()

    async def _bury_forever(self) -> None:
        while True:
            await asyncio.sleep(UNDERTAKER_SECONDS)
            with suppress(StoreError):
                await self.bury_the_dead()
