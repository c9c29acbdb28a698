"""Durable agents keep their types: code as users write it, checked and never run.

An ignored mistake that is none is an error of the check, so the mistakes are really reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.run import AgentRunResult

from pylash import Lash, ProcessContext
from pylash.integrations.pydantic_ai import AgentSession, AgentTurn, durable, sessions


@dataclass
class Deps:
    api: str


class Report(BaseModel):
    topic: str


base = Agent("test", deps_type=Deps, output_type=Report, name="research")


@base.tool
async def search(ctx: RunContext[Deps], what: str) -> str:
    return ctx.deps.api + what


app = Lash("memory://")
agent = durable(base)
chats = sessions(app, agent)


@app.process
async def research(ctx: ProcessContext[Deps], topic: str) -> Report:
    result = await agent.run(topic, deps=ctx.deps)
    assert_type(result, AgentRunResult[Report])
    assert_type(result.output, Report)
    other = await agent.run(topic, deps=ctx.deps, output_type=int)
    assert_type(other.output, int)
    async with agent.run_stream(topic, deps=ctx.deps) as stream:
        assert_type(await stream.get_output(), Report)
    async with agent.iter(topic, deps=ctx.deps) as run:
        assert_type(run.result, AgentRunResult[Report] | None)
    await agent.run(topic, deps=7)  # type: ignore[call-overload]
    wrong: str = result.output  # type: ignore[assignment]
    return result.output if wrong else Report(topic=topic)


async def main() -> None:
    async with app:
        assert_type(chats("c"), AgentSession[Report])
        assert_type(await chats("c").turn("cats"), AgentTurn[Report])
        assert_type((await chats("c").turn("cats")).output, Report)
        assert_type(await (await app.start(research, topic="cats")).result(), Report)
        durable(7)  # type: ignore[arg-type]
