"""The numbers of runs.

A number is drawn at random, so that workers need no coordination. If it is taken, the insert fails and another one is
drawn. That never means that the *id* of a process or turn is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from pylash.durable.ports import Clock, Entropy
from pylash.durable.runs import new_run_id
from pylash.stores.operation import MAX_REPEATS, Driver, Port, too_many_conflicts


class RunPort(Port):
    """Base of the ports that create runs: draws their numbers."""

    def __init__(self, driver: Driver, clock: Clock, entropy: Entropy) -> None:
        super().__init__(driver)
        self._clock = clock
        self._entropy = entropy

    def _draw(self) -> int:
        """Return a number that is probably free; the insert must handle a taken one."""
        return new_run_id(self._clock.now(), self._entropy)

    def _draws(self) -> Iterator[int]:
        """Yield numbers to try in turn; raises StoreBusy after ``MAX_REPEATS`` of them."""
        for _ in range(MAX_REPEATS):
            yield self._draw()
        raise too_many_conflicts("Drawing the number of a run")
