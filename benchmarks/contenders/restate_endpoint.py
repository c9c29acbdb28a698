"""The handlers that the Restate contender calls, served by hypercorn in a process of their own.

    python -m benchmarks.contenders.restate_endpoint PORT [ready|done COUNT]

Rule 1. ``Parking`` is suspended as soon as it waits; ``Waiting`` is kept live for a minute, which
        is what Restate does unless told otherwise.
Rule 2. With ``ready`` the last step of a process never ends; the program says so when as many as
        ``COUNT`` are inside it. With ``done`` it says when that many have ended.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import hypercorn.asyncio
import hypercorn.config
import restate
from restate import (
    Context,
    ObjectContext,
    RunOptions,
    Service,
    VirtualObject,
    Workflow,
    WorkflowContext,
    WorkflowSharedContext,
)
from restate.serde import JsonSerde

from benchmarks.agents import PROMPT, Script
from benchmarks.contender import PAYLOAD
from benchmarks.programs import DONE, FIRST, OPEN, READY, Countdown, say

SUSPEND_AFTER: Final = timedelta(milliseconds=50)
STREAMS: Final = 100_000
"""The server's own limits shall hold, not those of hypercorn (100 calls for a connection)."""

one_step = Service("OneStep")
waiting = Workflow("Waiting")
parking = Workflow("Parking", inactivity_timeout=SUSPEND_AFTER)
remembering = Workflow("Remembering", inactivity_timeout=SUSPEND_AFTER)
killed = Service("Killed")
steps = Workflow("Steps")
chat = VirtualObject("Chat")

SERDE: Final = RunOptions(serde=JsonSerde[Any]())
"""Without a serde the SDK inspects the signature of the function at every step, which costs 0.2 ms."""

_entered = Countdown(FIRST, 1)
_counts: dict[str, Countdown] = {}
"""What to say, and after how many processes."""


async def _work() -> dict[str, Any]:
    return PAYLOAD


async def _last() -> dict[str, Any]:
    if READY in _counts:
        _counts[READY]()
        await asyncio.Event().wait()
    return PAYLOAD


@one_step.handler()
async def run(ctx: Context, _number: int) -> dict[str, Any]:
    return await ctx.run_typed("step", _work)


@steps.main("run")
async def run_steps(ctx: WorkflowContext, count: int) -> int:
    """Measures R1 and R3."""
    for _ in range(count):
        await ctx.run_typed("step", _work, SERDE)
    return count


@chat.handler()
async def turn(ctx: ObjectContext, prompt: str) -> str:
    """Measure R2: a conversation that is kept, with a journaled step for each model call and tool call."""
    messages: list[Any] = await ctx.get("messages") or []
    messages.append({"role": "user", "text": prompt})
    reply = await ctx.run_typed("model", _model, SERDE, messages)
    while isinstance(reply, list):
        messages.append({"role": "model", "calls": reply})
        for call in reply:
            result = await ctx.run_typed(call["tool"], _tool, SERDE, call)
            messages.append({"role": "tool", "id": call["id"], "text": result})
        reply = await ctx.run_typed("model", _model, SERDE, messages)
    messages.append({"role": "model", "text": reply})
    ctx.set("messages", messages)
    return str(reply)


_script = Script()


async def _model(messages: list[Any]) -> Any:
    _script.read(messages)
    reply = _script.reply(PROMPT if messages[-1]["role"] == "user" else None)
    return reply if isinstance(reply, str) else [asdict(call) for call in reply]


async def _tool(call: dict[str, Any]) -> str:
    return await _script.lookup(**call["arguments"])


async def _wait(ctx: WorkflowContext, how: str) -> int:
    if how == "promise":
        await ctx.promise("go").value()
    else:
        name, resolved = ctx.awakeable()
        ctx.set("awakeable", name)
        await resolved
    return 1


async def _go(ctx: WorkflowSharedContext, value: dict[str, Any]) -> None:
    await ctx.promise("go").resolve(value)


async def _awakeable(ctx: WorkflowSharedContext, _asked: None) -> str | None:
    return await ctx.get("awakeable", type_hint=str)


for _workflow in (waiting, parking):
    _workflow.main("run")(_wait)
    _workflow.handler("go")(_go)
    _workflow.handler("awakeable")(_awakeable)


@remembering.main("run")
async def remember(ctx: WorkflowContext, load: list[int]) -> int:
    steps, resumes = load
    for _ in range(steps):
        await ctx.run_typed("step", _work)
    for number in range(resumes):
        await ctx.promise(f"go-{number}").value()
        await ctx.run_typed("next", lambda: say(f"{ctx.key()} {number}"))  # noqa: B023 - run at once
    return steps


@remembering.handler("go")
async def remember_go(ctx: WorkflowSharedContext, number: int) -> None:
    await ctx.promise(f"go-{number}").resolve(PAYLOAD)


@killed.handler("run")
async def be_killed(ctx: Context, steps: int) -> int:
    _entered()
    for _ in range(steps):
        await ctx.run_typed("step", _work)
    await ctx.run_typed("last", _last)
    if DONE in _counts:
        _counts[DONE]()
    return steps


def main() -> None:
    """Serve the handlers until killed."""
    port, *wanted = sys.argv[1:]
    if wanted:
        _counts[wanted[0]] = Countdown(wanted[0], int(wanted[1]))
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.h2_max_concurrent_streams = STREAMS
    config.errorlog = None
    asyncio.run(_serve(config))


async def _serve(config: hypercorn.config.Config) -> None:
    app = restate.app([one_step, waiting, parking, remembering, killed, steps, chat])
    async with asyncio.TaskGroup() as group:
        group.create_task(hypercorn.asyncio.serve(app, config, mode="asgi"))
        group.create_task(_say_open(int(config.bind[0].rpartition(":")[2])))


async def _say_open(port: int) -> None:
    """Say when the port is open: a call then reaches the handlers."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            break
    say(OPEN)


if __name__ == "__main__":
    main()
