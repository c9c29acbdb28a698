"""pydantic-ai with DBOS: its durable agent, a workflow for each turn.

Rule 1. A workflow is given the messages so far and returns the new ones; DBOS stores both. The
        program hands the messages on in memory: it stores nothing of its own.
Rule 2. Model calls are DBOS steps by themselves, tools by decoration, as the manual says.
Rule 3. DBOS keeps its defaults: on SQLite, the rollback journal.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from dbos import DBOS
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage

from benchmarks.agents import APPROVAL_PROMPT, INSTRUCTIONS, PROMPT, AgentContender, Resume
from benchmarks.contender import Contender, Facts
from benchmarks.contenders.dbos_contender import launch, sync_settings
from benchmarks.contenders.pydantic_agent import Reader, history


def contender(store: str, url: str) -> Contender:
    """Return pydantic-ai with DBOS on a store."""
    return PydanticDbosContender(store, url)


class PydanticDbosContender(AgentContender):
    """The process's one DBOS, and its agents. A session is the list of its messages."""

    def __init__(self, store: str, url: str) -> None:
        super().__init__(url)
        self.store = store
        script = self.script

        @DBOS.step()
        async def lookup(order_id: str) -> str:
            return await script.lookup(order_id)

        @DBOS.step()
        async def shelf(number: int) -> str:
            return await script.shelf(number)

        @DBOS.step()
        async def refund(order_id: str) -> str:
            return await script.refund(order_id)

        agent: Agent[None, str] = Agent(
            Reader(script),
            name="bench",
            instructions=INSTRUCTIONS,
            tools=[lookup, shelf],
            capabilities=[DBOSDurability()],
        )
        asking: Agent[None, str | DeferredToolRequests] = Agent(
            Reader(script),
            name="asking",
            instructions=INSTRUCTIONS,
            tools=[Tool(refund, requires_approval=True)],
            output_type=[str, DeferredToolRequests],
            capabilities=[DBOSDurability()],
        )

        @DBOS.workflow()
        async def turn(prompt: str, before: list[ModelMessage]) -> tuple[str, list[ModelMessage]]:
            result = await agent.run(prompt, message_history=before)
            return result.output, result.new_messages()

        @DBOS.workflow()
        async def ask(prompt: str) -> tuple[Any, list[ModelMessage]]:
            result = await asking.run(prompt)
            return result.output, result.new_messages()

        @DBOS.workflow()
        async def go_on(before: list[ModelMessage], results: DeferredToolResults) -> str:
            result = await asking.run(message_history=before, deferred_tool_results=results)
            return str(result.output)

        self._agent, self._turn, self._ask, self._go_on = agent, turn, ask, go_on

    async def open(self) -> Facts:
        launch(self.url)
        return {
            "versions": {"pydantic-ai": version("pydantic-ai-slim"), "dbos": version("dbos")},
            "sync": sync_settings(self.store),
        }

    async def close(self) -> None:
        await super().close()
        DBOS.destroy()

    async def begin(self, before: int) -> list[ModelMessage]:
        return history(before)

    async def turn(self, session: list[ModelMessage], prompt: str) -> str:
        answer, new = await self._turn(prompt, session)
        session += new
        return answer

    async def bare_turn(self) -> str:
        return (await self._agent.run(PROMPT)).output

    async def paused(self, session: list[ModelMessage]) -> Resume:
        asked, new = await self._ask(APPROVAL_PROMPT)
        session += new

        async def resume() -> str:
            approved = DeferredToolResults(approvals={asked.approvals[0].tool_call_id: True})
            return await self._go_on(session, approved)

        return resume
