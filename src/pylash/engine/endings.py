"""The end of an execution: what became of its run is written, however long the store is away.

Rule 1. The run's machine decides what is written (``LastWrite``); this module writes it.
Rule 2. Once the code of a run has ended, every read and write for it is repeated until the store answers: an
        error that left the run's task would leave a run that we own and no task executes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from pylash.durable.machines.run_state import LastWrite, WriteAnswer
from pylash.durable.processes import Output, Registration
from pylash.durable.sessions import TurnCommit
from pylash.durable.stores import Store
from pylash.engine.run import STORE_AWAY_SECONDS, LiveRun
from pylash.values.errors import (
    LeaseLost,
    Misuse,
    StoreError,
    StoreRefused,
)

T = TypeVar("T")

_log = logging.getLogger("pylash")


class Unanswered(Exception):
    """The run belongs to another worker, or this one closed before the store answered and its lease runs out."""


async def answer_of(
    run: LiveRun, ask: Callable[[], Awaitable[T]], is_open: Callable[[], bool]
) -> T:
    """Return the store's answer for a run whose code has ended, asking again while the worker is open.

    Raises Unanswered, and StoreRefused if it can never be answered.
    """
    # The operations are safe to repeat: an answer that was lost does not make them happen twice.
    while True:
        try:
            return await ask()
        except LeaseLost as error:
            _log.info("%s continues on another worker: %s", run.fence.name, error.message)
            raise Unanswered from error
        except StoreRefused:  # before StoreError, of which it is one: asking again would not help
            raise
        except StoreError as error:
            # Asked after each failure and not before: a worker that closes still makes one attempt.
            if not is_open():
                raise Unanswered from error
            _log.warning("the end of %s cannot be written yet: %s", run.fence.name, error)
            await asyncio.sleep(STORE_AWAY_SECONDS)


class Endings:
    """The last write of an execution, whichever it is.

    Nothing else ends a run: an engine that has its own records replaces this. ``is_open`` returns whether the worker
    is open.
    """

    def __init__(self, store: Store, is_open: Callable[[], bool]) -> None:
        self._store = store
        self._is_open = is_open

    async def settle(self, run: LiveRun, end: Output) -> WriteAnswer:
        """Write how a process ended."""
        settle = self._store.processes.settle
        return await self._write(run, partial(settle, run.fence, run.process.number, end))

    async def continue_as(
        self, run: LiveRun, registration: Registration, *, cancelled: bool
    ) -> WriteAnswer:
        """Write that a process goes on with a fresh run; ``cancelled``: a cancel was raised in its code."""
        continue_as = self._store.processes.continue_as
        return await self._write(
            run, partial(continue_as, run.fence, registration, cancelled=cancelled)
        )

    async def commit(self, run: LiveRun, commit: TurnCommit) -> WriteAnswer:
        """Write what a turn leaves behind."""
        return await self._write(run, partial(self._store.sessions.commit, run.fence, commit))

    async def leave(self, run: LiveRun, what: LastWrite) -> WriteAnswer:
        """Write that a run which has not ended is blocked, retried later, or free for the next worker.

        Raises StoreRefused if that can never be written: then the worker gives the run up.
        """
        store, fence = self._store, run.fence
        # Set by the driver when it closed the run, or by ``_write`` when the write before this one was refused.
        trouble = run.driver.trouble
        reason = None if trouble is None else f"{trouble.code}: {trouble.message}"
        match what:
            case LastWrite.BLOCK:
                assert reason is not None
                _log.warning("%s is blocked: %s", fence.name, reason)
                return await self._repeat(run, partial(store.runs.block, fence, reason))
            case LastWrite.POSTPONE:
                _log.warning("%s is retried later: %s", fence.name, trouble)
                # Only a refusal counts as an attempt: a store that is away is no fault of the run.
                refusal = reason if isinstance(trouble, StoreRefused) else None
                return await self._repeat(run, partial(store.runs.postpone, fence, refusal))
            case _:
                return await self._repeat(run, partial(store.journal.release, fence))

    async def cancel_reason(self, run: LiveRun) -> str | None:
        """Return why a process was cancelled. Raises Unanswered."""
        ask = partial(self._store.processes.cancel_reason, run.id)
        return await answer_of(run, ask, self._is_open)

    async def is_asked_to_end(self, run: LiveRun) -> bool:
        """Return whether a turn was asked to end. Raises Unanswered."""
        ask = partial(self._store.sessions.asked_to_end, run.record.run)
        return await answer_of(run, ask, self._is_open)

    async def _write(self, run: LiveRun, write: Callable[[], Awaitable[None]]) -> WriteAnswer:
        # Only what the code leaves behind can be refused for its content, so only these writes have a substitute.
        try:
            return await self._repeat(run, write)
        except (Misuse, StoreRefused) as error:
            run.driver.trouble = error  # the reason in what is written instead
            return WriteAnswer.REFUSED

    async def _repeat(self, run: LiveRun, write: Callable[[], Awaitable[None]]) -> WriteAnswer:
        try:
            await answer_of(run, write, self._is_open)
        except Unanswered:
            return WriteAnswer.NOT_OURS
        return WriteAnswer.WRITTEN
