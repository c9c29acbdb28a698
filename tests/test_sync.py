"""The app without ``await``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylash import (
    AppNotOpen,
    ModelRequest,
    OpenWait,
    ProcessContext,
    ProcessFailed,
    WorkerConfig,
)
from pylash.sync import Lash
from pylash.testing import ScriptedModel, call, say


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


def test_sessions_work_without_await() -> None:
    model = ScriptedModel([call("pay", cents=5), say("Done."), say('{"cents": 5}'), say("Forked.")])
    app = Lash("memory://", model=model, instructions="Help.")

    @app.tool(approval="money leaves")
    def pay(cents: int) -> str:
        return f"paid {cents}"

    with app:
        session = app.session("chat")
        heard = []
        for event in session.stream("go", turn_id="t1"):
            heard.append(event.type)
            if event.type == "wait_opened":
                assert [wait.title for wait in app.waits(session_id="chat")] == ["money leaves"]
                assert app.resolve(event.data["key"], True).status == "accepted"
        assert heard[0] == "turn_started"
        assert heard[-1] == "turn_completed"
        assert session.turn("go", turn_id="t1", timeout="10s").text == "Done."
        value = session.turn("How much?", output=dict[str, int], timeout="10s").value
        assert value == {"cents": 5}
        assert session.usage().requests == 3
        assert [message.role for message in session.history()][:3] == ["user", "assistant", "tool"]
        fork = session.fork("fork", at="t1")
        assert len(fork.history()) == 4
        items = session.observe()
        first = next(items)
        assert first.message is not None
        assert first.message.text == "go"
        items.close()  # type: ignore[attr-defined]  # it is a generator
        session.enqueue("more")
        session.cancel()
        assert fork.turn("?", timeout="10s").text == '{"cents": 5}'
        assert [effect.name for effect in session.timeline("t1")][:2] == ["environment", "model"]
        assert not session.retry()
        assert session.delete().kept >= 4  # of its fork
        assert session.history() == []
    with pytest.raises(AppNotOpen):
        app.session("chat")
    with pytest.raises(AppNotOpen):
        session.history()


def test_a_stream_has_its_result_without_await() -> None:
    with Lash("memory://", model=ScriptedModel([say("Hello.")])) as app:
        with app.session("chat").stream("go", turn_id="t1") as stream:
            assert stream.turn_id == "t1"
            assert "".join(event.text for event in stream) == "Hello."
        assert stream.result.text == "Hello."


def test_leaving_a_stream_never_cancels_the_turn_without_await() -> None:
    with Lash("memory://", model=ScriptedModel([say("Hello.")])) as app:
        session = app.session("chat")
        for _ in session.stream("go", turn_id="t1"):
            break
        assert session.turn("go", turn_id="t1", timeout="10s").text == "Hello."


def test_an_app_without_await_can_be_opened_again(tmp_path: Path) -> None:
    app = Lash(f"sqlite:///{tmp_path / 'a.db'}", model=ScriptedModel([say("One."), say("Two.")]))
    with app:
        assert app.session("chat").turn("a", timeout="10s").text == "One."
    with app:
        assert app.session("chat").turn("b", timeout="10s").text == "Two."


def test_a_process_and_subagents_without_await() -> None:
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if request.messages[0].text == "child":
            return say("small")
        return call("spawn_agent", agent="child", task="x") if last.role == "user" else say("big")

    app = Lash("memory://", model=ScriptedModel(reply))
    app.agent("child", instructions="child", tools=[])
    app.subagents("child")

    @app.process
    async def ask(ctx: ProcessContext[None]) -> str:
        return (await ctx.session("chat").turn("go")).text

    with app:
        assert app.start(ask).result(timeout="10s") == "big"
        assert len(app.processes()) == 2


def test_programs_of_lashlang_run_without_await() -> None:
    events: list[dict[str, Any]] = []
    with Lash("memory://") as app:
        app.trace_lashlang(events.append)
        module = app.lashlang("process greet(who: str) { finish 'Hello ' + who }")
        assert app.start(module["greet"], who="Ann").result(10) == "Hello Ann"
    assert [event["event"] for event in events][-1] == "execution_finished"
