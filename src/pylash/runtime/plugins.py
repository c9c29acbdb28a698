"""Plugins: parts of an agent that can be put together.

A plugin is a factory with a name. For each session it builds what that session gets: tools, a part of
the prompt, and a word between the iterations of a turn. Only names and options are captured, so that any
worker can build it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from pylash.runtime.tools import Tool
from pylash.turn import Message


class TurnView(msgspec.Struct, frozen=True):
    """What a plugin sees of a turn at a checkpoint."""

    session_id: str
    turn_id: str
    iteration: int
    messages: Sequence[Message]


class SessionPlugin:
    """What a plugin gives one session: override what you need.

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

    async def checkpoint(self, turn: TurnView) -> Sequence[str]:  # noqa: ARG002 - for those who override it
        """Return what to tell the model before it is asked again; recorded, so that it is asked once."""
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


def listens(plugin: SessionPlugin) -> bool:
    """Return whether a plugin has anything to say at checkpoints."""
    return type(plugin).checkpoint is not SessionPlugin.checkpoint
