"""What an app is made of, as it is declared: processes, tools, models, agents and events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from pylash.runtime import (
    Agent,
    Catalog,
    ProcessContext,
    ProcessDefinition,
    SourceGrant,
    SpawnAgent,
    Tool,
    ToolOptions,
    ToolProvider,
    TriggerType,
    check_trigger_name,
    is_again,
    tool,
)
from pylash.values import MAX_NAME_BYTES, ArgumentsInvalid, Duration, NameTaken, check_name

P = ParamSpec("P")
R = TypeVar("R")


class Declarations:
    """The declaring half of an app: nothing here touches an event loop."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._definitions: dict[str, ProcessDefinition[Any, Any]] = {}
        self._types: dict[str, TriggerType] = {}

    @overload
    def process(
        self, function: Callable[Concatenate[ProcessContext[Any], P], Awaitable[R]], /
    ) -> ProcessDefinition[P, R]: ...
    @overload
    def process(
        self,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        key: Callable[..., str] | str | None = None,
    ) -> Callable[
        [Callable[Concatenate[ProcessContext[Any], P], Awaitable[R]]], ProcessDefinition[P, R]
    ]: ...
    def process(  # type: ignore[misc]  # the options are those of the definition
        self, function: Any = None, /, **options: Any
    ) -> Any:
        """Make an async function a process of this app.

        ``timeout`` ends it, ``concurrency`` limits how many execute at once (for each ``key``, which is
        a function of the arguments or a text such as ``"{user}"``).

        >>> @app.process(concurrency=1, key="{user}")
        ... async def sync_mail(ctx: ProcessContext[None], user: str) -> int: ...
        """
        if function is None:
            return lambda decorated: self.process(ProcessDefinition(decorated, **options))
        definition = (
            function if isinstance(function, ProcessDefinition) else ProcessDefinition(function)
        )
        known = self._definitions.setdefault(definition.name, definition)
        if not is_again(known.function, definition.function):
            raise NameTaken("process", definition.name)
        self._definitions[definition.name] = definition
        return definition

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...
    @overload
    def tool(
        self, function: None = None, /, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Make a function a tool of this app: its signature is the schema, its docstring the description.

        >>> @app.tool(approval=True, retry=Retry(3), timeout="30s")
        ... async def refund(ctx: ToolContext[Deps], order_id: str, cents: int) -> str: ...
        """
        if function is None:
            return lambda decorated: self.add_tool(tool(**options)(decorated))
        return self.add_tool(function)

    def add_tool(self, given: Tool[P, R] | Callable[P, R]) -> Tool[P, R]:
        """Make a tool, or a plain function, a tool of this app."""
        added: Any = self._catalog.add_tool(given)
        return cast("Tool[P, R]", added)

    def use(self, provider: ToolProvider) -> None:
        """Add the tools of a provider."""
        for given in provider.tools():
            self.add_tool(given)

    def model(self, name: str, model: Any) -> None:
        """Register a model under a name, for ``app.session(..., model=name)``.

        It is a ``Provider``, a model object of pydantic-ai, or another name.

        >>> app.model("fast", "openai:gpt-5-mini")
        """
        self._catalog.add_model(check_name("model name", name), model)

    def agent(
        self,
        name: str,
        *,
        instructions: str = "",
        tools: Sequence[Any] | None = None,
        model: Any = None,
        description: str = "",
    ) -> Agent:
        """Declare a kind of subagent.

        >>> app.agent("researcher", instructions="Find sources.", tools=[search])
        """
        check_name(
            "agent name", name, limit=MAX_NAME_BYTES // 2
        )  # the ids of subagents begin with it
        names = self._catalog.named_tools(tools)
        agent = Agent(name, instructions, names, self._catalog.named_model(model), description)
        self._catalog.agents[name] = agent
        return agent

    def subagents(self, *names: str) -> Tool[..., Any]:
        """Give the model a ``spawn_agent`` tool for these kinds of subagents, and return it."""
        if not names:
            raise ArgumentsInvalid("app.subagents", "name at least one agent of app.agent")
        return self._catalog.add_tool(SpawnAgent(self._catalog, names))

    def trigger(self, name: str, *, payload: Any = Any, sessions: SourceGrant = False) -> None:
        """Declare a type of event, and what its payload is.

        ``sessions`` says which sources a program that acts for a session may subscribe to: none (False), all
        (True), or those for which a function of the session's id and the source's key returns True.

        >>> app.trigger("github.push", payload=Push, sessions=lambda session_id, repo: repo in repos[session_id])
        """
        check_name("trigger type", name)
        if not (callable(sessions) or sessions in (True, False)):
            reason = f"sessions is {sessions!r} and must be True, False or a function"
            raise ArgumentsInvalid(f"trigger {name!r}", reason)
        check_trigger_name(name, self._types)
        self._types[name] = TriggerType(name, payload, sessions)
