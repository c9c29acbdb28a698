"""The catalog: the tools, models, agents and plugins of an app, by name.

Rule 1. Names are recorded. Objects are looked up by the worker that uses them.
Rule 2. The tools that a turn may call are in its recorded environment; the code is the worker's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import partial
from inspect import iscoroutinefunction, isfunction
from typing import Any, Final, Protocol

from pylash.engine.records import is_outcome, message_of
from pylash.engine.user_code import FailsAs
from pylash.tools.operation_names import check_tool_names
from pylash.tools.plugins import PluginFactory, SessionPlugin, has_checkpoint
from pylash.tools.tool import Tool, as_tool
from pylash.turn.asks import SessionOptions, ToolPolicy, TurnEnvironment
from pylash.turn.histories import Summarise
from pylash.turn.requests import Listen, ModelReply, ModelRequest, Provider
from pylash.values.errors import ExtraMissing
from pylash.values.process_errors import ArgumentsInvalid, NameTaken, ToolUnknown
from pylash.values.turn_errors import (
    ModelInvalid,
    ModelKeyMissing,
    ModelMissing,
    ModelUnknown,
    ModelUnusable,
    PluginFailed,
    ProviderError,
    SessionOptionUnknown,
)

_log = logging.getLogger("pylash")

MODEL_UNAVAILABLE: Final = (
    ExtraMissing,
    ModelKeyMissing,
    ModelMissing,
    ModelUnknown,
    ModelUnusable,
)
"""Raised for a model that this worker lacks. Another worker may have it, or this one after a deployment."""


class AgentSettings(Protocol):
    """A kind of subagent: its prompt, its tools and its model."""

    name: str
    instructions: str
    tools: tuple[str, ...] | None
    model: str | None
    description: str


def is_redefinition(known: Callable[..., Any], function: Callable[..., Any]) -> bool:
    """Return whether a function is a known one, or a new definition of it: a notebook's cell may run twice."""
    if known == function:  # not ``is``: each access to a method creates a new object
        return True
    if not (isfunction(known) and isfunction(function)) or "<locals>" in function.__qualname__:
        return (
            False  # each call of the enclosing function defines another one, with its own variables
        )
    before, now = known.__code__, function.__code__
    # Definitions at different lines of one file are different functions.
    is_other = before.co_filename == now.co_filename and before.co_firstlineno != now.co_firstlineno
    names = ((one.__module__, one.__qualname__) for one in (known, function))
    return not is_other and len(set(names)) == 1


def check_tool_list(method: str, tools: Any) -> Sequence[Any]:
    """Return a list of tools, or refuse anything else: a string would count as a list of characters."""
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        raise ArgumentsInvalid(method, f"tools={tools!r} is not a list of tools or of their names")
    return tools


