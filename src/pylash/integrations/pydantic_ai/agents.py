"""A pydantic-ai agent that is durable inside a process, and unchanged outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakValueDictionary

from pydantic_ai.agent import AbstractAgent, AgentRun, EventStreamHandler, WrapperAgent
from pydantic_ai.capabilities import AbstractCapability, AgentCapability
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
from pydantic_ai.toolsets import (
    AbstractToolset,
    DynamicToolset,
    ExternalToolset,
    FunctionToolset,
    WrapperToolset,
)

from pylash.engine.retries import Retry
from pylash.engine.runs.asides import aside
from pylash.integrations.pydantic_ai.operations import (
    EffectBackend,
    close_run,
    name_of,
    new_run,
)
from pylash.values.errors import AgentNotDurable
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid

D = TypeVar("D")
OutputT = TypeVar("OutputT")


class DurableAgent(WrapperAgent[D, OutputT]):
    """An agent whose model requests and tool calls are effects of the process that runs it.

    ``durable`` creates it; it is used like the wrapped agent.
    """

    def __init__(
        self, wrapped: AbstractAgent[D, OutputT], durability: AbstractCapability[D], name: str
    ) -> None:
        super().__init__(wrapped)
        self._durability = durability
        self.durable_name = name
        """The name of its effects: that of the agent, or the one passed to ``durable``."""

    @property
    def event_stream_handler(self) -> EventStreamHandler[D] | None:
        """None: the agent's handler is called inside the effects, so that a replay does not call it again."""
        return None

    if not TYPE_CHECKING:  # type checkers see the method of the wrapped agent, with its overloads

        @asynccontextmanager
        async def iter(
            self,
            user_prompt: Any = None,
            *,
            capabilities: Sequence[AgentCapability[D]] | None = None,
            **options: Any,
        ) -> AsyncIterator[AgentRun[D, Any]]:
            """Run the agent step by step, as its ``iter`` does."""
            extended = [*(capabilities or ()), self._durability]
            async with self.wrapped.iter(user_prompt, capabilities=extended, **options) as run:
                try:
                    yield run
                finally:
                    if (place := aside()) is not None:
                        close_run(place, self.durable_name, run.run_id)


def durable(
    agent: AbstractAgent[D, OutputT],
    *,
    name: str | None = None,
    retry: Retry | None = Retry(),  # noqa: B008 - it is frozen
    models: Mapping[str, Model] | None = None,
    event_stream_handler: EventStreamHandler[D] | None = None,
) -> DurableAgent[D, OutputT]:
    """Make an agent durable: inside a process each of its model requests and tool calls is an effect.

    ``name`` is the name of its effects, by default that of the agent; one of the two is required. ``retry``
    applies to model requests that fail with a transient error (a rate limit, an overload, a broken
    connection), or with one of its ``on``. ``models`` are models that runs may choose by name.
    ``event_stream_handler`` is called with events as they happen, and not on replay; the default is that of
    the agent.

    >>> agent = durable(Agent("openai:gpt-5", name="research", tools=[search]))
    """
    if isinstance(agent, DurableAgent):
        raise AgentNotDurable(
            agent.durable_name, "it is already durable; pass the agent that it wraps."
        )
    if not (retry is None or isinstance(retry, Retry)):
        raise ArgumentsInvalid("durable", f"retry={retry!r} is not a Retry, such as Retry(3)")
    chosen = agent.name if name is None else name
    if chosen is None:
        raise AgentNotDurable(
            None,
            "its effects are recorded under its name; give it one with "
            "Agent(..., name='research') or durable(agent, name='research').",
        )
    check_name("agent name", chosen)
    _refuse_unknown_toolsets(chosen, agent.toolsets)
    _name_toolsets(agent.toolsets)
    handler = event_stream_handler or agent.event_stream_handler
    unbound = Durability[D](models=models, event_stream_handler=handler, name=chosen, retry=retry)
    unbound.capability_toolsets = _capability_toolsets(agent.toolsets)
    try:
        bound = unbound.for_agent(agent)
    except UserError as error:
        raise AgentNotDurable(chosen, error.message) from None
    return DurableAgent(agent, bound, chosen)


def _refuse_unknown_toolsets(agent: str, toolsets: Iterable[AbstractToolset[Any]]) -> None:
    """Refuse toolsets whose calls pydantic-ai does not pass to durable engines: a replay would repeat them."""
    for leaf in _leaves(toolsets):
        if not isinstance(leaf, _known_toolsets()):
            raise AgentNotDurable(
                agent,
                f"toolset {leaf.label} is of a kind whose calls cannot be recorded; wrap it in "
                "DynamicToolset(lambda ctx: toolset, per_run_step=False, id='...').",
            )


def _leaves(toolsets: Iterable[AbstractToolset[Any]]) -> Iterator[AbstractToolset[Any]]:
    """Yield the toolsets that execute calls themselves.

    ``apply`` may also visit wrappers, such as the one around the toolset of a capability.
    """
    for one in _visit(toolsets):
        if isinstance(one, WrapperToolset):
            yield from _leaves([one.wrapped])
        else:
            yield one


def _visit(toolsets: Iterable[AbstractToolset[Any]]) -> list[AbstractToolset[Any]]:
    visited: list[AbstractToolset[Any]] = []
    for toolset in toolsets:
        toolset.apply(visited.append)
    return visited


