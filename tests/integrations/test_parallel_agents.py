"""Agents that run beside the code of their process, unchanged: a replay is never refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from pylash import Lash, ProcessContext
from pylash.engine.runs import replays
from pylash.integrations.pydantic_ai import durable
from pylash.testing import crash_everywhere
from tests.integrations.agents import returns


def agent_of(name: str) -> Any:
    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        replies = sum(isinstance(message, ModelResponse) for message in messages)
        if replies < 2:
            return ModelResponse(
                parts=[
                    ToolCallPart("look", {"n": n}, tool_call_id=f"c{replies}.{n}") for n in range(2)
                ]
            )
        return ModelResponse(parts=[TextPart(f"{name} {returns(messages)}")])

    agent = Agent(FunctionModel(reply), name=name)

    @agent.tool_plain
    async def look(n: int) -> int:
        await asyncio.sleep(0)
        return n

    return durable(agent)


def make_app(store: str) -> Lash:
    app = Lash(store)
    left, right = agent_of("left"), agent_of("right")

    def count(n: int) -> int:
        return n + 1

    @app.process
    async def beside(ctx: ProcessContext[None]) -> Any:
        task = asyncio.create_task(left.run("Go"))  # noqa: TID251 - as users do
        counted = [await ctx.step(count, n) for n in range(3)]
        return [counted, (await task).output]

    @app.process
    async def together(ctx: ProcessContext[None]) -> Any:
        both = await asyncio.gather(  # noqa: TID251 - as users do
            left.run("Go"), right.run("Go"), left.run("Go")
        )
        return [one.output for one in both]

    @app.process
    async def branches(ctx: ProcessContext[None]) -> Any:
        async def ask(agent: Any) -> Any:
            return (await agent.run("Go")).output

        return await ctx.gather(ask(left), ask(right), ask(left))

    return app


@pytest.mark.parametrize("name", ["beside", "together", "branches"])
def test_it_ends_the_same_wherever_it_dies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(app: Lash) -> Any:
        handle = await app.start(app.services.definitions[name].options(id="p"))
        return await handle.result(timeout="8s")

    monkeypatch.setattr(replays, "HELD_SECONDS", 20.0)
    crash_everywhere(make_app, story)
