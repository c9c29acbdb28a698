"""What a turn is asked, with which options, and what it was captured with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from pylash.turn.budgets import TurnBudget
from pylash.turn.histories import History, checked_history
from pylash.turn.messages import Part
from pylash.turn.requests import ToolManifest
from pylash.values import ArgumentsInvalid, NotSupported, write


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


def checked_options(method: str, options: SessionOptions) -> SessionOptions:
    """Return options that a session can have, or refuse those that would do nothing or fail later.

    Options are checked where they are given, not when they are read: a store may hold older ones.
    """
    if options.mode == "code":
        raise NotSupported(
            f"{method}(mode='code')", "a model acts by calling tools; leave mode out"
        )
    if options.language == "python":
        raise NotSupported(
            f"{method}(language='python')", "there is no mode='code' yet; leave it out"
        )
    for name, given, fits, wanted in (
        ("mode", options.mode, options.mode == "standard", "'standard'"),
        ("language", options.language, options.language == "lashlang", "'lashlang'"),
        ("model", options.model, _is(options.model, str), "the name of a model"),
        ("instructions", options.instructions, _is(options.instructions, str), "a text"),
        ("budget", options.budget, _is(options.budget, TurnBudget), "a TurnBudget"),
        (
            "plugin_options",
            options.plugin_options,
            _is(options.plugin_options, Mapping),
            "a mapping",
        ),
    ):
        if not fits:
            raise ArgumentsInvalid(method, f"{name}={given!r} is not {wanted}")
    checked_history(options.history)
    return options


def _is(given: object, kind: type) -> bool:
    return given is None or isinstance(given, kind)


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
