"""A process with steps, a timer and a signal is killed with SIGKILL in the middle, and resumed.

Run it with ``make demo``. The parent starts this file as a worker process, kills it while a step is
running, and starts it again on the same store: recorded steps are replayed from the journal, the
interrupted step runs again, the timer waits only for the remaining time, and the signal is received.
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

from pylash import Lash, ProcessContext, draw_timeline

# --- the program: ordinary async Python ---


async def charge_card(cents: int) -> dict[str, Any]:
    """Charge the card: this must never happen twice once it is recorded."""
    return {"charged": cents, "by": os.getpid()}


async def pack_box(item: str) -> dict[str, Any]:
    """Pack the box; the first worker is killed in here."""
    if os.environ.get("SLOW"):
        say("packing")
        await asyncio.sleep(60)
    await asyncio.sleep(0.15)
    return {"packed": item, "by": os.getpid()}


async def send_mail(to: str) -> dict[str, Any]:
    """Tell the customer."""
    return {"mailed": to, "by": os.getpid()}


async def fulfil(ctx: ProcessContext[None], item: str, cents: int) -> str:
    """Fulfil an order: each await is recorded once, and replayed after that."""
    report_step(await ctx.step(charge_card, cents), "charge_card")
    report_step(await ctx.step(pack_box, item), "pack_box")
    await ctx.sleep("700ms")  # the glue must dry
    say("asking for the address")
    address = await ctx.wait_signal("address", timeout="1w")
    report_step(await ctx.step(send_mail, address), "send_mail")
    return f"{item} is on its way to {address}"


async def worker(store: str) -> None:
    """Work on the store until the order is complete."""
    app = Lash(store)
    process = app.process(fulfil)
    async with app:
        order = await app.start(process.options(id="order-7"), item="teapot", cents=500)
        say(f"done: {await order.result()}")


def report_step(done: dict[str, Any], step: str) -> None:
    """Report whether a step was executed or replayed."""
    how = "ran" if done["by"] == os.getpid() else "replayed"
    say(f"{how} {step} {done['by']}")


def say(text: str) -> None:
    """Send a message to the parent process."""
    print(text, flush=True)


# --- the parent: starts, kills, starts again, and narrates ---

COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "grey": 90}
PLAIN = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()


def tell(mark: str, colour: str, text: str) -> None:
    """Print one line of the demonstration."""
    print(f"{mark} {text}" if PLAIN else f"\x1b[{COLOURS[colour]}m{mark}\x1b[0m {text}", flush=True)


@contextmanager
def running_worker(store: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker process; it is stopped at the end, also after an error."""
    command = [sys.executable, __file__, store]
    worker = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def narrate(line: str) -> None:
    """Print what a worker did with one step."""
    how, name, pid = line.split()
    if how == "ran":
        tell("  ●", "green", f"{name}: ran in process {pid} and was recorded")
    else:
        tell("  ↺", "blue", f"{name}: answered from the journal, as process {pid} recorded it")


def first_worker(store: str) -> int:
    """Run the order until its second step, then kill the worker; return its process id."""
    with running_worker(store, SLOW="1") as worker:
        assert worker.stdout is not None
        tell("▶", "grey", f"worker {worker.pid} starts order-7 on {store}")
        for line in worker.stdout:
            if line.strip() == "packing":
                return worker.pid
            narrate(line)
    raise SystemExit("the first worker ended by itself")


async def second_worker(store: str) -> None:
    """Let another worker finish the order, and send it the signal it waits for."""
    async with Lash(store, worker=None) as client:
        with running_worker(store) as worker:
            assert worker.stdout is not None
            tell("▶", "grey", f"worker {worker.pid} starts on the same store")
            while line := await asyncio.to_thread(worker.stdout.readline):
                if line.startswith("asking"):
                    tell(
                        "  ◆",
                        "yellow",
                        "the timer is over; it waits for a signal: we send the address",
                    )
                    await client.process_handle("order-7").signal("address", "ann@example.org")
                elif line.startswith("done"):
                    tell("✔", "green", line.strip().removeprefix("done: "))
                else:
                    narrate(line)
            if await asyncio.to_thread(worker.wait) != 0:
                raise SystemExit(f"worker {worker.pid} failed with status {worker.returncode}")


async def timeline(store: str, killed: int) -> None:
    """Draw what the process did."""
    async with Lash(store, worker=None) as client:
        effects = await client.process_handle("order-7").timeline()
    width = shutil.get_terminal_size((100, 24)).columns
    print()
    print(
        draw_timeline(effects, width=min(width, 120), colour=not PLAIN, marks={killed: "kill -9"})
    )


def story(store: str) -> None:
    """Kill a worker in the middle of a step, and let another finish the work."""
    pid = first_worker(store)
    killed, died = time.time_ns() // 1000, time.perf_counter()
    tell("  ✗", "red", f"pack_box: kill -9 {pid}, before its outcome was recorded")
    asyncio.run(second_worker(store))
    took = time.perf_counter() - died
    tell("✔", "green", f"complete {took:.1f} s after the kill; the card was charged once")
    asyncio.run(timeline(store, killed))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(worker(sys.argv[1]))
    else:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # plain terminals too
        with suppress(BrokenPipeError), tempfile.TemporaryDirectory() as folder:
            story(f"sqlite:///{Path(folder) / 'orders.db'}")
