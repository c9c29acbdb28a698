"""The hub: no change goes unnoticed, whenever its notification comes, and without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from pylash.engine import hub as hub_module
from pylash.engine.hub import Hub, Watch
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.operation import Publisher
from pylash.stores.store import SqlStore, open_store
from pylash.tasks import TaskOwner
from pylash.values.errors import StoreBusy
from pylash.values.process_errors import AppNotOpen


@pytest.fixture
async def store() -> AsyncIterator[SqlStore]:
    opened = await open_store("memory://", clock=SystemClock(), entropy=system_entropy)
    yield opened
    await opened.close()


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    owner = TaskOwner()
    yield owner
    await owner.close()


def publish(store: SqlStore, topic: str) -> None:
    assert isinstance(store.driver, Publisher)
    store.driver.publish(topic)


class Table:
    """Results that a watch reads, and how often it read them."""

    def __init__(self) -> None:
        self.results: dict[str, int] = {}
        self.reads: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures = 0

    async def read(self, names: list[str]) -> Mapping[str, int]:
        self.reads.append(sorted(names))
        found = {name: self.results[name] for name in names if name in self.results}
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise StoreBusy("The store is away.")
        return found


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- subscribing ---


async def test_a_topic_reaches_the_subscribers_of_its_name_and_of_its_kind(store: SqlStore) -> None:
    hub, seen = Hub(store), list[tuple[str, str]]()
    hub.subscribe(lambda topic: seen.append(("exact", topic)), "process:a")
    stop = hub.subscribe(lambda topic: seen.append(("kind", topic)), "process", "turn")
    publish(store, "process:a")
    publish(store, "process:b")
    publish(store, "events:a")
    assert seen == [("exact", "process:a"), ("kind", "process:a"), ("kind", "process:b")]
    stop()
    publish(store, "turn:c")
    assert len(seen) == 3


async def test_a_blank_topic_reaches_every_subscriber_once(store: SqlStore) -> None:
    hub, seen = Hub(store), list[str]()
    hub.subscribe(lambda _: seen.append("one"), "process", "turn")
    hub.subscribe(lambda _: seen.append("two"), "wait:x")
    publish(store, "")
    assert seen == ["one", "two"]


async def test_a_callback_may_unsubscribe_itself(store: SqlStore) -> None:
    hub, seen = Hub(store), list[str]()

    def once(topic: str) -> None:
        seen.append(topic)
        stop()

    stop = hub.subscribe(once, "process")
    hub.subscribe(seen.append, "process")
    publish(store, "process:a")
    publish(store, "process:b")
    assert seen == ["process:a", "process:a", "process:b"]


# --- listening ---


async def test_a_listener_reads_again_after_a_notification_during_its_read(
    store: SqlStore, tasks: TaskOwner
) -> None:
    hub = Hub(store)
    with hub.listen("process:a") as listener:
        publish(store, "process:a")  # between registering and waiting, as during a read
        await asyncio.wait_for(listener.wait(60), 1)
        waiting = tasks.start(listener.wait(60))
        await turns()
        assert not waiting.done()  # the hint was cleared
        publish(store, "")  # a reconnect
        await asyncio.wait_for(waiting, 1)


async def test_a_listener_reads_again_without_a_notification(store: SqlStore) -> None:
    with Hub(store).listen("process:a") as listener:
        await asyncio.wait_for(listener.wait(0.01), 1)


async def test_closing_wakes_listeners_with_an_error(store: SqlStore, tasks: TaskOwner) -> None:
    hub = Hub(store)
    with hub.listen("process:a") as listener:
        waiting = tasks.start(listener.wait(60))
        await turns()
        hub.close()
        with pytest.raises(AppNotOpen):
            await asyncio.wait_for(waiting, 1)


# --- watching ---


async def test_a_read_after_the_hub_was_closed_says_that_the_app_is_not_open(
    store: SqlStore,
) -> None:
    hub = Hub(store)

    async def read() -> None:
        with hub.listen("process"):
            hub.close()
            await store.close()
            await store.processes.get("p")

    with pytest.raises(AppNotOpen):
        await read()


async def test_a_result_that_comes_during_a_read_is_found(tasks: TaskOwner) -> None:
    table = Table()
    watch = Watch(table.read, tasks)
    with watch.waiter("a") as future:
        table.gate.clear()
        watch.read_soon("a")
        await turns()  # it reads, and finds nothing
        table.results["a"] = 1
        watch.read_soon("a")
        table.gate.set()
        assert await asyncio.wait_for(future, 1) == 1
    assert table.reads == [["a"], ["a"]]


async def test_a_lost_notification_costs_one_interval(
    tasks: TaskOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "NET_SECONDS", 0.02)
    table = Table()
    watch = Watch(table.read, tasks)
    with watch.waiter("a") as future:
        table.results["a"] = 1
        assert await asyncio.wait_for(future, 1) == 1


async def test_hints_for_others_do_not_put_off_the_interval(
    tasks: TaskOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "NET_SECONDS", 0.1)
    table = Table()
    watch = Watch(table.read, tasks)
    with watch.waiter("a") as future, watch.waiter("busy"):
        table.results["a"] = 1
        async with asyncio.timeout(2):
            while not future.done():
                watch.read_soon("busy")
                await asyncio.sleep(0.01)


async def test_a_read_that_the_store_refuses_is_repeated(tasks: TaskOwner) -> None:
    table = Table()
    table.failures, table.results = 2, {"a": 1}
    watch = Watch(table.read, tasks)
    with watch.waiter("a") as future:
        watch.read_soon("a")
        assert await asyncio.wait_for(future, 1) == 1
    assert len(table.reads) == 3


async def test_waiters_of_one_id_share_a_read_and_learn_of_it_before_tasks_go_on(
    tasks: TaskOwner,
) -> None:
    table, order = Table(), list[str]()
    table.results = {"a": 1, "b": 2}
    watch = Watch(table.read, tasks)

    async def wait(name: str) -> None:
        with watch.waiter(name, lambda: order.append(f"{name} known")) as future:
            watch.read_soon(name)
            await future
            order.append(f"{name} goes on")

    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        for name in "aab":
            group.create_task(wait(name))
    assert table.reads == [["a", "b"]]
    assert sorted(order[:3]) == ["a known", "a known", "b known"]


async def test_a_cancelled_waiter_is_not_read_again(tasks: TaskOwner) -> None:
    table = Table()
    watch = Watch(table.read, tasks)

    async def wait(name: str) -> int:
        with watch.waiter(name) as future:
            return await future

    left, stays = tasks.start(wait("left")), tasks.start(wait("stays"))
    await turns()
    watch.read_soon("left")  # read only if somebody waits when its turn comes
    left.cancel()
    await turns()
    watch.read_soon("left")
    watch.read_soon("")
    await turns()
    assert table.reads[-1] == ["stays"]
    watch.deliver("stays", 3)
    assert await stays == 3
