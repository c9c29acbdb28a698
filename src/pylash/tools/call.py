"""One tool call, of a turn or of a process: its approval, attempts with retries, and a deferred result.

Rule 1. An attempt is one effect; an approval and a deferred result are waits.
Rule 2. An approval is bound to the arguments that were shown; corrected ones are checked again. Whether an
        approval is needed is decided once and recorded.
Rule 3. Triggers that a tool emits are recorded with its attempt and emitted after it, each under a key of its
        own: a replay emits nothing twice.
Rule 4. The differences between a turn and a process are in their ``CallSite``: keys, recorded shapes, listeners.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from pylash.durable.effects import (
    AwaitEvent,
    AwaitEventOutcome,
    DurableStep,
    DurableStepOutcome,
    Envelope,
    Outcome,
    ToolAttempt,
    ToolAttemptOutcome,
    expect,
)
from pylash.durable.ports import MessageCarrier, RecordEffect
from pylash.durable.runs import SECOND
from pylash.durable.waits import (
    SUPERSEDED,
    CustomWait,
    Err,
    Ok,
    Resolution,
    Timeout,
    ToolCompletion,
    WaitIdentity,
)
from pylash.engine.executors import await_options, step_executor, tool_executor
from pylash.engine.retries import Retry, Tries, attempting, is_final, marked_final
from pylash.engine.runs.branches import ENCLOSING_SESSIONS, Branch, outside
from pylash.engine.runs.run import LiveRun
from pylash.engine.user_code import FailsAs
from pylash.tools.arguments import projected_refs
from pylash.tools.context import ToolContext
from pylash.tools.tool import Tool
from pylash.turn.asks import ToolPolicy
from pylash.turn.messages import ToolCall
from pylash.values.canonical import encode
from pylash.values.durations import Duration
from pylash.values.errors import LashError
from pylash.values.schemas import schema_trouble
from pylash.values.turn_errors import CallRefused, ToolArgumentsInvalid

R_co = TypeVar("R_co", covariant=True)

AwaitDeferred = Callable[[int | None], Awaitable[Any]]
"""Waits for a deferred result until a deadline, in microseconds; raises CallRefused."""


class Ready(NamedTuple):
    """A call whose arguments were checked.

    ``given`` are the arguments as the model, the process or an approving person wrote them; ``arguments`` are
    the same as the tool takes them, or None if there are references in them that each attempt reads itself. ``policy``
    is the tool's: in a turn as it was captured.
    """

    tool: Tool[..., Any]
    call: ToolCall
    given: Any
    arguments: dict[str, Any] | None
    policy: ToolPolicy


class CallSite(Protocol[R_co]):
    """The turn or process that makes a call. Keys, requests and outcomes are recorded: a replay must find them unchanged."""

    run: LiveRun
    branch: Branch
    name: str
    """The name under which attempts are shown."""
    record: RecordEffect | None
    """Writes the record of an attempt; None leaves it to the host."""
    messages: MessageCarrier | None
    """Passes the message of an attempt to an engine that records it with the outcome."""

    def key(self, part: str) -> str:
        """Return the key of an effect of this call."""

    def wait_key(self, wait: WaitIdentity) -> str:
        """Return the signed key with which a wait is answered."""

    def request(self, ready: Ready) -> Mapping[str, Any]:
        """Return the recorded request of the call."""

    def context(self, number: int) -> ToolContext[Any]:
        """Return the context of an attempt that starts now."""

    def failure(self, error: BaseException, *, is_last: bool) -> BaseException:
        """Return the recorded failure for an exception of the tool; ``is_last``: it is not tried again."""

    async def arguments(self, ready: Ready) -> dict[str, Any]:
        """Return the arguments as the tool takes them, inside an effect."""

    async def outcome(self, ctx: ToolContext[Any], value: Any) -> ToolAttemptOutcome:
        """Return the recorded outcome for the tool's return value."""

    async def result(
        self, number: int, outcome: ToolAttemptOutcome, await_deferred: AwaitDeferred
    ) -> R_co:
        """Emit the triggers of the attempt that succeeded and return the result; also called on replay."""

    def on_wait(self, part: str, command: AwaitEvent) -> None:
        """Handle a wait that can be answered from now on."""

    def on_retry(self, number: int, error: LashError) -> None:
        """Handle an attempt that failed and is not the last; also called on replay."""


async def call_wait(
    site: CallSite[Any],
    part: str,
    wait: WaitIdentity,
    shown: AwaitEvent,
    timeout: Duration | None,
) -> Resolution:
    """Wait for an answer from outside; ``shown`` describes the wait to people, still without the key."""
    command = replace(shown, key=site.wait_key(wait))
    local = await_options(timeout=timeout)
    local.opened = partial(site.on_wait, part, command)
    outcome = await site.run.effect(site.branch, site.key(part), part, command, local)
    return expect(outcome, AwaitEventOutcome).resolution


# --- approval ---


async def approve(site: CallSite[Any], ready: Ready) -> Ready:
    """Return the call after a person approved it, if its policy requires that; raises CallRefused."""
    tool, call = ready.tool, ready.call
    reason = await _ask_tool(site, ready) if ready.policy.asks else ready.policy.approval
    if not reason:
        return ready
    # The digest covers the arguments as given: new code may load them differently while the wait is open.
    digest = hashlib.sha256(encode(ready.given)).hexdigest()[:16]
    title = reason if isinstance(reason, str) else f"Approve {tool.name}"
    arguments = _shown_arguments(ready)
    schema = _answers(ready, arguments)
    shown = AwaitEvent("", "approval", title, tool.name, arguments, schema=schema)
    identity = CustomWait(f"approval:{call.id}:{digest}")
    answer = await call_wait(site, "approval", identity, shown, tool.approval_timeout)
    return _apply_decision(ready, answer)


