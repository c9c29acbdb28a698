"""Code that changes under a recorded run on a real Restate server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessContext, TurnBlocked
from pylash.engine.worker import blocked_runs
from pylash.restate import controller
from pylash.tasks import TaskOwner
from pylash.testing import ScriptedModel, call, say
from tests.backends import eventually
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.server import RestateServer
from tests.restate.stories import Story


@pytest.fixture
def apps(restate: RestateServer, tmp_path: Path) -> RestateApps:
    return RestateApps(restate, sqlite_url(tmp_path))


@pytest.fixture
def story(apps: RestateApps) -> Story:
    return Story(apps)


async def test_another_order_blocks_after_one_attempt_and_says_what_was_recorded(
    story: Story,
) -> None:
    attempts: list[str] = []

    async def old(ctx: ProcessContext[None]) -> None:
        await story.step(ctx, "charge")
        await ctx.wait_signal("go")

    async def new(ctx: ProcessContext[None]) -> None:
        attempts.append("new")
        await story.step(ctx, "check")
        await old(ctx)

    await story.record(old)
    app = story.app(new)
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go")
        reason = await story.until_blocked(handle)
        assert "effect_replay_diverged" in reason
        assert (
            "The code asks for 'check' where 'charge' is expected, which was recorded at" in reason
        )
        assert "ctx.patched()" in reason
        await story.until_server_says("paused")
        (shown,) = await app.processes()
        assert (shown.status, (shown.reason or "").partition(":")[0]) == (
            "blocked",
            "effect_replay_diverged",
        )
    assert attempts == ["new"]
    assert story.executed == ["charge"]


async def test_a_retry_goes_on_by_key_if_the_order_has_changed(story: Story) -> None:
    async def old(ctx: ProcessContext[None]) -> list[Any]:
        first = await story.step(ctx, "a")
        second = await story.step(ctx, "b")
        await ctx.sleep("10ms")
        return [first, second, await ctx.wait_signal("go"), await story.step(ctx, "end")]

    async def new(ctx: ProcessContext[None]) -> list[Any]:
        second = await story.step(ctx, "b")
        first = await story.step(ctx, "a")
        await ctx.sleep("10ms")
        return [first, second, await ctx.wait_signal("go"), await story.step(ctx, "end")]

    await story.record(old)
    app = story.app(new)
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go", 5)
        reason = await story.until_blocked(handle)
        assert "The code asks for 'b' where 'a' is expected" in reason
        await story.until_server_says("paused")
        await app.retry(story.id)
        assert await handle.result(timeout="20s") == ["a", "b", 5, "end"]
    assert story.executed == ["a", "b", "end"]
    assert await story.statuses() == {story.id: "completed", f"{story.id}~0~1": "completed"}


async def charge_twice(story: Story, ctx: ProcessContext[None]) -> None:
    await ctx.options(key="charge").step(story.say, "charge twice")
    await ctx.wait_signal("go")


async def end_early(_: Story, __: ProcessContext[None]) -> None:
    return


async def fail_early(_: Story, __: ProcessContext[None]) -> None:
    raise ValueError("no such order")


async def drop_the_wait(story: Story, ctx: ProcessContext[None]) -> None:
    await story.step(ctx, "charge")
    await story.step(ctx, "ship")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (charge_twice, '$.command.input.args[0]: recorded "charge", now "charge twice"'),
        (end_early, "The code ends where 'charge' is expected"),
        (fail_early, "ends with process_failed: no such order where 'charge' is expected"),
        (drop_the_wait, "asks for 'ship' where 'go' (root:process:wait_signal:go) is expected"),
    ],
)
async def test_other_changes_in_the_recorded_part_block(
    story: Story,
    changed: Callable[[Story, ProcessContext[None]], Awaitable[None]],
    reason: str,
) -> None:
    async def old(ctx: ProcessContext[None]) -> str:
        await story.step(ctx, "charge")
        await ctx.wait_signal("go")
        return "done"

    await story.record(old)
    app = story.app(lambda ctx: changed(story, ctx))
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go")
        assert reason in await story.until_blocked(handle)
        await story.until_server_says("paused")
    app = story.app(old)
    async with app:
        await app.retry(story.id)
        assert await app.process_handle(story.id).result(timeout="20s") == "done"
    assert await story.statuses() == {story.id: "completed"}
    assert story.executed == ["charge"]


async def test_a_retry_keeps_the_rules_of_a_replay_by_key(story: Story) -> None:
    async def old(ctx: ProcessContext[None]) -> str:
        await story.step(ctx, "charge")
        await ctx.wait_signal("go")
        return "done"

    async def new(ctx: ProcessContext[None]) -> str:
        await ctx.options(key="bill").step(story.say, "charge")
        await ctx.wait_signal("go")
        return "done"

    await story.record(old)
    app = story.app(new)
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go")
        first = await story.until_blocked(handle)
        await story.until_server_says("paused")
        await app.retry(story.id)

        async def is_moved() -> bool | None:
            return (await story.statuses()).get(f"{story.id}~0~1") == "paused" or None

        await eventually(is_moved)
        assert await story.until_blocked(handle) == first
    app = story.app(new, renamed={"charge": "bill"})
    async with app:
        await app.retry(story.id)
        assert await app.process_handle(story.id).result(timeout="20s") == "done"
    assert story.executed == ["charge"]


async def test_a_move_keeps_times_races_and_cancelled_steps(story: Story) -> None:
    seen: list[Any] = []

    async def slow() -> None:
        story.executed.append("slow")
        await asyncio.sleep(60)

    async def common(ctx: ProcessContext[None]) -> None:
        now = ctx.now()
        await ctx.options(key="at").step(story.say, now.isoformat())
        winner = await ctx.race(ctx.step(slow), story.step(ctx, "quick"))
        seen.append((now, winner))
        await ctx.sleep("1ms")

    async def old(ctx: ProcessContext[None]) -> None:
        await story.step(ctx, "a")
        await common(ctx)
        await ctx.wait_signal("go")

    async def new(ctx: ProcessContext[None]) -> str:
        await common(ctx)
        await story.step(ctx, "a")
        await ctx.wait_signal("go")
        return "done"

    await story.record(old)
    app = story.app(new)
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go")
        await story.until_blocked(handle)
        await story.until_server_says("paused")
        await app.retry(story.id)
        assert await handle.result(timeout="20s") == "done"
    assert len(set(seen)) == 1
    assert story.executed.count("slow") == 1
    assert [one for one in story.executed if one in ("a", "quick")] == ["a", "quick"]


async def test_patched_is_false_where_something_is_recorded_behind_and_true_elsewhere(
    story: Story,
) -> None:
    async def old(ctx: ProcessContext[None]) -> list[Any]:
        await story.step(ctx, "a")
        await ctx.wait_signal("go")
        return []

    async def new(ctx: ProcessContext[None]) -> list[Any]:
        taken = [await ctx.patched("early")]
        if taken[0]:
            await story.step(ctx, "early")
        await story.step(ctx, "a")
        await ctx.wait_signal("go")
        taken.append(await ctx.patched("late"))
        if taken[1]:
            await story.step(ctx, "late")
        await ctx.wait_signal("end")
        return [*taken, await ctx.patched("early"), await ctx.patched("late")]

    await story.record(old)
    app = story.app(new)
    async with app:
        handle = app.process_handle(story.id)
        await handle.signal("go")

        async def has_said_late() -> bool | None:
            return "late" in story.executed or None

        await eventually(has_said_late)
        await story.until_server_says("suspended")
        await handle.signal("end")
        assert await handle.result(timeout="20s") == [False, True, False, True]
        fresh = await app.start(app.definitions["story"])
        await fresh.signal("go")
        await fresh.signal("end")
        assert await fresh.result(timeout="20s") == [True] * 4
    assert story.executed == ["a", "late", "early", "a", "late"]


async def test_a_turn_is_blocked_until_the_tool_that_it_waits_to_call_is_back(
    story: Story,
) -> None:
    apps, session_id = story.apps, f"chat-{abs(hash(story.apps.url))}"
    story.id = f"{session_id}|t1"

    def make(*, has_tool: bool) -> Lash:
        app = apps.make(model=ScriptedModel([call("pay", cents=5), say("paid")]))

        @app.tool(approval=True, name="pay" if has_tool else "other")
        async def pay(cents: int) -> str:
            """Pay."""
            return await story.say(f"paid {cents}")

        return app

    app, tasks = make(has_tool=True), TaskOwner()
    async with app:
        tasks.start(app.session(session_id).turn("Pay", turn_id="t1"))
        await story.until_server_says("suspended")
        await tasks.close()
    app = make(has_tool=False)
    async with app:
        session = app.session(session_id)
        (wait,) = await app.waits(session_id=session_id)
        await app.resolve(wait.key, True)
        await story.until_server_says("paused")
        with pytest.raises(TurnBlocked, match="pay") as blocked:
            await session.turn("Pay", turn_id="t1", timeout="100ms")
        assert blocked.value.code == "turn_blocked"
    app = make(has_tool=True)
    async with app:
        session = app.session(session_id)
        await session.retry()
        result = await session.turn("Pay", turn_id="t1", timeout="20s")
        assert result.text == "paid"
    assert story.executed == ["paid 5"]


async def test_a_worker_that_starts_retries_what_fits_its_code(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_runs, "TRIED_AFTER_SECONDS", 0.2)

    async def old(ctx: ProcessContext[None]) -> str:
        await story.step(ctx, "a")
        await ctx.wait_signal("go")
        return "done"

    async def new(ctx: ProcessContext[None]) -> str:
        await story.step(ctx, "b")
        return await old(ctx)

    await story.record(old)
    app = story.app(new)
    async with app:
        await app.process_handle(story.id).signal("go")
        await story.until_blocked(app.process_handle(story.id))
        await story.until_server_says("paused")
    app = story.app(old)
    async with app:
        assert await app.process_handle(story.id).result(timeout="20s") == "done"
    assert story.executed == ["a"]


async def test_a_run_with_too_many_effects_is_warned_about_and_blocked(
    story: Story, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller, "WARN_ENTRIES", 3)
    monkeypatch.setattr(controller, "MAX_ENTRIES", 5)

    async def count(ctx: ProcessContext[None]) -> int:
        for number in range(5):
            await ctx.step(story.say, str(number))
        if await ctx.wait_signal("go") == "on":
            await ctx.continue_as()
        return 5

    app = story.app(count)
    async with app:
        handle = await app.start(app.definitions["story"])
        reason = await story.until_blocked(handle)
        assert "has recorded 5 effects, the limit of one run" in reason
        assert "use ctx.continue_as" in caplog.text
        monkeypatch.setattr(controller, "MAX_ENTRIES", 6)
        await app.retry(handle.id)
        await handle.signal("go", "on")
        await handle.signal("go", "end")
        assert await handle.result(timeout="20s") == 5
    assert story.executed == [str(number) for number in range(5)] * 2


async def test_a_worker_without_the_code_of_a_process_leaves_it_to_others(story: Story) -> None:
    async def waiting(ctx: ProcessContext[None]) -> str:
        await story.step(ctx, "a")
        await ctx.sleep("1s")
        return "done"

    await story.record(waiting)
    app = story.apps.make()  # behind the same URL
    async with app:
        handle = app.process_handle(story.id)

        async def is_refused() -> bool | None:
            rows = await story.apps.server.query("select last_failure from sys_invocation")
            return any("has no code for" in str(row.get("last_failure")) for row in rows) or None

        await eventually(is_refused)
        assert await handle.status() == "blocked"
    async with story.app(waiting) as app:
        assert await app.process_handle(story.id).result(timeout="30s") == "done"
    assert story.executed == ["a"]
