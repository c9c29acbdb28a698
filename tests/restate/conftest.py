"""The Restate server of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.restate.server import RestateServer


@pytest.fixture
async def restate(restate_server: RestateServer) -> AsyncIterator[RestateServer]:
    """Give the server to a test; afterwards it runs, without deployments and invocations."""
    yield restate_server
    await restate_server.clear()
