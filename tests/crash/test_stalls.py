"""A run that blocks the event loop makes its workers lose their leases: it ends blocked, and other runs continue."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessHandle, ProcessScope
from tests.backends import Backend, eventually
from tests.crash.stalling_child import STEPS, app_of, work
from tests.forks import forked

BLOCKED_AFTER = 10
ALONE_AFTER = 3


async def release_after_takeovers(app: Lash, folder: Path) -> list[list[int]]:
    """Let each stall last until the run was taken from its worker; return worker and live runs of each stall.

    Not in the order of their numbers: a slow worker may stall on a run that it lost before, while the owner's stall
    has a lower number and can only be taken over by that worker.
    """
    released: dict[int, list[int]] = {}
    while True:
        # First the stalls, then the owner: a stalling worker owned the run, so another owner has taken it over since.
        stalled = {
            number: [int(one) for one in stall.read_text().split()]
            for stall in folder.glob("stall-*")
            if (number := int(stall.name.removeprefix("stall-"))) not in released
        }
        run = await app.store.runs.get(ProcessScope("culprit"))
        assert run is not None
        if run.state == "blocked":
            released.update(stalled)
            return [released[number] for number in sorted(released)]
        assert run.state in ("queued", "running"), (run, released)
        for number, (worker, live) in stalled.items():
            if run.owner is None or f"-{worker}-" not in run.owner:
                released[number] = [worker, live]
                (folder / f"release-{number}").touch()
        await asyncio.sleep(0.01)


@pytest.mark.proves("P6")
async def test_a_run_that_stalls_its_workers_is_blocked_and_its_neighbours_complete(
    durable: Backend, tmp_path: Path
) -> None:
    app = app_of(durable.url, tmp_path, None)
    async with app, AsyncExitStack() as stack:
        for number in range(3):
            child = forked(tmp_path / f"printed-{number}", work, durable.url, str(tmp_path))
            stack.push_async_callback(child.kill)
        definitions = app.services.definitions
        neighbours: list[ProcessHandle[Any]] = [
            await app.start(definitions["neighbour"].options(id=f"n{n}")) for n in range(4)
        ]
        culprit = await app.start(definitions["stalls"].options(id="culprit"))
        async with asyncio.timeout(45):
            stalls = await release_after_takeovers(app, tmp_path)
            assert [await one.result() for one in neighbours] == [STEPS] * 4
        # The first claim recorded a step before it stalled, and is not counted.
        assert ALONE_AFTER < len(stalls) <= BLOCKED_AFTER + 1
        assert len({pid for pid, _ in stalls}) > 1
        assert sum(live > 1 for _, live in stalls) <= ALONE_AFTER + 1, stalls

        async def reason() -> str | None:
            record = await app.store.processes.get("culprit")
            return None if record is None else record.reason

        assert await eventually(reason) == "crash_loop"
        assert await culprit.status() == "blocked"
