"""Flights: effects on their way, shared by everyone who asks for the same one.

Rule 1. A flight belongs to the run, not to its first caller: it goes on while anyone waits for it.
Rule 2. When the last caller has left, work that is still being performed is cancelled, and ends
        before that caller goes on. A record that is being written is written.
Rule 3. A flight that is being cancelled takes no passengers: it has left the board first.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Coroutine
from typing import Any

from pylash.durable import Outcome
from pylash.tasks import TaskOwner

_log = logging.getLogger("pylash")


class Flight:
    """One effect being executed; ``board`` holds the flights of its run, by key."""

    def __init__(self, key: str, digest: bytes, canonical: bytes, board: dict[str, Flight]) -> None:
        self.digest = digest
        self.canonical = canonical
        self.recording = False
        self._key = key
        self._board = board
        self._callers: list[asyncio.Future[Outcome]] = []
        board[key] = self

    def start(self, work: Coroutine[Any, Any, Outcome], tasks: TaskOwner) -> None:
        """Take off."""
        self._work = work
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
                self._leave()
                self._task.cancel()
                await asyncio.wait((self._task,))
                self._work.close()  # if it was cancelled before its first step
            raise

    def abandon(self) -> None:
        """Let the callers go: the task was cancelled, perhaps before its first step."""
        self._leave()
        if self._task.done():  # a step that ignores being cancelled is left to itself
            self._work.close()
        for caller in self._callers:
            caller.cancel()

    def _leave(self) -> None:
        if self._board.get(self._key) is self:
            del self._board[self._key]

    async def _fly(self, work: Coroutine[Any, Any, Outcome]) -> None:
        """Do the work and tell the callers; not in a callback, which would cost the loop a turn."""
        try:
            outcome = await work
        except asyncio.CancelledError:
            self._leave()
            for caller in self._callers:
                caller.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 - it is the callers' to handle
            self._leave()
            if not self._callers:
                _log.warning("an effect failed after its callers had left: %s", error)
            for caller in self._callers:
                if not caller.done():
                    caller.set_exception(error)
        else:
            self._leave()
            for number, caller in enumerate(self._callers):
                if not caller.done():  # nobody shares a value that others may change
                    caller.set_result(copy.deepcopy(outcome) if number else outcome)
