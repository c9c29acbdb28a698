"""Programs that are started in order to be killed, and what they say before.

Rule 1. A program says what has happened to it in lines of its standard output: what, and when by
        the clock that all processes of this machine share.
Rule 2. What it says is read as it comes; waiting for it has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Final, Self

OPEN: Final = "open"
READY: Final = "ready"
FIRST: Final = "first"
DONE: Final = "done"

SAY_SECONDS: Final = 100.0


def say(what: str) -> None:
    """Tell whoever started this program that something has happened."""
    print(f"{what} {time.perf_counter()!r}", flush=True)


class Countdown:
    """Says something once it has been called often enough."""

    def __init__(self, what: str, left: int) -> None:
        self._what = what
        self._left = left

    def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            say(self._what)


class Program:
    """A program that runs, and what it has said."""

    def __init__(self, process: Process, started: float) -> None:
        self._process = process
        self.started = started

    @classmethod
    async def start(cls, module: str, *arguments: object) -> Self:
        """Run a module; its time begins here."""
        started = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *map(str, arguments)), stdin=DEVNULL, stdout=PIPE
        )
        return cls(process, started)

    async def said(self, what: str) -> float:
        """Wait until the program has said something; return when that happened."""
        assert self._process.stdout is not None
        async with asyncio.timeout(SAY_SECONDS):
            while line := (await self._process.stdout.readline()).decode():
                head, _, at = line.rpartition(" ")
                if head == what:
                    return float(at)
        raise RuntimeError(f"the program ended before it said {what!r}")

    async def kill(self) -> None:
        """End it as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()


async def recovered(worker: Program, processes: int) -> float:
    """Return the seconds from starting worker to its being done with a thousand processes.

    With fewer of them, what comes before the first goes on is not multiplied.
    """
    first = await worker.said(FIRST)
    done = await worker.said(DONE)
    return first - worker.started + (done - first) * 1_000 / processes
