"""The scheduler of a worker when the store does not answer its claims."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from pylash import Lash, ProcessContext, WorkerConfig
from pylash.stores.store import SqlStore
from pylash.values.errors import StoreUnavailable
from tests.backends import Backend, eventually, worker_of


async def all_slots_are_free(app: Lash) -> bool:
    return worker_of(app).machine.free == 4  # but for a moment in which it looks for work


async def test_runs_of_a_claim_whose_answer_is_lost_are_executed(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, executed, lost = (
        Lash(durable.url, worker=WorkerConfig(concurrency=4)),
        list[int](),
        list[Any](),
    )

    async def note(n: int) -> int:
        executed.append(n)
        return n

    @app.process
    async def story(ctx: ProcessContext[None], n: int) -> int:
        return await ctx.step(note, n)

    async with app:
        assert isinstance(app.store, SqlStore)
        honest = app.store.runs.claim

        async def claim(*given: Any, **more: Any) -> Any:
            claims = await honest(*given, **more)
            if claims and not lost:
                lost.extend(claims)
                raise StoreUnavailable("the answer is lost")
            return claims

        monkeypatch.setattr(app.store.runs, "claim", claim)
        handles = [await app.start(story.options(delay="20ms"), n=n) for n in range(8)]
        assert [await handle.result(timeout="10s") for handle in handles] == list(range(8))
        await eventually(partial(all_slots_are_free, app))
    assert lost
    assert sorted(executed) == list(range(8))
