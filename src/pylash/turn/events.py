"""Turn events: sent to listeners while a turn runs, best effort."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pylash.turn.messages import Usage

EventKind = Literal[
    "turn_started",
    "text_delta",
    "text_reset",
    "reasoning_delta",
    "tool_started",
    "tool_progress",
    "tool_completed",
    "wait_opened",
    "code_started",
    "code_completed",
    "usage",
    "turn_completed",
]


class TurnEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened in a turn. ``correlation_id`` is the call or the reply that it belongs to.

    ``text`` is the piece of a delta, or the progress or result of a tool; ``data`` is a
    tool's arguments or the description of a wait; ``status`` is how a tool or the turn ended. An ``attempt``
    above 1 announces a retry of a model (``text_reset``) or a tool (``tool_progress``), with the reason in ``text``.
    """

    type: EventKind
    correlation_id: str
    text: str = ""
    tool: str | None = None
    data: Any = None
    status: str | None = None
    fraction: float | None = None
    usage: Usage | None = None
    attempt: int = 1
