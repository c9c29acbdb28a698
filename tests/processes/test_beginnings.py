"""Beginnings: code up to its first effect runs before the start is written, and nothing else does."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from pylash import Lash, ProcessContext, ProcessFailed, RunState, StoreUnavailable, WorkerConfig
from pylash.durable import Output, StartProcess, WorkerId
from pylash.stores import SqlStore
from pylash.values import StoreClosed
from tests.backends import Backend, SqliteBackend


async def watched(app: Lash, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that will have what is written of processes that start and end from now on."""

    @app.process
    async def first(ctx: ProcessContext[None]) -> None:
        """Make the app read what all have in common."""

    await (await app.start(first)).result()
    processes = app.store.processes
    start, settle, done = processes.start, processes.settle, list[str]()

    def started(
        command: StartProcess,
        worker: WorkerId | None = None,
        *,
        end: Output | None = None,
        **more: Any,
    ) -> Awaitable[Any]:
        done.append("start" if end is None else "start and end")
        return start(command, worker, end=end, **more)

    def settled(*args: Any) -> Awaitable[None]:
        done.append("end")
        return settle(*args)

    monkeypatch.setattr(processes, "start", started)
    monkeypatch.setattr(processes, "settle", settled)
    return done


async def log_of(app: Lash, process_id: str) -> list[str]:
    return [event.type async for event in app.process_handle(process_id).events()]


async def test_a_process_without_effects_is_written_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Lash(backend.url)

    @app.process
    async def double(ctx: ProcessContext[None], n: int) -> int:
        return n * 2

    @app.process
    async def broken(ctx: ProcessContext[None]) -> None:
        raise ValueError("broken")

    @app.process
    async def unspeakable(ctx: ProcessContext[None]) -> Any:
        return object()

    async with app:
        done = await watched(app, monkeypatch)
        doubled = await app.start(double, 21)
        assert await doubled.status() == RunState.COMPLETED
        assert await doubled.result() == 42
        assert await log_of(app, doubled.id) == ["process.started", "process.completed"]
        for definition, reason in ((broken, "broken"), (unspeakable, "object")):
            failed = await app.start(definition)
            with pytest.raises(ProcessFailed, match=reason):
                await failed.result()
            assert await log_of(app, failed.id) == ["process.started", "process.failed"]
    assert done == ["start and end"] * 3


async def test_an_id_that_was_given_may_be_known_and_is_asked_for_first(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, ran = Lash(backend.url), list[int]()

    @app.process
    async def once(ctx: ProcessContext[None]) -> None:
        ran.append(1)

    async with app:
        done = await watched(app, monkeypatch)
        for _ in range(3):
            await (await app.start(once.options(id="only"))).result()
    assert done == ["start", "end", "start", "start"]
    assert ran == [1]


async def test_an_effect_waits_until_the_start_is_written(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen = Lash(backend.url), list[str]()

    @app.process
    async def look(ctx: ProcessContext[None]) -> None:
        at = ctx.now()
        await ctx.step(there, ctx.id)
        assert at <= ctx.now()

    async def there(process_id: str) -> None:
        assert await app.store.processes.get(process_id) is not None
        seen.append(process_id)

    async with app:
        done = await watched(app, monkeypatch)
        handles = [await app.start(look) for _ in range(5)]
        for handle in handles:
            await handle.result(timeout="10s")
    assert sorted(seen) == sorted(handle.id for handle in handles)
    assert done.count("start") == done.count("end") == 5


async def test_code_that_waits_for_something_else_is_started_meanwhile(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, gate = Lash(backend.url), asyncio.Event()

    @app.process
    async def wait(ctx: ProcessContext[None]) -> str:
        await gate.wait()
        return "through"

    async with app:
        done = await watched(app, monkeypatch)
        handle = await app.start(wait)
        assert await handle.status() == RunState.RUNNING
        gate.set()
        assert await handle.result(timeout="10s") == "through"
    assert done == ["start", "end"]


async def test_branches_without_effects_are_decided_once_the_start_is_written(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Lash(backend.url)

    async def plain(n: int) -> int:
        return n

    @app.process
    async def contest(ctx: ProcessContext[None]) -> Any:
        won = await ctx.race(plain(1), ctx.wait_signal("never"))
        return [won, *await ctx.gather(plain(2), plain(3))]

    @app.process
    async def again(ctx: ProcessContext[None], n: int = 0) -> int:
        if n < 2:
            await ctx.continue_as(n=n + 1)
        return n

    async with app:
        await watched(app, monkeypatch)
        for _ in range(5):
            assert await (await app.start(contest)).result(timeout="10s") == [1, 2, 3]
        handle = await app.start(again)
        assert await handle.result(timeout="10s") == 2
        kinds = await log_of(app, handle.id)
    assert kinds == ["process.started", *["process.continued"] * 2, "process.completed"]


async def test_a_start_that_cannot_be_written_is_told_and_has_no_effect(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, ran = Lash(backend.url, worker=WorkerConfig(concurrency=2)), list[str]()

    async def note(text: str) -> None:
        ran.append(text)

    @app.process
    async def noted(ctx: ProcessContext[None], steps: int) -> None:
        for _ in range(steps):
            await ctx.step(note, "effect")

    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    def closed(*_: Any, **__: Any) -> None:
        raise StoreClosed

    async with app:
        for refuse, reason in ((away, StoreUnavailable), (closed, StoreClosed)):
            with monkeypatch.context() as patch:
                patch.setattr(app.store.processes, "start", refuse)
                for steps in (0, 1, 0, 1):  # and no slot is lost
                    with pytest.raises(reason):
                        await app.start(noted, steps)
        assert ran == []
        assert await app.processes() == []
        for steps in (0, 1):
            await (await app.start(noted, steps)).result(timeout="10s")
    assert ran == ["effect"]


@pytest.mark.parametrize("steps", [0, 1])
async def test_who_was_given_up_meanwhile_leaves_the_process_to_others(
    backend: Backend, steps: int
) -> None:
    app, ran = Lash(backend.url), list[str]()

    async def note() -> None:
        ran.append("effect")

    @app.process
    async def noted(ctx: ProcessContext[None]) -> str:
        for _ in range(steps):
            await ctx.step(note)
        return "done"

    async with app:
        assert isinstance(app.store, SqlStore)
        await app.store.workers.leave(app._worker._host.membership.worker)
        handle = await app.start(noted)
        assert await handle.result(timeout="30s") == "done"
        assert (await log_of(app, handle.id)).count("process.completed") == 1
    assert ran == ["effect"] * steps


_KILLED = """
import asyncio, os, signal, sys
from pylash import Lash, ProcessContext

app = Lash(sys.argv[1])

@app.process
async def alive(ctx: ProcessContext[None]) -> None:
    pass

@app.process
async def doomed(ctx: ProcessContext[None]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

async def main() -> None:
    async with app:
        await (await app.start(alive)).result()
        await app.start(doomed)

asyncio.run(main())
"""


async def test_code_that_kills_its_process_before_an_effect_leaves_nothing(tmp_path: Path) -> None:
    url = SqliteBackend(tmp_path).url
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _KILLED, url], check=False, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    async with Lash(url) as app:
        assert [view.target for view in await app.processes()] == ["python:alive"]
