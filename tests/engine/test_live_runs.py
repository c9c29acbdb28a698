"""The runs that a worker executes: a notification that comes before its run is not lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pylash.engine.runs.run import LiveRun
from pylash.engine.worker.live_runs import LiveRuns


def run(number: int) -> LiveRun:
    return cast("LiveRun", SimpleNamespace(id=f"run-{number}", record=SimpleNamespace(run=number)))


def ignore(_id: str, _output: Any) -> None:
    pass


def test_a_run_that_was_notified_while_it_was_claimed_is_checked() -> None:
    live = LiveRuns(ignore)
    live.note_missed(7, is_claiming=True)
    live.add(run(6))
    assert not live.check_due.is_set()
    live.add(run(7))
    assert live.check_due.is_set()


def test_a_notification_without_a_claim_is_for_the_runs_of_other_workers() -> None:
    live = LiveRuns(ignore)
    live.note_missed(7, is_claiming=True)
    live.note_missed(8, is_claiming=False)
    live.add(run(7))
    live.add(run(8))
    assert not live.check_due.is_set()
