"""Names: one rule for both databases, checked where a name comes in and before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pylash import (
    ChildHandle,
    Lash,
    NameInvalid,
    ProcessBlocked,
    ProcessContext,
    ProcessFailed,
    Retry,
    RunState,
    WorkerConfig,
)
from pylash.testing import ScriptedModel, say
from pylash.values import names
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_branches import PARKING, parked

BAD = ["", " ", "a\0b", "\ud800", "x" * 4_000, "é" * 2_000]


async def fetch(n: int) -> int:
    return n


def app_on(url: str, config: WorkerConfig | None = None) -> Lash:
    app = Lash(url, model=ScriptedModel(lambda _: say("hello")), worker=config or WorkerConfig())
    app.trigger("push")
    return app


InProcess = Callable[[ProcessContext[Any], Any, str], Awaitable[Any]]

IN_A_PROCESS: dict[str, InProcess] = {
    "step key": lambda ctx, _, name: ctx.options(key=name).step(fetch, 1),
    "gather key": lambda ctx, _, name: ctx.gather(key=name),
    "race key": lambda ctx, _, name: ctx.race(key=name),
    "wait name": lambda ctx, _, name: ctx.wait(ctx.wait_key(name), timeout="10ms"),
    "signal to wait for": lambda ctx, _, name: ctx.wait_signal(name, timeout="10ms"),
    "signal": lambda ctx, child, name: child_of(ctx, child).signal(name),
    "signal id": lambda ctx, child, name: child_of(ctx, child).signal("go", id=name),
    "child id": lambda ctx, child, name: ctx.start(child.options(id=name)),
    "wake target": lambda ctx, child, name: ctx.start(child.options(wake=name)),
    "event type": lambda ctx, _, name: ctx.emit(name, 1),
    "session id": lambda ctx, _, name: ctx.session(name).turn("hi"),
    "turn id": lambda ctx, _, name: ctx.session("s").turn("hi", turn_id=name),
}


def child_of(ctx: ProcessContext[Any], child: Any) -> ChildHandle[Any]:
    return ChildHandle(child.name, ctx)


async def test_a_process_is_refused_a_bad_name_at_the_call_and_runs_once(backend: Backend) -> None:
    app = app_on(backend.url)
    runs, sentences = [], []

    @app.process
    async def child(ctx: ProcessContext[None]) -> None: ...

    @app.process
    async def parent(ctx: ProcessContext[None]) -> None:
        runs.append(ctx.id)
        for asked in IN_A_PROCESS.values():
            for name in BAD:
                try:
                    await asked(ctx, child, name)
                except NameInvalid as error:
                    sentences.append(error.message)

    async with app:
        handle = await app.start(parent)
        await handle.result(timeout="10s")
        assert len(runs) == 1
        assert await handle.timeline() == []
        assert [view.id for view in await app.processes()] == [handle.id]
    assert len(sentences) == len(IN_A_PROCESS) * len(BAD)
    assert all(one.startswith("Invalid ") and len(one) < 300 for one in sentences)


@EVERY_ENGINE
async def test_a_process_that_does_not_catch_the_refusal_fails_with_its_sentence(
    backend: Backend,
) -> None:
    app = backend.app()
    runs = []

    @app.process
    async def asking(ctx: ProcessContext[None]) -> None:
        runs.append(ctx.id)
        await ctx.step(fetch, 1)
        await ctx.wait(ctx.wait_key("a\0b"))

    async with app:
        handle = await app.start(asking)
        with pytest.raises(ProcessFailed, match="Invalid wait name") as caught:
            await handle.result(timeout="10s")
    assert caught.value.code == "name_invalid"
    assert len(runs) == 1


OUTSIDE: dict[str, Callable[[Lash, Any, str], Any]] = {
    "process id": lambda app, child, name: app.start(child.options(id=name)),
    "wake target": lambda app, child, name: app.start(child.options(wake=name)),
    "handle": lambda app, _, name: app.process_handle(name).status(),
    "signal name": lambda app, _, name: app.process_handle("p").signal(name),
    "signal id": lambda app, _, name: app.process_handle("p").signal("go", id=name),
    "retry": lambda app, _, name: app.retry(name),
    "fork": lambda app, _, name: app.fork_process("p", id=name),
    "forked": lambda app, _, name: app.fork_process(name),
    "session": lambda app, _, name: app.session(name).turn("hi"),
    "turn": lambda app, _, name: app.session("s").turn("hi", turn_id=name),
    "timeline": lambda app, _, name: app.session("s").timeline(name),
    "words": lambda app, _, name: app.session("s").enqueue("hi", key=name),
    "session fork": lambda app, _, name: app.session("known").fork(name),
    "waits": lambda app, _, name: app.waits(name),
    "answerer": lambda app, _, name: app.resolve("key", True, by=name),
    "trigger source": lambda app, child, name: app.triggers.register(
        "push", source_key=name, target=child, key="k"
    ),
    "trigger key": lambda app, child, name: app.triggers.register(
        "push", source_key="s", target=child, key=name
    ),
    "trigger session": lambda app, child, name: app.triggers.register(
        "push", source_key="s", target=child, key="k", session_id=name
    ),
    "event source": lambda app, _, name: app.triggers.emit("push", source_key=name),
    "event key": lambda app, _, name: app.triggers.emit(
        "push", source_key="s", idempotency_key=name
    ),
    "subscription": lambda app, _, name: app.triggers.cancel(name),
    "subscriptions": lambda app, _, name: app.triggers.list(name),
}


async def test_every_call_refuses_a_bad_name_in_one_sentence(backend: Backend) -> None:
    app = app_on(backend.url)

    @app.process
    async def child(ctx: ProcessContext[None]) -> None: ...

    async with app:
        await app.session("known").turn("hi", timeout="10s")
        for asked in OUTSIDE.values():
            for name in BAD:
                with pytest.raises(NameInvalid, match=r"^Invalid ") as caught:
                    await asked(app, child, name)
                assert len(caught.value.message) < 300
        assert await app.processes() == []
        assert await app.triggers.list() == []
        assert await app.session("s").history() == []


DECLARED: dict[str, Callable[[Lash, str], Any]] = {
    "process": lambda app, name: app.process(name=name)(fetch_process),
    "agent": lambda app, name: app.agent(name),
    "trigger": lambda app, name: app.trigger(name),
    "model": lambda app, name: app.model(name, ScriptedModel(lambda _: say("hello"))),
}


async def fetch_process(ctx: ProcessContext[None]) -> None: ...


@pytest.mark.parametrize("name", BAD, ids=["empty", "blank", "nul", "half", "long", "wide"])
@pytest.mark.parametrize("declare", DECLARED.values(), ids=DECLARED)
def test_a_bad_name_cannot_be_declared(declare: Callable[[Lash, str], Any], name: str) -> None:
    with pytest.raises(NameInvalid, match=r"^Invalid "):
        declare(Lash("memory://"), name)


async def test_the_longest_names_work_everywhere(backend: Backend) -> None:
    app = app_on(backend.url)
    long = ['"' * 512, "é" * 256, "🫖" * 128]

    @app.process
    async def child(ctx: ProcessContext[None], n: int) -> Any:
        return await ctx.wait_signal(long[n])

    @app.process
    async def parent(ctx: ProcessContext[None], n: int) -> Any:
        name = long[n]
        handle = await ctx.start(child.options(id=name), n)
        await handle.signal(name, "signal", id=name)
        answer = await ctx.session(name).turn("hi", turn_id=name)
        return [await handle.result(), answer.text]

    @app.process
    async def pushed(ctx: ProcessContext[None]) -> str:
        return "pushed"

    async with app:
        for n, name in enumerate(long):
            handle = await app.start(parent, n)
            assert await handle.result(timeout="10s") == ["signal", "hello"]
            await app.session(name).enqueue("more", key=name)
            await app.triggers.register("push", source_key=name, target=pushed, key=name)
            (started,) = await app.triggers.emit("push", source_key=name, idempotency_key=name)
            found = app.process_handle(started.process_id)
            assert await found.result(timeout="10s") == "pushed"


@EVERY_ENGINE
async def test_a_message_that_no_text_column_holds_is_recorded_all_the_same(
    backend: Backend,
) -> None:
    app = backend.app()
    runs = []

    async def broken() -> None:
        raise ValueError("a\0b\ud800")

    @app.process
    async def failing(ctx: ProcessContext[None]) -> None:
        runs.append(1)
        await ctx.options(retry=Retry(2, delay="1ms")).step(broken)

    async with app:
        handle = await app.start(failing)
        with pytest.raises(ProcessFailed, match=r"a\\u0000b\\ud800"):
            await handle.result(timeout="10s")
    assert len(runs) == 1


async def test_a_mismatch_in_a_name_that_no_text_column_holds_blocks_its_run(
    durable: Backend,
) -> None:
    def app_with(value: int) -> Lash:
        app = Lash(durable.url, worker=PARKING)

        async def look(given: dict[str, int]) -> int:
            return len(given)

        @app.process
        async def changing(ctx: ProcessContext[None]) -> Any:
            await ctx.step(look, {"a\0b": value})
            return await ctx.wait_signal("go")

        return app

    async with app_with(1) as app:
        handle = await app.start(app.services.definitions["changing"].options(id="p"))
        await parked(app, handle.id)
    async with app_with(2) as app:
        handle = app.process_handle("p")
        await handle.signal("go")

        async def is_blocked() -> bool:
            return await handle.status() is RunState.BLOCKED

        await eventually(is_blocked)
        with pytest.raises(ProcessBlocked, match=r"effect_replay_mismatch: .*a\\u0000b"):
            await handle.result(timeout="1ms")


async def test_names_that_were_stored_under_another_rule_go_on(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, runs = "x" * 600, []

    async def count(n: int) -> int:
        runs.append(n)
        return n

    async def old(ctx: ProcessContext[None]) -> Any:
        first = await ctx.options(key=long).step(count, 1)
        await ctx.gather(ctx.step(count, 2), key=long)
        return [first, await ctx.wait(ctx.wait_key(long))]

    app = app_on(durable.url, PARKING)
    app.process(old)

    with monkeypatch.context() as patched:
        patched.setattr(names, "name_problem", lambda *_: None)
        async with app:
            await app.start(app_on(durable.url).process(old).options(id="p"))
            await parked(app, "p")
    async with app:
        (wait,) = await app.waits()
        await app.resolve(wait.key, "answer")
        assert await app.process_handle("p").result(timeout="10s") == [1, "answer"]
    assert runs == [1, 2]
