"""A tool call of a process: its result is the tool's value, recorded with its attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pylash.durable.effects import AwaitEvent, ToolAttemptOutcome
from pylash.durable.ports import MessageCarrier, RecordEffect
from pylash.durable.processes import SessionRef
from pylash.durable.seeds import digest
from pylash.durable.waits import WaitIdentity
from pylash.engine.records import FinalFailure
from pylash.engine.runs.branches import Branch
from pylash.engine.runs.run import LiveRun
from pylash.models.messages import store_bodies
from pylash.processes.operations.completions import Completions, captured_model
from pylash.tools.arguments import projected_refs, read_references
from pylash.tools.call import AwaitDeferred, Ready, approve, call_tool
from pylash.tools.context import CallInfo, Deferred, ToolContext
from pylash.tools.signatures import ANY
from pylash.tools.tool import Tool
from pylash.turn.messages import Attachment, Input, ToolCall
from pylash.values.errors import LashError
from pylash.values.turn_errors import AttachmentResolutionFailed, ToolArgumentsInvalid

if TYPE_CHECKING:
    from pylash.processes.services import Services


class ProcessCallSite:
    """A call of a tool by a process. The key of the call is the prefix of the keys of its effects."""

    record: RecordEffect | None = None
    messages: MessageCarrier | None = None

    def __init__(
        self,
        run: LiveRun,
        services: Services,
        place: tuple[Branch, tuple[str, int]],
        name: str,
        attachments: set[str],
    ) -> None:
        self.run = run
        self.branch, self._part = place
        self.name = name
        self._services = services
        self._id = self.branch.key(self._part)
        # Shared by all calls of the process: each adds what its own attempts stored.
        self._attachments = attachments

    async def call(self, tool: Tool[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Return the result of a tool; raises CallRefused if a person rejects the call."""
        await tool.prepare()
        # References are read by each attempt, and stay references in the record: a replay reads nothing.
        loaded = None if projected_refs(arguments) else tool.load(arguments)
        given = ANY.dump(arguments) if loaded is None else tool.dump(loaded)
        call = ToolCall(self._id, self.name, given)
        ready = Ready(tool, call, given, loaded, tool.policy)
        return await call_tool(self, await approve(self, ready))

    async def arguments(self, ready: Ready) -> dict[str, Any]:
        """Return the arguments with references replaced by the attachments they refer to."""
        if ready.arguments is not None:
            return ready.arguments
        try:
            with self.run.guarded():
                await self._check_access({found.ref for found in projected_refs(ready.given)})
                read = self._services.store.attachments.get
                filled = await read_references(ready.given, ready.tool.projection, read)
            return ready.tool.load(filled)
        except (AttachmentResolutionFailed, ToolArgumentsInvalid) as error:
            raise FinalFailure(error) from error

    async def _check_access(self, wanted: set[str]) -> None:
        """Refuse references that a process of a session may not follow, also those that the tool keeps.

        It may follow those to attachments in messages of the session, and to bytes that its own tools stored. A process of
        no session is the app's own, and may follow all.
        """
        originator = self.run.process.registration.originator
        if not isinstance(originator, SessionRef) or wanted <= self._attachments:
            return
        known = self._attachments | await self._services.histories.attachments(
            originator.session_id
        )
        for ref in sorted(wanted - known):
            raise AttachmentResolutionFailed(ref)

    def key(self, part: str) -> str:
        """Return the key of an effect of this call; the first attempt has the key of the call itself."""
        return self._id if part == "attempt.1" else self.branch.key(self._part, part)

    def wait_key(self, wait: WaitIdentity) -> str:
        """Return the signed key of a wait of the process."""
        return self._services.wait_key(self.run, wait, self.run.process.state.epoch)

    def request(self, ready: Ready) -> Mapping[str, Any]:
        """Return the arguments as the tool takes them; references as they were given."""
        read = ready.given if ready.arguments is None else ready.tool.dump(ready.arguments)
        return {"tool": self.name, "arguments": read}

    def context(self, number: int) -> ToolContext[Any]:
        """Return the context of an attempt."""
        services, run = self._services, self.run
        # The run's number is included: a process that continues with a fresh journal repeats its keys.
        unique = digest(run.id, str(run.fence.run), self._id).hex()[:32]
        completions = Completions(services, run.id)

        async def complete(given: Input, output: Any, model: str | None) -> Any:
            name = model or await captured_model(services, run)
            return await completions.answer(given, output, name)

        return ToolContext(
            CallInfo("", run.id, self._id, number, unique),
            services.deps,
            check=services.triggers.payload,
            complete=complete,
        )

    def failure(self, error: BaseException, *, is_last: bool) -> BaseException:  # noqa: ARG002
        """Return an exception as it is: it fails the step of the process."""
        return error

    async def outcome(self, ctx: ToolContext[Any], value: Any) -> ToolAttemptOutcome:
        """Return the value, and the triggers with their keys, so that a fork does not emit them again."""
        if isinstance(value, Deferred):
            return ToolAttemptOutcome(value.deadline, deferred=True)
        with self.run.guarded():
            await store_bodies(ctx.attached, self._services.store.attachments)
        if isinstance(value, Attachment):
            value = msgspec.to_builtins(value)
        emitted = [
            {**msgspec.to_builtins(one), "key": f"{ctx.idempotency_key}:{count}"}
            for count, one in enumerate(ctx.emitted)
        ]
        return ToolAttemptOutcome(value, emitted, stored=[*ctx.attached])

    async def result(
        self, _: int, outcome: ToolAttemptOutcome, await_deferred: AwaitDeferred
    ) -> Any:
        """Return the value of the tool, or its deferred result."""
        self._attachments.update(outcome.stored)
        with self.run.guarded():
            for one in outcome.triggers:
                await self._services.triggers.emit_recorded(one, one["key"])
        return await await_deferred(outcome.launch) if outcome.deferred else outcome.launch

    def on_wait(self, part: str, command: AwaitEvent) -> None:
        """Do nothing: open waits of processes are read from the store."""

    def on_retry(self, number: int, error: LashError) -> None:
        """Do nothing: processes have no listeners."""
