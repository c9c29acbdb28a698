"""Tools that processes call: retries, approvals, deferral and emitted events, as in turns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash import (
    EVENT,
    CallRefused,
    Lash,
    ProcessContext,
    ProcessFailed,
    Retry,
    ToolContext,
    WorkerConfig,
)
from pylash.durable.commands import StartProcess
from pylash.durable.processes import ProcessView, Registration, ToolCallInput
from pylash.testing import crash_everywhere
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_branches import PARKING, parked
from tests.processes.test_steps import effects


async def waiting(app: Lash) -> Any:
    """Return the wait that is open."""
    return (await eventually(app.waits))[0]


async def test_a_tool_is_tried_again_and_each_attempt_recorded(backend: Backend) -> None:
    app = Lash(backend.url)
    keys: list[tuple[int, str]] = []

    @app.tool(retry=Retry(3, delay="1ms"))
    async def fetch(ctx: ToolContext[None], n: int) -> int:
        """Fetch a number."""
        keys.append((ctx.attempt, ctx.idempotency_key))
        if ctx.attempt < 3:
            raise OSError("away")
        return n * 2

    @app.process
    async def using(ctx: ProcessContext[None]) -> list[int]:
        return [await ctx.call_tool("fetch", n=1), await ctx.call_tool("fetch", n=2)]

    async with app:
        assert await (await app.start(using.options(id="p"))).result(timeout="10s") == [2, 4]
        recorded = await effects(app, "p")
    assert recorded == [
        f"{call}{part}"
        for call in ("fetch", "fetch#2")
        for part in ("", "/delay.1", "/attempt.2", "/delay.2", "/attempt.3")
    ]
    assert [attempt for attempt, _ in keys] == [1, 2, 3] * 2
    assert len({key for _, key in keys}) == 2


async def test_the_last_failure_and_what_is_not_to_be_tried_again_end_the_call() -> None:
    app = Lash("memory://")
    tried: list[str] = []

    @app.tool(retry=Retry(2, delay="1ms", on=(OSError,)))
    async def fails(how: str) -> None:
        """Fail."""
        tried.append(how)
        raise OSError(how) if how == "away" else KeyError(how)

    @app.process
    async def using(ctx: ProcessContext[None], how: str) -> None:
        await ctx.call_tool("fails", how=how)

    async with app:
        for how in ("away", "wrong"):
            with pytest.raises(ProcessFailed, match=how):
                await (await app.start(using, how=how)).result(timeout="10s")
    assert tried == ["away", "away", "wrong"]


async def test_a_person_agrees_and_the_call_goes_on_after_a_restart(durable: Backend) -> None:
    paid: list[int] = []

    def make() -> Lash:
        app = Lash(durable.url, worker=PARKING)

        @app.tool(approval=lambda cents: f"{cents} cents leave" if cents > 10 else False)
        async def pay(cents: int) -> str:
            """Pay."""
            paid.append(cents)
            return f"paid {cents}"

        @app.process
        async def using(ctx: ProcessContext[None]) -> list[str]:
            return [await ctx.call_tool("pay", cents=5), await ctx.call_tool("pay", cents=500)]

        return app

    async with make() as app:
        await app.start(app.services.definitions["using"].options(id="p"))
        wait = await waiting(app)
        await parked(app, "p")
        assert (wait.kind, wait.title, wait.tool) == ("approval", "500 cents leave", "pay")
        assert (wait.arguments, paid) == ({"cents": 500}, [5])
    async with make() as app:
        await app.resolve(wait.key, {"approved": True, "arguments": {"cents": 400}})
        result = await app.process_handle("p").result(timeout="10s")
    assert result == ["paid 5", "paid 400"]
    assert paid == [5, 400]


async def test_a_refused_call_is_an_error_with_the_reason_of_the_person() -> None:
    app = Lash("memory://")

    @app.tool(approval=True)
    async def pay() -> None:
        """Pay."""
        raise AssertionError

    @app.process
    async def using(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.call_tool("pay")
        except CallRefused as refusal:
            return refusal.message
        return "paid"

    async with app:
        handle = await app.start(using)
        wait = await waiting(app)
        await app.resolve(wait.key, {"approved": False, "by": "ann", "reason": "too much"})
        assert await handle.result(timeout="10s") == "Not run: it was rejected by ann: too much"
        given = Registration(id="t", input=ToolCallInput("pay", {}), env=app.template.env)
        await app.store.processes.start(StartProcess(given))
        await app.resolve((await waiting(app)).key, False)
        with pytest.raises(ProcessFailed, match="a person rejected it") as caught:
            await app.process_handle("t").result(timeout="10s")
    assert caught.value.code == CallRefused.default_code


@EVERY_ENGINE
async def test_an_outsider_gives_the_result_of_a_deferred_tool(backend: Backend) -> None:
    app = backend.app()

    @app.tool
    async def ask(ctx: ToolContext[None], question: str) -> Any:
        """Ask somebody."""
        return ctx.defer(deadline="1h" if question == "soon?" else "1ms")

    @app.process
    async def using(ctx: ProcessContext[None]) -> list[Any]:
        answer = await ctx.call_tool("ask", question="soon?")
        try:
            return [answer, await ctx.call_tool("ask", question="now?")]
        except CallRefused as late:
            return [answer, late.message]

    async with app:
        handle = await app.start(using)
        wait = await waiting(app)
        assert (wait.kind, wait.arguments) == ("deferred", {"question": "soon?"})
        await app.resolve(wait.key, {"yes": 1})
        result = await handle.result(timeout="10s")
    assert result == [{"yes": 1}, "Nobody gave the result in time."]


async def test_an_event_of_a_tool_starts_what_is_subscribed_once(durable: Backend) -> None:
    heard: list[Any] = []

    def make() -> Lash:
        app = Lash(durable.url, worker=WorkerConfig(grace=0))
        app.trigger("paid", payload=int)

        @app.process
        async def on_paid(ctx: ProcessContext[None], cents: int) -> None:
            heard.append(cents)

        @app.tool
        async def pay(ctx: ToolContext[None], cents: int) -> None:
            """Pay."""
            ctx.emit("paid", source_key="shop", payload=cents)

        @app.process
        async def using(ctx: ProcessContext[None], rounds: int) -> None:
            await ctx.call_tool("pay", cents=rounds)
            if rounds > 1:
                ctx.continue_as(rounds=rounds - 1)
            await ctx.wait_signal("end")

        return app

    async with make() as app:
        on_paid, using = app.services.definitions["on_paid"], app.services.definitions["using"]
        await app.triggers.register(
            "paid", source_key="shop", target=on_paid, key="k", inputs={"cents": EVENT}
        )
        await app.start(using.options(id="p"), rounds=2)
        await eventually(lambda: ended(app, 2))
    async with make() as app:
        await app.fork_process("p", id="fork")
        for process in ("p", "fork"):
            await app.process_handle(process).signal("end")
            await app.process_handle(process).result(timeout="10s")
        assert len(await app.processes()) == 4
    assert sorted(heard) == [1, 2]


async def ended(app: Lash, number: int) -> list[ProcessView]:
    found = await app.processes(status="completed")
    return found if len(found) == number else []


def make_shop(store: str) -> Lash:
    """Return an app with a process that calls a tool which is approved, fails once, and emits an event."""
    app = Lash(store)
    app.trigger("paid", payload=int)

    @app.process
    async def on_paid(ctx: ProcessContext[None], cents: int) -> str:
        return f"heard {cents}"

    @app.tool(approval=True, retry=Retry(2, delay="1ms"))
    async def pay(ctx: ToolContext[None], cents: int) -> str:
        """Pay."""
        if ctx.attempt == 1:
            raise OSError("away")
        ctx.emit("paid", source_key="shop", payload=cents)
        return f"paid {cents}"

    @app.process
    async def using(ctx: ProcessContext[None]) -> str:
        paid: str = await ctx.call_tool("pay", cents=5)
        return paid

    return app


async def shop_story(app: Lash) -> str:
    on_paid, using = (app.services.definitions[name] for name in ("on_paid", "using"))
    await app.triggers.register(
        "paid", source_key="shop", target=on_paid, key="k", inputs={"cents": EVENT}
    )
    handle = await app.start(using.options(id="p"))
    while await handle.status() != "completed":
        for wait in await app.waits():
            await app.resolve(wait.key, True)
        await asyncio.sleep(0.001)
    results = [
        await app.process_handle(one.id, on_paid).result()
        for one in await app.processes()
        if one.id != "p"
    ]
    return f"{await handle.result()}, {results}"


def test_a_call_ends_the_same_wherever_it_dies() -> None:
    report = crash_everywhere(make_shop, shop_story)
    assert report.outcome == "paid 5, ['heard 5']"
    assert {one.operation for one in report.points} >= {"open_for", "begin_sleep", "record", "emit"}
