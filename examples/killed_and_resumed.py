"""A durable scope of three steps is killed with SIGKILL in the middle, and resumed.

Run it with ``make demo``. The parent starts this very file as a worker process, kills it while the
second step is running, and starts it again on the same store: the first step is answered from the
journal, the second runs again because its outcome was never recorded, and the third follows.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pylash import JournalHost, ProcessScope, durable_step, open_host

ORDER = ProcessScope("order-7")


# --- the worker: an ordinary program ---


async def charge_card(cents: int) -> dict[str, Any]:
    """Charge the card: this must never happen twice once it is recorded."""
    return {"charged": cents, "by": os.getpid()}


async def pack_box(item: str) -> dict[str, Any]:
    """Pack the box; the first worker is killed in here."""
    if os.environ.get("SLOW"):
        say("packing")
        await asyncio.sleep(60)
    return {"packed": item, "by": os.getpid()}


async def send_mail(to: str) -> dict[str, Any]:
    """Tell the customer."""
    return {"mailed": to, "by": os.getpid()}


async def run_order(host: JournalHost) -> None:
    """Run the order: every step crosses the boundary under a name of its own."""
    boundary = host.scoped(ORDER)
    for step, given in ((charge_card, 500), (pack_box, "teapot"), (send_mail, "ann")):
        done = await durable_step(boundary, step.__name__, step, given)
        how = "ran" if done["by"] == os.getpid() else "replayed"
        say(f"{how} {step.__name__} {done['by']}")


async def worker(store: str) -> None:
    """Open the store and run the order to its end."""
    async with open_host(store) as host:
        await run_order(host)


def say(text: str) -> None:
    """Tell the parent process."""
    print(text, flush=True)


# --- the parent: starts, kills, starts again, and narrates ---

COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "grey": 90}
PLAIN = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()


def tell(mark: str, colour: str, text: str) -> None:
    """Print one line of the story."""
    print(f"{mark} {text}" if PLAIN else f"\x1b[{COLOURS[colour]}m{mark}\x1b[0m {text}", flush=True)


@contextmanager
def started(store: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker process; it ends with the story, however that ends."""
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
    """Tell what a worker did with one step."""
    how, name, pid = line.split()
    if how == "ran":
        tell("  ●", "green", f"{name}: ran in process {pid} and was recorded")
    else:
        tell("  ↺", "blue", f"{name}: answered from the journal, as process {pid} recorded it")


def story(store: str) -> None:
    """Kill a worker in the middle of a step, and let another finish the work."""
    with started(store, SLOW="1") as first:
        assert first.stdout is not None
        tell("▶", "grey", f"worker {first.pid} starts order-7 on {store}")
        for line in first.stdout:
            if line.strip() == "packing":
                break
            narrate(line)
    died = time.perf_counter()
    tell("  ✗", "red", f"pack_box: kill -9 {first.pid}, before its outcome was recorded")
    with started(store) as second:
        assert second.stdout is not None
        tell("▶", "grey", f"worker {second.pid} starts on the same store")
        for line in second.stdout:
            narrate(line)
        if second.wait() != 0:
            raise SystemExit(f"worker {second.pid} failed with status {second.returncode}")
    took = time.perf_counter() - died
    tell(
        "✔", "green", f"order-7 is complete {took:.1f} s after the kill; the card was charged once"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(worker(sys.argv[1]))
    else:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # plain terminals too
        with suppress(BrokenPipeError), tempfile.TemporaryDirectory() as folder:
            story(f"sqlite:///{Path(folder) / 'orders.db'}")
