"""What a session does with the handles it holds: effects with keys of their own."""

from __future__ import annotations

import pytest

from pylash import Lash, ProcessCancelled, ProcessContext
from pylash.durable.commands import (
    GrantHandle,
    StartProcess,
)
from pylash.durable.processes import (
    ExternalInput,
    ProcessRecord,
    Registration,
    SessionRef,
)
from pylash.durable.scopes import RuntimeOperationScope
from pylash.engine.hosts.inline import InlineHost
from pylash.processes.control import ProcessControl
from pylash.values.process_errors import ProcessNotVisible, ProcessRegistryUnavailable
from tests.backends import Backend, OpenedHost
from tests.hosts import HOSTS
from tests.observing_host import ObservingHost
from tests.processes.test_boundary import rows

ROOT, TARGET = SessionRef("root"), SessionRef("target")
PARENT = "root:turn-1:process-control"


async def held(host: OpenedHost, process_id: str, *holders: SessionRef) -> None:
    registry = host.store.processes
    await registry.start(StartProcess(Registration(id=process_id, input=ExternalInput())))
    for holder in holders:
        await registry.perform(GrantHandle(holder, process_id))


@pytest.mark.proves("P3", "P4")
@pytest.mark.parametrize("inline", [False, True], ids=["journal", "inline"])
async def test_control_crosses_the_boundary_under_its_parents_key(
    backend: Backend, inline: bool
) -> None:
    host = await backend.host()
    observed = ObservingHost(InlineHost() if inline else host)
    control = ProcessControl(observed, host.store, host.new_token)
    await held(host, "moves", ROOT)
    await held(host, "sole", ROOT)
    await held(host, "shared", ROOT, TARGET)
    await control.transfer(ROOT, TARGET, ["moves"])
    await control.check_visible(TARGET, ["moves", "shared"])
    with pytest.raises(ProcessNotVisible):
        await control.check_visible(ROOT, ["moves"])
    assert await control.cancel_unreferenced(ROOT) == ["sole"]
    assert [one.id for one in await control.listed(TARGET)] == ["moves", "shared"]
    sole = await host.store.processes.get("sole")
    assert isinstance(sole, ProcessRecord)
    assert sole.state.cancel
    assert (await control.delete_session("target")).handles == 2
    assert len(observed.commands) == 4
    for effect in observed.commands[:3]:
        assert isinstance(effect.execution_scope, RuntimeOperationScope)
        assert effect.replay_key == f"{effect.execution_scope.id}:process:{effect.effect_id}"


@pytest.mark.proves("P3")
async def test_a_command_has_the_key_of_its_parent(backend: Backend) -> None:
    host = await backend.host()
    observed = ObservingHost(host)
    control = ProcessControl(observed, host.store, host.new_token)
    start = StartProcess(Registration(id="p", input=ExternalInput()))
    await control.perform(start, parent=PARENT)
    (effect,) = observed.commands
    assert effect.replay_key == f"{PARENT}:process:start:external"


@pytest.mark.proves("P14")
async def test_without_a_registry_control_is_refused() -> None:
    control = ProcessControl(InlineHost(), None, lambda: "id")
    await control.transfer(ROOT, TARGET, [])
    for work in (
        control.transfer(ROOT, TARGET, ["p"]),
        control.check_visible(ROOT, ["p"]),
        control.cancel_unreferenced(ROOT),
    ):
        with pytest.raises(ProcessRegistryUnavailable, match="process registry is unavailable"):
            await work


@pytest.mark.proves("P4")
@HOSTS
async def test_possession_of_what_one_started_is_enough(kind: str, backend: Backend) -> None:
    app = Lash(backend.url, host=InlineHost() if kind == "inline" else None)

    @app.process
    async def child(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    @app.process
    async def parent(ctx: ProcessContext[None]) -> str | None:
        handle = await ctx.start(child.options(id="child"))
        await handle.cancel("enough")
        try:
            await handle.result()
        except ProcessCancelled as cancelled:
            return cancelled.message
        return None

    async with app:
        handle = await app.start(parent)
        assert "enough" in str(await handle.result(timeout="10s"))
        assert await rows(app, "select count(*) from pylash_process_grants") == [(0,)]
