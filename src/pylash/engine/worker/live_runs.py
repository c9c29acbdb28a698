"""The runs that a worker executes, by number and by id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from pylash.durable.machines.run_state import Phase
from pylash.engine.runs.run import LiveRun


class LiveRuns:
    """The runs that are executed here, each from its claim until its last write is answered.

    ``on_end`` is called with the id of a run and its output when it is not executed here any more; the output is
    None if the run goes on elsewhere or later.
    """

    def __init__(self, on_end: Callable[[str, Any], None]) -> None:
        self._on_end = on_end
        # Set when a notification may have been missed: the worker then reads the store for all runs.
        self.check_due = asyncio.Event()
        # A run that is claimed here again replaces the object of its earlier execution, whose code may still unwind.
        self.by_number: dict[int, LiveRun] = {}
        # The ids whose end was not reported to ``on_end``: waiting tasks read the results of all others in the store.
        self._ids: set[str] = set()
        # The runs that were notified while they were not here and a claim was not answered.
        self._notified: set[int] = set()

    def __iter__(self) -> Iterator[LiveRun]:
        # A copy: a run that ends while a caller iterates is removed.
        return iter(tuple(self.by_number.values()))

    def __len__(self) -> int:
        return len(self.by_number)

    @property
    def busy(self) -> int:
        """How many runs do not wait. A worker that closes waits for them; idle ones are parked at once."""
        return sum(run.machine.phase is not Phase.IDLE for run in self)

    def add(self, run: LiveRun) -> None:
        """Add a run."""
        self.by_number[run.record.run] = run
        self._ids.add(run.id)
        if run.record.run in self._notified:
            self.check_due.set()

    def note_missed(self, number: int, *, is_claiming: bool) -> None:
        """Note a notification of a run that is not here. It is checked if a claim has taken it before."""
        # The answer to a claim may be on its way, with what the store had before the notification.
        if is_claiming:
            self._notified.add(number)
        else:
            self._notified.clear()

    def end(self, run: LiveRun, output: Any) -> None:
        """Note that a run has ended; its object stays until it is removed."""
        self._ids.discard(run.id)
        self._on_end(run.id, output)

    def remove(self, run: LiveRun) -> None:
        """Remove a run. One that was claimed again here while its old code ended is another object."""
        number = run.record.run
        if self.by_number.get(number) is run:
            del self.by_number[number]
        if run.id in self._ids and not any(other.id == run.id for other in self):
            self.end(run, None)

    def has(self, run_id: str) -> bool:
        """Return whether a run is executed here."""
        return run_id in self._ids

    def turn_of(self, session_id: str) -> str | None:
        """Return the turn of a session that is executed here."""
        return next((run.id for run in self if run.session_id == session_id), None)
