"""Parking: idle runs are dropped from memory when their time has come, and keep one row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pylash.durable.machines.run_decisions import Park
from pylash.durable.machines.run_state import ParkAnswer
from pylash.durable.machines.worker_machine import WorkerDecisions, WorkerMachine
from pylash.durable.runs import Instant
from pylash.durable.stores import Runs
from pylash.engine.hub import wait_for_hint
from pylash.engine.runs.driver import end_detached_code
from pylash.engine.runs.run import LiveRun
from pylash.engine.store_answers import STORE_AWAY_SECONDS
from pylash.engine.worker.run_checks import RunChecks
from pylash.values.errors import LeaseLost, StoreError


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
            # The run that has been idle longest is due first, so a run that becomes idle now does not change the time.
            # Only if no run was idle, ``changed`` must wake this loop, which then has no timeout.
            due = self._machine.next_due
            await wait_for_hint(self.changed, None if due is None else max(0.0, due - loop.time()))
            carry_out(self._machine.time_passed(loop.time()))

    async def park(self, run: LiveRun) -> None:
        """Park a run that is idle; if the store refuses because the run was woken, read everything that it waits for."""
        answer = await self._write_park(run)
        if answer is ParkAnswer.WOKEN:
            with suppress(StoreError):
                # Read before the checks: the next park compares with this number, so everything must be read after it.
                found = await self._runs.wake_seqs([run.record.run])
                await self._checks.check_waits(run, found[run.record.run][0])
        elif run.closed:  # its code unwinds, and is cancelled if it does not
            await end_detached_code(run)

    async def _write_park(self, run: LiveRun) -> ParkAnswer | None:
        """Park the run if it is idle; return the store's answer, None if the run was not idle or not ours."""
        for decision in run.driver.tell(run.machine.park_due):
            assert isinstance(decision, Park)
            # No caller goes on until the machine has an answer: every path below reports one, or closes the run.
            try:
                is_parked = await self._runs.park(
                    run.fence,
                    decision.wake_seq,
                    None if decision.until is None else Instant(decision.until),
                )
                answer = ParkAnswer.PARKED if is_parked else ParkAnswer.WOKEN
            except LeaseLost as error:
                run.close(error)
                return None
            except StoreError:
                # A run that is idle again is parked at once by a worker that closes: without a pause that would spin.
                await asyncio.sleep(STORE_AWAY_SECONDS)
                answer = ParkAnswer.STORE_AWAY
            run.driver.tell(run.machine.park_answered, answer)
            return answer
        return None
