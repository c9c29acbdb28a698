"""What a session does with the handles it holds: effects with keys of their own."""

from __future__ import annotations

import pytest

from pylash.durable.commands import StartProcess
from pylash.durable.effects import Envelope, Outcome
from pylash.durable.ports import EffectController, LocalExecutor, ScopedController
from pylash.durable.processes import (
    ExternalInput,
    HandleGrant,
    ProcessRecord,
    Registration,
    SessionRef,
    SessionReport,
)
from pylash.durable.scopes import RuntimeOperationScope
from pylash.engine.hosts.inline import InlineHost
from pylash.processes.control import ProcessControl
from pylash.values.process_errors import ProcessNotVisible, ProcessRegistryUnavailable
from tests.backends import Backend, OpenedHost

ROOT, TARGET = SessionRef("root"), SessionRef("target")
SCOPE = RuntimeOperationScope("transfer")
PARENT = "root:turn-1:process-control"


class Recording(EffectController):
    """Keeps the keys of what it was asked."""

    def __init__(self, inner: EffectController) -> None:
        self._inner = inner
        self.keys: list[str | None] = []

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        self.keys.append(envelope.invocation.replay_key)
        return await self._inner.execute(envelope, local)


async def held(host: OpenedHost, process_id: str, *holders: SessionRef) -> None:
    registry = host.store.processes
    await registry.start(StartProcess(Registration(id=process_id, input=ExternalInput())))
    for holder in holders:
        await registry.grant(HandleGrant(holder, process_id))


@pytest.mark.proves("P3")
@pytest.mark.parametrize("inline", [False, True], ids=["journal", "inline"])
async def test_control_crosses_the_boundary_under_its_parents_key(
    backend: Backend, inline: bool
) -> None:
    host = await backend.host()
    controller = InlineHost() if inline else host.scoped(SCOPE).controller
    recording = Recording(controller)
    control = ProcessControl(ScopedController(recording, SCOPE), host.store.processes, PARENT)
    await held(host, "moves", ROOT)
    await held(host, "sole", ROOT)
    await held(host, "shared", ROOT, TARGET)
    await control.transfer(ROOT, TARGET, ["moves"])
    await control.check_visible(TARGET, ["moves", "shared"])
    with pytest.raises(ProcessNotVisible):
        await control.check_visible(ROOT, ["moves"])
    assert await control.cancel_unreferenced(ROOT) == ["sole"]
    assert [one["id"] for one in await control.listed(TARGET)] == ["moves", "shared"]
    sole = await host.store.processes.get("sole")
    assert isinstance(sole, ProcessRecord)
    assert sole.state.cancel
    assert await control.delete_session("target") == SessionReport(handles=2)
    assert all(str(key).startswith(f"{PARENT}:process:") for key in recording.keys)
    assert len(recording.keys) == 4


async def test_control_is_answered_from_the_record(backend: Backend) -> None:
    host = await backend.host()
    await held(host, "sole", ROOT)
    control = ProcessControl(host.scoped(SCOPE), host.store.processes, PARENT)
    assert await control.cancel_unreferenced(ROOT) == ["sole"]
    await held(host, "later", ROOT)
    assert await control.cancel_unreferenced(ROOT) == ["sole"]
    assert len(await host.store.processes.grants(ROOT)) == 1


@pytest.mark.proves("P4")
async def test_possession_of_what_one_started_is_enough(backend: Backend) -> None:
    host = await backend.host()
    control = ProcessControl(host.scoped(SCOPE), host.store.processes, PARENT, started=["mine"])
    await control.check_visible(ROOT, ["mine"])


@pytest.mark.proves("P14")
async def test_without_a_registry_control_is_refused() -> None:
    control = ProcessControl(InlineHost().scoped(SCOPE), None, PARENT)
    await control.transfer(ROOT, TARGET, [])
    for work in (
        control.transfer(ROOT, TARGET, ["p"]),
        control.check_visible(ROOT, ["p"]),
        control.cancel_unreferenced(ROOT),
    ):
        with pytest.raises(ProcessRegistryUnavailable, match="process registry is unavailable"):
            await work
