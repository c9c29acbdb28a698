"""The port through which a run takes and returns the slot of its worker, and reports whether it is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pylash.engine.runs.run import LiveRun


class Slots(Protocol):
    """The worker of a run, as the driver of the run uses it. Slots of concurrency keys are in the store, not here."""

    def take_slot(self, run: LiveRun) -> None:
        """Grant a slot to the run, now or when its turn comes."""
        ...

    def give_slot(self) -> None:
        """Return the slot of a run to the worker."""
        ...

    def become_idle(self, run: LiveRun, *, park_now: bool) -> None:
        """Note that the run is idle, so that the worker may park it; ``park_now``: at once."""
        ...

    def become_busy(self, run: LiveRun) -> None:
        """Note that the run is not idle any more."""
        ...

    def forget(self, run: LiveRun) -> None:
        """Note that the run is not executed here any more. The worker calls it when the drive of the run has ended."""
        ...
