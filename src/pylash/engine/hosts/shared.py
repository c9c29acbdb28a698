"""Controllers outside a run: callers that ask for the same effect share one execution of it.

A run does the same with its own table of effects (``LiveRun``); here nothing is parked, and no run is cancelled.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import TYPE_CHECKING, NamedTuple

from pylash.durable.effects import COMPOSITE, Envelope, Outcome
from pylash.durable.machines.effect_table import Effect, EffectTable, Perform
from pylash.durable.ports import LocalExecutor
from pylash.engine.hosts.controller import HostedController, JournalController
from pylash.engine.records import check_call, check_same

if TYPE_CHECKING:
    from pylash.engine.hosts.journal import JournalHost

_log = logging.getLogger("pylash")


class Work(NamedTuple):
    """The execution of an effect in flight."""

    envelope: Envelope
    task: asyncio.Task[None]


class TableProgress:
    """Reports the progress of an effect to the table it is in."""

    def __init__(self, table: EffectTable, effect: Effect) -> None:
        self._table = table
        self._effect = effect

    @property
    def is_stopped(self) -> bool:
        """Whether the last caller of the effect has left."""
        return not self._table.holds(self._effect)

    def rest(self, due: int | None = None) -> None:
        """Report that there is nothing to do until due, or until others did something."""
        self._table.rest(self._effect, due)

    def stir(self) -> None:
        """Report that there may be something to do again."""
        self._table.stir(self._effect)

    def recording(self) -> None:
        """Report that the outcome is being written or read."""
        self._table.recording(self._effect)


class SharedController(HostedController):
    """The boundary of one scope for callers that are not in a run of it.

    A caller in the table is the future that gets its outcome.
    """

    def __init__(self, controller: JournalController, host: JournalHost) -> None:
        super().__init__(host)
        self.controller = controller
        self._tasks = host.tasks
        self._table = EffectTable()
        # By effect and not by key: a stopped task may still unwind while the effect of its key was begun again.
        # Every effect of the table has an entry: a second caller is compared with the envelope in it.
        self._work: dict[Effect, Work] = {}

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        """Return what the effect returned the first time, or perform it and record it.

        Cancellation: safe before ``local`` returns (nothing is recorded); after it, the record
        is written all the same.
        """
        check_call(envelope, local)
        key = envelope.invocation.replay_key
        if not key or envelope.command.kind in COMPOSITE:
            return await self.controller.execute(envelope, local)
        # No await between looking for the effect and asking for it: two callers must not both begin it.
        caller: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        in_flight = self._table.in_flight.get(key)
        if in_flight is not None:
            check_same(self._work[in_flight].envelope, envelope)
        asked = self._table.ask(key, caller)
        effect = asked.effect
        if isinstance(asked, Perform):
            task = self._tasks.start(self._perform(effect, envelope, local))
            self._work[effect] = Work(envelope, task)
        try:
            return await caller
        except asyncio.CancelledError:
            if caller.cancelled():  # the task of the caller was cancelled, not the effect
                await self._leave(effect, caller)
            raise
        finally:
            del caller  # its exception holds this frame

    async def _leave(self, effect: Effect, caller: asyncio.Future[Outcome]) -> None:
        """Stop the work of an effect with its last caller, and wait until it has ended."""
        if self._table.leave(effect, caller) is not None and effect in self._work:
            task = self._work.pop(effect).task
            task.cancel()
            # The caller continues only when the work has ended: nothing may run beside its next statement.
            await asyncio.wait((task,))

    async def _perform(self, effect: Effect, envelope: Envelope, local: LocalExecutor) -> None:
        progress = TableProgress(self._table, effect)
        result: Outcome | BaseException
        try:
            result = await self.controller.execute(envelope, local, lambda _: progress)
        except BaseException as error:  # noqa: BLE001 - it is the callers' to handle
            result = error
        # None if the last caller has left: the effect has left the table by then, and may have been begun again.
        # Nothing is awaited between ``pop`` and ``land``, so no caller finds the effect without its work.
        self._work.pop(effect, None)
        answer = self._table.land(effect)
        if answer is not None:
            hand_out(result, [caller for caller in answer.callers if not caller.done()])
        del result, effect  # an exception holds this frame

    def detach(self) -> None:
        """Cancel all callers that still wait for an effect: the host has closed."""
        # The table is cleared first: a task that ends later does not find its effect, and answers no caller.
        for effect in self._table.clear():
            for caller in effect.callers:
                caller.cancel()


def hand_out(result: Outcome | BaseException, callers: list[asyncio.Future[Outcome]]) -> None:
    """Give a result to callers: each after the first gets a copy, which it may change."""
    if isinstance(result, Exception) and not callers:
        _log.warning("an effect failed after its callers had left: %s", result)
    for number, caller in enumerate(callers):
        if isinstance(result, asyncio.CancelledError):
            # With the host, or because the record has a cancel: the caller raises the same.
            caller.cancel()
        elif isinstance(result, BaseException):
            caller.set_exception(result)
        else:
            caller.set_result(copy.deepcopy(result) if number else result)
