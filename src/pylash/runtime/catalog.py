"""The catalog: the tools, models, agents and plugins of an app, by name.

Rule 1. What is recorded are names. Objects are looked up where they are used, on whichever worker.
Rule 2. What a turn may call is in its recorded environment; what is called is today's code of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction, isfunction
from typing import Any

import msgspec

from pylash.runtime.operation_names import check_tool_names
from pylash.runtime.plugins import PluginFactory, SessionPlugin
from pylash.runtime.records import message_of
from pylash.runtime.tools import Tool, as_tool
from pylash.runtime.user_code import FailsAs
from pylash.turn import Provider, SessionOptions, Summarise, TurnEnvironment
from pylash.values import (
    ArgumentsInvalid,
    ModelInvalid,
    ModelMissing,
    ModelUnknown,
    NameTaken,
    PluginFailed,
    SessionOptionUnknown,
    ToolUnknown,
)


class Agent(msgspec.Struct, frozen=True):
    """A kind of subagent: its prompt, its tools and its model."""

    name: str
    instructions: str = ""
    tools: tuple[str, ...] | None = None
    model: str | None = None
    description: str = ""


def is_again(known: Callable[..., Any], function: Callable[..., Any]) -> bool:
    """Return whether a function is a known one, or that one defined anew: a notebook's cell ran again."""
    if known == function:  # not ``is``: a method is another object each time it is taken
        return True
    if not (isfunction(known) and isfunction(function)) or "<locals>" in function.__qualname__:
        return False  # whatever made both may make more, each with variables of its own
    before, now = known.__code__, function.__code__
    beside = before.co_filename == now.co_filename and before.co_firstlineno != now.co_firstlineno
    names = ((one.__module__, one.__qualname__) for one in (known, function))
    return not beside and len(set(names)) == 1


def several_tools(method: str, tools: Any) -> Sequence[Any]:
    """Return tools that were given as a list; a single name is a list of letters otherwise."""
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        raise ArgumentsInvalid(method, f"tools={tools!r} is not a list of tools or of their names")
    return tools


class Catalog:
    """What the app's turns can use."""

    def __init__(
        self,
        model: Any,
        instructions: str,
        plugins: Sequence[PluginFactory],
        adapt: Callable[[Any], Provider | None] = lambda _: None,
    ) -> None:
        self._adapt = adapt  # what makes a provider of a name or an object that is none
        self.tools: dict[str, Tool[..., Any]] = {}
        self.models: dict[str, Provider] = {}
        self.agents: dict[str, Agent] = {}
        self.plugins = {plugin.name: plugin for plugin in plugins}
        self.private: set[str] = set()
        self.instructions = instructions
        self.model = self.named_model(model)

    def named_model(self, model: Any) -> str | None:
        """Return the name of a model; an object gets the one it has, or that of its class."""
        if model is None or isinstance(model, str):
            return model
        name = str(
            getattr(model, "name", None) or getattr(model, "model_id", None) or type(model).__name__
        )
        self.add_model(name, model)
        return name

    def add_model(self, name: str, model: Any) -> None:
        """Register a model under a name, or refuse what is none."""
        if isinstance(model, type):
            raise ModelInvalid(model)
        speaks = iscoroutinefunction(getattr(model, "respond", None))
        made = model if speaks else self._adapt(model)
        if made is None:
            raise ModelInvalid(model)
        self.models[name] = made

    def named_tools(self, tools: Sequence[Any] | None) -> tuple[str, ...] | None:
        """Return the names of tools; those that are not known yet are known from now on."""
        if tools is None:
            return None
        names = []
        for given in several_tools("tools", tools):
            if isinstance(given, str):
                names.append(self.tool(given).name)
            else:
                made = self.add_tool(given, private=True)
                names.append(made.name)
        return tuple(names)

    def add_tool(self, given: Any, *, private: bool = False) -> Tool[..., Any]:
        """Make a function a tool of the app; a private one is only for those who name it."""
        made = as_tool(given)
        known = self.tools.get(made.name)
        if known is not None and not is_again(known.function, made.function):
            raise NameTaken("tool", made.name)
        check_tool_names(made, self.tools.values())
        if not private:
            self.private.discard(made.name)
        elif known is None:
            self.private.add(made.name)
        self.tools[made.name] = made
        return made

    def tool(self, name: str) -> Tool[..., Any]:
        """Return a tool by its name, or by its id such as ``tools.lookup``."""
        found = self.tools.get(name) or self.by_id().get(name)
        if found is None:
            raise ToolUnknown(name, ", ".join(sorted(self.tools)) or "none")
        return found

    def by_id(self) -> dict[str, Tool[..., Any]]:
        """Return the tools by their ids."""
        return {tool.id: tool for tool in self.tools.values()}

    def provider(self, name: str | None) -> Provider:
        """Return a model by its name."""
        if name is None:
            raise ModelMissing
        if name not in self.models:
            made = self._adapt(name)
            if made is None:
                known = (known for known in self.models if ":" not in known)
                raise ModelUnknown(name, ", ".join(sorted(known)) or "none")
            self.models[name] = made
        return self.models[name]

    def built(self, session_id: str, options: SessionOptions) -> list[SessionPlugin]:
        """Return the plugins of a session, built from the options captured for it."""
        given: Mapping[str, Any] = options.plugin_options or {}
        built = []
        for name, plugin in self.plugins.items():
            with FailsAs(partial(_plugin_failure, name)):
                built.append(plugin.build(session_id, given.get(name)))
        return built

    def check(self, options: SessionOptions) -> None:
        """Refuse options for plugins that are not there."""
        for name in options.plugin_options or ():
            if name not in self.plugins:
                known = ", ".join(sorted(self.plugins)) or "none"
                raise SessionOptionUnknown("plugin", name, known)

    def agent(self, name: str) -> Agent:
        """Return a kind of subagent."""
        if name not in self.agents:
            known = ", ".join(sorted(self.agents)) or "none"
            raise SessionOptionUnknown("agent", name, known)
        return self.agents[name]

    def offered(
        self, options: SessionOptions, plugins: Sequence[SessionPlugin]
    ) -> dict[str, Tool[..., Any]]:
        """Return the tools that a session's model may call, by name."""
        names = options.tools
        if names is None and options.agent is not None:
            names = self.agent(options.agent).tools
        if names is None:
            names = tuple(name for name in self.tools if name not in self.private)
        offered = {name: self.tool(name) for name in names}
        for plugin in plugins:
            with FailsAs(partial(_plugin_failure, type(plugin).__name__)):
                offered.update({tool.name: tool for tool in plugin.tools()})
        return offered

    def environment(
        self, options: SessionOptions, plugins: Sequence[SessionPlugin]
    ) -> TurnEnvironment:
        """Capture what a turn goes on with to its end."""
        if isinstance(options.history, Summarise) and options.history.model is not None:
            self.provider(options.history.model)  # now, rather than when the chat has become long
        agent = None if options.agent is None else self.agent(options.agent)
        instructions = options.instructions
        if instructions is None:
            instructions = self.instructions if agent is None else agent.instructions
        model = options.model or (agent.model if agent is not None else None) or self.model
        parts = (instructions, *(plugin.prompt() for plugin in plugins))
        tools = self.offered(options, plugins)
        return TurnEnvironment(
            model=model,
            prompt=tuple(part for part in parts if part),
            tools=tuple(tool.manifest for tool in tools.values()),
        )


def _plugin_failure(name: str, error: BaseException) -> PluginFailed:
    return PluginFailed(name, f"{type(error).__name__}: {message_of(error)}")
