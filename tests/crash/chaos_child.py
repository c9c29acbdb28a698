"""A worker of the chaos runs: it works on every scope it can get until all are done, or it is killed."""

from __future__ import annotations

import asyncio
import os
import random  # noqa: TID251 - a seeded order of work
from typing import Any

from pylash import (
    CustomWait,
    DurableStep,
    JournalHost,
    LashError,
    Ok,
    ProcessScope,
    RuntimeScope,
    envelope,
    open_host,
    step_executor,
)
from pylash.durable.effects import AwaitEvent, Sleep
from pylash.durable.ports import ScopedController
from pylash.engine.executors import await_options, sleep_executor

STEPS = 12
ELSEWHERE = {"lease_held", "lease_lost"}


def expected(scope: int, step: int) -> int:
    """What a step returns."""
    return scope * 1_000 + step


def finished(path: str) -> set[int]:
    """Return the scopes that somebody has seen through to their end."""
    with open(path, encoding="utf-8") as log:
        return {int(line.split()[0]) for line in log if line.endswith("finished\n")}


async def work(host: JournalHost, number: int, log: int) -> None:
    """Run one scope: steps in pairs at once, a sleep, and a wait that somebody has to answer."""
    scope = ProcessScope(f"p{number}")
    controller = host.scoped(scope)

    async def step(n: int) -> None:
        async def run(given: int) -> int:
            os.write(log, f"{number} {n} {os.getpid()}\n".encode())
            await asyncio.sleep(0.002)
            return given

        command = DurableStep("step", expected(number, n))
        outcome: Any = await controller.execute(_asked(command, f"step#{n}"), step_executor(run))
        assert outcome.value == expected(number, n)

    for n in range(0, STEPS, 2):
        await controller.execute(_asked(Sleep(2), f"nap#{n}"), sleep_executor())
        async with asyncio.TaskGroup() as group:
            group.create_task(step(n))
            group.create_task(step(n + 1))
    await _wait(host, controller, scope)


async def _wait(host: JournalHost, controller: ScopedController, scope: ProcessScope) -> None:
    key = await host.wait_key(scope, CustomWait("last"))
    async with asyncio.TaskGroup() as group:
        asked = _asked(AwaitEvent(key), "last")
        waiting = group.create_task(controller.controller.execute(asked, await_options()))
        await host.resolve(key, Ok(os.getpid()))
    outcome: Any = waiting.result()
    assert isinstance(outcome.resolution, Ok)


def _asked(command: Any, key: str) -> Any:
    return envelope(
        command, scope=RuntimeScope(), effect_id=key.split("#", maxsplit=1)[0], replay_key=key
    )


async def main(url: str, path: str, seed: str, scopes: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    left = sorted(set(range(int(scopes))) - finished(path))
    random.Random(seed).shuffle(left)
    async with open_host(url, migrate=True) as host:
        while left:
            number = left.pop(0)
            try:
                await work(host, number, log)
                os.write(log, f"{number} finished\n".encode())
            except (LashError, ExceptionGroup) as error:
                if not _elsewhere(error):
                    raise
                if number not in finished(path):  # another worker has it, and may be killed yet
                    left.append(number)
                await asyncio.sleep(0.01)


def _elsewhere(error: BaseException) -> bool:
    if isinstance(error, ExceptionGroup):
        return all(map(_elsewhere, error.exceptions))
    return isinstance(error, LashError) and error.code in ELSEWHERE
