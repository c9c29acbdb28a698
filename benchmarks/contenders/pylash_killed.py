"""pylash in measure G: a worker that is killed, and one that goes on with what is left.

    python -m benchmarks.contenders.pylash_killed ready|done ROUND PROCESSES STEPS URL

Rule 1. The worker may have all processes in memory at once, as DBOS and Restate do by themselves.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from benchmarks.contender import PAYLOAD, Contender
from benchmarks.killed import KilledContender
from benchmarks.programs import DONE, FIRST, READY, Countdown, say
from pylash import Lash, ProcessContext, WorkerConfig

CALLERS: Final = 100


def contender(_store: str, url: str) -> Contender:
    """Return pylash on a store."""
    return KilledContender(__name__, url)


async def _work(_number: int) -> dict[str, Any]:
    return PAYLOAD


async def _main() -> None:
    what, name, count, steps, url = sys.argv[1:]
    names = [f"{name}-{number}" for number in range(int(count))]
    app = Lash(url, worker=WorkerConfig(concurrency=len(names)), migrate=True)
    entered, halted = Countdown(FIRST, 1), Countdown(READY, len(names))

    async def last() -> dict[str, Any]:
        if what == READY:
            halted()
            await asyncio.Event().wait()
        return PAYLOAD

    @app.process
    async def killed(ctx: ProcessContext[None], steps: int) -> int:
        entered()
        for number in range(steps):
            await ctx.step(_work, number)
        await ctx.step(last)
        return steps

    async with app:
        if what == READY:
            left = iter(names)

            async def caller() -> None:
                for one in left:
                    await app.start(killed.options(id=one), steps=int(steps))

            async with asyncio.TaskGroup() as group:
                for _ in range(CALLERS):
                    group.create_task(caller())
        else:
            async with asyncio.TaskGroup() as group:
                for one in names:
                    group.create_task(app.process_handle(one).result())
            say(DONE)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
