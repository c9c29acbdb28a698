"""The endpoint keeps the connection of a server: attempts are under way on it for a long time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from pylash.restate.endpoint import Address, EndpointServer
from pylash.tasks import TaskOwner
from tests.restate.ports import LOOPBACK, free_port

CALLS = 1_050
AT_ONCE = 50


class LongCall:
    """A call that is under way on the only connection of a client while the test uses it for others."""

    def __init__(self) -> None:
        self._begun, self._may_end = asyncio.Event(), asyncio.Event()
        # Set when a short call has been answered.
        self.answered = asyncio.Event()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(scope["type"])
        await receive()
        if scope["path"] == "/long":
            self._begun.set()
            await self._may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        self.answered.set()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Begin the call; afterwards check that it ends as it should."""
        tasks, address = TaskOwner(), Address(LOOPBACK, free_port())
        server = EndpointServer(self.app, address, tasks)
        await server.open()
        limits = httpx.Limits(max_connections=1)
        options: Any = {"http1": False, "http2": True, "limits": limits, "trust_env": False}
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=30, **options) as client:
            long = tasks.start(client.get("/long"))
            await asyncio.wait_for(self._begun.wait(), 10)
            yield client
            self._may_end.set()
            assert (await long).text == "done"
        await server.close()
        await tasks.close()


async def test_a_call_goes_on_while_thousands_of_others_use_its_connection() -> None:
    async with LongCall().client() as client:
        for _ in range(CALLS // AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(client.get("/short"))


async def test_a_call_goes_on_when_input_comes_for_one_that_has_ended() -> None:
    call = LongCall()

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.wait_for(call.answered.wait(), 10)
        await asyncio.sleep(0.1)  # until hypercorn has sent the answer and forgotten the call
        for _ in range(100):
            yield b"late" * 4_000  # more than the window of the connection, all in all

    async with call.client() as client:
        await client.post("/short", content=body())
        assert (await client.get("/short")).text == "done"
