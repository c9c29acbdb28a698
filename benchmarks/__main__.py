"""``python -m benchmarks``: measure, print the table, write the results.

Rule 1. The table goes to standard output, progress to standard error.
Rule 2. However the run ends, no process and no database is left behind.
Rule 3. The exit status says whether everything was measured, not whether targets were reached.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.databases import RESULTS, file_system, postgres_server, work_folder
from benchmarks.lines import lines_of
from benchmarks.measures import Measure, named
from benchmarks.rounds import Plan, Run, run_rounds, say
from benchmarks.scores import as_json, scores
from benchmarks.table import report
from benchmarks.targets import TARGETS

ROUNDS: Final = 5
QUICK_ROUNDS: Final = 2
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


def main() -> int:
    """Run the benchmarks."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        run = _measured(options)
    except KeyboardInterrupt:
        say("stopped")
        return 130
    found = scores(run)
    facts = _facts(run)
    print(report(found, facts, quick=options.quick))
    for child, reason in (run.missing | run.failed).items():
        print(f"!!! LEFT OUT: {child}: {reason.splitlines()[0]}")
    results = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "rounds": run.plan.rounds,
        "facts": facts,
        "lines": [as_json(score) for score in found],
        "targets": [{"name": target.name, **target.as_json(found)} for target in TARGETS],
        "left_out": run.missing | run.failed,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1) + "\n")
    say(f"written to {options.json}")
    return 1 if run.failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds with little work")
    parser.add_argument(
        "--only",
        type=measures,
        default=set(Measure),
        metavar="A,B,C",
        help="measure only these (D is D1 and D2)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=RESULTS / "latest.json",
        metavar="PATH",
        help="where the results go (default: benchmarks/results/latest.json)",
    )
    return parser.parse_args()


def measures(text: str) -> set[Measure]:
    try:
        return named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _measured(options: argparse.Namespace) -> Run:
    lines = tuple(lines_of(options.only, quick=options.quick))
    with work_folder() as folder:
        if file_system(folder) in IN_MEMORY:
            say("!!! THIS FOLDER IS IN MEMORY: nothing is synced, and the figures mean nothing")
        with postgres_server(folder) as server:
            rounds = QUICK_ROUNDS if options.quick else ROUNDS
            return asyncio.run(run_rounds(Plan(lines, rounds, options.quick, folder, server)))


def _facts(run: Run) -> dict[str, Any]:
    """Return what the figures depend on: the machine, the versions, how everything syncs."""
    versions = {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
    if run.plan.server is not None:
        versions["PostgreSQL"] = run.server_version
    for facts in run.facts.values():
        versions |= facts["versions"]
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "file_system": file_system(RESULTS),
        "versions": versions,
        "sync": {child: facts["sync"] for child, facts in run.facts.items()},
        "load_averages": run.load_averages,
    }


if __name__ == "__main__":
    sys.exit(main())
