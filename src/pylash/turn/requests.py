"""The request to a model and its reply: the port of model providers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from pylash.turn.messages import Attachment, Message, SystemMessage, Usage


class ToolManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as a model sees it. ``id`` is its name with its module, such as ``tools.lookup``."""

    name: str
    description: str = ""
    schema: Any = None
    id: str = ""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call: everything a provider needs, with references resolved.

    ``call_number`` counts the calls of the session before this one; a call that is repeated after a
    crash has the same number. ``output_schema`` is the schema of the answer, if any.
    """

    messages: Sequence[SystemMessage | Message]
    tools: tuple[ToolManifest, ...] = ()
    model: str | None = None
    call_number: int = 0
    output_schema: Any = None
    session_id: str = ""
    turn_id: str = ""


class CallRequest(msgspec.Struct, frozen=True):
    """A tool call as the provider gave it; invalid JSON is kept as text."""

    tool: str
    arguments: Any = None
    provider_id: str | None = None


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a model. ``provider_state`` is sent back with the stored message."""

    text: str = ""
    calls: tuple[CallRequest, ...] = ()
    reasoning: str = ""
    usage: Usage = Usage(requests=1)
    finish_reason: str | None = None
    model: str | None = None
    provider_state: Any = None
    attachments: tuple[Attachment, ...] = ()


class Delta(msgspec.Struct, frozen=True):
    """A piece of an answer, while it is being streamed."""

    text: str
    kind: Literal["text", "reasoning"] = "text"


Listen = Callable[[Delta], None]
"""Callback for pieces of an answer. It must not fail or block."""


@runtime_checkable
class Provider(Protocol):
    """A model."""

    async def respond(self, request: ModelRequest, listen: Listen) -> ModelReply:
        """Answer request, passing the pieces to ``listen`` as they arrive.

        Raises ProviderError, whose ``retryable`` tells whether a retry may help.
        """
        ...
