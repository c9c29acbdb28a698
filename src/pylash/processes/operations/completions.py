"""Completions: model calls outside any conversation.

Rule 1. A completion is a turn without tools, decided by the turn machine: an answer that does not fit is
        requested again, and a failed call is retried after a pause.
Rule 2. In a process each model call is one effect, and so is each pause. Attachments cross the boundary
        by reference.
Rule 3. In a tool nothing is recorded: a completion belongs to the attempt, is repeated with it, and its
        usage counts for the turn with the attempt's result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from pylash.durable.effects import Direct, DirectOutcome, Envelope, Outcome, Sleep, expect
from pylash.engine.executors import direct_executor, sleep_executor
from pylash.engine.runs.branches import Branch, outside
from pylash.engine.runs.run import LiveRun
from pylash.models.messages import (
    llm_key,
    model_failed,
    reply_message,
    store_bodies,
    with_bytes,
    with_references,
)
from pylash.tools.catalog import call_model
from pylash.tools.signatures import Shape, reason_of
from pylash.turn.budgets import Spent, TurnBudget, remaining
from pylash.turn.machine import (
    OUTPUT_TRIES,
    Answer,
    Ask,
    CallModel,
    CheckpointTaken,
    EnvironmentSynced,
    ModelReplied,
    Pause,
    Paused,
    RunTools,
    SyncEnvironment,
    TakeCheckpoint,
    ToolsReturned,
    TurnEnd,
    TurnMachine,
)
from pylash.turn.messages import (
    NO_USAGE,
    AssistantMessage,
    Input,
    ToolMessage,
    UserMessage,
    parts_of,
)
from pylash.turn.outputs import final_tool
from pylash.turn.requests import Delta, ModelRequest
from pylash.values.canonical import decode, write
from pylash.values.errors import LashError
from pylash.values.turn_errors import ProviderError, TurnOutputInvalid

if TYPE_CHECKING:
    from pylash.processes.services import Services

AskModel = Callable[[CallModel], Awaitable[AssistantMessage]]
"""Makes one model call."""

NO_TOOLS: Final = "There are no tools here: answer by yourself."


# --- common parts ---


async def run_completion(
    machine: TurnMachine, ask: AskModel, pause: Callable[[Pause], Awaitable[object]]
) -> TurnEnd:
    """Run a turn without tools to its end."""
    while (wanted := machine.poll_effect()) is not None:
        if isinstance(wanted, RunTools) and wanted.iteration >= OUTPUT_TRIES:
            machine.fail("The model calls tools, and there are none.", ProviderError.default_code)
        else:
            machine.handle_response(await _answer(wanted, ask, pause))
    assert machine.end is not None
    return machine.end


async def _answer(
    wanted: Ask, ask: AskModel, pause: Callable[[Pause], Awaitable[object]]
) -> Answer:
    match wanted:
        case SyncEnvironment():
            return EnvironmentSynced()
        case TakeCheckpoint():
            return CheckpointTaken()
        case CallModel():
            try:
                return ModelReplied(await ask(wanted))
            except LashError as error:
                return model_failed(error)
        case Pause():
            await pause(wanted)
            return Paused()
        case RunTools(calls=calls):
            return ToolsReturned(
                tuple(
                    ToolMessage(one.id, one.tool, NO_TOOLS, error=True, provider_id=one.provider_id)
                    for one in calls
                )
            )
        case _:
            assert_never(wanted)


async def model_reply(
    services: Services,
    machine: TurnMachine,
    model: str | None,
    *,
    number: int,
    turn_id: str,
    run: LiveRun | None = None,
) -> AssistantMessage:
    """Call a model with the messages of a machine; ``number`` counts the calls before this one.

    ``run`` is detached if the store cannot be reached; without it a StoreError is raised.
    """
    guarded = nullcontext if run is None else run.guarded
    provider = services.catalog.provider(model)
    stored = services.store.attachments
    schema = machine.output_schema
    with guarded():
        messages = [await with_bytes(message, stored) for message in machine.messages]
    request = ModelRequest(
        messages=messages,
        tools=() if schema is None else (final_tool(schema),),
        model=model,
        call_number=number,
        output_schema=schema,
        turn_id=turn_id,
    )
    started = services.clock.monotonic()
    reply = await call_model(provider, request, _ignore)
    took = services.clock.monotonic() - started
    message, bodies = reply_message(reply, machine.iteration, took, model)
    with guarded():
        await store_bodies(bodies, stored)
    return message


async def run_completion_as_effects(
    run: LiveRun,
    branch: Branch,
    key: str,
    name: str,
    machine: TurnMachine,
    ask: Callable[[CallModel, str], Awaitable[AssistantMessage]],
) -> TurnEnd:
    """Run a turn without tools whose model calls and pauses are effects of a run.

    ``ask`` makes a model call as an effect under a key: the first call has the completion's own key.
    """

    async def call(wanted: CallModel) -> AssistantMessage:
        is_first = wanted.iteration == wanted.attempt == 1
        call_key = key if is_first else f"{key}/{llm_key(wanted.iteration, wanted.attempt)}"
        return await ask(wanted, call_key)

    async def pause(wanted: Pause) -> None:
        pause_key = f"{key}/{llm_key(wanted.iteration, wanted.attempt)}.pause"
        command = Sleep(wanted.milliseconds, retry=True)
        await run.effect(branch, pause_key, f"{name} again", command, sleep_executor())

    return await run_completion(machine, call, pause)


def _ignore(_: Delta) -> None:
    """Ignore a piece of an answer: a completion is not streamed."""


async def _shape_of(output: Any) -> tuple[Shape | None, Any]:
    """Return the shape of an answer, and the JSON Schema that it must fit."""
    if output is None:
        return None, None
    shape = Shape(output)
    await shape.prepare("ctx.complete", "output")
    return shape, shape.answer_schema()


def _value_of(end: TurnEnd, shape: Shape | None) -> Any:
    """Return the answer of a completion, or raise its failure."""
    if end.status != "completed":
        assert end.code is not None
        raise LashError.restore(end.code, end.error or "")
    if shape is None or shape.is_text:
        return end.text
    try:
        return shape.load(end.value)
    except ValueError as error:
        message = f"The model's answer does not fit: {reason_of('', error)}"
        raise LashError.restore(TurnOutputInvalid.default_code, message) from None


# --- in a process ---


class ProcessCompletion(msgspec.Struct):
    """One completion of a process. ``numbers`` counts the model calls of the run."""

    run: LiveRun
    services: Services
    branch: Branch
    part: tuple[str, int]
    numbers: Iterator[int]
    model: str | None = None

    async def answer(self, given: Input, output: Any) -> Any:
        """Return the model's answer, as text or as a value of the type ``output``."""
        shape, schema = await _shape_of(output)
        parts, bodies = with_references(parts_of(given))
        machine = TurnMachine([UserMessage(parts)], output_schema=schema)
        number, run, services = 0, self.run, self.services

        async def perform(_: Envelope) -> Outcome:
            with outside():
                with run.guarded():
                    await store_bodies(bodies, services.store.attachments)
                    model = self.model or await captured_model(services, run)
                message = await model_reply(
                    services, machine, model, number=number, turn_id=run.id, run=run
                )
            return DirectOutcome(decode(write(message)))

        async def ask(wanted: CallModel, key: str) -> AssistantMessage:
            nonlocal number
            if wanted.attempt == 1:
                number = next(self.numbers)
            messages = decode(write(machine.messages))
            command = Direct({"model": self.model, "messages": messages, "output_schema": schema})
            local = direct_executor(perform)
            outcome = await run.effect(self.branch, key, "complete", command, local)
            return msgspec.convert(expect(outcome, DirectOutcome).result, AssistantMessage)

        key = self.branch.key(self.part)
        end = await run_completion_as_effects(run, self.branch, key, "complete", machine, ask)
        return _value_of(end, shape)


