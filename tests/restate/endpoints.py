"""The endpoint that a Restate server calls, served in the event loop of a test."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pylash.restate.endpoint import Address, EndpointServer
from pylash.tasks import TaskOwner
from tests.restate.ports import LOOPBACK, free_port


class Endpoint:
    """Serves an app of ``restate.app`` as an app of ours is served: ``async with Endpoint(app) as url``.

    Leaving it ends the calls that are running, as the end of a worker process does: their handlers are cancelled, and
    the server retries them. The same ``port`` again is the same URL, to which the server sends them.
    """

    def __init__(self, app: Any, port: int | None = None) -> None:
        self.port = port or free_port()
        self._server = EndpointServer(app, Address(LOOPBACK, self.port), TaskOwner())

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    async def __aenter__(self) -> str:
        await self._server.open()
        return self.url

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.close()
