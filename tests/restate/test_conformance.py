"""Restate keeps the laws of engines, apps and hosts, on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylash import Lash
from pylash.testing import conformance
from pylash.testing.laws.engines.subjects import EngineSubject
from pylash.testing.laws.suites import Law
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.server import RestateServer


@pytest.fixture
def apps(restate: RestateServer, tmp_path: Path) -> RestateApps:
    return RestateApps(restate, sqlite_url(tmp_path))


class RestateEngine:
    """The server as an engine: it executes the runs of an app that was closed again, from their beginning."""

    def __init__(self, apps: RestateApps) -> None:
        self._apps = apps

    def make(self) -> Lash:
        return self._apps.make()

    async def restart(self, app: Lash) -> None:
        await app.close()


@pytest.mark.proves("X1", "X2")
@pytest.mark.parametrize("law", conformance.engine.laws, ids=lambda law: law.__name__)
async def test_restate_keeps(law: Law[EngineSubject], apps: RestateApps) -> None:
    await law(RestateEngine(apps))


@pytest.mark.proves("X2")
@pytest.mark.parametrize("law", conformance.app_on_host.laws, ids=lambda law: law.__name__)
async def test_an_app_on_restate_keeps(law: Law[Lash], apps: RestateApps) -> None:
    await law(apps.make())
