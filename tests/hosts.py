"""Hosts that are given to an app, over each kind of host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pylash.app import open_host
from pylash.engine.hosts.inline import InlineHost
from tests.observing_host import ObservingHost

HOSTS = pytest.mark.parametrize("kind", ["inline", "journal"])


@asynccontextmanager
async def observed(kind: str, url: str) -> AsyncIterator[ObservingHost]:
    """Give an observing host over an inline host, or over a journal of the app's store."""
    if kind == "inline":
        yield ObservingHost(InlineHost())
    else:
        async with open_host(url) as journal:
            yield ObservingHost(journal)
