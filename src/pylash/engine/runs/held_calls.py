"""How long the calls of a run are held for a cancel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pylash.engine.runs.driver import RunDriver

HOLD_SECONDS: Final = 0.5
"""Code below a cancelled join that does not wait yet usually comes to its next effect sooner."""


class HoldLimit:
    """Ends the holding of calls after a while: other code may wait for them where the machine cannot see it, at a lock."""

    def __init__(self, driver: RunDriver) -> None:
        self._driver = driver
        # At most one task per run waits, however many calls are held.
        self._is_waiting = False

    def begin(self) -> None:
        """Note that a call is held."""
        if not self._is_waiting:
            self._is_waiting = True
            self._driver.serve(self._wait())

    async def _wait(self) -> None:
        state = self._driver.machine.state
        try:
            while state.cancels.held and not state.closed:
                await asyncio.sleep(HOLD_SECONDS)
                # Most calls are let go by the machine itself meanwhile.
                if state.cancels.held and not state.closed:
                    self._driver.tell(self._driver.machine.hold_over)
        finally:
            self._is_waiting = False
