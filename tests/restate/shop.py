"""A shop on Restate for the command line; its addresses are in the environment."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pylash import Lash, ProcessContext, StepFailed, WorkerConfig, tool
from pylash.restate import RestateHost
from pylash.testing import ScriptedModel, call, say

PROCESSES: dict[str, Any] = {}
"""The processes of the app that was made last, by name."""


async def reply(request: Any) -> Any:
    last = request.messages[-1]
    if last.role == "user" and last.text == "pay":
        return call("pay", cents=5)
    return say(f"heard {last.text}")


def make_app(kind: Any = Lash, **options: Any) -> Any:  # noqa: C901 - declarations
    """Return the app, or one of another kind; without options, that of a worker."""
    host = RestateHost(
        ingress=os.environ["SHOP_INGRESS"],
        admin=os.environ["SHOP_ADMIN"],
        endpoint=os.environ.get("SHOP_ENDPOINT"),
    )
    given = {"worker": WorkerConfig(park_after="50ms", grace="20s"), **options}
    app = kind(os.environ["SHOP_STORE"], host=host, model=ScriptedModel(reply), **given)
    app.trigger("paid", payload=dict)

    @tool(approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        return f"paid {cents}"

    app.add_tool(pay)

    def declare(function: Any) -> None:
        PROCESSES[function.__name__] = app.process(function)

    async def charge(cents: int) -> int:
        return cents

    async def fail() -> None:
        raise ValueError("broken")

    async def nap(seconds: float) -> None:
        # Each line is written at once: an execution that is cut off has a beginning and no end.
        for line in ("begins", "ends"):
            with open(os.environ["SHOP_FILE"], "a") as file:  # noqa: ASYNC230 - one short line
                file.write(f"{line}\n")
            if line == "begins":
                await asyncio.sleep(seconds)

    @declare
    async def order(ctx: ProcessContext[None], cents: int) -> str:
        await ctx.step(charge, cents)
        try:
            await ctx.step(fail)
        except StepFailed:
            await ctx.sleep("10ms")
        return str(await ctx.wait_signal("paid"))

    @declare
    async def nightly(ctx: ProcessContext[None], seconds: float) -> str:
        await ctx.step(nap, seconds)
        return "rested"

    @declare
    async def leaky(ctx: ProcessContext[None]) -> None:
        await ctx.patched("quick")
        await ctx.step(charge, 1)
        await asyncio.open_connection("127.0.0.1", 1)

    @declare
    async def on_paid(_: ProcessContext[None], event: dict[str, Any]) -> Any:
        return event["cents"]

    return app


def __getattr__(name: str) -> Any:
    """Return the app for the addresses in the environment now: each test has others."""
    if name != "app":
        raise AttributeError(name)
    return make_app()
