"""What is measured: every line of the table.

Rule 1. A line belongs to one measure and one database, and is one task of one contender.
Rule 2. Rates are compared, so a slow contender may do less work than a quick one. What is not a
        step (starting and finishing a run) is kept out of a peer's time where it would show, and
        is left in ours.
Rule 3. Contenders run with their own defaults, unless the label says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

QUICKER: Final = 5
"""By how much the work is divided for ``--quick`` and to warm up."""


class Measure(Enum):
    """What is measured; the value is the name on the command line."""

    SEQUENTIAL = "A"
    CONCURRENT = "B"
    WAKE = "C"

    @property
    def title(self) -> str:
        """The heading in the table."""
        return _TITLES[self]

    @property
    def unit(self) -> str:
        """What a value counts."""
        return "ms" if self is Measure.WAKE else "steps/s"


_TITLES: Final = {
    Measure.SEQUENTIAL: "A. One run, durable steps one after another (steps/s)",
    Measure.CONCURRENT: "B. 100 runs at once (steps/s)",
    Measure.WAKE: "C. From resolving a wait to its waiter going on (ms)",
}


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one round: ``steps`` in each of ``scopes``, which run at the same time."""

    scopes: int
    steps: int

    @property
    def total(self) -> int:
        """All steps together."""
        return self.scopes * self.steps

    def less(self) -> Load:
        """Return a fraction of this load."""
        return Load(self.scopes, max(1, self.steps // QUICKER))

    def __str__(self) -> str:
        return f"{self.scopes} x {self.steps:,}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: which task of which contender, on which store, with what load."""

    measure: Measure
    contender: str
    store: str
    label: str
    task: str
    load: Load
    role: str = ""
    """``raw`` and ``dbos`` are what others are compared with; ``pylash`` is what targets judge."""

    @property
    def database(self) -> str:
        """The database in words."""
        return "PostgreSQL" if self.store == "postgres" else "SQLite"

    @property
    def child(self) -> str:
        """The name of the process that measures it."""
        return f"{self.contender}-{self.store}"


ONE_BY_ONE: Final = Load(1, 1_000)
MANY: Final = Load(100, 50)
WAKES: Final = Load(1, 60)

_A, _B, _C = Measure.SEQUENTIAL, Measure.CONCURRENT, Measure.WAKE

LINES: Final = (
    Line(_A, "raw", "sqlite", "raw single-row commits", "sequential", ONE_BY_ONE, "raw"),
    Line(_A, "raw", "sqlite", "raw, through a writer thread", "hop", ONE_BY_ONE),
    Line(_A, "pylash", "sqlite", "pylash", "sequential", ONE_BY_ONE, "pylash"),
    Line(_A, "dbos", "sqlite", "DBOS", "sequential", Load(1, 200), "dbos"),
    Line(_A, "dbos", "sqlite", "DBOS, sync API", "sequential_sync", Load(1, 200)),
    Line(_A, "dbos", "sqlite-wal", "DBOS, WAL", "sequential", Load(1, 200)),
    Line(_A, "dbos", "sqlite-wal", "DBOS, WAL, sync API", "sequential_sync", Load(1, 200)),
    Line(_A, "raw", "postgres", "raw single-row commits", "sequential", ONE_BY_ONE, "raw"),
    Line(_A, "pylash", "postgres", "pylash", "sequential", ONE_BY_ONE, "pylash"),
    Line(_A, "dbos", "postgres", "DBOS", "sequential", Load(1, 200), "dbos"),
    Line(_A, "dbos", "postgres", "DBOS, sync API", "sequential_sync", Load(1, 200)),
    Line(_A, "absurd", "postgres", "absurd", "sequential", Load(1, 300)),
    Line(_B, "raw", "sqlite", "raw commits of 100 rows", "concurrent", MANY, "raw"),
    Line(_B, "pylash", "sqlite", "pylash", "concurrent", MANY, "pylash"),
    Line(_B, "dbos", "sqlite", "DBOS", "concurrent", Load(100, 6), "dbos"),
    Line(_B, "dbos", "sqlite-wal", "DBOS, WAL", "concurrent", Load(100, 6)),
    Line(_B, "raw", "postgres", "raw commits of 100 rows", "concurrent", MANY, "raw"),
    Line(_B, "pylash", "postgres", "pylash", "concurrent", MANY, "pylash"),
    Line(_B, "dbos", "postgres", "DBOS", "concurrent", Load(100, 6), "dbos"),
    Line(_B, "absurd", "postgres", "absurd, 8 workers", "concurrent", Load(100, 10)),
    Line(_C, "pylash", "sqlite", "pylash", "wake", WAKES, "pylash"),
    Line(_C, "dbos", "sqlite", "DBOS (polls every 1 s)", "wake", Load(1, 3), "dbos"),
    Line(_C, "pylash", "postgres", "pylash", "wake", WAKES, "pylash"),
    Line(_C, "dbos", "postgres", "DBOS", "wake", Load(1, 20), "dbos"),
    Line(_C, "absurd", "postgres", "absurd (polls every 0.25 s)", "wake", Load(1, 8)),
)


def lines_of(measures: set[Measure]) -> Iterator[Line]:
    """Return the lines of some measures, in the order of the table."""
    return (line for line in LINES if line.measure in measures)
