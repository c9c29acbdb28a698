"""OpenAI Agents: its runner, with the SQLite session.

Rule 1. Nothing is tuned, but traces are off: they would be sent to a server.
Rule 2. Turns that came before are added to the session with its own call for that.
Rule 3. A run that waits for an approval is kept as text, as another process would need it.
"""

from __future__ import annotations

import itertools
import json
from importlib.metadata import version
from typing import Any

from agents import Agent, Runner, RunState, SQLiteSession, function_tool, set_tracing_disabled
from agents.items import ModelResponse, TResponseInputItem
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
)

from benchmarks.agents import (
    ANSWER,
    APPROVAL_PROMPT,
    FOUND,
    INSTRUCTIONS,
    PROMPT,
    AgentContender,
    Call,
    Resume,
    Script,
)
from benchmarks.contender import SQLITE_SYNC, Contender, Facts


def contender(store: str, url: str) -> Contender:  # noqa: ARG001 - there is one store
    """Return OpenAI Agents with their SQLite session."""
    return OpenAIContender(url)


class ScriptedModel(Model):
    """The script as a model of OpenAI Agents that reads every item."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def get_response(self, *_: Any, **given: Any) -> ModelResponse:
        asked = given["input"]
        items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        self._script.read(item.get("content") for item in items)
        last = items[-1]
        said = self._script.reply(last["content"] if last.get("role") == "user" else None)
        output = [_message(said)] if isinstance(said, str) else [_call(one) for one in said]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class OpenAIContender(AgentContender):
    """An agent, and sessions in a file."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        set_tracing_disabled(disabled=True)
        script = self.script

        @function_tool
        async def lookup(order_id: str) -> str:
            """Find an order."""
            return await script.lookup(order_id)

        @function_tool
        async def shelf(number: int) -> str:
            """Look at a shelf."""
            return await script.shelf(number)

        @function_tool(needs_approval=True)
        async def refund(order_id: str) -> str:
            """Refund an order."""
            return await script.refund(order_id)

        self._agent: Agent[None] = Agent(
            name="bench",
            instructions=INSTRUCTIONS,
            model=ScriptedModel(script),
            tools=[lookup, shelf, refund],
        )
        self._ids = (f"session-{number}" for number in itertools.count())

    async def open(self) -> Facts:
        session = await self.begin(0)
        with session._locked_connection() as connection:
            read = connection.execute
            sync = {name: read(f"pragma {name}").fetchone()[0] for name in SQLITE_SYNC}
        await self.end(session)
        return {"versions": {"openai-agents": version("openai-agents")}, "sync": sync}

    async def begin(self, before: int) -> SQLiteSession:
        session = SQLiteSession(next(self._ids), self.file)
        if before:
            await session.add_items(_history(before))
        return session

    async def end(self, session: SQLiteSession) -> None:
        session.close()

    async def turn(self, session: SQLiteSession, prompt: str) -> str:
        return str((await Runner.run(self._agent, prompt, session=session)).final_output)

    async def bare_turn(self) -> str:
        return str((await Runner.run(self._agent, PROMPT)).final_output)

    async def paused(self, session: SQLiteSession) -> Resume:
        result = await Runner.run(self._agent, APPROVAL_PROMPT, session=session)
        assert result.interruptions
        kept = result.to_state().to_string()

        async def resume() -> str:
            state = await RunState.from_string(self._agent, kept)
            for asked in state.get_interruptions():
                state.approve(asked)
            return str((await Runner.run(self._agent, state, session=session)).final_output)

        return resume


def _message(text: str) -> ResponseOutputItem:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="message", role="assistant", status="completed", type="message", content=[content]
    )


def _call(asked: Call) -> ResponseOutputItem:
    return ResponseFunctionToolCall(
        id=f"item-{asked.id}",
        call_id=asked.id,
        name=asked.tool,
        arguments=json.dumps(asked.arguments),
        type="function_call",
    )


def _history(turns: int) -> list[TResponseInputItem]:
    found: list[Any] = []
    for number in range(turns):
        call = _call(Call(f"before-{number}", "lookup", {"order_id": "7"}))
        done = {"type": "function_call_output", "call_id": f"before-{number}", "output": FOUND}
        found += [
            {"role": "user", "content": PROMPT},
            call.model_dump(exclude_unset=True),
            done,
            _message(ANSWER).model_dump(exclude_unset=True),
        ]
    return found
