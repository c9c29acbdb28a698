"""Workers and the server are killed: every run ends right, and nothing that is recorded is executed again."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random, SystemRandom  # noqa: TID251 - seeded
from typing import Any, NamedTuple, TypeVar

import pytest

from pylash import Lash
from pylash.stores.operation import Operation, Statement, Steps
from pylash.values.errors import StoreError
from tests.backends import PostgresBackend
from tests.cutting_proxy import CuttingProxy
from tests.restate.apps import sqlite_url
from tests.restate.killed_app import make_app
from tests.restate.ports import LOOPBACK, free_port
from tests.restate.server import RestateServer

T = TypeVar("T")

RESULT = 1005 + 101 + 102 + 103 + 2
STEPS = 9
IN_STORE = {"process", "await_event", "queue"}
"""The kinds of effects that the store has rows of: commands of the registry, waits, and messages that a turn has taken."""
LEASE = 3.0
PATIENCE = 90.0


class Trouble(NamedTuple):
    """What was done, from when to when; ``pid`` None if it affects all workers."""

    begun: float
    ended: float
    pid: int | None = None


class Execution(NamedTuple):
    """One execution of a step or a tool."""

    begun: float
    pid: int


def now() -> float:
    return asyncio.get_running_loop().time()


class Workers:
    """Two worker processes behind one URL, and what is done to them."""

    def __init__(self, server: RestateServer, store: str, folder: Path) -> None:
        self.file = folder / "executions"
        self.file.touch()
        endpoint = f"http://{LOOPBACK}:{free_port()}"
        self.given = (store, server.ingress, server.admin, endpoint, str(self.file))
        self.troubles: list[Trouble] = []
        self._server = server
        self._processes: list[Process] = []

    async def start(self) -> None:
        command = [sys.executable, "-m", "tests.restate.killed_app", *self.given]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
        self._processes.append(process)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"

    async def kill_one(self) -> None:
        """Kill the worker that has run longest, and start another one."""
        process = self._processes.pop(0)
        begun = now()
        process.kill()
        await process.wait()
        self.troubles.append(Trouble(begun, now(), process.pid))
        await self.start()

    async def freeze_one(self, seconds: float = 3.0) -> None:
        """Stop a worker, for longer than the server waits for it."""
        process = self._processes[-1]
        begun = now()
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        self.troubles.append(Trouble(begun, now() + LEASE, process.pid))

    async def restart_server(self) -> None:
        """Kill the server, which forgets what it has not acknowledged, and start it again."""
        begun = now()
        await self._server.restart()
        self.troubles.append(Trouble(begun, now()))

    async def end(self) -> None:
        for process in self._processes:
            process.kill()
            await process.wait()

    def executions(self) -> dict[str, list[Execution]]:
        found: dict[str, list[Execution]] = defaultdict(list)
        for line in self.file.read_text().splitlines():
            name, pid, begun = line.rsplit(" ", 2)
            found[name].append(Execution(float(begun), int(pid)))
        return found

    def check_executions(self) -> None:
        """Check that between two executions of a step something was done to the first."""
        for name, executions in self.executions().items():
            for first, second in pairwise(executions):
                excuses = [
                    one
                    for one in self.troubles
                    if one.pid in (None, first.pid)
                    and one.ended >= first.begun
                    and one.begun <= second.begun
                ]
                troubles = [one for one in self.troubles if one.ended >= first.begun - 20]
                assert excuses, f"{name} was executed again, {executions}: {troubles}"


class Load:
    """Jobs and turns, and what must become of them."""

    def __init__(self, app: Lash, name: str) -> None:
        self.app = app
        self.jobs: list[Any] = []
        self.sessions: list[Any] = []
        self._name = name

    async def start_job(self) -> Any:
        name = f"{self._name}-job-{len(self.jobs)}"
        job = self.app.definitions["job"].options(id=name)
        handle = await answered(lambda: self.app.start(job, name=name))
        self.jobs.append(handle)
        return handle

    async def signal(self, handle: Any) -> None:
        for _ in range(2):  # the same signal twice is one
            await answered(lambda: handle.signal("go", 1000, id="s1"))

    async def start_turn(self) -> None:
        session = self.app.session(f"{self._name}-chat-{len(self.sessions)}")
        self.sessions.append(session)

        async def submit() -> None:
            async with session.stream(session.id, turn_id="t1"):
                """Only ask."""

        await answered(submit)

    async def check_ends(self) -> None:
        """Wait for everything, and check results, logs and messages."""
        async with asyncio.timeout(PATIENCE):
            for handle in self.jobs:
                assert await answered(handle.result) == RESULT
                events = [event async for event in handle.events()]
                assert [one.sequence for one in events] == list(range(1, len(events) + 1))
                said = [one.payload for one in events if one.type == "said"]
                assert said == [1, 2, 3, 4, 5], f"{handle.id} said {said}"
                kinds = [one.type for one in events if one.type != "said"]
                assert kinds == ["process.started", "signal.go", "process.completed"], kinds
            for session in self.sessions:
                turn = await answered(partial(session.turn, session.id, turn_id="t1"))
                assert turn.text == "done"
                texts = [one.text for one in await session.history()]
                worked = [f"worked {n}" for n in range(4)]
                assert [texts[0], *texts[2:]] == [session.id, *worked, "done"], texts
        await self._check_store()

    async def _check_store(self) -> None:
        """Check that the store has no rows of local effects."""

        def steps() -> Steps[list[tuple[Any, ...]]]:
            return (yield Statement("select distinct kind from pylash_effects")).rows

        store: Any = self.app.store
        rows = await store.driver.run(Operation("look", steps, read_only=True))
        assert {row[0] for row in rows} <= IN_STORE, rows


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer to a question that is safe to repeat, however long the store is away."""
    while True:
        try:
            return await ask()
        except StoreError:
            await asyncio.sleep(0.1)


