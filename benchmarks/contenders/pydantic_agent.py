"""pydantic-ai: its agent, with the messages kept by the program.

Rule 1. The framework stores nothing, so the program does what an app would: it reads the messages
        of the conversation from a row before the turn, and writes them all back after it. What
        happens inside a turn is not stored.
Rule 2. The row is in an SQLite file with WAL and ``synchronous = full``.
Rule 3. The model is a ``Reader``. A ``FunctionModel`` would search the whole conversation for changed
        instructions by itself.
"""

from __future__ import annotations

import itertools
import sqlite3
from importlib.metadata import version
from typing import Any, Final

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

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

USAGE: Final = RequestUsage(input_tokens=1_482, output_tokens=57)
TABLE: Final = "create table conversations(id integer primary key, messages blob not null)"
WRITE: Final = "insert or replace into conversations values (?, ?)"


def contender(store: str, url: str) -> Contender:  # noqa: ARG001 - there is one store
    """Return pydantic-ai with its messages in a row."""
    return PydanticContender(url)


class PydanticContender(AgentContender):
    """An agent, and a table of conversations."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._agent: Agent[None, str] = Agent(
            Reader(self.script),
            name="bench",
            instructions=INSTRUCTIONS,
            tools=[self.script.lookup, self.script.shelf],
        )
        self._asking: Agent[None, str | DeferredToolRequests] = Agent(
            Reader(self.script),
            name="asking",
            instructions=INSTRUCTIONS,
            tools=[Tool(self.script.refund, requires_approval=True)],
            output_type=[str, DeferredToolRequests],
        )
        self._ids = itertools.count(1)

    async def open(self) -> Facts:
        self._database = sqlite3.connect(self.file, isolation_level=None)
        read = self._database.execute
        read("pragma journal_mode = wal")
        read("pragma synchronous = full")
        read(TABLE)
        sync = {name: read(f"pragma {name}").fetchone()[0] for name in SQLITE_SYNC}
        return {"versions": {"pydantic-ai": version("pydantic-ai-slim")}, "sync": sync}

    async def close(self) -> None:
        await super().close()
        self._database.close()

    async def begin(self, before: int) -> int:
        session = next(self._ids)
        if before:
            self._write(session, history(before))
        return session

    async def turn(self, session: int, prompt: str) -> str:
        result = await self._agent.run(prompt, message_history=self._read(session))
        self._write(session, result.all_messages())
        return result.output

    async def bare_turn(self) -> str:
        return (await self._agent.run(PROMPT)).output

    async def paused(self, session: int) -> Resume:
        result = await self._asking.run(APPROVAL_PROMPT)
        asked = result.output
        assert isinstance(asked, DeferredToolRequests)
        self._write(session, result.all_messages())

        async def resume() -> str:
            approved = DeferredToolResults(approvals={asked.approvals[0].tool_call_id: True})
            result = await self._asking.run(
                message_history=self._read(session), deferred_tool_results=approved
            )
            self._write(session, result.all_messages())
            return str(result.output)

        return resume

    def _read(self, session: int) -> list[ModelMessage]:
        ask = "select messages from conversations where id = ?"
        row = self._database.execute(ask, (session,)).fetchone()
        return [] if row is None else ModelMessagesTypeAdapter.validate_json(row[0])

    def _write(self, session: int, messages: list[ModelMessage]) -> None:
        self._database.execute(WRITE, (session, ModelMessagesTypeAdapter.dump_json(messages)))


class Reader(Model[Any]):
    """The script as a model of pydantic-ai that reads every message."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return "reader"

    @property
    def system(self) -> str:
        """The name of its provider."""
        return "bench"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,  # noqa: ARG002 - it has none
        model_request_parameters: ModelRequestParameters,  # noqa: ARG002 - the script knows them
    ) -> ModelResponse:
        """Read the conversation, and answer its last message."""
        self._script.read(message.parts for message in messages)
        last = messages[-1].parts[-1]
        asked = last.content if isinstance(last, UserPromptPart) else None
        said = self._script.reply(asked if isinstance(asked, str) else None)
        if isinstance(said, str):
            return ModelResponse([TextPart(said)], usage=USAGE)
        calls = [ToolCallPart(one.tool, one.arguments, one.id) for one in said]
        return ModelResponse(calls, usage=USAGE)


def history(turns: int) -> list[ModelMessage]:
    """Return the messages of so many turns."""
    found: list[ModelMessage] = []
    for number in range(turns):
        call = ToolCallPart("lookup", {"order_id": "7"}, f"before-{number}")
        done = ToolReturnPart("lookup", FOUND, call.tool_call_id)
        found += [
            ModelRequest([UserPromptPart(PROMPT)], instructions=INSTRUCTIONS),
            ModelResponse([call], usage=USAGE),
            ModelRequest([done], instructions=INSTRUCTIONS),
            ModelResponse([TextPart(ANSWER)], usage=USAGE),
        ]
    return found
