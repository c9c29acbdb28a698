"""The port through which a run asks its worker for a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pylash.engine.runs.run import LiveRun


class Slots(Protocol):
    """The worker of a run, as far as the decisions of the run's machine concern it."""

    def take_slot(self, run: LiveRun) -> None:
        """Grant a slot to the run, now or when its turn comes."""
        ...

    def give_slot(self) -> None:
        """Return the slot of a run to the worker."""
        ...

    def become_idle(self, run: LiveRun, *, park_now: bool) -> None:
        """Note that the run may be parked."""
        ...

    def become_busy(self, run: LiveRun) -> None:
        """Note that the run must not be parked any more."""
        ...

    def forget(self, run: LiveRun) -> None:
        """Note that the run is not executed here any more."""
        ...