@asynccontextmanager
async def two_workers(
    server: RestateServer, store: str, folder: Path, direct: str | None = None
) -> AsyncIterator[tuple[Workers, Load]]:
    """Start two workers, and an app that submits; afterwards check everything that they did."""
    workers = Workers(server, store, folder)
    await asyncio.gather(workers.start(), workers.start())  # noqa: TID251 - both end
    try:
        app = make_app(direct or store, *workers.given[1:], works=False)
        async with app:
            load = Load(app, folder.name)
            yield workers, load
            await load.check_ends()
    finally:
        await workers.end()
    workers.check_executions()
    assert len(workers.executions()) == len(load.jobs) * STEPS + len(load.sessions) * 4


@pytest.mark.proves("X1")
async def test_every_run_ends_right_when_workers_and_the_server_are_killed(
    restate: RestateServer, tmp_path: Path
) -> None:
    async with two_workers(restate, sqlite_url(tmp_path), tmp_path) as (workers, load):
        handles = [await load.start_job() for _ in range(6)]
        for _ in range(4):
            await load.start_turn()
        await workers.kill_one()
        for handle in handles:
            await load.signal(handle)
        await workers.kill_one()
        await workers.restart_server()
        await workers.freeze_one()


class Chaos:
    """A minute in which everything is done at once to what executes runs, at random."""

    def __init__(
        self, workers: Workers, load: Load, cut: Callable[[float], Awaitable[None]]
    ) -> None:
        seed = int(os.environ.get("SEED") or SystemRandom().randrange(10**6))
        print(f"SEED={seed}")
        self._workers, self._load, self._cut = workers, load, cut
        self._random = Random(seed)
        self._until = now() + 60

    async def run(self) -> None:
        load, random = self._load, self._random
        async with asyncio.TaskGroup() as group:
            group.create_task(self._make_trouble())
            while now() < self._until:
                await asyncio.sleep(random.uniform(0.1, 0.8))
                handle = await load.start_job()
                group.create_task(self._signal_later(handle, random.uniform(0, 5)))
                if random.random() < 0.6:
                    await load.start_turn()
        for handle in [await load.start_job() for _ in range(3)]:
            await load.signal(handle)
        await load.start_turn()
        await self._cut_store(30)
        troubles = len(self._workers.troubles)
        print(f"{len(load.jobs)} jobs, {len(load.sessions)} turns, {troubles} troubles")

    async def _make_trouble(self) -> None:
        workers, random = self._workers, self._random
        while now() < self._until:
            await asyncio.sleep(random.uniform(0.2, 2))
            match random.choice(("kill", "kill", "kill", "freeze", "server", "store")):
                case "kill":
                    await workers.kill_one()
                case "freeze":
                    await workers.freeze_one(random.uniform(1, 4))
                case "server":
                    await workers.restart_server()
                case _:
                    await self._cut_store(random.uniform(0.5, 4))

    async def _cut_store(self, seconds: float) -> None:
        begun = now()
        await self._cut(seconds)
        self._workers.troubles.append(Trouble(begun, now() + LEASE))

    async def _signal_later(self, handle: Any, delay: float) -> None:
        await asyncio.sleep(delay)
        await self._load.signal(handle)


@pytest.mark.torture
@pytest.mark.timeout(400)
async def test_a_minute_of_kills_with_sqlite(restate: RestateServer, tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)

    async def lock(seconds: float) -> None:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
            await asyncio.to_thread(connection.execute, "begin exclusive")
            await asyncio.sleep(seconds)

    async with two_workers(restate, url, tmp_path) as (workers, load):
        await Chaos(workers, load, lock).run()


@pytest.mark.torture
@pytest.mark.timeout(400)
async def test_a_minute_of_kills_with_postgres(
    restate: RestateServer, postgres: str, tmp_path: Path
) -> None:
    folder = Path(postgres.partition("host=")[2])
    proxy = CuttingProxy(folder, tmp_path)
    await proxy.start()
    async with PostgresBackend(postgres) as backend:
        url = backend.url.replace(str(folder), str(tmp_path))
        async with two_workers(restate, url, tmp_path, backend.url) as (workers, load):
            await Chaos(workers, load, proxy.cut_all).run()
    await proxy.stop()
