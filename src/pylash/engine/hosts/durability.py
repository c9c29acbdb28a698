"""Durability tiers: a durable host needs stores that survive the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from pylash.durable.ports import DurabilityTier, EffectHost
from pylash.durable.stores import Store
from pylash.values.process_errors import DurableStoreRequired


class Facet(Protocol):
    """A part of a store: a store may keep each part in a place of its own."""

    durability: DurabilityTier


FACETS: Final[Mapping[str, Callable[[Store], Facet]]] = {
    "attachment store": lambda store: store.attachments,
    "process env store": lambda store: store.envs,
    "session store": lambda store: store.sessions,
    "process registry": lambda store: store.processes,
    "trigger store": lambda store: store.triggers,
}
"""What a process runs against, in the order in which it is checked."""


def require_durable_stores(host: EffectHost, store: Store) -> None:
    """Refuse a durable host over a store of which a part is not durable, naming the first; inline hosts take all."""
    if host.durability is not DurabilityTier.DURABLE:
        return
    for name, facet in FACETS.items():
        if facet(store).durability is not DurabilityTier.DURABLE:
            raise DurableStoreRequired(name)
