"""Subscriptions of sessions: the started process belongs to the session."""

from __future__ import annotations

from pylash import EVENT, Lash, ProcessContext
from pylash.durable.processes import HostRef, SessionRef


async def test_originator_and_wake_target_are_the_session_that_subscribed() -> None:
    app = Lash("memory://")

    @app.process
    async def build(ctx: ProcessContext[None], event: int) -> int:
        return event

    app.trigger("push", payload=int)
    async with app:
        for key, session in (("ann's", "ann"), ("nobody's", None)):
            await app.triggers.register(
                "push",
                source_key="repo",
                target=build,
                key=key,
                inputs={"event": EVENT},
                session_id=session,
            )
        deliveries = await app.triggers.emit("push", source_key="repo", payload=7)
        found = {}
        for delivery in deliveries:
            record = await app.store.processes.get(delivery.process_id)
            assert record is not None
            found[delivery.subscription] = record.registration
    ann = SessionRef("ann")
    assert (found["ann's"].originator, found["ann's"].wake_target) == (ann, ann)
    assert (found["nobody's"].originator, found["nobody's"].wake_target) == (HostRef(), None)
