"""The table, as people read it: at most 100 columns.

Rule 1. Nothing is computed here.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.measures import Measure
from benchmarks.scores import Score
from benchmarks.targets import TARGETS

_NOTES: Final = """\
Medians of the rounds, which all contenders took in turn. Load: runs x steps a round, callers x
starts in D2; where samples are pooled, their number; p99 of fewer than 100 is the largest.
of raw: share of the same database's raw commits.  x DBOS, x Restate: times better than these.
C: waiter and resolver share a process.  G: less than 1,000 processes are scaled to 1,000.
I to L: agents on SQLite.  x pylash: how many times as much as pylash.  stored: how many times as
long the same turn takes in I1."""


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
    syncs = [f"  {child}: {_pairs(pairs)}" for child, pairs in facts["sync"].items() if pairs]
    return "\n".join([machine, versions, "Sync settings, as read from the connections:", *syncs])


def _pairs(pairs: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs.items())


def _section(measure: Measure, among: list[Score]) -> str:
    figures = ("p50", "p99") if measure.about.pooled else ("median", "")
    rows = [measure.about.title]
    rows.append(_row(("", "", "load", *figures, "min .. max", *_headings(measure))))
    last = ""
    for score in among:
        group = "" if score.line.group == last else score.line.group
        last = score.line.group
        numbers = (*_numbers(score), *_ratios(score))
        rows.append(_row((group, score.line.label, _load(score), *numbers)))
    return "\n".join(rows)


def _headings(measure: Measure) -> tuple[str, str]:
    if measure.of_agents:
        return "x pylash", "stored" if measure is Measure.BARE_TURN else ""
    if measure.of_programs:
        return "of Python", ""
    if measure.of_history:
        return "", ""
    if measure.of_engines:
        return "of hand", ""
    return ("x Rest." if measure.of_processes else "of raw"), "x DBOS"


def _ratios(score: Score) -> tuple[str, str]:
    measure = score.line.measure
    if measure.of_agents:
        stored = _times(score.stored) if measure is Measure.BARE_TURN else ""
        return _times(score.of_pylash), stored
    if measure.of_programs:
        return _times(score.ratios.get("python")), ""
    if measure.of_history:
        return "", ""
    if measure.of_engines:
        return _times(score.ratios.get("restate")), ""
    base = "restate" if measure.of_processes else "raw"
    return _times(score.ratios.get(base)), _times(score.ratios.get("dbos"))


def _load(score: Score) -> str:
    return str(sum(map(len, score.values))) if score.p99 is not None else score.load


def _numbers(score: Score) -> tuple[str, ...]:
    show = _rate if score.line.measure.about.more_is_better else _amount
    return (
        show(score.median),
        "" if score.p99 is None else show(score.p99),
        f"{show(score.low)} .. {show(score.high)}",
    )


def _row(cells: tuple[str, ...]) -> str:
    database, label, load, middle, tail, spread, first, second = cells
    return (
        f"{database:<12}{label:<28}{load:>10}{middle:>8}{tail:>8}{spread:>17}{first:>9}{second:>8}"
    ).rstrip()


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _amount(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _times(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.1:
        return f"{value:.3f}"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _targets(found: list[Score], *, quick: bool) -> str:
    heading = "Targets (a quick run is too coarse to judge them):" if quick else "Targets:"
    return "\n".join([heading, *(target.told(found) for target in TARGETS)])
