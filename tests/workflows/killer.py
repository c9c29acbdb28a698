"""Runs the story in forks that kill themselves at points, each continued by another: python -m … POINT …"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from pylash.testing.crash import Ending, run_scenario
from tests.workflows.crash_apps import log_of, make_app, story


def forked(url: str, point: int | None) -> Ending:
    """Run the story in a fork, killed at point; return how it ended."""
    report = Path(url.removeprefix("sqlite:///")).with_suffix(".report")
    pid = os.fork()
    if pid == 0:

        def die(reached: Any) -> None:
            report.write_bytes(msgspec.json.encode(Ending(killed=reached)))
            os.kill(os.getpid(), signal.SIGKILL)

        ending = asyncio.run(run_scenario(make_app(url), story, 30, point, die))
        report.write_bytes(msgspec.json.encode(ending))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    ending = msgspec.json.decode(report.read_bytes(), type=Ending)
    assert os.WIFSIGNALED(status) == (ending.killed is not None)
    return ending


def main() -> None:
    """Print what became of the story after each kill, and what tools really did."""
    told = []
    for point in map(int, sys.argv[1:]):
        with TemporaryDirectory(prefix="pylash-fork-") as folder:
            url = f"sqlite:///{folder}/crash.db"
            killed = forked(url, point).killed
            ending = forked(url, None)
            ran = log_of(url).read_text().splitlines()
        shown = None if killed is None else [killed.when, killed.operation, killed.kind]
        told.append([shown, ending.outcome, ending.failure, ran])
    sys.stdout.buffer.write(msgspec.json.encode(told))


if __name__ == "__main__":
    main()
