"""Durability tiers: a durable host over a store that forgets would lie to its users."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Any

import pytest

from pylash import DurableStoreRequired, InlineHost, Lash, ProcessContext
from pylash import app as composition
from pylash.durable.ports import DurabilityTier
from pylash.engine.hosts.durability import FACETS
from pylash.stores.store import SqlStore, open_store
from tests.backends import Backend


class DurableHost(InlineHost):
    """Says that it is durable."""

    durability = DurabilityTier.DURABLE


@pytest.mark.proves("E12")
async def test_a_durable_host_over_a_store_that_forgets_is_refused() -> None:
    with pytest.raises(DurableStoreRequired, match="attachment store"):
        await Lash("memory://", host=DurableHost()).open()


def forget(monkeypatch: pytest.MonkeyPatch, facets: Collection[str]) -> None:
    """Let apps open stores that keep some of their parts in a place that is lost with the program."""

    async def opened(*args: Any, **options: Any) -> SqlStore:
        store = await open_store(*args, **options)
        for name in facets:
            FACETS[name](store).durability = DurabilityTier.INLINE
        return store

    monkeypatch.setattr(composition, "open_store", opened)


def app_of(backend: Backend, events: list[str], **options: Any) -> Lash:
    def deps() -> None:
        events.append("deps")

    app = Lash(backend.url, deps=deps, **options)

    @app.process
    async def work(ctx: ProcessContext[None]) -> str:
        events.append("run")
        return "done"

    return app


@pytest.mark.proves("E12")
@pytest.mark.parametrize(
    "facets",
    [*((name,) for name in FACETS), *combinations(reversed([*FACETS]), 2), tuple(FACETS)],
    ids=", ".join,
)
async def test_the_first_facet_that_is_not_durable_is_named(
    durable: Backend, monkeypatch: pytest.MonkeyPatch, facets: tuple[str, ...]
) -> None:
    events: list[str] = []
    async with app_of(durable, [], worker=None) as client:
        await client.start(client.services.definitions["work"].options(id="p"))
    with monkeypatch.context() as patch:
        forget(patch, facets)
        first = next(name for name in FACETS if name in facets)
        with pytest.raises(DurableStoreRequired, match=f"a durable {first},") as caught:
            await app_of(durable, events).open()
    assert caught.value.code == "durable_store_required"
    assert caught.value.data == {"facet": first}
    assert events == []
    async with app_of(durable, events) as app:
        assert await app.process_handle("p").result(timeout="10s") == "done"
    assert events == ["deps", "run"]


@pytest.mark.proves("E12")
async def test_inline_hosts_impose_nothing(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch, FACETS)
    events: list[str] = []
    async with app_of(backend, events, host=InlineHost()) as app:
        handle = await app.start(app.services.definitions["work"])
        assert await handle.result(timeout="10s") == "done"


async def test_every_part_of_a_store_states_its_tier(backend: Backend) -> None:
    store = await backend.store()
    tier = DurabilityTier.INLINE if backend.url == "memory://" else DurabilityTier.DURABLE
    assert {facet(store).durability for facet in FACETS.values()} == {tier}
    assert store.durability is tier


async def test_a_worker_on_a_host_without_static_scopes_is_refused() -> None:
    host = InlineHost()
    host.gives_static_scopes = False
    app = Lash("memory://", host=host)
    with pytest.raises(Exception, match="must provide a static process scope"):
        await app.open()
