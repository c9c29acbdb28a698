"""``pylash replay``: checks recorded runs against the code at hand."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from pylash.app import Lash
from pylash.cli.options import json_option, store_option
from pylash.cli.output import paint, print_json, print_line, wrapped
from pylash.cli.store_options import run
from pylash.cli.views.dry_run import (
    COLOURS,
    WORDS,
    described_replay,
    for_replay,
    recorded_run,
    replaying,
)
from pylash.cli.views.listing import KINDS, NOT_COMPLETED, with_version
from pylash.engine.dry_runs import AT_ONCE, SHOWN, DryRuns, RecordedRun, ReplayReport, Verdict
from pylash.stores.store import SqlStore
from pylash.values.texts import padded, printable

LIVE: Final = ("queued", "running", "waiting", "blocked")
ALL: Final = (1 << 63) - 1
LISTED: Final = 50
"""Up to how many runs those that fit are listed too."""
BAR: Final = 30


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--process", metavar="NAME", help="Only processes of this name.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Only the newest so many runs.")
@click.option("--ended", is_flag=True, help="Replay processes that have ended too.")
@store_option
@json_option
def replay(
    app: str,
    process: str | None,
    limit: int | None,
    ended: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Replay recorded runs with the code of an app, before it is deployed.

    MODULE:APP names a Lash, such as shop:app, or ./shop.py:app for the file shop.py. The store is that
    of --store, else the one in the app's code, else PYLASH_STORE, else sqlite:///pylash.db.

    The code runs from its beginning and gets what is recorded, up to where it would do something new. No effect is
    executed, nothing is written, and workers are not disturbed. Code between effects does run, and the app's deps
    are opened.

    \b
    Each run
      fits        a worker with this code would continue it
      diverges    it would be blocked: the reason names the effect and the difference
      fails       it would end as failed at once
      not loaded  the app lacks the process, or something that the run was started with

    The status is 1 unless all fit. Runs that fit are listed if there are at most 50 runs, and always with --json.

    \b
      pylash replay shop:app --store postgresql://…
      pylash replay shop:app --process order --limit 1000 --json
    """
    chosen, options = for_replay(app, store, as_json)
    with replaying():
        reports = run(_replay(chosen, process, limit, ended))
    if options.as_json:
        print_json({"runs": [_described(one) for one in reports], "summary": _counts(reports)})
    else:
        _print_reports(reports)
    return int(any(one.verdict is not Verdict.FITS for one in reports))


async def _replay(
    app: Lash, process: str | None, limit: int | None, ended: bool
) -> list[ReplayReport]:
    async with app.open_for_replay() as dry_runs:
        runs = await recorded_runs(dry_runs, process, limit, ended)
        return await dry_runs.replay(runs, _progress_bar(len(runs)))


async def recorded_runs(
    dry_runs: DryRuns, process: str | None, limit: int | None, ended: bool
) -> list[RecordedRun]:
    """Return the runs to replay, the newest first. The effects of a turn that has ended are not kept."""
    store = dry_runs.host.store
    assert isinstance(store, SqlStore)  # every store with a URL has these methods
    kinds = KINDS["process"] if process is not None else (*KINDS["process"], *KINDS["turn"])
    most = ALL if limit is None or process is not None else limit
    rows = await store.inspection.runs(LIVE, kinds, most)
    if ended:
        rows += await store.inspection.runs(("completed", *NOT_COMPLETED), KINDS["process"], most)
        rows.sort(key=lambda row: row.created, reverse=True)
    found = [row for row in rows if process in (None, row.target.partition(":")[2])]
    return [recorded_run(row) for row in found[:limit]]


# --- output ---


def _progress_bar(total: int) -> Callable[[int], None]:
    """Return a function that draws how many runs are done on a terminal, if they are many."""
    if total <= AT_ONCE or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return lambda _: None

    def draw(done: int) -> None:
        full = BAR * done // total
        bar = "█" * full + "░" * (BAR - full)
        line = f"replaying {bar} {done:,} of {total:,}"
        shown = line if done < total else " " * len(line)
        click.echo(f"\r{shown}" + ("" if done < total else "\r"), nl=False, err=True)

    draw(0)
    return draw


def _described(report: ReplayReport) -> dict[str, Any]:
    return {
        "id": report.run.id,
        "kind": "turn" if report.run.kind == "queue_drain" else report.run.kind,
        "target": report.run.target,
        "version": report.run.version,
        "status": report.run.status.value,
        "effects": report.effects,
        **described_replay(report),
    }


def _counts(reports: Sequence[ReplayReport]) -> dict[str, int]:
    counted = Counter(one.verdict for one in reports)
    return {"runs": len(reports), **{verdict.value: counted[verdict] for verdict in Verdict}}


def _print_reports(reports: Sequence[ReplayReport]) -> None:
    for report in reports:
        if report.verdict is not Verdict.FITS or len(reports) <= LISTED:
            _print_report(report)
    if not reports:
        print_line("No runs to replay.")
        return
    counts = Counter(one.verdict for one in reports)
    parts = [
        paint(f"{counts[verdict]:,} {WORDS[verdict][1]}", COLOURS[verdict])
        for verdict in Verdict
        if counts[verdict]
    ]
    noun = "run" if len(reports) == 1 else "runs"
    print_line(f"{len(reports):,} {noun}: {', '.join(parts)}")


def _print_report(report: ReplayReport) -> None:
    word = paint(padded(WORDS[report.verdict][0], 10), COLOURS[report.verdict])
    place = f"goes on at {', '.join(report.at[:SHOWN])}" if report.at else ""
    name = report.run.target.partition(":")[2] or report.run.kind
    facts = [report.run.id, with_version(name, report.run.version), place]
    print_line(f"{word}  {printable('  '.join(facts))}".rstrip())
    if report.reason is not None:
        code = "" if report.code is None else f" [{report.code}]"
        print_line(f"{'':12}{wrapped(printable(report.reason + code), 12)}")
