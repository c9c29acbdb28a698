"""A worker of the torture: it works on whatever processes there are until it is killed.

Every execution of a step writes a line to LOG when
it begins and one when it ends: S or E, process, step, pid, monotonic seconds, microseconds of the
store's clock. Beside LOG is a folder of files that count the failures of steps.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from pylash import Lash, ProcessContext, Retry, WorkerConfig
from pylash.engine.system import SystemClock
from pylash.values.errors import StepFailed
from pylash.values.process_errors import ProcessCancelled, ProcessFailed, WaitFailed, WaitTimeout
from tests.crash.torture_plan import (
    AnyOp,
    Block,
    Child,
    Emit,
    Gather,
    Group,
    Plan,
    Race,
    Raise,
    Signal,
    Sleep,
    Stamp,
    Step,
    Wait,
    child_id,
)

CONCURRENCY = 8
WORKER = WorkerConfig(concurrency=CONCURRENCY, park_after="50ms")
HANG_SECONDS = 30.0

_clock = SystemClock()


class Ledger:
    """What was executed, whatever became of it."""

    def __init__(self, path: Path) -> None:
        self.failures = path.with_suffix(".failures")
        self.failures.mkdir(exist_ok=True)
        self._log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, process: str, step: str) -> None:
        """Append a line, whole."""
        now = f"{_clock.monotonic():.6f} {_clock.now()}"
        os.write(self._log, f"{kind} {process} {step} {os.getpid()} {now}\n".encode())

    def fails(self, process: str, step: Step) -> bool:
        """Return whether a step must fail now, and count that."""
        if step.fails == 0:
            return False
        count = os.open(
            self.failures / f"{process}-{step.at}", os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )
        try:
            if os.fstat(count).st_size >= step.fails:
                return False
            os.write(count, b".")
            return True
        finally:
            os.close(count)


class Interpreter:
    """Does what the plan of one process says."""

    def __init__(self, ctx: ProcessContext[Ledger], targets: dict[str, Any]) -> None:
        self.ctx = ctx
        self.ledger = ctx.deps
        self.targets = targets

    async def block(self, block: Block) -> list[Any]:
        """Do the ops of a block in order, and clean up."""
        values: list[Any] = []
        try:
            for op in block.ops:
                values.append(await self.op(op))  # noqa: PERF401 - how far it came is looked at
        finally:
            if block.cleans:
                await self.clean(block, len(values))
        return values

    async def clean(self, block: Block, reached: int) -> None:
        """Clean up, also if that is cancelled."""
        interrupted = None
        while True:
            try:
                await self.ctx.options(key=block.cleanup).step(self.cleaned, block.cleanup, reached)
                break
            except asyncio.CancelledError as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    async def op(self, op: AnyOp) -> Any:  # noqa: C901, PLR0911, PLR0912 - one a kind
        ctx = self.ctx
        match op:
            case Step():
                return await self.step(op)
            case Stamp(at=at):
                given = [str(ctx.now()), ctx.uuid(), ctx.random()]
                return await ctx.options(key=at).step(self.cleaned, at, given)
            case Sleep(ms=ms):
                await ctx.sleep(ms / 1000)
                return op.at
            case Signal():
                return await self.signal(op)
            case Wait():
                return await self.wait(op)
            case Emit(at=at):
                await ctx.emit("said", at)
                return at
            case Raise(at=at):
                raise RuntimeError(at)
            case Child():
                return await self.child(op)
            case Race(blocks=blocks):
                return await ctx.race(*map(self.block, blocks))
            case Gather(blocks=blocks):
                try:
                    return await ctx.gather(*map(self.block, blocks))
                except RuntimeError:
                    return "failed"
            case Group():
                return await self.group(op)

    async def step(self, op: Step) -> str:
        """Take a step, with its retries."""
        retry = Retry(op.retries + 1, delay="5ms") if op.retries else None
        timeout = "30ms" if op.hangs else None
        function = self.threaded if op.thread else self.awaited
        try:
            return await self.ctx.options(key=op.at, retry=retry, timeout=timeout).step(
                function, msgspec.to_builtins(op)
            )
        except StepFailed:
            return "failed"

    async def signal(self, op: Signal) -> int:
        """Receive a signal, in one wait or in many."""
        while True:
            timeout = None if op.ms is None else op.ms / 1000
            payload = await self.ctx.wait_signal(op.name, timeout=timeout, default=None)
            if payload is not None:
                return int(payload)

    async def wait(self, op: Wait) -> Any:
        """Wait for somebody to answer."""
        key = await self.ctx.wait_key(op.at)
        try:
            return await self.ctx.wait(key, timeout=None if op.ms is None else op.ms / 1000)
        except WaitFailed as refused:
            return refused.message
        except WaitTimeout:
            return "late"

    async def child(self, op: Child) -> Any:
        """Start a process, and see how it ends if it is awaited."""
        target = self.targets[op.plan.kind]
        process = child_id(self.ctx.id, op.at)
        given = {"plan": msgspec.to_builtins(op.plan)}
        handle = await self.ctx.start(target.options(id=process, attached=op.attached), **given)
        if not op.awaited:
            return "started"
        try:
            return ["completed", await handle.result()]
        except ProcessFailed:
            return ["failed"]
        except ProcessCancelled:
            return ["cancelled"]

    async def group(self, op: Group) -> Any:
        """Do blocks in a task group."""
        try:
            async with self.ctx.task_group() as group:
                tasks = [group.create_task(self.block(block)) for block in op.blocks]
                body = await self.block(op.body)
        except BaseExceptionGroup:
            return "failed"
        return [*(task.result() for task in tasks), body]

    # --- what is executed ---

    async def cleaned(self, step: str, given: Any) -> str:
        """Be a step that only says that it was taken."""
        self.ledger.write("S", self.ctx.id, step)
        self.ledger.write("E", self.ctx.id, step)
        return step

    async def awaited(self, given: dict[str, Any]) -> str:
        """Be a step that takes its time on the loop."""
        op = msgspec.convert(given, Step)
        self.ledger.write("S", self.ctx.id, op.at)
        await asyncio.sleep(HANG_SECONDS if op.hangs else op.ms / 1000)
        return self.ended(op)

    def threaded(self, given: dict[str, Any]) -> str:
        """Be a step that takes its time in a thread."""
        op = msgspec.convert(given, Step)
        self.ledger.write("S", self.ctx.id, op.at)
        threading.Event().wait(op.ms / 1000)
        return self.ended(op)

    def ended(self, op: Step) -> str:
        """Fail or succeed."""
        failing = self.ledger.fails(self.ctx.id, op)
        self.ledger.write("E", self.ctx.id, op.at)
        if failing:
            raise ConnectionError(op.at)
        return op.at


def make_app(url: str, log: Path | None = None) -> tuple[Lash, dict[str, Any]]:
    """Return an app and its processes by kind: a worker if it has a log, else a client."""
    worker = None if log is None else WORKER
    app = Lash(url, worker=worker, deps=None if log is None else Ledger(log), migrate=True)
    targets: dict[str, Any] = {}

    async def run(ctx: ProcessContext[Ledger], plan: Any, epoch: Any = 0, values: Any = ()) -> Any:
        known = msgspec.convert(plan, Plan)
        interpreter = Interpreter(ctx, targets)
        got = [*values, await interpreter.block(known.epochs[epoch])]
        if epoch + 1 < len(known.epochs):
            ctx.continue_as(plan=plan, epoch=epoch + 1, values=got)
        return got

    targets["plain"] = app.process(name="plain")(run)
    targets["narrow"] = app.process(name="narrow", concurrency=3)(run)
    targets["brief"] = app.process(name="brief", timeout="500ms")(run)
    return app, targets


async def main(url: str, log: str) -> None:
    app, _ = make_app(url, Path(log))
    async with app:
        await asyncio.Event().wait()