def _capability_toolsets(
    toolsets: Iterable[AbstractToolset[Any]],
) -> dict[int, list[AbstractToolset[Any]]]:
    """Return the toolsets of capabilities, by the id() of the capability."""
    owned = [one for one in _visit(toolsets) if isinstance(one, WrapperToolset)]
    return {
        id(capability): list(_leaves([one.wrapped]))
        for one in owned
        if (capability := getattr(one, "capability", None)) is not None
    }


def _name_toolsets(toolsets: Iterable[AbstractToolset[Any]]) -> None:
    """Give each toolset of a capability the id of the capability, unless it has its own.

    pydantic-ai requires an id for each; some capabilities do not pass theirs on.
    """
    for wrapper in _visit(toolsets):
        owner = getattr(getattr(wrapper, "capability", None), "id", None)
        if owner is not None and isinstance(wrapper, WrapperToolset):
            for leaf in _leaves([wrapper.wrapped]):
                if leaf.id is None and isinstance(leaf, FunctionToolset | DynamicToolset):
                    leaf._id = owner  # noqa: SLF001 - there is no other way to set it later


def _known_toolsets() -> tuple[type[AbstractToolset[Any]], ...]:
    known: tuple[type[AbstractToolset[Any]], ...] = (
        FunctionToolset,
        DynamicToolset,
        ExternalToolset,
    )
    try:
        from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415 - an extra of pydantic-ai
    except ImportError:
        return known
    return (*known, MCPToolset)


class GivenModel(str):
    """The id of a model that was passed to a run as an object, by ``override`` or by ``run``.

    The text is the id of the model, which is recorded. Effects execute in this process, so they use the object
    itself: a model built from the id could have another address and other credentials.
    """

    __slots__ = ("model",)

    model: Model

    def __new__(cls, model: Model) -> Self:
        """Create the id of a model object."""
        model_id = super().__new__(cls, model.model_id)
        model_id.model = model
        return model_id


@dataclass(init=False, kw_only=True)
class Durability(BaseDurabilityCapability[D]):
    """Passes the operations of an agent to the run that executes it."""

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
        # Models that were passed to runs as objects, by id(): most models are not hashable.
        self._given: WeakValueDictionary[int, Model] = WeakValueDictionary()
        self.capability_toolsets: dict[int, list[AbstractToolset[Any]]] = {}
        """The toolsets of the agent's capabilities at the time of the call to ``durable``."""

    def for_agent(self, agent: AbstractAgent[D, Any]) -> Any:
        """Return this capability bound to an agent; a run passes an already bound one."""
        return self if self.agent is agent else super().for_agent(agent)

    @property
    def in_durable_context(self) -> bool:
        """Whether the caller is the code of a run, outside its effects."""
        return aside() is not None

    def get_wrapper_toolset(self, toolset: AbstractToolset[D]) -> AbstractToolset[D] | None:
        """Return the toolset of a run, with the toolsets of capabilities replaced by those bound to effects.

        pydantic-ai asks a capability for its toolset in every run. Some capabilities create a new one each
        time, but only the first is bound to effects.
        """
        bound: dict[int, AbstractToolset[D]] = {}
        for capability, created in _capability_toolsets([toolset]).items():
            first = self.capability_toolsets.get(capability, [])
            if [type(one) for one in created] == [type(one) for one in first]:
                bound |= {id(new): old for new, old in zip(created, first, strict=True)}
        if bound:
            toolset = toolset.visit_and_replace(lambda leaf: bound.get(id(leaf), leaf))
        return super().get_wrapper_toolset(toolset)

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Return the backend that executes the agent's operations."""
        return EffectBackend(self.name, self._retry)

    # pydantic-ai refuses model objects that were not registered when the agent was made durable, because
    # other engines execute effects in other processes. The four methods below accept them.

    def _bind_models(self, agent: AbstractAgent[D, Any]) -> None:
        if agent.model is not None:
            super()._bind_models(agent)
        else:  # every run gets a model
            self._models_by_id = dict(self._extra_models)

    def _find_model_id(self, model: Model) -> str | None:
        try:
            return super()._find_model_id(model)
        except UserError:
            self._given[id(model)] = model
            return GivenModel(model)

    def _registered_model_id(self, model: Model) -> tuple[bool, str | None]:
        """Return whether a model is open already, and its id: other models are closed after each request."""
        registered, model_id = super()._registered_model_id(model)
        if not registered and self._given.get(id(model)) is model:
            return True, GivenModel(model)
        return registered, model_id

    async def _resolve_model_for_request(
        self, model_id: str | None, run_context: RunContext[D]
    ) -> Model:
        if isinstance(model_id, GivenModel):
            return model_id.model
        return await super()._resolve_model_for_request(model_id, run_context)

    def get_default_run_id(self) -> str | None:
        """Return the id of the agent's next run here, the same on every replay."""
        place = aside()
        return None if place is None else new_run(place, self.name)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of a conversation that begins with a run."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return the first start of a run, so that its timeout includes restarts."""
        place = aside()
        if place is None:
            return None
        run = name_of(place, self.name, run_id)
        return place.now(place.key(run, ("started", 1)))

    async def after_run(
        self, ctx: RunContext[D], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Replace the times of the run's requests by times that are the same on every replay."""
        if self.in_durable_context:
            _settle_times(result.all_messages(), ctx.run_id)
        return result


def _settle_times(messages: Sequence[ModelMessage], run_id: str | None) -> None:
    """Set the time of each request of a run to that of the previous reply, and of the first to that of its reply.

    pydantic-ai takes the time of a request from the clock, also on replay; the times of replies are recorded.
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
