"""Waiting for whichever comes first: work, a cancel or a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from pylash.durable.ports import Cancellation, Clock
from pylash.durable.runs import SECOND
from pylash.values.errors import RuntimeEffectSleepCancelled


async def sleep_unless(clock: Clock, seconds: float, cancel: Cancellation | None) -> None:
    """Sleep, or raise ``runtime_effect_sleep_cancelled`` if cancel comes first."""
    if await cancelled_first(clock.sleep(max(0.0, seconds)), cancel):
        raise RuntimeEffectSleepCancelled


async def wait_until_done(future: asyncio.Future[Any], clock: Clock, limit: int | None) -> None:
    """Wait for a future, at most ``limit`` microseconds; it is not cancelled with the caller."""
    # ``asyncio.wait`` leaves the future alone if the caller is cancelled: others may wait for it.
    if limit is None:
        await asyncio.wait((future,))
        return
    async with asyncio.TaskGroup() as group:
        timer = group.create_task(clock.sleep(max(0, limit) / SECOND))
        await asyncio.wait((future, timer), return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()


async def cancelled_first(work: Awaitable[object], cancel: Cancellation | None) -> bool:
    """Wait for work or for cancel; return whether cancel has come."""
    if cancel is None:
        await work
        return False
    # The group is left when both tasks have ended, so ``work`` does not run on beside what the caller does next.
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_awaited(one)) for one in (work, cancel.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    # Not which task ended first: with both, the cancel counts.
    return cancel.is_set()


async def _awaited(work: Awaitable[object]) -> object:
    return await work
