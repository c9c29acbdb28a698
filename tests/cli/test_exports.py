"""``pylash export``, ``import`` and ``fork``."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pylash import Lash, ProcessContext, ProcessFailed
from pylash.testing import replay
from tests.backends import SqliteBackend, eventually
from tests.cli import shop
from tests.cli.conftest import Call, ask, ended, filled, worked


def set_up(folder: Path) -> str:
    backend = SqliteBackend(folder)
    asyncio.run(backend.__aenter__())
    with closing(sqlite3.connect(backend.path)) as connection, connection:
        connection.execute(
            "insert into pylash_meta(name, value) values ('secret', ?)", ("ab" * 32,)
        )
    return backend.url


def test_an_order_is_moved_to_another_store(pylash: Call, place: str, tmp_path: Path) -> None:
    filled(place)
    file, other = tmp_path / "order-7.json", set_up(tmp_path)
    done = pylash("export", "order-7", "--children")
    assert done.exit_code == 0, done.output
    file.write_text(done.stdout)
    replay(shop.app, file)
    done = pylash("import", str(file), "--store", other)
    assert "imported  process order-7" in done.stdout
    again = pylash("import", str(file), "--store", other)
    assert again.exit_code == 1
    assert "[import_conflict]" in again.output
    pylash("signal", "order-7", "address", '"High Street"', "--store", other)
    assert "High Street" in worked(other, ended("order-7"))
    # The session of a turn.
    session = json.loads(pylash("export", "chat-42/refund-7").stdout)
    assert (session["kind"], session["id"]) == ("session", "chat-42")
    # Without its children the order is there too, and its child has ended.
    assert json.loads(pylash("export", "order-7").stdout)["processes"][0]["id"] == "order-7"


def test_an_export_without_a_child_that_is_needed_says_so(pylash: Call, place: str) -> None:
    app = Lash(place)

    @app.process
    async def child(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("go")

    @app.process
    async def parent(ctx: ProcessContext[None]) -> None:
        await ctx.start(child.options(id="the-child"))
        await ctx.wait_signal("go")

    async def begin() -> None:
        async with app:
            await app.start(parent.options(id="the-parent"))

            async def is_waiting() -> bool:
                return bool(await app.store.processes.signal_waits("the-parent"))

            await eventually(is_waiting)

    asyncio.run(begin())
    done = pylash("export", "the-parent")
    assert "it needs process:the-child; --children adds what it needs" in done.stderr
    assert json.loads(done.stdout)["id"] == "the-parent"
    for options in (["--children"], ["--redact"]):
        assert pylash("export", "the-parent", *options).stderr == ""


def failing(url: str) -> Lash:
    app = Lash(url)

    def load() -> str:
        return "loaded"

    def charge() -> str:
        raise ValueError("no card")

    @app.process
    async def order(ctx: ProcessContext[None]) -> str:
        await ctx.step(load)
        return await ctx.step(charge)

    return app


def test_a_failed_order_is_forked(pylash: Call, place: str) -> None:
    app = failing(place)

    async def fail() -> None:
        async with app:
            handle = await app.start(app.services.definitions["order"].options(id="order-9"))
            with pytest.raises(ProcessFailed):
                await handle.result(timeout="20s")

    asyncio.run(fail())
    assert "pylash fork order-9" in pylash("show", "order-9").stdout
    assert "pylash fork order-9" in pylash("retry", "order-9").output
    refused = pylash("fork", "order-9")
    assert refused.exit_code == 1
    assert "kept        load" in refused.stdout
    assert "runs again  charge" in refused.stdout
    assert "add --yes" in refused.output
    assert len(ask(pylash, "ps")) == 1
    made = ask(pylash, "fork", "order-9", "--id", "again", "--yes")
    assert made == {
        "done": "forked",
        "id": "again",
        "of": "order-9",
        "kept": ["load"],
        "again": ["charge"],
    }
    taken = pylash("fork", "order-9", "--id", "again", "--yes")
    assert "[process_conflict]" in taken.output
    refused = pylash("fork", "order-9", "--from", "nothing", "--yes")
    assert "use a name in pylash show order-9, or a key. [fork_invalid]" in refused.output
    all_again = ask(pylash, "fork", "order-9", "--from", "load", "--yes")
    assert all_again["kept"] == []


def test_a_file_that_cannot_be_imported_says_what_to_do(
    pylash: Call, place: str, tmp_path: Path
) -> None:
    filled(place)
    missing = pylash("import", str(tmp_path / "nofile.json")).stderr
    assert "(No such file or directory): check the path. [export_invalid]" in missing
    redacted = tmp_path / "redacted.json"
    redacted.write_text(pylash("export", "order-7", "--redact").stdout)
    refused = pylash("import", str(redacted)).stderr
    assert "exported with --redact, so its values are missing: export it without." in refused


def test_a_process_that_recorded_nothing_is_forked_as_a_new_one(pylash: Call, place: str) -> None:
    filled(place)

    async def fail(app: Lash) -> None:
        await app.start(shop.broken.options(id="broken-1"))
        await ended("broken-1")(app)

    worked(place, fail)
    plan = pylash("fork", "broken-1").stdout
    assert plan == "Nothing is recorded: everything runs for the first time.\n"
