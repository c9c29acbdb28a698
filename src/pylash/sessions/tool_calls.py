"""The tool calls of a turn: each is checked, approved and attempted, and its result is a message.

Rule 1. A failure of a call is its result: the model gets it, and the turn continues.
Rule 2. An attempt is recorded together with its message.
Rule 3. A batch starts only if this worker has all of its tools.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from msgspec.structs import replace

from pylash.durable.effects import (
    AwaitEvent,
    Outcome,
    ToolAttemptOutcome,
    ToolBatchOutcome,
)
from pylash.durable.ports import MessageCarrier, RecordEffect
from pylash.durable.seeds import digest
from pylash.durable.waits import WaitIdentity
from pylash.engine.records import is_outcome, message_of
from pylash.engine.runs.branch_groups import BranchGroup
from pylash.engine.runs.branches import own_branch
from pylash.engine.user_code import FailsAs, without_own_frames
from pylash.models.messages import llm_key
from pylash.processes.operations.completions import Completions
from pylash.sessions.feeds import completion_event
from pylash.tools.arguments import projected_refs, read_arguments, read_references
from pylash.tools.call import AwaitDeferred, Ready, approve, call_tool
from pylash.tools.context import CallInfo, Deferred, ToolContext
from pylash.tools.results import result_message
from pylash.tools.tool import Tool
from pylash.turn.asks import ToolPolicy
from pylash.turn.budgets import remaining, spent
from pylash.turn.events import TurnEvent
from pylash.turn.messages import NO_USAGE, Input, ToolCall, ToolMessage, Usage, attachment_refs
from pylash.values.errors import DurabilityError, LashError, StoreError
from pylash.values.names import storable
from pylash.values.turn_errors import (
    AttachmentResolutionFailed,
    CallRefused,
    ToolFailed,
)

if TYPE_CHECKING:
    from pylash.sessions.driver import TurnDriver

EmitTriggers = Callable[[str, Sequence[Any]], Awaitable[None]]
"""Emits the triggers of the attempt under a key."""

_USED: Final = "model_usage"
"""The field of an attempt's record with the model usage up to it, if the attempt has no message."""

_log = logging.getLogger("pylash")


class TurnTool(Tool[..., Any], ABC):
    """A tool whose calls are effects of the turn itself, instead of one attempt."""

    @abstractmethod
    async def call_within(
        self, turn: TurnDriver, call: ToolCall, arguments: Mapping[str, Any]
    ) -> ToolMessage:
        """Return the result of a call."""


