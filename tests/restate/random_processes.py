"""Random processes: groups, races, timeouts, shared locks, signals, children, and cleanup after a cancel.

The result of a program does not depend on the order in which its branches happen to continue, so any execution must
return that of an undisturbed one. What its code has seen is in its trace: that of an attempt that was killed is the
beginning of the trace of the next one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from random import Random  # noqa: TID251 - seeded
from typing import Any

from pylash import Lash, ProcessContext, ProcessHandle, WaitTimeout
from pylash.tasks import TaskOwner
from pylash.values.errors import StepFailed
from pylash.values.process_errors import ProcessEnded

QUICK = 0.01
"""Seconds, at most, of sleeps and of timeouts that expire."""
NEVER = "never"


class World:
    """What is outside the processes: who signals and answers them, and what they have done."""

    def __init__(self, seed: int) -> None:
        self.traces: defaultdict[str, list[list[str]]] = defaultdict(list)
        self.executions: Counter[str] = Counter()
        # Steps that are being executed now, to see that none goes on after its run has ended.
        self.app: Lash | None = None
        self._random = Random(seed)
        self._sent: set[str] = set()
        self._tasks = TaskOwner()

    async def close(self) -> None:
        await self._tasks.close()

    def signal(self, process: str, name: str, count: int = 1) -> None:
        """Send signals to a process soon, once, from outside."""
        self._once(f"{process} signal {name}", lambda app: self._signal(app, process, name, count))

    def answer(self, key: str) -> None:
        """Answer a wait soon, once, from outside."""
        self._once(key, lambda app: app.resolve(key, "yes"))

    def _once(self, what: str, send: Callable[[Lash], Awaitable[Any]]) -> None:
        if what not in self._sent and self.app is not None:
            self._sent.add(what)
            # The caller is on the loop of its run.
            task = self._deliver(self._random.random() * 2 * QUICK, send, self.app)
            self._loop.call_soon(self._tasks.serve, task, context=Context())

    async def _deliver(
        self, delay: float, send: Callable[[Lash], Awaitable[Any]], app: Lash
    ) -> None:
        await asyncio.sleep(delay)
        with suppress(ProcessEnded):
            await send(app)

    async def _signal(self, app: Lash, process: str, name: str, count: int) -> None:
        handle: ProcessHandle[Any] = app.process_handle(process)
        for number in range(count):
            await handle.signal(name, number, id=f"{name} {number}")
            await asyncio.sleep(self._random.choice((0, 0, QUICK / 3)))

    async def open(self, app: Lash) -> None:
        self.app = app
        self._loop = asyncio.get_running_loop()


class Program:
    """A program in execution, one attempt of it."""

    def __init__(self, ctx: ProcessContext[World], seed: str, child: Any) -> None:
        self._ctx = ctx
        self._world = ctx.deps
        self._seed = seed
        self._child = child
        self._trace: list[str] = []
        self._world.traces[f"{ctx.id} {seed}"].append(self._trace)
        self._gate = asyncio.Semaphore(2)
        self._lock = asyncio.Lock()
        leaves = [
            self._gated, self._locked, self._step, self._failing_step, self._nap, self._plain_nap,
            self._signal, self._late_signal, self._answer, self._emit, self._late, self._collect,
            self._generator,
        ]  # fmt: skip
        trees = [
            self._queue, self._event, self._all, self._limited, self._first, self._group,
            self._failing_group, self._plain_group, self._child_process,
        ]  # fmt: skip
        self._leaves = leaves
        self._trees = trees

    async def block(self, name: str, depth: int) -> list[Any]:
        """Do a few things, one after another, and clean up."""
        random = Random(f"{self._seed} {name}")
        values: list[Any] = []
        try:
            for number in range(random.randrange(1, 4)):
                choice = random.choice(
                    self._trees if random.random() < 0.4 * depth else self._leaves
                )
                values.append(await choice(random, f"{name}.{number}", depth))
                self._saw(f"{name}.{number} {choice.__name__}")
            return values
        finally:
            if random.random() < 0.3:  # also while it is being cancelled
                await self._step(random, f"{name} cleanup", 0)

    def _saw(self, what: str) -> None:
        self._trace.append(f"{what} {self._ctx.now().timestamp()}")

    def _inner(self, label: str, depth: int, count: int = 3) -> list[Any]:
        return [self.block(f"{label}/{n}", depth - 1) for n in range(count)]

    # --- leaves ---

    async def _step(self, _: Random, label: str, __: int) -> str:
        result: str = await self._ctx.step(self._perform, label)
        self._trace.append(result)
        return result

    async def _perform(self, label: str) -> str:
        self._world.executions[f"{self._ctx.id} {self._seed} {label}"] += 1
        await asyncio.sleep(len(label) % 3 / 1000)
        return label

    async def _failing_step(self, _: Random, label: str, __: int) -> str:
        try:
            await self._ctx.step(self._fail, label)
        except StepFailed as error:
            self._trace.append(f"{label} failed")
            return error.message
        return ""

    async def _fail(self, label: str) -> None:
        self._world.executions[f"{self._ctx.id} {self._seed} {label}"] += 1
        raise ValueError(label)

    async def _nap(self, random: Random, label: str, _: int) -> str:
        await self._ctx.sleep(random.random() * QUICK)
        return label

    async def _plain_nap(self, random: Random, label: str, _: int) -> str:
        await asyncio.sleep(random.random() * QUICK)
        return label

    async def _gated(self, random: Random, label: str, depth: int) -> str:
        async with self._gate:
            return await self._step(random, label, depth)

    async def _locked(self, random: Random, label: str, depth: int) -> list[str]:
        async with self._lock:
            return [await self._step(random, f"{label}+{n}", depth) for n in range(2)]

    async def _signal(self, _: Random, label: str, __: int) -> Any:
        self._world.signal(self._ctx.id, label)
        return await self._ctx.wait_signal(label)

    async def _late_signal(self, random: Random, label: str, _: int) -> str:
        try:
            await self._ctx.wait_signal(NEVER, timeout=random.random() * QUICK)
        except WaitTimeout:
            self._trace.append(f"{label} is late")
        return label

    async def _answer(self, _: Random, label: str, __: int) -> Any:
        key = self._ctx.wait_key(label)
        self._world.answer(key)
        return await self._ctx.wait(key)

    async def _emit(self, _: Random, label: str, __: int) -> str:
        await self._ctx.emit("said", label)
        return label

    async def _late(self, random: Random, label: str, _: int) -> str:
        try:
            async with asyncio.timeout(random.random() * QUICK):
                await asyncio.Event().wait()
        except TimeoutError:
            self._trace.append(f"{label} is late")
        return label

    async def _collect(self, random: Random, label: str, _: int) -> list[int]:
        """Receive signals in races that others win most of the time: none is lost, and they come in order."""
        count, got = random.randrange(1, 4), list[int]()
        self._world.signal(self._ctx.id, label, count)

        async def receive() -> None:
            got.append(await self._ctx.wait_signal(label))

        pause = random.random() * QUICK / 3
        while len(got) < count:
            await self._ctx.race(receive(), self._ctx.sleep(pause))
        return got

    async def _generator(self, _: Random, label: str, __: int) -> str:
        async def numbers() -> AsyncIterator[int]:
            try:
                for number in range(3):
                    yield number
                    await asyncio.sleep(0.001)
            finally:
                self._trace.append(f"{label} left")

        async for number in numbers():
            if number == 1:
                break
        return label

    # --- trees ---

    async def _all(self, _: Random, label: str, depth: int) -> Any:
        return await self._ctx.gather(*self._inner(label, depth))

    async def _limited(self, _: Random, label: str, depth: int) -> Any:
        return await self._ctx.gather(*self._inner(label, depth), limit=2)

    async def _first(self, random: Random, label: str, depth: int) -> str:
        works = self._inner(label, depth, 2)
        if random.random() < 0.5:
            works.append(self._ctx.wait_signal(NEVER))
        await self._ctx.race(*works)
        return label

    async def _group(self, random: Random, label: str, depth: int) -> Any:
        async with self._ctx.task_group() as group:
            tasks = [group.create_task(one) for one in self._inner(label, depth)]
            value = await self._step(random, f"{label}!", 0)
        return [value, *[task.result() for task in tasks]]

    async def _failing_group(self, random: Random, label: str, depth: int) -> str:
        try:
            async with self._ctx.task_group() as group:
                for one in self._inner(label, depth):
                    group.create_task(one)
                await self._step(random, f"{label}!", 0)
                raise ValueError(label)  # noqa: TRY301 - as users do
        except* ValueError:
            self._trace.append(f"{label} failed")
        return label

    async def _queue(self, random: Random, label: str, _: int) -> Any:
        queue = asyncio.Queue[str]()

        async def produce() -> None:
            try:
                for number in range(3):
                    await queue.put(await self._step(random, f"{label}/{number}", 0))
            finally:  # a cancel reaches a branch at its effects, and not at a queue
                for _ in range(3):
                    queue.put_nowait("cancelled")

        async def consume() -> list[str]:
            return [await queue.get() for _ in range(3)]

        return (await self._ctx.gather(produce(), consume()))[1]

    async def _event(self, random: Random, label: str, depth: int) -> Any:
        event = asyncio.Event()

        async def wait(number: int) -> str:
            await event.wait()
            return await self._step(random, f"{label}/then {number}", 0)

        async def release() -> Any:
            try:
                return await self.block(f"{label}/first", depth - 1)
            finally:
                event.set()

        return await self._ctx.gather(wait(1), wait(2), release())

    async def _plain_group(self, random: Random, label: str, _: int) -> Any:
        """Start tasks of asyncio, as a library does."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._plain_nap(random, f"{label}/{n}", 0)) for n in range(3)
            ]
        return [task.result() for task in tasks]

    async def _child_process(self, _: Random, label: str, __: int) -> Any:
        handle = await self._ctx.start(self._child, seed=f"{self._seed} {label}")
        return await handle.result()


def add_processes(app: Lash) -> tuple[Any, Any]:
    """Add the processes to an app whose ``deps`` are a World; return the one that is started from outside."""

    @app.process
    async def small(ctx: ProcessContext[World], seed: str) -> Any:
        return await Program(ctx, seed, None).block("child", 0)

    @app.process
    async def large(ctx: ProcessContext[World], seed: str, epoch: int = 0) -> Any:
        program = Program(ctx, f"{seed} {epoch}", small)
        value = await program.block("root", 2)
        if epoch == 0 and Random(seed).random() < 0.1:
            ctx.continue_as(seed=seed, epoch=1)
        return value

    return large, small
