"""What is measured: every line of the table.

Rule 1. A line belongs to one measure and one database, and is one task of one contender.
Rule 2. Rates are compared, so a slow contender may do less work than a quick one. What is not a
        step (starting and finishing a run) is kept out of a peer's time where it would show, and
        is left in ours.
Rule 3. Contenders run with their own defaults, unless the label says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.measures import Measure
from benchmarks.written import CAN_COUNT_BYTES

QUICKER: Final = 5
"""By how much the work is divided for ``--quick`` and to warm up."""

OWN: Final = "its own"
"""The database of a contender that brings its storage with it."""


NONE: Final = "none"
"""The database of programs that only compute."""

RESTATE: Final = "restate"
"""The store of an app that Restate executes: a PostgreSQL database, and a server of Restate."""

_DATABASES: Final = {
    "postgres": "PostgreSQL",
    RESTATE: "Restate",
    "own": OWN,
    "lashlang": NONE,
    "python": NONE,
}


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one round: ``steps`` in each of ``scopes``, which run at the same time.

    For D2 these are starts of callers; for F samples beside so many parked processes; for I to L
    samples after so many turns, for N after so many ended runs.
    """

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
        return f"{self.scopes:,} x {self.steps:,}"


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
    """Others are compared with ``raw``, ``dbos`` and ``restate``; targets judge ``pylash``, which
    is compared with the agent frameworks, too."""
    quick: Load | None = None
    """The load of a quick run, if it is not a fraction."""
    in_quick: bool = True

    @property
    def database(self) -> str:
        """The database in words."""
        return _DATABASES.get(self.store, "SQLite")

    @property
    def before(self) -> int | None:
        """How many turns came before, where agents are measured."""
        return self.load.scopes if self.measure.of_agents else None

    @property
    def group(self) -> str:
        """What this line shares with those it is compared with."""
        return self.database if self.before is None else f"after {self.before}"

    @property
    def child(self) -> str:
        """The name of the process that measures it."""
        return f"{self.contender}-{self.store}"


def lines_of(measures: set[Measure], *, quick: bool) -> Iterator[Line]:
    """Return the lines of some measures, in the order in which they are measured."""
    lines = (
        *STEP_LINES,
        *PROCESS_LINES,
        *AGENT_LINES,
        *PROGRAM_LINES,
        *HISTORY_LINES,
        *ENGINE_LINES,
    )
    wanted = measures if CAN_COUNT_BYTES else measures - {Measure.TURN_BYTES}
    return (line for line in lines if line.measure in wanted and (line.in_quick or not quick))


ONE_BY_ONE: Final = Load(1, 1_000)
MANY: Final = Load(100, 50)
WAKES: Final = Load(1, 60)
DBOS_POLLS: Final = "DBOS (polls every 1 s)"
ABSURD_POLLS: Final = "absurd (polls every 0.25 s)"

_A, _B, _C = Measure.SEQUENTIAL, Measure.CONCURRENT, Measure.WAKE

STEP_LINES: Final = (
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
    Line(_C, "dbos", "sqlite", DBOS_POLLS, "wake", Load(1, 3), "dbos"),
    Line(_C, "pylash", "postgres", "pylash", "wake", WAKES, "pylash"),
    Line(_C, "dbos", "postgres", "DBOS", "wake", Load(1, 20), "dbos"),
    Line(_C, "absurd", "postgres", ABSURD_POLLS, "wake", Load(1, 8)),
)

STARTS: Final = Load(1, 200)
CALLERS: Final = Load(100, 40)
SIGNALS: Final = Load(1, 60)
KILLED: Final = Load(1_000, 10)
SOME_KILLED, FEW_KILLED = Load(60, 10), Load(20, 10)
REPLAYED: Final = Load(3, 1_000)
REPLAYED_LESS: Final = Load(2, 1_000)

_D1, _D2, _E1, _E2 = Measure.START, Measure.STARTS, Measure.SIGNAL_LIVE, Measure.SIGNAL_PARKED
_F1, _F2, _F3 = Measure.PARKED_MEMORY, Measure.PARKED_WAKE, Measure.PARKED_START
_G, _H = Measure.RECOVERY, Measure.REPLAY


def _crowd(store: str, *counts: int, in_quick: bool = True) -> Iterator[Line]:
    """Return the lines of F for so many parked processes, a larger crowd after a smaller one."""
    tasks = ((_F1, "parked_memory", 1), (_F2, "parked_wake", 40), (_F3, "parked_start", 200))
    for count in counts:
        label = f"pylash, {count:,} parked" if count else "pylash, none parked"
        role = "pylash" if count else "none"
        for measure, task, samples in tasks if count else tasks[-1:]:
            load = Load(count, samples)
            yield Line(measure, "pylash-crowd", store, label, task, load, role, load, in_quick)


