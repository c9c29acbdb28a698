"""Payloads: one limit for everything that is stored, refused with one sentence before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pylash import Lash, PayloadTooLarge, ProcessContext, ProcessFailed, RunState, WorkerConfig
from pylash.testing import ScriptedModel, call, calls, say
from tests.backends import EVERY_ENGINE, Backend
from tests.processes.test_branches import PARKING, parked

LIMIT = "pylash.values.canonical.MAX_PAYLOAD_BYTES"
SENTENCE = r"^The payload has [\d,]+ bytes and the limit is 20,000: record a reference"
BIG = "x" * 30_000


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMIT, 20_000)


async def echo(text: str) -> str:
    return text


def app_on(url: str, config: WorkerConfig | None = PARKING) -> Lash:
    app = Lash(url, model=ScriptedModel(lambda _: say("hello")), worker=config)
    app.trigger("push")

    @app.process
    async def child(ctx: ProcessContext[None], text: str) -> str:
        return text

    @app.process
    async def waiting(ctx: ProcessContext[None]) -> Any:
        try:
            return await ctx.wait_signal("go")
        except PayloadTooLarge as error:
            return error.code

    @app.process
    async def answered(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait(ctx.wait_key("go"))

    return app


InProcess = Callable[[ProcessContext[Any], Any], Awaitable[Any]]

IN_A_PROCESS: dict[str, InProcess] = {
    "step argument": lambda ctx, _: ctx.step(echo, BIG),
    "child argument": lambda ctx, child: ctx.start(child, BIG),
    "event": lambda ctx, _: ctx.emit("said", BIG),
    "wake": lambda ctx, _: ctx.wake(BIG),
    "question": lambda ctx, _: ctx.session("s").turn(BIG),
    "new arguments": lambda ctx, _: ctx.continue_as(text=BIG),
}


async def test_a_process_is_refused_a_large_payload_before_anything_is_written(
    backend: Backend, low_limit: None
) -> None:
    app = app_on(backend.url)
    sentences = []

    @app.process
    async def parent(ctx: ProcessContext[None], text: str = "") -> None:
        for asked in IN_A_PROCESS.values():
            try:
                await asked(ctx, app.services.definitions["child"])
            except PayloadTooLarge as error:
                sentences.append(error.message)

    async with app:
        handle = await app.start(parent)
        await handle.result(timeout="10s")
        assert await handle.timeline() == []
        assert [event.type async for event in handle.events()] == [
            "process.started",
            "process.completed",
        ]
        assert [view.id for view in await app.processes()] == [handle.id]
        assert await app.session("s").history() == []
    assert len(sentences) == len(IN_A_PROCESS)
    assert all("the limit is 20,000" in one for one in sentences)


@pytest.mark.parametrize(
    "what", ["at once", "result", "step result", "exception", "step exception", "again"]
)
async def test_a_process_that_ends_with_a_large_payload_fails_with_the_sentence(
    backend: Backend, low_limit: None, what: str
) -> None:
    app = app_on(backend.url)
    runs = []

    async def fail_long() -> None:
        raise ValueError(BIG)

    async def give_much() -> str:
        return BIG

    @app.process
    async def ending(ctx: ProcessContext[None], text: str = "") -> str:
        runs.append(what)
        if what == "at once":
            return BIG
        await ctx.step(echo, "first")
        if what == "step result":
            await ctx.step(give_much)
        if what == "step exception":
            await ctx.step(fail_long)
        if what == "exception":
            raise ValueError(BIG)
        if what == "again":
            ctx.continue_as(text=BIG)
        return BIG

    async with app:
        handle = await app.start(ending)
        with pytest.raises(ProcessFailed) as caught:
            await handle.result(timeout="10s")
        assert caught.value.code == "payload_too_large"
        assert "the limit is 20,000" in caught.value.message
        assert await handle.status() is RunState.FAILED
    assert len(runs) == 1


OUTSIDE: dict[str, Callable[[Lash, Any], Awaitable[Any]]] = {
    "arguments": lambda app, child: app.start(child, BIG),
    "arguments under an id": lambda app, child: app.start(child.options(id="p"), BIG),
    "signal": lambda app, _: app.process_handle("w").signal("go", BIG),
    "reason": lambda app, _: app.process_handle("w").cancel(BIG),
    "question": lambda app, _: app.session("s").turn(BIG),
    "words": lambda app, _: app.session("s").enqueue(BIG),
    "options": lambda app, _: app.session("s", instructions=BIG).turn("hi"),
    "event": lambda app, _: app.triggers.emit("push", source_key="s", payload=BIG),
    "subscription": lambda app, child: app.triggers.register(
        "push", source_key="s", target=child, key="k", inputs={"text": BIG}
    ),
}


async def test_every_call_refuses_a_large_payload_with_the_same_sentence(
    backend: Backend, low_limit: None
) -> None:
    app = app_on(backend.url)
    async with app:
        child, waiting = (app.services.definitions[name] for name in ("child", "waiting"))
        handle = await app.start(waiting.options(id="w"))
        answered = await app.start(app.services.definitions["answered"])
        await parked(app, handle.id)
        await parked(app, answered.id)
        for asked in OUTSIDE.values():
            with pytest.raises(PayloadTooLarge, match=SENTENCE):
                await asked(app, child)
        for wait in await app.waits():
            for given in ({"value": BIG}, {"error": BIG}):
                if wait.kind == "signal" and "error" in given:
                    continue
                with pytest.raises(PayloadTooLarge, match=SENTENCE):
                    await app.resolve(wait.key, **given)
        assert len(await app.waits()) == 2
        assert len(await app.processes()) == 2
        assert await app.session("s").history() == []
        assert await app.triggers.list() == []
        await handle.signal("go", "done")
        assert await handle.result(timeout="10s") == "done"


@EVERY_ENGINE
@pytest.mark.parametrize("call", ["turn", "enqueue"])
async def test_a_session_keeps_its_options_if_a_message_is_refused(
    backend: Backend, low_limit: None, call: str
) -> None:
    prompts = []

    def reply(request: Any) -> Any:
        prompts.append(request.messages[0].text)
        return say("hello")

    async with backend.app(model=ScriptedModel(reply)) as app:
        await app.session("s", instructions="Be kind.").turn("hi", timeout="10s")
        with pytest.raises(PayloadTooLarge, match=SENTENCE):
            await getattr(app.session("s", instructions="Be rude."), call)(BIG)
        await app.session("s").turn("hi", timeout="10s")
    assert prompts == ["Be kind."] * 2


async def test_a_signal_that_is_too_large_for_its_wait_is_the_failure_of_the_wait(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app_on(durable.url) as app:
        handle = await app.start(app.services.definitions["waiting"].options(id="w"))
        await parked(app, handle.id)
    async with app_on(durable.url, None) as app:
        await app.process_handle("w").signal("go", BIG)
    monkeypatch.setattr(LIMIT, 20_000)
    for _ in range(2):  # the second time from the record
        async with app_on(durable.url) as app:
            result = await app.process_handle("w").result(timeout="10s")
            assert result == "payload_too_large"


async def test_what_fits_is_handed_on_whole(backend: Backend, low_limit: None) -> None:
    app = app_on(backend.url)
    most = "x" * 19_900

    @app.process
    async def parent(ctx: ProcessContext[None]) -> int:
        handle = await ctx.start(app.services.definitions["child"], "x" * 15_000)
        return len(await handle.result()) + len(await ctx.step(lambda: most))

    @app.process
    async def giving(ctx: ProcessContext[None]) -> str:
        return "x" * 19_998

    @app.process
    async def taking(ctx: ProcessContext[None]) -> int:
        handle = await ctx.start(giving)
        return len(await handle.result())

    async with app:
        assert await (await app.start(parent)).result(timeout="10s") == 34_900
        assert await (await app.start(taking)).result(timeout="10s") == 19_998


@EVERY_ENGINE
@pytest.mark.parametrize("what", ["answer", "tool result", "tool exception"])
async def test_a_turn_whose_model_or_tool_returns_too_much_ends_with_the_error(
    backend: Backend, low_limit: None, what: str
) -> None:
    def reply(request: Any) -> Any:
        if what == "answer":
            return say(BIG)
        return calls(call("report")) if len(request.messages) == 1 else say("done")

    app = backend.app(model=ScriptedModel(reply))

    @app.tool
    async def report() -> str:
        if what == "tool exception":
            raise ValueError(BIG)
        return BIG

    async with app:
        session = app.session("s")
        result = await session.turn("go", timeout="10s")
        if what == "answer":
            assert (result.status, result.code) == ("failed", "payload_too_large")
        else:
            told = (await session.history())[2].text
            assert "the limit is 20,000" in told
            assert result.text == "done"
        assert (await session.turn("again", timeout="10s", turn_id="t2")).turn_id == "t2"


@pytest.mark.slow
async def test_65_megabytes_are_refused_as_a_signal(durable: Backend) -> None:
    async with app_on(durable.url) as app:
        handle = await app.start(app.services.definitions["waiting"].options(id="w"))
        with pytest.raises(PayloadTooLarge, match="67,108,864"):
            await handle.signal("go", "x" * 65 * 1024 * 1024)
        await handle.signal("go", 1)
        assert await handle.result(timeout="10s") == 1
