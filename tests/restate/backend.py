"""Restate as a backend of tests that run on every engine."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from pylash import Lash
from tests.backends import SqliteBackend
from tests.restate.apps import RestateApps
from tests.restate.server import RestateServer


class RestateBackend(SqliteBackend):
    """A fresh SQLite file, and the server of this process, which executes the runs of its apps."""

    def __init__(self, folder: Path, server: RestateServer) -> None:
        super().__init__(folder)
        self._server = server
        self._apps = RestateApps(server, self.url)

    def app(self, **options: Any) -> Lash:
        return Lash(self.url, **{"host": self._apps.host(), **options})

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await self._server.clear()
