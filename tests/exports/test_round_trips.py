"""Exported runs go on in another store to their end, with no side effect repeated."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from pylash import (
    AnswerInvalid,
    ExportInvalid,
    ImportConflict,
    ImportIncomplete,
    ImportWithoutSecrets,
    Lash,
    ProcessContext,
    SessionExists,
    WorkerConfig,
)
from pylash.integrations.pydantic_ai import durable as durable_agent
from pylash.testing import ReplayFailed, ScriptedModel, call, replay, say
from tests.backends import Backend, PostgresBackend, SqliteBackend, eventually

PARKING = WorkerConfig(park_after="10ms")

SHOP: list[Shop] = []
"""The shop whose agent runs."""


def look_up() -> str:
    """Look something up."""
    return SHOP[0].note("look up")


# Not in a test: pydantic reads files when it is used first.
AGENT = durable_agent(Agent(TestModel(), name="research", tools=[look_up]))


@pytest.fixture(params=["to postgres", "to sqlite"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[str]]:
    """Give the URLs of the store that is exported from and the one that is imported into."""
    async with AsyncExitStack() as stack:
        made: list[Backend] = [
            await stack.enter_async_context(SqliteBackend(tmp_path)),
            await stack.enter_async_context(PostgresBackend(request.getfixturevalue("postgres"))),
        ]
        urls = [one.url for one in made]
        yield urls if request.param == "to postgres" else urls[::-1]


class Shop:
    """An app whose side effects are noted in a ledger."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.broken = True

    def note(self, name: str) -> str:
        self.ledger.append(name)
        return name

    def charge(self) -> str:
        self.note("charge")
        if self.broken:
            raise ValueError("no card")
        return "charged"

    def app(self, url: str) -> Lash:  # noqa: C901 - one process for each test
        script = [call("refund", cents=5), say("Refunded."), say("Gladly."), say("Bye.")]
        app = Lash(url, model=ScriptedModel(script), worker=PARKING)

        @app.tool(approval=True)
        def refund(cents: int) -> str:
            return self.note(f"refund {cents}")

        @app.process
        async def parked(ctx: ProcessContext[None]) -> Any:
            key = ctx.wait_key("approval")
            await ctx.step(self.note, key)
            await ctx.step(self.note, "load")
            await ctx.options(key="link").step(str, [f"{key}-1", f"{key}~", f"{key}~-"])
            first = await ctx.wait_signal("go")
            second = await ctx.wait(key)
            return [first, second, await ctx.step(self.note, "end")]

        @app.process
        async def branches(ctx: ProcessContext[None]) -> Any:
            async def left() -> Any:
                await ctx.options(key="left").step(self.note, "left")
                return await ctx.wait_signal("go")

            async def right() -> Any:
                await ctx.options(key="right").step(self.note, "right")
                await ctx.sleep("1s")
                return await ctx.options(key="later").step(self.note, "later")

            return await ctx.gather(left(), right())

        @app.process
        async def child(ctx: ProcessContext[None]) -> Any:
            await ctx.options(key="child").step(self.note, "child")
            return await ctx.wait_signal("go")

        @app.process
        async def parent(ctx: ProcessContext[None]) -> Any:
            started = await ctx.start(child.options(id="the-child"))
            return [await started.result(), await ctx.step(self.note, "parent")]

        @app.process
        async def patient(ctx: ProcessContext[None]) -> Any:
            started = await ctx.start(child.options(id="the-child"))
            await ctx.wait_signal("first")
            result = await started.result()
            return [result, await ctx.wait_signal("second")]

        @app.process
        async def failing(ctx: ProcessContext[None]) -> Any:
            await ctx.options(key="load").step(self.note, "load")
            return await ctx.gather(
                ctx.step(self.charge), ctx.options(key="mail").step(self.note, "mail")
            )

        @app.process
        async def asks(ctx: ProcessContext[None]) -> Any:
            SHOP[:] = [self]
            found = await AGENT.run("hello")
            return [found.output, await ctx.wait_signal("go")]

        @app.process
        async def secretive(ctx: ProcessContext[None]) -> Any:
            token = await ctx.step(self.note, "sk-live-1234567890abcdef")
            return [token, await ctx.wait_signal("go")]

        return app


async def waiting(app: Lash, process_id: str) -> None:
    async def look() -> bool:
        view = await app.store.processes.view(process_id)
        return view is not None and view.status == "waiting"

    await eventually(look)


async def start(app: Lash, name: str) -> None:
    await app.start(app.services.definitions[name].options(id="p", tags=["moved"]))


def fingerprint(path: Path) -> Any:
    return json.loads(path.read_text())


