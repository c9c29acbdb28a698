"""Processes on a real Restate server."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pylash import (
    Lash,
    ProcessBlocked,
    ProcessCancelled,
    ProcessContext,
    ProcessFailed,
    WaitTimeout,
)
from tests.backends import eventually
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.server import RestateServer


@pytest.fixture
def apps(restate: RestateServer, tmp_path: Path) -> RestateApps:
    return RestateApps(restate, sqlite_url(tmp_path))


async def double(number: int) -> int:
    return number * 2


async def suspended(server: RestateServer, process_id: str) -> bool | None:
    """Return True once the server has suspended a process."""
    sql = f"select status from sys_invocation where target_service_key = '{process_id}'"
    return [row["status"] for row in await server.query(sql)] == ["suspended"] or None


@pytest.mark.proves("X1")
async def test_steps_are_entries_of_the_servers_journal_and_not_of_the_store(
    apps: RestateApps,
) -> None:
    app = apps.make()

    @app.process
    async def steps(ctx: ProcessContext[None], count: int) -> int:
        number = 1
        for _ in range(count):
            number = await ctx.step(double, number)
        return number

    async with app:
        handle = await app.start(steps, count=5)
        assert await handle.result(timeout="20s") == 32
        assert [effect.name for effect in await handle.timeline()] == ["double"] * 5
    with closing(sqlite3.connect(apps.url.removeprefix("sqlite:///"))) as store:
        assert store.execute("select count(*) from pylash_effects").fetchall() == [(0,)]
    invocation = (
        f"select id from sys_invocation where target = 'LashProcessWorkflow/{handle.id}/run'"
    )
    (row,) = await apps.server.query(invocation)
    journal = await apps.server.query(
        f"select name from sys_journal where id = '{row['id']}' and entry_type = 'Command: Run'"
    )
    assert [one["name"] for one in journal if "double" in one["name"]] == [
        "double", "double#2", "double#3", "double#4", "double#5",
    ]  # fmt: skip


async def test_branches_race_and_gather(apps: RestateApps) -> None:
    app = apps.make()

    @app.process
    async def branches(ctx: ProcessContext[None]) -> list[Any]:
        all_of = await ctx.gather(*(ctx.step(double, n) for n in range(5)))
        first = await ctx.race(ctx.sleep("1h"), ctx.step(double, 7))
        return [all_of, first]

    async with app:
        handle = await app.start(branches)
        assert await handle.result(timeout="20s") == [[0, 2, 4, 6, 8], 14]


@pytest.mark.proves("X1")
async def test_a_waiting_process_is_suspended_and_gets_its_signals_in_order(
    apps: RestateApps,
) -> None:
    app = apps.make()

    @app.process
    async def listener(ctx: ProcessContext[None]) -> list[Any]:
        return [await ctx.wait_signal("word") for _ in range(3)]

    async with app:
        handle = await app.start(listener)
        await eventually(lambda: suspended(apps.server, handle.id))
        assert await handle.status() == "waiting"
        for word in ("a", "b", "c"):
            await handle.signal("word", word)
        assert await handle.result(timeout="20s") == ["a", "b", "c"]


@pytest.mark.proves("X1")
async def test_timers_and_timeouts(apps: RestateApps) -> None:
    app = apps.make()

    @app.process
    async def patient(ctx: ProcessContext[None]) -> str:
        await ctx.sleep("300ms")
        try:
            await ctx.wait_signal("never", timeout="300ms")
        except WaitTimeout:
            return "late"
        return "early"

    async with app:
        handle = await app.start(patient)
        assert await handle.result(timeout="20s") == "late"


async def test_children_and_their_failures(apps: RestateApps) -> None:
    app = apps.make()

    @app.process
    async def child(ctx: ProcessContext[None], fails: bool) -> int:
        if fails:
            raise ValueError("no")
        return await ctx.step(double, 4)

    @app.process
    async def parent(ctx: ProcessContext[None]) -> list[Any]:
        good, bad = await ctx.start(child, fails=False), await ctx.start(child, fails=True)
        value = await good.result()
        try:
            await bad.result()
        except ProcessFailed as error:
            return [value, error.message]
        return []

    async with app:
        handle = await app.start(parent)
        value, message = await handle.result(timeout="20s")
        assert value == 8
        assert "no" in message


async def slow() -> None:
    await asyncio.sleep(3600)


async def wait_for_child(ctx: ProcessContext[None]) -> None:
    await (await ctx.start(ctx._services.definitions["sleeper"])).result()


WAITS: dict[str, Callable[[ProcessContext[None]], Awaitable[Any]]] = {
    "signal": lambda ctx: ctx.wait_signal("never"),
    "sleep": lambda ctx: ctx.sleep("1h"),
    "step": lambda ctx: ctx.step(slow),
    "child": wait_for_child,
    "wait": lambda ctx: ctx.wait(ctx.wait_key("answer")),
    "gather": lambda ctx: ctx.gather(ctx.sleep("1h"), ctx.wait_signal("never")),
}


@pytest.mark.parametrize("kind", WAITS)
async def test_a_cancel_reaches_every_kind_of_wait_and_cleanup_is_durable(
    apps: RestateApps, kind: str
) -> None:
    app, cleaned = apps.make(), list[str]()

    async def clean() -> str:
        cleaned.append(kind)
        return "clean"

    @app.process
    async def sleeper(ctx: ProcessContext[None]) -> None:
        await ctx.sleep("1h")

    @app.process
    async def waiter(ctx: ProcessContext[None]) -> None:
        try:
            await WAITS[kind](ctx)
        finally:
            await ctx.step(clean)

    async with app:
        handle = await app.start(waiter)

        async def is_running() -> bool | None:
            return await handle.status() in ("running", "waiting") or None

        await eventually(is_running)
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="20s")
        assert cleaned == [kind]


async def test_a_process_continues_as_itself_under_another_key(apps: RestateApps) -> None:
    app = apps.make()

    @app.process
    async def counter(ctx: ProcessContext[None], left: int, total: int) -> int:
        total = await ctx.step(double, total)
        if left:
            await ctx.continue_as(left=left - 1, total=total)
        return total

    async with app:
        handle = await app.start(counter, left=2, total=1)
        assert await handle.result(timeout="20s") == 8
    rows = await apps.server.query(
        f"select target_service_key k from sys_invocation where target_service_key like '{handle.id}%'"
    )
    assert {row["k"] for row in rows} == {handle.id, f"{handle.id}~1", f"{handle.id}~2"}


async def test_a_process_ends_at_its_deadline(apps: RestateApps) -> None:
    app = apps.make()

    @app.process(timeout="400ms")
    async def late(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    async with app:
        handle = await app.start(late)
        with pytest.raises(ProcessFailed, match="timeout"):
            await handle.result(timeout="20s")


async def test_a_wait_is_answered_while_its_process_is_suspended(apps: RestateApps) -> None:
    app = apps.make()

    @app.process
    async def asker(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait(ctx.wait_key("answer"))

    async with app:
        handle = await app.start(asker)
        await eventually(lambda: suspended(apps.server, handle.id))
        (wait,) = await app.waits()
        assert (await app.resolve(wait.key, {"n": 1})).status == "accepted"
        assert await handle.result(timeout="20s") == {"n": 1}


@pytest.mark.proves("X1")
async def test_another_app_continues_what_one_left(apps: RestateApps) -> None:
    executed: list[int] = []

    def make() -> tuple[Lash, Any]:
        app = apps.make()

        async def count(number: int) -> int:
            executed.append(number)
            return number

        @app.process
        async def story(ctx: ProcessContext[None]) -> list[Any]:
            first = await ctx.step(count, 1)
            word = await ctx.wait_signal("go")
            return [first, word, await ctx.step(count, 2)]

        return app, story

    app, story = make()
    async with app:
        handle = await app.start(story)
        await eventually(lambda: suspended(apps.server, handle.id))
    app, _ = make()
    async with app:
        handle = app.process_handle(handle.id)
        await handle.signal("go", "on")
        assert await handle.result(timeout="20s") == [1, "on", 2]
    assert executed == [1, 2]


async def test_changed_code_blocks_the_process_until_the_old_code_is_back(
    apps: RestateApps,
) -> None:
    def make(*, changed: bool) -> tuple[Lash, Any]:
        app = apps.make()

        @app.process
        async def story(ctx: ProcessContext[None]) -> list[int]:
            if changed:
                await ctx.step(double, 100)
            else:
                await ctx.sleep("1ms")
            await ctx.wait_signal("go")
            return [await ctx.step(double, 2)]

        return app, story

    app, story = make(changed=False)
    async with app:
        handle = await app.start(story)
        await eventually(lambda: suspended(apps.server, handle.id))
    app, _ = make(changed=True)
    async with app:
        handle = app.process_handle(handle.id)
        await handle.signal("go")

        async def is_blocked() -> bool | None:
            return await handle.status() == "blocked" or None

        await eventually(is_blocked)
        with pytest.raises(ProcessBlocked, match="effect_replay_diverged"):
            await handle.result(timeout="100ms")
    app, _ = make(changed=False)
    async with app:
        await app.retry(handle.id)
        assert await app.process_handle(handle.id).result(timeout="20s") == [4]


async def test_the_network_is_refused_outside_a_step_and_plain_timers_are_durable(
    apps: RestateApps,
) -> None:
    app = apps.make()

    @app.process
    async def plain(ctx: ProcessContext[None]) -> str:
        await asyncio.sleep(0.2)
        await asyncio.open_connection("127.0.0.1", 9)
        return ""

    async with app:
        handle = await app.start(plain)
        with pytest.raises(ProcessBlocked, match=r"ctx\.step"):
            await handle.result(timeout="2s")


async def test_a_run_that_missed_its_hint_is_found_by_the_next_check(
    apps: RestateApps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.restate.runner.NET_SECONDS", 0.1)
    monkeypatch.setattr("pylash.restate.runner.RestateRunner._on_topic", lambda *_: None)
    app, reached = apps.make(), asyncio.Event()

    @app.process
    async def listener(ctx: ProcessContext[None]) -> Any:
        async def hold() -> None:
            reached.set()
            await asyncio.Event().wait()  # so that it is not suspended

        return await ctx.race(ctx.wait_signal("word"), ctx.step(hold))

    async with app:
        handle = await app.start(listener)
        await asyncio.wait_for(reached.wait(), 20)
        await handle.signal("word", "a")
        assert await handle.result(timeout="20s") == "a"