class ToolCalls:
    """Runs the tool calls of one turn."""

    def __init__(self, turn: TurnDriver) -> None:
        self.tools: Mapping[str, Tool[..., Any]] = {}
        """The tools that the model may call and this worker has, by name."""
        self.partial_results: tuple[ToolMessage, ...] = ()
        """The known results of a batch that the machine has not received."""
        self._turn = turn
        # Calls that certainly have not run, because their approval is open or was refused. Each call changes only
        # its own id; an interrupted batch reads it after all its branches have ended.
        self._unapproved: set[str] = set()
        # The triggers of the calls of a batch, by call id; each call changes only its own.
        self._triggers: dict[str, list[Any]] = {}

    # --- batches ---

    async def run_batch(
        self, iteration: int, calls: tuple[ToolCall, ...]
    ) -> tuple[tuple[ToolMessage, ...], Outcome]:
        """Run the calls of one reply in parallel, each in a branch; those of serial tools share one, in order.

        Returns the results in the order of the calls, and the outcome. No call starts if this worker lacks one of
        the tools: a worker with all of them can run the batch. A cancelled turn calls no tools, so it needs none.
        """
        run, first = self._turn.run, len(self._turn.machine.messages)
        # Each branch adds the results of its own calls; all branches have ended when ``group.all`` returns or raises.
        done: dict[str, ToolMessage] = {}

        async def run_calls(numbers: Sequence[int]) -> None:
            for number in numbers:
                done[calls[number].id] = await self._run(calls[number], first + number)

        # The split depends on captured policies only, and the serial branch is the last: a replay numbers its
        # branches the same way.
        serial, branches = [], []
        for number, call in enumerate(calls):
            tool = self.tools.get(call.tool)
            if tool is not None and self._policy(tool).serial:
                serial.append(number)
            else:
                branches.append([number])
            is_missing = tool is None and self._is_offered(call) and not run.cancelled
            if is_missing and not await self._recorded_result(call, first + number):
                raise self._turn.missing_here(f"calls tool {call.tool!r}")
        group = BranchGroup(run, run.root, (f"i{iteration}", 1))
        for numbers in (*branches, serial):
            if numbers:
                group.start(run_calls(numbers))
        try:
            await group.all()
        except BaseException:
            # Of serial calls without a result only the first can have started.
            queued = [calls[n].id for n in serial if calls[n].id not in done][1:]
            idle = {*self._unapproved, *queued}
            self.partial_results = tuple(
                done.get(call.id) or _unfinished_result(call, may_have_run=call.id not in idle)
                for call in calls
            )
            raise
        # Kept here as well: a cancel may come before the machine receives the results.
        self.partial_results = tuple([done[call.id] for call in calls])
        ids = [call.id for call in calls]
        triggers = [one for call_id in ids for one in self._triggers.pop(call_id, ())]
        return self.partial_results, ToolBatchOutcome(ids, triggers)

    def _is_offered(self, call: ToolCall) -> bool:
        """Return whether the model was offered the tool of a call; if not, the result is an error."""
        return any(manifest.name == call.tool for manifest in self._turn.environment.tools)

    def _policy(self, tool: Tool[..., Any]) -> ToolPolicy:
        """Return the policy of a tool as it was captured for this turn."""
        policies = self._turn.environment.policies
        return tool.policy if policies is None else policies.get(tool.name, ToolPolicy())

    # --- one call ---

    async def _run(self, call: ToolCall, index: int) -> ToolMessage:
        """Return the result of a call; ``index`` is the place of its message in the turn."""
        feed = self._turn.feed
        feed.add(TurnEvent("tool_started", call.id, tool=call.tool, data=call.arguments))
        try:
            known = await self._recorded_result(call, index)
            message = known or await self._result(call, index)
        except (
            DurabilityError,
            StoreError,
        ) as error:  # of the runtime: in user code they become ToolFailed
            self._turn.run.give_up(error)
        except LashError as error:
            message = ToolMessage(
                call.id,
                call.tool,
                storable(error.message),
                error=True,
                usage=_recorded_usage(error.data),
                provider_id=call.provider_id,
            )
        feed.add(completion_event(message))
        return message

    async def _recorded_result(self, call: ToolCall, index: int) -> ToolMessage | None:
        """Return the recorded result of a call, if any: it counts even if its tool is gone."""
        turn, memory = self._turn, self._turn.run.memory
        message = turn.writer.read(turn.writer.base + index) if memory.looks_ahead else None
        if not isinstance(message, ToolMessage) or message.call_id != call.id:
            return None
        if memory.recorded(llm_key(turn.machine.iteration + 1, 1)):
            return message  # its triggers were emitted before the next model call
        attempt = 1
        while memory.recorded(key := f"{call.id}.attempt.{attempt}"):
            record = memory.decision(key)
            if record is None:
                return None  # too long to be in memory: replay it
            triggers = (record.get("outcome") or {}).get("triggers") or ()
            await self._emit_triggers(call.id, key, triggers)
            attempt += 1
        return message

    async def _emit_triggers(self, call_id: str, key: str, triggers: Sequence[Any]) -> None:
        """Emit the triggers of an attempt; emitting them again changes nothing."""
        turn = self._turn
        for number, one in enumerate(triggers):
            name = f"{turn.run.id}:{key}:{number}"
            await turn.run.outside.call(partial(turn.services.triggers.emit_recorded, one, name))
        self._triggers.setdefault(call_id, []).extend(triggers)

    async def _result(self, call: ToolCall, index: int) -> ToolMessage:
        turn = self._turn
        tool = self.tools.get(call.tool)
        if tool is None:
            if self._is_offered(call):
                self._cancel_call(call)
            known = ", ".join(sorted(self.tools)) or "none"
            raise CallRefused(f"There is no tool {call.tool!r} (there are: {known}).")
        given = filled = read_arguments(tool.name, call.arguments)
        if refs := projected_refs(given):
            filled = await self._fill_references(tool, given, {found.ref for found in refs})
        with FailsAs(_tool_failure):
            await turn.run.outside.call(tool.prepare)
            ready = Ready(tool, call, given, tool.load(filled), self._policy(tool))
        emit = partial(self._emit_triggers, call.id)
        site = TurnCallSite(turn, call, index, tool.name, emit)
        self._unapproved.add(call.id)
        # Raises if the call is refused or cancelled: the id then stays in the set.
        ready = await approve(site, ready)
        self._unapproved.discard(call.id)
        if isinstance(tool, TurnTool):
            return await tool.call_within(turn, call, await site.arguments(ready))
        return await call_tool(site, ready)

    def _cancel_call(self, call: ToolCall) -> NoReturn:
        """Cancel a call whose tool this worker lacks; reached only in a cancelled turn."""
        run, approval = self._turn.run, f"{call.id}.approval"
        if run.memory.begun(approval) and not run.memory.recorded(approval):
            self._unapproved.add(call.id)
        own_branch(run, "tool").was_cancelled = True
        raise asyncio.CancelledError

    async def _fill_references(self, tool: Tool[..., Any], arguments: Any, wanted: set[str]) -> Any:
        """Replace references in arguments by the attachments they refer to, except in the field the tool keeps.

        A model may refer only to attachments of its own session. This also applies to references that are kept,
        because the tool will follow them.
        """
        for ref in sorted(wanted - await self._own_attachments(wanted)):
            raise AttachmentResolutionFailed(ref)
        stored, run = self._turn.services.store.attachments, self._turn.run

        async def read(ref: str) -> bytes | None:
            return await run.read(partial(stored.get, ref))

        return await read_references(arguments, tool.projection, read)

    async def _own_attachments(self, wanted: set[str]) -> set[str]:
        """Return the references to attachments in messages of the session; older messages are read only if needed."""
        turn = self._turn
        found = {ref for message in turn.machine.messages for ref in attachment_refs(message)}
        if not found.issuperset(wanted):
            history = await turn.run.read(partial(turn.services.histories.messages, turn.session))
            found |= {ref for message in history for ref in attachment_refs(message)}
        return found


