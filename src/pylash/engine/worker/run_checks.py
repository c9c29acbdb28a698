"""Checks of the runs that a worker executes: cancels, wake-ups and lost leases, as the store has them."""

from __future__ import annotations

from contextlib import suppress

from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runs.run import LiveRun
from pylash.engine.worker.live_runs import LiveRuns
from pylash.values.errors import LeaseLost, StoreError


class RunChecks:
    """Reads the store for the live runs of a worker."""

    def __init__(self, host: JournalHost, live: LiveRuns) -> None:
        self._host = host
        self._live = live

    async def check_cancel(self, run: LiveRun) -> None:
        """Cancel the run if its process or turn was asked to end, close it if it was ended; do nothing if the store is unreachable."""
        with suppress(StoreError):  # check_all comes again
            found = await self._host.store.runs.wake_seqs([run.fence.run])
            # The end of a process by force makes our fence stale; its code may be in a step that takes hours.
            if any(token > run.fence.token for _, token in found.values()):
                run.close(LeaseLost(run.fence.name))
            else:
                await self._deliver_cancel(run)

    async def check_all(self) -> None:
        """Close the runs whose fence has grown: others own them now, or ended them. Check those that were woken."""
        if not self._live:
            return
        found = await self._host.store.runs.wake_seqs(list(self._live.by_number))
        for number, (wake_seq, token) in found.items():
            # Looked up after the read: a run may have ended here during it, or have been claimed again.
            run = self._live.by_number.get(number)
            if run is None or run.closed:
                continue
            if token > run.fence.token:  # a smaller one was read before we claimed it again
                run.close(LeaseLost(run.fence.name))
            # It was woken since it last read everything it waits for. The wake-up may have been notified: a notification
            # alone does not change the number of the machine.
            elif wake_seq != run.machine.wake_seq:
                await self.check_waits(run, wake_seq)

    async def check_waits(self, run: LiveRun, wake_seq: int) -> None:
        """Read everything the run waits for. ``wake_seq`` was read from the store before.

        The run takes it over only when everything has been read, and cannot be parked until then: parking
        compares the count with the store, and a wake-up that no task acted on would be lost.
        """
        await self._host.live.check(run.memory.open_waits())
        run.driver.tell(run.machine.woken)
        await self._deliver_cancel(run)
        # Not reached if a read fails: the run keeps its old count, and the next check reads everything again.
        run.driver.tell(run.machine.looked, wake_seq)

    async def _deliver_cancel(self, run: LiveRun) -> None:
        store = self._host.store
        if run.turn is None:
            asked, _ = await store.processes.look(run.id)
        else:
            asked = await store.sessions.asked_to_end(run.record.run)
        if asked:
            run.driver.tell(run.machine.cancel_seen)
