"""pylash: one app on PostgreSQL alone, and with Restate as its engine.

Rule 1. The code is the same: only the app is made with another host.
Rule 2. Callers and worker are in one process. The Restate server is a process of its own, and the store is PostgreSQL.
Rule 3. A process that waits is suspended after 50 ms, as in the handlers that are written by hand.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from benchmarks.agents import ANSWER, INSTRUCTIONS, PROMPT, Script
from benchmarks.contender import PAYLOAD, Contender, Facts, signalled, timed
from benchmarks.contenders.pydantic_agent import Reader
from benchmarks.contenders.pylash_contender import sync_settings
from benchmarks.lines import RESTATE, Load
from benchmarks.restate_server import LOOPBACK, Server, free_port
from pylash import Lash, ProcessContext, WorkerConfig
from pylash.restate import RestateHost
from tests.restate.server_binary import VERSION

PARK_AFTER: Final = "50ms"
SETTLED_SECONDS: Final = 0.5
"""How long a process is given to be suspended after the code before its wait has run."""

_COMMITS: Final = "select xact_commit from pg_stat_database where datname = $1"
_CONNECTED: Final = "select count(*) from pg_stat_activity where datname = $1"


def contender(store: str, url: str) -> Contender:
    """Return pylash on PostgreSQL, or on Restate."""
    return EngineContender(store, url)


class EngineContender(Contender):
    """An app on one of the engines."""

    def __init__(self, store: str, url: str) -> None:
        super().__init__(url)
        self.store = store
        self._script = Script()
        self._sessions = (f"session-{number}" for number in itertools.count())
        self._stack = AsyncExitStack()
        self._server: Server | None = None
        self._host: Callable[[], RestateHost | None] = lambda: None
        self._reached: set[int] = set()
        """Which of the processes of a round have come to their wait."""

    async def open(self) -> Facts:
        versions, sync = {"pylash": version("pylash")}, {}
        if self.store == RESTATE:
            ports = (free_port(), free_port(), free_port())
            self._server = Server(Path.cwd() / "pylash-restate-server", ports)
            sync = await self._server.start()
            versions |= {"Restate": VERSION, "restate-sdk": version("restate-sdk")}
            ingress, admin, _ = ports
            self._host = partial(
                RestateHost,
                ingress=f"http://{LOOPBACK}:{ingress}",
                admin=f"http://{LOOPBACK}:{admin}",
                endpoint=f"http://{LOOPBACK}:{free_port()}",
            )
        await self._open_app()
        journal = getattr(self._app.effect_host, "_journal", self._app.effect_host)
        return {"versions": versions, "sync": sync | await sync_settings(journal, "postgres")}

    async def close(self) -> None:
        await self._stack.aclose()
        if self._server is not None:
            await self._server.stop()

    async def sequential(self, load: Load) -> list[float]:
        """Measure R1: steps per second of one process, with the time from its start to its result."""
        return [await self._rate(load)]

    async def concurrent(self, load: Load) -> list[float]:
        """Measure R3: steps per second of many processes at once."""
        return [await self._rate(load)]

    async def turns(self, load: Load) -> list[float]:
        """Measure R2: milliseconds of a turn with one tool call, each in a session of its own."""
        return [await timed(self._turn()) for _ in range(load.steps)]

    async def signal_parked(self, load: Load) -> list[float]:
        """Measure R4: milliseconds from a signal to the result of a process that is suspended."""
        self._reached.clear()
        handles = [await self._app.start(self._waiting, number=one) for one in range(load.steps)]
        while len(self._reached) < load.steps:  # noqa: ASYNC110 - nobody is timed here
            await asyncio.sleep(0.02)
        await asyncio.sleep(SETTLED_SECONDS)
        return [
            await signalled(handle.result(), partial(handle.signal, "go", PAYLOAD))
            for handle in handles
        ]

    async def step_commits(self, load: Load) -> list[float]:
        """Measure R5: commits of the database for 1,000 steps."""
        return [await self._commits(self._rate, load) * 1_000 / load.total]

    async def apart_commits(self, load: Load) -> list[float]:
        """Measure R5 with steps that take 50 ms on the average, and so do not end together."""
        rate = partial(self._rate, takes=0.1)
        return [await self._commits(rate, load) * 1_000 / load.total]

    async def turn_commits(self, load: Load) -> list[float]:
        """Measure R6: commits of the database for a turn with one tool call."""
        return [await self._commits(self.turns, load) / load.steps]

    async def _rate(self, load: Load, takes: float = 0.0) -> float:
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(load.scopes):
                group.create_task(self._run_steps(load.steps, takes))
        return load.total / (time.perf_counter() - started)

    async def _run_steps(self, count: int, takes: float = 0.0) -> None:
        await (await self._app.start(self._steps, count=count, takes=takes)).result()

    async def _turn(self) -> None:
        answer = (await self._app.session(next(self._sessions)).turn(PROMPT)).text
        if answer != ANSWER:
            raise AssertionError(f"the turn ended with {answer!r}")

    # --- commits ---

    async def _commits(self, work: Callable[[Load], Awaitable[Any]], load: Load) -> int:
        """Return by how much the commits of the database grow with some work.

        A connection reports its commits late, but always when it ends. So the app is opened for the work. Opening it and
        preparing statements costs commits as well: those of an app that does less of the work are subtracted.
        """
        await self._stack.aclose()
        less = await self._commits_of(work, load.less())
        found = await self._commits_of(work, load.less(), load) - less
        await self._open_app()
        return found

    async def _commits_of(self, work: Callable[[Load], Awaitable[Any]], *loads: Load) -> int:
        async with _counting(self.url) as count:
            before = await count()
            await self._open_app()
            for load in loads:
                await work(load)
            await self._stack.aclose()
            return await count() - before

    # --- the app ---

    async def _open_app(self) -> None:
        app: Lash[Any] = Lash(
            self.url,
            host=self._host(),
            model=Reader(self._script),
            instructions=INSTRUCTIONS,
            worker=WorkerConfig(park_after=PARK_AFTER),
            migrate=True,
        )
        app.tool(self._script.lookup)

        @app.process
        async def steps(ctx: ProcessContext[None], count: int, takes: float) -> int:
            for _ in range(count):
                await ctx.step(_work, takes)
            return count

        @app.process
        async def waiting(ctx: ProcessContext[None], number: int) -> int:
            self._reached.add(number)
            await ctx.wait_signal("go")
            return 1

        self._steps, self._waiting = steps, waiting
        self._app = await self._stack.enter_async_context(app)


@asynccontextmanager
async def _counting(url: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Give a function that counts the commits of a database, once nothing is connected to it."""
    connection = await asyncpg.connect(url, database="postgres")
    name = urlsplit(url).path.removeprefix("/")

    async def count() -> int:
        while await connection.fetchval(_CONNECTED, name):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.02)
        return int(await connection.fetchval(_COMMITS, name))

    try:
        yield count
    finally:
        await connection.close()


async def _work(takes: float) -> dict[str, Any]:
    if takes:
        await asyncio.sleep(random.uniform(0, takes))
    return PAYLOAD
