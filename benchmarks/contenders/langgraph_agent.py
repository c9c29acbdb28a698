"""LangGraph: the prebuilt agent of langchain, with the SQLite saver.

Rule 1. Nothing is tuned. By default a checkpoint is written while the next node runs
        (``durability="async"``); a turn is over when all of them are written.
Rule 2. Turns that came before are put into the thread with one update of its state.
Rule 3. The tool that needs an approval interrupts itself, as the manual shows.
"""

from __future__ import annotations

import itertools
import os
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

os.environ["LANGSMITH_TRACING"] = "false"  # it would send every run to a server

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, interrupt

from benchmarks.agents import (
    ANSWER,
    APPROVAL_PROMPT,
    FOUND,
    INSTRUCTIONS,
    PROMPT,
    AgentContender,
    Resume,
    Script,
)
from benchmarks.contender import SQLITE_SYNC, Contender, Facts

Thread = dict[str, Any]
"""The settings that name a thread."""


def contender(store: str, url: str) -> Contender:  # noqa: ARG001 - there is one store
    """Return LangGraph with its SQLite saver."""
    return LangGraphContender(url)


class ScriptedChat(BaseChatModel):
    """The script as a chat model of langchain that reads every message."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> ScriptedChat:
        return self

    def _generate(self, messages: list[AnyMessage], *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[AnyMessage], *_: Any, **__: Any) -> ChatResult:
        self.script.read(message.content for message in messages)
        last = messages[-1]
        said = self.script.reply(last.content if isinstance(last, HumanMessage) else None)
        if isinstance(said, str):
            message = AIMessage(said)
        else:
            calls = [{"name": one.tool, "args": one.arguments, "id": one.id} for one in said]
            message = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class LangGraphContender(AgentContender):
    """An agent with a saver, and one without."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._stack = AsyncExitStack()
        self._threads = (
            {"configurable": {"thread_id": f"thread-{number}"}} for number in itertools.count()
        )

    async def open(self) -> Facts:
        saver = AsyncSqliteSaver.from_conn_string(str(self.file))
        self._saver = await self._stack.enter_async_context(saver)
        await self._saver.setup()
        self._agent = _agent(self.script, self._saver)
        self._bare = _agent(self.script, None)
        sync = {}
        for name in SQLITE_SYNC:
            async with self._saver.conn.execute(f"pragma {name}") as cursor:
                sync[name] = (await cursor.fetchone() or ("unknown",))[0]
        packages = ("langgraph", "langgraph-checkpoint-sqlite", "langchain")
        return {"versions": {name: version(name) for name in packages}, "sync": sync}

    async def close(self) -> None:
        await super().close()
        await self._stack.aclose()

    async def begin(self, before: int) -> Thread:
        thread = next(self._threads)
        if before:
            await self._agent.aupdate_state(thread, {"messages": _history(before)}, "model")
        return thread

    async def turn(self, session: Thread, prompt: str) -> str:
        return await _answered(self._agent, {"messages": [HumanMessage(prompt)]}, session)

    async def bare_turn(self) -> str:
        return await _answered(self._bare, {"messages": [HumanMessage(PROMPT)]}, None)

    async def paused(self, session: Thread) -> Resume:
        asked = {"messages": [HumanMessage(APPROVAL_PROMPT)]}
        found = await self._agent.ainvoke(asked, session)
        assert found["__interrupt__"]
        return lambda: _answered(self._agent, Command(resume=True), session)


def _agent(script: Script, saver: AsyncSqliteSaver | None) -> Any:
    async def refund(order_id: str) -> str:
        """Refund an order."""
        assert interrupt("May this order be refunded?")
        return await script.refund(order_id)

    tools = [StructuredTool.from_function(coroutine=one) for one in (script.lookup, script.shelf)]
    tools.append(StructuredTool.from_function(coroutine=refund))
    model = ScriptedChat(script=script)
    return create_agent(model, tools, system_prompt=INSTRUCTIONS, checkpointer=saver)


async def _answered(agent: Any, given: Any, thread: Thread | None) -> str:
    found = await agent.ainvoke(given, thread)
    return str(found["messages"][-1].content)


def _history(turns: int) -> list[AnyMessage]:
    found: list[AnyMessage] = []
    for number in range(turns):
        call = {"name": "lookup", "args": {"order_id": "7"}, "id": f"before-{number}"}
        found += [
            HumanMessage(PROMPT, id=f"asked-{number}"),
            AIMessage("", tool_calls=[call], id=f"called-{number}"),
            ToolMessage(FOUND, tool_call_id=call["id"], name="lookup", id=f"found-{number}"),
            AIMessage(ANSWER, id=f"answered-{number}"),
        ]
    return found
