"""Scores: what the values of a run come to.

Rule 1. A rate is the median of its rounds. A ratio of rates is the median of the rounds' ratios,
        because what was measured in the same minute compares best.
Rule 2. Latencies are pooled over the rounds; with fewer than a hundred of them p99 is the largest.
Rule 3. A ratio to DBOS says how many times better, for rates and latencies alike.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from benchmarks.lines import Line, Measure
from benchmarks.rounds import Run


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
    of_raw: float | None
    times_dbos: float | None


@dataclass(frozen=True, slots=True)
class Target:
    """What pylash wants to reach: a ratio to ``base`` in one measure on one database."""

    name: str
    measure: Measure
    database: str
    base: str
    wanted: float


TARGETS: Final = (
    Target("SQLite, sequential", Measure.SEQUENTIAL, "SQLite", "raw", 0.5),
    Target("SQLite, concurrent", Measure.CONCURRENT, "SQLite", "dbos", 50),
    Target("PostgreSQL, sequential", Measure.SEQUENTIAL, "PostgreSQL", "dbos", 6),
    Target("PostgreSQL, concurrent", Measure.CONCURRENT, "PostgreSQL", "dbos", 40),
)


def scores(run: Run) -> list[Score]:
    """Return the score of every line that was measured."""
    return [_score(run, line) for line in run.plan.lines if line in run.values]


def reached(target: Target, found: list[Score]) -> float | None:
    """Return the ratio that target asks for, if it was measured."""
    for score in found:
        line = score.line
        if (line.role, line.measure, line.database) == ("pylash", target.measure, target.database):
            return score.of_raw if target.base == "raw" else score.times_dbos
    return None


def _score(run: Run, line: Line) -> Score:
    values = run.values[line]
    pooled = sorted(chain(*values))
    return Score(
        line=line,
        load=str(run.plan.load(line)),
        values=values,
        median=statistics.median(pooled),
        low=pooled[0],
        high=pooled[-1],
        p99=pooled[math.ceil(0.99 * len(pooled)) - 1] if line.measure is Measure.WAKE else None,
        of_raw=_ratio(run, line, "raw"),
        times_dbos=_ratio(run, line, "dbos"),
    )


def _ratio(run: Run, line: Line, role: str) -> float | None:
    """Return how line compares with the line of that role beside it."""
    base = _beside(run, line, role)
    if base is None:
        return None
    mine, its = run.values[line], run.values[base]
    if line.measure is Measure.WAKE:
        return statistics.median(chain(*its)) / statistics.median(chain(*mine))
    pairs = zip(mine, its, strict=False)  # one may have been lost midway
    return statistics.median(one / other for (one,), (other,) in pairs)


def _beside(run: Run, line: Line, role: str) -> Line | None:
    for other in run.values:
        if (other.role, other.measure, other.database) == (role, line.measure, line.database):
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
        "unit": line.measure.unit,
        "median": score.median,
        "min": score.low,
        "max": score.high,
        "p99": score.p99,
        "of_raw": score.of_raw,
        "times_dbos": score.times_dbos,
        "values": score.values,
    }
