"""Operations of a pydantic-ai agent as effects of the run that executes it.

Rule 1. An agent's run has a name in its branch; the keys of its operations begin with that name. The keys of
        tool calls have the model's call ids, which are recorded with its reply, so that the order in which
        parallel calls end does not matter.
Rule 2. Names are compatibility data: changing one breaks the replay of unfinished runs.
Rule 3. Dependencies, models and toolsets stay live objects of this process. Only results are recorded.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from pydantic_ai import RunContext
from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    CapabilityOperationId,
    DurableOperation,
    DurableOperationBackend,
    DurableOperationId,
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
)
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from pylash.durable.effects import (
    Command,
    Direct,
    DirectOutcome,
    DurableStep,
    DurableStepOutcome,
    Outcome,
    ToolAttempt,
    ToolAttemptOutcome,
)
from pylash.engine.retries import Retry
from pylash.engine.runs.asides import Aside, aside
from pylash.integrations.pydantic_ai.failures import (
    is_transient,
    is_transient_server_error,
    restore,
    to_recorded,
)
from pylash.values.errors import LashError

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")

_USAGE: Final = TypeAdapter(RunUsage)
DEFAULT_ON: Final = Retry().on
"""The default of ``Retry.on``: then only transient errors are retried."""

_runs: WeakKeyDictionary[Any, dict[str, tuple[str, int]]] = WeakKeyDictionary()
"""The names of agents' runs by their run ids, for each branch."""


def new_run(place: Aside, agent: str) -> str:
    """Return the run id of the next run of an agent, the same on every replay."""
    name = place.take(agent)
    run_id = place.uuid(place.key(name))
    _runs.setdefault(place.branch, {})[run_id] = name
    return run_id


def close_run(place: Aside, agent: str, run_id: str | None) -> None:
    """Note that a run of an agent has ended."""
    place.close_run(name_of(place, agent, run_id))


def name_of(place: Aside, agent: str, run_id: str | None) -> tuple[str, int]:
    """Return the name of an agent's run; an id that the user chose is part of the name."""
    known = _runs.get(place.branch, {})
    return known.get(run_id or "", (f"{place.recorded_name(agent)} {run_id}", 1))


class EffectBackend(DurableOperationBackend[None]):
    """Executes the operations of one agent as effects."""

    def __init__(self, agent: str, retry: Retry | None) -> None:
        self._agent = agent
        self._retry = retry

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """Return an operation as a callable that executes it as an effect."""
        return _Effect(operation, self._agent, self._retry)

    def config_for_tool(
        self,
        operation: DurableOperation[ParamsT, WireT, ResultT],  # noqa: ARG002 - all tools alike
        *,
        tool: object | None,  # noqa: ARG002
        tool_name: str,  # noqa: ARG002
    ) -> Literal[False] | None:
        """Return None: tools have no configuration."""
        return None

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Return no functions: none are registered in advance."""
        return ()


class _Effect(BoundDurableOperation[ParamsT, WireT, ResultT]):
    """An operation of an agent; each call is an effect."""

    def __init__(
        self, operation: DurableOperation[ParamsT, WireT, ResultT], agent: str, retry: Retry | None
    ) -> None:
        self._operation = operation
        self._agent = agent
        self._retry = retry

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        return self._operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:  # noqa: ARG002
        place = aside()
        assert place is not None  # pydantic-ai checks ``in_durable_context`` first
        context = context_of(params)
        name = _name(self._operation.operation_id, params, place.recorded_name)
        call = None if context is None else context.tool_call_id
        run = name_of(place, self._agent, None if context is None else context.run_id)
        place.open_run(run)
        part = place.take(name if call is None else f"{name} {call}", below=run)
        command = _command(self._operation.operation_id, name, context, part[1] == 1)
        outcome = await self._try(place, place.key(run, part), name, command, params)
        value = _value(outcome)
        if context is not None and "usage" in value:
            context.usage.incr(_USAGE.validate_python(value["usage"]))
        loaded = _with_new_names(value["value"], place.new_names)
        return self._operation.result_codec.load(loaded)

    async def _try(
        self, place: Aside, key: str, name: str, command: Command, params: ParamsT
    ) -> Outcome:
        """Return the outcome of the first successful attempt, or raise the error of the last one."""
        attempt = 1
        while True:
            attempt_key = key if attempt == 1 else f"{key}/attempt.{attempt}"
            try:
                return await place.perform(
                    attempt_key, name, command, lambda: self._perform(command, params)
                )
            except LashError as failure:
                error = restore(failure)
                retry = self._retry
                if retry is None or attempt >= retry.max or not self._is_transient(error, retry):
                    raise error from failure.__cause__
                pause = retry.pause(attempt, place.chance(f"{key}/delay.{attempt}"))
            retry_after = getattr(error, "retry_after", None) or 0
            await place.sleep(f"{key}/delay.{attempt}", f"{name} again", max(pause, retry_after))
            attempt += 1

    def _is_transient(self, error: Exception, retry: Retry) -> bool:
        """Return whether to retry: only operations without side effects are retried. Tools have their own retries."""
        match self._operation.operation_id:
            case ModelRequestId() | ModelCompactMessagesId():
                return (
                    is_transient(error) if retry.on == DEFAULT_ON else isinstance(error, retry.on)
                )
            case ToolsetGetToolsId() | ToolsetGetInstructionsId():
                return is_transient_server_error(error)
            case _:
                return False

    async def _perform(self, command: Command, params: ParamsT) -> Outcome:
        try:
            given, usage = _with_own_usage(params)
            before = copy.copy(usage)
            with durable_unit_scope():
                result = await self._operation.handler(given)
            value = {"value": self._operation.result_codec.dump(result)}
        except Exception as error:
            raise to_recorded(error) from error
        if usage is not None and before is not None and usage != before:
            value["usage"] = _USAGE.dump_python(usage - before, mode="json")
        return _outcome(command, value)


def context_of(params: Any) -> RunContext[Any] | None:
    """Return the run context in an operation's parameters."""
    found = getattr(params, "run_context", None) or getattr(params, "ctx", None)
    return found if isinstance(found, RunContext) else None


