"""What can be measured, and what the parent must know about each measure.

Rule 1. The name of a measure is a letter, or a letter and a digit where one scenario has several
        figures; the letter alone means all of them on the command line.
Rule 2. A measure gives samples, which are pooled, or one figure a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final


class Measure(Enum):
    """What is measured; the value is the name on the command line."""

    SEQUENTIAL = "A"
    CONCURRENT = "B"
    WAKE = "C"
    START = "D1"
    STARTS = "D2"
    SIGNAL_LIVE = "E1"
    SIGNAL_PARKED = "E2"
    PARKED_MEMORY = "F1"
    PARKED_WAKE = "F2"
    PARKED_START = "F3"
    RECOVERY = "G"
    REPLAY = "H"
    TURN = "I1"
    TURN_BYTES = "I2"
    TURN_COMMITS = "I3"
    TURN_OPENED = "I4"
    PARALLEL_TOOLS = "J"
    APPROVAL = "K"
    BARE_TURN = "L"
    LOOP = "M1"
    LISTS = "M2"
    RECORDS = "M3"
    CALLS = "M4"
    CLOSING = "N1"
    TAKEOVER = "N2"
    LISTING = "N3"
    PRUNING = "N4"
    ENGINE_SEQUENTIAL = "R1"
    ENGINE_TURN = "R2"
    ENGINE_CONCURRENT = "R3"
    ENGINE_SIGNAL = "R4"
    ENGINE_STEP_COMMITS = "R5"
    ENGINE_TURN_COMMITS = "R6"

    @property
    def about(self) -> About:
        """What the parent must know about it."""
        return _ABOUT[self]

    @property
    def of_processes(self) -> bool:
        """Whether whole processes are measured: a raw database has none to compare with."""
        return Measure.WAKE.value < self.value <= Measure.REPLAY.value

    @property
    def of_agents(self) -> bool:
        """Whether agents are measured, which are compared with agent frameworks."""
        return Measure.REPLAY.value < self.value <= Measure.BARE_TURN.value

    @property
    def of_programs(self) -> bool:
        """Whether programs are measured that only compute, which are compared with plain Python."""
        return Measure.BARE_TURN.value < self.value <= Measure.CALLS.value

    @property
    def of_history(self) -> bool:
        """Whether a store is measured after many runs have ended in it, beside the same one after few."""
        return Measure.CALLS.value < self.value <= Measure.PRUNING.value

    @property
    def of_engines(self) -> bool:
        """Whether one app is measured on several engines, beside handlers for Restate that are written by hand."""
        return self.value > Measure.PRUNING.value


@dataclass(frozen=True, slots=True)
class About:
    """A measure's heading, and how it is taken."""

    title: str
    unit: str
    pooled: bool = False
    """Whether a round gives samples instead of one figure."""
    rounds: int = 99
    """In how many rounds it takes part, at most: some scenarios are long, and steady."""
    warms_up: bool = True
    seconds: float = 60.0
    """How long a round may take before the contender counts as lost."""

    @property
    def more_is_better(self) -> bool:
        """Whether this is a rate."""
        return self.unit.endswith("/s")


def named(text: str) -> set[Measure]:
    """Return the measures that a list of names on the command line means."""
    found: set[Measure] = set()
    for name in text.split(","):
        among = {measure for measure in Measure if measure.value.startswith(name.strip().upper())}
        if not among or not name.strip():
            known = ", ".join(measure.value for measure in Measure)
            raise ValueError(f"no measure is called {name!r}; there are {known}")
        found |= among
    return found


_ONCE: Final[dict[str, Any]] = {
    "unit": "ms",
    "pooled": True,
    "rounds": 1,
    "warms_up": False,
    "seconds": 300,
}

