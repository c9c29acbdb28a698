"""What a model is asked and what it answers: the port of model providers."""

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
    crash has the same number. ``output_schema`` is what the answer must fit, if anything.
    """

    messages: Sequence[SystemMessage | Message]
    tools: tuple[ToolManifest, ...] = ()
    model: str | None = None
    call_number: int = 0
    output_schema: Any = None
    session_id: str = ""
    turn_id: str = ""


class CallRequest(msgspec.Struct, frozen=True):
    """A tool call as the provider gave it; broken JSON stays the text it was."""

    tool: str
    arguments: Any = None
    provider_id: str | None = None


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a model answered. ``provider_state`` comes back with the stored message."""

    text: str = ""
    calls: tuple[CallRequest, ...] = ()
    reasoning: str = ""
    usage: Usage = Usage(requests=1)
    finish_reason: str | None = None
    model: str | None = None
    provider_state: Any = None
    attachments: tuple[Attachment, ...] = ()


class Delta(msgspec.Struct, frozen=True):
    """A piece of an answer, while it is being made."""

    text: str
    kind: Literal["text", "reasoning"] = "text"


Listen = Callable[[Delta], None]
"""Takes pieces of an answer. It never fails and never waits."""


@runtime_checkable
class Provider(Protocol):
    """A model.

    One with ``reads_lazily = True`` looks at old messages rarely, or in a thread: those of a long session
    are then read when it does, wherever they are stored.
    """

    async def respond(self, request: ModelRequest, listen: Listen) -> ModelReply:
        """Answer request, telling ``listen`` the pieces as they come.

        Raises ProviderError; ``retryable`` says whether asking again may help.
        """
        ...
