"""The fixtures of the shipped plugin, also where pylash is not installed, and clean counters."""

from __future__ import annotations

import pytest

from pylash.testing.plugin import lash, lash_app
from tests.integrations.agents import ran

__all__ = ("lash", "lash_app")


@pytest.fixture(autouse=True)
def count_from_nothing() -> None:
    ran.clear()
