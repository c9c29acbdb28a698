"""Laws of cancels on any engine: a cancel reaches the code at every kind of wait, and what follows it is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pylash.app import Lash
from pylash.processes.operations.context import ProcessContext
from pylash.testing.laws.engines.processes import is_cancelled
from pylash.testing.laws.engines.subjects import (
    LIMIT,
    MODEL,
    Deployment,
    EngineSubject,
    Gate,
    Ledger,
    until,
)
from pylash.testing.laws.suites import Law, equal, holds
from pylash.testing.scripted import ScriptedModel, call, say

Context = ProcessContext[Any]
Wait = Callable[[Context], Awaitable[Any]]


async def _ends_each(subject: EngineSubject, wait: Wait, *, parks: bool = True) -> None:
    """Check that a cancel ends a process that waits, as soon as it waits and once it is parked."""
    ledger = Ledger()

    def declare(app: Lash) -> None:
        app.model(MODEL, ScriptedModel([call("approved"), say("never")]))

        @app.tool(approval=True)
        async def approved() -> str:
            """Never called."""
            return str(await ledger.note("approved"))

        @app.process
        async def sleeper(ctx: Context) -> None:
            await ctx.sleep("1h")

        @app.process
        async def waiter(ctx: Context, name: str) -> None:
            try:
                await ctx.emit("waiting")
                await wait(ctx)
                await ctx.step(ledger.note, f"{name} continued")
            finally:
                await ctx.step(ledger.note, name)

    async with Deployment(subject, declare) as deployment:
        live, parked = await deployment.start("waiter", "live"), None
        if parks:
            parked = await deployment.start("waiter", "parked")
        await deployment.emits(live, "waiting")
        await deployment.handle(live).cancel("enough")
        equal((await is_cancelled(deployment, live)).reason, "enough", "the reason")
        if parked is not None:
            await deployment.comes_to(parked, "waiting")
            await deployment.handle(parked).cancel()
            await is_cancelled(deployment, parked)
    equal(ledger.executed, ["live", "parked"] if parks else ["live"], "the executions")


async def a_cancel_ends_a_sleep(subject: EngineSubject) -> None:
    await _ends_each(subject, lambda ctx: ctx.sleep("1h"))


async def a_cancel_ends_a_wait_for_a_signal(subject: EngineSubject) -> None:
    await _ends_each(subject, lambda ctx: ctx.wait_signal("never"))


async def a_cancel_ends_a_wait_with_a_timeout(subject: EngineSubject) -> None:
    await _ends_each(subject, lambda ctx: ctx.wait_signal("never", timeout="1h", default=0))


async def a_cancel_ends_a_wait_for_an_answer(subject: EngineSubject) -> None:
    await _ends_each(subject, lambda ctx: ctx.wait(ctx.wait_key("answer")))


async def a_cancel_ends_a_wait_for_an_approval(subject: EngineSubject) -> None:
    await _ends_each(subject, lambda ctx: ctx.call_tool("approved"))


async def a_cancel_ends_a_wait_for_a_child(subject: EngineSubject) -> None:
    async def wait_for_child(ctx: Context) -> None:
        await (await ctx.start(ctx._services.definitions["sleeper"])).result()  # noqa: SLF001

    await _ends_each(subject, wait_for_child)


async def a_cancel_ends_a_wait_for_a_turn(subject: EngineSubject) -> None:
    async def wait_for_turn(ctx: Context) -> None:
        await ctx.session(f"talk-{ctx.id}", model=MODEL).turn("go")

    await _ends_each(subject, wait_for_turn)


async def a_cancel_ends_every_branch_of_a_gather(subject: EngineSubject) -> None:
    async def wait_in_branches(ctx: Context) -> None:
        await ctx.gather(ctx.sleep("1h"), ctx.wait_signal("never"), ctx.sleep("2h"))

    await _ends_each(subject, wait_in_branches)


async def a_cancel_ends_every_branch_of_a_race(subject: EngineSubject) -> None:
    async def wait_in_race(ctx: Context) -> None:
        await ctx.race(ctx.sleep("1h"), ctx.wait(ctx.wait_key("answer")))

    await _ends_each(subject, wait_in_race)


async def a_cancel_reaches_a_step_that_is_executed(subject: EngineSubject) -> None:
    gates, ledger = [Gate(), Gate()], Ledger()

    def declare(app: Lash) -> None:
        async def branch(ctx: Context, gate: Gate) -> None:
            try:
                await ctx.step(gate.enter)
            finally:
                await ctx.step(ledger.note, "branch")

        @app.process
        async def alone(ctx: Context) -> None:
            await branch(ctx, gates[0])

        @app.process
        async def gathered(ctx: Context) -> None:
            await ctx.gather(branch(ctx, gates[1]), ctx.sleep("1h"))

    async with Deployment(subject, declare) as deployment:
        for name, gate in zip(("alone", "gathered"), gates, strict=True):
            process = await deployment.start(name)
            await gate.until_entered()
            await deployment.handle(process).cancel()
            await is_cancelled(deployment, process)
            holds(gate.was_cancelled, "the function of the step must be cancelled")
    equal(ledger.executed, ["branch", "branch"], "the executions")


async def a_cancel_before_the_start_is_seen(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process
        async def late(ctx: Context) -> None:
            await ctx.step(ledger.note, "never")

    async with Deployment(subject, declare) as deployment:
        definition = deployment.app.definitions["late"]
        handle = await deployment.app.start(definition.options(delay="300ms"))
        await handle.cancel()
        await is_cancelled(deployment, handle.id)
    equal(ledger.executed, [], "the executions")


async def what_follows_a_cancel_is_recorded(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process
        async def tidy(ctx: Context) -> None:
            for number in range(2):
                try:
                    await ctx.wait_signal(f"n{number}")
                except asyncio.CancelledError:
                    await ctx.step(ledger.note, f"cancelled at {number}")
                    await ctx.emit("cleaning")
                    await ctx.wait_signal("cleaned")
                    await ctx.step(ledger.note, "cleaned")
                    raise

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("tidy")
        await deployment.handle(process).signal("n0")
        await deployment.comes_to(process, "waiting")
        await deployment.handle(process).cancel()
        await deployment.emits(process, "cleaning")
        await deployment.restart()
        await deployment.handle(process).signal("n1")  # no wait for it is left
        await deployment.handle(process).signal("cleaned")
        await is_cancelled(deployment, process)
    equal(ledger.executed, ["cancelled at 1", "cleaned"], "the executions")


async def a_process_may_catch_its_cancel(subject: EngineSubject) -> None:
    def declare(app: Lash) -> None:
        @app.process
        async def stubborn(ctx: Context) -> str:
            try:
                await ctx.wait_signal("never")
            except asyncio.CancelledError:
                await ctx.sleep("1ms")
            return f"got {await ctx.wait_signal('go')}"

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("stubborn")
        await deployment.comes_to(process, "waiting")
        await deployment.handle(process).cancel()
        await deployment.handle(process).signal("go", "on")
        equal(await deployment.result(process), "got on", "its result")


async def losers_of_a_race_clean_up_once(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        async def loser(ctx: Context, number: int) -> None:
            try:
                await ctx.wait_signal("never")
            finally:
                await ctx.step(ledger.note, number)

        @app.process
        async def racing(ctx: Context) -> Any:
            won = await ctx.race(loser(ctx, 1), ctx.wait_signal("go"), loser(ctx, 2))
            await ctx.wait_signal("end")
            return won

    async with Deployment(subject, declare) as deployment:
        if not deployment.app.effect_host.supports_concurrent_effects:
            return  # the first branch would wait for ever, and the others never begin
        process = await deployment.start("racing")
        await deployment.comes_to(process, "waiting")
        await deployment.handle(process).signal("go", "won")

        async def both() -> bool:
            return len(ledger.executed) == 2

        await until(both, "the losers clean up")
        await deployment.restart()
        await deployment.handle(process).signal("end")
        equal(await deployment.result(process), "won", "the winner")
    equal(sorted(ledger.executed), [1, 2], "the executions")


async def a_cancel_ends_a_turn_whose_tool_is_executed(subject: EngineSubject) -> None:
    gate = Gate()

    def declare(app: Lash) -> None:
        app.model(MODEL, ScriptedModel([call("hang"), say("never")]))

        @app.tool
        async def hang() -> str:
            """Hang."""
            return await gate.enter()

    async with Deployment(subject, declare) as deployment:
        session = deployment.app.session("cancelled-tool", model=MODEL)
        async with asyncio.TaskGroup() as group:
            turn = group.create_task(session.turn("go", timeout=LIMIT))
            await gate.until_entered()
            await session.cancel()
        equal(str(turn.result().status), "cancelled", "the status of the turn")
        holds(gate.was_cancelled, "the function of the tool must be cancelled")


async def a_cancel_ends_a_turn_that_waits_for_an_approval(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        app.model(MODEL, ScriptedModel([call("pay"), say("never")]))

        @app.tool(approval=True)
        async def pay() -> str:
            """Pay."""
            return str(await ledger.note("paid"))

    async with Deployment(subject, declare) as deployment:
        name = "cancelled-approval"
        session = deployment.app.session(name, model=MODEL)
        async with session.stream("go", turn_id="t1") as stream:
            async for event in stream:
                if event.type == "wait_opened":
                    break
        await deployment.restart()
        session = deployment.app.session(name, model=MODEL)
        await session.cancel()
        result = await session.turn("go", turn_id="t1", timeout=LIMIT)
        equal(str(result.status), "cancelled", "the status of the turn")
    equal(ledger.executed, [], "the executions")


CANCELS: tuple[Law[EngineSubject], ...] = (
    a_cancel_ends_a_sleep,
    a_cancel_ends_a_wait_for_a_signal,
    a_cancel_ends_a_wait_with_a_timeout,
    a_cancel_ends_a_wait_for_an_answer,
    a_cancel_ends_a_wait_for_an_approval,
    a_cancel_ends_a_wait_for_a_child,
    a_cancel_ends_a_wait_for_a_turn,
    a_cancel_ends_every_branch_of_a_gather,
    a_cancel_ends_every_branch_of_a_race,
    a_cancel_reaches_a_step_that_is_executed,
    a_cancel_before_the_start_is_seen,
    what_follows_a_cancel_is_recorded,
    a_process_may_catch_its_cancel,
    losers_of_a_race_clean_up_once,
    a_cancel_ends_a_turn_whose_tool_is_executed,
    a_cancel_ends_a_turn_that_waits_for_an_approval,
)
