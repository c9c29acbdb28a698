"""The end of an execution: what became of its run is written, however long the store is away.

Rule 1. Whose lease is lost writes nothing: the run goes on elsewhere.
Rule 2. A run that cannot be replayed is blocked, with the reason; any other is free for the next worker.
Rule 3. Once the code of a run has ended, every read and write for it is repeated until the store answers: an
        error that left the run's task would leave the run to nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pylash.durable import Store
from pylash.runtime.runs import LiveRun
from pylash.values import (
    DurabilityError,
    LashError,
    LeaseLost,
    StoreClosed,
    StoreError,
    StoreRefused,
)

T = TypeVar("T")

STORE_AWAY_SECONDS: Final = 0.2

_log = logging.getLogger("pylash")


class Unanswered(Exception):
    """The run belongs to another worker, or this one closed before the store answered: its lease tells the others."""


async def answer_of(
    run: LiveRun, ask: Callable[[], Awaitable[T]], is_open: Callable[[], bool]
) -> T:
    """Return the store's answer for a run whose code has ended, asking again while the worker is open.

    Raises Unanswered, and StoreRefused if it can never be answered.
    """
    while True:
        try:
            return await ask()
        except LeaseLost as error:
            _log.info("%s goes on elsewhere: %s", run.fence.name, error.message)
            raise Unanswered from error
        except StoreRefused:  # asking again would not help
            raise
        except StoreError as error:
            if not is_open():
                raise Unanswered from error
            _log.warning("the end of %s cannot be written yet: %s", run.fence.name, error)
            await asyncio.sleep(STORE_AWAY_SECONDS)


async def persist(
    run: LiveRun, write: Callable[[], Awaitable[None]], is_open: Callable[[], bool]
) -> bool:
    """Write what became of a run, as long as the worker is open; False if it could not be written.

    Raises StoreRefused if it can never be written as it is.
    """
    try:
        await answer_of(run, write, is_open)
    except Unanswered:
        return False
    return True


async def block(
    store: Store, run: LiveRun, trouble: LashError, is_open: Callable[[], bool]
) -> None:
    """Stop a run until somebody has looked at it."""
    reason = f"{trouble.code}: {trouble.message}"
    _log.warning("%s is blocked: %s", run.fence.name, reason)
    await persist(run, lambda: store.runs.block(run.fence, reason), is_open)


async def let_go(store: Store, run: LiveRun, is_open: Callable[[], bool]) -> None:
    """Leave the run of an execution that was closed to whoever comes next."""
    trouble = run.trouble
    if isinstance(trouble, LeaseLost):
        _log.info("%s goes on elsewhere: %s", run.fence.name, trouble.message)
    elif isinstance(trouble, DurabilityError):
        await block(store, run, trouble, is_open)
    elif isinstance(trouble, StoreError) and not isinstance(trouble, StoreClosed):
        refusal = (
            f"{trouble.code}: {trouble.message}" if isinstance(trouble, StoreRefused) else None
        )
        _log.warning("%s is tried again later: %s", run.fence.name, trouble.message)
        await persist(run, lambda: store.runs.postpone(run.fence, refusal), is_open)
    elif not run.parked:
        await persist(run, lambda: store.journal.release(run.fence), is_open)
