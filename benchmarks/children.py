"""The parent's side of the children.

Rule 1. Every question has a deadline. A child that misses it, fails or dies is stopped, and only
        its own lines are lost.
Rule 2. Children have a session of their own: Ctrl-C reaches the parent alone, which stops them.
        Whatever they started is stopped with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.contender import Facts
from benchmarks.lines import Line, Load

OPEN_SECONDS: Final = 180.0
"""Opening may mean to install a server first."""
STOP_SECONDS: Final = 3.0
ROOT: Final = Path(__file__).resolve().parent.parent


class ChildLost(Exception):
    """The child can take part no more; ``missing`` if it never could."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


class Child:
    """A process that measures one contender on one store."""

    def __init__(self, line: Line, folder: Path) -> None:
        self.name = line.child
        self.facts: Facts = {}
        self._contender = line.contender
        self._store = line.store
        self._folder = folder
        self._log = folder / f"{self.name}.log"
        self._process: Process | None = None

    async def open(self, url: str) -> Self:
        """Start the process and open the contender in it."""
        command = ("-m", "benchmarks.worker", self._contender, self._store, url)
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": _python_path()},
                start_new_session=True,
                limit=1 << 20,
            )
        self.facts = (await self._answer(OPEN_SECONDS))["facts"]
        return self

    async def measure(self, line: Line, load: Load) -> list[float]:
        """Return the values of one round of line."""
        assert self._process is not None
        assert self._process.stdin is not None
        request = {"task": line.task, "load": [load.scopes, load.steps]}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        values: list[float] = (await self._answer(line.measure.about.seconds))["values"]
        return values

    async def stop(self) -> None:
        """End the process, kindly at first."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """End the process and all it started, at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        answer: dict[str, Any]
        try:
            async with asyncio.timeout(seconds):
                answer = json.loads(await self._process.stdout.readline() or "{}")
        except TimeoutError:
            answer = {"failed": f"no answer within {seconds:.0f} s"}
        if "unavailable" in answer:
            raise ChildLost(answer["unavailable"], missing=True)
        if "failed" in answer or not answer:
            self.kill()
            raise ChildLost(f"{answer.get('failed', 'it died')}\n{self._end_of_log()}")
        return answer

    def _end_of_log(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
