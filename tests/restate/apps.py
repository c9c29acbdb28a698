"""Apps on a Restate server, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pylash import Lash, WorkerConfig
from pylash.restate import RestateHost
from tests.restate.ports import LOOPBACK, reserved_port
from tests.restate.server import RestateServer


class RestateApps:
    """Makes apps on one store and one endpoint, one open at a time: the next one continues the runs of the one before."""

    def __init__(self, server: RestateServer, url: str) -> None:
        self.server = server
        self.url = url
        self.endpoint = f"http://{LOOPBACK}:{reserved_port()}"

    def make(self, *, submits_only: bool = False, **options: Any) -> Lash:
        """Return an app. One that only submits may be open beside another one."""
        # A step that is executed while the app closes is cut off soon.
        worker = None if submits_only else WorkerConfig(park_after="100ms", grace="200ms")
        return Lash(self.url, host=self.host(), worker=worker, **options)

    def host(self) -> RestateHost:
        """Return the host of an app."""
        return RestateHost(
            ingress=self.server.ingress,
            admin=self.server.admin,
            endpoint=self.endpoint,
        )


def sqlite_url(folder: Path) -> str:
    """Return the URL of a new store."""
    return f"sqlite:///{folder / 'store.db'}"
