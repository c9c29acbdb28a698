"""The lookout: whether something happened to the runs that are executed here.

Rule 1. A hint only says "look", and may be lost. The database decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pylash.runtime.journal import JournalHost
from pylash.runtime.runs import Detached, LiveRun
from pylash.values import LeaseLost, StoreError


class Lookout:
    """Looks at the live runs of a worker."""

    def __init__(self, host: JournalHost, live: Mapping[int, LiveRun]) -> None:
        self._host = host
        self._live = live

    async def look_soon(self, run: LiveRun) -> None:
        """Look whether the process, or the turn, was asked to end, unless the store is away."""
        with suppress(StoreError):  # the net will look again
            await self._look(run)

    async def look_at_all(self) -> None:
        """Look which runs belong to others now, and which were woken without our hearing of it."""
        if not self._live:
            return
        standing = await self._host.store.runs.wake_seqs(list(self._live))
        for number, (wake_seq, token) in standing.items():
            run = self._live.get(number)
            if run is None or run.closed:
                continue
            if token > run.fence.token:  # a smaller one was read before we claimed it again
                run.close(LeaseLost(run.fence.name))
            elif wake_seq != run.wake_seq:
                await self.look_again(run, wake_seq)

    async def look_again(self, run: LiveRun, wake_seq: int) -> None:
        """Look at everything the run waits for; the count was read before.

        It counts as seen when everything was looked at: until then the run cannot be parked.
        """
        if run.journal is not None:
            await self._host.live.look_at(run.journal.open_wait_names())
        run.woken()
        await self._look(run)
        run.wake_seq = max(run.wake_seq, wake_seq)

    async def _look(self, run: LiveRun) -> None:
        store = self._host.store
        if run.turn is None:
            asked, _ = await store.processes.look(run.id)
        else:
            asked = await store.sessions.asked_to_end(run.record.run)
        if asked:
            with suppress(Detached):
                await run.cancel()
