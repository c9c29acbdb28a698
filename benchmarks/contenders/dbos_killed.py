"""DBOS in measure G: a worker that is killed, and one that recovers what is left.

    python -m benchmarks.contenders.dbos_killed ready|done ROUND PROCESSES STEPS URL

Rule 1. The recovery is the one that DBOS does by itself when it is launched.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from dbos import DBOS, SetWorkflowID

from benchmarks.contender import PAYLOAD, Contender
from benchmarks.contenders.dbos_contender import launch, work
from benchmarks.killed import KilledContender
from benchmarks.programs import DONE, FIRST, READY, Countdown, say

POLL_SECONDS: Final = 0.02
UNFINISHED: Final = ["PENDING", "ENQUEUED"]


def contender(_store: str, url: str) -> Contender:
    """Return DBOS on a store."""
    return KilledContender(__name__, url)


_entered = Countdown(FIRST, 1)
_reached: list[Countdown] = []
_last_steps = 0


@DBOS.step()
async def last() -> dict[str, Any]:
    global _last_steps  # noqa: PLW0603 - the workflows share a process and nothing else
    _last_steps += 1
    for countdown in _reached:
        countdown()
        await asyncio.Event().wait()
    return PAYLOAD


@DBOS.workflow()
async def killed(steps: int) -> int:
    _entered()
    for number in range(steps):
        await work(number)
    await last()
    return steps


async def _until_killed(name: str, processes: int, steps: int) -> None:
    _reached.append(Countdown(READY, processes))
    for number in range(processes):
        with SetWorkflowID(f"{name}-{number}"):
            await DBOS.start_workflow_async(killed, steps)
    await asyncio.Event().wait()


async def _until_done(processes: int) -> None:
    while _last_steps < processes:  # noqa: ASYNC110 - the steps may run in any loop
        await asyncio.sleep(POLL_SECONDS)
    while await DBOS.list_workflows_async(status=UNFINISHED):  # noqa: ASYNC110 - it knows
        await asyncio.sleep(POLL_SECONDS)
    say(DONE)
    await asyncio.Event().wait()


async def _main() -> None:
    what, name, processes, steps, url = sys.argv[1:]
    launch(url)
    if what == READY:
        await _until_killed(name, int(processes), int(steps))
    else:
        await _until_done(int(processes))


if __name__ == "__main__":
    asyncio.run(_main())