class Catalog:
    """The tools, models, agents and plugins of one app."""

    def __init__(
        self,
        model: Any,
        instructions: str,
        plugins: Sequence[PluginFactory],
        adapt: Callable[[Any], Provider | None] = lambda _: None,
    ) -> None:
        # Returns a provider for a name, or for an object that is not a provider; None if there is none.
        self._adapt = adapt
        self.tools: dict[str, Tool[..., Any]] = {}
        self.models: dict[str, Provider] = {}
        self.agents: dict[str, AgentSettings] = {}
        self.plugins = {plugin.name: plugin for plugin in plugins}
        self.private: set[str] = set()
        self.instructions = instructions
        self.model = self.model_name(model)

    def model_name(self, model: Any) -> str | None:
        """Return the name of a model; an object is registered under its own name, or that of its class."""
        if model is None or isinstance(model, str):
            return model
        name = str(
            getattr(model, "name", None) or getattr(model, "model_id", None) or type(model).__name__
        )
        self.add_model(name, model)
        return name

    def add_model(self, name: str, model: Any) -> None:
        """Register a model under a name, or refuse an object that is not a model."""
        if isinstance(model, type):
            raise ModelInvalid(model)
        is_provider = iscoroutinefunction(getattr(model, "respond", None))
        provider = model if is_provider else self._adapt(model)
        if provider is None:
            raise ModelInvalid(model)
        self.models[name] = provider

    def tool_names(self, tools: Sequence[Any] | None) -> tuple[str, ...] | None:
        """Return the names of tools; functions and tools that are not in the catalog yet are added as private ones."""
        if tools is None:
            return None
        names = []
        for given in check_tool_list("tools", tools):
            if isinstance(given, str):
                names.append(self.tool(given).name)
            else:
                made = self.add_tool(given, private=True)
                names.append(made.name)
        return tuple(names)

    def add_tool(self, given: Any, *, private: bool = False) -> Tool[..., Any]:
        """Make a function a tool of the app; a private one is offered only to sessions that name it."""
        made = as_tool(given)
        known = self.tools.get(made.name)
        if known is not None and not is_redefinition(known.function, made.function):
            raise NameTaken("tool", made.name, "name=")
        check_tool_names(made, self.tools.values())
        if not private:
            self.private.discard(made.name)
        elif known is None:
            self.private.add(made.name)
        self.tools[made.name] = made
        return made

    def tool(self, name: str, others: Collection[str] = ()) -> Tool[..., Any]:
        """Return a tool by its name, or by its id such as ``tools.lookup``; an error lists ``others`` too."""
        found = self.tools.get(name) or self.by_id().get(name)
        if found is None:
            known = sorted({*self.tools, *others})
            raise ToolUnknown(name, ", ".join(known) or "none")
        return found

    def by_id(self) -> dict[str, Tool[..., Any]]:
        """Return the tools by their ids."""
        return {tool.id: tool for tool in self.tools.values()}

    def provider(self, name: str | None) -> Provider:
        """Return a model by its name."""
        if name is None:
            raise ModelMissing
        if name not in self.models:
            provider = self._adapt(name)
            if provider is None:
                known = (one for one in self.models if ":" not in one)
                raise ModelUnknown(name, ", ".join(sorted(known)) or "none")
            self.models[name] = provider
        return self.models[name]

    def plugin_options(self, options: SessionOptions) -> dict[str, Any]:
        """Return the options of every plugin of a session, by name: the input of ``build_plugins``."""
        return {**dict.fromkeys(self.plugins), **(options.plugin_options or {})}

    def build_plugins(
        self, session_id: str, plugin_options: Mapping[str, Any]
    ) -> dict[str, SessionPlugin]:
        """Return plugins by name, built for a session from captured options; those that are not there are left out."""
        built = {}
        for name, plugin in self.plugins.items():
            if name in plugin_options:
                with FailsAs(partial(_plugin_failure, name)):
                    built[name] = plugin.build(session_id, plugin_options[name])
        return built

    def with_plugins(self, session_id: str, plugin_options: Mapping[str, Any]) -> Catalog:
        """Return this catalog with the tools of plugins, built for a session from captured options."""
        plugins = self.build_plugins(session_id, plugin_options)
        if not plugins:
            return self
        catalog = copy(self)
        catalog.tools = {**self.tools, **tools_of_plugins(plugins.values())}
        return catalog

    def check(self, options: SessionOptions) -> None:
        """Refuse options that name unknown plugins or tools."""
        for name in options.plugin_options or ():
            if name not in self.plugins:
                known = ", ".join(sorted(self.plugins)) or "none"
                raise SessionOptionUnknown("plugin", name, known)
        for name in self._chosen_tools(options) or ():
            self.tool(name)

    def missing(self, options: SessionOptions, *, captured: bool) -> str | None:
        """Return an agent, a plugin or a tool that options name and this app lacks, if there is one.

        A turn whose environment was ``captured`` needs its agent only; it may go on without the others.
        """
        if options.agent is not None and options.agent not in self.agents:
            return f"agent {options.agent!r}"
        if captured:
            return None
        lacking = (name for name in options.plugin_options or () if name not in self.plugins)
        for name in lacking:
            return f"plugin {name!r}"
        tools = {**self.tools, **self.by_id()}
        for name in self._chosen_tools(options) or ():
            if name not in tools:
                return f"tool {name!r}"
        return None

    def _chosen_tools(self, options: SessionOptions) -> tuple[str, ...] | None:
        """Return the names of the tools that the options or their agent select; None for all tools of the app."""
        if options.tools is not None or options.agent is None:
            return options.tools
        return self.agent(options.agent).tools

    def agent(self, name: str) -> AgentSettings:
        """Return a kind of subagent."""
        if name not in self.agents:
            known = ", ".join(sorted(self.agents)) or "none"
            raise SessionOptionUnknown("agent", name, known)
        return self.agents[name]

    def offered_tools(
        self, options: SessionOptions, plugins: Collection[SessionPlugin]
    ) -> dict[str, Tool[..., Any]]:
        """Return the tools that a session's model may call, by name.

        Tools that are gone are left out: a turn in flight may not need them.
        """
        offered = {}
        named = self._chosen_tools(options)
        for name in self.tools if named is None else named:
            tool = self.tools.get(name) or self.by_id().get(name)
            if tool is not None and not (named is None and name in self.private):
                offered[name] = tool
        return {**offered, **tools_of_plugins(plugins)}

    def settings(self, options: SessionOptions) -> tuple[str | None, str]:
        """Return the model and the instructions of a session: its own, or those of its agent or of the app."""
        agent = None if options.agent is None else self.agent(options.agent)
        instructions = options.instructions
        if instructions is None:
            instructions = self.instructions if agent is None else agent.instructions
        model = options.model or (agent.model if agent is not None else None) or self.model
        return model, instructions

    def environment(
        self,
        options: SessionOptions,
        plugins: Mapping[str, SessionPlugin],
        tools: Mapping[str, Tool[..., Any]],
    ) -> TurnEnvironment:
        """Capture the settings that a turn keeps to its end."""
        if isinstance(options.history, Summarise) and options.history.model is not None:
            # An unknown model fails now, not when the chat has become long.
            self.provider(options.history.model)
        model, instructions = self.settings(options)
        prompt, listeners = [instructions], []
        for name, plugin in plugins.items():
            prompt.append(plugin.prompt() or "")
            if has_checkpoint(plugin):
                listeners.append(name)
        manifests, policies = [], {}
        for name, tool in tools.items():
            manifests.append(tool.manifest_among(tools.values()))
            if tool.policy != ToolPolicy():
                policies[name] = tool.policy
        return TurnEnvironment(
            model=model,
            prompt=tuple(filter(None, prompt)),
            tools=tuple(manifests),
            policies=policies,
            listeners=tuple(listeners),
        )


