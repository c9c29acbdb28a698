"""The Restate server of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.restate.apps import sqlite_url
from tests.restate.ports import LOOPBACK, reserved_port
from tests.restate.server import RestateServer


@pytest.fixture
async def restate(restate_server: RestateServer) -> AsyncIterator[RestateServer]:
    """Give the server to a test; afterwards it runs, without deployments and invocations."""
    yield restate_server
    await restate_server.clear()


@pytest.fixture
def shop_environment(
    restate_server: RestateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Set the addresses of ``tests.restate.shop``, with a new store."""
    given = {
        "SHOP_STORE": sqlite_url(tmp_path),
        "SHOP_INGRESS": restate_server.ingress,
        "SHOP_ADMIN": restate_server.admin,
        "SHOP_ENDPOINT": f"http://{LOOPBACK}:{reserved_port()}",
        "SHOP_FILE": str(tmp_path / "naps"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given
