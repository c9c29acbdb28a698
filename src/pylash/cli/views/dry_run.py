"""Parts that ``replay`` and ``show --app`` share: an app for dry runs, and what one has shown."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, Final

from pylash.app import Lash
from pylash.cli.store_options import StoreOptions, choose_store, engine_of, load_app, root_options
from pylash.durable.scopes import scope_from_text
from pylash.engine.dry_runs import RecordedRun, ReplayReport, Verdict
from pylash.stores.run_lists import RunRow

COLOURS: Final = {
    Verdict.FITS: "green",
    Verdict.DIVERGES: "red",
    Verdict.FAILS: "red",
    Verdict.NOT_LOADED: "yellow",
}
WORDS: Final = {
    Verdict.FITS: ("fits", "fit"),
    Verdict.DIVERGES: ("diverges", "diverge"),
    Verdict.FAILS: ("fails", "fail"),
    Verdict.NOT_LOADED: ("not loaded", "not loaded"),
}
"""What each verdict is called for one run, and in the summary."""


def for_replay(app: str, store: str | None, as_json: bool) -> tuple[Lash, StoreOptions]:
    """Return an app that uses the chosen store, or its own if none is chosen."""
    given, as_json = root_options(store, as_json)
    chosen = load_app(app)
    options = StoreOptions(choose_store(chosen, given), as_json)
    options.secret, options.engine = chosen.secret, engine_of(chosen)
    return chosen, options


@contextmanager
def replaying() -> Iterator[None]:
    """Keep what replayed code logs and prints out of the output."""
    # The failures of replayed code are in the reports.
    log = logging.getLogger("pylash")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        # What the code prints must not get into the JSON.
        with redirect_stdout(sys.stderr):
            yield
    finally:
        log.setLevel(level)


def recorded_run(row: RunRow) -> RecordedRun:
    """Return a run of a list as one to replay."""
    scope = scope_from_text(row.scope)
    return RecordedRun(row.run, row.kind, row.id, row.target, row.status, scope, row.version)


def described_replay(report: ReplayReport) -> dict[str, Any]:
    """Return what a replay has shown, for JSON."""
    return {
        "verdict": report.verdict.value,
        "at": list(report.at),
        "code": report.code,
        "reason": report.reason,
    }
