"""Completions: questions to a model outside any conversation.

Rule 1. A completion is a turn without tools, which the turn machine decides: what does not fit is asked
        for again, and a model that is away is asked again after a pause.
Rule 2. In a process each model call is one effect, and so is each pause. Attachments cross the boundary
        by reference.
Rule 3. In a tool nothing is recorded: what is asked there belongs to the attempt, is asked again if that
        is repeated, and counts for the turn with the attempt's result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from pylash.durable import Direct, DirectOutcome, Envelope, Outcome, Sleep, expect
from pylash.runtime.branches import Branch, outside
from pylash.runtime.executors import direct_executor, sleep_executor
from pylash.runtime.runs import LiveRun
from pylash.runtime.signatures import Shape, reason_of
from pylash.runtime.turn_messages import (
    answered,
    keep,
    llm_key,
    model_failed,
    referenced,
    reply_message,
    with_bytes,
)
from pylash.turn import (
    NO_USAGE,
    OUTPUT_TRIES,
    Answer,
    Ask,
    AssistantMessage,
    CallModel,
    CheckpointTaken,
    Delta,
    EnvironmentSynced,
    Input,
    ModelReplied,
    ModelRequest,
    Pause,
    Paused,
    RunTools,
    Spent,
    SyncEnvironment,
    TakeCheckpoint,
    ToolMessage,
    ToolsReturned,
    TurnBudget,
    TurnEnd,
    TurnMachine,
    UserMessage,
    final_tool,
    parts_of,
    remaining,
)
from pylash.values import LashError, ProviderError, TurnOutputInvalid, decode, write

if TYPE_CHECKING:
    from pylash.runtime.programs import Services

AskModel = Callable[[CallModel], Awaitable[AssistantMessage]]
"""Asks the model once."""

DefaultModel = Callable[[], Awaitable[str | None]]
"""Returns the name of the model that is asked if none is named."""

NO_TOOLS: Final = "There are no tools here: answer by yourself."


# --- what all have in common ---


async def completed(
    machine: TurnMachine, ask: AskModel, pause: Callable[[Pause], Awaitable[object]]
) -> TurnEnd:
    """Play a turn that has no tools to its end."""
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
    """Ask a model what a machine wants to know; ``number`` counts the calls before this one.

    ``run`` is detached if the store is away; without it a StoreError is raised.
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
    started = services.monotonic()
    reply = await answered(provider, request, _unheard)
    took = services.monotonic() - started
    message, bodies = reply_message(reply, machine.iteration, took, model)
    with guarded():
        await keep(bodies, stored)
    return message


def call_key(base: str, iteration: int, attempt: int) -> str:
    """Return the key of a model call of a completion, whose first one has the completion's own."""
    return base if iteration == attempt == 1 else f"{base}/{llm_key(iteration, attempt)}"


def pause_key(base: str, iteration: int, attempt: int) -> str:
    """Return the key of the pause after a model call."""
    return f"{base}/{llm_key(iteration, attempt)}.pause"


def _unheard(_: Delta) -> None:
    """Take a piece of an answer that nobody waits for."""


async def _shape_of(output: Any) -> tuple[Shape | None, Any]:
    """Return how an answer is read, and the schema it must fit."""
    if output is None:
        return None, None
    shape = Shape(output)
    await shape.prepare("ctx.complete", "output")
    return shape, shape.answer_schema()


def _value_of(end: TurnEnd, shape: Shape | None) -> Any:
    """Return what was asked for, or raise why there is none."""
    if end.status != "completed":
        assert end.code is not None
        raise LashError.restore(end.code, end.error or "")
    if shape is None or shape.is_text:
        return end.text
    try:
        return shape.load(end.value)
    except ValueError as error:
        trouble = f"The model's answer does not fit: {reason_of('', error)}"
        raise LashError.restore(TurnOutputInvalid.default_code, trouble) from None


# --- in a process ---


