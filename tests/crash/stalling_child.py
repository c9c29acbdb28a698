"""A worker with two kinds of processes: one that blocks the event loop, and neighbours that make progress."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from contextlib import suppress
from pathlib import Path

from pylash import Lash, ProcessContext, WorkerConfig
from pylash.engine.worker import membership
from pylash.stores.drivers.postgres_connections import SETTINGS
from tests.backends import worker_of

SHORT = WorkerConfig(lease="300ms", renew="60ms", park_after="10s")
STEPS = 8


def app_of(url: str, folder: Path, worker: WorkerConfig | None) -> Lash:
    app = Lash(url, worker=worker)

    @app.process
    async def stalls(ctx: ProcessContext[None]) -> None:
        """Hold the event loop until the test says that another worker may have this run."""
        await ctx.step(one)
        number = announced(folder, f"{os.getpid()} {len(worker_of(app).live)}")
        while not (folder / f"release-{number}").exists():
            time.sleep(0.005)  # noqa: ASYNC251 - that is what it does wrong

    @app.process
    async def neighbour(ctx: ProcessContext[None]) -> int:
        for n in range(STEPS):
            await ctx.step(two, n)
        return STEPS

    async def one() -> int:
        return 1

    async def two(n: int) -> int:
        await asyncio.sleep(0.05)
        return n

    return app


def announced(folder: Path, text: str) -> int:
    """Write a text to the next free ``stall-N``, whole and once; return N.

    Two workers may be here at once: one that was slow may have lost the run to the other already.
    """
    written = folder / f"written-{os.getpid()}"
    written.write_text(text)
    for number in itertools.count():
        with suppress(FileExistsError):
            (folder / f"stall-{number}").hardlink_to(written)
            written.unlink()
            return number
    raise AssertionError("there are numbers without end")


async def work(url: str, folder: str) -> None:
    """Work until killed."""
    membership.UNDERTAKER_SECONDS = 0.05  # type: ignore[misc]
    SETTINGS["idle_in_transaction_session_timeout"] = "200ms"
    async with app_of(url, Path(folder), SHORT):
        await asyncio.Event().wait()
