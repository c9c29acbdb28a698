"""A proxy for PostgreSQL that can drop a response: the server commits, and the client never learns of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path


class CuttingProxy:
    """Forwards connections; once armed, it cuts one after a request that holds the given bytes.

    With ``mute`` the connection stays, and nothing comes from it any more.
    """

    def __init__(self, server: Path, folder: Path) -> None:
        self._server = server
        self.folder = folder
        self._cut_after: bytes | None = None
        self.cuts = 0
        self.mute = False
        self._clients: set[asyncio.StreamWriter] = set()

    def arm(self, request: bytes) -> None:
        """Cut the connection of the next request that contains the bytes, after its answer left."""
        self._cut_after = request

    async def start(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, self.folder / ".s.PGSQL.5432")

    async def stop(self) -> None:
        self._listener.close()

    async def cut_all(self, seconds: float) -> None:
        """Cut all connections, and refuse others for a time."""
        await self.stop()
        for client in tuple(self._clients):
            client.transport.abort()
        await asyncio.sleep(seconds)
        await self.start()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        self._clients.add(answers)
        reader, requests = await asyncio.open_unix_connection(self._server / ".s.PGSQL.5432")
        try:
            with suppress(ConnectionError, ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    swallow = asyncio.Event()
                    group.create_task(self._requests(client, requests, swallow))
                    group.create_task(self._answers(reader, answers, swallow))
        finally:
            self._clients.discard(answers)
            requests.close()
            answers.close()

    async def _requests(
        self, client: asyncio.StreamReader, requests: asyncio.StreamWriter, swallow: asyncio.Event
    ) -> None:
        while data := await client.read(65536):
            if self._cut_after is not None and self._cut_after in data:
                self._cut_after = None
                swallow.set()
            requests.write(data)
            await requests.drain()
        raise ConnectionResetError

    async def _answers(
        self, reader: asyncio.StreamReader, answers: asyncio.StreamWriter, swallow: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            if swallow.is_set():
                self.cuts += 1
                if self.mute:
                    continue
                raise ConnectionResetError
            answers.write(data)
            await answers.drain()
        raise ConnectionResetError
