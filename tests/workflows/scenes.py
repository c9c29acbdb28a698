"""Apps whose tools Lashlang programs call, and ways to run a program to its end."""

from __future__ import annotations

import asyncio
from typing import Any

from pylash import Lash, ProcessFailed, ProcessHandle, Retry, ToolContext, ToolError, WorkerConfig
from tests.backends import eventually

PARKING = WorkerConfig(park_after="1ms")
LIVE = WorkerConfig(park_after="1h")


class Shop:
    """An app with a tool for every way a call can go; ``calls`` is what was really called."""

    def __init__(self, url: str = "memory://", worker: WorkerConfig = LIVE, **options: Any) -> None:
        self.app = app = Lash(url, worker=worker, **options)
        self.calls: list[Any] = []
        self.met = asyncio.Barrier(3)

        @app.tool
        async def echo(value: str) -> str:
            """Return the value."""
            self.calls.append(value)
            return value

        @app.tool(retry=Retry(3, delay="1ms"))
        async def flaky(ctx: ToolContext[None], good: int) -> int:
            """Fail until an attempt."""
            self.calls.append(ctx.attempt)
            if ctx.attempt < good:
                raise ToolError(f"attempt {ctx.attempt}")
            return ctx.attempt

        @app.tool
        async def broken(code: str) -> None:
            """Fail with data."""
            raise ToolError("it is broken", data={"n": 2, "code": code})

        @app.tool(approval=True)
        async def pay(cents: int) -> str:
            """Pay."""
            self.calls.append(cents)
            return f"paid {cents}"

        @app.tool
        async def ask(ctx: ToolContext[None], question: str) -> Any:
            """Ask somebody."""
            return ctx.defer(deadline="1h")

        @app.tool
        async def meet(n: int) -> int:
            """Return when three are here."""
            async with asyncio.timeout(5):
                await self.met.wait()
            return n

        @app.tool(module="mail")
        async def send(to: str) -> str:
            """Send a letter."""
            self.calls.append(to)
            return f"sent to {to}"

    async def start(
        self, source: str, process: str = "main", process_id: str = "p", **args: Any
    ) -> ProcessHandle[Any]:
        """Start a process of a program."""
        module = await self.app.lashlang(source)
        return await self.app.start(module[process].options(id=process_id), **args)

    async def run(self, source: str, **args: Any) -> Any:
        """Return what a program finishes with."""
        return await (await self.start(source, **args)).result(timeout="10s")

    async def run_as(self, process_id: str, source: str, **args: Any) -> Any:
        """Return what a program finishes with, as the process of an id."""
        return await (await self.start(source, process_id=process_id, **args)).result(timeout="10s")

    async def fails(self, source: str, **args: Any) -> dict[str, Any]:
        """Return how a program fails."""
        try:
            value = await self.run(source, **args)
        except ProcessFailed as failed:
            return dict(failed.data)
        raise AssertionError(f"it finished with {value!r}")


async def waiting(app: Lash) -> Any:
    """Return the one wait that is open."""
    return (await eventually(app.waits))[0]


async def log(handle: ProcessHandle[Any]) -> list[tuple[str, Any]]:
    """Return a process's events."""
    return [(event.type, event.payload) async for event in handle.events()]


async def keys(app: Lash, process_id: str) -> list[str]:
    """Return the keys of what a process recorded, in order."""
    record = await app.store.processes.get(process_id)
    assert record is not None
    entries = await app.store.journal.timeline(record.run)
    return [entry.key for entry in entries if entry.kind not in ("now", "decision")]
