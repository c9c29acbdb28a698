"""The app without ``await``."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylash import AppNotOpen, OpenWait, ProcessContext, ProcessFailed, WorkerConfig
from pylash.sync import Lash


async def double(n: int) -> int:
    return 2 * n


def test_everything_works_without_await(tmp_path: Path) -> None:
    app = Lash(f"sqlite:///{tmp_path / 'a.db'}", worker=WorkerConfig(park_after="1ms"))
    app.trigger("tick")

    @app.process
    async def ask(ctx: ProcessContext[None], n: int) -> int:
        doubled = await ctx.step(double, n)
        await ctx.emit("asked", doubled)
        added: int = await ctx.wait_signal("add")
        return doubled + added

    @app.process(name="broken")
    async def fails(ctx: ProcessContext[None]) -> None:
        raise ValueError("no")

    with app:
        handle = app.start(ask.options(id="p"), n=2)
        (wait,) = _eventually(app)
        assert app.resolve(wait.key, 3).status == "accepted"
        assert handle.result(timeout="10s") == 7
        assert handle.status() == "completed"
        assert [event.type for event in handle.events()][1] == "asked"
        assert next(effect.name for effect in handle.timeline()) == "double"
        with pytest.raises(ProcessFailed):
            app.start(fails).result(timeout="10s")
        app.triggers.register("tick", source_key="s", target=fails, key="k")
        assert len(app.triggers.list()) == 1
        assert len(app.triggers.emit("tick", source_key="s")) == 1
        assert app.triggers.cancel("k")
        other = app.start(ask, n=1)
        other.cancel(force=True)
        assert other.status() == "cancelled"
        fork = app.fork_process("p", from_effect="double")
        fork.signal("add", 1)
        assert fork.result(timeout="10s") == 5
        assert {view.target for view in app.processes()} == {"python:ask", "python:broken"}
    with pytest.raises(AppNotOpen):
        app.processes()
    with pytest.raises(AppNotOpen):
        app.process_handle("p")


def _eventually(app: Lash) -> list[OpenWait]:
    for _ in range(1000):
        if waits := app.waits():
            return list(waits)
    raise AssertionError("nobody waits")


def test_what_cannot_be_opened_leaves_no_thread_behind() -> None:
    with pytest.raises(Exception, match="unknown scheme"):
        Lash("nonsense://").open()
