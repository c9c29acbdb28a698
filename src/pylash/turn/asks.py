"""The input of a turn: its question, its options, and its captured environment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from pylash.turn.budgets import TurnBudget
from pylash.turn.histories import History, checked_history
from pylash.turn.messages import Part
from pylash.turn.requests import ToolManifest
from pylash.values.arguments import check_text, check_type
from pylash.values.canonical import refuse, write
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid, NotSupported


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a session, everything by name. None means the app's default."""

    model: str | None = None
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    agent: str | None = None
    mode: Literal["standard", "code"] = "standard"
    language: Literal["lashlang", "python"] = "lashlang"
    budget: TurnBudget | None = None
    history: History | None = None
    plugin_options: Any = None
    tags: tuple[str, ...] | None = None
    """Texts that lists are filtered by; no turn reads them."""


def checked_options(method: str, options: SessionOptions) -> SessionOptions:
    """Return valid options of a session; refuse those without effect and those that would fail later.

    Options are checked at the call, not when they are read: a store may contain older ones.
    """
    if options.mode == "code":
        raise NotSupported(
            f"{method}(mode='code')", "a model acts by calling tools; leave mode out"
        )
    if options.language == "python":
        raise NotSupported(
            f"{method}(language='python')", "there is no mode='code' yet; leave it out"
        )
    for name, given, wanted in (
        ("mode", options.mode, "standard"),
        ("language", options.language, "lashlang"),
    ):
        if given != wanted:
            raise ArgumentsInvalid(method, f"{name}={given!r} is not {wanted!r}")
    if options.model is not None:
        check_name("model name", options.model)
    if options.instructions is not None:
        check_text(method, "instructions", options.instructions)
        refuse(options.instructions, "$.instructions")
    check_type(method, "budget", options.budget, TurnBudget | None, "a TurnBudget")
    check_type(method, "plugin_options", options.plugin_options, Mapping | None, "a mapping")
    checked_history(options.history)
    return options


class TurnAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The question of a turn. A turn that only empties the queue has no parts."""

    parts: tuple[Part, ...] = ()
    output_schema: Any = None
    options: SessionOptions = SessionOptions()

    def digest(self) -> bytes:
        """Return the digest that identifies the question; the options are not part of it."""
        return hashlib.sha256(write([self.parts, self.output_schema])).digest()


ASKS: msgspec.json.Decoder[TurnAsk] = msgspec.json.Decoder(TurnAsk)
"""Reads a stored question."""

OPTIONS: msgspec.json.Decoder[SessionOptions] = msgspec.json.Decoder(SessionOptions)
"""Reads stored options."""


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often a tool is called again, and after how many seconds."""

    max: int
    delay: float
    factor: float = 2
    jitter: bool = True
    max_delay: float | None = None


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The policy that decides which effects a call of a tool consists of, and their order."""

    approval: bool | str = False
    asks: bool = False
    """Whether a function decides if a call needs approval: it is called as an effect."""
    serial: bool = False
    retry: RetryPolicy | None = None


class TurnEnvironment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings that a turn keeps to its end, also if a new version is deployed.

    Without them, new code could change the order of effects of a running turn. ``policies`` has only tools
    whose policy is not the default; ``listeners`` are the names of the plugins with a checkpoint; ``process_env`` is the
    reference of the app's environment, which subagents are started with. They are None in environments captured by older
    versions: then those of the worker's code apply.
    """

    model: str | None = None
    prompt: tuple[str, ...] = ()
    tools: tuple[ToolManifest, ...] = ()
    policies: dict[str, ToolPolicy] | None = None
    listeners: tuple[str, ...] | None = None
    process_env: str | None = None

    def stored(self) -> tuple[str, bytes]:
        """Return the ref under which the environment is stored, the hash of its content, and the content."""
        body = write(self)
        return hashlib.sha256(body).hexdigest(), body


ENVIRONMENTS: msgspec.json.Decoder[TurnEnvironment] = msgspec.json.Decoder(TurnEnvironment)
"""Reads a stored environment."""
