"""What outsiders have to say about a tool call: a person agrees to it, somebody gives its result.

Rule 1. An approval is bound to the arguments it was asked for; corrected ones are checked again.
Rule 2. Whether to ask is decided once and recorded; the answer is a wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from pylash.durable import (
    SECOND,
    SUPERSEDED,
    AwaitEvent,
    Command,
    CustomWait,
    DurableStep,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    Err,
    Ok,
    Outcome,
    Resolution,
    Timeout,
    ToolCompletion,
    WaitIdentity,
    expect,
)
from pylash.runtime.branches import outside
from pylash.runtime.executors import Executor
from pylash.runtime.tools import Tool
from pylash.turn import ToolCall
from pylash.values import CallRefused, Duration, ToolArgumentsInvalid, encode

_STEP: Final = frozenset({EffectKind.DURABLE_STEP})

Effect = Callable[[str, str, Command, Executor], Awaitable[Outcome]]
"""Executes a command as an effect of a call: under a key within the call, and a name."""

Wait = Callable[[str, WaitIdentity, AwaitEvent, Duration | None], Awaitable[Resolution]]
"""Waits for an outsider, under a key within the call; what people are shown still has no key."""


class Ready(NamedTuple):
    """A call that may run: what was given, perhaps by a person instead, and how that is read."""

    tool: Tool[..., Any]
    call: ToolCall
    given: Any
    arguments: dict[str, Any]


async def approved(ready: Ready, effect: Effect, wait: Wait) -> Ready:
    """Return the call as a person agreed to it, if one must; raises CallRefused."""
    tool, call = ready.tool, ready.call
    reason = await _needs_approval(ready, effect)
    if not reason:
        return ready
    # Of what was given: how today's code reads it may change while a person thinks.
    asked = hashlib.sha256(encode(ready.given)).hexdigest()[:16]
    title = reason if isinstance(reason, str) else f"Approve {tool.name}"
    shown = AwaitEvent("", "approval", title, tool.name, _as_given(ready))
    identity = CustomWait(f"approval:{call.id}:{asked}")
    return _decided(ready, await wait("approval", identity, shown, tool.approval_timeout))


def _as_given(ready: Ready) -> Any:
    """Return all arguments as they are read, in the order in which they were given."""
    read = ready.tool.dump(ready.arguments)
    given = ready.given if isinstance(ready.given, dict) else {}
    return {name: read[name] for name in (*given, *read) if name in read}


async def _needs_approval(ready: Ready, effect: Effect) -> bool | str:
    """Return whether a person must agree; a function is asked once, and its answer recorded."""
    if not callable(ready.tool.approval):
        return ready.tool.approval

    async def perform(_: Envelope) -> Outcome:
        with outside():
            return DurableStepOutcome(await ready.tool.asks_approval(ready.arguments))

    command = DurableStep("approval", ready.call.arguments)
    outcome = await effect("asks", "approval", command, Executor("step", _STEP, perform))
    answer = expect(outcome, DurableStepOutcome).value
    return answer if isinstance(answer, str) else bool(answer)


def _decided(ready: Ready, resolution: Resolution) -> Ready:
    """Return the call a person agreed to, or refuse it with what they said."""
    match resolution:
        case Ok(value=dict() as answer):
            if answer.get("approved") is not True:
                raise CallRefused(_rejection(answer))
            given = answer.get("arguments")
            if given is None:
                return ready
            try:
                return ready._replace(given=given, arguments=ready.tool.load(given))
            except ToolArgumentsInvalid as error:
                raise CallRefused(f"The corrected arguments do not fit: {error.message}") from None
        case Ok(value=True):  # a word or a number is no clear yes
            return ready
        case Ok():
            raise CallRefused("Not run: a person rejected it.")
        case Err(message=message):
            raise CallRefused(f"Not run: {message}")
        case Timeout():
            raise CallRefused("Not run: nobody approved it in time.")
        case _:
            raise CallRefused(f"Not run: {SUPERSEDED}.")


def _rejection(answer: Mapping[str, Any]) -> str:
    who = f" by {answer['by']}" if answer.get("by") else ""
    why = f": {answer['reason']}" if answer.get("reason") else "."
    return f"Not run: it was rejected{who}{why}"


async def given_result(call: ToolCall, attempt: int, deadline: int | None, wait: Wait) -> Any:
    """Return the result that an outsider gives for a call; raises CallRefused."""
    shown = AwaitEvent("", "deferred", f"Result of {call.tool}", call.tool, call.arguments)
    timeout = None if deadline is None else deadline / SECOND
    match await wait("deferred", ToolCompletion(f"{call.id}#{attempt}"), shown, timeout):
        case Ok(value=value):
            return value
        case Err(message=message):
            raise CallRefused(message)
        case Timeout():
            raise CallRefused("Nobody gave the result in time.")
        case _:
            raise CallRefused(f"No result: {SUPERSEDED}.")
