"""The value of the ``lash`` fixture: an open app on a simulated clock, which the test can kill."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pylash.testing.clocks import SimClock
from pylash.testing.kills import kill
from pylash.values.durations import Duration

if TYPE_CHECKING:
    from pylash.app import Lash


class LashHarness:
    """An open app on a simulated clock, which can be restarted as if its process had died.

    >>> async def test_a_trial_ends_after_two_weeks(lash: LashHarness) -> None:
    ...     handle = await lash.app.start(trial.options(id="ann"))
    ...     await lash.advance("1w")
    ...     await lash.restart()
    ...     await lash.advance("1w")
    ...     assert await lash.app.process_handle("ann").result() == "over"
    """

    def __init__(self, make: Callable[[str, SimClock], Lash], store: str) -> None:
        self.store = store
        self.clock = SimClock()
        self._make = make
        self.app = make(store, self.clock)

    async def advance(self, duration: Duration) -> None:
        """Let time pass: everything that is due meanwhile happens, in the order of its times."""
        await self.clock.advance(duration)

    async def restart(self) -> Lash:
        """Kill the app without draining or releasing anything, and open one over the same store.

        Handles of the old app stop working: get new ones from the new app.
        """
        await kill(self.app)
        self.app = self._make(self.store, self.clock)
        await self.app.open()
        return self.app
