"""Durability tiers: a durable host over a store that forgets would lie to its users."""

from __future__ import annotations

import pytest

from pylash import DurableStoreRequired, Lash
from pylash.durable.ports import DurabilityTier
from pylash.engine.hosts.durability import FACETS, require_durable_stores
from pylash.engine.hosts.inline import InlineHost


class DurableHost(InlineHost):
    """Says that it is durable."""

    durability = DurabilityTier.DURABLE


@pytest.mark.proves("E12")
async def test_a_durable_host_over_a_store_that_forgets_is_refused() -> None:
    with pytest.raises(DurableStoreRequired, match="attachment store"):
        await Lash("memory://", host=DurableHost()).open()


@pytest.mark.proves("E12")
@pytest.mark.parametrize("facet", FACETS)
def test_the_first_facet_that_is_not_durable_is_named(facet: str) -> None:
    later = FACETS[FACETS.index(facet) :]
    tiers = {
        one: DurabilityTier.INLINE if one in later else DurabilityTier.DURABLE for one in FACETS
    }
    with pytest.raises(DurableStoreRequired) as caught:
        require_durable_stores(DurableHost(), tiers)
    assert caught.value.data == {"facet": facet}


def test_inline_hosts_and_durable_stores_are_taken() -> None:
    require_durable_stores(InlineHost(), DurabilityTier.INLINE)
    require_durable_stores(DurableHost(), dict.fromkeys(FACETS, DurabilityTier.DURABLE))


async def test_a_worker_on_a_host_without_static_scopes_is_refused() -> None:
    host = InlineHost()
    host.gives_static_scopes = False
    app = Lash("memory://", host=host)
    with pytest.raises(Exception, match="must provide a static process scope"):
        await app.open()
