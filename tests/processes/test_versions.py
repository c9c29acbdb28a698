"""Versions of a process side by side: a run keeps its own, new ones take the newest, and nothing is lost or blocked."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from pylash import EVENT, Lash, LashError, ProcessContext, WorkerConfig
from pylash.testing import kill
from tests.backends import EVERY_ENGINE, Backend, eventually

TypeAdapter(int)  # loads the plugins of pydantic, which reads files


def app_with(backend: Backend, *versions: int, **options: Any) -> Lash:
    """Return an app that declares versions of a process; each returns its number after a signal."""
    app = Lash(backend.url, **options)
    for number in versions:
        declare(app, number)
    return app


def declare(app: Lash, number: int, **options: Any) -> Any:
    async def order(ctx: ProcessContext[None]) -> int:
        await ctx.wait_signal("go")
        return number

    return app.process(name="order", version=number, **options)(order)


async def waits(app: Lash, *ids: str) -> None:
    async def all_wait() -> bool:
        views = {one.id: one.status for one in await app.processes()}
        return all(views[one] == "waiting" for one in ids)

    await eventually(all_wait)


async def started(backend: Backend, process_id: str, *versions: int) -> None:
    """Start the newest version, and kill its worker when it waits."""
    app = app_with(backend, *versions, worker=WorkerConfig(park_after=0))
    await app.open()
    await app.start(app.definitions["order"].options(id=process_id))
    await waits(app, process_id)
    await kill(app)


async def test_a_run_keeps_its_version_and_new_ones_take_the_newest(durable: Backend) -> None:
    await started(durable, "old", 1)
    async with app_with(durable, 1, 2) as app:
        await app.start(app.definitions["order"].options(id="new"))
        views = {one.id: (one.target, one.version) for one in await app.processes()}
        assert views == {"old": ("python:order", 1), "new": ("python:order", 2)}
        for process_id, version in (("old", 1), ("new", 2)):
            handle = app.process_handle(process_id)
            await handle.signal("go")
            assert await handle.result(timeout="20s") == version
            assert await handle.version() == version


@EVERY_ENGINE
async def test_an_old_version_is_started_by_its_definition(backend: Backend) -> None:
    app = backend.app()
    first, second = declare(app, 1), declare(app, 2)
    assert repr(second) == "ProcessDefinition('order', version=2)"
    async with app:
        for definition, version in ((first, 1), (second, 2)):
            handle = await app.start(definition.options(id=f"p{version}"))
            assert await handle.version() == version
            # The same id is the same process, whichever version asks for it.
            await app.start(second.options(id=f"p{version}"))
            await handle.signal("go")
            assert await handle.result(timeout="20s") == version


async def test_a_worker_without_the_version_leaves_the_run_to_others(durable: Backend) -> None:
    await started(durable, "new", 1, 2)
    async with app_with(durable, 1) as old:
        handle = old.process_handle("new")
        await handle.signal("go")
        # Other work of the same name goes on meanwhile.
        other = await old.start(old.definitions["order"].options(id="old"))
        await other.signal("go")
        assert await other.result(timeout="20s") == 1
        assert await handle.status() == "blocked"
        view = next(one for one in await old.processes(status="blocked") if one.id == "new")
        assert (view.reason, view.version) == ("unknown_target", 2)
        async with app_with(durable, 2):
            assert await handle.result(timeout="20s") == 2


async def test_a_name_that_looks_like_a_version_is_another_process(durable: Backend) -> None:
    await started(durable, "p", 1, 2)
    app = Lash(durable.url)

    @app.process(name="order@2")
    async def other(ctx: ProcessContext[None]) -> str:
        return "other"

    async with app:
        assert await (await app.start(other)).result(timeout="20s") == "other"
        handle = app.process_handle("p")
        await handle.signal("go")
        assert await handle.status() == "blocked"
        async with app_with(durable, 1, 2):
            assert await handle.result(timeout="20s") == 2


@pytest.mark.parametrize("limits", [{}, {"timeout": "1h", "concurrency": 3}])
async def test_a_recorded_start_of_a_child_stands_for_every_version(
    durable: Backend, limits: dict[str, Any]
) -> None:
    def app_of(*versions: int) -> Lash:
        app = Lash(durable.url, worker=WorkerConfig(park_after=0))
        for number in versions:
            declare(app, number, **({} if number == 1 else {"events": {"e": int}, **limits}))

        @app.process
        async def parent(ctx: ProcessContext[None]) -> Any:
            child = await ctx.start(app.definitions["order"])
            await ctx.wait_signal("next")
            first = await child.result()
            again = await ctx.start(app.definitions["order"])
            await again.signal("go")
            return [child.id, first, await again.result()]

        return app

    app = app_of(1)
    await app.open()
    await app.start(app.definitions["parent"].options(id="p"))
    child = (await _children(app))[0]
    await waits(app, "p", child)
    await kill(app)
    for versions in ((1, 2), (2, 3)):
        async with app_of(*versions) as app:
            if versions == (1, 2):
                await app.process_handle(child).signal("go")
                await app.process_handle(child).result(timeout="20s")
            else:
                await app.process_handle("p").signal("next")
                found = await app.process_handle("p").result(timeout="20s")
                assert found == [child, 1, 3]
                assert len(await _children(app)) == 2


async def _children(app: Lash) -> list[str]:
    found: list[str] = []

    async def are_there() -> bool:
        found[:] = [one.id for one in await app.processes() if one.target == "python:order"]
        return bool(found)

    await eventually(are_there)
    return found


async def test_continue_as_takes_the_newest_version_that_takes_the_arguments(
    durable: Backend,
) -> None:
    def app_of(*versions: int) -> Lash:
        app = Lash(durable.url, worker=WorkerConfig(park_after=0))

        async def first(ctx: ProcessContext[None], n: int) -> Any:
            await ctx.wait_signal("go")
            ctx.continue_as(n=n + 1)

        async def second(ctx: ProcessContext[None], n: int, tax: int = 7) -> Any:
            await ctx.emit("taken", n)
            await ctx.wait_signal("go")
            return [2, n, tax]

        async def third(ctx: ProcessContext[None], n: int, *, country: str) -> Any:
            return [3, n, country]

        for number, function in ((1, first), (2, second), (3, third)):
            events = {"taken": int} if number == 2 else {}
            if number in versions:
                app.process(name="order", version=number, events=events)(function)
        return app

    app = app_of(1)
    await app.open()
    await app.start(app.definitions["order"].options(id="p"), n=1)
    await waits(app, "p")
    await kill(app)
    async with app_of(1, 2, 3) as app:
        handle = app.process_handle("p")
        assert await handle.version() == 1
        await handle.signal("go")

        async def continued() -> bool:
            return await handle.version() == 2

        await eventually(continued)
    # The continuation belongs to version 2, also for claims.
    async with app_of(2, 3) as app:
        await app.process_handle("p").signal("go")
        assert await app.process_handle("p").result(timeout="20s") == [2, 2, 7]


@EVERY_ENGINE
async def test_continue_as_refuses_arguments_that_its_own_version_does_not_take(
    backend: Backend,
) -> None:
    app = backend.app()

    @app.process(name="order", version=2)
    async def second(ctx: ProcessContext[None], n: int) -> str:
        try:
            ctx.continue_as(m=1)
        except LashError as error:
            return error.code

    async with app:
        handle = await app.start(second, n=1)
        assert await handle.result(timeout="20s") == "arguments_invalid"


async def test_a_subscription_starts_the_newest_version_that_takes_its_inputs(
    durable: Backend,
) -> None:
    def app_of(*versions: int) -> Lash:
        app = Lash(durable.url)
        app.trigger("paid", payload=int)

        async def first(ctx: ProcessContext[None], cents: int) -> Any:
            return [1, cents]

        async def second(ctx: ProcessContext[None], cents: int) -> Any:
            await ctx.emit("taken", cents)
            return [2, cents]

        async def third(ctx: ProcessContext[None], cents: int, country: str) -> Any:
            return [3, cents, country]

        for number, function in ((1, first), (2, second), (3, third)):
            events = {"taken": int} if number == 2 else {}
            if number in versions:
                app.process(name="order", version=number, events=events)(function)
        return app

    async def emitted(app: Lash) -> Any:
        (delivery,) = await app.triggers.emit("paid", source_key="shop", payload=500)
        return await app.process_handle(delivery.process_id).result(timeout="20s")

    async with app_of(1) as app:
        target = app.definitions["order"]
        inputs = {"cents": EVENT}
        await app.triggers.register(
            "paid", source_key="shop", target=target, key="k", inputs=inputs
        )
        assert await emitted(app) == [1, 500]
    async with app_of(1, 2, 3) as app:
        assert await emitted(app) == [2, 500]


async def test_a_fork_keeps_the_version(backend: Backend) -> None:
    async with app_with(backend, 1, 2) as app:
        await app.start(app.definitions["order"].options(id="p"))
        await waits(app, "p")
        fork = await app.fork_process("p", id="f")
        assert await fork.version() == 2
        await fork.signal("go")
        assert await fork.result(timeout="20s") == 2


@pytest.mark.parametrize("version", [0, -1, True, "2", 1.0, None])
def test_a_wrong_version_is_refused(version: Any) -> None:
    with pytest.raises(
        LashError, match=r"version=.* is not a whole number of at least 1"
    ) as caught:
        declare(Lash("memory://"), version)
    assert caught.value.code == "arguments_invalid"


def test_a_version_is_declared_once() -> None:
    app = Lash("memory://")
    declare(app, 1)
    declare(app, 2)
    with pytest.raises(
        LashError, match=r"another version 2 of process 'order'.*version="
    ) as caught:
        declare(app, 2)
    assert caught.value.code == "name_taken"
    with pytest.raises(LashError, match="another process 'order'"):
        declare(app, 1)
