"""The endpoint that a Restate server calls, served in the event loop of a test."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from types import TracebackType
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

from pylash.tasks import TaskOwner
from tests.restate.ports import LOOPBACK, free_port, listen

CANCEL_INTERVAL = 0.05
SHUTDOWN_SECONDS = 10.0
MAX_STREAMS = 10_000
"""Hypercorn allows 100 for a connection, which is less than the server uses."""


class Endpoint:
    """Serves an app of ``restate.app`` with hypercorn: ``async with Endpoint(app) as url``.

    Leaving it ends the calls that are running, as the end of a worker process does: their handlers are cancelled, and
    the server retries them. The same ``port`` again is the same URL, to which the server sends them.
    """

    def __init__(self, app: Any, port: int | None = None) -> None:
        self.port = port or free_port()
        self._app = app
        self._calls: set[asyncio.Task[Any]] = set()
        self._shutdown = asyncio.Event()
        self._tasks = TaskOwner()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    async def __aenter__(self) -> str:
        await self._call_without_sigterm()
        config = Config()
        # Connections wait in the backlog of this socket until hypercorn accepts them; it closes the socket.
        config.bind = [f"fd://{listen(self.port).detach()}"]
        config.h2_max_concurrent_streams = MAX_STREAMS
        config.errorlog = None
        self._serving = self._tasks.start(
            serve(self._track, config, shutdown_trigger=self._shutdown.wait, mode="asgi")
        )
        return self.url

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shutdown.set()
        # Hypercorn waits for running calls, and a call may wait for a promise. A cancelled handler may start
        # others before it ends, so cancel until hypercorn has returned.
        async with asyncio.timeout(SHUTDOWN_SECONDS):
            while not self._serving.done():
                for call in self._calls:
                    call.cancel()
                await asyncio.wait([self._serving], timeout=CANCEL_INTERVAL)
        try:
            await self._serving
        except* KeyError:
            # Hypercorn 0.18 resets a stream that begins during the shutdown, and fails on its body. That closes the
            # connection.
            pass

    async def _call_without_sigterm(self) -> None:
        """Call the app for the first time, in which the SDK replaces the handler of SIGTERM, and restore that.

        With the handler of the SDK, SIGTERM would not end the tests.
        """
        before = signal.getsignal(signal.SIGTERM)
        with suppress(ValueError):  # the SDK has no lifespan
            await self._app({"type": "lifespan"}, None, None)
        if asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM):
            signal.signal(signal.SIGTERM, before)

    async def _track(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the app in a task that can be cancelled."""
        call = asyncio.current_task()
        assert call is not None, "a coroutine runs in a task"
        self._calls.add(call)
        try:
            await self._app(scope, receive, send)
        finally:
            self._calls.discard(call)
