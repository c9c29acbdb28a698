"""Local executors take their own commands and refuse all others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pylash.durable.effects import (
    OUTCOMES,
    AwaitEvent,
    Checkpoint,
    Command,
    Direct,
    DurableStep,
    EffectKind,
    Envelope,
    ExecCode,
    LlmCall,
    Outcome,
    Process,
    RuntimeScope,
    Sleep,
    SleepOutcome,
    SyncExecutionEnvironment,
    ToolAttempt,
    ToolBatch,
    envelope,
)
from pylash.engine.executors import (
    Executor,
    UnavailableExecutor,
    any_executor,
    await_options,
    direct_executor,
    process_executor,
    sleep_executor,
    step_executor,
    tool_executor,
    turn_executor,
)
from pylash.testing import SimClock
from pylash.values.errors import LashError, RuntimeEffectSleepCancelled

COMMANDS: list[Command] = [
    LlmCall({}),
    Direct({}),
    ToolBatch([]),
    ToolAttempt({}),
    Process({}),
    ExecCode("python", "1"),
    Checkpoint({}),
    SyncExecutionEnvironment(),
    Sleep(0),
    AwaitEvent("key"),
    DurableStep("step"),
]


async def perform(asked: Envelope) -> Outcome:
    kind: Any = OUTCOMES[type(asked.command)]
    outcome: Outcome = kind() if not kind.__struct_fields__ else kind(None)
    return outcome


async def nothing(_: Any) -> None:
    return


EXECUTORS: list[tuple[Executor, set[str]]] = [
    (
        turn_executor(perform),
        {
            "llm_call",
            "tool_batch",
            "exec_code",
            "checkpoint",
            "sync_execution_environment",
            "sleep",
        },
    ),
    (tool_executor(perform), {"tool_batch", "tool_attempt"}),
    (direct_executor(perform), {"direct", "sleep"}),
    (step_executor(nothing), {"durable_step"}),
    (sleep_executor(), {"sleep"}),
    (await_options(), set()),
    (process_executor(), set()),
    (any_executor(perform), set(EffectKind)),
]


def asked(command: Command) -> Envelope:
    return envelope(command, scope=RuntimeScope(), effect_id="effect")


@pytest.mark.proves("E5")
@pytest.mark.parametrize(("executor", "takes"), EXECUTORS, ids=[e.name for e, _ in EXECUTORS])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.kind)
async def test_an_executor_takes_its_own_commands_and_no_others(
    executor: Executor, takes: set[str], command: Command
) -> None:
    if command.kind in takes:
        assert (await executor.execute(asked(command))).kind == command.kind
        return
    with pytest.raises(LashError) as caught:
        await executor.execute(asked(command))
    assert caught.value.code == "runtime_effect_local_executor_mismatch"
    assert f"The {executor.name} executor cannot run a {command.kind} command" in str(caught.value)


@pytest.mark.proves("E5")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.kind)
async def test_where_nothing_can_run_everything_is_refused(command: Command) -> None:
    with pytest.raises(LashError) as caught:
        await UnavailableExecutor().execute(asked(command))
    assert caught.value.code == "runtime_effect_local_executor_unavailable"


@pytest.mark.proves("E10")
async def test_a_sleep_takes_the_time_of_the_clock_it_was_given() -> None:
    clock = SimClock()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sleep_executor(clock=clock).execute(asked(Sleep(60_000))))
        await asyncio.sleep(0)
        await clock.advance("59s")
        assert not task.done()
        await clock.advance("1s")
    assert task.result() == SleepOutcome()


@pytest.mark.parametrize("make", [sleep_executor, lambda cancel: turn_executor(perform, cancel)])
async def test_a_sleep_can_be_cancelled(make: Any) -> None:
    cancel = asyncio.Event()

    async def cancelled() -> None:
        with pytest.raises(RuntimeEffectSleepCancelled):
            await make(cancel).execute(asked(Sleep(3_600_000)))

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(cancelled())
        await asyncio.sleep(0)
        cancel.set()
