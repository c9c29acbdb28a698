"""An app for the command line: its store is PYLASH_STORE."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pylash import Lash, ProcessContext, Retry, ToolError
from pylash.testing import ScriptedModel, call, say

EVIL = "evil\x1b]0;pwned\x07\u202e"
SCRIPT = [call("refund", order_id="7", cents=500), say("Refunded.")]

app = Lash(model=ScriptedModel(SCRIPT))
client = Lash(worker=None)
nothing = 7


@app.tool(approval="Money leaves the shop")
async def refund(order_id: str, cents: int) -> str:
    """Give money back."""
    return f"refunded {cents} for {order_id}"


async def charge(cents: int) -> int:
    return cents


tries: list[int] = []


async def wobble() -> str:
    tries.append(1)
    if len(tries) == 1:
        raise ValueError(f"wobble {EVIL}")
    return "steady"


@app.process
async def child(ctx: ProcessContext[None]) -> str:
    return "grown"


@app.process
async def order(ctx: ProcessContext[None], item: str) -> str:
    await ctx.step(charge, int(os.environ.get("CENTS", "500")))
    await ctx.options(retry=Retry(2, delay="1ms")).step(wobble)
    grown = await (await ctx.start(child)).result()
    await ctx.emit("progress", {"item": item})
    address = await ctx.wait_signal("address", timeout="1w")
    return f"{item} to {address}, {grown}"


@app.process
async def busy(ctx: ProcessContext[None]) -> str:
    await ctx.step(forever)
    return "never"


async def forever() -> None:
    print("busy", flush=True)
    await asyncio.sleep(60)


@app.process
async def broken(ctx: ProcessContext[None]) -> Any:
    raise ValueError("it is broken")


@app.process
async def declined(ctx: ProcessContext[None]) -> Any:
    raise ToolError("No money.", data={"cents": 500})
