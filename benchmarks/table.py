"""The table, as people read it: at most 100 columns.

Rule 1. Nothing is computed here.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.lines import Measure
from benchmarks.scores import TARGETS, Score, reached

_NOTES: Final = """\
Medians of the rounds, which all contenders took in turn. Load: runs x steps a round, for C samples.
of raw: share of the same database's raw commits.  x DBOS: times better than DBOS on that database.
C pools all samples; p99 of fewer than 100 is the largest. Waiter and resolver share a process."""


def report(found: list[Score], facts: dict[str, Any], *, quick: bool) -> str:
    """Return the whole report."""
    parts = [_facts(facts)]
    for measure in Measure:
        among = [score for score in found if score.line.measure is measure]
        if among:
            parts.append(_section(measure, among))
    parts += [_NOTES, _targets(found, quick=quick)]
    return "\n\n".join(parts)


def _facts(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    machine = f"{facts['cores']} cores, {facts['system']}, disk {facts['file_system']}"
    syncs = [f"  {child}: {_pairs(pairs)}" for child, pairs in facts["sync"].items()]
    return "\n".join([machine, versions, "Sync settings, as read from the connections:", *syncs])


def _pairs(pairs: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs.items())


def _section(measure: Measure, among: list[Score]) -> str:
    is_wake = measure is Measure.WAKE
    heading = ("p50", "p99", "min .. max") if is_wake else ("median", "", "min .. max")
    rows = [measure.title, _row(("", "", "load", *heading, "of raw", "x DBOS"))]
    last = ""
    for score in among:
        database = "" if score.line.database == last else score.line.database
        last = score.line.database
        rows.append(_row((database, score.line.label, _load(score), *_numbers(score))))
    return "\n".join(rows)


def _load(score: Score) -> str:
    return str(sum(map(len, score.values))) if score.p99 is not None else score.load


def _numbers(score: Score) -> tuple[str, ...]:
    show = _milliseconds if score.p99 is not None else _rate
    return (
        show(score.median),
        "" if score.p99 is None else show(score.p99),
        f"{show(score.low)} .. {show(score.high)}",
        _times(score.of_raw),
        _times(score.times_dbos),
    )


def _row(cells: tuple[str, ...]) -> str:
    database, label, load, middle, tail, spread, of_raw, times = cells
    return (
        f"{database:<11}{label:<29}{load:>9}{middle:>9}{tail:>9}{spread:>18}{of_raw:>7}{times:>8}"
    ).rstrip()


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _times(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.1:
        return f"{value:.3f}"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _targets(found: list[Score], *, quick: bool) -> str:
    rows = ["Targets (a quick run is too coarse to judge them):" if quick else "Targets:"]
    for target in TARGETS:
        ratio = reached(target, found)
        if ratio is None:
            verdict, is_now = "not measured", "-"
        else:
            verdict, is_now = "reached" if ratio >= target.wanted else "MISSED", f"{ratio:.2f}"
        of = "of raw commits" if target.base == "raw" else "x DBOS"
        rows.append(f"  {verdict:<13}{target.name:<24}{is_now:>7} {of} (wanted {target.wanted:g})")
    return "\n".join(rows)
