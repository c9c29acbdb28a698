"""Agents of pydantic-ai to be made durable, with counters of what really ran."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

ran: Counter[str] = Counter()
"""How often each model request and tool really ran in this process."""


class Note:
    """Counts what runs, here and in a file that outlives the process."""

    def __init__(self, log: Path | None = None) -> None:
        self.log = log

    def __call__(self, what: str) -> None:
        ran[what] += 1
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{what}\n")


class Report(BaseModel):
    topic: str
    facts: list[str]


def returns(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return what the tools gave, in order."""
    return [
        part.content
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def asked(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the prompts, in order."""
    return [
        str(part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


def researcher(note: Note) -> Agent[None, Report]:
    """Ask for two facts at once, one of them twice because the first try was bad; then report them."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        found = [one for one in returns(messages) if str(one).startswith("fact")]
        replies = sum(isinstance(message, ModelResponse) for message in messages)
        note(f"model {replies}")
        calls: list[tuple[str, dict[str, Any]]]
        if replies == 0:
            calls = [("fact", {"n": 1}), ("fact", {"n": 2}), ("moody", {"n": 3})]
        elif replies == 1:
            calls = [("moody", {"n": 4})]
        else:
            report = {"topic": asked(messages)[0], "facts": found}
            calls = [(info.output_tools[0].name, report)]
        parts = [
            ToolCallPart(name, given, tool_call_id=f"c{replies}.{number}")
            for number, (name, given) in enumerate(calls)
        ]
        return ModelResponse(parts=parts)

    agent: Agent[None, Report] = Agent(FunctionModel(reply), name="researcher", output_type=Report)

    @agent.tool_plain
    async def fact(n: int) -> str:
        note(f"fact {n}")
        return f"fact {n}"

    @agent.tool
    def moody(ctx: RunContext[None], n: int) -> str:
        note(f"moody {n}")
        if n == 3:
            raise ModelRetry("Ask for 4.")
        return f"fact {n}"

    return agent


def far_shop(log: Path) -> MCPToolset[None]:
    """Return the tools of a server in a process of its own."""
    script = Path(__file__).parent / "shop_server.py"
    return MCPToolset(
        StdioTransport(sys.executable, [str(script), str(log)]), id="shop", init_timeout=30
    )


def shopper(note: Note, shop: MCPToolset[None]) -> Agent[None, str]:
    """Ask an MCP server for two prices at once, and say them."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        found = returns(messages)
        note(f"model {len(found)}")
        if found:
            return ModelResponse(parts=[TextPart(f"Prices: {found}")])
        assert [tool.name for tool in info.function_tools] == ["price"]
        return ModelResponse(
            parts=[
                ToolCallPart("price", {"item": item}, tool_call_id=item) for item in ("tea", "milk")
            ]
        )

    return Agent(FunctionModel(reply), name="shopper", toolsets=[shop])
