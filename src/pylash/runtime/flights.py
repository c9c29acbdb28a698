"""Flights: effects on their way, shared by everyone who asks for the same one.

Rule 1. A flight belongs to the run, not to its first caller: it goes on while anyone waits for it.
Rule 2. When the last caller has left, work that is still being performed is cancelled, and ends
        before that caller goes on. A record that is being written is written.
Rule 3. A flight that is being cancelled takes no passengers: it has left the board first.
Rule 4. A flight rests while it only waits for time or for others. While its run decides whether to
        cancel it, nobody lands.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from pylash.durable import JournalEntry, Outcome
from pylash.tasks import TaskOwner

_log = logging.getLogger("pylash")


class Board:
    """The flights of a run, by key; ``changed`` is called when one begins or ends to rest."""

    def __init__(self) -> None:
        self.flights: dict[str, Flight] = {}
        self.flying = 0
        self.changed: Callable[[], None] | None = None

    def count(self, flying: int) -> None:
        """Count flights that began or ended to do something."""
        self.flying += flying
        if self.changed is not None:
            self.changed()


class Flight:
    """One effect being executed; ``opening`` is its entry as it is when nothing came of it yet."""

    def __init__(self, opening: JournalEntry, canonical: bytes, board: Board) -> None:
        self.opening = opening
        self.canonical = canonical
        self.recording = False
        self.resting = False
        self.due: int | None = None
        self.verdict: asyncio.Future[None] | None = None
        self._board = board
        self._task: asyncio.Task[None] | None = None
        self._landing = 0
        self._callers: list[asyncio.Future[Outcome]] = []
        board.flights[opening.key] = self
        board.count(1)

    @property
    def digest(self) -> bytes:
        """The hash of what was asked."""
        return self.opening.hash

    @property
    def is_stopped(self) -> bool:
        """Whether its work was cancelled because nobody waits for it any more, or its run decided so."""
        return self._board.flights.get(self.opening.key) is not self

    def start(self, work: Coroutine[Any, Any, Outcome], tasks: TaskOwner) -> None:
        """Take off."""
        self._work = work
        self._task = tasks.start(self._fly(work))

    def rest(self, due: int | None = None) -> None:
        """Say that there is nothing to do until due, or until others did something."""
        if not self.resting:
            self.resting, self.due = True, due
            self._board.count(-1)

    def wake(self) -> None:
        """Say that there is something to do again."""
        if self.resting:
            self.resting, self.due = False, None
            self._board.count(1)

    async def join(self) -> Outcome:
        """Return the outcome when it is there."""
        caller: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._callers.append(caller)
        try:
            return await caller
        except asyncio.CancelledError:
            if not caller.cancelled():  # the effect itself was cancelled, not who waits for it
                raise
            if caller in self._callers:
                self._callers.remove(caller)
            task = self._task
            if not self._callers and not self.recording and task is not None and not task.done():
                self._leave()
                task.cancel()
                await asyncio.wait((task,))
                self._work.close()  # if it was cancelled before its first step
            raise
        finally:
            if self._landing:
                self._landing -= 1
                self._board.flying -= 1  # whoever was told goes on now, and says so itself
            del caller  # its exception holds this frame, which would hold it

    def break_off(self, error: BaseException) -> None:
        """Raise error where the effect is awaited; what was under way is cancelled."""
        callers = self._landed()
        for caller in callers:
            caller.set_exception(error)
        if not self.recording and self._task is not None:
            work = self._work  # never begun, if it is cancelled before its first step
            self._task.add_done_callback(lambda _: work.close())
            self._task.cancel()

    def abandon(self) -> None:
        """Let the callers go: the task was cancelled, perhaps before its first step."""
        self._leave()
        if (
            self._task is None or self._task.done()
        ):  # one that ignores being cancelled is left alone
            self._work.close()
        for caller in self._callers:
            caller.cancel()

    def _landed(self) -> list[asyncio.Future[Outcome]]:
        """Return the callers to tell; until they go on, the flight counts as flying."""
        callers = [caller for caller in self._callers if not caller.done()]
        self._callers = []
        if self._board.flights.get(self.opening.key) is self:
            self.wake()
            self._landing += len(callers)
            self._board.flying += len(callers)
            self._leave()
        return callers

    def _leave(self) -> None:
        flights = self._board.flights
        if flights.get(self.opening.key) is self:
            del flights[self.opening.key]
            self._board.count(0 if self.resting else -1)

    async def _fly(self, work: Coroutine[Any, Any, Outcome]) -> None:
        """Do the work and tell the callers; not in a callback, which would cost the loop a turn."""
        try:
            outcome = await work
            if self.verdict is not None:
                await asyncio.wait(
                    (self.verdict,)
                )  # others wait for it: it is not cancelled with us
        except asyncio.CancelledError:
            self._leave()
            for caller in self._callers:
                caller.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 - it is the callers' to handle
            self._fail(error)
        else:
            for number, caller in enumerate(self._landed()):
                # Nobody shares a value that others may change.
                caller.set_result(copy.deepcopy(outcome) if number else outcome)
        finally:
            self._task = None  # how it ended holds its frames, which would hold it

    def _fail(self, error: BaseException) -> None:
        callers = self._landed()
        if not callers:
            _log.warning("an effect failed after its callers had left: %s", error)
        for caller in callers:
            caller.set_exception(error)
