"""The torture of processes: hundreds of mixed ones on three workers that are killed again and again.

Every process must end as a model of its plan says, every step may run again only if its process was
killed, and logs, signals and clean-ups must be whole. The seed is printed; SEED=n repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random  # noqa: TID251 - seeded kills
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pylash import Lash, ProcessHandle
from pylash.durable.scopes import ProcessScope
from pylash.engine.system import SystemClock
from pylash.values.errors import Misuse
from pylash.values.process_errors import ProcessCancelled, ProcessFailed
from tests.backends import Backend
from tests.crash import torture_child
from tests.crash.torture_findings import Findings
from tests.crash.torture_plan import Plan, Wait, everyone, ops_of, plans, signals_of
from tests.forks import Fork, forked

WORKERS = 3
PROCESSES = 200
PATIENCE = 60.0
"""How many seconds everything may take to end when nobody is killed any more."""

_clock = SystemClock()


class Workers:
    """Three processes, killed at random and replaced at once."""

    def __init__(self, url: str, log: Path, dice: random.Random) -> None:
        self.killed: dict[int, float] = {}
        self._printed = log.with_suffix(".printed")
        self._arguments = (url, str(log))
        self._dice = dice
        self._live: list[Fork] = []

    def start(self) -> None:
        self._live = [self._started() for _ in range(WORKERS)]

    def _started(self) -> Fork:
        return forked(self._printed, torture_child.main, *self._arguments)

    async def kill_for(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await asyncio.sleep(self._dice.uniform(0.2, 0.8))
                    await self._kill(self._dice.randrange(WORKERS))

    async def _kill(self, number: int) -> None:
        victim = self._live[number]
        assert victim.status is None, f"worker {victim.pid} ended by itself: {victim.errors}"
        self.killed[victim.pid] = _clock.monotonic()
        await victim.kill()
        self._live[number] = self._started()

    async def end(self) -> None:
        for worker in self._live:
            await worker.kill()


class Outside:
    """The world around the processes: starts, signals, answers and cancels, at random times."""

    def __init__(
        self, app: Lash, targets: dict[str, Any], roots: dict[str, Plan], seed: int
    ) -> None:
        self.app = app
        self.roots = roots
        self.known = everyone(roots)
        self.born: set[str] = set()
        self._targets = targets
        self._dice = random.Random(seed)

    async def start_all(self, seconds: float) -> None:
        """Start the processes, spread over a time."""
        for process, plan in self.roots.items():
            chosen = self._targets[plan.kind].options(id=process)
            await self.app.start(chosen, plan=msgspec.to_builtins(plan))
            await asyncio.sleep(self._dice.uniform(0, 2 * seconds / len(self.roots)))

    async def attend(self) -> None:
        """Find new processes and open waits, and act as planned, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for view in await self.app.processes(limit=10 * len(self.known)):
                    if view.id not in self.born:
                        self.born.add(view.id)
                        self._adopt(group, view.id)
                await self._answer()
                await asyncio.sleep(0.1)

    def _adopt(self, group: asyncio.TaskGroup, process: str) -> None:
        plan, handle = self.known[process], self.app.process_handle(process)
        for name, count in signals_of(plan).items():
            group.create_task(self._signal(handle, name, count))
        if plan.cancel != "no":
            group.create_task(self._cancel(handle, plan))

    async def _signal(self, handle: ProcessHandle[Any], name: str, count: int) -> None:
        for number in range(1, count + 1):
            await asyncio.sleep(self._dice.choice((0, 0, 0.05, 0.3, 0.8)))
            with suppress(Misuse):  # it has ended
                for _ in range(self._dice.choice((1, 1, 2))):
                    await handle.signal(name, number, id=str(number))

    async def _cancel(self, handle: ProcessHandle[Any], plan: Plan) -> None:
        await asyncio.sleep(plan.cancel_after)
        await handle.cancel("torture", force=plan.cancel == "force")

    async def _answer(self) -> None:
        for wait in await self.app.waits():
            if wait.kind == "signal" or self._dice.random() < 0.6:
                continue
            assert isinstance(wait.name.scope, ProcessScope)
            plan = self.known[wait.name.scope.id]
            asked = next(op for op in ops_of(plan) if isinstance(op, Wait) and op.at == wait.title)
            refused = asked.answer == "refused"
            answer = {"error": asked.answer} if refused else {"value": asked.answer}
            await self.app.resolve(wait.key, **answer)

    async def all_end(self) -> None:
        """Return once every process has ended, those that were started meanwhile too."""
        waited: set[str] = set()
        while True:
            views = await self.app.processes(limit=10 * len(self.known))
            left = {view.id for view in views} - waited
            if not left:
                return
            async with asyncio.TaskGroup() as group:
                for process in left:
                    group.create_task(self._end(process))
            waited |= left

    async def _end(self, process: str) -> None:
        with suppress(ProcessFailed, ProcessCancelled):
            await self.app.process_handle(process).result()


class Torture:
    """One run of it."""

    def __init__(self, app: Lash, targets: dict[str, Any], log: Path, url: str, seed: int) -> None:
        self.log = log
        self.seed = seed
        self.workers = Workers(url, log, random.Random(seed + 1))
        self.outside = Outside(app, targets, plans(seed, PROCESSES), seed + 2)

    async def run(self, seconds: float) -> None:
        """Start everything, kill for a time, and wait for the end of everything."""
        try:
            self.workers.start()
            async with asyncio.TaskGroup() as group:
                attending = group.create_task(self.outside.attend())
                starting = group.create_task(self.outside.start_all(seconds * 0.8))
                await self.workers.kill_for(seconds)
                await starting
                await self._ended()
                attending.cancel()
        finally:
            await self.workers.end()

    async def _ended(self) -> None:
        begun = _clock.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                await self.outside.all_end()
            print(f"all had ended {_clock.monotonic() - begun:.1f} s after the last kill")
        except TimeoutError:
            findings = await self.findings()
            pytest.fail(f"SEED={self.seed}: {findings.stuck()}", pytrace=False)

    async def findings(self) -> Findings:
        """Return what there is now."""
        findings = Findings(self.outside.app, self.outside.roots, self.workers.killed, self.log)
        await findings.load()
        return findings


async def check(backend: Backend, tmp_path: Path, seconds: float) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    print(f"SEED={seed}")
    app, targets = torture_child.make_app(backend.url)
    async with app:
        torture = Torture(app, targets, tmp_path / "log", backend.url, seed)
        await torture.run(seconds)
        findings = await torture.findings()
    print(f"{len(findings.records)} processes, {len(torture.workers.killed)} workers were killed")
    assert torture.workers.killed
    wrong = findings.complaints()
    for process, complaint in wrong:
        print(f"{process}: {complaint}")
    if wrong:
        shown = findings.shown(wrong[0][0])
        pytest.fail(
            f"SEED={seed}: {len(wrong)} complaints, the first: {wrong[0]}\n{shown}", pytrace=False
        )


@pytest.mark.proves("P7")
@pytest.mark.timeout(150)
async def test_processes_on_killed_workers_end_as_planned(durable: Backend, tmp_path: Path) -> None:
    await check(durable, tmp_path, 10)


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_processes_on_workers_killed_for_a_minute_end_as_planned(
    durable: Backend, tmp_path: Path
) -> None:
    await check(durable, tmp_path, 60)