async def moved(shop: Shop, stores: list[str], name: str, path: Path, **options: Any) -> None:
    """Run a process until it is parked, and export it; check the law of an export of an import."""
    async with shop.app(stores[0]) as app:
        await start(app, name)
        await waiting(app, "p")
        await app.export_process("p", path, **options)
    other = Lash(stores[1], worker=None)
    again = path.with_name("again.json")
    async with other:
        await other.import_process(path)
        await other.export_process("p", again, **options)
    assert fingerprint(again) == fingerprint(path)


async def test_a_parked_process_goes_on(stores: list[str], tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    await moved(shop, stores, "parked", path)
    signed, load = shop.ledger
    assert load == "load"
    text = path.read_text()
    assert signed.rpartition(".")[2] not in text
    assert signed.split(".")[1] not in text
    assert path.stat().st_mode & 0o777 == 0o600
    async with shop.app(stores[1]) as app:
        handle = app.process_handle("p")
        [view] = await app.processes(tag="moved")
        assert (view.id, view.tags) == ("p", ("moved",))
        await handle.signal("go", 1)

        async def key() -> str | None:
            return next((wait.key for wait in await app.waits() if wait.kind == "custom"), None)

        found = await eventually(key)
        # The signature is that of the other store.
        assert found != signed
        assert (await app.resolve(signed, 2)).status == "unknown_or_revoked"
        assert (await app.resolve(found, 2)).status == "accepted"
        assert await handle.result(timeout="20s") == [1, 2, "end"]
    assert shop.ledger == [signed, "load", "end"]


async def test_branches_go_on(stores: list[str], tmp_path: Path) -> None:
    shop = Shop()
    await moved(shop, stores, "branches", tmp_path / "p.json")
    async with shop.app(stores[1]) as app:
        handle = app.process_handle("p")
        await handle.signal("go", 1)
        assert await handle.result(timeout="20s") == [1, "later"]
    assert sorted(shop.ledger) == ["later", "left", "right"]


async def test_a_parent_goes_on_with_its_child(stores: list[str], tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    async with shop.app(stores[0]) as app:
        await start(app, "parent")
        await waiting(app, "the-child")
        await waiting(app, "p")
        await app.export_process("p", path)
        async with Lash(stores[1], worker=None) as other:
            with pytest.raises(ImportIncomplete, match="the-child"):
                await other.import_process(path)
            assert await other.processes() == []
        await app.export_process("p", path, children=True)
    replay(shop.app("memory://"), path)
    async with shop.app(stores[1]) as app:
        handle = await app.import_process(path)
        await app.process_handle("the-child").signal("go", 3)
        assert await handle.result(timeout="20s") == [3, "parent"]
    assert shop.ledger == ["child", "parent"]


async def test_a_child_that_is_awaited_later_is_needed(stores: list[str], tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    async with shop.app(stores[0]) as app, Lash(stores[1], worker=None) as other:
        await start(app, "patient")
        await waiting(app, "p")
        await app.export_process("p", path)
        with pytest.raises(ImportIncomplete, match="the-child"):
            await other.import_process(path)
        assert await other.processes() == []
        await asyncio.to_thread(replay, shop.app("memory://"), path)
        await app.process_handle("the-child").signal("go", 3)
        await app.process_handle("the-child").result(timeout="20s")
        await app.process_handle("p").signal("first")

        async def has_result() -> bool:
            waits = await app.store.processes.signal_waits("p")
            return [wait.name for wait in waits] == ["second"]

        await eventually(has_result)
        # The result is recorded now, and the child is not needed any more.
        await app.export_process("p", path)
        await other.import_process(path)
    async with shop.app(stores[1]) as app:
        await app.process_handle("p").signal("second", 4)
        assert await app.process_handle("p").result(timeout="20s") == [3, 4]


async def test_a_failed_process_is_forked_where_it_was_imported(
    stores: list[str], tmp_path: Path
) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    async with shop.app(stores[0]) as app:
        await start(app, "failing")
        with suppress(Exception):
            await app.process_handle("p").result(timeout="20s")
        await app.export_process("p", path)
    shop.broken = False
    async with shop.app(stores[1]) as app:
        handle = await app.import_process(path)
        assert await handle.status() == "failed"
        fork = await app.fork_process("p", id="again")
        assert await fork.result(timeout="20s") == ["charged", "mail"]
    # The step that succeeded beside the failed one is not executed again.
    assert sorted(shop.ledger) == ["charge", "charge", "load", "mail"]


async def test_an_agent_of_pydantic_ai_goes_on(stores: list[str], tmp_path: Path) -> None:
    shop = Shop()
    await moved(shop, stores, "asks", tmp_path / "p.json")
    async with shop.app(stores[1]) as app:
        handle = app.process_handle("p")
        await handle.signal("go", 1)
        output, signalled = await handle.result(timeout="20s")
    assert "look up" in output
    assert signalled == 1
    assert shop.ledger == ["look up"]


async def test_a_session_goes_on(stores: list[str], tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "s.json"
    async with shop.app(stores[0]) as app:
        session = app.session("chat", tags=["moved"])
        with suppress(TimeoutError):
            await session.turn("Refund me", turn_id="t1", timeout=0)

        async def key() -> str | None:
            return next((wait.key for wait in await app.waits()), None)

        await app.resolve(await eventually(key), True)
        assert (await session.turn("Refund me", turn_id="t1")).text == "Refunded."
        await session.turn("Thanks", turn_id="t2")
        before = await session.history()
        await app.export_session("chat", path)
    assert "Refunded." in path.read_text()
    async with shop.app(stores[1]) as app:
        session = await app.import_session(path)
        [view] = await app.sessions(tag="moved")
        assert (view.id, view.tags) == ("chat", ("moved",))
        again = tmp_path / "again.json"
        await app.export_session("chat", again)
        assert fingerprint(again) == fingerprint(path)
        assert await session.history() == before
        # The same turn again is the same result: its model is not called, and its tool does not run.
        assert (await session.turn("Refund me", turn_id="t1")).text == "Refunded."
        assert (await session.turn("Good bye", turn_id="t3")).text == "Bye."
        fork = await session.fork("fork", at="t2")
        forked = tmp_path / "fork.json"
        await app.export_session("fork", forked)
        history = await fork.history()
    assert shop.ledger == ["refund 5"]
    async with shop.app(stores[0]) as app:
        with pytest.raises(ImportConflict, match="chat"):
            await app.import_session(path)
        inherited = await app.import_session(forked)
        assert await inherited.history() == history
        with pytest.raises(SessionExists):
            await app.session("chat").fork("fork")
        await inherited.delete()
        assert len(await app.session("chat").history()) == len(before)


async def test_a_turn_that_waits_for_approval_goes_on(stores: list[str], tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "s.json"

    async def open_key(app: Lash) -> str:
        async def look() -> str | None:
            return next((wait.key for wait in await app.waits()), None)

        return await eventually(look)

    async with shop.app(stores[0]) as app:
        with suppress(TimeoutError):
            await app.session("chat").turn("Refund me", turn_id="t1", timeout=0)
        old = await open_key(app)
        await app.export_session("chat", path)
    replay(shop.app("memory://"), path)
    assert shop.ledger == []
    async with shop.app(stores[1]) as app:
        session = await app.import_session(path)
        new = await open_key(app)
        assert new != old
        with pytest.raises(AnswerInvalid):
            await app.resolve(new, {"approved": True, "arguments": {"cents": "many"}})
        await app.resolve(new, True)
        assert (await session.turn("Refund me", turn_id="t1")).text == "Refunded."
    assert shop.ledger == ["refund 5"]


# --- replays ---


def changed(before: str, after: str) -> Lash:
    app = Lash("memory://")

    @app.process
    async def parked(ctx: ProcessContext[None]) -> Any:
        key = ctx.wait_key("approval")
        await ctx.step(Shop().note, key)
        await ctx.options(key=after).step(Shop().note, before)

    return app


async def exported(shop: Shop, url: str, name: str, path: Path, **options: Any) -> None:
    async with shop.app(url) as app:
        await start(app, name)
        await waiting(app, "p")
        await app.export_process("p", path, **options)


async def test_a_replay_fits_or_says_what_pylash_replay_says(
    durable: Backend, tmp_path: Path
) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    await exported(shop, durable.url, "parked", path)
    seen = list(shop.ledger)
    # In a test with a running loop, and in a thread without one.
    report = replay(shop.app(durable.url), path)[0]
    assert (report.verdict, report.at) == ("fits", ("go",))
    await asyncio.to_thread(replay, shop.app(durable.url), path)
    with pytest.raises(ReplayFailed, match=r"'renamed'.*\[effect_replay_diverged\]"):
        replay(changed("load", "renamed"), path)
    with pytest.raises(AssertionError, match="has no 'python:parked'"):
        replay(Lash("memory://"), path)
    assert shop.ledger == seen


async def test_an_open_app_is_not_replayed(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    async with shop.app("memory://") as app:
        with pytest.raises(Exception, match="close the app first"):
            replay(app, path)


# --- what is left out, and what is refused ---


async def test_secrets_are_left_out_unless_they_are_asked_for(
    stores: list[str], tmp_path: Path
) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    await exported(shop, stores[0], "secretive", path)
    assert "sk-live" not in path.read_text()
    replay(shop.app("memory://"), path)
    async with shop.app(stores[1]) as app:
        with pytest.raises(ImportWithoutSecrets, match="--keep-secrets"):
            await app.import_process(path)
        assert await app.processes() == []
    async with shop.app(stores[0]) as app:
        await app.export_process("p", path, keep_secrets=True)
    async with shop.app(stores[1]) as app:
        handle = await app.import_process(path)
        await handle.signal("go", 1)
        assert await handle.result(timeout="20s") == ["sk-live-1234567890abcdef", 1]
    assert len(shop.ledger) == 1


async def test_a_redacted_export_has_names_and_no_values(durable: Backend, tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    await exported(shop, durable.url, "parked", path, redact=True)
    found = fingerprint(path)["processes"][0]
    assert [one["key"] for one in found["effects"]][:2] == ["note", "note#2"]
    assert "outcome" not in path.read_text()
    with pytest.raises(ExportInvalid, match="--redact"):
        replay(shop.app("memory://"), path)


def first(found: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a document with other fields of its process."""
    return {**found, "processes": [{**found["processes"][0], **fields}]}


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "version": (lambda found: {**found, "version": 99}, "version 99"),
    "format": (lambda _: {"some": "JSON"}, "not a file of pylash export"),
    "damaged": (lambda found: {**found, "processes": [{"id": 5}]}, "damaged"),
    "registration": (lambda found: first(found, registration={}), "damaged"),
    "other id": (lambda found: first({**found, "id": "q"}, id="q"), "another process"),
    "missing": (lambda found: {**found, "id": "q"}, "process 'q' is missing"),
    "twice": (lambda found: {**found, "processes": found["processes"] * 2}, "occurs 2 times"),
    "status": (lambda found: first(found, status="done"), "damaged"),
    "ended": (lambda found: first(found, status="completed"), "settlement"),
    "negative": (lambda found: first(found, run=-1), "damaged"),
    "huge": (lambda found: first(found, created=1 << 63), "damaged"),
    "nested": (lambda found: first(found, output="deep"), "damaged"),
    "hash": (
        lambda found: first(found, effects=[{**found["processes"][0]["effects"][0], "hash": "zz"}]),
        "damaged",
    ),
    "wait": (
        lambda found: first(found, waits=[{"name": {}, "kind": "custom", "title": ""}]),
        "damaged",
    ),
    # Another process would find it under this hash.
    "environment": (lambda found: {**found, "environments": {"0" * 64: "{}"}}, "other content"),
    "attachment": (lambda found: {**found, "attachments": {"0" * 64: "e30="}}, "other content"),
    "base64": (lambda found: {**found, "attachments": {"0" * 64: "e30"}}, "other content"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_file_is_refused(name: str, tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    await exported(shop, f"sqlite:///{tmp_path / 's.db'}", "parked", path)
    change, sentence = BAD[name]
    text = json.dumps(change(fingerprint(path)))
    path.write_text(text.replace('"deep"', "[" * 100_000 + "]" * 100_000))
    async with shop.app("memory://") as app:
        with pytest.raises(ExportInvalid, match=sentence):
            await app.import_process(path)
        assert await app.processes() == []


async def test_ids_that_exist_are_refused(stores: list[str], tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    await exported(shop, stores[0], "parked", path)
    async with shop.app(stores[1]) as app:
        await app.import_process(path)
        with pytest.raises(ImportConflict, match="'p' already"):
            await app.import_process(path)
        assert len(await app.processes()) == 1


KILLED = """
import asyncio, os, signal, sys
from pylash import Lash
from pylash.stores.tables import processes

real = processes.import_process
def kill(row, events):
    yield from real(row, events)
    os.kill(os.getpid(), signal.SIGKILL)
import pylash.stores.ports.exports as exports
exports.table.import_process = kill

async def main():
    async with Lash(sys.argv[1], worker=None) as app:
        await app.import_process(sys.argv[2])
asyncio.run(main())
"""


async def test_a_kill_during_an_import_leaves_nothing(stores: list[str], tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "p.json"
    await exported(shop, stores[0], "branches", path)
    command = [sys.executable, "-c", KILLED, stores[1], str(path)]
    done = await asyncio.to_thread(subprocess.run, command, timeout=60, check=False)
    assert done.returncode == -9
    async with shop.app(stores[1]) as app:
        assert await app.processes() == []
        handle = await app.import_process(path)
        await handle.signal("go", 1)
        assert await handle.result(timeout="20s") == [1, "later"]
    assert sorted(shop.ledger) == ["later", "left", "right"]