class TurnCallSite:
    """A call of a turn. ``index`` is the place of its message in the turn; ``emit`` emits the triggers of an attempt."""

    def __init__(
        self, turn: TurnDriver, call: ToolCall, index: int, name: str, emit: EmitTriggers
    ) -> None:
        self.run = turn.run
        self.name = name
        self.branch = own_branch(turn.run, "tool")
        self.record: RecordEffect | None = turn.writer.record
        self.messages: MessageCarrier | None = turn.writer
        self._turn = turn
        self._call = call
        self._index = index
        self._emit = emit
        self._used_before = NO_USAGE  # by models, for the attempts that failed
        # Of the attempt that runs: ``context`` sets both, and a replayed attempt has none. The attempts of a call
        # run one after another, so there is one at a time.
        self._completions: Completions | None = None
        self._started = 0.0

    def key(self, part: str) -> str:
        """Return the key of an effect of this call."""
        return f"{self._call.id}.{part}"

    def wait_key(self, wait: WaitIdentity) -> str:
        """Return the signed key of a wait of the turn."""
        turn = self._turn
        return turn.services.wait_key(self.run, wait, turn.session.generation)

    def request(self, ready: Ready) -> Mapping[str, Any]:
        """Return the arguments as they were given: how new code loads them may differ."""
        return {"tool": self.name, "arguments": ready.given, "call_id": self._call.id}

    def context(self, number: int) -> ToolContext[Any]:
        """Return the context of an attempt; its progress is an event of the turn."""
        turn, call = self._turn, self._call
        loop = asyncio.get_running_loop()

        def on_progress(text: str, fraction: float | None) -> None:
            event = TurnEvent("tool_progress", call.id, text, self.name, fraction=fraction)
            loop.call_soon_threadsafe(turn.feed.add, event)  # a plain function runs in a thread

        unique = digest(turn.run.id, call.id).hex()[:32]
        info = CallInfo(turn.session.id, turn.turn_id, call.id, number, unique)
        self._completions = None
        self._started = turn.services.clock.monotonic()
        services = turn.services
        return ToolContext(
            info, services.deps, on_progress, services.triggers.payload, self._complete
        )

    async def _complete(self, given: Input, output: Any, model: str | None) -> Any:
        """Call a model for the tool, under the rest of the turn's budget."""
        turn = self._turn
        if self._completions is None:
            budget = remaining(turn.machine.budget, spent(turn.machine.messages))
            self._completions = Completions(turn.services, turn.turn_id, budget)
        return await self._completions.answer(given, output, model or turn.environment.model)

    def _model_usage(self) -> Usage:
        """Return the model usage of this attempt and the failed ones before it."""
        used = NO_USAGE if self._completions is None else self._completions.used
        return self._used_before + used

    def failure(self, error: BaseException, *, is_last: bool) -> BaseException:
        """Return the recorded failure of an attempt, with the model usage so far."""
        if is_last:  # otherwise a line is logged with the delay before the next attempt
            # The message of a LashError is enough; the traceback of any other exception shows its origin.
            trace = None if isinstance(error, LashError) else without_own_frames(error)
            _log.warning("tool %s failed: %s", self.name, message_of(error), exc_info=trace)
        failed = _tool_failure(error)
        if used := _usage_record(self._model_usage()):
            data = failed.data if isinstance(failed.data, dict) else {}
            failed.data = {**data, **used}
        return failed

    async def arguments(self, ready: Ready) -> dict[str, Any]:
        """Return the arguments: references were replaced before the call was checked."""
        assert ready.arguments is not None
        return ready.arguments

    async def outcome(self, ctx: ToolContext[Any], value: Any) -> ToolAttemptOutcome:
        """Return the place of the result's message, or when a deferred result is due."""
        if isinstance(value, Deferred):
            used, sync = _usage_record(self._model_usage()), {"sync": True} if ctx.syncs else {}
            return ToolAttemptOutcome({"deadline": value.deadline, **used, **sync})
        took = self._turn.services.clock.monotonic() - self._started
        message = result_message(self._call, value, took, ctx.attached)
        message = replace(message, usage=self._model_usage(), sync=ctx.syncs)
        key = self.key(f"attempt.{ctx.attempt}")
        place = self._turn.writer.prepare(key, self._index, message, ctx.attached)
        return ToolAttemptOutcome({"place": place}, msgspec.to_builtins(ctx.emitted))

    async def result(
        self, number: int, outcome: ToolAttemptOutcome, await_deferred: AwaitDeferred
    ) -> ToolMessage:
        """Return the message that was recorded with the attempt, or that of a deferred result.

        The latter is written with the turn's next effect.
        """
        key, writer = self.key(f"attempt.{number}"), self._turn.writer
        writer.complete(key)
        await self._emit(key, outcome.triggers)
        launch = outcome.launch
        if "place" in launch:
            message = writer.read(launch["place"])
            assert isinstance(message, ToolMessage)
            return message
        value = await await_deferred(launch["deadline"])
        attached: dict[str, bytes] = {}
        message = result_message(self._call, value, 0.0, attached)
        writer.attachments.update(attached)
        return replace(message, usage=_recorded_usage(launch), sync=launch.get("sync", False))

    def on_wait(self, part: str, command: AwaitEvent) -> None:
        """Add the event of an open wait."""
        data = {"kind": command.wait_kind, "title": command.title, "key": command.key}
        event = TurnEvent("wait_opened", self.key(part), tool=command.tool, data=data)
        self._turn.feed.add(event)

    def on_retry(self, number: int, error: LashError) -> None:
        """Count the model usage of a failed attempt; add the event of the next one, unless it is replayed."""
        self._used_before = _recorded_usage(error.data)
        if self._turn.is_new(self.key(f"delay.{number}")):
            event = TurnEvent("tool_progress", self._call.id, error.message, self._call.tool)
            self._turn.feed.add(replace(event, attempt=number + 1))


def _unfinished_result(call: ToolCall, *, may_have_run: bool) -> ToolMessage:
    """Return the result of a call that a cancelled turn did not wait for."""
    text = "Not run: the turn was cancelled."
    if may_have_run:
        text = "No result: the turn was cancelled. It may have run."
    return ToolMessage(call.id, call.tool, text, error=True, provider_id=call.provider_id)


def _tool_failure(error: BaseException) -> LashError:
    """Return the failure for a tool's exception; errors that are outcomes of effects stay as they are."""
    return error if is_outcome(error) else ToolFailed(error, message_of(error))


def _usage_record(used: Usage) -> dict[str, Any]:
    """Return model usage as it is recorded beside the outcome of an attempt."""
    return {} if used == NO_USAGE else {_USED: msgspec.to_builtins(used)}


def _recorded_usage(record: Any) -> Usage:
    """Return the model usage in the record of an attempt."""
    used = record.get(_USED) if isinstance(record, dict) else None
    return NO_USAGE if used is None else msgspec.convert(used, Usage)
