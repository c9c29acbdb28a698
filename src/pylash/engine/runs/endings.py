"""The port of the end of an execution: nothing else ends a run or gives it up.

Rule 1. The run's machine decides what is written (``LastWrite``); an engine writes it, in its own way and once.
Rule 2. A write that can never be made is answered with REFUSED, and ``run.driver.trouble`` says why. Any other
        trouble is the engine's: it repeats the write, or answers NOT_OURS because another execution goes on.
"""

from __future__ import annotations

from typing import Protocol

from pylash.durable.machines.run_state import LastWrite, WriteAnswer
from pylash.durable.processes import Output, Registration
from pylash.durable.sessions import TurnCommit
from pylash.engine.runs.run import LiveRun


class Endings(Protocol):
    """Writes the end of an execution, and reads the data that it depends on."""

    async def settle(self, run: LiveRun, end: Output) -> WriteAnswer:
        """Write how a process ended."""
        ...

    async def continue_as(
        self, run: LiveRun, registration: Registration, *, cancelled: bool
    ) -> WriteAnswer:
        """Write that a process goes on with a fresh run; ``cancelled``: its code was notified of a cancel."""
        ...

    async def commit(self, run: LiveRun, commit: TurnCommit) -> WriteAnswer:
        """Write the end of a turn."""
        ...

    async def leave(self, run: LiveRun, what: LastWrite) -> WriteAnswer:
        """Write that a run which has not ended is blocked, retried later, or free for the next worker.

        Raises StoreRefused if that can never be written: then the run is given up.
        """
        ...

    async def cancel_reason(self, run: LiveRun) -> str | None:
        """Return why a process was cancelled. Raises Unanswered if this execution does not count any more."""
        ...

    async def is_asked_to_end(self, run: LiveRun) -> bool:
        """Return whether a turn was asked to end. Raises Unanswered, as above."""
        ...
