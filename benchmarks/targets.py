"""The targets: what pylash wants to reach, and whether a run reached it.

Rule 1. A target is a ratio to something measured in the same run, or a size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from benchmarks.lines import FEW_ENDED, FRAMEWORKS, MANY_ENDED, NONE
from benchmarks.measures import Measure
from benchmarks.scores import Score, among

_WORDS: Final = {
    "raw": "of raw commits",
    "dbos": "x DBOS",
    "restate": "x Restate",
    "postgres": "x PostgreSQL alone",
    "none": "x with none parked",
    "first": "x the first turn",
    "few": "x after 1,000 runs",
    "frameworks": "x the best framework",
    "python": "of Python's speed",
}


@dataclass(frozen=True, slots=True)
class Target:
    """What one measure on one database should come to, compared with ``base``.

    Without a base it is the figure itself that should come to ``wanted``.
    """

    name: str
    measure: Measure
    database: str
    base: str
    wanted: float
    scopes: int | None = None
    """Beside how many parked processes, or after how many turns, if that matters."""
    at_most: bool = False

    def reached(self, found: list[Score]) -> float | None:
        """Return what the run came to, if it was measured."""
        score = among(found, "pylash", self.measure, self.database, self.scopes)
        if score is None:
            return None
        if not self.base:
            return score.median
        if self.base in {"none", "first", "few"}:
            return self._grown(score, found)
        if self.base == "postgres":
            alone = among(found, "pylash", self.measure, _PG, self.scopes)
            return None if alone is None else score.median / alone.median
        bases = FRAMEWORKS if self.base == "frameworks" else (self.base,)
        return min((score.ratios[base] for base in bases if base in score.ratios), default=None)

    def _grown(self, score: Score, found: list[Score]) -> float | None:
        """Return how many times what it was with nothing, or little, before it."""
        role = "none" if self.base == "none" else "pylash"
        before = FEW_ENDED if self.base == "few" else 0
        least = among(found, role, self.measure, self.database, before)
        return None if least is None else score.median / least.median

    def told(self, found: list[Score]) -> str:
        """Return a line that says whether it is reached."""
        value = self.reached(found)
        if value is None:
            verdict, shown = "not measured", "-"
        else:
            is_met = value <= self.wanted if self.at_most else value >= self.wanted
            verdict, shown = "reached" if is_met else "MISSED", f"{value:.2f}"
        wanted = f"wanted {'at most ' if self.at_most else ''}{self.wanted:g}"
        words = _WORDS.get(self.base, self.measure.about.unit)
        return f"  {verdict:<13}{self.name:<32}{shown:>7} {words} ({wanted})"

    def as_json(self, found: list[Score]) -> dict[str, Any]:
        """Return the target as it is written to the results."""
        wanted = {"wanted": self.wanted, "at_most": self.at_most, "base": self.base}
        return {**wanted, "is": self.reached(found)}


_LITE, _PG, _RESTATE = "SQLite", "PostgreSQL", "Restate"

TARGETS: Final = (
    Target("SQLite, sequential", Measure.SEQUENTIAL, _LITE, "raw", 0.5),
    Target("SQLite, concurrent", Measure.CONCURRENT, _LITE, "dbos", 50),
    Target("PostgreSQL, sequential", Measure.SEQUENTIAL, _PG, "dbos", 6),
    Target("PostgreSQL, concurrent", Measure.CONCURRENT, _PG, "dbos", 40),
    Target("SQLite, process of one step", Measure.START, _LITE, "dbos", 5),
    Target("PostgreSQL, process of one step", Measure.START, _PG, "dbos", 5),
    Target("SQLite, starts", Measure.STARTS, _LITE, "dbos", 30),
    Target("PostgreSQL, starts", Measure.STARTS, _PG, "dbos", 15),
    Target("10,000 parked, memory", Measure.PARKED_MEMORY, _LITE, "", 0.7, 10_000, at_most=True),
    Target("100,000 parked, memory", Measure.PARKED_MEMORY, _LITE, "", 0.2, 100_000, at_most=True),
    Target(
        "beside 100,000 parked", Measure.PARKED_START, _LITE, "none", 1.5, 100_000, at_most=True
    ),
    Target("SQLite, recovery", Measure.RECOVERY, _LITE, "restate", 3),
    Target("SQLite, recovery", Measure.RECOVERY, _LITE, "dbos", 20),
    Target("PostgreSQL, recovery", Measure.RECOVERY, _PG, "restate", 3),
    Target("PostgreSQL, recovery", Measure.RECOVERY, _PG, "dbos", 20),
    Target("first turn", Measure.TURN, _LITE, "frameworks", 1.25, 0),
    Target("turn after 500", Measure.TURN, _LITE, "frameworks", 20, 500),
    Target("turn after 500, growth", Measure.TURN, _LITE, "first", 2, 500, at_most=True),
    Target("turn after 5,000, growth", Measure.TURN, _LITE, "first", 2, 5_000, at_most=True),
    Target("commits of a turn", Measure.TURN_COMMITS, _LITE, "", 4, 0, at_most=True),
    Target("written by a first turn", Measure.TURN_BYTES, _LITE, "", 36, 0, at_most=True),
    Target("written by a turn after 500", Measure.TURN_BYTES, _LITE, "", 34, 500, at_most=True),
    Target(
        "written after 500, growth", Measure.TURN_BYTES, _LITE, "first", 1.25, 500, at_most=True
    ),
    Target("opened after 10,000", Measure.TURN_OPENED, _LITE, "frameworks", 1.5, 10_000),
    Target("20 tools of 50 ms", Measure.PARALLEL_TOOLS, _LITE, "", 60, at_most=True),
    Target("Lashlang, a loop", Measure.LOOP, NONE, "python", 0.1),
    Target("Lashlang, lists", Measure.LISTS, NONE, "python", 0.1),
    Target("Lashlang, records", Measure.RECORDS, NONE, "python", 0.1),
    Target("Lashlang, calls", Measure.CALLS, NONE, "python", 0.1),
    *(
        Target(f"{database}, {name}", measure, database, "few", 3, MANY_ENDED, at_most=True)
        for database in (_LITE, _PG)
        for name, measure in (
            ("closing", Measure.CLOSING),
            ("takeover", Measure.TAKEOVER),
            ("list", Measure.LISTING),
            ("prune", Measure.PRUNING),
        )
    ),
    Target("Restate, sequential", Measure.ENGINE_SEQUENTIAL, _RESTATE, "restate", 0.67),
    Target("Restate, a turn", Measure.ENGINE_TURN, _RESTATE, "restate", 0.5),
    Target("Restate, 100 at once", Measure.ENGINE_CONCURRENT, _RESTATE, "restate", 0.67),
    Target(
        "Restate, commits of a process",
        Measure.ENGINE_STEP_COMMITS,
        _RESTATE,
        "postgres",
        0.05,
        1,
        at_most=True,
    ),
)
