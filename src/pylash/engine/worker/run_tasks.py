"""The tasks that execute the runs of a worker.

Rule 1. A run that is executed here is in ``live`` until its last write is answered, or it is claimed here again. A
        run of ours that is not in it is an orphan, and is given up as soon as the store can be reached.
Rule 2. A run whose driver fails is blocked, and no other run is affected.
"""

from __future__ import annotations

import logging

from pylash.durable.machines.run_state import LastWrite
from pylash.durable.ports import EffectHost
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.runs.endings import Endings
from pylash.engine.runs.loaded_runs import LoadedRun
from pylash.engine.runs.programs import Drives
from pylash.engine.runs.run import LiveRun
from pylash.engine.runs.slots import Slots
from pylash.engine.user_code import current_task, is_failure
from pylash.engine.worker.live_runs import LiveRuns
from pylash.engine.worker.orphans import Orphans
from pylash.tasks import TaskOwner

_log = logging.getLogger("pylash")


class RunTasks:
    """Executes the runs of a worker, each in a task of its own."""

    def __init__(
        self,
        host: JournalHost,
        effects: EffectHost,
        live: LiveRuns,
        drives: Drives,
        endings: Endings,
        slots: Slots,
    ) -> None:
        # The code of runs. The worker closes its own tasks before these: parking and checks must not find the code gone.
        self.tasks = TaskOwner()
        self.orphans = Orphans(host, live.by_number)
        self._host = host
        self._effects = effects
        self._live = live
        self._drives = drives
        self._endings = endings
        self._slots = slots

    def add(self, loaded: LoadedRun, wake_seq: int) -> LiveRun:
        """Return a live run for a run that this worker owns."""
        controller, memory = self._effects.adopt(loaded.attached, self._host.clock)
        tasks = (self.tasks, self._host.tasks)
        run = LiveRun(loaded, wake_seq, controller, memory, self._slots, *tasks)
        # Before any task executes it: a run of ours that is not in ``live`` is taken for an orphan.
        self._live.add(run)
        return run

    def execute(self, run: LiveRun) -> None:
        """Execute a live run in a task of its own."""
        self.tasks.serve(self.drive(run))

    async def drive(self, run: LiveRun) -> None:
        """Execute a live run until it ends, or is detached."""
        task = current_task()
        drive = self._drives.processes if run.turn is None else self._drives.turns
        try:
            output = await drive.drive(run)
            # Before ``remove``, which reports runs that have not ended as having left without an output.
            if output is not None:
                self._live.end(run, output)
        except BaseException as error:
            # The task was cancelled with the worker: no other task knows that this worker owns the run.
            if not is_failure(error, task):
                self.orphans.add((run.fence,))
                raise
            await self._block(run, error)
        finally:
            self._live.remove(run)
            # After ``remove``: the slot that is free again may go to another claim of this run.
            self._slots.forget(run)
            run.dispose()

    async def _block(self, run: LiveRun, error: BaseException) -> None:
        """Block a run whose driver has failed, which is a bug of ours: other runs go on."""
        run.driver.stumble(error)
        try:
            await self._endings.leave(run, LastWrite.BLOCK)
        except Exception:  # noqa: BLE001 - another worker may succeed
            _log.exception("%s cannot be blocked and is released", run.fence.name)
            self.orphans.add((run.fence,))
