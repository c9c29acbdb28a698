"""Lists of processes: by status, name and time, in pages that stay as they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pylash import (
    ArgumentsInvalid,
    Lash,
    NameInvalid,
    ProcessContext,
    ProcessFailed,
    ProcessUnknown,
    WorkerConfig,
)
from pylash.testing import SimClock
from tests.backends import Backend, eventually

CLIENT = {"worker": None}


def shop(url: str, **options: Any) -> Lash:
    app = Lash(url, **options)

    @app.process
    async def order(ctx: ProcessContext[None], n: int = 0) -> int:
        return n

    @app.process(name="order", version=2)
    async def order_v2(ctx: ProcessContext[None], n: int = 0) -> int:
        return n

    @app.process
    async def refund(ctx: ProcessContext[None]) -> None:
        raise RuntimeError("no money")

    @app.process
    async def waiting(ctx: ProcessContext[None], times: int = 0) -> None:
        if times:
            await ctx.continue_as(times=times - 1)
        await ctx.wait_signal("go")

    app.started = {"order": order, "order_v2": order_v2, "refund": refund, "waiting": waiting}  # type: ignore[attr-defined]
    return app


async def start(app: Lash, name: str, process_id: str, **arguments: Any) -> Any:
    definition = app.started[name]  # type: ignore[attr-defined]
    return await app.start(definition.options(id=process_id), **arguments)


async def ids(app: Lash, **wanted: Any) -> list[str]:
    return [view.id for view in await app.processes(**wanted)]


async def pages(app: Lash, limit: int, **wanted: Any) -> list[str]:
    """Return a list page by page; processes are started after each of the first pages."""
    found: list[str] = []
    after = None
    while page := await ids(app, limit=limit, after=after, **wanted):
        found += page
        after = page[-1]
        for name in ("order", "order_v2") if len(found) < 10 else ():
            await start(app, name, f"{name}-meanwhile-{len(found)}-{wanted}")
    return found


async def test_a_name_finds_all_versions_of_a_process(backend: Backend) -> None:
    async with shop(backend.url) as app:
        first = [f"a-{n}" for n in range(60)]
        for one in first:
            await (await start(app, "order", one)).result(timeout="10s")
        await (await start(app, "order_v2", "b")).result(timeout="10s")
        with pytest.raises(ProcessFailed):
            await (await start(app, "refund", "c")).result(timeout="10s")
        module = await app.lashlang("process greet(who: str) { finish 'Hello ' + who }")
        await (await app.start(module["greet"].options(id="d"), who="Ann")).result(timeout="10s")

        assert await ids(app, name="order") == ["b", *reversed(first)]
        assert await ids(app, name="python:order", limit=2) == ["b", "a-59"]
        assert await ids(app, name="refund") == ["c"]
        assert await ids(app, name="greet") == ["d"]
        assert await ids(app, name="lashlang:greet") == ["d"]
        assert await ids(app, name="ord") == []
        assert await ids(app, name="order", status="failed") == []
        assert await ids(app, name="refund", status="failed") == ["c"]
        assert await ids(app, name="order", status="completed", limit=1) == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_a_page_neither_skips_nor_repeats_a_process(backend: Backend, limit: int) -> None:
    clock = SimClock()  # several processes are started in each millisecond
    async with shop(backend.url, clock=clock, **CLIENT) as app:
        started = [f"{'ab'[n % 2]}-{n}" for n in range(60)]
        for number, one in enumerate(started):
            await start(app, ("order", "order_v2")[number % 2], one)
            await clock.advance(0.00001)
        assert await ids(app) == started[::-1]
        for wanted in (
            {},
            {"name": "order"},
            {"status": "blocked"},
            {"name": "order", "status": "blocked"},
        ):
            before = await ids(app, limit=1_000, **wanted)
            assert set(before) >= set(started)
            paged = await pages(app, limit, **wanted)
            assert len(paged) == len(set(paged))
            assert [one for one in paged if one in before] == before


async def test_a_list_by_status_is_in_the_order_of_starts(backend: Backend) -> None:
    async with shop(backend.url, worker=WorkerConfig(park_after="0s")) as app:
        for number in range(6):
            await start(app, "waiting", f"w-{number}", times=number % 3)
            with pytest.raises(ProcessFailed):
                await (await start(app, "refund", f"f-{number}")).result(timeout="10s")

        async def all_wait() -> bool:
            return len(await ids(app, status="waiting")) == 6

        await eventually(all_wait)
        waiting = [f"w-{number}" for number in reversed(range(6))]
        assert await ids(app, status="waiting") == waiting
        assert await ids(app, status="waiting", limit=2, after="w-4") == ["w-3", "w-2"]
        assert await ids(app, status="failed", limit=2, after="w-3") == ["f-2", "f-1"]
        await app.process_handle("w-3").signal("go")
        await app.process_handle("w-3").result(timeout="10s")
        assert await ids(app, status="waiting", limit=2, after="w-3") == ["w-2", "w-1"]
        assert await ids(app, status="cancelled") == []


async def test_tags_are_kept_listed_and_found(backend: Backend) -> None:
    async with shop(backend.url) as app:
        order, refund = app.started["order"], app.started["refund"]  # type: ignore[attr-defined]

        @app.process
        async def parent(ctx: ProcessContext[None]) -> list[str]:
            plain = await ctx.start(order)
            own = await ctx.start(order.options(id="child", tags=["child"]))
            await own.result()
            return [plain.id, own.id]

        for number in range(60):
            await app.start(order.options(id=f"o-{number}", tags=["customer:7", "customer:7"]))
        both = await app.start(order.options(id="both", tags=["customer:7", "vip"]), n=1)
        assert await both.result(timeout="10s") == 1
        failed = await app.start(refund.options(id="r", tags=("customer:7",)))
        with pytest.raises(ProcessFailed):
            await failed.result(timeout="10s")
        await app.start(order.options(id="none"))
        plain, _ = await (await app.start(parent.options(id="p", tags=["vip"]))).result(
            timeout="10s"
        )

        found = ["r", "both", *(f"o-{number}" for number in reversed(range(60)))]
        assert await ids(app, tag="customer:7") == found
        assert await ids(app, tag="customer:7", limit=2, after="both") == ["o-59", "o-58"]
        assert await ids(app, tag="customer:7", status="failed") == ["r"]
        assert await ids(app, tag="customer:7", name="refund") == ["r"]
        assert await ids(app, tag="vip") == ["p", "both"]
        assert await ids(app, tag="child") == ["child"]
        assert await ids(app, tag="customer") == []
        tags = {view.id: view.tags for view in await app.processes()}
        assert (tags["both"], tags["o-1"]) == (("customer:7", "vip"), ("customer:7",))
        assert (tags["none"], tags[plain]) == ((), ())  # a child has its own tags only

        again = await app.start(order.options(id="both", tags=["other"]), n=1)  # no conflict
        assert await again.result(timeout="10s") == 1
        assert await ids(app, tag="other") == []
        await app.fork_process("both", id="fork")
        assert await ids(app, tag="vip") == ["fork", "p", "both"]


async def test_another_tag_of_a_recorded_start_changes_nothing(durable: Backend) -> None:
    def app_with(tags: list[str]) -> Lash:
        app = Lash(durable.url)

        @app.process
        async def child(ctx: ProcessContext[None]) -> None: ...

        @app.process
        async def parent(ctx: ProcessContext[None]) -> str:
            await ctx.start(child.options(id="child", tags=tags))
            await ctx.wait_signal("go")
            return "done"

        app.started = {"parent": parent}  # type: ignore[attr-defined]
        return app

    async with app_with(["a"]) as app:
        await start(app, "parent", "p")

        async def waits() -> bool:
            return bool(await app.waits())

        await eventually(waits)
    for tags in (["b"], []):
        async with app_with(tags) as app:
            assert await ids(app, tag="a") == ["child"]
            if not tags:
                await app.process_handle("p").signal("go")
                assert await app.process_handle("p").result(timeout="10s") == "done"


async def test_a_subscription_starts_processes_with_its_tags(backend: Backend) -> None:
    app = shop(backend.url)
    app.trigger("push")
    async with app:
        order = app.started["order"]  # type: ignore[attr-defined]
        await app.triggers.register(
            "push", source_key="repo", target=order.options(tags=["ci"]), key="k"
        )
        [delivery] = await app.triggers.emit(
            "push", source_key="repo", payload={}, idempotency_key="1"
        )
        assert await ids(app, tag="ci") == [delivery.process_id]


async def test_times_limit_a_list(backend: Backend) -> None:
    clock = SimClock()
    async with shop(backend.url, clock=clock, **CLIENT) as app:
        for number in range(4):
            await start(app, "order", f"p-{number}")
            await clock.advance("1h")
        assert await ids(app, since="2.5h") == ["p-3", "p-2"]
        assert await ids(app, before="2.5h") == ["p-1", "p-0"]
        assert await ids(app, since="3.5h", before="1.5h") == ["p-2", "p-1"]
        moment = datetime.fromtimestamp(clock.now() / 1e6, UTC) - timedelta(hours=2.5)
        assert await ids(app, since=moment) == ["p-3", "p-2"]
        assert await ids(app, since=moment, name="order", status="blocked") == ["p-3", "p-2"]


async def test_a_wrong_filter_is_refused() -> None:
    async with shop("memory://") as app:
        with pytest.raises(ProcessUnknown):
            await app.processes(after="nobody")
        with pytest.raises(NameInvalid):
            await app.processes(name=" ")
        with pytest.raises(NameInvalid):
            await app.processes(tag="x" * 129)
        order = app.started["order"]  # type: ignore[attr-defined]
        for wrong in ("customer:7", {"customer": "7"}, 7):
            with pytest.raises(ArgumentsInvalid, match="is not a list of strings"):
                order.options(tags=wrong)
        with pytest.raises(ArgumentsInvalid, match="there are 21 tags, and at most 20 are allowed"):
            order.options(tags=[str(number) for number in range(21)])
        with pytest.raises(NameInvalid, match="tag"):
            order.options(tags=[""])
        with pytest.raises(ArgumentsInvalid, match="limit=0"):
            await app.processes(limit=0)
