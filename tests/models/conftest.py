"""Every test of models speaks to each vendor's format in turn, through the vendor's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.models.wire import DIALECTS, KEY, Dialect, WireServer, wire_server


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
async def server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WireServer]:
    """Run a server of each dialect, and point the vendors' names to it."""
    async with wire_server(request.param) as made:
        point(monkeypatch, made)
        yield made


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, WireServer]]:
    """Run a server of one format of each vendor."""
    chat, _, anthropic, _ = DIALECTS
    async with wire_server(chat) as first, wire_server(anthropic) as second:
        point(monkeypatch, first)
        point(monkeypatch, second)
        yield {"chat": first, "anthropic": second}


def point(monkeypatch: pytest.MonkeyPatch, server: WireServer) -> None:
    """Make the names of a vendor lead to a server."""
    dialect: Dialect = server.dialect
    named = {"anthropic": ("ANTHROPIC", "ANTHROPIC", ""), "google": ("GOOGLE_GEMINI", "GOOGLE", "")}
    address, key, path = named.get(dialect.name, ("OPENAI", "OPENAI", "/v1"))
    monkeypatch.setenv(f"{address}_BASE_URL", server.url + path)
    monkeypatch.setenv(f"{key}_API_KEY", KEY)
