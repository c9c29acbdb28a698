"""Waits that are waited for again: after a time of their own, or after a lost race."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pylash import ArgumentsInvalid, InlineHost, Lash, ProcessContext, WaitTimeout, WorkerConfig
from pylash.durable.ports import EffectHost
from pylash.durable.stores import WaitStatus
from pylash.durable.waits import WaitName
from pylash.stores.store import SqlStore
from pylash.testing import SerialHost, SimClock, crash_everywhere
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_branches import parked

AT_ONCE = WorkerConfig(park_after="0s")
LIVE = WorkerConfig(park_after="1h")
CONFIGS = pytest.mark.parametrize("config", [LIVE, AT_ONCE], ids=["live", "parked"])

Wrap = Callable[[EffectHost], EffectHost]


async def remind(times: int) -> int:
    return times


def add_approval(app: Lash) -> Any:
    """Add a process that reminds a person every day until there is an answer."""

    @app.process
    async def approval(ctx: ProcessContext[None]) -> list[Any]:
        key, times = ctx.wait_key("approval"), 0
        while (answer := await ctx.wait(key, within="1d")) is None:
            times += 1
            await ctx.step(remind, times)
        return [times, answer]

    return approval


@CONFIGS
@pytest.mark.parametrize("host", [None, SerialHost], ids=["by key", "by position"])
async def test_a_wait_stays_open_after_the_time_of_one_call(
    backend: Backend, config: WorkerConfig, host: Wrap | None
) -> None:
    clock = SimClock()
    app = Lash(backend.url, clock=clock, worker=config, host=host)
    approval = add_approval(app)
    async with app:
        handle = await app.start(approval.options(id="a"))
        (first,) = await eventually(app.waits)
        await clock.advance("2.5d")
        (wait,) = await app.waits()
        assert wait.key == first.key
        effects = [(one.name, one.status) for one in await handle.timeline()]
        assert effects == [("approval", "done"), ("remind", "done")] * 2 + [("approval", "open")]
        assert (await app.resolve(wait.key, "yes")).status == "accepted"
        assert await handle.result(timeout="10s") == [2, "yes"]
        assert await app.waits() == []


async def test_a_wait_that_is_waited_for_within_a_time_goes_on_after_a_restart(
    durable: Backend,
) -> None:
    """Each call waits only for the rest of its time, and an answer counts that came while no call waited."""
    clock, keys = SimClock(), []

    def make() -> tuple[Lash, Any]:
        app = Lash(durable.url, clock=clock, worker=LIVE)

        @app.process
        async def approval(ctx: ProcessContext[None]) -> list[Any]:
            key = ctx.wait_key("approval")
            keys.append(key)
            first = await ctx.wait(key, within="1d")
            await ctx.wait_signal("reminded")
            return [first, await ctx.wait(key, within="1d"), await ctx.wait(key)]

        return app, approval

    app, approval = make()
    async with app:
        await app.start(approval.options(id="a"))
        await eventually(app.waits)
        await clock.advance("20h")
    app, _ = make()
    async with app:
        await clock.advance("3h")
        assert [wait.kind for wait in await app.waits()] == ["custom"]
        await clock.advance("1h")
        assert [wait.kind for wait in await app.waits()] == ["signal"]
        assert (await app.resolve(keys[0], "yes")).status == "accepted"
        assert (await app.resolve(keys[0], "no")).status == "already_resolved"
    app, _ = make()
    async with app:
        handle = app.process_handle("a")
        await handle.signal("reminded")
        assert await handle.result(timeout="10s") == [None, "yes", "yes"]


@pytest.mark.parametrize("changed", ["2d", None])
async def test_a_call_keeps_the_time_that_it_began_with(
    durable: Backend, changed: str | None
) -> None:
    clock = SimClock()

    def make(within: str | None) -> tuple[Lash, Any]:
        app = Lash(durable.url, clock=clock)

        @app.process
        async def approval(ctx: ProcessContext[None]) -> Any:
            return await ctx.wait(ctx.wait_key("approval"), within=within)

        return app, approval

    app, approval = make("1d")
    async with app:
        await app.start(approval.options(id="a"))
        await eventually(app.waits)
    app, _ = make(changed)
    async with app:
        await clock.advance("1d")
        assert await app.process_handle("a").result(timeout="10s") is None


async def test_a_fork_keeps_the_calls_whose_time_was_over(backend: Backend) -> None:
    """It asks again for the answer, and not for the days without one."""
    clock = SimClock()
    app = Lash(backend.url, clock=clock)
    approval = add_approval(app)
    async with app:
        handle = await app.start(approval.options(id="a"))
        (wait,) = await eventually(app.waits)
        await clock.advance("2.5d")
        await app.resolve(wait.key, "yes")
        assert await handle.result(timeout="10s") == [2, "yes"]
        fork = await app.fork_process("a", id="fork")
        (wait,) = await eventually(app.waits)
        await app.resolve(wait.key, "no")
        assert await fork.result(timeout="10s") == [2, "no"]


@CONFIGS
async def test_a_deadline_ends_the_wait_also_within_the_time_of_a_call(
    backend: Backend, config: WorkerConfig
) -> None:
    clock = SimClock()
    app = Lash(backend.url, clock=clock, worker=config)

    @app.process
    async def approval(ctx: ProcessContext[None]) -> int:
        key, times = ctx.wait_key("approval"), 0
        try:
            while await ctx.wait(key, timeout="2.5d", within="1d") is None:
                times += 1
        except WaitTimeout:
            return times
        return -1

    async with app:
        handle = await app.start(approval)
        (wait,) = await eventually(app.waits)
        await clock.advance("2.6d")  # not the whole time of the third call
        assert await handle.result(timeout="10s") == 2
        assert (await app.resolve(wait.key, "late")).status == "already_resolved"


@CONFIGS
async def test_an_answer_of_none_differs_from_the_default(
    backend: Backend, config: WorkerConfig
) -> None:
    clock, no_answer = SimClock(), object()
    app = Lash(backend.url, clock=clock, worker=config)

    @app.process
    async def approval(ctx: ProcessContext[None]) -> list[Any]:
        key, times = ctx.wait_key("approval"), 0
        while (answer := await ctx.wait(key, within="1d", default=no_answer)) is no_answer:
            times += 1
        return [times, answer]

    async with app:
        handle = await app.start(approval)
        (wait,) = await eventually(app.waits)
        await clock.advance("2.5d")
        await app.resolve(wait.key, None)
        assert await handle.result(timeout="10s") == [2, None]


async def test_a_default_needs_a_time_of_the_call() -> None:
    """A timeout ends the wait, and is raised."""
    app = Lash("memory://")

    @app.process
    async def approval(ctx: ProcessContext[None]) -> str:
        with pytest.raises(ArgumentsInvalid) as caught:
            await ctx.wait(ctx.wait_key("approval"), timeout="1ms", default=None)
        return caught.value.message

    async with app:
        said = await (await app.start(approval)).result(timeout="10s")
    assert "default= is only for a call with within=" in said


async def test_an_inline_host_knows_waits_within_a_time() -> None:
    clock = SimClock()
    app = Lash("memory://", clock=clock, host=InlineHost())
    approval = add_approval(app)
    async with app:
        handle = await app.start(approval)
        (wait,) = await eventually(app.waits)
        await clock.advance("1.5d")
        await app.resolve(wait.key, "yes")
        assert await handle.result(timeout="10s") == [1, "yes"]


async def test_a_deadline_ends_a_wait_of_an_inline_host_before_the_time_of_the_call() -> None:
    clock = SimClock()
    app = Lash("memory://", clock=clock, host=InlineHost())

    @app.process
    async def approval(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.wait(ctx.wait_key("approval"), timeout="1d", within="2d")
        except WaitTimeout:
            return "late"
        return "never"

    async with app:
        handle = await app.start(approval)
        (wait,) = await eventually(app.waits)
        await clock.advance("1d")
        assert await handle.result(timeout="10s") == "late"
        assert (await app.resolve(wait.key, "yes")).status == "already_resolved"


@CONFIGS
@pytest.mark.parametrize("host", [None, SerialHost], ids=["by key", "by position"])
async def test_a_wait_that_lost_a_race_can_be_waited_for_again(
    backend: Backend, config: WorkerConfig, host: Wrap | None
) -> None:
    clock = SimClock()
    app = Lash(backend.url, clock=clock, worker=config, host=host)

    @app.process
    async def approval(ctx: ProcessContext[None]) -> list[Any]:
        key = ctx.wait_key("approval")
        first = await ctx.race(ctx.sleep("1d"), ctx.wait(key))
        await ctx.wait_signal("reminded")
        return [first, await ctx.wait(key)]

    async with app:
        handle = await app.start(approval)
        # A host that takes one effect at a time has begun the sleep only.
        await eventually(handle.timeline)
        await clock.advance("1d")
        assert [one.kind for one in await app.waits()] == ["signal"]
        await handle.signal("reminded")
        wait = await eventually(lambda: wait_of_kind(app, "custom"))
        assert (await app.resolve(wait.key, "yes")).status == "accepted"
        assert await handle.result(timeout="10s") == [None, "yes"]


async def test_an_answer_between_a_lost_race_and_the_next_wait_counts(durable: Backend) -> None:
    """A replay has the cancelled wait of the race, and not the answer that came after it."""
    app = Lash(durable.url, worker=AT_ONCE)
    keys: list[str] = []

    @app.process
    async def approval(ctx: ProcessContext[None]) -> list[Any]:
        key = ctx.wait_key("approval")
        keys.append(key)
        first = await ctx.race(ctx.wait(key), ctx.sleep("1ms"))
        await ctx.wait_signal("go")
        return [first, await ctx.race(ctx.wait(key), ctx.sleep("1h"))]

    async with app:
        handle = await app.start(approval.options(id="a"))
        await eventually(lambda: is_in_signal(app))
        await parked(app, "a")
        assert (await app.resolve(keys[0], "yes")).status == "accepted"
        await handle.signal("go")
        assert await handle.result(timeout="10s") == [None, "yes"]


async def is_in_signal(app: Lash) -> bool:
    return [wait.kind for wait in await app.waits()] == ["signal"]


@EVERY_ENGINE
async def test_another_branch_still_waits_when_one_leaves(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def approval(ctx: ProcessContext[None]) -> list[Any]:
        key = ctx.wait_key("approval")

        async def wait(within: str) -> Any:
            return await ctx.wait(key, within=within)

        return await ctx.gather(wait("1ms"), wait("1h"))

    async with app:
        handle = await app.start(approval.options(id="a"))
        await eventually(lambda: has_left(app))
        (wait,) = await app.waits()
        await app.resolve(wait.key, "yes")
        assert await handle.result(timeout="10s") == [None, "yes"]


async def has_left(app: Lash) -> bool:
    statuses = [one.status for one in await app.process_handle("a").timeline()]
    return sorted(statuses) == ["done", "open"]


async def test_a_wait_of_a_process_that_is_cancelled_ends(durable: Backend) -> None:
    """Also in a race: the process ends, and nothing waits again."""
    app = Lash(durable.url)

    @app.process
    async def approval(ctx: ProcessContext[None]) -> Any:
        key = ctx.wait_key("approval")
        return await ctx.race(ctx.wait(key), ctx.sleep("1h"))

    async with app:
        handle = await app.start(approval)
        (wait,) = await eventually(app.waits)
        await handle.cancel()
        await eventually(lambda: has_ended(app, handle.id))
        assert (await app.resolve(wait.key, "yes")).status == "already_resolved"


async def test_an_approval_that_lost_a_race_ends(durable: Backend) -> None:
    """Unlike a wait of the process itself: no code can wait for it again."""
    app = Lash(durable.url)

    @app.tool(approval=True)
    async def pay() -> None:
        """Pay."""
        raise AssertionError

    @app.process
    async def paying(ctx: ProcessContext[None]) -> None:
        await ctx.race(ctx.call_tool("pay"), ctx.wait_signal("go"))
        await ctx.wait_signal("end")

    async with app:
        handle = await app.start(paying)
        wait = await eventually(lambda: wait_of_kind(app, "approval"))
        await handle.signal("go")
        await eventually(lambda: is_gone(app, "approval"))
        assert (await app.resolve(wait.key, True)).status == "already_resolved"
        await handle.signal("end")
        await handle.result(timeout="10s")


async def wait_of_kind(app: Lash, kind: str) -> Any:
    return next((wait for wait in await app.waits() if wait.kind == kind), None)


async def is_gone(app: Lash, kind: str) -> bool:
    return await wait_of_kind(app, kind) is None


async def has_ended(app: Lash, process_id: str) -> bool:
    return await app.process_handle(process_id).status() == "cancelled"


def make_reminding_app(store: str) -> Lash:
    app = Lash(store, worker=AT_ONCE)

    @app.process
    async def reminding(ctx: ProcessContext[None]) -> list[Any]:
        key = ctx.wait_key("approval")
        lost = await ctx.race(ctx.wait(key), ctx.sleep("20ms"))
        first = await ctx.wait(key, within="20ms")
        await ctx.emit("reminded", key)
        return [lost, first, await ctx.wait(key, within="1h"), await ctx.wait(key)]

    return app


async def reminding_story(app: Lash) -> list[Any]:
    reminding = app.services.definitions["reminding"]
    handle = await app.start(reminding.options(id="reminding"))
    async for event in handle.events(follow=True):
        if event.type == "reminded":
            await app.resolve(event.payload, "yes")
            break
    result: list[Any] = await handle.result(timeout="20s")
    return result


def test_a_wait_that_is_waited_for_again_ends_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(make_reminding_app, reminding_story)
    assert report.outcome == [None, None, "yes", "yes"]
    assert "leave" in {point.operation for point in report.points}


@pytest.mark.parametrize("limit", ["timeout", "within"])
async def test_a_wait_whose_time_is_over_enters_the_code_once_more(
    durable: Backend, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is parked at once must not be parked again while the end of its wait is written, however slowly."""
    app = Lash(durable.url, worker=AT_ONCE)
    entries = 0

    @app.process
    async def late(ctx: ProcessContext[None]) -> str:
        nonlocal entries
        entries += 1
        try:
            answer = await ctx.wait(ctx.wait_key("never"), **{limit: "200ms"})
        except WaitTimeout:
            answer = None
        return "late" if answer is None else "answered"

    async with app:
        assert isinstance(app.store, SqlStore)
        honest = app.store.waits.expire

        async def slow(name: WaitName) -> WaitStatus:
            await asyncio.sleep(0.1)
            return await honest(name)

        monkeypatch.setattr(app.store.waits, "expire", slow)
        handle = await app.start(late)
        assert await handle.result(timeout="20s") == "late"
    # The second may come a moment early by the clock of the worker, and is parked for that moment.
    assert 2 <= entries <= 3
