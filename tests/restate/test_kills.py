"""Workers and the server are killed: every run ends right, and nothing that is recorded is executed again."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pylash.testing.laws.suites import together
from tests.restate.apps import sqlite_url
from tests.restate.killed_app import make_app
from tests.restate.ports import LOOPBACK, free_port
from tests.restate.server import RestateServer

JOBS, TURNS = 6, 4


class Workers:
    """Two worker processes behind one URL."""

    def __init__(self, server: RestateServer, folder: Path) -> None:
        self.file = folder / "executions"
        endpoint = f"http://{LOOPBACK}:{free_port()}"
        self.given = (sqlite_url(folder), server.ingress, server.admin, endpoint, str(self.file))
        self.kills = 0
        self._processes: list[Process] = []

    async def start(self) -> None:
        command = [sys.executable, "-m", "tests.restate.killed_app", *self.given]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        self._processes.append(process)

    async def kill_one(self) -> None:
        """Kill the worker that has run longest, and start another one."""
        process = self._processes.pop(0)
        process.kill()
        await process.wait()
        self.kills += 1
        await self.start()

    async def freeze_one(self) -> None:
        """Stop a worker for longer than the server waits for it."""
        process = self._processes[0]
        process.send_signal(signal.SIGSTOP)
        self.kills += 1
        await asyncio.sleep(3)
        process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        for process in self._processes:
            process.kill()
            await process.wait()

    def executions(self) -> Counter[str]:
        return Counter(self.file.read_text().splitlines())


@pytest.mark.proves("X1")
async def test_every_run_ends_right_when_workers_and_the_server_are_killed(
    restate: RestateServer, tmp_path: Path
) -> None:
    workers = Workers(restate, tmp_path)
    await workers.start()
    await workers.start()
    app = make_app(*workers.given, works=False)
    names = [f"{tmp_path.name}-{n}" for n in range(JOBS)]
    try:
        async with app:
            job = app.definitions["job"]
            handles = [await app.start(job.options(id=name), name=name) for name in names]

            async def turn(number: int) -> Any:
                session = app.session(f"{tmp_path.name}-chat-{number}")
                return (await session.turn(session.id, turn_id="t1", timeout="50s")).text

            async def trouble() -> None:
                await workers.kill_one()
                for handle in handles:
                    await handle.signal("go", 1000, id="s1")
                await workers.kill_one()
                await restate.restart()
                await workers.freeze_one()

            async def result(handle: Any) -> Any:
                return await handle.result(timeout="50s")

            ended = await together(trouble(), *map(result, handles), *map(turn, range(TURNS)))
        assert ended[1:] == [1005 + 101 + 102 + 103] * JOBS + ["done"] * TURNS
    finally:
        await workers.end()
    executions = workers.executions()
    assert len(executions) == JOBS * 8 + TURNS * 4
    # The server, too, may forget the result of an action that it has not acknowledged.
    assert max(executions.values()) <= 1 + workers.kills + 1
