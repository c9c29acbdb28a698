"""Runs a scenario in forks that kill themselves at each crash point: python -m … MAKE_APP STORY [POINT …].

A fork costs a tenth of a new process that imports everything. It prints what each run came to as JSON.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from pylash.testing.crash import Ending, run_scenario
from pylash.testing.kills import CrashPoint
from tests.integrations import crash_apps

AT_ONCE = 6
"""How many stories are played at once: they mostly wait for a dead worker to be noticed."""


def forked(folder: Path, make: Any, story: Any, point: int | None) -> Ending:
    """Run the story in a fork, killed at point, and return how it ended."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:

        def die(reached: CrashPoint) -> None:
            report.write_bytes(msgspec.json.encode(Ending(killed=reached)))
            os.kill(os.getpid(), signal.SIGKILL)

        ending = asyncio.run(
            run_scenario(make(f"sqlite:///{folder}/crash.db"), story, 30, point, die)
        )
        report.write_bytes(msgspec.json.encode(ending))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    ending = msgspec.json.decode(report.read_bytes(), type=Ending)
    assert os.WIFSIGNALED(status) == (ending.killed is not None)
    return ending


def story_of(make: Any, story: Any, point: int | None) -> tuple[Ending, dict[str, Any]]:
    """Return how a run ended that was killed at a point and begun again, and what really ran."""
    with TemporaryDirectory(prefix="pylash-fork-") as name:
        folder = Path(name)
        killed = None if point is None else forked(folder, make, story, point).killed
        ending = forked(folder, make, story, None)
        log = crash_apps.log_of(f"sqlite:///{folder}/crash.db")
        ran = Counter(log.read_text().splitlines() if log.exists() else ())
    shown = None if killed is None else str(killed)
    report = {"killed": shown, "outcome": ending.outcome, "failure": ending.failure, "ran": ran}
    return ending, report


def main() -> None:
    crash_apps.logging = True
    make, story = (getattr(crash_apps, name) for name in sys.argv[1:3])
    calm, report = story_of(make, story, None)
    reports = [report]
    chosen = [int(point) for point in sys.argv[3:]] or [point.number for point in calm.points]
    with get_context("fork").Pool(AT_ONCE) as pool:
        tried = pool.map(partial(story_of, make, story), chosen, chunksize=1)
    reports += [report for _, report in tried]
    print(msgspec.json.encode(reports).decode())


if __name__ == "__main__":
    main()
