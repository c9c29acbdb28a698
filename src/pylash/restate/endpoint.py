"""The endpoint that the server calls: an ASGI application, served with HTTP/2 in this process or by another server."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import hypercorn.protocol
from h2.events import DataReceived, Event
from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.protocol.h2 import H2Protocol

from pylash.tasks import TaskOwner
from pylash.values.process_errors import EndpointInvalid, EndpointTaken

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

STREAMS: Final = 10_000
"""Attempts that one connection of the server may have under way: hypercorn allows 100, which is less than the server uses."""
CALLS: Final = 2**63 - 1
"""Calls that one connection may have in its life: after 1,000 hypercorn closes it, with all attempts that are under way on it."""
CLOSE_SECONDS: Final = 10.0
CANCEL_SECONDS: Final = 0.05
"""How often calls are cancelled while the endpoint closes: one that is cancelled may begin another."""

_log = logging.getLogger("pylash")


class Address(NamedTuple):
    """Where a worker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class PatientConnection(H2Protocol):
    """A connection of the server that survives input for a call which has ended.

    The server may send a completion at the moment at which an attempt ends. Hypercorn 0.18 then closes the connection, with all
    attempts that are under way on it, and what they execute would be executed again.
    """

    async def _handle_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, DataReceived) and event.stream_id not in self.streams:
                # Its bytes count against the window of the connection until they are acknowledged.
                size = event.flow_controlled_length
                self.connection.acknowledge_received_data(size, event.stream_id)
            else:
                await super()._handle_events([event])
        await self._flush()


class EndpointServer:
    """Serves an application at an address until it is closed, which ends the calls that are under way."""

    def __init__(self, app: AsgiApp, address: Address, tasks: TaskOwner) -> None:
        self._app = app
        self._address = address
        self._tasks = tasks
        self._calls: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()

    async def open(self) -> None:
        """Listen: from now on the server can connect."""
        await prepare(self._app)
        # Hypercorn has no option for the class of connections; it looks the name up when one is opened.
        hypercorn.protocol.H2Protocol = PatientConnection  # type: ignore[attr-defined]
        config = Config()
        # Connections wait in the backlog of the socket until hypercorn accepts them; it closes the socket.
        config.bind = [f"fd://{await asyncio.to_thread(_listen, self._address)}"]
        config.h2_max_concurrent_streams = STREAMS
        config.keep_alive_max_requests = CALLS
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


class Opens(Protocol):
    """An app, as far as its endpoint opens and closes it."""

    async def open(self) -> None:
        """Open it; nothing if it is open."""
        ...

    async def close(self) -> None:
        """Close it; nothing if it is not open."""
        ...


class ServedApp:
    """An app and its endpoint as an ASGI application: its lifespan opens and closes the app."""

    def __init__(self, app: Opens, endpoint: AsgiApp) -> None:
        self._app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection of an ASGI server."""
        if scope["type"] != "lifespan":
            await self._endpoint(scope, receive, send)
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await _report(send, "startup", self._app.open)
            else:
                await _report(send, "shutdown", self._app.close)
                return


async def _report(send: Any, what: str, call: Callable[[], Awaitable[None]]) -> None:
    """Tell the ASGI server how opening or closing ended."""
    try:
        await call()
    except Exception as error:
        await send({"type": f"lifespan.{what}.failed", "message": str(error)})
        raise
    await send({"type": f"lifespan.{what}.complete"})


async def prepare(app: AsgiApp) -> None:
    """Call the application of the SDK for the first time, in a thread.

    At its first call it installs a handler of SIGTERM, which would take that of the program. In a thread it cannot.
    """

    async def call() -> None:
        with suppress(ValueError):  # it has no lifespan
            await app({"type": "lifespan"}, None, None)

    await asyncio.to_thread(lambda: asyncio.run(call()))


def address_in(url: str) -> Address:
    """Return where a worker listens whose endpoint has this URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise EndpointInvalid(url, str(error)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise EndpointInvalid(url, "it does not begin with http://HOST")
    return Address(parts.hostname, port or (443 if parts.scheme == "https" else 80))


def bind_address(bind: str) -> Address:
    """Return the address in a text such as 0.0.0.0:9080, :9080 or [::]:9080."""
    host, colon, port = bind.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise EndpointInvalid(bind, "bind is an address and a port, such as 0.0.0.0:9080")
    return Address(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - what the user asks for


def _listen(address: Address) -> int:
    """Return a socket that listens, as a file descriptor."""
    try:
        family, *_, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        # Several workers may share the address: the server connects to any of them.
        listener = socket.create_server(place[:2], family=family, backlog=1024, reuse_port=True)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            reason = "it is not an address of this machine"
        elif error.errno == errno.EADDRINUSE:
            reason = "another program listens there"
        raise EndpointTaken(address, reason) from error
    return listener.detach()
