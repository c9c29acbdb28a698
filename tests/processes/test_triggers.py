"""Triggers: what happens outside starts processes, each once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import (
    EVENT,
    ArgumentsInvalid,
    Lash,
    ProcessContext,
    TriggerConflict,
    TriggerUnknown,
)
from tests.backends import Backend


class Push(BaseModel):
    """What a push is."""

    branch: str
    commits: int = 1


def app_with_trigger(url: str) -> tuple[Lash, Any]:
    app = Lash(url)
    app.trigger("github.push", payload=Push)

    @app.process
    async def on_push(ctx: ProcessContext[None], event: Push, branch: str) -> str:
        return f"{event.branch} {event.commits} {branch}"

    return app, on_push


@pytest.mark.proves("G1")
async def test_an_event_starts_what_is_subscribed_to_it_once(backend: Backend) -> None:
    app, on_push = app_with_trigger(backend.url)
    async with app:
        inputs = {"event": EVENT, "branch": "main"}
        for key, source in (("ci", "org/repo"), ("other", "org/other")):
            await app.triggers.register(
                "github.push", source_key=source, target=on_push, key=key, inputs=inputs
            )

        async def emit() -> list[str]:
            deliveries = await app.triggers.emit(
                "github.push",
                source_key="org/repo",
                payload={"branch": "dev"},
                idempotency_key="delivery-1",
            )
            return [delivery.process_id for delivery in deliveries]

        async with asyncio.TaskGroup() as group:
            emitted = [group.create_task(emit()) for _ in range(5)]
        assert len({tuple(task.result()) for task in emitted}) == 1
        ((process,),) = {tuple(task.result()) for task in emitted}
        assert await app.process_handle(process).result(timeout="10s") == "dev 1 main"
        assert len(await app.processes()) == 1


async def test_the_same_key_with_another_payload_is_refused(backend: Backend) -> None:
    app, _ = app_with_trigger(backend.url)
    async with app:
        emit = app.triggers.emit
        await emit("github.push", source_key="r", payload=Push(branch="a"), idempotency_key="1")
        with pytest.raises(TriggerConflict):
            await emit("github.push", source_key="r", payload=Push(branch="b"), idempotency_key="1")


@pytest.mark.proves("G1")
async def test_subscriptions_are_listed_replaced_and_cancelled(backend: Backend) -> None:
    app, on_push = app_with_trigger(backend.url)
    async with app:
        register = app.triggers.register
        for source in ("org/a", "org/b"):
            await register(
                "github.push",
                source_key=source,
                target=on_push,
                key="ci",
                inputs={"event": EVENT, "branch": "main"},
                session_id="chat-1",
            )
        (view,) = await app.triggers.list()
        assert (view.subscription.key, view.subscription.source) == ("ci", "org/b")
        assert await app.triggers.cancel("ci") is True
        assert await app.triggers.cancel("ci") is False
        assert await app.triggers.list() == []
        sent = await app.triggers.emit("github.push", source_key="org/b", payload={"branch": "x"})
        assert sent == []


async def test_what_does_not_fit_is_refused_where_it_is_given(backend: Backend) -> None:
    app, on_push = app_with_trigger(backend.url)
    async with app:
        with pytest.raises(TriggerUnknown, match=r"declared: github\.push"):
            await app.triggers.emit("github.pull", source_key="r")
        with pytest.raises(ArgumentsInvalid, match=r"trigger 'github\.push'"):
            await app.triggers.emit("github.push", source_key="r", payload={"commits": 1})
        with pytest.raises(ArgumentsInvalid, match="missing a required argument: 'event'"):
            await app.triggers.register(
                "github.push", source_key="r", target=on_push, key="k", inputs={"sourrce": EVENT}
            )
        assert await app.triggers.list() == []