PROCESS_LINES: Final = (
    Line(_D1, "pylash-processes", "sqlite", "pylash", "start", STARTS, "pylash"),
    Line(_D1, "dbos", "sqlite", "DBOS", "start", Load(1, 60), "dbos"),
    Line(_D1, "dbos", "sqlite-wal", "DBOS, WAL", "start", Load(1, 60)),
    Line(_D1, "pylash-processes", "postgres", "pylash", "start", STARTS, "pylash"),
    Line(_D1, "dbos", "postgres", "DBOS", "start", Load(1, 60), "dbos"),
    Line(_D1, "absurd", "postgres", ABSURD_POLLS, "start", Load(1, 6)),
    Line(_D1, "restate", "own", "Restate, a service", "start", Load(1, 150), "restate"),
    Line(_D2, "pylash-processes", "sqlite", "pylash", "starts", CALLERS, "pylash"),
    Line(_D2, "dbos", "sqlite", "DBOS", "starts", Load(100, 2), "dbos"),
    Line(_D2, "dbos", "sqlite-wal", "DBOS, WAL", "starts", Load(100, 2)),
    Line(_D2, "pylash-processes", "postgres", "pylash", "starts", CALLERS, "pylash"),
    Line(_D2, "dbos", "postgres", "DBOS", "starts", Load(100, 2), "dbos"),
    Line(_D2, "absurd", "postgres", "absurd, 8 workers", "starts", Load(100, 5)),
    Line(_D2, "restate", "own", "Restate, a service", "starts", Load(100, 8), "restate"),
    Line(_E1, "pylash-processes", "sqlite", "pylash", "signal_live", SIGNALS, "pylash"),
    Line(_E1, "dbos", "sqlite", DBOS_POLLS, "signal_live", Load(1, 3), "dbos"),
    Line(_E1, "pylash-processes", "postgres", "pylash", "signal_live", SIGNALS, "pylash"),
    Line(_E1, "dbos", "postgres", "DBOS", "signal_live", Load(1, 20), "dbos"),
    Line(_E1, "restate", "own", "Restate awakeable", "awakeable_live", Load(1, 30), "restate"),
    Line(_E1, "restate", "own", "Restate promise", "signal_live", Load(1, 30)),
    Line(_E2, "pylash-parked", "sqlite", "pylash", "signal_parked", SIGNALS, "pylash"),
    Line(_E2, "pylash-parked", "postgres", "pylash", "signal_parked", SIGNALS, "pylash"),
    Line(_E2, "absurd", "postgres", ABSURD_POLLS, "signal_parked", Load(1, 6)),
    Line(_E2, "restate", "own", "Restate awakeable", "awakeable_parked", Load(1, 30), "restate"),
    Line(_E2, "restate", "own", "Restate promise", "signal_parked", Load(1, 30)),
    *_crowd("sqlite", 0, 10_000),
    *_crowd("sqlite", 100_000, in_quick=False),
    *_crowd("postgres", 0, 10_000, in_quick=False),
    Line(_G, "pylash-killed", "sqlite", "pylash", "recovery", KILLED, "pylash", KILLED),
    Line(_G, "dbos-killed", "sqlite", "DBOS, scaled", "recovery", SOME_KILLED, "dbos", FEW_KILLED),
    Line(_G, "pylash-killed", "postgres", "pylash", "recovery", KILLED, "pylash", KILLED),
    Line(
        _G, "dbos-killed", "postgres", "DBOS, scaled", "recovery", SOME_KILLED, "dbos", FEW_KILLED
    ),
    Line(_G, "restate", "own", "Restate", "recovery", KILLED, "restate", Load(100, 10)),
    Line(_H, "pylash-parked", "sqlite", "pylash", "replay", REPLAYED, "pylash", REPLAYED),
    Line(_H, "dbos", "sqlite", DBOS_POLLS, "replay", REPLAYED_LESS, "dbos", in_quick=False),
    Line(_H, "pylash-parked", "postgres", "pylash", "replay", REPLAYED, "pylash", REPLAYED),
    Line(_H, "dbos", "postgres", DBOS_POLLS, "replay", REPLAYED_LESS, "dbos", in_quick=False),
    Line(_H, "restate", "own", "Restate", "replay", REPLAYED, "restate", Load(1, 1_000)),
)

PYDANTIC, PYDANTIC_DBOS = "pydantic-ai", "pydantic-ai-dbos"
LANGGRAPH, OPENAI = "langgraph", "openai-agents"
FRAMEWORKS: Final = (PYDANTIC, PYDANTIC_DBOS, LANGGRAPH, OPENAI)
"""The roles of the peers that pylash's agents are compared with."""