def tools_of_plugins(plugins: Collection[SessionPlugin]) -> dict[str, Tool[..., Any]]:
    """Return the tools of built plugins, by name."""
    tools: dict[str, Tool[..., Any]] = {}
    for plugin in plugins:
        with FailsAs(partial(_plugin_failure, type(plugin).__name__)):
            tools.update({tool.name: tool for tool in plugin.tools()})
    return tools


def _plugin_failure(name: str, error: BaseException) -> PluginFailed:
    return PluginFailed(name, f"{type(error).__name__}: {message_of(error)}")


async def call_model(provider: Provider, request: ModelRequest, listen: Listen) -> ModelReply:
    """Return a model's reply; an exception or a reply of another type is raised as a ProviderError."""

    def failure(error: BaseException) -> BaseException:
        if is_outcome(error):
            return error
        _log.warning("model %s failed", request.model, exc_info=error)
        retryable = isinstance(error, OSError)  # lost connections and timeouts
        message = " ".join(message_of(error).split())
        return ProviderError(f"{type(error).__name__}: {message}", retryable=retryable)

    with FailsAs(failure):
        reply = await provider.respond(request, listen)
    if not isinstance(reply, ModelReply):
        raise ProviderError(f"The model returned {reply!r} instead of a ModelReply")
    return reply