async def captured_model(services: Services, run: LiveRun) -> str | None:
    """Return the name of the model that a process was started with, or of this worker's if it was started without one."""
    environment = await services.environments.load(run.process.registration)
    return environment.model or services.catalog.model


# --- in a tool ---


class Completions:
    """The model calls of one attempt of a tool, under a budget."""

    def __init__(self, services: Services, turn_id: str, budget: TurnBudget | None = None) -> None:
        self.used = NO_USAGE
        self._services = services
        self._turn_id = turn_id
        self._budget = budget
        self._numbers = count()

    async def answer(self, given: Input, output: Any, model: str | None) -> Any:
        """Return the answer of a model, as text or as a value of the type ``output``."""
        shape, schema = await _shape_of(output)
        parts, bodies = with_references(parts_of(given))
        await store_bodies(bodies, self._services.store.attachments)
        left = remaining(self._budget, Spent(self.used.requests, self.used, 0.0))
        machine = TurnMachine([UserMessage(parts)], output_schema=schema, budget=left)
        number = 0

        async def call(wanted: CallModel) -> AssistantMessage:
            nonlocal number
            if wanted.attempt == 1:
                number = next(self._numbers)
            turn_id = self._turn_id
            return await model_reply(self._services, machine, model, number=number, turn_id=turn_id)

        async def pause(wanted: Pause) -> None:
            # In real time, because everything that a tool does takes real time: a simulated clock waits for the tool.
            await asyncio.sleep(wanted.milliseconds / 1000)

        try:
            end = await run_completion(machine, call, pause)
        finally:  # also if the tool is cancelled by its timeout
            self.used += machine.usage
        return _value_of(end, shape)
