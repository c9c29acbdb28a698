"""Laws of processes on any engine: what is recorded stands, however often the code is executed."""

from __future__ import annotations

import asyncio
from typing import Any

from pylash.app import Lash
from pylash.processes.operations.context import ProcessContext
from pylash.testing.laws.engines.subjects import (
    LIMIT,
    PATIENCE_SECONDS,
    Deployment,
    EngineSubject,
    Gate,
    Ledger,
    until,
)
from pylash.testing.laws.suites import Law, equal, holds, refused
from pylash.values.errors import StepFailed
from pylash.values.process_errors import ProcessCancelled, ProcessFailed, WaitTimeout

Context = ProcessContext[Any]


# --- steps and branches ---


async def a_step_is_executed_once(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process
        async def story(ctx: Context) -> list[Any]:
            first = [await ctx.step(ledger.note, n) for n in range(3)]
            word = await ctx.wait_signal("go")
            return [*first, word, await ctx.step(ledger.note, 3)]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("story")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("go", "on")
        equal(await deployment.result(process), [0, 1, 2, "on", 3], "the result")
    equal(ledger.executed, [0, 1, 2, 3], "the executions of its steps")


async def a_step_that_failed_stays_failed(subject: EngineSubject) -> None:
    ledger = Ledger()

    async def fail() -> None:
        ledger.executed.append("fail")
        raise KeyError("missing")

    def declare(app: Lash) -> None:
        @app.process
        async def story(ctx: Context) -> list[Any]:
            try:
                await ctx.step(fail)
            except StepFailed as error:
                found = [error.type_name, error.message]
            await ctx.wait_signal("go")
            return found

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("story")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("go")
        equal(await deployment.result(process), ["KeyError", "'missing'"], "the failure")
    equal(ledger.executed, ["fail"], "the executions of the step")


async def a_step_that_was_cut_off_is_executed_again(subject: EngineSubject) -> None:
    ledger, gate = Ledger(), Gate()

    async def work() -> str:
        ledger.executed.append("work")
        return await gate.enter() if len(ledger.executed) == 2 else "done"

    def declare(app: Lash) -> None:
        @app.process
        async def story(ctx: Context) -> list[Any]:
            return [await ctx.step(ledger.note, "first"), await ctx.step(work)]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("story")
        await gate.until_entered()
        await deployment.restart()
        equal(await deployment.result(process), ["first", "done"], "the result")
    equal(ledger.executed, ["first", "work", "work"], "the executions")


async def overlapping_effects_are_replayed_each_from_its_own_record(subject: EngineSubject) -> None:
    done = [asyncio.Event() for _ in range(4)]
    ledger = Ledger()

    async def work(number: int, *, is_serial: bool) -> int:
        # Each waits for the one that was begun after it, so that they end in the opposite order.
        if number < len(done) - 1 and not is_serial:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await done[number + 1].wait()
        ledger.executed.append(number)
        done[number].set()
        return number

    def declare(app: Lash) -> None:
        async def branch(ctx: Context, number: int, *, is_serial: bool) -> list[int]:
            first = await ctx.step(work, number, is_serial=is_serial)
            return [first, await ctx.step(ledger.note, 10 + number)]

        @app.process
        async def fan(ctx: Context, is_serial: bool) -> list[Any]:
            works = [branch(ctx, number, is_serial=is_serial) for number in range(4)]
            gathered = await ctx.gather(*works)
            await ctx.wait_signal("go")
            return gathered

    async with Deployment(subject, declare) as deployment:
        is_serial = not deployment.app.effect_host.supports_concurrent_effects
        process = await deployment.start("fan", is_serial)
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("go")
        gathered = await deployment.result(process)
    equal(gathered, [[0, 10], [1, 11], [2, 12], [3, 13]], "the results, in the order of branches")
    firsts = [number for number in ledger.executed if number < 10]
    equal(firsts, [0, 1, 2, 3] if is_serial else [3, 2, 1, 0], "the order of the first steps")
    equal(sorted(ledger.executed)[4:], [10, 11, 12, 13], "the executions of the second steps")


async def a_race_has_the_same_winner_again(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        async def branch(ctx: Context, name: str) -> str:
            await ctx.sleep("1h")
            return str(await ctx.step(ledger.note, name))

        @app.process
        async def racing(ctx: Context) -> list[Any]:
            won = [
                await ctx.race(ctx.step(ledger.note, f"a{n}"), branch(ctx, f"b{n}"))
                for n in range(2)
            ]
            await ctx.wait_signal("go")
            return [*won, await ctx.step(ledger.note, "last")]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("racing")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("go")
        equal(await deployment.result(process), ["a0", "a1", "last"], "the winners")
    equal(ledger.executed, ["a0", "a1", "last"], "the executions")


async def time_and_chance_are_the_same_again(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process
        async def chances(ctx: Context) -> list[Any]:
            before = ctx.now()
            await ctx.sleep("5ms")
            drawn = [ctx.random(), ctx.uuid(), before.isoformat(), ctx.now().isoformat()]
            await ctx.step(ledger.note, drawn)
            await ctx.wait_signal("go")
            return [drawn, ctx.now() > before]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("chances")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("go")
        drawn, is_later = await deployment.result(process)
    equal(ledger.executed, [drawn], "what was drawn the first time")
    holds(is_later, "the time goes on")


# --- timers, signals and waits ---


async def a_sleep_continues_after_a_restart(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process
        async def sleeper(ctx: Context) -> list[Any]:
            await ctx.step(ledger.note, "before")
            await ctx.emit("sleeping")
            await ctx.sleep("500ms")
            return await ctx.gather(ctx.sleep("1ms"), ctx.step(ledger.note, "after"))

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("sleeper")
        await deployment.emits(process, "sleeping")
        await deployment.restart()
        equal(await deployment.result(process), [None, "after"], "the result")
    equal(ledger.executed, ["before", "after"], "the executions")


async def signals_are_received_in_order_and_none_is_lost(subject: EngineSubject) -> None:
    def declare(app: Lash) -> None:
        @app.process
        async def listener(ctx: Context) -> list[Any]:
            received = [await ctx.wait_signal("word") for _ in range(4)]
            await ctx.emit("half")
            received += [await ctx.wait_signal("word") for _ in range(4)]
            return [*received, await ctx.wait_signal("other")]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("listener")
        for number in range(2):  # perhaps before it has begun
            await deployment.handle(process).signal("word", number)
        await deployment.comes_to(process, "waiting")
        await deployment.handle(process).signal("word", 2, id="two")
        await deployment.handle(process).signal("word", 2, id="two")  # the same one again
        await deployment.handle(process).signal("other", "of another name")  # not yet waited for
        await deployment.restart()
        for number in range(3, 6):  # more than it waits for
            await deployment.handle(process).signal("word", number)
        await deployment.emits(process, "half")
        await deployment.comes_to(process, "waiting")
        for number in range(6, 8):
            await deployment.handle(process).signal("word", number)
        expected = [*range(8), "of another name"]
        equal(await deployment.result(process), expected, "what it received")


async def branches_receive_different_signals(subject: EngineSubject) -> None:
    def declare(app: Lash) -> None:
        @app.process
        async def listener(ctx: Context) -> list[Any]:
            return await ctx.gather(*(ctx.wait_signal("word") for _ in range(3)))

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("listener")
        await deployment.comes_to(process, "waiting")
        for number in range(3):
            await deployment.handle(process).signal("word", number)
        equal(sorted(await deployment.result(process)), [0, 1, 2], "what the branches received")


async def a_wait_without_an_answer_ends_with_its_default(subject: EngineSubject) -> None:
    def declare(app: Lash) -> None:
        @app.process
        async def patient(ctx: Context) -> list[Any]:
            key = ctx.wait_key("answer")
            seen = [
                await ctx.wait_signal("word", timeout="20ms", default="nothing"),
                await ctx.wait(key, within="20ms", default="not yet"),
            ]
            try:
                await ctx.wait(ctx.wait_key("other"), timeout="20ms")
            except WaitTimeout:
                seen.append("too late")
            await ctx.emit("late")
            return [*seen, await ctx.wait_signal("word"), await ctx.wait(key)]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("patient")
        await deployment.emits(process, "late")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("word", "a word")

        async def answered() -> bool:
            waits = await deployment.app.waits()
            keys = [wait.key for wait in waits if wait.title == "answer"]
            return bool(keys) and (await deployment.app.resolve(keys[0], 42)).status == "accepted"

        await until(answered, "the wait is open for its second call")
        expected = ["nothing", "not yet", "too late", "a word", 42]
        equal(await deployment.result(process), expected, "what it got")


async def a_wait_is_answered_from_outside(subject: EngineSubject) -> None:
    def declare(app: Lash) -> None:
        @app.process
        async def asker(ctx: Context) -> list[Any]:
            keys = [ctx.wait_key(name) for name in ("early", "late")]
            await ctx.emit("keys", [str(key) for key in keys])
            await ctx.wait_signal("go")
            return [await ctx.wait(key) for key in keys]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("asker")
        early, late = await deployment.emits(process, "keys")
        outcome = await deployment.app.resolve(early, "came early")
        equal(outcome.status, "accepted", "an answer that comes before the wait")
        await deployment.handle(process).signal("go")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        equal((await deployment.app.resolve(late, {"n": 1})).status, "accepted", "the answer")
        equal(await deployment.result(process), ["came early", {"n": 1}], "the answers")
        again = await deployment.app.resolve(late, 2)
        equal(again.status, "already_resolved", "an answer after the first")


# --- children, deadlines, epochs ---


async def a_child_is_started_once(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process
        async def child(ctx: Context, fails: bool) -> str:
            await ctx.step(ledger.note, f"child {fails}")
            await ctx.emit("begun")
            word = await ctx.wait_signal("go")
            if fails:
                raise ValueError(word)
            return str(word)

        @app.process
        async def parent(ctx: Context) -> list[Any]:
            good = await ctx.start(child, False)
            bad = await ctx.start(child, True)
            await ctx.emit("children", [good.id, bad.id])
            try:
                await bad.result()
            except ProcessFailed as error:
                return [await good.result(), error.failure.failure_class, error.failure.message]
            return []

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("parent")
        children = await deployment.emits(process, "children")
        for one in (process, *children):
            await deployment.comes_to(one, "waiting")
        await deployment.restart()
        for one in children:
            await deployment.handle(one).signal("go", "on")
        expected = ["on", "ValueError", "on"]
        equal(await deployment.result(process), expected, "what the parent got")
    equal(sorted(ledger.executed), ["child False", "child True"], "the executions")


async def only_an_attached_child_ends_with_its_parent(subject: EngineSubject) -> None:
    def declare(app: Lash) -> None:
        @app.process
        async def child(ctx: Context) -> str:
            return str(await ctx.wait_signal("go"))

        @app.process
        async def parent(ctx: Context) -> list[str]:
            attached = await ctx.start(child.options(attached=True))
            other = await ctx.start(child)
            await ctx.wait_signal("end")
            return [attached.id, other.id]

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("parent")
        await deployment.comes_to(process, "waiting")
        await deployment.handle(process).signal("end")
        attached, other = await deployment.result(process)
        await is_cancelled(deployment, attached)
        await deployment.handle(other).signal("go", "on")
        equal(await deployment.result(other), "on", "the result of the other child")


async def is_cancelled(deployment: Deployment, process: str) -> ProcessCancelled:
    """Raise Broken unless a process ends with a cancel; return the error of its result."""
    handle = deployment.handle(process)
    error = await refused(handle.result(timeout=LIMIT), "process_cancelled", "its result")
    equal(str(await handle.status()), "cancelled", "its status")
    assert isinstance(error, ProcessCancelled)
    return error


async def a_process_ends_at_its_deadline(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process(timeout="700ms")
        async def late(ctx: Context) -> None:
            try:
                await ctx.step(ledger.note, "begun")
                await ctx.wait_signal("never")
            finally:
                await ctx.step(ledger.note, "cleaned up")

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("late")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        handle = deployment.handle(process)
        await refused(handle.result(timeout=LIMIT), "process_timeout", "its result")
    equal(ledger.executed, ["begun", "cleaned up"], "the executions")


async def a_process_continues_as_itself(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process
        async def counter(ctx: Context, left: int, words: list[str]) -> list[str]:
            await ctx.step(ledger.note, left)
            words = [*words, await ctx.wait_signal("word")]
            if left:
                await ctx.continue_as(left=left - 1, words=words)
            return words

    async with Deployment(subject, declare) as deployment:
        process = await deployment.start("counter", 2, [])
        await deployment.comes_to(process, "waiting")
        for word in "ab":  # the second one is for the next epoch
            await deployment.handle(process).signal("word", word)

        async def is_last() -> bool:
            return len(ledger.executed) == 3

        await until(is_last, "the third epoch begins")
        await deployment.comes_to(process, "waiting")
        await deployment.restart()
        await deployment.handle(process).signal("word", "c")
        equal(await deployment.result(process), ["a", "b", "c"], "the words")
    equal(ledger.executed, [2, 1, 0], "the executions")


async def a_delayed_process_begins_later(subject: EngineSubject) -> None:
    ledger = Ledger()

    def declare(app: Lash) -> None:
        @app.process
        async def later(ctx: Context) -> str:
            return str(await ctx.step(ledger.note, "begun"))

    async with Deployment(subject, declare) as deployment:
        definition = deployment.app.definitions["later"]
        handle = await deployment.app.start(definition.options(delay="300ms"))
        equal(ledger.executed, [], "executions before it is due")
        await deployment.restart()
        equal(await deployment.result(handle.id), "begun", "its result")
    equal(ledger.executed, ["begun"], "the executions")


PROCESSES: tuple[Law[EngineSubject], ...] = (
    a_step_is_executed_once,
    a_step_that_failed_stays_failed,
    a_step_that_was_cut_off_is_executed_again,
    overlapping_effects_are_replayed_each_from_its_own_record,
    a_race_has_the_same_winner_again,
    time_and_chance_are_the_same_again,
    a_sleep_continues_after_a_restart,
    signals_are_received_in_order_and_none_is_lost,
    branches_receive_different_signals,
    a_wait_without_an_answer_ends_with_its_default,
    a_wait_is_answered_from_outside,
    a_child_is_started_once,
    only_an_attached_child_ends_with_its_parent,
    a_process_ends_at_its_deadline,
    a_process_continues_as_itself,
    a_delayed_process_begins_later,
)
