"""The endpoint keeps the connection of a server: attempts are under way on it for a long time."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from pylash.restate.endpoint import Address, EndpointServer
from pylash.tasks import TaskOwner
from tests.restate.ports import LOOPBACK, free_port

CALLS = 1_050
AT_ONCE = 50


async def test_a_call_goes_on_while_thousands_of_others_use_its_connection() -> None:
    begun, may_end, tasks = asyncio.Event(), asyncio.Event(), TaskOwner()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(scope["type"])
        await receive()
        if scope["path"] == "/long":
            begun.set()
            await may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    address = Address(LOOPBACK, free_port())
    server = EndpointServer(app, address, tasks)
    await server.open()
    limits = httpx.Limits(max_connections=1)
    options: Any = {"http1": False, "http2": True, "limits": limits, "trust_env": False}
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=30, **options) as client:
        long = tasks.start(client.get("/long"))
        await asyncio.wait_for(begun.wait(), 10)
        for _ in range(CALLS // AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(client.get("/short"))
        may_end.set()
        assert (await long).text == "done"
    await server.close()
    await tasks.close()
