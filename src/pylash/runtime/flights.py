"""Flights: effects on their way, shared by everyone who asks for the same one.

Rule 1. A flight belongs to the run, not to its first caller: it goes on while anyone waits for it.
Rule 2. When the last caller has left, work that is still being performed is cancelled, and ends
        before that caller goes on. A record that is being written is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from pylash.durable import Outcome
from pylash.tasks import TaskOwner

_log = logging.getLogger("pylash")


class Flight:
    """One effect being executed."""

    def __init__(self, digest: bytes, canonical: bytes) -> None:
        self.digest = digest
        self.canonical = canonical
        self.recording = False
        self._callers: list[asyncio.Future[Outcome]] = []

    def start(self, work: Coroutine[Any, Any, Outcome], tasks: TaskOwner) -> None:
        """Take off."""
        self._task = tasks.start(self._fly(work))

    async def join(self) -> Outcome:
        """Return the outcome when it is there."""
        caller: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._callers.append(caller)
        try:
            return await caller
        except asyncio.CancelledError:
            self._callers.remove(caller)
            if not self._callers and not self.recording and not self._task.done():
                self._task.cancel()
                await asyncio.wait((self._task,))
            raise

    async def _fly(self, work: Coroutine[Any, Any, Outcome]) -> None:
        """Do the work and tell the callers; not in a callback, which would cost the loop a turn."""
        try:
            outcome = await work
        except asyncio.CancelledError:
            for caller in self._callers:
                caller.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 - it is the callers' to handle
            if not self._callers:
                _log.warning("an effect failed after its callers had left: %s", error)
            for caller in self._callers:
                if not caller.done():
                    caller.set_exception(error)
        else:
            for caller in self._callers:
                if not caller.done():
                    caller.set_result(outcome)
