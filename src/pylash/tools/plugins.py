"""Plugins: reusable parts of an agent.

A plugin is a factory with a name. For each session it builds an object with tools, a part of the prompt, and
messages between the iterations of a turn. Only names and options are captured, so that any worker can build
it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from pylash.tools.tool import Tool
from pylash.turn.messages import Message


class TurnView(msgspec.Struct, frozen=True):
    """The state of a turn at a checkpoint."""

    session_id: str
    turn_id: str
    iteration: int
    messages: Sequence[Message]
    on_sync: Callable[[], None] = lambda: None

    def sync_environment(self) -> None:
        """Have the prompt and the tools of the turn captured again before the model's next call: they changed.

        >>> async def checkpoint(self, turn: TurnView) -> Sequence[str]:
        ...     if await self.load_skills():
        ...         turn.sync_environment()
        ...     return ()
        """
        self.on_sync()


class SessionPlugin:
    """The plugin of one session: override what you need.

    >>> class Clock(SessionPlugin):
    ...     def prompt(self) -> str:
    ...         return "Dates are written as 2026-11-16."
    """

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return tools for the model."""
        return ()

    def prompt(self) -> str | None:
        """Return a part of the prompt."""
        return None

    async def checkpoint(self, turn: TurnView) -> Sequence[str]:  # noqa: ARG002 - for subclasses
        """Return messages for the model before its next call; recorded, so that it is called once."""
        return ()


@runtime_checkable
class PluginFactory(Protocol):
    """Builds plugins of sessions."""

    name: str

    def build(self, session_id: str, options: Any) -> SessionPlugin:
        """Return the plugin of a session, from the options that were captured for it."""
        ...


@runtime_checkable
class ToolProvider(Protocol):
    """Gives an app tools: ``app.use(provider)``."""

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return the tools."""
        ...


def has_checkpoint(plugin: SessionPlugin) -> bool:
    """Return whether a plugin has a checkpoint."""
    return type(plugin).checkpoint is not SessionPlugin.checkpoint
