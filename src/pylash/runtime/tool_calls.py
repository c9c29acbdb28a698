"""One tool call of a turn: checked, approved, attempted, deferred, and turned into a message.

Rule 1. Whatever goes wrong with a call is its result: the model is told, and the turn goes on.
Rule 2. An attempt is one effect, recorded with its message. Approval and deferral are waits.
Rule 3. An approval is bound to the arguments it was asked for; corrected ones are checked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import convert, to_builtins
from msgspec.structs import replace

from pylash.durable import (
    AwaitEvent,
    AwaitEventOutcome,
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
    Sleep,
    Timeout,
    ToolAttempt,
    ToolAttemptOutcome,
    ToolCompletion,
    WaitIdentity,
    expect,
)
from pylash.runtime.branches import LANES, outside, own_branch
from pylash.runtime.executors import Executor, await_options, sleep_executor
from pylash.runtime.feeds import completed
from pylash.runtime.process_steps import chance, digest
from pylash.runtime.records import FINAL
from pylash.runtime.tool_arguments import read_arguments
from pylash.runtime.tool_context import CallInfo, Deferred, ToolContext
from pylash.runtime.tool_results import fitted, materialised, projected_refs, result_text
from pylash.runtime.tools import Tool
from pylash.runtime.turn_messages import broken_off
from pylash.turn import Attachment, ToolCall, ToolMessage, TurnEvent, Usage
from pylash.values import (
    AttachmentResolutionFailed,
    DurabilityError,
    LashError,
    StoreError,
    ToolArgumentsInvalid,
    ToolFailed,
    decode,
    encode,
    seconds,
)

if TYPE_CHECKING:
    from pylash.runtime.turns import TurnDriver

_ATTEMPT: Final = frozenset({EffectKind.TOOL_ATTEMPT})
_STEP: Final = frozenset({EffectKind.DURABLE_STEP})

RESULT_CHARACTERS: Final = 16_000

_USED: Final = "model_usage"
"""Where a failed attempt keeps what models used for it, and for those before."""

_log = logging.getLogger("pylash")


class CallRefused(Exception):
    """A call that is not run; the message is what the model is told."""


class Ready(NamedTuple):
    """A call that may run: what the model gave, or a person instead of it, and how that is read."""

    tool: Tool[..., Any]
    call: ToolCall
    position: int
    given: Any
    arguments: dict[str, Any]


class ToolCalls:
    """Runs the calls of one turn."""

    def __init__(self, turn: TurnDriver) -> None:
        self._turn = turn
        self.unapproved: set[str] = set()
        """The calls that certainly have not run: a person has not agreed yet."""

    async def run(self, call: ToolCall, index: int) -> ToolMessage:
        """Return what came of a call; ``index`` is where its message stands in the turn."""
        feed = self._turn.feed
        feed.say(TurnEvent("tool_started", call.id, tool=call.tool, data=call.arguments))
        try:
            known = await self._turn.recorded_result(call, index)
            message = known or await self._result(call, index)
        except CallRefused as refusal:
            message = self._error(call, str(refusal))
        except (DurabilityError, StoreError) as error:
            self._turn.give_up(error)
        except LashError as error:
            message = replace(self._error(call, error.message), usage=_used(error))
        feed.say(completed(message))
        return message

    def known(
        self, calls: Sequence[ToolCall], done: Mapping[str, ToolMessage], behind: Sequence[str]
    ) -> tuple[ToolMessage, ...]:
        """Return what is known of calls: their results, or why there is none.

        ``behind`` are those whose turn it was not.
        """
        idle = {*self.unapproved, *behind}
        return tuple(
            done.get(call.id) or broken_off(call, ran=call.id not in idle) for call in calls
        )

    def _effect(
        self, key: str, name: str, command: Command, local: Executor
    ) -> Coroutine[Any, Any, Outcome]:
        run = self._turn.run
        return run.effect(own_branch(run, "tool"), key, name, command, local)

    def _error(self, call: ToolCall, text: str) -> ToolMessage:
        return ToolMessage(call.id, call.tool, text, error=True, provider_id=call.provider_id)

    async def _result(self, call: ToolCall, index: int) -> ToolMessage:
        tool = self._turn.tools.get(call.tool)
        if tool is None:
            known = ", ".join(sorted(self._turn.tools)) or "none"
            raise CallRefused(f"There is no tool {call.tool!r} (there are: {known}).")
        await tool.prepare()
        given = read_arguments(tool.name, call.arguments)
        ready = Ready(tool, call, index, given, tool.load(await self._filled(tool, given)))
        ready = await self._approved(ready)
        if (within := getattr(tool, "within", None)) is not None:
            message: ToolMessage = await within(self._turn, call, ready.arguments)
            return message
        return await self._attempted(ready)

    async def _filled(self, tool: Tool[..., Any], arguments: Any) -> Any:
        """Replace references in arguments by what they stand for, but for those the tool wants kept."""
        refs = projected_refs(arguments, tool.projection)
        if not refs:
            return arguments
        bodies: dict[str, Any] = {}
        for found in refs:
            body = await self._turn.services.store.attachments.get(found.ref)
            if body is None:
                raise AttachmentResolutionFailed(found.ref)
            try:
                bodies[found.ref] = decode(body)
            except ValueError:
                bodies[found.ref] = body.decode("utf-8", "replace")
        return materialised(arguments, bodies, tool.projection)

    # --- approval ---

    async def _approved(self, ready: Ready) -> Ready:
        """Return the call as it was approved, or refuse it."""
        tool, call = ready.tool, ready.call
        if not tool.approval:
            return ready
        self.unapproved.add(call.id)
        reason = await self._needs_approval(tool, call, ready.arguments)
        approved = await self._asked(ready, reason) if reason else ready
        self.unapproved.discard(call.id)
        return approved

    async def _asked(self, ready: Ready, reason: str | bool) -> Ready:
        """Ask a person; return the call as they agreed to it, or refuse it."""
        tool, call = ready.tool, ready.call
        # Of what the model gave: how today's code reads it may change while a person thinks.
        digest = hashlib.sha256(encode(ready.given)).hexdigest()[:16]
        title = reason if isinstance(reason, str) else f"Approve {tool.name}"
        wait = CustomWait(f"approval:{call.id}:{digest}")
        shown = AwaitEvent("", "approval", title, tool.name, tool.dump(ready.arguments))
        resolution = await self._wait("approval", wait, shown, _micros(tool.approval_timeout), call)
        return _decided(ready, resolution)

    async def _needs_approval(
        self, tool: Tool[..., Any], call: ToolCall, arguments: Mapping[str, Any]
    ) -> bool | str:
        """Return whether a person must agree; a function is asked once, and its answer recorded."""
        if not callable(tool.approval):
            return tool.approval

        async def perform(_: Envelope) -> Outcome:
            with outside():
                return DurableStepOutcome(await tool.asks_approval(arguments))

        command = DurableStep("approval", call.arguments)
        local = Executor("step", _STEP, perform)
        outcome = await self._effect(f"{call.id}.asks", "approval", command, local)
        answer = expect(outcome, DurableStepOutcome).value
        return answer if isinstance(answer, str) else bool(answer)

    async def _wait(
        self,
        name: str,
        wait: WaitIdentity,
        shown: AwaitEvent,
        timeout: int | None,
        call: ToolCall,
    ) -> Resolution:
        turn = self._turn
        key = turn.wait_key(wait)
        command = AwaitEvent(key, shown.wait_kind, shown.title, shown.tool, shown.arguments)
        data = {"kind": shown.wait_kind, "title": shown.title, "key": key}
        event = TurnEvent("wait_opened", f"{call.id}.{name}", tool=shown.tool, data=data)
        local = await_options(timeout=None if timeout is None else timeout / 1_000_000)
        local.opened = partial(turn.feed.say, event)  # not before somebody can answer
        if turn.run.journal is None:
            local.opened()
        outcome = await self._effect(f"{call.id}.{name}", name, command, local)
        return expect(outcome, AwaitEventOutcome).resolution

    # --- attempts ---

    async def _attempted(self, ready: Ready) -> ToolMessage:
        retry = ready.tool.retry
        attempt, used = 1, Usage()
        while True:
            try:
                return await self._attempt(ready, attempt, used)
            except LashError as error:
                used = _used(error)
                if retry is None or error.final or attempt >= retry.max:
                    raise
            key = f"{ready.call.id}.delay.{attempt}"
            pause = retry.pause(attempt, chance(self._turn.run.seed, key))
            command = Sleep(round(pause * 1000), retry=True)
            await self._effect(key, f"{ready.tool.name} again", command, sleep_executor())
            attempt += 1

    async def _attempt(self, ready: Ready, attempt: int, before: Usage) -> ToolMessage:
        turn, tool, call = self._turn, ready.tool, ready.call
        key = f"{call.id}.attempt.{attempt}"

        async def perform(_: Envelope) -> Outcome:
            with outside():
                return await self._performed(key, ready, attempt, before)

        asked = {"tool": tool.name, "arguments": ready.given, "call_id": call.id}
        most = 1 if tool.retry is None else tool.retry.max
        command = ToolAttempt(asked, None, attempt, most)
        local = Executor("tool", _ATTEMPT, perform, record=turn.writer.record)
        asking = self._effect(key, tool.name, command, local)
        outcome = expect(await asking, ToolAttemptOutcome)
        turn.writer.landed(key)
        await turn.emit_triggers(key, outcome.triggers)
        launch = outcome.launch
        if "place" in launch:
            message = turn.writer.read(launch["place"])
            assert isinstance(message, ToolMessage)
            return message
        return await self._deferred(call, launch["deadline"], attempt)

    async def _performed(self, key: str, ready: Ready, attempt: int, before: Usage) -> Outcome:
        """Call the tool. ``before``: what models used for the attempts that failed."""
        turn, tool, call = self._turn, ready.tool, ready.call
        loop = asyncio.get_running_loop()

        def told(text: str, fraction: float | None) -> None:
            event = TurnEvent(
                "tool_progress", call.id, tool=tool.name, text=text, fraction=fraction
            )
            loop.call_soon_threadsafe(turn.feed.say, event)

        info = CallInfo(
            turn.session.id, turn.turn_id, call.id, attempt, digest(turn.run.id, call.id).hex()[:32]
        )
        completions = turn.completions()
        ctx: ToolContext[Any] = ToolContext(
            info, turn.services.deps, told, turn.services.check_trigger, completions.answer
        )
        started = turn.services.monotonic()
        lanes = LANES.set(LANES.get() | {turn.session.id})
        try:
            value = await tool.call(ctx, ready.arguments)
        except Exception as error:
            _log.warning("tool %s failed", tool.name, exc_info=error)
            told_error = error if isinstance(error, LashError) else ToolFailed(error)
            if tool.retry is not None and not isinstance(error, tool.retry.on):
                setattr(told_error, FINAL, True)
            if (used := before + completions.used) != Usage():
                data = told_error.data if isinstance(told_error.data, dict) else {}
                told_error.data = {**data, _USED: to_builtins(used)}
            raise told_error from error
        finally:
            LANES.reset(lanes)
        if isinstance(value, Deferred):
            return ToolAttemptOutcome({"deadline": value.deadline})
        took = turn.services.monotonic() - started
        message = self._message(call, value, took, ctx.attached)
        message = replace(message, usage=before + completions.used)
        place = turn.writer.prepare(key, ready.position, message, ctx.attached)
        triggers = [
            {"trigger": one.trigger, "source_key": one.source_key, "payload": one.payload}
            for one in ctx.emitted
        ]
        return ToolAttemptOutcome({"place": place}, triggers)

    def _message(
        self, call: ToolCall, value: Any, took: float, attached: dict[str, bytes]
    ) -> ToolMessage:
        """Return a result as a message: what is too long for the model is kept whole beside it."""
        attachments: tuple[Attachment, ...] = ()
        if isinstance(value, Attachment):
            attachments = (value,)
            value = {"attachment": value.ref, "media_type": value.media_type, "name": value.name}
        text = result_text(value)
        if len(text) > RESULT_CHARACTERS:
            body = text.encode()
            ref = hashlib.sha256(body).hexdigest()
            attached[ref] = body
            media_type = "text/plain" if isinstance(value, str) else "application/json"
            attachments += (Attachment(media_type=media_type, ref=ref, size=len(body)),)
            text, _ = fitted(text, RESULT_CHARACTERS, ref)
        return ToolMessage(
            call.id,
            call.tool,
            text,
            attachments=attachments,
            seconds=round(took, 3),
            provider_id=call.provider_id,
        )

    async def _deferred(self, call: ToolCall, deadline: int | None, attempt: int) -> ToolMessage:
        """Wait for the outsider who gives the result."""
        wait = ToolCompletion(f"{call.id}#{attempt}")
        shown = AwaitEvent("", "deferred", f"Result of {call.tool}", call.tool, call.arguments)
        resolution = await self._wait("deferred", wait, shown, deadline, call)
        match resolution:
            case Ok(value=value):
                attached: dict[str, bytes] = {}
                message = self._message(call, value, 0.0, attached)
                self._turn.writer.keep(attached)
                return message
            case Err(message=message):
                raise CallRefused(message)
            case Timeout():
                raise CallRefused("Nobody gave the result in time.")
            case _:
                raise CallRefused(f"No result: {SUPERSEDED}")


SUPERSEDED: Final = "superseded by a new message."


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
            raise CallRefused(f"Not run: {SUPERSEDED}")


def _used(error: LashError) -> Usage:
    """Return what models used for a call that failed."""
    used = error.data.get(_USED) if isinstance(error.data, dict) else None
    return Usage() if used is None else convert(used, Usage)


def _rejection(answer: Mapping[str, Any]) -> str:
    who = f" by {answer['by']}" if answer.get("by") else ""
    why = f": {answer['reason']}" if answer.get("reason") else "."
    return f"Not run: it was rejected{who}{why}"


def _micros(duration: Any) -> int | None:
    return None if duration is None else round(seconds(duration) * 1_000_000)
