"""The durable agents among the changed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, DeferredToolRequests, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from pylash.integrations.pydantic_ai import answered, durable
from tests.replay.changed_apps import VERSIONS, Cell, Change, Context, Shop, Work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def agent_run(
    shop: Shop, cell: Cell, change: Change, version: str
) -> Callable[[Context], Awaitable[Any]]:
    """Return a process with an agent that calls ``load`` and ``charge``, and then ``ship``.

    The agent comes to rest before its second request, or with the approval of ``ship``.
    """
    is_changed = version != "old"

    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        replies = sum(isinstance(message, ModelResponse) for message in messages)
        if replies == 1 and shop.is_killed:
            await shop.hold(cell.id)
        shop.ledger.note(cell.id, f"model {replies}")
        names = [["load", "charge"], ["ship"]]
        if replies < len(names):
            parts = [
                ToolCallPart(name, {"cents": 7} if name == "charge" else {}, tool_call_id=name)
                for name in names[replies]
            ]
            return ModelResponse(parts=parts)
        results = [
            str(part.content)
            for message in messages
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        return ModelResponse(parts=[TextPart(" ".join(results))])

    # ``renamed=`` lets the tools of an agent have their new names. Other tools keep the old one.
    keeps_change = version == "mended" and "renamed" in change.options
    tools = change.edited(shop.tools(cell), "new" if keeps_change else version)
    is_renamed = change.renames_whole and is_changed
    agent = durable(
        Agent(
            FunctionModel(reply, model_name="two" if is_changed else "one"),
            name="waiter" if is_renamed else "clerk",
            instructions=change.prompt if is_changed else "Help.",
            tools=[
                Tool(function, name=name, requires_approval=name == "ship" and not shop.is_killed)
                for name, function in tools.items()
            ],
            output_type=[str, DeferredToolRequests],
        )
    )
    body = change.agent[VERSIONS.index(version)]

    async def run(ctx: Context) -> Any:
        return await body(AgentWork(shop, cell, ctx, agent))

    return run


class AgentWork(Work):
    """The body of a process whose part up to the rest is a run of an agent."""

    def __init__(self, shop: Shop, cell: Cell, ctx: Context, agent: Any) -> None:
        super().__init__(shop, cell, ctx)
        self._agent = agent

    async def serve(self, question: str = "Go") -> Any:
        """Run the agent to its end."""
        result = await self._agent.run(question)
        while isinstance(result.output, DeferredToolRequests):
            answers = await answered(self.ctx, result.output)
            history = result.all_messages()
            result = await self._agent.run(message_history=history, deferred_tool_results=answers)
        return result.output
