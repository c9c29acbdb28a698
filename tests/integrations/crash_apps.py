"""Apps with pydantic-ai agents to be crashed, and their stories."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from pylash import Lash, ProcessContext
from pylash.integrations.pydantic_ai import durable, sessions
from tests.backends import eventually
from tests.integrations.agents import Note, asked, far_shop, researcher, returns, shopper

logging = False
"""Whether what runs is also written to a file: a process that is killed counts nothing any more."""


def log_of(store: str) -> Path:
    return Path(store.removeprefix("sqlite:///")).with_suffix(".log")


def note_for(store: str) -> Note:
    return Note(log_of(store) if logging else None)


def make_research_app(store: str) -> Lash:
    """Return an app whose agent calls three tools at once, retries one, and reports."""
    app = Lash(store)
    agent = durable(researcher(note_for(store)))

    @app.process
    async def research(ctx: ProcessContext[None], topic: str) -> dict[str, Any]:
        result = await agent.run(topic)
        usage = result.usage
        return {**result.output.model_dump(), "used": [usage.requests, usage.tool_calls]}

    return app


async def research_story(app: Lash) -> Any:
    research = app.services.definitions["research"]
    handle = await app.start(research.options(id="r"), topic="cats")
    return await handle.result(timeout="20s")


def make_shop_app(store: str) -> Lash:
    """Make an app whose agent asks an MCP server over standard input and output."""
    return _shopping(store, shopper(note_for(store), far_shop(log_of(store))))


def make_near_shop_app(store: str) -> Lash:
    """Make the same with a server in this process."""
    server, note = MCPServer("shop", log_level="CRITICAL"), note_for(store)

    @server.tool()
    def price(item: str) -> int:
        note(f"price {item}")
        return len(item)

    return _shopping(store, shopper(note, MCPToolset(server, id="shop")))


def _shopping(store: str, agent: Agent[None, str]) -> Lash:
    app = Lash(store)
    made = durable(agent)

    @app.process
    async def shop(ctx: ProcessContext[None]) -> str:
        return (await made.run("What do they cost?")).output

    return app


async def shop_story(app: Lash) -> Any:
    handle = await app.start(app.services.definitions["shop"].options(id="s"))
    return await handle.result(timeout="20s")


def make_chat_app(store: str) -> Lash:
    """Make an app with conversations in which refunds need somebody's yes."""
    app, note = Lash(store), note_for(store)

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts = asked(messages)
        note(f"model {len(messages)}")
        if prompts[-1].startswith("Refund") and not returns(messages[-1:]):
            number = prompts[-1].split()[-1]
            part = ToolCallPart("refund", {"order": int(number)}, tool_call_id="same")
            return ModelResponse(parts=[part])
        return ModelResponse(parts=[TextPart(f"{prompts} {returns(messages)}")])

    outputs = [str, DeferredToolRequests]
    agent: Agent[None, str | DeferredToolRequests] = Agent(
        FunctionModel(reply), name="clerk", output_type=outputs
    )

    @agent.tool_plain(requires_approval=True)
    async def refund(order: int) -> str:
        note(f"refund {order}")
        return f"refunded {order}"

    app.chats = sessions(app, agent)  # type: ignore[attr-defined]  # for the story
    return app


async def chat_story(app: Lash) -> Any:
    """Ask for a refund, and agree to it."""
    chat = app.chats("c")  # type: ignore[attr-defined]  # see above

    async def decided() -> bool:
        for wait in await app.waits():
            if wait.kind == "approval":
                await app.resolve(wait.key, True)
        return asking.done()

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(chat.turn("Refund order 7", turn_id="t", timeout="20s"))
        await eventually(decided)
    return [asking.result().output, len(await chat.history())]
