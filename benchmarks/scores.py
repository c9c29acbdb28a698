"""Scores: what the values of a run come to.

Rule 1. A rate is the median of its rounds. A ratio of rates is the median of the rounds' ratios,
        because what was measured in the same minute compares best.
Rule 2. Latencies are pooled over the rounds; with fewer than a hundred of them p99 is the largest.
Rule 3. A ratio to a peer says how many times better, for rates, times and latencies alike. A peer
        with its own storage stands beside every database. Agents are compared after as many
        turns.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from benchmarks.lines import FRAMEWORKS, OWN, Line
from benchmarks.measures import Measure
from benchmarks.rounds import Run

ROLES: Final = ("raw", "dbos", "restate", "python", *FRAMEWORKS)
"""Who others are compared with."""


@dataclass(frozen=True, slots=True)
class Score:
    """One line's result. ``p99`` is for latencies, whose ``median`` is their p50."""

    line: Line
    load: str
    values: list[list[float]]
    median: float
    low: float
    high: float
    p99: float | None
    ratios: dict[str, float]
    of_pylash: float | None = None
    """For agents: how many times as much as pylash."""
    stored: float | None = None
    """For a turn of which nothing is stored: how many times as long the stored one takes."""


def scores(run: Run) -> list[Score]:
    """Return the score of every line that was measured."""
    return [_score(run, line) for line in run.plan.lines if line in run.values]


def among(
    found: list[Score], role: str, measure: Measure, database: str, scopes: int | None = None
) -> Score | None:
    """Return the score with a role in a measure on a database, if it was measured.

    ``scopes`` tells lines apart that differ in how many are parked, or how many turns came before.
    """
    for score in found:
        line = score.line
        if (line.role, line.measure, line.database) != (role, measure, database):
            continue
        if scopes is None or scopes == line.load.scopes:
            return score
    return None


def _score(run: Run, line: Line) -> Score:
    values = run.values[line]
    pooled = sorted(chain(*values))
    p99 = pooled[math.ceil(0.99 * len(pooled)) - 1]
    ratios = {role: _ratio(run, line, role) for role in ROLES}
    return Score(
        line=line,
        load=str(run.plan.load(line)),
        values=values,
        median=statistics.median(pooled),
        low=pooled[0],
        high=pooled[-1],
        p99=p99 if line.measure.about.pooled else None,
        ratios={role: ratio for role, ratio in ratios.items() if ratio is not None},
        of_pylash=_of_pylash(run, line),
        stored=_stored(run, line),
    )


def _ratio(run: Run, line: Line, role: str) -> float | None:
    """Return how many times better line is than the line of that role beside it."""
    base = _beside(run, line, role)
    if base is None:
        return None
    about, mine, its = line.measure.about, run.values[line], run.values[base]
    if about.pooled:
        return statistics.median(chain(*its)) / statistics.median(chain(*mine))
    pairs = zip(mine, its, strict=False)  # one may have been lost midway
    times = statistics.median(one / other for (one,), (other,) in pairs)
    return times if about.more_is_better else 1 / times


def _of_pylash(run: Run, line: Line) -> float | None:
    """Return how many times as much a line of an agent measure comes to as pylash's."""
    times = _ratio(run, line, "pylash") if line.measure.of_agents else None
    return None if times is None else 1 / times


def _stored(run: Run, line: Line) -> float | None:
    """Return how many times as long the same turn takes when it is stored."""
    if line.measure is not Measure.BARE_TURN:
        return None
    for other in run.values:
        if (other.child, other.measure, other.before) == (line.child, Measure.TURN, line.before):
            mine, its = run.values[line], run.values[other]
            return statistics.median(chain(*its)) / statistics.median(chain(*mine))
    return None


def _beside(run: Run, line: Line, role: str) -> Line | None:
    for other in run.values:
        if (other.role, other.measure, other.before) != (role, line.measure, line.before):
            continue
        if other.database in {line.database, OWN}:
            return other
    return None


def as_json(score: Score) -> dict[str, Any]:
    """Return a score as it is written to the results."""
    line = score.line
    return {
        "measure": line.measure.value,
        "database": line.database,
        "label": line.label,
        "store": line.store,
        "load": score.load,
        "unit": line.measure.about.unit,
        "median": score.median,
        "min": score.low,
        "max": score.high,
        "p99": score.p99,
        "of_raw": score.ratios.get("raw"),
        "times_dbos": score.ratios.get("dbos"),
        "times_restate": score.ratios.get("restate"),
        "of_python": score.ratios.get("python"),
        "turns_before": line.before,
        "times_frameworks": {role: score.ratios.get(role) for role in FRAMEWORKS},
        "of_pylash": score.of_pylash,
        "stored": score.stored,
        "values": score.values,
    }
