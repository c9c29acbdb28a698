"""pylash with a model of pydantic-ai: the same app, through the adapter that real models use.

Rule 1. The model is the one that pydantic-ai itself is measured with.
"""

from __future__ import annotations

from typing import Any

from benchmarks.contender import Contender
from benchmarks.contenders.pydantic_agent import scripted
from benchmarks.contenders.pylash_agent import PylashAgentContender


def contender(store: str, url: str) -> Contender:
    """Return pylash's agents, with models of pydantic-ai, on a store."""
    return PylashPydanticContender(store, url)


class PylashPydanticContender(PylashAgentContender):
    """The same apps, with another model."""

    def model(self) -> Any:
        return scripted(self.script)
