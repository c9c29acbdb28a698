"""Durability tiers: a durable host needs stores that survive the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pylash.durable.ports import DurabilityTier, EffectHost
from pylash.values.process_errors import DurableStoreRequired

FACETS: Final = (
    "attachment store",
    "process env store",
    "session store",
    "process registry",
    "trigger store",
)
"""What a process runs against, in the order in which it is checked."""


def require_durable_stores(
    host: EffectHost, tier: DurabilityTier | Mapping[str, DurabilityTier]
) -> None:
    """Refuse a durable host over any store that is not, naming the first; inline hosts take all."""
    if host.durability is not DurabilityTier.DURABLE:
        return
    for facet in FACETS:
        found = tier if isinstance(tier, DurabilityTier) else tier[facet]
        if found is not DurabilityTier.DURABLE:
            raise DurableStoreRequired(facet)