_AGENTS: Final = (
    ("pylash-agent", "pylash, model of pydantic-ai", "pylash"),
    ("pydantic-agent", "pydantic-ai, a row a session", PYDANTIC),
    ("pydantic-dbos-agent", "pydantic-ai with DBOS", PYDANTIC_DBOS),
    ("langgraph-agent", "LangGraph, SQLite saver", LANGGRAPH),
    ("openai-agent", "OpenAI Agents, session", OPENAI),
)


def _agents(measure: Measure, task: str, *loads: Load) -> Iterator[Line]:
    """Return the lines of an agent measure: all contenders with one load after another."""
    for load in loads:
        for contender, label, role in _AGENTS:
            yield Line(measure, contender, "sqlite", label, task, load, role)


def _opened(*loads: Load) -> Iterator[Line]:
    """Return the lines of I4: of all but the peer that keeps its sessions in memory alone."""
    for line in _agents(Measure.TURN_OPENED, "opened", *loads):
        if line.role != PYDANTIC_DBOS:
            yield replace(line, in_quick=False)


def _long_turns(load: Load) -> Line:
    """Return the line of I1 for a very long session of pylash."""
    contender, label, role = _AGENTS[0]
    return Line(Measure.TURN, contender, "sqlite", label, "turns", load, role, in_quick=False)


AGENT_LINES: Final = (
    *_agents(Measure.TURN, "turns", Load(0, 30), Load(100, 15), Load(500, 8)),
    _long_turns(Load(5_000, 15)),
    *_agents(Measure.TURN_BYTES, "turn_bytes", Load(0, 40), Load(100, 20), Load(500, 10)),
    *_agents(Measure.TURN_COMMITS, "turn_commits", Load(0, 20), Load(100, 10), Load(500, 5)),
    *_opened(Load(0, 10), Load(10_000, 5)),
    *_agents(Measure.PARALLEL_TOOLS, "parallel_tools", Load(0, 6)),
    *_agents(Measure.APPROVAL, "approval", Load(0, 20)),
    *_agents(Measure.BARE_TURN, "bare", Load(0, 30)),
)

_PROGRAMS: Final = (
    (Measure.LOOP, "loop"),
    (Measure.LISTS, "lists"),
    (Measure.RECORDS, "records"),
    (Measure.CALLS, "calls"),
)

PROGRAM_LINES: Final = tuple(
    Line(measure, "computing", store, label, task, Load(1, 10), role)
    for measure, task in _PROGRAMS
    for store, label, role in (("lashlang", "Lashlang", "pylash"), ("python", "Python", "python"))
)

FEW_ENDED, MANY_ENDED = 1_000, 1_000_000

_PAST: Final = (
    (Measure.CLOSING, "closing", 10),
    (Measure.TAKEOVER, "takeover", 20),
    (Measure.LISTING, "listing", 20),
    (Measure.PRUNING, "pruning", 5),
)

HISTORY_LINES: Final = tuple(
    Line(
        measure,
        "pylash-history",
        store,
        f"pylash, {ended:,} ended",
        task,
        Load(ended, samples),
        "pylash",
        in_quick=ended == FEW_ENDED,
    )
    for ended in (FEW_ENDED, MANY_ENDED)
    for store in ("sqlite", "postgres")
    for measure, task, samples in _PAST
)

_R1, _R2, _R3 = Measure.ENGINE_SEQUENTIAL, Measure.ENGINE_TURN, Measure.ENGINE_CONCURRENT
_R4, _R5, _R6 = (
    Measure.ENGINE_SIGNAL,
    Measure.ENGINE_STEP_COMMITS,
    Measure.ENGINE_TURN_COMMITS,
)


def _engines(measure: Measure, task: str, load: Load, label: str = "pylash") -> Iterator[Line]:
    """Return the lines of one app on PostgreSQL alone and on Restate."""
    for store in ("postgres", RESTATE):
        yield Line(measure, "pylash-engine", store, label, task, load, "pylash")


ENGINE_LINES: Final = (
    *_engines(_R1, "sequential", Load(1, 500)),
    Line(_R1, "restate", "own", "by hand, with a serde", "sequential", Load(1, 500), "restate"),
    *_engines(_R2, "turns", Load(1, 30)),
    Line(_R2, "restate", "own", "by hand, an object", "turns", Load(1, 30), "restate"),
    *_engines(_R3, "concurrent", MANY),
    Line(_R3, "restate", "own", "by hand, with a serde", "concurrent", MANY, "restate"),
    *_engines(_R4, "signal_parked", Load(1, 30)),
    Line(
        _R4, "restate", "own", "by hand, an awakeable", "awakeable_parked", Load(1, 30), "restate"
    ),
    *_engines(_R5, "step_commits", ONE_BY_ONE, "pylash, one process"),
    *_engines(_R5, "apart_commits", MANY, "pylash, 100 at once"),
    *_engines(_R6, "turn_commits", Load(1, 50)),
)
