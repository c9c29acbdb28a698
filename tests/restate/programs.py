"""Random programs on a stage: nested groups, races, timeouts, semaphores, and cleanup after a cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - seeded
from typing import Any

from pylash.restate.stage import Stage
from tests.restate.fake_engine import action


def random_program(seed: int) -> Callable[[Stage], Awaitable[Any]]:
    """Return a program; its result tells in which order everything happened."""

    async def program(stage: Stage) -> list[str]:
        made = RandomProgram(stage, seed)
        try:
            await made.work(Random(seed), "root", 2)
        finally:
            await made.step("the end")
        return made.seen

    return program


class RandomProgram:
    """A program in execution."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.seen: list[str] = []
        self._stage = stage
        self._seed = seed
        self._gate = asyncio.Semaphore(2)
        self._parts = (
            self._nap,
            self._step,
            self._gated,
            self._all,
            self._first,
            self._in_time,
            self._group,
        )

    async def work(self, random: Random, name: str, depth: int) -> str:
        """Do a few things, one after another, and clean up."""
        try:
            for number in range(random.randrange(1, 4)):
                parts = self._parts if depth else self._parts[:3]
                await random.choice(parts)(random, f"{name}.{number}", depth)
            return name
        finally:
            if random.random() < 0.3:  # asked for while it is being cancelled, too
                await self.step(f"{name} cleanup")

    def _inner(self, label: str, depth: int) -> list[Awaitable[str]]:
        return [
            self.work(Random(f"{self._seed}{label}{n}"), f"{label}/{n}", depth - 1)
            for n in range(3)
        ]

    async def step(self, label: str) -> None:
        """Ask for an entry."""
        self.seen.append((await self._stage.run(label, action(label))).decode())

    async def _step(self, _: Random, label: str, __: int) -> None:
        await self.step(label)

    async def _gated(self, _: Random, label: str, __: int) -> None:
        async with self._gate:
            await self.step(label)

    async def _nap(self, random: Random, label: str, _: int) -> None:
        await self._stage.sleep(label, random.randrange(1, 50))
        self.seen.append(f"slept {label}")

    async def _all(self, _: Random, label: str, depth: int) -> None:
        self.seen += await asyncio.gather(*self._inner(label, depth))  # noqa: TID251 - as users do

    async def _first(self, _: Random, label: str, depth: int) -> None:
        tasks = [asyncio.ensure_future(one) for one in self._inner(label, depth)]  # noqa: TID251
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if rest:
            await asyncio.wait(rest)
        self.seen.append(f"first of {label}: {len(done)}")

    async def _in_time(self, random: Random, label: str, depth: int) -> None:
        try:
            async with asyncio.timeout(random.randrange(1, 40)):
                await self.work(Random(f"{self._seed}{label}"), f"{label}/t", depth - 1)
        except TimeoutError:
            self.seen.append(f"late {label}")

    async def _group(self, random: Random, label: str, depth: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for one in self._inner(label, depth):
                    group.create_task(one)  # type: ignore[arg-type]
                if random.random() < 0.5:
                    await self.step(f"{label}!")
                    raise ValueError(label)  # noqa: TRY301 - as users do
        except* ValueError:
            self.seen.append(f"failed {label}")
