"""Runs that are forked, exported, imported and replayed, from and to a real Restate server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pylash import Lash, NotSupported, ProcessContext, ProcessFailed
from pylash.cli.main import cli
from pylash.cli.replay import recorded_runs
from pylash.tasks import TaskOwner
from pylash.testing import ReplayFailed, ScriptedModel, call, replay, say
from pylash.values.process_errors import JournalGone
from tests.backends import eventually
from tests.restate.apps import RestateApps, sqlite_url
from tests.restate.server import RestateServer, loopback_client
from tests.restate.stories import Story


@pytest.fixture
def story(restate: RestateServer, tmp_path: Path) -> Story:
    return Story(RestateApps(restate, sqlite_url(tmp_path)))


async def test_a_fork_keeps_what_had_ended_before_an_effect(story: Story) -> None:
    fails = [True]

    async def ship() -> str:
        story.executed.append("ship")
        if fails.pop():
            raise ValueError("no truck")
        return "shipped"

    async def order(ctx: ProcessContext[None]) -> list[Any]:
        return [await story.step(ctx, "charge"), ctx.now().isoformat(), await ctx.step(ship)]

    app = story.app(order)
    async with app:
        handle = await app.start(app.definitions["story"])
        with pytest.raises(ProcessFailed, match="no truck"):
            await handle.result(timeout="20s")
        fork = await app.fork_process(handle.id)
        fails[:] = [False]
        assert (await fork.result(timeout="20s"))[0::2] == ["charge", "shipped"]
        fails[:] = [False]
        whole = await app.fork_process(handle.id, from_effect="charge")
        await whole.result(timeout="20s")
    assert story.executed == ["charge", "ship", "ship", "charge", "ship"]


async def shop(story: Story, ctx: ProcessContext[None]) -> list[Any]:
    charged = await story.step(ctx, "charge")
    await ctx.sleep("10ms")
    winner = await ctx.race(ctx.sleep("1h"), story.step(ctx, "quick"))
    word = await ctx.wait_signal("go")
    answer = await ctx.wait(ctx.wait_key("answer"))
    return [charged, winner, word, answer, await story.step(ctx, "end")]


def sql_app(story: Story, folder: Path) -> Lash:
    app = Lash(f"sqlite:///{folder / 'other.db'}")

    @app.process(name="story")
    async def on_sql(ctx: ProcessContext[None]) -> list[Any]:
        return await shop(story, ctx)

    return app


async def waits_for_answer(app: Lash) -> str | None:
    waits = await app.waits()
    return waits[0].key if waits else None


async def test_a_process_moves_from_restate_to_a_store_and_back(
    story: Story, tmp_path: Path
) -> None:
    file, back = tmp_path / "story.json", tmp_path / "back.json"
    app = story.app(lambda ctx: shop(story, ctx))
    async with app:
        handle = await app.start(app.definitions["story"])
        story.id = handle.id
        await handle.signal("go", 5)
        await eventually(lambda: waits_for_answer(app))
        await story.until_server_says("suspended")
        await app.export_process(handle.id, file)
        await handle.cancel(force=True)
    (report,) = replay(sql_app(story, tmp_path), file)
    assert (report.verdict, report.effects) == ("fits", 6)
    other = sql_app(story, tmp_path)
    async with other:
        moved = await other.import_process(file)

        async def is_waiting() -> bool | None:
            return await moved.status() == "waiting" or None

        await eventually(is_waiting)
        assert story.executed == ["charge", "quick"]
        await other.export_process(moved.id, back)
    story.apps = RestateApps(story.apps.server, f"sqlite:///{tmp_path / 'third.db'}")
    app = story.app(lambda ctx: shop(story, ctx), version=1)
    async with app:
        last = await app.import_process(back)
        key = await eventually(lambda: waits_for_answer(app))
        await app.resolve(key, "yes")
        assert await last.result(timeout="20s") == ["charge", "quick", 5, "yes", "end"]
    assert story.executed == ["charge", "quick", "end"]


async def test_a_dry_run_reads_the_journal_of_the_server(story: Story, tmp_path: Path) -> None:
    async def changed(ctx: ProcessContext[None]) -> list[Any]:
        await story.step(ctx, "check")
        return await shop(story, ctx)

    await story.record(lambda ctx: shop(story, ctx))
    for body, verdict in ((lambda ctx: shop(story, ctx), "fits"), (changed, "diverges")):
        app = story.app(body)
        async with app.open_for_replay() as dry_runs:
            (report,) = await dry_runs.replay(await recorded_runs(dry_runs, "story", None, False))
        assert report.verdict == verdict, report
    file = tmp_path / "story.json"
    app = story.app(changed)
    async with app:
        await app.export_process(story.id, file)
    with pytest.raises(ReplayFailed, match="asks for 'check' where 'charge' is expected"):
        replay(story.app(changed), file)


async def test_what_restate_cannot_do_is_refused(story: Story, tmp_path: Path) -> None:
    app = story.app(lambda ctx: shop(story, ctx))

    @app.process(concurrency=1)
    async def limited(ctx: ProcessContext[None]) -> None: ...

    async with app:
        with pytest.raises(NotSupported, match="A concurrency key on Restate"):
            await app.start(limited)
        handle = await app.start(app.definitions["story"])
        story.id = handle.id
        await story.until_server_says("suspended")
        for command in ("fork", "export"):
            done = await asyncio.to_thread(
                CliRunner().invoke, cli, [command, handle.id, "--store", story.apps.url]
            )
            assert "use its app" in done.output, done.output
        await handle.cancel(force=True)
        await story.until_server_says("completed")
        await forget(story)
        with pytest.raises(JournalGone, match="Restate has deleted what it recorded"):
            await app.fork_process(handle.id)


async def forget(story: Story) -> None:
    """Let the server delete what it has recorded, as it does a day after the end."""
    (row,) = await story.apps.server.query(
        f"select id from sys_invocation where target_service_key = '{story.id}'"
    )
    async with loopback_client(story.apps.server.admin) as admin:
        assert (await admin.patch(f"/invocations/{row['id']}/purge")).is_success


async def test_a_session_moves_only_between_its_turns(story: Story, tmp_path: Path) -> None:
    session_id, file = f"chat-{abs(hash(story.apps.url))}", tmp_path / "chat.json"
    story.id = f"{session_id}|t1"

    def add_tool(app: Lash) -> Lash:
        @app.tool(approval=True)
        async def pay(cents: int) -> str:
            """Pay."""
            return str(cents)

        return app

    script = [call("pay", cents=5), say("paid")] * 2
    app, tasks = add_tool(story.apps.make(model=ScriptedModel(script))), TaskOwner()
    async with app:
        session = app.session(session_id)
        turn = tasks.start(session.turn("Pay", turn_id="t1"))
        await story.until_server_says("suspended")
        with pytest.raises(NotSupported, match="whose turn 't1' is on another engine"):
            await app.export_session(session_id, file)
        (wait,) = await app.waits()
        await app.resolve(wait.key, True)
        assert (await turn).text == "paid"
        await app.export_session(session_id, file)
        await tasks.close()
    other = add_tool(Lash(f"sqlite:///{tmp_path / 'other.db'}", model=ScriptedModel(script)))
    async with other:
        session = await other.import_session(file)
        turn = tasks.start(session.turn("Pay again", turn_id="t2"))
        await eventually(lambda: waits_for_answer(other))
        await other.export_session(session_id, file)
        await tasks.close()
    app = add_tool(RestateApps(story.apps.server, f"sqlite:///{tmp_path / '3.db'}").make())
    async with app:
        with pytest.raises(NotSupported, match="whose turn 't2' has begun"):
            await app.import_session(file)
