"""One tool call of a process: approved, attempted and deferred as in a turn, with its value as result.

Rule 1. An attempt is one effect; approval and deferral are waits of the process.
Rule 2. What a tool emits is recorded with its key, so that a replay or a fork emits nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
from pylash.runtime.branches import Branch, outside
from pylash.runtime.completions import Completions, captured_model
from pylash.runtime.executors import Executor, await_options
from pylash.runtime.process_steps import Tries, attempt_key, digest, marked_final
from pylash.runtime.runs import LiveRun
from pylash.runtime.tool_approval import Ready, approved, given_result
from pylash.runtime.tool_context import CallInfo, Deferred, ToolContext
from pylash.runtime.tools import Tool
from pylash.runtime.user_code import FailsAs
from pylash.turn import ToolCall
from pylash.values import Duration

if TYPE_CHECKING:
    from pylash.runtime.programs import Services

_ATTEMPT: Final = frozenset({EffectKind.TOOL_ATTEMPT})


class ProcessToolCall(msgspec.Struct, frozen=True):
    """A call of a tool at one place of a process."""

    run: LiveRun
    services: Services
    branch: Branch
    part: tuple[str, int]
    tool: Tool[..., Any]
    name: str | None = None
    """What people call it; by default the part of its key."""

    async def result(self, arguments: Mapping[str, Any]) -> Any:
        """Return the tool's result; raises CallRefused if a person does not agree."""
        tool = self.tool
        await tool.prepare()
        loaded = tool.load(arguments)
        call = ToolCall(self.branch.key(self.part), self.name or self.part[0], tool.dump(loaded))
        ready = Ready(tool, call, call.arguments, loaded)
        if tool.approval:
            ready = await approved(ready, self._effect, self._wait)
        tries = Tries(self.run, self.branch, call.tool, tool.retry, self._delay_key)
        attempt, outcome = await tries.first_success(partial(self._attempt, ready))
        await self._emit(outcome)
        if outcome.deferred:
            return await given_result(call, attempt, outcome.launch, self._wait)
        return outcome.launch

    def _delay_key(self, failures: int) -> str:
        return self.branch.key(self.part, f"delay.{failures}")

    async def _effect(self, key: str, name: str, command: Command, local: Executor) -> Outcome:
        whole = self.branch.key(self.part, key)
        return await self.run.effect(self.branch, whole, name, command, local)

    async def _wait(
        self, key: str, wait: WaitIdentity, shown: AwaitEvent, timeout: Duration | None
    ) -> Resolution:
        command = replace(shown, key=self.services.wait_key(self.run, wait))
        outcome = await self._effect(key, key, command, await_options(timeout=timeout))
        return expect(outcome, AwaitEventOutcome).resolution

    async def _attempt(self, ready: Ready, attempt: int) -> tuple[int, ToolAttemptOutcome]:
        tool, call = ready.tool, ready.call

        async def perform(_: Envelope) -> Outcome:
            with outside():
                return await self._performed(ready, attempt)

        key = attempt_key(self.branch, self.part, attempt)
        asked = {"tool": call.tool, "arguments": tool.dump(ready.arguments)}
        most = 1 if tool.retry is None else tool.retry.max
        command = ToolAttempt(asked, None, attempt, most)
        local = Executor("tool", _ATTEMPT, perform)
        outcome = await self.run.effect(self.branch, key, call.tool, command, local)
        return attempt, expect(outcome, ToolAttemptOutcome)

    async def _performed(self, ready: Ready, attempt: int) -> Outcome:
        tool, services = ready.tool, self.services
        # The run is a part of it: a process that goes on with a fresh journal has the same keys again.
        unique = digest(self.run.id, str(self.run.fence.run), ready.call.id).hex()[:32]
        info = CallInfo("", self.run.id, ready.call.id, attempt, unique)
        completions = Completions(
            services, partial(captured_model, services, self.run), self.run.id
        )
        ctx: ToolContext[Any] = ToolContext(
            info, services.deps, check=services.check_trigger, complete=completions.answer
        )
        with FailsAs(lambda error: marked_final(error, error, tool.retry)):
            value = await tool.call(ctx, ready.arguments)
        if isinstance(value, Deferred):
            return ToolAttemptOutcome(value.deadline, deferred=True)
        emitted = [
            {**msgspec.to_builtins(one), "key": f"{unique}:{number}"}
            for number, one in enumerate(ctx.emitted)
        ]
        return ToolAttemptOutcome(value, emitted)

    async def _emit(self, outcome: ToolAttemptOutcome) -> None:
        with self.run.guarded():
            for one in outcome.triggers:
                await self.services.emit_trigger(one, one["key"])
