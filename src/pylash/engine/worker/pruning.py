"""Pruning: journals that are older than their retention are deleted, a few at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from pylash.durable.stores import Journal
from pylash.engine.worker.config import Retention
from pylash.values.durations import micros
from pylash.values.errors import StoreError

PRUNE_SECONDS: Final = 600.0
PRUNE_AT_ONCE: Final = 100
PRUNE_PAUSE: Final = 0.05


async def prune_forever(journal: Journal, retention: Retention) -> None:
    """Delete the effects of runs that ended long ago."""
    age = micros(retention.journal)
    while True:
        await asyncio.sleep(PRUNE_SECONDS)
        # If the store is unreachable, the next round tries again.
        with suppress(StoreError):
            # In small transactions with pauses between them, so that the writes of live runs are not held up.
            while await journal.prune(age, PRUNE_AT_ONCE) == PRUNE_AT_ONCE:  # noqa: ASYNC110 - it is the work
                await asyncio.sleep(PRUNE_PAUSE)
