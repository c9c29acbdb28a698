"""Turns of code mode, for the cases of kind `model`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pylash.testing.lashlang.cases import Case
from pylash.testing.lashlang.journal import Defect


@dataclass
class TurnSeen:
    """How a turn went: `requests` are the texts that the model was shown, in order."""

    status: str
    text: str = ""
    value: Any = None
    cells: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    prints: list[Any] = field(default_factory=list)
    sleeps: list[int] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)


def run_turn(case: Case) -> TurnSeen:
    """Run one turn of a fresh session with the scripted replies of a case."""
    raise Defect(f"{case.id}: code mode is not built yet")
