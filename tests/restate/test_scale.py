"""Many runs that wait: they delay nothing, and cost the worker next to nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tracemalloc
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessContext, WorkerConfig
from tests.backends import eventually
from tests.restate.apps import sqlite_url
from tests.restate.fake_server import FakeHost, FakeServer
from tests.restate.killed_app import make_app
from tests.restate.ports import LOOPBACK, free_port
from tests.restate.server import RestateServer

AT_ONCE = 50
MAX_BYTES = 1_000


class Waiting:
    """Runs that wait, on a server in memory."""

    def __init__(self, app: Lash, server: FakeServer) -> None:
        self.app, self.server = app, server

        @app.process
        async def wait(ctx: ProcessContext[None]) -> Any:
            return await ctx.wait_signal("go")

        @app.process
        async def empty(_: ProcessContext[None]) -> str:
            return "empty"

        self._wait, self._empty = wait, empty

    async def add(self, count: int) -> None:
        """Start runs, and wait until all of them are suspended."""
        known = len(self.server.invocations)
        for _ in range(count // AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(self.app.start(self._wait))

        async def are_suspended() -> bool | None:
            return self.suspended == known + count or None

        await eventually(are_suspended, 300)

    @property
    def suspended(self) -> int:
        return sum(one.is_suspended for one in self.server.invocations.values())

    @property
    def attempts(self) -> int:
        return sum(one.attempts for one in self.server.invocations.values())

    @property
    def recorded(self) -> int:
        """The bytes of results that the server in memory has, and not the worker."""
        invocations = self.server.invocations.values()
        return sum(sys.getsizeof(result) for one in invocations for _, result in one.completions)

    async def run_empty(self) -> None:
        handle = await self.app.start(self._empty)
        assert await handle.result(timeout="30s") == "empty"


@asynccontextmanager
async def waiting() -> AsyncIterator[Waiting]:
    server = FakeServer()
    app = Lash("memory://", host=FakeHost(server), worker=WorkerConfig(park_after="0ms"))
    runs = Waiting(app, server)
    async with app:
        yield runs


async def check_empty_run(count: int) -> None:
    async with waiting() as runs:
        await runs.add(count)
        before = runs.attempts
        await runs.run_empty()
        # The empty run is executed, and none of the others.
        assert runs.attempts == before + 1
        assert runs.suspended == count


async def test_runs_that_wait_are_not_executed_for_another_one() -> None:
    await check_empty_run(200)


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_a_thousand_runs_that_wait_are_not_executed_for_another_one() -> None:
    await check_empty_run(1_000)


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_a_suspended_run_leaves_nothing_in_the_worker() -> None:
    async with waiting() as runs:
        await runs.add(200)
        tracemalloc.start()
        try:
            before = _allocated() - runs.recorded
            await runs.add(1_000)
            each = (_allocated() - runs.recorded - before) / 1_000
        finally:
            tracemalloc.stop()
    print(f"{each:.0f} bytes for a suspended run")
    assert each <= MAX_BYTES


def _allocated() -> int:
    """Return the bytes that code of pylash has allocated, without those of the store and of the server in memory."""
    gc.collect()
    ours = [
        tracemalloc.Filter(True, "*/pylash/*"),
        tracemalloc.Filter(False, "*/pylash/stores/*"),
    ]
    snapshot = tracemalloc.take_snapshot().filter_traces(ours)
    return sum(one.size for one in snapshot.statistics("filename"))


def resident_bytes(pid: int) -> int:
    """Return how much memory a process uses."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_ten_thousand_suspended_runs_cost_the_worker_a_kilobyte_each(
    restate: RestateServer, tmp_path: Path
) -> None:
    count, first = int(os.environ.get("RUNS") or 10_000), 1_000
    given = (
        sqlite_url(tmp_path),
        restate.ingress,
        restate.admin,
        f"http://{LOOPBACK}:{free_port()}",
        str(tmp_path / "executions"),
    )
    command = [sys.executable, "-m", "tests.restate.killed_app", *given]
    worker = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"ready\n"
    try:
        async with make_app(*given, works=False) as app:

            async def add(runs: int, total: int) -> int:
                for _ in range(runs // AT_ONCE):
                    async with asyncio.TaskGroup() as group:
                        for _ in range(AT_ONCE):
                            group.create_task(app.start(app.definitions["waiter"]))

                async def are_suspended() -> bool | None:
                    sql = "select count(*) n from sys_invocation where status = 'suspended'"
                    await asyncio.sleep(0.5)
                    return (await restate.query(sql))[0]["n"] == total or None

                await eventually(are_suspended, 1_000)
                return resident_bytes(worker.pid)

            before = await add(first, first)
            after = await add(count, first + count)
    finally:
        worker.kill()
        await worker.wait()
    each = (after - before) / count
    print(f"{count} suspended runs: {each:.0f} bytes of the worker each ({before} to {after})")
    assert each <= MAX_BYTES
