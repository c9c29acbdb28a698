"""What a turn is asked, with which options, and what it was captured with."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from pylash.turn.budgets import TurnBudget
from pylash.turn.histories import History
from pylash.turn.messages import Part
from pylash.turn.requests import ToolManifest
from pylash.values import write


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a session is opened: everything by name. None takes the app's."""

    model: str | None = None
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    agent: str | None = None
    mode: Literal["standard", "code"] = "standard"
    language: Literal["lashlang", "python"] = "lashlang"
    budget: TurnBudget | None = None
    history: History | None = None
    plugin_options: Any = None


class TurnAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn is asked. A turn that only empties a queue has no parts."""

    parts: tuple[Part, ...] = ()
    output_schema: Any = None
    options: SessionOptions = SessionOptions()

    def digest(self) -> bytes:
        """Return what tells two questions apart: the options are not part of the question."""
        return hashlib.sha256(write([self.parts, self.output_schema])).digest()


ASKS: msgspec.json.Decoder[TurnAsk] = msgspec.json.Decoder(TurnAsk)
"""Reads a stored question."""

OPTIONS: msgspec.json.Decoder[SessionOptions] = msgspec.json.Decoder(SessionOptions)
"""Reads stored options."""


class TurnEnvironment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn goes on with to its end, whatever is deployed meanwhile: prompt, tools, model."""

    model: str | None = None
    prompt: tuple[str, ...] = ()
    tools: tuple[ToolManifest, ...] = ()

    @property
    def body(self) -> bytes:
        """The environment as it is stored."""
        return write(self)

    @property
    def ref(self) -> str:
        """The name under which it is stored: the hash of its content."""
        return hashlib.sha256(self.body).hexdigest()


ENVIRONMENTS: msgspec.json.Decoder[TurnEnvironment] = msgspec.json.Decoder(TurnEnvironment)
"""Reads a stored environment."""
