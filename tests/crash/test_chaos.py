"""Chaos: three workers on one store, killed with SIGKILL at random, again and again.

Every step must end with its right outcome; a step may be executed again only if the process that
executed it before was killed. The seed is printed; SEED=n repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random  # noqa: TID251 - seeded kills
from collections import defaultdict
from pathlib import Path

import pytest

from pylash.durable.scopes import ProcessScope
from tests.backends import Backend
from tests.crash import chaos_child
from tests.crash.chaos_child import STEPS, expected
from tests.forks import Fork, forked

WORKERS = 3


class Chaos:
    """Starts workers and kills them."""

    def __init__(self, url: str, log: Path, seed: int, scopes: int) -> None:
        self.url = url
        self.log = log
        self.scopes = str(scopes)
        self.dice = random.Random(seed)
        self.killed: set[int] = set()

    def start(self) -> Fork:
        printed = self.log.with_suffix(".printed")
        seed = str(self.dice.random())
        return forked(printed, chaos_child.main, self.url, str(self.log), seed, self.scopes)

    async def run(self) -> None:
        workers = [self.start() for _ in range(WORKERS)]
        try:
            while all(worker.status is None for worker in workers):
                await asyncio.sleep(self.dice.uniform(0.2, 0.6))
                await self.kill_one(workers)
            for worker in workers:
                assert await worker.wait() == 0
        finally:
            for worker in workers:
                await worker.kill()

    async def kill_one(self, workers: list[Fork]) -> None:
        victim = self.dice.randrange(WORKERS)
        if workers[victim].status is None:
            await workers[victim].kill()
            self.killed.add(workers[victim].pid)
            workers[victim] = self.start()

    def executions(self) -> dict[tuple[int, int], list[int]]:
        """Return which processes executed each step, in order."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for line in self.log.read_text().splitlines():
            if not line.endswith("finished"):
                scope, step, pid = map(int, line.split())
                found[scope, step].append(pid)
        return found


async def check(backend: Backend, tmp_path: Path, scopes: int) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    print(f"SEED={seed}")
    chaos = Chaos(backend.url, tmp_path / "log", seed, scopes)
    await chaos.run()
    print(f"{len(chaos.killed)} workers were killed")
    assert chaos.killed
    executions = chaos.executions()
    assert set(executions) == {(scope, step) for scope in range(scopes) for step in range(STEPS)}
    for (scope, step), pids in executions.items():
        assert set(pids[:-1]) <= chaos.killed, f"step {step} of {scope} ran again without a kill"
        assert len(set(pids)) == len(pids), f"step {step} of {scope} ran twice in one process"
    store = await backend.store()
    for scope in range(scopes):
        run = await store.runs.get(ProcessScope(f"p{scope}"))
        assert run is not None
        for step in range(STEPS):
            entry = await store.journal.entry(run.id, f"step#{step}")
            assert entry is not None
            assert entry.outcome is not None
            assert f'"value":{expected(scope, step)}' in entry.outcome.decode()


@pytest.mark.timeout(60)
async def test_work_killed_at_random_is_done_right_in_the_end(
    durable: Backend, tmp_path: Path
) -> None:
    await check(durable, tmp_path, 60)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("round_", range(3))
async def test_work_killed_at_random_for_a_long_time_is_done_right_in_the_end(
    durable: Backend, tmp_path: Path, round_: int
) -> None:
    await check(durable, tmp_path, 300)
