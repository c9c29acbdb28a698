"""Children forked from a server that has imported what they run, so that they start at once.

A new interpreter takes longer to import than many a test takes: kills at random would mostly hit that.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PRELOADED = [
    "pydantic",
    "pylash.stores.drivers.sqlite",
    "pylash.testing",
    "tests.crash.chaos_child",
    "tests.crash.child",
    "tests.crash.rolling_child",
    "tests.crash.stalling_child",
    "tests.crash.torture_child",
    "tests.forks",
]

_forks = get_context("forkserver")
_forks.set_forkserver_preload(PRELOADED)


class Fork:
    """A child that was started. What it prints is in a file, and its errors beside it."""

    def __init__(self, process: ForkServerProcess, printed: Path) -> None:
        self.printed = printed
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it wrote to its standard error."""
        return Path(f"{self.printed}.errors").read_text()

    @property
    def status(self) -> int | None:
        """How it ended, None while it runs."""
        return self._process.exitcode

    def ends(self) -> int | None:
        """Return how it ended, once it has."""
        self._process.join()
        return self.status

    async def wait(self) -> int | None:
        """Return how it ended, once it has."""
        return await asyncio.to_thread(self.ends)

    async def kill(self) -> None:
        """Kill it with SIGKILL, unless it has ended."""
        self._process.kill()
        await self.wait()


def forked(printed: Path, target: Callable[..., Any], *arguments: Any) -> Fork:
    """Call target, a function or a coroutine function, in a child."""
    process = _forks.Process(target=_run, args=(str(printed), target, arguments), daemon=True)
    process.start()
    return Fork(process, printed)


def _run(printed: str, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # The server's own output is that of whichever test came first.
    for stream, path in ((sys.stdout, printed), (sys.stderr, f"{printed}.errors")):
        output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(output, stream.fileno())
    answer = target(*arguments)
    if inspect.iscoroutine(answer):
        asyncio.run(answer)