class ProcessCompletion(msgspec.Struct):
    """One question of a process. ``numbers`` counts the model calls of the run."""

    run: LiveRun
    services: Services
    branch: Branch
    part: tuple[str, int]
    numbers: Iterator[int]
    model: str | None = None
    number: int = 0
    bodies: dict[str, bytes] = {}

    async def answer(self, given: Input, output: Any) -> Any:
        """Return what the model answers, as the text it is or as what ``output`` says."""
        shape, schema = await _shape_of(output)
        parts, self.bodies = referenced(parts_of(given))
        machine = TurnMachine([UserMessage(parts)], output_schema=schema)
        end = await completed(machine, partial(self._call, machine), self._pause)
        return _value_of(end, shape)

    async def _call(self, machine: TurnMachine, wanted: CallModel) -> AssistantMessage:
        if wanted.attempt == 1:
            self.number = next(self.numbers)

        async def perform(_: Envelope) -> Outcome:
            with outside():
                return DirectOutcome(decode(write(await self._asked(machine))))

        request = {
            "model": self.model,
            "messages": decode(write(machine.messages)),
            "output_schema": machine.output_schema,
        }
        key = call_key(self.branch.key(self.part), wanted.iteration, wanted.attempt)
        local = direct_executor(perform)
        outcome = await self.run.effect(self.branch, key, "complete", Direct(request), local)
        return msgspec.convert(expect(outcome, DirectOutcome).result, AssistantMessage)

    async def _asked(self, machine: TurnMachine) -> AssistantMessage:
        with self.run.guarded():
            await keep(self.bodies, self.services.store.attachments)
            model = self.model or await captured_model(self.services, self.run)
        number, turn_id = self.number, self.run.id
        return await model_reply(
            self.services, machine, model, number=number, turn_id=turn_id, run=self.run
        )

    async def _pause(self, wanted: Pause) -> None:
        key = pause_key(self.branch.key(self.part), wanted.iteration, wanted.attempt)
        command = Sleep(wanted.milliseconds, retry=True)
        await self.run.effect(self.branch, key, "complete again", command, sleep_executor())


async def captured_model(services: Services, run: LiveRun) -> str | None:
    """Return the model a process was started with, or this worker's if it was with none."""
    ref = run.process.registration.env
    body = None if ref is None else await services.store.envs.get(ref)
    captured: str | None = None if body is None else decode(body).get("model")
    return captured or services.catalog.model


# --- in a tool ---


class Completions:
    """What a tool asks models while it runs, under what is left of the turn's budget."""

    def __init__(
        self,
        services: Services,
        default: DefaultModel,
        turn_id: str,
        budget: TurnBudget | None = None,
    ) -> None:
        self.used = NO_USAGE
        self._services = services
        self._default = default
        self._turn_id = turn_id
        self._budget = budget
        self._numbers = count()

    async def answer(self, given: Input, output: Any, model: str | None) -> Any:
        """Return what a model answers, as the text it is or as what ``output`` says."""
        shape, schema = await _shape_of(output)
        parts, bodies = referenced(parts_of(given))
        await keep(bodies, self._services.store.attachments)
        left = remaining(self._budget, Spent(self.used.requests, self.used, 0.0))
        machine = TurnMachine([UserMessage(parts)], output_schema=schema, budget=left)
        name, number = model or await self._default(), 0

        async def call(wanted: CallModel) -> AssistantMessage:
            nonlocal number
            if wanted.attempt == 1:
                number = next(self._numbers)
            turn_id = self._turn_id
            return await model_reply(self._services, machine, name, number=number, turn_id=turn_id)

        try:
            end = await completed(machine, call, self._pause)
        finally:  # also if the tool has no time left
            self.used += machine.usage
        return _value_of(end, shape)

    async def _pause(self, wanted: Pause) -> None:
        # Really, as everything a tool does: a simulated clock waits for the tool.
        await asyncio.sleep(wanted.milliseconds / 1000)
