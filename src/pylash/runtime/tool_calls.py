"""One tool call of a turn: checked, approved, attempted, deferred, and turned into a message.

Rule 1. Whatever goes wrong with a call is its result: the model is told, and the turn goes on.
Rule 2. An attempt is one effect, recorded with its message. Approval and deferral are waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from msgspec.structs import replace

from pylash.durable import (
    AwaitEvent,
    AwaitEventOutcome,
    Command,
    EffectKind,
    Envelope,
    Outcome,
    Resolution,
    ToolAttempt,
    ToolAttemptOutcome,
    WaitIdentity,
    expect,
)
from pylash.runtime.branches import LANES, outside, own_branch
from pylash.runtime.executors import Executor, await_options
from pylash.runtime.feeds import completed
from pylash.runtime.process_steps import Tries, digest, marked_final
from pylash.runtime.records import is_outcome, message_of
from pylash.runtime.tool_approval import Ready, approved, given_result
from pylash.runtime.tool_arguments import read_arguments
from pylash.runtime.tool_context import CallInfo, Deferred, ToolContext
from pylash.runtime.tool_results import (
    RESULT_CHARACTERS,
    fitted,
    materialised,
    projected_refs,
    result_text,
)
from pylash.runtime.tools import Tool
from pylash.runtime.turn_messages import broken_off
from pylash.runtime.user_code import FailsAs
from pylash.turn import NO_USAGE, ZERO, Attachment, ToolCall, ToolMessage, TurnEvent, Usage
from pylash.values import (
    AttachmentResolutionFailed,
    CallRefused,
    DurabilityError,
    Duration,
    LashError,
    StoreError,
    ToolFailed,
    check_size,
    decode,
    storable,
)

if TYPE_CHECKING:
    from pylash.runtime.turns import TurnDriver

_ATTEMPT: Final = frozenset({EffectKind.TOOL_ATTEMPT})
_STEP: Final = frozenset({EffectKind.DURABLE_STEP})

_USED: Final = "model_usage"
"""Where an attempt without a message keeps what models used for it, and for those before."""

_log = logging.getLogger("pylash")


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
        except (DurabilityError, StoreError) as error:  # ours: user code raises them as ToolFailed
            self._turn.run.give_up(error)
        except LashError as error:
            message = replace(self._error(call, error.message), usage=_used(error.data))
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
        self, call: ToolCall, key: str, name: str, command: Command, local: Executor
    ) -> Coroutine[Any, Any, Outcome]:
        run = self._turn.run
        return run.effect(own_branch(run, "tool"), f"{call.id}.{key}", name, command, local)

    def _error(self, call: ToolCall, text: str) -> ToolMessage:
        return ToolMessage(
            call.id, call.tool, storable(text), error=True, provider_id=call.provider_id
        )

    async def _result(self, call: ToolCall, index: int) -> ToolMessage:
        tool = self._turn.tools.get(call.tool)
        if self._turn.lacks(call):
            self._break_off(call)
        if tool is None:
            known = ", ".join(sorted(self._turn.tools)) or "none"
            raise CallRefused(f"There is no tool {call.tool!r} (there are: {known}).")
        given = read_arguments(tool.name, call.arguments)
        filled = await self._filled(tool, given)
        with FailsAs(tool_failure):
            await tool.prepare()
            ready = Ready(tool, call, given, tool.load(filled))
        if tool.approval:
            self.unapproved.add(call.id)
            ready = await approved(ready, partial(self._effect, call), partial(self._wait, call))
            self.unapproved.discard(call.id)
        if (within := getattr(tool, "within", None)) is not None:
            message: ToolMessage = await within(self._turn, call, ready.arguments)
            return message
        return await self._attempted(ready, index)

    def _break_off(self, call: ToolCall) -> NoReturn:
        """Cancel a call whose tool this worker does not have: the turn was asked to end, or it would not be here."""
        run, approval = self._turn.run, f"{call.id}.approval"
        journal = run.journal
        if journal is not None and journal.begun(approval) and not journal.recorded(approval):
            self.unapproved.add(call.id)
        own_branch(run, "tool").hear_cancel()
        raise asyncio.CancelledError

    async def _filled(self, tool: Tool[..., Any], arguments: Any) -> Any:
        """Replace references in arguments by what they stand for, but for those the tool wants kept.

        A reference is what a model wrote, so it is followed only to an attachment of its own session. That holds
        for references that are kept as well: the tool will follow them.
        """
        wanted = {found.ref for found in projected_refs(arguments)}
        if not wanted:
            return arguments
        for ref in sorted(wanted - await self._turn.own_attachments(wanted)):
            raise AttachmentResolutionFailed(ref)
        bodies: dict[str, Any] = {}
        for found in projected_refs(arguments, tool.projection):
            body = await self._turn.services.store.attachments.get(found.ref)
            if body is None:
                raise AttachmentResolutionFailed(found.ref)
            try:
                bodies[found.ref] = decode(body)
            except ValueError:
                bodies[found.ref] = body.decode("utf-8", "replace")
        return materialised(arguments, bodies, tool.projection)

    async def _wait(
        self,
        call: ToolCall,
        name: str,
        wait: WaitIdentity,
        shown: AwaitEvent,
        timeout: Duration | None,
    ) -> Resolution:
        turn = self._turn
        key = turn.wait_key(wait)
        command = replace(shown, key=key)
        data = {"kind": shown.wait_kind, "title": shown.title, "key": key}
        event = TurnEvent("wait_opened", f"{call.id}.{name}", tool=shown.tool, data=data)
        local = await_options(timeout=timeout)
        local.opened = partial(turn.feed.say, event)  # not before somebody can answer
        if turn.run.journal is None:
            local.opened()
        outcome = await self._effect(call, name, name, command, local)
        return expect(outcome, AwaitEventOutcome).resolution

    # --- attempts ---

    async def _attempted(self, ready: Ready, position: int) -> ToolMessage:
        turn, call = self._turn, ready.call
        before = NO_USAGE

        def delay_key(number: int) -> str:
            return f"{call.id}.delay.{number}"

        def failed(number: int, error: LashError) -> None:
            if turn.is_new(delay_key(number)):
                again = TurnEvent("tool_progress", call.id, error.message, call.tool)
                turn.feed.say(replace(again, attempt=number + 1))

        tries = Tries(
            turn.run,
            own_branch(turn.run, "tool"),
            ready.tool.name,
            ready.tool.retry,
            delay_key,
            failed,
        )

        async def tried(number: int) -> tuple[int, ToolAttemptOutcome]:
            nonlocal before
            try:
                return await self._attempt(ready, position, number, before)
            except LashError as error:
                before = _used(error.data)
                raise

        attempt, outcome = await tries.first_success(tried)
        key = f"{call.id}.attempt.{attempt}"
        turn.writer.landed(key)
        await turn.emit_triggers(key, outcome.triggers)
        launch = outcome.launch
        if "place" in launch:
            message = turn.writer.read(launch["place"])
            assert isinstance(message, ToolMessage)
            return message
        wait = partial(self._wait, call)
        value = await given_result(call, attempt, launch["deadline"], wait)
        attached: dict[str, bytes] = {}
        message = self._message(call, value, 0.0, attached)
        turn.writer.keep(attached)
        return replace(message, usage=_used(launch))

    async def _attempt(
        self, ready: Ready, position: int, attempt: int, before: Usage
    ) -> tuple[int, ToolAttemptOutcome]:
        tool, call = ready.tool, ready.call
        key = f"attempt.{attempt}"

        async def perform(_: Envelope) -> Outcome:
            with outside():
                return await self._performed(f"{call.id}.{key}", ready, position, attempt, before)

        asked = {"tool": tool.name, "arguments": ready.given, "call_id": call.id}
        most = 1 if tool.retry is None else tool.retry.max
        command = ToolAttempt(asked, None, attempt, most)
        local = Executor("tool", _ATTEMPT, perform, record=self._turn.writer.record)
        outcome = await self._effect(call, key, tool.name, command, local)
        return attempt, expect(outcome, ToolAttemptOutcome)

    async def _performed(
        self, key: str, ready: Ready, position: int, attempt: int, before: Usage
    ) -> Outcome:
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

        def failure(error: BaseException) -> BaseException:
            # An error of ours is a sentence for whoever called; the stack of others says where it was.
            trace = None if isinstance(error, LashError) else error
            _log.warning("tool %s failed: %s", tool.name, message_of(error), exc_info=trace)
            told_error = tool_failure(error)
            if used := _noted(before + completions.used):
                data = told_error.data if isinstance(told_error.data, dict) else {}
                told_error.data = {**data, **used}
            return marked_final(told_error, error, tool.retry)

        try:
            with FailsAs(failure):
                value = await tool.call(ctx, ready.arguments)
        finally:
            LANES.reset(lanes)
        if isinstance(value, Deferred):
            used = _noted(before + completions.used)
            return ToolAttemptOutcome({"deadline": value.deadline, **used})
        took = turn.services.monotonic() - started
        message = self._message(call, value, took, ctx.attached)
        message = replace(message, usage=before + completions.used)
        place = turn.writer.prepare(key, position, message, ctx.attached)
        return ToolAttemptOutcome({"place": place}, msgspec.to_builtins(ctx.emitted))

    def _message(
        self, call: ToolCall, value: Any, took: float, attached: dict[str, bytes]
    ) -> ToolMessage:
        """Return a result as a message: what is too long for the model is kept whole beside it."""
        attachments: tuple[Attachment, ...] = ()
        if isinstance(value, Attachment):
            attachments = (value,)
            value = {"attachment": value.ref, "media_type": value.media_type, "name": value.name}
        stored = tuple(attached)
        text = result_text(value)
        if len(text) > RESULT_CHARACTERS:
            body = check_size(text.encode())
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
            seconds=round(took, 3) or ZERO,
            provider_id=call.provider_id,
            stored=tuple(ref for ref in stored if ref not in {one.ref for one in attachments}),
        )


def tool_failure(error: BaseException) -> LashError:
    """Return what a model is told of a tool's exception: an error of ours as it is, unless it is about a run."""
    return error if is_outcome(error) else ToolFailed(error, message_of(error))


def _noted(used: Usage) -> dict[str, Any]:
    """Return what models used for a call, as it is recorded beside what came of it."""
    return {} if used == NO_USAGE else {_USED: msgspec.to_builtins(used)}


def _used(record: Any) -> Usage:
    """Return what models used for a call, of what is recorded."""
    used = record.get(_USED) if isinstance(record, dict) else None
    return NO_USAGE if used is None else msgspec.convert(used, Usage)
