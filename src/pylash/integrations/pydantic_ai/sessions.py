"""Conversations with a pydantic-ai agent: one process for each, which answers one question at a time.

Rule 1. A question is a signal with the id of the turn: it is stored before anything runs, once and in order.
Rule 2. An answer is an event of the process, with the turn's id and the messages it added.
Rule 3. A failed turn does not change the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar, Union

from pydantic import TypeAdapter
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.output import NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from pylash.app import Lash
from pylash.engine.user_code import current_task, is_failure
from pylash.integrations.pydantic_ai.agents import DurableAgent, durable
from pylash.integrations.pydantic_ai.deferred_tools import answered
from pylash.integrations.pydantic_ai.failures import restore, to_recorded
from pylash.processes.definition import ProcessDefinition
from pylash.processes.handles import ProcessHandle
from pylash.processes.operations.context import ProcessContext
from pylash.values.canonical import round_trip
from pylash.values.durations import Duration, seconds
from pylash.values.errors import AgentNotDurable, LashError, ValueNotJson
from pylash.values.names import storable
from pylash.values.process_errors import ProcessEnded

D = TypeVar("D")
OutputT = TypeVar("OutputT")

TURNS_PER_JOURNAL: Final = 20
"""The process continues with a new journal after this many turns, which bounds the length of a replay."""

_ASK: Final = "ask"
_ANSWER: Final = "answer"
_USAGE: Final = TypeAdapter(RunUsage)


class AgentTurn(Generic[OutputT]):
    """The result of one question: the output, the added messages and the usage."""

    def __init__(
        self, turn_id: str, output: OutputT, messages: list[ModelMessage], usage: RunUsage
    ) -> None:
        self.turn_id = turn_id
        self.output = output
        self.messages = messages
        self.usage = usage

    def __repr__(self) -> str:
        return f"AgentTurn({self.turn_id!r}, {self.output!r})"


class AgentSessions(Generic[OutputT]):
    """The conversations of an app with one agent: a call with an id returns one of them."""

    def __init__(
        self, app: Lash, process: ProcessDefinition[..., None], output: TypeAdapter[OutputT]
    ) -> None:
        self._app = app
        self._process = process
        self._output = output

    def __call__(self, session_id: str) -> AgentSession[OutputT]:
        """Return the handle of a conversation; its first question creates it."""
        return AgentSession(session_id, self._app, self._process, self._output)


class AgentSession(Generic[OutputT]):
    """One conversation with an agent."""

    def __init__(
        self,
        session_id: str,
        app: Lash,
        process: ProcessDefinition[..., None],
        output: TypeAdapter[OutputT],
    ) -> None:
        self.id = session_id
        self.process_id = f"{process.name}:{session_id}"
        self._app = app
        self._process = process
        self._output = output

    async def turn(
        self, prompt: str, *, turn_id: str | None = None, timeout: Duration | None = None
    ) -> AgentTurn[OutputT]:
        """Ask a question and return the answer; the same ``turn_id`` again returns the same answer.

        Raises the exception of the agent's run. ``timeout`` ends the waiting, not the turn.

        Cancellation: safe, the turn continues.
        """
        handle = await self._app.start(self._process.options(id=self.process_id), session=self.id)
        turn = turn_id or self._app.services.new_id()
        await handle.signal(_ASK, {"turn": turn, "prompt": prompt}, id=turn)
        limit = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit):
                answer = await _answer(handle, turn)
        except TimeoutError:
            raise TimeoutError(f"Turn {turn!r} has not ended in {limit:g} s.") from None
        return self._read(answer)

    async def history(self) -> list[ModelMessage]:
        """Return all messages of the conversation."""
        handle = self._app.process_handle(self.process_id)
        payloads = [event.payload async for event in handle.events() if event.type == _ANSWER]
        found = [message for payload in payloads for message in payload.get("messages", ())]
        return ModelMessagesTypeAdapter.validate_python(found)

    def _read(self, answer: dict[str, Any]) -> AgentTurn[OutputT]:
        if (failure := answer.get("failure")) is not None:
            raise restore(LashError.restore(**failure))
        return AgentTurn(
            answer["turn"],
            self._output.validate_python(answer["output"]),
            ModelMessagesTypeAdapter.validate_python(answer["messages"]),
            _USAGE.validate_python(answer["usage"]),
        )


def sessions(app: Lash, agent: AbstractAgent[D, OutputT]) -> AgentSessions[OutputT]:
    """Declare conversations with an agent as processes of an app; ``ctx.deps`` of the app are its deps.

    Approvals and deferred calls of the agent are waits of the app.

    >>> chats = sessions(app, agent)
    >>> turn = await chats("chat-42").turn("Where is order 7?")
    >>> turn.output
    """
    wrapped = agent if isinstance(agent, DurableAgent) else durable(agent)
    name = f"{wrapped.durable_name} session"
    output: TypeAdapter[OutputT] = TypeAdapter(_output_type(name, wrapped.output_type))

    @app.process(name=name)
    async def converse(
        ctx: ProcessContext[Any], session: str, messages: list[Any] | None = None
    ) -> None:
        history = messages or []
        for _ in range(TURNS_PER_JOURNAL):
            question = await ctx.wait_signal(_ASK)
            answer = await _run_turn(ctx, wrapped, question["prompt"], history, output)
            history = [*history, *answer.get("messages", ())]
            await ctx.emit(_ANSWER, {"turn": question["turn"], **answer})
        ctx.continue_as(session=session, messages=history)

    return AgentSessions(app, converse, output)


async def _run_turn(
    ctx: ProcessContext[Any],
    agent: AbstractAgent[Any, Any],
    prompt: str,
    history: list[Any],
    output: TypeAdapter[Any],
) -> dict[str, Any]:
    """Run the agent until its output is not a deferral; return the payload of the answer event."""
    before, added = ModelMessagesTypeAdapter.validate_python(history), list[ModelMessage]()
    answer: dict[str, Any] = {}
    task = current_task()
    try:
        result = await agent.run(prompt, message_history=before, deps=ctx.deps)
        added += result.new_messages()
        while isinstance(result.output, DeferredToolRequests):
            result = await agent.run(
                message_history=[*before, *added],
                deferred_tool_results=await answered(ctx, result.output),
                deps=ctx.deps,
                usage=result.usage,
            )
            added += result.new_messages()
        answer["output"] = output.dump_python(result.output, mode="json")
        answer["messages"] = ModelMessagesTypeAdapter.dump_python(added, mode="json")
        answer["usage"] = _USAGE.dump_python(result.usage, mode="json")
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) or not is_failure(error, task):
            raise
        failure = to_recorded(error)  # it is the answer to this turn only
        kept = {
            "code": failure.code,
            "message": storable(failure.message),
            "data": _plain(failure.data),
        }
        answer = {"failure": kept}

    async def turn() -> dict[str, Any]:
        return answer

    # Recorded, because instructions are computed again on every replay and may differ.
    return await ctx.step(turn)


def _plain(data: Any) -> Any:
    """Return the data of a failure, or nothing if it cannot be stored."""
    try:
        return round_trip(data)
    except ValueNotJson:
        return None


async def _answer(handle: ProcessHandle[None], turn_id: str) -> dict[str, Any]:
    async for event in handle.events(follow=True):
        if event.type == _ANSWER and event.payload["turn"] == turn_id:
            answer: dict[str, Any] = event.payload
            return answer
    raise ProcessEnded(handle.id)


def _output_type(agent: str, spec: Any) -> Any:
    """Return the type of an agent's outputs, for reading them back."""
    types = tuple(dict.fromkeys(_types(agent, spec)))
    return Union[types]  # noqa: UP007 - of a tuple that is only known now


def _types(agent: str, spec: Any) -> Iterator[Any]:
    match spec:
        case ToolOutput(output=inner) | NativeOutput(outputs=inner) | PromptedOutput(outputs=inner):
            yield from _types(agent, inner)
        case list() | tuple():
            for inner in spec:
                yield from _types(agent, inner)
        case _ if spec is DeferredToolRequests:
            return
        case _ if isinstance(spec, type) or hasattr(spec, "__origin__"):
            yield spec
        case _:
            reason = (
                f"its output {spec!r} is not a type, and a session restores answers by their types."
            )
            raise AgentNotDurable(agent, reason)
