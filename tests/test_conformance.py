"""Every host and store keeps every law: one test per law and backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pylash import Lash
from pylash.durable.ports import EffectHost
from pylash.durable.runs import Attached, Fence, JournalEntry
from pylash.durable.scopes import ProcessScope, TurnScope
from pylash.engine.hosts.inline import InlineHost
from pylash.engine.system import SystemClock
from pylash.testing import SerialHost, conformance
from pylash.testing.laws.controllers import DURABLE_STEPS
from pylash.testing.laws.run_memories import RunSubject
from pylash.testing.laws.suites import Law
from tests.backends import Backend, JournalRun, OpenedHost

STORE_LAWS = [
    *conformance.journal_store.laws,
    *conformance.wait_store.laws,
    *conformance.run_store.laws,
    *conformance.worker_store.laws,
    *conformance.process_registry.laws,
    *conformance.trigger_store.laws,
    *conformance.process_env_store.laws,
    *conformance.session_store.laws,
    *conformance.attachment_store.laws,
]
APP_LAWS = [*conformance.app_on_host.laws]
HOST_LAWS = [*conformance.effect_host.laws, *conformance.effect_host_await_events.laws]
STEP_LAWS = [*DURABLE_STEPS.laws]


def named(laws: list[Law[Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("law", laws, ids=lambda law: law.__name__)


@named(STORE_LAWS)
async def test_every_store_keeps(law: Law[Any], backend: Backend, deadlocks: list[str]) -> None:
    await law(await backend.store())
    assert deadlocks == []


@pytest.mark.proves("X2")
@named(APP_LAWS)
async def test_every_app_keeps(law: Law[Lash], backend: Backend) -> None:
    await law(Lash(backend.url))


@pytest.mark.proves("X2")
@pytest.mark.parametrize(
    "host", [InlineHost, lambda: SerialHost(InlineHost())], ids=["inline", "serial"]
)
@named(APP_LAWS)
async def test_an_app_without_a_journal_keeps(law: Law[Lash], host: Any) -> None:
    await law(Lash("memory://", host=host()))


@named(HOST_LAWS)
async def test_every_journal_host_keeps(law: Law[EffectHost], backend: Backend) -> None:
    await law(await backend.host())


@pytest.mark.proves("E6")
@named(HOST_LAWS)
async def test_the_inline_host_keeps(law: Law[EffectHost]) -> None:
    await law(InlineHost())


@named(STEP_LAWS)
async def test_every_journal_controller_keeps(law: Law[Any], backend: Backend) -> None:
    await law((await backend.host()).scoped(TurnScope("s", "t")))


@named(STEP_LAWS)
async def test_the_inline_controller_keeps(law: Law[Any]) -> None:
    await law(InlineHost().scoped(TurnScope("s", "t")))


@pytest.mark.proves("E7")
async def test_every_journal_controller_replays_steps(backend: Backend) -> None:
    host, scope = await backend.host(), TurnScope("s", "t")

    async def start_replay() -> Any:
        return (await host.reopen()).scoped(scope)

    await conformance.effect_controller_durable_steps_replay(host.scoped(scope), start_replay)


@pytest.mark.proves("E8")
async def test_every_journal_controller_replays_overlapping_effects(backend: Backend) -> None:
    host, scope = await backend.host(), TurnScope("s", "t")

    async def start_replay() -> Any:
        return (await host.reopen()).scoped(scope)

    controller = host.scoped(scope)
    await conformance.effect_controller_concurrent_replay_deterministic(controller, start_replay)


async def test_every_journal_controller_replays_by_position_too(backend: Backend) -> None:
    host, scope = await backend.host(), TurnScope("s", "t")

    async def start_replay() -> Any:
        return (await host.reopen()).scoped(scope)

    controller = host.scoped(scope)
    await conformance.effect_controller_positional_replay_deterministic(controller, start_replay)


class OpenedSerialHost(SerialHost):
    """A serial host over a journal that can be opened again."""

    def __init__(self, journal: OpenedHost) -> None:
        super().__init__(journal)
        self._journal = journal

    async def reopen(self) -> SerialHost:
        return SerialHost(await self._journal.reopen())


@pytest.fixture
async def serial(backend: Backend) -> OpenedSerialHost:
    return OpenedSerialHost(await backend.host())


@named(HOST_LAWS)
async def test_the_serial_host_keeps(law: Law[EffectHost], serial: OpenedSerialHost) -> None:
    await law(serial)


@named(STEP_LAWS)
async def test_the_serial_controller_keeps(law: Law[Any], serial: OpenedSerialHost) -> None:
    await law(serial.scoped(TurnScope("s", "t")))


@pytest.mark.proves("E9")
async def test_the_serial_host_replays_one_effect_after_the_other(serial: OpenedSerialHost) -> None:
    scope = TurnScope("s", "t")
    controller = serial.scoped(scope)
    assert not controller.controller.supports_concurrent_effects

    async def start_replay() -> Any:
        return (await serial.reopen()).scoped(scope)

    await conformance.effect_controller_serial_replay_deterministic(controller, start_replay)


class UnrecordedRun:
    """A run on a host that records nothing."""

    def __init__(self, host: EffectHost) -> None:
        self.host = host

    async def claim(self) -> Attached:
        return Attached(Fence(1, 1, ProcessScope("run")), SystemClock().now())

    async def write(self, fence: Fence, entries: Sequence[JournalEntry]) -> None:
        assert not entries

    async def reopen(self) -> UnrecordedRun:
        return UnrecordedRun(type(self.host)())


@pytest.mark.parametrize("wrap", [lambda host: host, SerialHost], ids=["journal", "serial"])
@named([*conformance.run_memory.laws, *conformance.run_records.laws])
async def test_every_journal_host_remembers_its_runs(
    law: Law[RunSubject], backend: Backend, wrap: Callable[[EffectHost], EffectHost]
) -> None:
    await law(JournalRun(await backend.host(), wrap))


@named([*conformance.run_memory.laws])
async def test_the_inline_host_remembers_nothing(law: Law[RunSubject]) -> None:
    await law(UnrecordedRun(InlineHost()))


@pytest.mark.proves("X2")
async def test_the_suites_can_be_called_as_they_are_documented(backend: Backend) -> None:
    await conformance.effect_host(InlineHost)
    await conformance.effect_host_await_events(backend.host)
    await conformance.effect_host_durable_steps(backend.host)
