"""Laws of repairs on any engine: a run that its code does not fit is blocked, and continues with code that does."""

from __future__ import annotations

from typing import Any

from pylash.app import Lash
from pylash.processes.operations.context import ProcessContext
from pylash.testing.laws.engines.subjects import Declare, Deployment, EngineSubject, Ledger
from pylash.testing.laws.suites import Law, equal, refused

Context = ProcessContext[Any]


def _order(ledger: Ledger, *, cents: int = 7, is_mistaken: bool = False) -> Declare:
    """Declare a process that charges an order, and ships it after a signal."""

    def declare(app: Lash) -> None:
        @app.process
        async def order(ctx: Context) -> list[Any]:
            charged = await ctx.options(key="charge").step(ledger.note, cents)
            await ctx.wait_signal("go")
            if is_mistaken:
                raise NameError("a mistake in the code")
            return [charged, await ctx.options(key="ship").step(ledger.note, "shipped")]

    return declare


async def a_mistake_in_the_code_blocks_until_it_is_fixed(subject: EngineSubject) -> None:
    ledger = Ledger()
    async with Deployment(subject, _order(ledger, is_mistaken=True)) as deployment:
        process = await deployment.start("order")
        await deployment.handle(process).signal("go")
        await deployment.comes_to(process, "blocked")
        result = deployment.handle(process).result(timeout="100ms")
        await refused(result, "process_blocked", "the result of a blocked process")
        await deployment.restart(_order(ledger))
        await deployment.retry(process)
        equal(await deployment.result(process), [7, "shipped"], "its result")
    equal(ledger.executed, [7, "shipped"], "the executions")


async def another_input_of_a_recorded_step_blocks_until_the_old_one_is_back(
    subject: EngineSubject,
) -> None:
    ledger = Ledger()
    async with Deployment(subject, _order(ledger)) as deployment:
        process = await deployment.start("order")
        await deployment.comes_to(process, "waiting")
        await deployment.restart(_order(ledger, cents=8))
        await deployment.handle(process).signal("go")
        await deployment.comes_to(process, "blocked")
        await deployment.restart(_order(ledger))
        await deployment.retry(process)
        equal(await deployment.result(process), [7, "shipped"], "its result")
    equal(ledger.executed, [7, "shipped"], "the executions")


async def a_process_that_is_not_blocked_is_not_retried(subject: EngineSubject) -> None:
    async with Deployment(subject, _order(Ledger())) as deployment:
        process = await deployment.start("order")
        await deployment.comes_to(process, "waiting")
        await refused(deployment.app.retry(process), "not_blocked", "a retry")


async def a_blocked_process_can_be_cancelled(subject: EngineSubject) -> None:
    ledger = Ledger()
    async with Deployment(subject, _order(ledger, is_mistaken=True)) as deployment:
        process = await deployment.start("order")
        await deployment.handle(process).signal("go")
        await deployment.comes_to(process, "blocked")
        handle = deployment.handle(process)
        await handle.cancel(force=True)
        await refused(handle.result(timeout="20s"), "process_cancelled", "its result")


async def a_fork_takes_over_what_is_recorded(subject: EngineSubject) -> None:
    ledger = Ledger()
    async with Deployment(subject, _order(ledger)) as deployment:
        process = await deployment.start("order")
        await deployment.handle(process).signal("go")
        equal(await deployment.result(process), [7, "shipped"], "its result")
        late = await deployment.app.fork_process(process, from_effect="ship")
        equal(await deployment.result(late.id), [7, "shipped"], "the result of the late fork")
        equal(ledger.executed, [7, "shipped", "shipped"], "the executions with the late fork")
        early = await deployment.app.fork_process(process, from_effect="charge")
        await deployment.handle(early.id).signal("go")
        equal(await deployment.result(early.id), [7, "shipped"], "the result of the early fork")
    equal(ledger.executed[3:], [7, "shipped"], "the executions of the early fork")


async def a_fork_with_other_code_keeps_what_it_took_over(subject: EngineSubject) -> None:
    ledger = Ledger()

    def changed(app: Lash) -> None:
        @app.process
        async def order(ctx: Context) -> list[Any]:
            charged = await ctx.options(key="charge").step(ledger.note, 7)
            await ctx.wait_signal("go")
            return [charged, await ctx.options(key="refund").step(ledger.note, "refunded")]

    async with Deployment(subject, _order(ledger)) as deployment:
        process = await deployment.start("order")
        await deployment.handle(process).signal("go")
        await deployment.result(process)
        await deployment.restart(changed)
        fork = await deployment.app.fork_process(process, from_effect="ship")
        equal(await deployment.result(fork.id), [7, "refunded"], "the result of the fork")
    equal(ledger.executed, [7, "shipped", "refunded"], "the executions")


REPAIRS: tuple[Law[EngineSubject], ...] = (
    a_mistake_in_the_code_blocks_until_it_is_fixed,
    another_input_of_a_recorded_step_blocks_until_the_old_one_is_back,
    a_process_that_is_not_blocked_is_not_retried,
    a_blocked_process_can_be_cancelled,
    a_fork_takes_over_what_is_recorded,
    a_fork_with_other_code_keeps_what_it_took_over,
)
