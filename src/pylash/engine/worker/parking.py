"""Parking: idle runs are dropped from memory when their time has come, and keep one row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pylash.durable.machines.run_state import ParkAnswer
from pylash.durable.machines.worker_machine import WorkerDecisions, WorkerMachine
from pylash.durable.stores import Runs
from pylash.engine.hub import wait_for_hint
from pylash.engine.runs.driver import DETACH_GRACE
from pylash.engine.runs.run import LiveRun
from pylash.engine.worker.run_checks import RunChecks
from pylash.values.errors import StoreError


class Parking:
    """Parks the runs of one worker; ``changed`` is set when another run is idle."""

    def __init__(self, machine: WorkerMachine, runs: Runs, checks: RunChecks) -> None:
        self.changed = asyncio.Event()
        self._machine = machine
        self._runs = runs
        self._checks = checks

    async def park_forever(self, carry_out: Callable[[WorkerDecisions], None]) -> None:
        """Have the runs parked that have been idle long enough; ``carry_out`` takes the machine's decisions."""
        loop = asyncio.get_running_loop()
        while True:
            # A run that becomes idle later is due later. ``changed`` matters if no run was idle, and nothing was due.
            due = self._machine.next_due
            await wait_for_hint(self.changed, None if due is None else max(0.0, due - loop.time()))
            carry_out(self._machine.time_passed(loop.time()))

    async def park(self, run: LiveRun) -> None:
        """Drop an idle run and keep its row; if it was woken meanwhile, look at everything it waits for."""
        answer = await run.park(self._runs)
        if answer is ParkAnswer.WOKEN:
            with suppress(StoreError):
                # Read before the checks: the run takes it over when everything was looked at after this read.
                standing = await self._runs.wake_seqs([run.record.run])
                await self._checks.check_waits(run, standing[run.record.run][0])
        elif run.closed:  # its code unwinds, and is cancelled if it does not
            await run.finish(DETACH_GRACE)