def _with_own_usage(params: Any) -> tuple[Any, RunUsage | None]:
    """Return a tool call's parameters with a copy of the usage: the difference is recorded with the result.

    Otherwise the usage that a tool adds to ``ctx.usage`` would be lost on replay, and that of parallel tools
    would be mixed.
    """
    context = getattr(params, "ctx", None)
    if not isinstance(context, RunContext):
        return params, None
    usage = copy.copy(context.usage)
    return dataclasses.replace(params, ctx=dataclasses.replace(context, usage=usage)), usage


_NAMES: Final[Mapping[type, str]] = {
    ModelRequestId: "model",
    ModelCompactMessagesId: "model compact",
    ModelCancelSuspendedResponseId: "model cancel",
    EventStreamHandlerId: "event",
}


def _with_new_names(value: Any, names: Mapping[str, str]) -> Any:
    """Return a recorded value in which the tools that a model calls have the names they have now."""
    match value:
        case _ if not names:
            return value
        case {"part_kind": "tool-call", "tool_name": str(tool)}:
            return {**value, "tool_name": names.get(tool, tool)}
        case dict():
            return {key: _with_new_names(one, names) for key, one in value.items()}
        case list():
            return [_with_new_names(one, names) for one in value]
        case _:
            return value


def _name(operation: object, params: Any, recorded_name: Callable[[str], str]) -> str:
    """Return the recorded name of an operation; a kind that is not known here has the name of its class."""
    match operation:
        case ToolsetCallToolId():
            return recorded_name(str(params.name))
        case ToolsetValidateToolArgumentsId():
            return f"{recorded_name(str(params.name))} arguments"
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"{toolset} tools"
        case ToolsetGetInstructionsId(toolset_id=toolset):
            return f"{toolset} instructions"
        case CapabilityOperationId(capability_id=capability, operation=name):
            return f"{capability}.{name}"
        case _:
            return _NAMES.get(type(operation), type(operation).__name__)


def _command(
    operation: DurableOperationId, name: str, context: RunContext[Any] | None, first: bool
) -> Command:
    """Return the command of an operation: the part of its input that is the same on every replay."""
    match operation:
        case ModelRequestId(model_id=model) if context is not None:
            prompt = {"prompt": to_jsonable_python(context.prompt, fallback=_kind)} if first else {}
            # A plain string: a ``GivenModel`` would keep the model object alive.
            return Direct({"model": None if model is None else str(model), **prompt})
        case ToolsetCallToolId() if context is not None:
            return ToolAttempt({"tool": name, "arguments": _arguments(context)})
        case _:
            return DurableStep(name)


def _arguments(context: RunContext[Any]) -> Any:
    """Return the arguments of a call as the model wrote them: validated arguments may differ each time."""
    for message in reversed(context.messages):
        if isinstance(message, ModelResponse):
            for part in message.parts:
                if isinstance(part, ToolCallPart) and part.tool_call_id == context.tool_call_id:
                    return to_jsonable_python(part.args, fallback=_kind)
    return None


def _kind(value: Any) -> str:
    return type(value).__name__


def _outcome(command: Command, value: Any) -> Outcome:
    match command:
        case Direct():
            return DirectOutcome(value)
        case ToolAttempt():
            return ToolAttemptOutcome(value)
        case _:
            return DurableStepOutcome(value)


def _value(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case (
            DirectOutcome(result=dict() as value)
            | ToolAttemptOutcome(launch=dict() as value)
            | DurableStepOutcome(value=dict() as value)
        ):
            return value
        case _:
            raise AssertionError(f"{outcome} is not an outcome of an agent's effect")