def _shown_arguments(ready: Ready) -> Any:
    """Return the loaded arguments as JSON for people, in the order in which they were given."""
    if ready.arguments is None:
        return ready.given
    read = ready.tool.dump(ready.arguments)
    given = ready.given if isinstance(ready.given, dict) else {}
    return {name: read[name] for name in (*given, *read) if name in read}


def _answers(ready: Ready, shown: Any) -> Any:
    """Return the JSON Schema of the answers to an approval: corrected arguments must fit the tool.

    There is none if the tool accepts more than its schema says, as the arguments that are ``shown`` prove: a flag of
    several members, bytes that are counted as characters, a field with a serializer of its own.
    """
    if ready.arguments is None:
        return UNSET  # references may stand for any part of the arguments
    schema = ready.tool.schema
    # References in the schema of the tool begin at its root.
    arguments = {name: part for name, part in schema.items() if name != "$defs"}
    properties = {"arguments": {"anyOf": [{"type": "null"}, arguments]}}
    answers = {"properties": properties, "$defs": schema.get("$defs", {})}
    return UNSET if schema_trouble({"arguments": shown}, answers) is not None else answers


async def _ask_tool(site: CallSite[Any], ready: Ready) -> bool | str:
    """Return whether the tool's own function asks for an approval, or its reason; recorded as an effect."""

    async def ask(_: Any) -> Any:
        arguments = await site.arguments(ready)
        with outside():
            return await ready.tool.asks_approval(arguments)

    command, local = DurableStep("approval", ready.call.arguments), step_executor(ask)
    outcome = await site.run.effect(site.branch, site.key("asks"), "approval", command, local)
    answer = expect(outcome, DurableStepOutcome).value
    return answer if isinstance(answer, str) else bool(answer)


def _apply_decision(ready: Ready, resolution: Resolution) -> Ready:
    """Return the approved call, maybe with corrected arguments; raises CallRefused with the person's reason."""
    match resolution:
        case Ok(value=dict() as answer):
            if answer.get("approved") is not True:
                raise CallRefused(_rejection(answer))
            given = answer.get("arguments")
            if given is None:
                return ready
            if ready.arguments is None and projected_refs(given):
                return ready._replace(given=given)  # checked by the attempt that reads them
            try:
                return ready._replace(given=given, arguments=ready.tool.load(given))
            except ToolArgumentsInvalid as error:
                raise CallRefused(f"The corrected arguments do not fit: {error.message}") from None
        case Ok(value=True):  # a string or a number is not a clear yes
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
    by = f" by {answer['by']}" if answer.get("by") else ""
    why = f": {answer['reason']}" if answer.get("reason") else "."
    return f"Not run: it was rejected{by}{why}"


# --- attempts ---


async def call_tool(site: CallSite[R_co], ready: Ready) -> R_co:
    """Attempt a call until it succeeds, and return its result; raises the last failure."""
    policy, number = ready.policy.retry, 1
    if policy is None:
        outcome = await _attempt(site, ready, number)
    else:
        retry = Retry.of(policy, ready.tool.retry)
        tries = Tries(
            site.run,
            site.branch,
            "tool",
            site.name,
            retry,
            lambda n: site.key(f"delay.{n}"),
            site.on_retry,
        )

        async def attempt(attempted: int) -> ToolAttemptOutcome:
            nonlocal number
            number = attempted
            return await _attempt(site, ready, attempted)

        outcome = await tries.first_success(attempt)
    return await site.result(number, outcome, partial(_await_deferred, site, ready.call, number))


async def _attempt(site: CallSite[Any], ready: Ready, number: int) -> ToolAttemptOutcome:
    most = 1 if ready.policy.retry is None else ready.policy.retry.max

    def failure(error: BaseException) -> BaseException:
        retry = ready.tool.retry
        failure = site.failure(error, is_last=number >= most or is_final(error, retry))
        return marked_final(failure, error, retry)

    async def perform(_: Envelope) -> Outcome:
        arguments = await site.arguments(ready)
        ctx = site.context(number)
        occupied = {ctx.session_id} if ctx.session_id else set()  # a process has no session
        # The session's lane is occupied by the turn that waits for this tool: a turn that the tool submitted to the
        # same session would deadlock.
        token = ENCLOSING_SESSIONS.set(ENCLOSING_SESSIONS.get() | occupied)
        try:
            with outside(), attempting(number), FailsAs(failure):
                value = await ready.tool.call(ctx, arguments)
        finally:
            ENCLOSING_SESSIONS.reset(token)
        return await site.outcome(ctx, value)

    command = ToolAttempt(site.request(ready), None, number, most)
    local = tool_executor(perform, site.record, site.messages)
    key = site.key(f"attempt.{number}")
    outcome = await site.run.effect(site.branch, key, site.name, command, local)
    return expect(outcome, ToolAttemptOutcome)


async def _await_deferred(
    site: CallSite[Any], call: ToolCall, number: int, deadline: int | None
) -> Any:
    """Return the deferred result of a call; raises CallRefused."""
    shown = AwaitEvent("", "deferred", f"Result of {call.tool}", call.tool, call.arguments)
    timeout = None if deadline is None else deadline / SECOND
    wait = ToolCompletion(f"{call.id}#{number}")
    match await call_wait(site, "deferred", wait, shown, timeout):
        case Ok(value=value):
            return value
        case Err(message=message):
            raise CallRefused(message)
        case Timeout():
            raise CallRefused("Nobody gave the result in time.")
        case _:
            raise CallRefused(f"No result: {SUPERSEDED}.")
