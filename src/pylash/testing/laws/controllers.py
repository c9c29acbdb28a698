"""Laws of durable steps for every controller, and of replay for durable ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from pylash.durable.effects import (
    DurableStep,
    DurableStepOutcome,
    Envelope,
    Outcome,
    RuntimeScope,
    Sleep,
    SleepOutcome,
    envelope,
    expect,
)
from pylash.durable.ports import EffectController, ScopedController
from pylash.engine.executors import Executor, any_executor, sleep_executor, step_executor
from pylash.testing.laws.suites import Broken, ReplayLaw, Suite, equal, holds, made, refused, report
from pylash.values.errors import LashError, StepFailed

Controller = EffectController | ScopedController
StartReplay = Callable[[], Awaitable[Controller | None] | Controller | None]

_SCOPE = RuntimeScope("conformance-session", "conformance-turn", 7, 0)
PATIENCE_SECONDS = 10.0


def step(name: str, given: Any = None, key: str | None = None) -> Envelope:
    """Return the envelope of a durable step."""
    return envelope(
        DurableStep(name, given),
        scope=_SCOPE,
        effect_id=name,
        replay_key=key or f"conformance/{name}",
    )


def nap(name: str, milliseconds: int) -> Envelope:
    """Return the envelope of a sleep."""
    return envelope(
        Sleep(milliseconds), scope=_SCOPE, effect_id=name, replay_key=f"conformance/{name}"
    )


def returning(value: Any) -> Executor:
    """Return an executor whose step returns value."""

    async def run(_: Any) -> Any:
        return value

    return step_executor(run)


def raising(error: Exception) -> Executor:
    """Return an executor whose step raises error."""

    async def run(_: Any) -> Any:
        raise error

    return step_executor(run)


def forbidden() -> Executor:
    """Return an executor that must not be called."""

    async def perform(asked: Envelope) -> Outcome:
        raise Broken(f"the local executor ran for {asked.invocation.effect_id!r} during replay")

    return any_executor(perform)


async def value_of(controller: Controller, asked: Envelope, local: Executor) -> Any:
    """Execute a step and return its value."""
    return expect(await controller.execute(asked, local), DurableStepOutcome).value


# --- laws of durable steps ---


async def the_same_input_has_the_same_hash(_: Controller) -> None:
    first, second, changed = (
        step("create", {"x": 1}),
        step("create", {"x": 1}),
        step("create", {"x": 2}),
    )
    equal(first.stable_hash(), second.stable_hash(), "the same step and input")
    holds(first.stable_hash() != changed.stable_hash(), "another input must have another hash")


async def a_step_gets_its_input_and_returns_its_value(controller: Controller) -> None:
    async def run(given: Any) -> Any:
        return {"recorded": given}

    value = await value_of(controller, step("create", {"x": 1}), step_executor(run))
    equal(value, {"recorded": {"x": 1}}, "the step's value")


async def a_failure_keeps_its_code(controller: Controller) -> None:
    broken = LashError("The step failed.", code="conformance_error", data={"n": 1})
    asked = controller.execute(step("error"), raising(broken))
    error = await refused(asked, "conformance_error", "a failed step")
    holds(isinstance(error, StepFailed), "a step's failure must be StepFailed")
    equal((error.message, error.data), ("The step failed.", {"n": 1}), "message and data")


async def an_exception_of_user_code_becomes_a_failure(controller: Controller) -> None:
    asked = controller.execute(step("bug"), raising(KeyError("missing")))
    error = await refused(asked, "step_failed", "an exception without a code")
    holds(isinstance(error, StepFailed) and error.type_name == "KeyError", "its type must be kept")


async def a_value_is_decoded_the_first_time_too(controller: Controller) -> None:
    live = {"list": [1]}
    value = await value_of(controller, step("live"), returning(live))
    equal(value, {"list": [1]}, "the value")
    holds(value is not live, "the caller must get what was decoded, not the live object")


async def what_would_not_come_back_is_refused_with_its_path(controller: Controller) -> None:
    for name, value, path in (
        ("tuple", {"a": (1, 2)}, "$.a "),
        ("nan", {"a": [float("nan")]}, "$.a[0] "),
        ("set", [{1}], "$[0] "),
        ("key", {"a": {1: 2}}, "$.a "),
    ):
        asked = controller.execute(step(f"unfit-{name}"), returning(value))
        error = await refused(asked, "value_not_json", f"a value with a {name}")
        holds(path in error.message, f"the message must name {path}: {error.message}")


async def input_that_would_not_come_back_is_refused(controller: Controller) -> None:
    for name, given, path in (
        ("set", {"a": {1}}, "$.command.input.a "),
        ("tuple", (1,), "$.command.input "),
    ):
        asked = controller.execute(step(f"unfit-input-{name}", given), returning(1))
        error = await refused(asked, "value_not_json", f"a {name} as input")
        holds(path in error.message, f"the message must name {path}: {error.message}")


async def an_executor_refuses_what_is_not_its_own(controller: Controller) -> None:
    asked = controller.execute(step("not-mine"), sleep_executor())
    await refused(asked, "runtime_effect_local_executor_mismatch", "a sleep executor asked to step")


async def a_sleep_ends_or_is_cancelled(controller: Controller) -> None:
    outcome = await controller.execute(nap("short", 1), sleep_executor())
    equal(outcome, SleepOutcome(), "a sleep that ended")
    cancel = asyncio.Event()
    cancel.set()
    asked = controller.execute(nap("long", 3_600_000), sleep_executor(cancel))
    await refused(asked, "runtime_effect_sleep_cancelled", "a sleep that was cancelled")


DURABLE_STEPS = Suite[Controller](
    "effect_controller_durable_steps",
    (
        the_same_input_has_the_same_hash,
        a_step_gets_its_input_and_returns_its_value,
        a_failure_keeps_its_code,
        an_exception_of_user_code_becomes_a_failure,
        a_value_is_decoded_the_first_time_too,
        what_would_not_come_back_is_refused_with_its_path,
        input_that_would_not_come_back_is_refused,
        an_executor_refuses_what_is_not_its_own,
        a_sleep_ends_or_is_cancelled,
    ),
)


# --- laws of replay ---


async def a_result_is_replayed_without_running(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    first = await value_of(controller, step("result", {"n": 1}), returning({"first": 1}))
    replay = yield
    again = await value_of(replay, step("result", {"n": 1}), forbidden())
    equal(again, first, "the replayed value")


async def a_failure_is_replayed_without_running(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    broken = LashError("Recorded.", code="conformance_recorded", data=[1])
    asked = controller.execute(step("failure"), raising(broken))
    first = await refused(asked, "conformance_recorded", "the failure")
    replay = yield
    again = await refused(
        replay.execute(step("failure"), forbidden()), "conformance_recorded", "the replayed failure"
    )
    equal(type(again), type(first), "the class of the failure")
    equal((again.message, again.data), (first.message, first.data), "message and data")


async def a_refused_value_is_refused_again(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    await refused(controller.execute(step("unfit"), returning({1})), "value_not_json", "a set")
    replay = yield
    await refused(replay.execute(step("unfit"), forbidden()), "value_not_json", "the set, replayed")


async def another_input_under_the_same_key_is_a_mismatch(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    await value_of(controller, step("changed", {"order": 7}), returning(1))
    replay = yield
    asked = replay.execute(step("changed", {"order": 8}), forbidden())
    error = await refused(asked, "effect_replay_mismatch", "another input")
    holds(
        "$.command.input.order: recorded 7, now 8" in error.message,
        f"the message must show the first difference: {error.message}",
    )


async def a_cancelled_sleep_stays_cancelled(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    cancel = asyncio.Event()
    cancel.set()
    code = "runtime_effect_sleep_cancelled"
    await refused(
        controller.execute(nap("cancelled", 3_600_000), sleep_executor(cancel)), code, "a sleep"
    )
    replay = yield
    asked = replay.execute(nap("cancelled", 3_600_000), sleep_executor(asyncio.Event()))
    await refused(asked, code, "the sleep, replayed")


async def a_sleep_that_ended_is_not_slept_again(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    for name in ("the sleep", "the replayed sleep"):
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await controller.execute(nap("ended", 1), sleep_executor())
        equal(outcome, SleepOutcome(), name)
        if name == "the sleep":
            controller = yield


REPLAYS: tuple[ReplayLaw[Controller], ...] = (
    a_result_is_replayed_without_running,
    a_failure_is_replayed_without_running,
    a_refused_value_is_refused_again,
    another_input_under_the_same_key_is_a_mismatch,
    a_cancelled_sleep_stays_cancelled,
    a_sleep_that_ended_is_not_slept_again,
)


async def _overlap(controller: Controller) -> None:
    """Execute two effects that are inside their executors at once, and end in another order than they began."""
    both_inside, finished = asyncio.Barrier(2), list[str]()
    fast_done = asyncio.Event()

    def entering(name: str) -> Executor:
        async def run(_: Any) -> Any:
            await both_inside.wait()
            if name == "slow":
                await fast_done.wait()
            finished.append(name)
            fast_done.set()
            return name

        return step_executor(run)

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        for name in ("slow", "fast"):
            group.create_task(value_of(controller, step(name), entering(name)))
    equal(finished, ["fast", "slow"], "completion in another order than the requests")


async def _replay(controller: Controller, *names: str) -> None:
    """Check that effects which are asked for in an order get their recorded outcomes."""
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        asked = {
            name: group.create_task(value_of(controller, step(name), forbidden())) for name in names
        }
    for name, task in asked.items():
        equal(task.result(), name, "each effect must get its own outcome")


async def two_effects_overlap_and_replay_in_any_order(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    await _overlap(controller)
    replay = yield
    await _replay(replay, "fast", "slow")


async def two_effects_overlap_and_replay_in_the_order_of_the_requests(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    await _overlap(controller)
    replay = yield
    await _replay(replay, "slow", "fast")


async def callers_of_one_key_share_one_execution(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    executions, inside, go = list[int](), asyncio.Event(), asyncio.Event()

    async def run(_: Any) -> Any:
        executions.append(1)
        inside.set()
        await go.wait()
        return len(executions)

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        first = group.create_task(value_of(controller, step("shared"), step_executor(run)))
        await inside.wait()
        second = group.create_task(value_of(controller, step("shared"), step_executor(run)))
        asked = controller.execute(step("shared", "other"), step_executor(run))
        await refused(asked, "effect_replay_mismatch", "another input while it runs")
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        go.set()
    equal(second.result(), 1, "the second caller, after the first was cancelled")
    equal(executions, [1], "the executions")
    yield


async def an_abandoned_effect_is_not_recorded(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    inside = asyncio.Event()

    async def run(_: Any) -> Any:
        inside.set()
        await asyncio.Event().wait()

    async def has_begun(_: Any) -> Any:
        await inside.wait()

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        task = group.create_task(value_of(controller, step("abandoned"), step_executor(run)))
        # An effect too: executors may run on another loop than their callers.
        begun = group.create_task(value_of(controller, step("begun"), step_executor(has_begun)))
        await begun
        task.cancel()
    replay = yield
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        again = returning("the second time")
        task = group.create_task(value_of(replay, step("abandoned"), again))
        group.create_task(value_of(replay, step("begun"), forbidden()))
    equal(task.result(), "the second time", "an effect that was detached before it returned")


OVERLAPS: tuple[ReplayLaw[Controller], ...] = (
    two_effects_overlap_and_replay_in_any_order,
    callers_of_one_key_share_one_execution,
    an_abandoned_effect_is_not_recorded,
)


POSITIONALS: tuple[ReplayLaw[Controller], ...] = (
    two_effects_overlap_and_replay_in_the_order_of_the_requests,
)


async def effects_one_after_the_other_replay_in_any_order(
    controller: Controller,
) -> AsyncGenerator[None, Controller]:
    for name in ("one", "two"):
        equal(await value_of(controller, step(name), returning(name)), name, "the first pass")
    replay = yield
    for name in ("two", "one"):
        equal(await value_of(replay, step(name), forbidden()), name, "its own outcome, replayed")


SERIALS: tuple[ReplayLaw[Controller], ...] = (effects_one_after_the_other_replay_in_any_order,)


class Replays:
    """Laws in two parts. The parts may be executed in different processes or loops, each on its own controller."""

    def __init__(self, name: str, laws: tuple[ReplayLaw[Controller], ...]) -> None:
        self.name = name
        self._laws = laws
        self._parts: list[tuple[str, AsyncGenerator[None, Controller]]] = []
        self.failures: list[Exception] = []

    async def record(self, controller: Controller) -> None:
        """Run the first part of every law."""
        for law in self._laws:
            part = law(controller)
            if await self._holds(law.__name__, anext(part)):
                self._parts.append((law.__name__, part))

    async def replay(self, controller: Controller) -> None:
        """Run the second part of every law whose first part has run."""
        for name, part in self._parts:
            await self._holds(name, part.asend(controller))

    async def _holds(self, law: str, part: Awaitable[None]) -> bool:
        try:
            await part
        except StopAsyncIteration:
            return True
        except Exception as error:  # noqa: BLE001 - each failure is reported under its law
            error.add_note(f"law: {law}")
            self.failures.append(error)
            return False
        return True

    def report(self) -> None:
        """Raise an ExceptionGroup of the laws that do not hold."""
        report(self.name, self.failures, len(self._laws))


async def run_replays(
    name: str, laws: tuple[ReplayLaw[Controller], ...], controller: Controller, start: StartReplay
) -> None:
    """Run the recording part of every law, start the replay once, then run the second parts."""
    replays = Replays(name, laws)
    await replays.record(controller)
    again: Controller | None = await made(start)
    await replays.replay(again or controller)
    replays.report()
