"""Deferred tools of pydantic-ai: approvals and calls that people or other programs answer, as durable waits."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from pydantic_ai import ToolFailed
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    ToolApproved,
    ToolDenied,
)

from pylash.durable.effects import AwaitEvent, AwaitEventOutcome, expect
from pylash.durable.waits import Err, Ok, Resolution, Timeout
from pylash.engine.runs.asides import aside
from pylash.processes.operations.context import ProcessContext
from pylash.values.canonical import encode
from pylash.values.durations import Duration
from pylash.values.errors import AwaitEventUnknownOrRevoked, EffectNested


async def answered(
    ctx: ProcessContext[Any], requests: DeferredToolRequests, *, timeout: Duration | None = "7d"
) -> DeferredToolResults:
    """Wait until all deferred calls of an agent are answered, and return the answers for its next run.

    Each call is a wait: ``app.waits()`` lists it with its tool and arguments, ``app.resolve(key, answer)``
    answers it. An approval takes True, False or a record with ``approved``, ``reason`` and ``arguments``;
    another call takes its result. A call that is not answered in time is denied, or fails.

    >>> if isinstance(result.output, DeferredToolRequests):
    ...     answers = await answered(ctx, result.output)
    ...     result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
    """
    calls = [*requests.approvals, *requests.calls]
    kinds = ["approval"] * len(requests.approvals) + ["deferred"] * len(requests.calls)
    waits = (_resolution(ctx, kind, call, timeout) for kind, call in zip(kinds, calls, strict=True))
    resolutions = await ctx.gather(*waits, key="answers")
    results = DeferredToolResults(metadata=requests.metadata)
    for kind, call, resolution in zip(kinds, calls, resolutions, strict=True):
        if kind == "approval":
            results.approvals[call.tool_call_id] = _approval(resolution)
        else:
            results.calls[call.tool_call_id] = _result(resolution)
    return results


async def _resolution(
    ctx: ProcessContext[Any], kind: str, call: ToolCallPart, timeout: Duration | None
) -> Resolution:
    place = aside()
    if place is None:
        raise EffectNested("answered", "a step")
    tool = place.recorded_name(call.tool_name)
    key = place.key(place.take(f"{kind} {tool} {call.tool_call_id}"))
    # The answer belongs to this wait and these arguments: a model may reuse the ids of calls.
    digest = sha256(encode(call.args_as_dict())).hexdigest()[:16]
    command = AwaitEvent(
        ctx.wait_key(f"{kind}:{key}:{digest}"),
        wait_kind=kind,
        title=tool,
        tool=tool,
        arguments=call.args_as_dict(),
    )
    outcome = await place.wait(key, command, timeout)
    return expect(outcome, AwaitEventOutcome).resolution


def _approval(resolution: Resolution) -> ToolApproved | ToolDenied:
    """Return the decision of a person; anything but an explicit approval denies the call."""
    match resolution:
        case Ok(value=True):
            return ToolApproved()
        case Ok(value={"approved": True, "arguments": dict() as corrected}):
            return ToolApproved(override_args=corrected)
        case Ok(value={"approved": True}):
            return ToolApproved()
        case Ok(value={"reason": str(reason)}):
            return ToolDenied(reason)
        case Ok():
            return ToolDenied()
        case Err(message=message):
            return ToolDenied(message)
        case Timeout():
            return ToolDenied("Nobody approved it in time.")
        case _:
            raise AwaitEventUnknownOrRevoked


def _result(resolution: Resolution) -> Any:
    match resolution:
        case Ok(value=value):
            return value
        case Err(message=message):
            return ToolFailed(message)
        case Timeout():
            return ToolFailed("Nobody gave the result in time.")
        case _:
            raise AwaitEventUnknownOrRevoked
