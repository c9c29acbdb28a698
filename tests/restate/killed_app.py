"""An app whose workers are killed: ``python -m tests.restate.killed_app STORE INGRESS ADMIN ENDPOINT FILE``.

Each execution of a step or a tool is a line of the file: its name, the process id, and when it began.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from pylash import Lash, ProcessContext, WorkerConfig
from pylash.restate import RestateHost
from pylash.testing import ScriptedModel, call, calls, say


def make_app(
    store: str, ingress: str, admin: str, endpoint: str, file: str, *, works: bool = True
) -> Lash:
    """Return the app of a worker, or of a client."""
    host = RestateHost(ingress=ingress, admin=admin, endpoint=endpoint)
    worker = WorkerConfig(park_after="50ms", lease="3s") if works else None
    app = Lash(store, host=host, model=ScriptedModel(reply), worker=worker)

    async def note(name: str) -> None:
        now = asyncio.get_running_loop().time()
        # One write of a short line is not torn apart, also if the process is killed.
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{name} {os.getpid()} {now}\n".encode())
        os.close(descriptor)
        await asyncio.sleep(0.02)

    async def count(name: str, number: int) -> int:
        await note(f"{name}/{number}")
        return number + 1

    @app.process
    async def part(ctx: ProcessContext[None], name: str) -> int:
        return await ctx.step(count, name, 1)

    @app.process
    async def waiter(ctx: ProcessContext[None]) -> int:
        return int(await ctx.wait_signal("go"))

    @app.process
    async def job(ctx: ProcessContext[None], name: str) -> int:
        number = 0
        for _ in range(5):
            number = await ctx.step(count, name, number)
            await ctx.emit("said", number)
        number += int(await ctx.wait_signal("go"))
        child = await ctx.start(part, name=f"{name}/part")
        await ctx.sleep("200ms")
        numbers = await ctx.gather(*(ctx.step(count, name, 100 + n) for n in range(3)))
        return int(number + sum(numbers) + await child.result())

    @app.tool
    async def work(name: str, number: int) -> str:
        """Work."""
        await note(f"{name}/{number}")
        return f"worked {number}"

    return app


async def reply(request: Any) -> Any:
    last = request.messages[-1]
    if last.role == "user":
        return calls(*(call("work", name=last.text, number=n) for n in range(4)))
    return say("done")


async def main() -> None:
    async with make_app(*sys.argv[1:]):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
