"""Restate keeps the laws of engines, apps and hosts, on a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylash import Lash
from pylash.durable.ports import EffectHost
from pylash.durable.scopes import TurnScope
from pylash.testing import conformance
from pylash.testing.laws.controllers import DURABLE_STEPS, POSITIONALS, REPLAYS, Replays
from pylash.testing.laws.engines.subjects import EngineSubject
from pylash.testing.laws.hosts import every_waiter_gets_the_same_end
from pylash.testing.laws.suites import Law
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.handler_hosts import HandlerCode, HandlerWaits, OnePart
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


# --- the host of an app: effects of callers outside a run are recorded in its store ---

HOST_LAWS = [*conformance.effect_host.laws, *conformance.effect_host_await_events.laws]
ABOUT_KEYS = {
    "the_key_of_a_wait_never_changes",
    "a_key_is_safe_in_a_url",
    "a_blank_identity_is_refused_after_a_blank_scope",
    "what_is_no_answer_is_refused_and_the_wait_stays_open",
}
"""The laws in which nothing waits."""
WAIT_LAWS = [
    law for law in conformance.effect_host_await_events.laws if law.__name__ not in ABOUT_KEYS
]


@pytest.mark.proves("X2")
async def test_the_host_of_an_app_keeps_the_laws_of_hosts(apps: RestateApps) -> None:
    for number, law in enumerate(HOST_LAWS):
        fresh = RestateApps(apps.server, f"{apps.url}-{number}")
        async with fresh.make(submits_only=True) as app:
            await law(app.effect_host)


@pytest.mark.proves("X2")
async def test_controllers_of_the_host_keep_steps(apps: RestateApps) -> None:
    async with apps.make(submits_only=True) as app:
        await conformance.effect_host_durable_steps(lambda: app.effect_host)


@pytest.mark.proves("X2")
@pytest.mark.parametrize(
    "suite",
    [
        conformance.effect_controller_durable_steps_replay,
        conformance.effect_controller_concurrent_replay_deterministic,
        conformance.effect_controller_serial_replay_deterministic,
    ],
    ids=lambda suite: suite.__name__,
)
async def test_controllers_of_the_host_replay(suite: Any, apps: RestateApps) -> None:
    scope, app, again = TurnScope("s", "t"), *(apps.make(submits_only=True) for _ in range(2))

    async def start_replay() -> Any:
        await app.close()
        await again.open()
        return again.effect_host.scoped(scope)

    async with app:
        try:
            await suite(app.effect_host.scoped(scope), start_replay)
        finally:
            await again.close()


# --- handlers: effects of runs are entries of the server's journal ---


@pytest.mark.proves("X2")
async def test_the_controller_of_a_handler_keeps_the_laws_of_steps(apps: RestateApps) -> None:
    await HandlerCode(apps, OnePart(DURABLE_STEPS)).record()


# Not checked in a handler: effects that are asked for in another order than they were recorded in, or that were given up
# by the first attempt and are awaited by the next one. The server refuses both, as other code. Callers of one key share
# its execution through their run, and not through its controller.
@pytest.mark.proves("X2")
@pytest.mark.parametrize(
    ("name", "laws"), [("steps", REPLAYS), ("overlaps", POSITIONALS)], ids=["steps", "overlaps"]
)
async def test_the_next_attempt_of_a_handler_replays(
    name: str, laws: Any, apps: RestateApps
) -> None:
    replays = Replays(name, laws)
    code = HandlerCode(apps, replays)
    process = await code.record()
    await code.replay(process)
    replays.report()


@pytest.mark.proves("X2")
@pytest.mark.parametrize("law", WAIT_LAWS, ids=lambda law: law.__name__)
async def test_waits_in_handlers_keep(law: Law[EffectHost], apps: RestateApps) -> None:
    app = apps.make()
    HandlerWaits.declare(app)
    async with app:
        host = HandlerWaits(apps, app)
        await law(host)
    if law is every_waiter_gets_the_same_end:
        assert host.resumed == 3
