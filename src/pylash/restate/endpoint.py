"""The endpoint that the server calls: an ASGI application, served with HTTP/2 in this process."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from hypercorn.asyncio import serve
from hypercorn.config import Config

from pylash.tasks import TaskOwner
from pylash.values.process_errors import EndpointInvalid

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

STREAMS: Final = 10_000
"""Attempts that one connection of the server may have under way: hypercorn allows 100, which is less than the server uses."""
CLOSE_SECONDS: Final = 10.0
CANCEL_SECONDS: Final = 0.05
"""How often calls are cancelled while the endpoint closes: one that is cancelled may begin another."""

_log = logging.getLogger("pylash")


class EndpointServer:
    """Serves an application at a URL until it is closed, which ends the calls that are under way."""

    def __init__(self, app: AsgiApp, url: str, tasks: TaskOwner) -> None:
        self._app = app
        self._host, self._port = _address(url)
        self._tasks = tasks
        self._calls: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()

    async def open(self) -> None:
        """Listen: from now on the server can connect."""
        await asyncio.to_thread(_call_once, self._app)
        config = Config()
        # Connections wait in the backlog of the socket until hypercorn accepts them; it closes the socket.
        config.bind = [f"fd://{await asyncio.to_thread(_listen, self._host, self._port)}"]
        config.h2_max_concurrent_streams = STREAMS
        config.accesslog = config.errorlog = None
        served = serve(self._track, config, shutdown_trigger=self._closing.wait, mode="asgi")
        self._serving = self._tasks.start(served)

    async def close(self) -> None:
        """End the calls that are under way, and stop listening."""
        self._closing.set()
        # Hypercorn waits for calls, and a call may wait for days. If a call begins meanwhile, hypercorn 0.18 fails.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._calls or not self._serving.done():
                    for call in tuple(self._calls):
                        call.cancel()
                    await asyncio.wait((*self._calls, self._serving), timeout=CANCEL_SECONDS)
        if self._serving.done() and (error := self._serving.exception()) is not None:
            _log.debug("the endpoint failed while it closed: %s", error)

    async def _track(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application in a task that can be cancelled."""
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            await self._app(scope, receive, send)
        finally:
            self._calls.discard(call)


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EndpointInvalid(url)
    return parts.hostname, parts.port or 9080


def _listen(host: str, port: int) -> int:
    """Return a socket that listens, as a file descriptor."""
    # Several workers may share the address: the server connects to any of them.
    return socket.create_server((host, port), backlog=1024, reuse_port=True).detach()


def _call_once(app: AsgiApp) -> None:
    """Call the application of the SDK for the first time, in a thread.

    At its first call it installs a handler of SIGTERM, which would take that of the program. In a thread it cannot.
    """

    async def call() -> None:
        with suppress(ValueError):  # it has no lifespan
            await app({"type": "lifespan"}, None, None)

    asyncio.run(call())
