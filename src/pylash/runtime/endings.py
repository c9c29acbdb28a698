"""The end of an execution: what became of its run is written, however long the store is away.

Rule 1. Whose lease is lost writes nothing: the run goes on elsewhere.
Rule 2. A run that cannot be replayed is blocked, with the reason; any other is free for the next worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

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

STORE_AWAY_SECONDS: Final = 0.2

_log = logging.getLogger("pylash")


async def persist(
    run: LiveRun, write: Callable[[], Awaitable[None]], is_open: Callable[[], bool]
) -> bool:
    """Write what became of a run, as long as the worker is open; False if it could not be written.

    Raises StoreRefused if it can never be written as it is.
    """
    while True:
        try:
            await write()
        except LeaseLost as error:
            _log.info("%s goes on elsewhere: %s", run.fence.name, error.message)
            return False
        except StoreRefused:  # asking again would not help
            raise
        except StoreError as error:
            if not is_open():
                return False  # our lease will tell the others
            _log.warning("the end of %s cannot be written yet: %s", run.fence.name, error)
            await asyncio.sleep(STORE_AWAY_SECONDS)
            continue
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
