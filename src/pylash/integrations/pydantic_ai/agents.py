"""A pydantic-ai agent that is durable wherever a process runs it, and itself elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic_ai.agent import AbstractAgent, AgentRun, EventStreamHandler, WrapperAgent
from pydantic_ai.capabilities import AgentCapability
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, ExternalToolset, FunctionToolset

from pylash.integrations.pydantic_ai.operations import EffectBackend, name_of, new_run
from pylash.runtime import Retry, aside
from pylash.values import AgentNotDurable

D = TypeVar("D")
OutputT = TypeVar("OutputT")

UNNAMED: Final = "agent"
"""What an agent without a name is called: keys need one, and it must not change."""


class DurableAgent(WrapperAgent[D, OutputT]):
    """An agent whose model requests and tool calls are effects of the process that runs it.

    It is made by ``durable``, and used as the agent it was made of.
    """

    def __init__(self, wrapped: AbstractAgent[D, OutputT], durability: Durability[D]) -> None:
        super().__init__(wrapped)
        self._durability = durability

    @property
    def event_stream_handler(self) -> EventStreamHandler[D] | None:
        """None: the agent's handler is called where the events are, and not again on replay."""
        return None

    if not TYPE_CHECKING:  # for a type checker it is the wrapped agent's, with all its overloads

        @asynccontextmanager
        async def iter(
            self,
            user_prompt: Any = None,
            *,
            capabilities: Sequence[AgentCapability[D]] | None = None,
            **options: Any,
        ) -> AsyncIterator[AgentRun[D, Any]]:
            """Run the agent step by step, as its ``iter`` does."""
            given = [*(capabilities or ()), self._durability]
            async with self.wrapped.iter(user_prompt, capabilities=given, **options) as run:
                yield run


def durable(
    agent: AbstractAgent[D, OutputT],
    *,
    name: str | None = None,
    retry: Retry | None = Retry(),  # noqa: B008 - it is frozen
    models: Mapping[str, Model] | None = None,
    event_stream_handler: EventStreamHandler[D] | None = None,
) -> DurableAgent[D, OutputT]:
    """Make an agent durable: inside a process each of its model requests and tool calls is an effect.

    ``name`` names its effects and is the agent's own unless given; ``retry`` is for model requests that
    fail with an error that passes (a rate limit, an overload, a broken connection); ``models`` are models
    that runs may choose by their names. ``event_stream_handler`` hears events as they happen, and none of
    them again on replay; the agent's own is taken unless given.

    >>> agent = durable(Agent("openai:gpt-5", name="research", tools=[search]))
    """
    chosen = name or agent.name or UNNAMED
    _refuse_unknown_toolsets(chosen, agent.toolsets)
    handler = event_stream_handler or agent.event_stream_handler
    unbound = Durability[D](models=models, event_stream_handler=handler, name=chosen, retry=retry)
    try:
        bound = unbound.for_agent(agent)
    except UserError as error:
        raise AgentNotDurable(chosen, error.message) from None
    return DurableAgent(agent, bound)


def _refuse_unknown_toolsets(agent: str, toolsets: Iterable[AbstractToolset[Any]]) -> None:
    """Refuse toolsets whose calls pydantic-ai hands to no durable engine: they would run again on replay."""
    found: list[AbstractToolset[Any]] = []
    for toolset in toolsets:
        toolset.apply(found.append)
    for leaf in found:
        if not isinstance(leaf, _known_toolsets()):
            raise AgentNotDurable(
                agent,
                f"toolset {leaf.label} is of a kind whose calls cannot be recorded; wrap it in "
                "DynamicToolset(lambda ctx: toolset, per_run_step=False, id='...').",
            )


def _known_toolsets() -> tuple[type[AbstractToolset[Any]], ...]:
    known: tuple[type[AbstractToolset[Any]], ...] = (
        FunctionToolset,
        DynamicToolset,
        ExternalToolset,
    )
    try:
        from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415 - an extra of theirs
    except ImportError:
        return known
    return (*known, MCPToolset)


@dataclass(init=False, kw_only=True)
class Durability(BaseDurabilityCapability[D]):
    """Hands what an agent asks for to the run in whose code it is."""

    engine_spec = DurabilityEngineSpec(
        engine_name="pylash",
        durable_unit_noun="effect",
        durable_container_noun="process",
        codec=JSON_CODEC,
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None,
        event_stream_handler: EventStreamHandler[D] | None,
        name: str,
        retry: Retry | None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._retry = retry

    def for_agent(self, agent: AbstractAgent[D, Any]) -> Any:
        """Bind once: what a run is given is bound already."""
        return self if self.agent is agent else super().for_agent(agent)

    @property
    def in_durable_context(self) -> bool:
        """Whether the caller is in the code of a run, and not in an effect of it."""
        return aside() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Return what executes the agent's operations."""
        return EffectBackend(self.name, self._retry)

    def get_default_run_id(self) -> str | None:
        """Return the id of the agent's next run here, the same on every replay."""
        place = aside()
        return None if place is None else new_run(place, self.name)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of a conversation that begins with a run."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when a run began the first time, so that its timeout holds across restarts."""
        place = aside()
        if place is None:
            return None
        run = name_of(place, self.name, run_id)
        return place.now(place.key(run, ("started", 1)))

    async def after_run(
        self, ctx: RunContext[D], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Give the run's requests times that are the same on every replay."""
        if self.in_durable_context:
            _settle_times(result.all_messages(), ctx.run_id)
        return result


def _settle_times(messages: Sequence[ModelMessage], run_id: str | None) -> None:
    """Date each request of a run by the reply before it, or the first by the reply it got.

    pydantic-ai dates requests by the clock, also when they are made again on replay; replies are recorded.
    """
    own = [message for message in messages if message.run_id == run_id]
    settled = next((reply.timestamp for reply in own if isinstance(reply, ModelResponse)), None)
    for message in own:
        if isinstance(message, ModelResponse):
            settled = message.timestamp
        elif settled is not None:
            message.timestamp = settled
            for part in message.parts:
                if hasattr(part, "timestamp"):
                    part.timestamp = settled
