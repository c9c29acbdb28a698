"""Restate: its server, an endpoint with the Python SDK, and callers through the ingress.

Rule 1. Server, endpoint and callers are three processes: what pylash and DBOS do in one has more
        of the machine here.
Rule 2. A process is a service where nothing is waited for, and a workflow where something is.
Rule 3. The server has its own storage, so it is compared with every database.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from importlib.metadata import version
from typing import Final

from benchmarks.agents import ANSWER, PROMPT
from benchmarks.contender import PAYLOAD, Contender, Facts, signalled, started_by, timed
from benchmarks.contenders import restate_endpoint
from benchmarks.lines import Load
from benchmarks.programs import DONE, OPEN, READY, Program, recovered
from benchmarks.restate_server import Server, free_port
from tests.restate.server_binary import VERSION

ENDPOINT: Final = restate_endpoint.__name__
LIVE, PARKED, REMEMBERING, KILLED = "Waiting", "Parking", "Remembering", "Killed"


def contender(_store: str, url: str) -> Contender:
    """Return Restate with its own storage."""
    return RestateContender(url)


class RestateContender(Contender):
    """A server, and the endpoint it calls."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._server = Server(self.file)
        self._port = free_port()
        self._keys = (f"w{number}" for number in itertools.count())
        self._killed = 0

    async def open(self) -> Facts:
        sync = await self._server.start()
        self._endpoint = await self._serving()
        await self._server.admin.post("/deployments", {"uri": f"http://127.0.0.1:{self._port}"})
        versions = {"Restate": VERSION, "restate-sdk": version("restate-sdk")}
        return {"versions": versions, "sync": sync}

    async def close(self) -> None:
        await self._endpoint.kill()
        await self._server.stop()

    async def start(self, load: Load) -> list[float]:
        return [await timed(self._one_step()) for _ in range(load.steps)]

    async def starts(self, load: Load) -> list[float]:
        return await started_by(load, self._one_step)

    async def signal_live(self, load: Load) -> list[float]:
        return await self._signals(LIVE, load, "promise", "running")

    async def signal_parked(self, load: Load) -> list[float]:
        return await self._signals(PARKED, load, "promise", "suspended")

    async def awakeable_live(self, load: Load) -> list[float]:
        """Measure E1 with an awakeable, whose id the caller must know."""
        return await self._signals(LIVE, load, "awakeable", "running")

    async def awakeable_parked(self, load: Load) -> list[float]:
        """Measure E2 with an awakeable."""
        return await self._signals(PARKED, load, "awakeable", "suspended")

    async def sequential(self, load: Load) -> list[float]:
        """Measure R1: steps per second of one workflow, with the time from its start to its result."""
        return await self._rate(load)

    async def concurrent(self, load: Load) -> list[float]:
        """Measure R3: steps per second of many workflows at once."""
        return await self._rate(load)

    async def turns(self, load: Load) -> list[float]:
        """Measure R2: milliseconds of a turn with one tool call, each in a conversation of its own."""
        return [await timed(self._turn(next(self._keys))) for _ in range(load.steps)]

    async def recovery(self, load: Load) -> list[float]:
        await self._endpoint.kill()
        doomed = await self._serving(READY, load.scopes)
        async with asyncio.TaskGroup() as group:
            for _ in range(load.scopes):
                group.create_task(self._server.ingress.post(f"/{KILLED}/run/send", load.steps))
        await doomed.said(READY)
        await doomed.kill()
        self._killed += load.scopes
        self._endpoint = await self._serving(DONE, load.scopes)
        seconds = await recovered(self._endpoint, load.scopes)
        await self._reached("completed", KILLED, self._killed)
        return [seconds]

    async def replay(self, load: Load) -> list[float]:
        key, found = next(self._keys), []
        workflow = f"/{REMEMBERING}/{key}"
        await self._server.ingress.post(f"{workflow}/run/send", [load.steps, load.scopes])
        for number in range(load.scopes):
            await self._reached("suspended", REMEMBERING, 1)
            started = time.perf_counter()
            await self._server.ingress.post(f"{workflow}/go", number)
            found.append((await self._endpoint.said(f"{key} {number}") - started) * 1_000)
        await self._server.ingress.get(f"/restate/workflow/{REMEMBERING}/{key}/attach")
        return found

    async def _serving(self, *wanted: object) -> Program:
        endpoint = await Program.start(ENDPOINT, self._port, *wanted)
        await endpoint.said(OPEN)
        return endpoint

    async def _rate(self, load: Load) -> list[float]:
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(load.scopes):
                path = f"/Steps/{next(self._keys)}/run"
                group.create_task(self._server.ingress.post(path, load.steps))
        return [load.total / (time.perf_counter() - started)]

    async def _turn(self, session: str) -> None:
        answer = await self._server.ingress.post(f"/Chat/{session}/turn", PROMPT)
        if answer != ANSWER:
            raise AssertionError(f"the turn ended with {answer!r}")

    async def _one_step(self) -> None:
        await self._server.ingress.post("/OneStep/run", 1)

    async def _signals(self, workflow: str, load: Load, how: str, status: str) -> list[float]:
        keys = [next(self._keys) for _ in range(load.steps)]
        for key in keys:
            await self._server.ingress.post(f"/{workflow}/{key}/run/send", how)
        await self._reached(status, workflow, len(keys))
        return [await self._signal(workflow, key, how) for key in keys]

    async def _signal(self, workflow: str, key: str, how: str) -> float:
        ingress = self._server.ingress
        door = f"/{workflow}/{key}/go"
        if how == "awakeable":
            name = await ingress.post(f"/{workflow}/{key}/awakeable")
            door = f"/restate/awakeables/{name}/resolve"
        result = ingress.get(f"/restate/workflow/{workflow}/{key}/attach")
        return await signalled(result, lambda: ingress.post(door, PAYLOAD))

    async def _reached(self, status: str, service: str, count: int) -> None:
        """Wait until so many processes have a status."""
        while await self._server.count(status, service) < count:  # noqa: ASYNC110 - the server knows
            await asyncio.sleep(0.02)
