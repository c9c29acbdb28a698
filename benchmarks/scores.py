"""Scores: what the values of a run come to.

Rule 1. A rate is the median of its rounds. A ratio of rates is the median of the rounds' ratios,
        because what was measured in the same minute compares best.
Rule 2. Latencies are pooled over the rounds; with fewer than a hundred of them p99 is the largest.
Rule 3. A ratio to a peer says how many times better, for rates, times and latencies alike. A peer
        with its own storage stands beside every database.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from benchmarks.lines import OWN, Line
from benchmarks.measures import Measure
from benchmarks.rounds import Run

ROLES: Final = ("raw", "dbos", "restate")
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


def scores(run: Run) -> list[Score]:
    """Return the score of every line that was measured."""
    return [_score(run, line) for line in run.plan.lines if line in run.values]


def among(
    found: list[Score], role: str, measure: Measure, database: str, parked: int | None = None
) -> Score | None:
    """Return the score with a role in a measure on a database, if it was measured."""
    for score in found:
        line = score.line
        if (line.role, line.measure, line.database) != (role, measure, database):
            continue
        if parked is None or parked == line.load.scopes:
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


def _beside(run: Run, line: Line, role: str) -> Line | None:
    for other in run.values:
        if (other.role, other.measure) != (role, line.measure):
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
        "values": score.values,
    }
