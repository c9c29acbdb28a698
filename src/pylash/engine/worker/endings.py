"""The end of an execution on a SQL store: what became of its run is written, however long the store is away.

Rule 1. The run's machine decides what is written (``LastWrite``); this module writes it.
Rule 2. Once the code of a run has ended, every read and write for it is repeated until the store answers: an
        error that left the run's task would leave the run without an owner.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from pylash.durable.machines.run_state import LastWrite, WriteAnswer
from pylash.durable.processes import Output, Registration
from pylash.durable.sessions import TurnCommit
from pylash.durable.stores import Store
from pylash.engine.runs.run import LiveRun
from pylash.engine.store_answers import Unanswered, answer_of
from pylash.values.errors import Misuse, StoreRefused

_log = logging.getLogger("pylash")


class StoreEndings:
    """The last writes of the executions of one worker, under their fences; ``is_open`` returns whether it is open."""

    def __init__(self, store: Store, is_open: Callable[[], bool]) -> None:
        self._store = store
        # While it is open every write is repeated until the store answers. After that each is tried once, and a run
        # whose write was not answered is found by other workers when the lease ends.
        self._is_open = is_open

    async def settle(self, run: LiveRun, end: Output) -> WriteAnswer:
        """Write how a process ended."""
        settle = self._store.processes.settle
        return await self._write(run, partial(settle, run.fence, run.process.number, end))

    async def continue_as(
        self, run: LiveRun, registration: Registration, *, cancelled: bool
    ) -> WriteAnswer:
        """Write that a process goes on with a fresh run; ``cancelled``: its code was notified of a cancel."""
        continue_as = self._store.processes.continue_as
        return await self._write(
            run, partial(continue_as, run.fence, registration, cancelled=cancelled)
        )

    async def commit(self, run: LiveRun, commit: TurnCommit) -> WriteAnswer:
        """Write the end of a turn."""
        return await self._write(run, partial(self._store.sessions.commit, run.fence, commit))

    async def leave(self, run: LiveRun, what: LastWrite) -> WriteAnswer:
        """Write that a run which has not ended is blocked, retried later, or free for the next worker.

        Raises StoreRefused if that can never be written: then the worker gives the run up.
        """
        store, fence = self._store, run.fence
        trouble = run.driver.trouble
        # The notes of an error are the traceback of the code that caused it. The first line is the reason for lists.
        notes = getattr(trouble, "__notes__", ())
        reason = (
            None if trouble is None else "\n".join([f"{trouble.code}: {trouble.message}", *notes])
        )
        match what:
            case LastWrite.BLOCK:
                # The reason without its notes: a formatter of one line each would escape their line breaks.
                assert trouble is not None
                assert reason is not None
                cause = trouble.__cause__ if notes else None
                stated = f"{trouble.code}: {trouble.message}"
                _log.warning("%s is blocked: %s", fence.name, stated, exc_info=cause)
                trouble.__cause__ = None  # its frames have references to the run
                return await self._repeat(run, partial(store.runs.block, fence, reason))
            case LastWrite.POSTPONE:
                _log.warning("%s is retried later: %s", fence.name, trouble)
                refusal = reason if isinstance(trouble, StoreRefused) else None
                return await self._repeat(run, partial(store.runs.postpone, fence, refusal))
            case _:
                # RELEASE. The end of a turn that is given up is a commit, which its drive makes.
                return await self._repeat(run, partial(store.journal.release, fence))

    async def cancel_reason(self, run: LiveRun) -> str | None:
        """Return why a process was cancelled. Raises Unanswered."""
        ask = partial(self._store.processes.cancel_reason, run.id)
        return await answer_of(run.fence.name, ask, self._is_open)

    async def is_asked_to_end(self, run: LiveRun) -> bool:
        """Return whether a turn was asked to end. Raises Unanswered."""
        ask = partial(self._store.sessions.asked_to_end, run.record.run)
        return await answer_of(run.fence.name, ask, self._is_open)

    async def _write(self, run: LiveRun, write: Callable[[], Awaitable[None]]) -> WriteAnswer:
        try:
            return await self._repeat(run, write)
        except (Misuse, StoreRefused) as error:
            # Before the answer is returned: the machine then asks for the write that ``trouble`` explains.
            run.driver.trouble = error  # what is written instead says why
            return WriteAnswer.REFUSED

    async def _repeat(self, run: LiveRun, write: Callable[[], Awaitable[None]]) -> WriteAnswer:
        try:
            await answer_of(run.fence.name, write, self._is_open)
        except Unanswered:
            # Whether the lease was lost or the worker closed: this execution writes nothing more.
            return WriteAnswer.NOT_OURS
        return WriteAnswer.WRITTEN
