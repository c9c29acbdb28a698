"""The composition root: wires a store, a clock and a host together, and decides nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pylash.durable import Clock, LeaseTimings, Signer
from pylash.runtime import JournalHost, SystemClock, system_entropy
from pylash.stores import open_store

DEFAULT_STORE = "sqlite:///pylash.db"


@asynccontextmanager
async def open_host(
    store: str | None = None,
    *,
    secret: str | bytes | Sequence[str | bytes] | None = None,
    clock: Clock | None = None,
    timings: LeaseTimings | None = None,
    migrate: bool | None = None,
) -> AsyncIterator[JournalHost]:
    """Open a store and a durable effect host over it.

    ``store`` defaults to ``PYLASH_STORE`` or else ``sqlite:///pylash.db``, ``secret`` to
    ``PYLASH_SECRET`` or the one the store made for itself; of several secrets the first signs and all
    verify. A ``clock`` of your own becomes
    the store's clock too.

    >>> async with open_host("sqlite:///agents.db") as host:
    ...     controller = host.scoped(ProcessScope("nightly"))
    """
    opened = await open_store(
        os.environ.get("PYLASH_STORE") or DEFAULT_STORE if store is None else store,
        clock=clock or SystemClock(),
        entropy=system_entropy,
        migrate=migrate,
        simulated=clock is not None,
    )
    try:
        given = (os.environ.get("PYLASH_SECRET") or opened.secret) if secret is None else secret
        host = JournalHost(
            opened,
            clock=clock or SystemClock(),
            entropy=system_entropy,
            signer=Signer(_secrets(given)),
            timings=timings,
        )
        await host.open()
        try:
            yield host
        finally:
            await host.close()
    finally:
        await opened.close()


def _secrets(secret: str | bytes | Sequence[str | bytes]) -> list[bytes]:
    several = [secret] if isinstance(secret, str | bytes) else secret
    return [one.encode() if isinstance(one, str) else one for one in several]
