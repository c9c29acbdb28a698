"""Triggers that programs register: each event starts their target once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import EVENT, Lash, LashlangError
from tests.backends import Backend
from tests.workflows.scenes import Shop


class Push(BaseModel):
    """What a push is."""

    branch: str
    commits: int = 1


SOURCE = """
process main(repo: str) {
  h = await triggers.register({
    source: github.push({ source_key: repo }), target: on_push,
    inputs: { event: trigger.event, tag: "nightly" }, name: "ci",
  })?
  second = await triggers.register({
    source: github.push({ source_key: repo }), target: other, inputs: { event: trigger.event }, key: "mine",
  })?
  finish [h, second, await triggers.list({ name: "ci" })?, await triggers.list({ target: other })?]
}
process on_push(event: github.push.Event, tag: str) {
  finish event.branch + " " + event.commits + " " + tag
}
process other(event: github.push.Event) { finish event.commits }
process stop(key: str) { finish [await triggers.cancel({ key: key })?, await triggers.cancel({ key: key })?] }
process names() { finish [h.key for h in await triggers.list({})?] }
"""


def shop_with_trigger(url: str) -> Shop:
    shop = Shop(url)
    shop.app.trigger("github.push", payload=Push, sessions=True)
    return shop


async def emitted(app: Lash, key: str, source: str = "org/a") -> list[Any]:
    """Emit an event, several times at once; return what the processes it started finish with."""
    payload = {"branch": "dev", "commits": 3}

    async def emit() -> list[str]:
        found = await app.triggers.emit(
            "github.push", source_key=source, payload=payload, idempotency_key=key
        )
        return [delivery.process_id for delivery in found]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(emit()) for _ in range(3)]
    (started,) = {tuple(task.result()) for task in tasks}
    return [await app.process_handle(one).result(timeout="10s") for one in started]


async def test_a_program_subscribes_and_each_event_starts_its_targets_once(
    backend: Backend,
) -> None:
    shop = shop_with_trigger(backend.url)
    async with shop.app:
        ours, other, named, targeted = await shop.run(SOURCE, repo="org/a")
        assert ours["key"].startswith("derived/v1/")
        assert {**ours, "id": "", "key": ""} == {
            "type": "trigger_handle",
            "id": "",
            "key": "",
            "name": "ci",
            "source_type": "github.push.Source",
            "target": "on_push",
        }
        assert (other["key"], other["name"], other["target"]) == ("mine", None, "other")
        assert (named, targeted) == ([ours], [other])
        again = await shop.run(SOURCE, process_id="again", repo="org/a")
        assert again[:2] == [ours, other]  # the same keys: the same subscriptions
        assert sorted(await emitted(shop.app, "1"), key=str) == [3, "dev 3 nightly"]
        assert await emitted(shop.app, "2", "org/b") == []
        before = len(await shop.app.processes())
        await emitted(shop.app, "1")
        assert len(await shop.app.processes()) == before
        cancelled = await shop.run(SOURCE, process="stop", process_id="s", key="mine")
        assert cancelled == [
            {"key": "mine", "cancelled": True},
            {"key": "mine", "cancelled": False},
        ]
        assert await emitted(shop.app, "3") == ["dev 3 nightly"]


async def test_owners_have_keys_of_their_own_and_see_only_those() -> None:
    shop = shop_with_trigger("memory://")
    async with shop.app:
        module = await shop.app.lashlang(SOURCE)
        for owner in ("ann", "ben", None):
            options = module["main"].options(id=f"m-{owner}", wake=owner)
            await (await shop.app.start(options, repo="org/a")).result(timeout="10s")
        names = [module["names"].options(id=f"n-{owner}", wake=owner) for owner in ("ann", None)]
        seen = [await (await shop.app.start(one)).result(timeout="10s") for one in names]
        stop = module["stop"].options(id="stop", wake="ann")
        await (await shop.app.start(stop, key="mine")).result(timeout="10s")
        left = await emitted(shop.app, "1")
    assert [[key.partition("/")[0] for key in keys] for keys in seen] == [["derived", "mine"]] * 2
    assert sorted(left, key=str) == [3, 3, *["dev 3 nightly"] * 3]


async def test_a_python_program_subscribes_a_process_of_a_module() -> None:
    shop = shop_with_trigger("memory://")
    async with shop.app:
        module = await shop.app.lashlang(SOURCE)
        await shop.app.triggers.register(
            "github.push",
            source_key="org/a",
            target=module["on_push"],
            key="ci",
            inputs={"event": EVENT, "tag": "py"},
        )
        assert await emitted(shop.app, "1") == ["dev 3 py"]
        assert await shop.run(SOURCE, process="names") == ["ci"]


async def test_names_that_no_program_could_write_are_spelt_with_underscores() -> None:
    app = Lash("memory://")
    app.trigger("order-paid", payload=int)
    app.trigger("2024.x y", payload=int)

    @app.tool(name="list-files")
    async def files(folder: str) -> str:
        """List files."""
        return folder

    @app.tool(module="triggers", name="look")
    async def look() -> str:
        """Look."""
        return "seen"

    source = """
    process main() {
      h = await triggers.register({
        source: events.order_paid({ source_key: "s" }), target: on, inputs: { n: trigger.event }, key: "k",
      })?
      x = _2024.x_y({ source_key: "s" })
      finish [h.source_type, await tools.list_files({ folder: "f" })?, await triggers.look()?]
    }
    process on(n: events.order_paid.Event) { finish n }"""
    async with app:
        module = await app.lashlang(source)
        started = await app.start(module["main"])
        assert await started.result(timeout="10s") == ["events.order_paid.Source", "f", "seen"]
        emit = app.triggers.emit
        (one,) = await emit("order-paid", source_key="s", payload=7, idempotency_key="1")
        assert await app.process_handle(one.process_id).result(timeout="10s") == 7
    other = Lash("memory://")  # what one app has, another has not
    async with other:
        with pytest.raises(LashlangError, match="look"):
            await other.lashlang("process main() { finish await triggers.look()? }")
