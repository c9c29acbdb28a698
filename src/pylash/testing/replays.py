"""Replays of exported runs in tests."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pylash.app import Lash
from pylash.durable.runs import RunState
from pylash.durable.scopes import scope_from_text
from pylash.engine.dry_runs import DryRuns, RecordedRun, ReplayReport, Verdict
from pylash.stores.store import SqlStore
from pylash.values.process_errors import ExportInvalid

MOST: Final = (1 << 63) - 1


class ReplayFailed(AssertionError):
    """A run in the file does not fit the code; ``reports`` has one report for each run."""

    def __init__(self, reports: list[ReplayReport]) -> None:
        self.reports = reports
        bad = [one for one in reports if one.verdict is not Verdict.FITS]
        super().__init__("\n".join(map(_line, bad)))


def _line(report: ReplayReport) -> str:
    code = "" if report.code is None else f" [{report.code}]"
    verdict = report.verdict.value.replace("_", " ")
    return f"{verdict}  {report.run.id}: {report.reason or ''}{code}"


def replay(app: Lash, file: str | Path) -> list[ReplayReport]:
    """Replay the runs in a file of ``pylash export`` with the code of an app; nothing executes and nothing is written.

    Returns a report for each run: a process, also if it has ended, and a turn that has not. Raises ReplayFailed, which is an
    AssertionError with the text of ``pylash replay``, if a worker with this code would block or fail one. It is a plain
    function, so that it can be called in any test, also in an async one. The app must not be open.

    >>> def test_deployed_orders_go_on():
    ...     replay(app, "tests/histories/order-7.json")
    """
    # In a thread, because the caller may run an event loop, and the code of the app needs one.
    with ThreadPoolExecutor(1) as thread:
        reports = thread.submit(asyncio.run, _replay(app, file)).result()
    if any(one.verdict is not Verdict.FITS for one in reports):
        raise ReplayFailed(reports)
    return reports


async def _replay(app: Lash, file: str | Path) -> list[ReplayReport]:
    async with app.open_for_replay(file) as dry_runs:
        runs = await _recorded_runs(dry_runs)
        if not runs:
            raise ExportInvalid(
                str(file),
                "it has no run to replay, only turns that have ended: export a session whose turn is open",
            )
        return await dry_runs.replay(runs)


async def _recorded_runs(dry_runs: DryRuns) -> list[RecordedRun]:
    """Return the runs in the store. The effects of a turn that has ended are not kept."""
    store = dry_runs.host.store
    assert isinstance(store, SqlStore)  # the one in memory
    rows = await store.inspection.runs(tuple(RunState), ("process", "turn", "queue_drain"), MOST)
    return [
        RecordedRun(row.run, row.kind, row.id, row.target, row.status, scope_from_text(row.scope))
        for row in rows
        if row.kind == "process" or row.settled is None
    ]
