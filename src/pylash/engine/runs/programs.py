"""The ports of what a runner executes: the programs of processes, and the drives of runs."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from pylash.durable.processes import Registration
from pylash.engine.runs.run import LiveRun


class Drive(Protocol):
    """Executes runs of one kind."""

    async def drive(self, run: LiveRun) -> Any:
        """Execute the run until it ends or is detached; return how it ended, if it did."""
        ...


class Drives(NamedTuple):
    """What executes the runs of processes, and those of turns."""

    processes: Drive
    turns: Drive


class Programs(Protocol):
    """The programs of processes that can run here."""

    def targets(self) -> list[str]:
        """Return the targets that are known here."""
        ...

    def knows(self, target: str) -> bool:
        """Return whether target is known here."""
        ...

    async def check(self, registration: Registration) -> None:
        """Refuse a process that can never run here: what it was captured with is missing."""
        ...

    async def run(self, run: LiveRun) -> Any:
        """Run the process's program; return its result as plain JSON."""
        ...
