"""Claims whose COMMIT succeeded, but whose answer was lost: the repetition returns the same claims."""

from __future__ import annotations

import pytest

from pylash.durable.runs import Claim
from pylash.testing.laws.stores.subjects import TARGET, claim_ready, enqueued, joined
from tests.backends import Backend
from tests.stores.lost_answers import answer_lost


@pytest.mark.parametrize("named", [False, True])
async def test_a_claim_after_a_lost_answer_returns_what_it_claimed(
    durable: Backend, named: bool
) -> None:
    store = await durable.store()
    worker = await joined(store)
    for _ in range(3):
        await enqueued(store)
    last = await store.runs.get(await enqueued(store))
    assert last is not None
    answer_lost(store, "claim")
    first = [last.id] if named else []
    claims = await store.runs.claim(worker, limit=2, targets=[TARGET], first=first)
    assert len(claims) == 2
    assert (last.id in {claim.fence.run for claim in claims}) is named
    assert {claim.fence for claim in claims} == set(await store.runs.owned_by(worker))
    rest = await claim_ready(store, worker)
    assert not {claim.fence for claim in rest} & {claim.fence for claim in claims}
    assert len(rest) == 2


async def test_a_claim_is_empty_if_its_runs_were_taken_over_after_a_lost_answer(
    durable: Backend,
) -> None:
    store = await durable.store()
    await enqueued(store)
    late, other = await joined(store, -1), await joined(store)
    taken: list[Claim] = []

    async def take_over() -> None:
        await store.workers.bury_the_dead(other)
        taken.extend(await claim_ready(store, other))
        await store.workers.join(late, 60_000_000)

    answer_lost(store, "claim", take_over)
    assert await claim_ready(store, late) == []
    assert len(taken) == 1
