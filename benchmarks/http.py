"""As much HTTP as it takes to talk to a server on this machine, quickly.

Rule 1. A general client costs a millisecond of this machine for every request, which would be
        counted as the server's.
Rule 2. A connection carries one request at a time and is used again afterwards.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class HttpError(Exception):
    """The server refused."""


@dataclass(frozen=True, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Client:
    """Requests to the server behind a Unix socket, over as many connections as are needed."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._idle: list[_Connection] = []

    async def get(self, path: str) -> Any:
        """Return what the server has at path."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, value: Any = None) -> Any:
        """Return the server's answer to value."""
        return await self._ask("POST", path, json.dumps(value).encode())

    def close(self) -> None:
        """Close every connection."""
        while self._idle:
            self._idle.pop().writer.close()

    async def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n"
        if body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        connection = self._idle.pop() if self._idle else await self._connected()
        connection.writer.write(head.encode() + b"\r\n" + (body or b""))
        status, answer = await _answer(connection.reader)
        self._idle.append(connection)
        if status >= 300:
            raise HttpError(f"{method} {path}: {status} {answer[:500].decode(errors='replace')}")
        return json.loads(answer) if answer else None

    async def _connected(self) -> _Connection:
        return _Connection(*await asyncio.open_unix_connection(str(self._socket)))


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().splitlines()
    headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join([part async for part in _chunks(reader)])
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(head[0].split()[1]), body


async def _chunks(reader: asyncio.StreamReader) -> Any:
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