_ABOUT: Final = {
    Measure.SEQUENTIAL: About("A. One run, durable steps one after another (steps/s)", "steps/s"),
    Measure.CONCURRENT: About("B. 100 runs at once (steps/s)", "steps/s"),
    Measure.WAKE: About("C. From resolving a wait to its waiter going on (ms)", "ms", pooled=True),
    Measure.START: About(
        "D1. A process with one step, from starting it to having its result (ms)",
        "ms",
        pooled=True,
    ),
    Measure.STARTS: About(
        "D2. Processes with one step started by 100 callers at once (starts/s)",
        "starts/s",
        rounds=3,
    ),
    Measure.SIGNAL_LIVE: About(
        "E1. From a signal to the result of the process waiting for it, live (ms)",
        "ms",
        pooled=True,
        rounds=3,
    ),
    Measure.SIGNAL_PARKED: About(
        "E2. The same, when the process is not in memory (ms)", "ms", pooled=True, rounds=3
    ),
    Measure.PARKED_MEMORY: About(
        "F1. Resident memory per parked process (KB)",
        "KB",
        rounds=1,
        warms_up=False,
        seconds=240,
    ),
    Measure.PARKED_WAKE: About(
        "F2. From a signal to the result of one process among the parked (ms)",
        "ms",
        pooled=True,
        rounds=1,
        warms_up=False,
        seconds=240,
    ),
    Measure.PARKED_START: About(
        "F3. A process with one step beside the parked (ms)",
        "ms",
        pooled=True,
        rounds=1,
        warms_up=False,
        seconds=240,
    ),
    Measure.RECOVERY: About(
        "G. A new worker finishes 1,000 processes whose worker was killed (s)",
        "s",
        rounds=2,
        warms_up=False,
        seconds=120,
    ),
    Measure.REPLAY: About(
        "H. From resuming a process with 1,000 recorded steps to its next step (ms)",
        "ms",
        pooled=True,
        rounds=1,
        warms_up=False,
    ),
    Measure.TURN: About(
        "I1. A turn with one tool call, after so many turns (ms)",
        "ms",
        pooled=True,
        rounds=3,
        seconds=300,
    ),
    Measure.TURN_BYTES: About(
        "I2. What such a turn writes (KB)", "KB", rounds=1, warms_up=False, seconds=120
    ),
    Measure.TURN_COMMITS: About(
        "I3. Commits of such a turn", "commits", rounds=1, warms_up=False, seconds=120
    ),
    Measure.TURN_OPENED: About(
        "I4. Such a turn in an app that was just opened (ms)",
        "ms",
        pooled=True,
        rounds=1,
        warms_up=False,
        seconds=300,
    ),
    Measure.PARALLEL_TOOLS: About(
        "J. 20 tool calls of 50 ms each, from the reply to the next model call (ms)",
        "ms",
        pooled=True,
        rounds=3,
    ),
    Measure.APPROVAL: About(
        "K. From an approval to the start of the tool that waited for it (ms)",
        "ms",
        pooled=True,
        rounds=3,
    ),
    Measure.BARE_TURN: About(
        "L. A first turn of which nothing is stored (ms)", "ms", pooled=True, rounds=3
    ),
    Measure.LOOP: About("M1. A program: a loop of 100,000 with branches (ms)", "ms", pooled=True),
    Measure.LISTS: About("M2. A program: building and filtering lists (ms)", "ms", pooled=True),
    Measure.RECORDS: About("M3. A program: 10,000 records (ms)", "ms", pooled=True),
    Measure.CALLS: About("M4. A program: 22,000 calls of a function (ms)", "ms", pooled=True),
    Measure.CLOSING: About("N1. Closing an app, after so many ended runs (ms)", **_ONCE),
    Measure.TAKEOVER: About("N2. Taking over a dead worker that had one process (ms)", **_ONCE),
    Measure.LISTING: About("N3. The newest 20 processes (ms)", **_ONCE),
    Measure.PRUNING: About("N4. Forgetting the effects of 100 runs (ms)", **_ONCE),
    Measure.ENGINE_SEQUENTIAL: About(
        "R1. One process, steps one after another, from its start to its result (steps/s)",
        "steps/s",
    ),
    Measure.ENGINE_TURN: About(
        "R2. A turn with one tool call, on each engine (ms)", "ms", pooled=True
    ),
    Measure.ENGINE_CONCURRENT: About(
        "R3. 100 processes of 50 steps at once, on each engine (steps/s)", "steps/s"
    ),
    Measure.ENGINE_SIGNAL: About(
        "R4. From a signal to the result of a suspended process (ms)",
        "ms",
        pooled=True,
        rounds=3,
    ),
    Measure.ENGINE_STEP_COMMITS: About(
        "R5. Commits of PostgreSQL for 1,000 steps",
        "commits",
        rounds=1,
        warms_up=False,
        seconds=240,
    ),
    Measure.ENGINE_TURN_COMMITS: About(
        "R6. Commits of PostgreSQL for a turn", "commits", rounds=1, warms_up=False, seconds=120
    ),
}
