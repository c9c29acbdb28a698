"""One backend where three would test the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.backends import Backend, MemoryBackend, SqliteBackend


@pytest.fixture
async def memory() -> AsyncIterator[Backend]:
    """Give a backend that is gone with its process."""
    async with MemoryBackend() as made:
        yield made


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Backend]:
    """Give a backend that survives its process."""
    async with SqliteBackend(tmp_path) as made:
        yield made
