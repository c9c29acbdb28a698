"""Every engine keeps the laws of engines: one test per law and engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, WorkerConfig
from pylash.testing import SerialHost, conformance, kill
from pylash.testing.laws.engines.subjects import EngineSubject
from pylash.testing.laws.suites import Law
from tests.backends import Backend, SqliteBackend

PARKING = WorkerConfig(park_after="20ms")


class StoreEngine:
    """The worker of a store, with the host of the store or one that wraps it."""

    def __init__(self, url: str, host: Callable[[Any], Any] | None = None) -> None:
        self._url = url
        self._host = host

    def make(self) -> Lash:
        return Lash(self._url, host=self._host, worker=PARKING)

    async def restart(self, app: Lash) -> None:
        await kill(app)


def each_law() -> pytest.MarkDecorator:
    laws = conformance.engine.laws
    return pytest.mark.parametrize("law", laws, ids=lambda law: law.__name__)


@pytest.mark.proves("X2")
@each_law()
async def test_every_worker_keeps(law: Law[EngineSubject], durable: Backend) -> None:
    await law(StoreEngine(durable.url))


@pytest.mark.proves("X2")
@each_law()
async def test_a_worker_on_a_serial_host_keeps(law: Law[EngineSubject], tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path) as backend:
        await law(StoreEngine(backend.url, SerialHost))
