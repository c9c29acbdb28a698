"""Rolling deploys: workers with the old and the new code on one store, back and forth, killed again and again.

A step is executed a second time only if its worker was killed in the middle of it, a run that one code cannot continue is
blocked with both effects in its reason, and each run ends when the code that fits is deployed. SEED=n repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random  # noqa: TID251 - seeded kills
import re
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, NotBlocked
from tests.backends import PostgresBackend, eventually
from tests.crash import rolling_child
from tests.crash.rolling_child import NAMES, NEW, OLD, RESULT
from tests.forks import Fork, forked

WORKERS = 3
RUNS = 400
SECONDS = 50.0
PATIENCE = 40.0
"""How many seconds everything may take to end when one code is deployed."""

REASON = re.compile(r"effect_replay_diverged: The code asks for '(\w+)' where '(\w+)' is expected")
EXPECTED = {
    # The inserted step is the last one that the run recorded, and the old code does not have it.
    ("guarded", "charge", "check"),
    ("unguarded", "charge", "audit"),
    # The run went on without the step that the new code has.
    ("unguarded", "audit", "charge"),
}


class Deployments:
    """Workers with either code, killed at random and replaced by others."""

    def __init__(self, url: str, log: Path, seed: int) -> None:
        self.killed: set[int] = set()
        self.dice = random.Random(seed)
        self._url, self._log = url, log
        self._live: list[Fork] = []

    def _started(self, version: str) -> Fork:
        printed = self._log.with_suffix(".printed")
        return forked(printed, rolling_child.main, self._url, str(self._log), version)

    async def roll(self, seconds: float) -> None:
        """Kill a worker and start one with a code at random, again and again."""
        self._live = [self._started(version) for version in (OLD, NEW, OLD)]
        time = asyncio.get_running_loop().time
        end = time() + seconds
        while time() < end:
            await asyncio.sleep(self.dice.uniform(0.3, 1.2))
            await self._replace(self.dice.randrange(WORKERS))

    async def _replace(self, number: int) -> None:
        await self._kill(self._live[number])
        self._live[number] = self._started(self.dice.choice((OLD, NEW)))

    async def deploy(self, version: str) -> None:
        """Replace all workers by one with a code."""
        await self.end()
        self._live = [self._started(version)]

    async def end(self) -> None:
        """Kill all workers."""
        for worker in self._live:
            await self._kill(worker)
        self._live = []

    async def _kill(self, worker: Fork) -> None:
        assert worker.status is None, (
            f"worker {worker.pid} ended by itself: {worker.errors[-1_000:]}"
        )
        self.killed.add(worker.pid)
        await worker.kill()


class Outside:
    """Starts runs, and retries those that are blocked."""

    def __init__(self, app: Lash, targets: dict[str, Any], seed: int) -> None:
        self._app, self._targets, self._dice = app, targets, random.Random(seed)
        # The blocked runs that were seen: process, new effect, expected effect.
        self.blocked: Counter[tuple[str, ...]] = Counter()

    async def start_all(self, seconds: float) -> None:
        """Start the runs, spread over a time."""
        for number in range(RUNS):
            name = NAMES[number % len(NAMES)]
            await self._app.start(self._targets[name].options(id=f"{name}-{number}"))
            await asyncio.sleep(self._dice.uniform(0, 2 * seconds / RUNS))

    async def attend(self) -> None:
        """Retry some of the blocked runs, until cancelled."""
        while True:
            await asyncio.sleep(0.5)
            await self.retry_blocked(0.3)

    async def retry_blocked(self, share: float = 1.0) -> None:
        """Check why runs are blocked, and retry a share of them."""
        for view in await self._app.processes(status="blocked", limit=RUNS):
            if view.reason == "unknown_target":  # all workers are dead at the moment
                continue
            found = REASON.match(view.reason or "")
            assert found, f"{view.id} is blocked: {view.reason}"
            self.blocked[view.id.partition("-")[0], *found.groups()] += 1
            if self._dice.random() < share:
                with suppress(NotBlocked):
                    await self._app.retry(view.id)

    async def stand(self) -> Counter[tuple[str, str]]:
        """Return how many runs of each process are in each state, once all have ended or are blocked."""

        async def look() -> Counter[tuple[str, str]] | None:
            views = await self._app.processes(limit=2 * RUNS)
            stands = all(view.status in ("completed", "failed", "blocked") for view in views)
            if not stands or any(view.reason == "unknown_target" for view in views):
                return None
            return Counter((view.id.partition("-")[0], str(view.status)) for view in views)

        return await eventually(look, PATIENCE)

    async def results(self) -> list[Any]:
        """Return the results of all runs."""
        return [
            await self._app.process_handle(view.id).result(timeout=0)
            for view in await self._app.processes(limit=2 * RUNS)
        ]


def repeated(log: Path, killed: set[int]) -> list[str]:
    """Return the steps that were executed again although they were recorded.

    A run has one step at a time: a step was recorded, unless its worker was killed before it executed another one of the run.
    """
    executed: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for line in log.read_text().splitlines():
        run, step, pid = line.split()
        executed[run].append((step, int(pid)))
    wrong: list[str] = []
    for run, lines in executed.items():
        last = {pid: index for index, (_, pid) in enumerate(lines)}
        recorded = {
            step: index
            for index, (step, pid) in reversed(list(enumerate(lines)))
            if last[pid] > index or pid not in killed
        }
        wrong += [
            f"{run} {step} {pid}"
            for index, (step, pid) in enumerate(lines)
            if index > recorded.get(step, index)
        ]
    return wrong


@pytest.mark.torture
@pytest.mark.timeout(180)
async def test_old_and_new_code_side_by_side_repeat_nothing(postgres: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    print(f"SEED={seed}")
    log = tmp_path / "log"
    async with PostgresBackend(postgres) as backend:
        app, targets = rolling_child.make_app(backend.url, log, OLD, worker=None)
        workers, outside = Deployments(backend.url, log, seed), Outside(app, targets, seed + 1)
        async with app:
            try:
                async with asyncio.TaskGroup() as group:
                    attending = group.create_task(outside.attend())
                    starting = group.create_task(outside.start_all(SECONDS * 0.9))
                    await workers.roll(SECONDS)
                    await starting
                    attending.cancel()
                # The new code finishes all runs but those that went on without a step which it has and no patch guards.
                await workers.deploy(NEW)
                await outside.retry_blocked()
                by_new = await outside.stand()
                await workers.deploy(OLD)
                await outside.retry_blocked()
                by_old = await outside.stand()
            finally:
                await workers.end()
            results = await outside.results()
    print(f"{len(workers.killed)} workers were killed; {dict(by_new)}; {dict(outside.blocked)}")
    each = RUNS // len(NAMES)
    assert by_new["guarded", "completed"] == each
    assert by_new["unguarded", "completed"] + by_new["unguarded", "blocked"] == each
    assert by_new["unguarded", "blocked"] > 0
    assert by_old == {(name, "completed"): each for name in NAMES}
    assert results == [RESULT] * RUNS
    assert set(outside.blocked) <= EXPECTED
    assert ("unguarded", "audit", "charge") in outside.blocked
    assert repeated(log, workers.killed) == []
