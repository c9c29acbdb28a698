"""The inline host, and hosts without waits or static scopes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from pylash import Lash, ProcessContext
from pylash.durable.effects import (
    AwaitEvent,
    AwaitEventOutcome,
    Command,
    Envelope,
    Outcome,
    Process,
    RuntimeScope,
    Sleep,
    SleepOutcome,
    envelope,
)
from pylash.durable.ports import (
    DurabilityTier,
    EffectController,
    EffectHost,
    LocalExecutor,
    ScopedController,
)
from pylash.durable.scopes import ExecutionScope, ProcessScope
from pylash.durable.waits import CustomWait, Ok, Timeout
from pylash.engine.executors import (
    Executor,
    await_options,
    process_executor,
    sleep_executor,
    step_executor,
)
from pylash.engine.hosts.inline import InlineHost
from pylash.testing import SimClock
from pylash.testing.laws.controllers import step
from pylash.values.errors import LashError, RuntimeEffectSleepCancelled
from tests.backends import eventually

SCOPE = ProcessScope("p")


@pytest.mark.proves("E6")
async def test_the_inline_host_records_nothing_and_still_takes_durable_effects() -> None:
    host = InlineHost()
    assert host.supports_durable_effects
    assert host.durability is DurabilityTier.INLINE
    executed = list[int]()

    async def run(_: Any) -> int:
        executed.append(1)
        return len(executed)

    controller = host.scoped(SCOPE)
    values: list[Any] = [
        await controller.execute(step("again"), step_executor(run)) for _ in range(2)
    ]
    assert [outcome.value for outcome in values] == [1, 2]


async def test_waits_of_two_inline_hosts_have_nothing_in_common() -> None:
    one, two = InlineHost(), InlineHost()
    key = await one.wait_key(SCOPE, CustomWait("go"))
    assert (await two.resolve(key, Ok(1))).status == "unknown_or_revoked"
    assert (await one.resolve(key, Ok(1))).status == "accepted"


async def test_apps_that_share_an_inline_host_answer_each_others_waits() -> None:
    host = InlineHost()
    asking, answering = Lash("memory://", host=host), Lash("memory://", host=host)

    @asking.process
    async def ask(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait(ctx.wait_key("answer"))

    async with asking, answering:
        handle = await asking.start(ask)
        (wait,) = await eventually(answering.waits)
        assert (await answering.resolve(wait.key, "yes")).status == "accepted"
        assert await handle.result(timeout="10s") == "yes"


async def test_process_commands_are_refused_until_there_is_a_registry() -> None:
    asked = envelope(Process({"start": "x"}), scope=RuntimeScope(), effect_id="p", replay_key="p")
    with pytest.raises(LashError) as caught:
        await InlineHost().scoped(SCOPE).execute(asked, process_executor())
    assert caught.value.code == "runtime_effect_local_executor_unavailable"


class BareController(EffectController):
    """Has nothing but execute."""

    async def execute(self, envelope: Envelope, local: LocalExecutor) -> Outcome:
        return SleepOutcome()


class BareHost(EffectHost):
    """Has no waits and no static scopes."""

    gives_static_scopes = False

    def scoped(self, scope: ExecutionScope) -> ScopedController:
        return ScopedController(BareController(), scope)


@pytest.mark.proves("E13")
@pytest.mark.parametrize("bare", [BareHost(), BareController()])
async def test_a_host_without_waits_raises_an_error(bare: BareHost | BareController) -> None:
    for work in (bare.wait_key(SCOPE, CustomWait("go")), bare.wait("key")):
        with pytest.raises(LashError) as caught:
            await work
        assert caught.value.code == "await_event_unsupported"
    assert (await bare.resolve("key", Ok(1))).status == "unknown_or_revoked"
    await bare.revoke_waits("session")


@pytest.mark.proves("E13")
def test_a_host_without_static_scopes_gives_none() -> None:
    host = BareHost()
    assert host.scoped_static(SCOPE) is None
    assert host.scoped(SCOPE).scope_id == "p"
    assert not host.supports_durable_effects
    assert host.supports_concurrent_effects
    assert not host.requires_durable_attachment_store


@pytest.mark.proves("P3")
async def test_registry_work_outlives_its_caller() -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def work(_command: object, _timeout: int | None) -> str:
        begun.set()
        await asyncio.sleep(0.01)
        done.set()
        return "kept"

    command = Process({"do": "list", "holder": {"type": "session", "session_id": "s"}})
    asked = envelope(command, scope=RuntimeScope(), effect_id="p", replay_key="p")
    async with asyncio.TaskGroup() as group:
        host = InlineHost()
        caller = group.create_task(_ignored(host.execute(asked, process_executor(work))))
        await begun.wait()
        caller.cancel()
    await asyncio.wait_for(done.wait(), 5)


async def _ignored(work: Awaitable[object]) -> None:
    await work


async def test_registry_work_that_breaks_is_reported_with_its_code() -> None:
    async def work(_command: object, _timeout: int | None) -> None:
        raise OSError("gone")

    command = Process({"do": "list", "holder": {"type": "session", "session_id": "s"}})
    asked = envelope(command, scope=RuntimeScope(), effect_id="p", replay_key="p")
    with pytest.raises(LashError) as caught:
        await InlineHost().execute(asked, process_executor(work))
    assert caught.value.code == "runtime_effect_process_task_join"


# --- time ---


async def asked_of(host: InlineHost, command: Command, local: Executor) -> Outcome:
    wanted = envelope(command, scope=RuntimeScope(), effect_id="e", replay_key="e")
    return await host.scoped(SCOPE).execute(wanted, local)


async def ends_after(clock: SimClock, work: Awaitable[Outcome]) -> Outcome:
    """Return the outcome of work that takes a minute of a clock, and no less."""
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(_awaited(work))
        await asyncio.sleep(0)
        await clock.advance("59s")
        assert not task.done()
        await clock.advance("1s")
    return task.result()


async def _awaited(work: Awaitable[Outcome]) -> Outcome:
    return await work


@pytest.mark.proves("E10")
async def test_sleeps_and_waits_take_the_time_of_the_clock_of_the_host() -> None:
    clock = SimClock()
    host = InlineHost(clock)
    slept = asked_of(host, Sleep(60_000), sleep_executor())
    assert await ends_after(clock, slept) == SleepOutcome()
    key = await host.wait_key(SCOPE, CustomWait("go"))
    waited = asked_of(host, AwaitEvent(key), await_options(timeout="1m"))
    assert await ends_after(clock, waited) == AwaitEventOutcome(Timeout())


@pytest.mark.proves("E10")
async def test_the_clock_of_an_executor_comes_before_that_of_the_host() -> None:
    clock = SimClock()
    slept = asked_of(InlineHost(SimClock()), Sleep(60_000), sleep_executor(clock=clock))
    assert await ends_after(clock, slept) == SleepOutcome()


@pytest.mark.proves("E10")
async def test_a_sleep_of_the_host_can_be_cancelled() -> None:
    cancel = asyncio.Event()
    host = InlineHost(SimClock())
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        slept = _awaited(asked_of(host, Sleep(60_000), sleep_executor(cancel)))
        task = group.create_task(_failure(slept))
        await asyncio.sleep(0)
        cancel.set()
    assert isinstance(task.result(), RuntimeEffectSleepCancelled)
    assert task.result().code == "runtime_effect_sleep_cancelled"


async def _failure(work: Awaitable[Outcome]) -> LashError:
    with pytest.raises(LashError) as caught:
        await work
    return caught.value
