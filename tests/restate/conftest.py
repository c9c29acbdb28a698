"""A Restate server for each process that runs tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.conftest import skip_or_fail
from tests.restate.server import RestateServer
from tests.restate.server_binary import ServerUnavailable, find_server

FOLDER = Path(__file__).parent


@cache
def reason_to_skip() -> str | None:
    """Return why there is no server program; install it if necessary."""
    try:
        find_server()
    except ServerUnavailable as error:
        return f"Restate tests need its server. {error}"
    return None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install the server before the first test: a download may take longer than a test may."""
    if session.config.option.collectonly:
        return
    if any(item.path.is_relative_to(FOLDER) for item in session.items):
        reason_to_skip()


@pytest.fixture(scope="session")
def restate_server() -> Iterator[RestateServer]:
    """Start one server for all tests of this process."""
    if reason := reason_to_skip():
        skip_or_fail(reason)
    with TemporaryDirectory(prefix="pylash-restate-") as folder:
        server = RestateServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture
async def restate(restate_server: RestateServer) -> AsyncIterator[RestateServer]:
    """Give the server to a test; afterwards it runs, without deployments and running invocations."""
    yield restate_server
    await restate_server.clear()
