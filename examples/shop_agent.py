"""An agent uses tools, asks for approval, starts a background process, is killed with SIGKILL, and continues.

Run it with ``make demo``; it needs no key, for the model is scripted; ``MODEL=openai:gpt-5 make demo`` asks a
real one, with the key of your environment. The parent only talks to the store:
it asks, listens and approves. The agent runs in a worker process, which is killed while the model speaks.
Another worker finishes the turn: what was recorded is not repeated, and nobody is asked twice.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pylash import (
    Delta,
    Lash,
    ModelReply,
    ModelRequest,
    ProcessContext,
    TurnEvent,
    UserMessage,
    draw_timeline,
)
from pylash.testing import ScriptedModel, call, calls, say

SESSION, TURN = "chat-42", "refund-7"
QUESTION = "Please refund order 7, and tell me when the parcel was picked up."
INSTRUCTIONS = (
    "You help customers of a small shop. Look an order up before you refund it, and watch for the pickup of its "
    "parcel in the background if you are asked about it."
)
MODEL = os.environ.get("MODEL")

# --- the agent: a model, tools, and a process that outlives the turn ---

SCRIPT = [
    call("lookup", order_id="7"),
    calls(call("refund", order_id="7", cents=500), call("watch_pickup", order_id="7")),
    say("I refunded 5.00 for order 7. I will tell you as soon as the parcel was picked up."),
    say("Good news: the parcel of order 7 was picked up."),
]


class HalfwayModel(ScriptedModel):
    """A scripted model that stops in the middle of a sentence if SLOW is set."""

    name = "scripted"

    async def respond(self, request: ModelRequest, listen: Any) -> ModelReply:
        """Answer, or stop in the middle of the answer."""
        if os.environ.get("SLOW") and request.call_number == 2:
            listen(Delta("I refunded 5.00 for "))
            await asyncio.sleep(60)
        return await super().respond(request, listen)


def make_app(store: str) -> Lash:
    """Return the agent on a store."""
    app = Lash(store, model=MODEL or HalfwayModel(SCRIPT), instructions=INSTRUCTIONS)

    @app.process
    async def pickup(ctx: ProcessContext[None], order_id: str) -> None:
        """Wait for the parcel service, however long it takes, then wake the session."""
        await ctx.wait_signal("picked_up")
        await ctx.wake(f"The parcel of order {order_id} was picked up.")

    @app.tool
    async def lookup(order_id: str) -> dict[str, Any]:
        """Find an order."""
        log(f"lookup {order_id}")
        return {"order": order_id, "cents": 500, "status": "delivered"}

    @app.tool(approval="Money leaves the shop")
    async def refund(order_id: str, cents: int) -> str:
        """Give money back."""
        log(f"refund {order_id} {cents}")
        return f"refunded {cents}"

    @app.tool
    async def watch_pickup(order_id: str) -> str:
        """Watch for the parcel of an order in the background."""
        log(f"watch_pickup {order_id}")
        started = await app.start(
            pickup.options(id=f"pickup-{order_id}", wake=SESSION), order_id=order_id
        )
        return f"watching as {started.id}"

    return app


def log(line: str) -> None:
    """Note that a tool really ran: a replay does not call it."""
    with Path(os.environ["TOOL_LOG"]).open("a") as file:
        file.write(f"{line} (process {os.getpid()})\n")


async def worker(store: str) -> None:
    """Run the agent until this process is killed."""
    async with make_app(store):
        await asyncio.sleep(60)


# --- the parent: asks, approves, kills, and narrates ---

COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "grey": 90, "bold": 1}
PLAIN = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()


def paint(colour: str, text: str) -> str:
    """Return text in a colour, if the terminal has any."""
    return text if PLAIN else f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def tell(mark: str, colour: str, text: str) -> None:
    """Print one line of the demonstration."""
    print(f"{paint(colour, mark)} {text}", flush=True)


@contextmanager
def running_worker(
    store: str, tool_log: Path, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker process; it is stopped at the end, also after an error."""
    env = {**os.environ, **environment, "TOOL_LOG": str(tool_log)}
    process = subprocess.Popen([sys.executable, __file__, store], env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Narrator:
    """Prints the events of a turn as they arrive."""

    def __init__(self) -> None:
        self.text = ""

    def hear(self, event: TurnEvent) -> None:
        """Print one event."""
        match event.type:
            case "tool_started":
                tell("  ○", "grey", f"{event.tool}({shown(event.data)})")
            case "tool_completed":
                tell("  ●", "green", f"{event.tool} -> {event.text}")
            case "text_delta":
                self.text += event.text
                print(
                    event.text if self.text != event.text else f"  “{event.text}",
                    end="",
                    flush=True,
                )
            case "text_reset":
                if self.text:
                    print("— (it begins again)", flush=True)
                self.text = ""
            case _:
                pass

    def finish(self) -> None:
        """End the sentence."""
        if self.text:
            print("”", flush=True)


def shown(arguments: Any) -> str:
    """Return arguments as people write them."""
    return ", ".join(f"{name}={value!r}" for name, value in (arguments or {}).items())


async def first_half(client: Lash, pid: int) -> None:
    """Ask, approve, and stop listening in the middle of the model's sentence."""
    tell("▶", "grey", f"worker {pid} runs the agent; we only talk to the store")
    tell("?", "bold", QUESTION)
    narrator = Narrator()
    async with client.session(SESSION).stream(QUESTION, turn_id=TURN) as stream:
        async for event in stream:
            narrator.hear(event)
            if event.type == "wait_opened":
                await approve(client)
            if event.type == "text_delta":
                return
    if stream.result.status == "failed":
        sys.exit(stream.result.error)


async def approve(client: Lash) -> None:
    """Answer the approval as a person would."""
    for wait in await client.waits(session_id=SESSION):
        tell("  ◆", "yellow", f"approval: {wait.title}: {wait.tool}({shown(wait.arguments)})? Yes.")
        await client.resolve(wait.key, {"approved": True, "by": "ann"})


async def second_half(client: Lash, pid: int) -> None:
    """Listen to the rest of the turn, and to the turn that the background process asks for."""
    tell("▶", "grey", f"worker {pid} starts on the same store")
    narrator = Narrator()
    session = client.session(SESSION)
    async with session.stream(QUESTION, turn_id=TURN) as stream:
        async for event in stream:
            if event.type not in ("tool_started", "tool_completed"):
                narrator.hear(event)
            if event.type == "wait_opened":
                await approve(client)
    narrator.finish()
    if stream.result.status == "failed":
        sys.exit(stream.result.error)
    watching = await client.processes()
    if not watching:
        return  # a real model may have left it out
    tell("  …", "grey", "the turn is over; the background process waits for the parcel service")
    tell("  ◆", "blue", f"a signal to {watching[0].id}: picked_up")
    await client.process_handle(watching[0].id).signal("picked_up")
    woken = False
    async for item in session.observe():
        message = item.message
        if isinstance(message, UserMessage) and message.source == "wake":
            tell("  ◆", "blue", f"the process wakes the session: {message.text}")
            woken = True
        elif woken and message is not None and message.text:
            tell("  “", "green", f"{message.text}”")
            return


async def story(folder: Path) -> None:
    """Kill the agent while its model answers, and let another worker finish."""
    store, tool_log = f"sqlite:///{folder / 'shop.db'}", folder / "tools.log"
    async with Lash(store, worker=None) as client:
        with running_worker(store, tool_log, SLOW="1") as first:
            await first_half(client, first.pid)
        print()
        killed, died = time.time_ns() // 1000, time.perf_counter()
        tell("  ✗", "red", f"kill -9 {first.pid}, in the middle of the sentence")
        with running_worker(store, tool_log) as second:
            await second_half(client, second.pid)
        took = time.perf_counter() - died
        ran = tool_log.read_text().split("\n")[:-1]
        tell("✔", "green", f"complete {took:.1f} s after the kill; the tools ran once each:")
        for line in ran:
            tell("   ", "grey", line)
        effects = await client.session(SESSION).timeline(TURN)
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    print()
    print(draw_timeline(effects, width=width, colour=not PLAIN, marks={killed: "kill -9"}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(worker(sys.argv[1]))
    else:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # plain terminals too
        with suppress(BrokenPipeError), tempfile.TemporaryDirectory() as folder:
            asyncio.run(story(Path(folder)))
