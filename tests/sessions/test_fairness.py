"""Fairness: a burst of turns or starts does not put other sessions' turns behind its whole backlog."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pylash import Lash, ProcessContext, WorkerConfig
from pylash.durable.sessions import Policy
from pylash.durable.stores import Store
from pylash.durable.triggers import Occurrence
from pylash.stores.drivers.fair_queue import FairQueue
from pylash.testing import ScriptedModel, say
from pylash.testing.laws.stores.subjects import new_turn, started, submitted
from pylash.testing.laws.suites import together
from tests.backends import Backend, eventually

BURST = 100


def test_flows_take_turns_whatever_they_have_queued() -> None:
    queue = FairQueue[str](2)
    for item in ("a1", "a2", "a3", "a4", "b1", "c1", "c2"):
        queue.add(item[0], item)
    taken = list[str]()
    while queue:
        some = queue.take()
        assert len(some) <= 2
        taken += some
        for _ in some:
            queue.done()
    assert taken == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]


def test_no_more_items_are_out_than_there_is_room_for() -> None:
    queue = FairQueue[int](2)
    for n in range(3):
        queue.add("flow", n)
    assert queue.take() == [0, 1]
    assert queue.take() == []
    queue.done()
    assert queue.take() == [2]
    assert not queue


class Bench:
    """An app with two slots, both held by processes that wait for ``go``, and a list of what ended."""

    def __init__(self, url: str) -> None:
        self.ended = list[str]()
        self.go = asyncio.Event()
        self.app = Lash(
            url,
            model=ScriptedModel(lambda _: say("Yes.")),
            worker=WorkerConfig(concurrency=2, park_after="1h"),
        )

        async def held() -> None:
            await self.go.wait()

        @self.app.process
        async def hold(ctx: ProcessContext[None]) -> None:
            await ctx.step(held)

        @self.app.process
        async def work(ctx: ProcessContext[None]) -> None:
            await ctx.step(held)
            self.ended.append("process")

        self.hold, self.work = hold, work

    async def fill(self) -> None:
        """Take both slots."""
        for n in range(2):
            await self.app.start(self.hold.options(id=f"hold{n}"))

    async def turn(self, session: str) -> None:
        await self.app.session(session).turn("Well?")
        self.ended.append(session)

    async def start(self) -> None:
        await (await self.app.start(self.work)).result()

    async def is_queued(self, session: str) -> None:
        """Return once a session has a turn."""
        await eventually(lambda: self.app.store.sessions.current(session))

    def before(self, session: str) -> Counter[str]:
        """Return what ended before the turn of a session."""
        return Counter(self.ended[: self.ended.index(session)])


async def test_a_turn_does_not_wait_for_the_starts_that_were_queued_before_it(
    durable: Backend,
) -> None:
    bench = Bench(durable.url)
    async with bench.app, asyncio.TaskGroup() as group:
        await bench.fill()
        starts = [bench.app.start(bench.work) for _ in range(BURST)]
        handles = await together(*starts)
        turn = group.create_task(bench.turn("neighbour"))
        await bench.is_queued("neighbour")
        bench.go.set()
        await turn
        await together(*(handle.result() for handle in handles))
    assert bench.before("neighbour")["process"] < BURST / 2


async def test_a_turn_does_not_wait_for_the_backlog_of_another_session(durable: Backend) -> None:
    bench = Bench(durable.url)
    async with bench.app, asyncio.TaskGroup() as group:
        await bench.fill()
        tasks = [group.create_task(bench.turn("hog")) for _ in range(BURST)]
        tasks += [group.create_task(bench.start()) for _ in range(BURST)]
        turn = group.create_task(bench.turn("neighbour"))
        await bench.is_queued("neighbour")
        bench.go.set()
        await turn
        before = bench.before("neighbour")
        for task in tasks:
            task.cancel()
    assert before["process"] < BURST / 2
    assert before["hog"] < BURST / 2


async def test_the_starts_go_on_while_turns_are_taken_first(durable: Backend) -> None:
    bench = Bench(durable.url)
    async with bench.app, asyncio.TaskGroup() as group:
        await bench.fill()
        handle = await bench.app.start(bench.work)
        turns = [group.create_task(bench.turn(f"s{n}")) for n in range(40)]
        await bench.is_queued("s39")
        bench.go.set()
        await handle.result()
        assert sum(turn.done() for turn in turns) < 20


Hog = Callable[[Store, int], Awaitable[Any]]

HOGS: dict[str, Hog] = {
    "turns": lambda store, _: submitted(store, new_turn("hog")),
    "messages": lambda store, n: store.sessions.enqueue("hog", f"{n}", "Well?", Policy.NOW),
    "starts": lambda store, _: started(store),
    "events": lambda store, n: store.triggers.emit(
        Occurrence(type="tick", source="hog", idempotency_key=f"{n}")
    ),
}
"""What a source of new work may send in bursts."""


@pytest.mark.parametrize("hog", HOGS.values(), ids=HOGS)
async def test_a_submit_does_not_wait_for_a_burst_of_others(
    durable: Backend, monkeypatch: pytest.MonkeyPatch, hog: Hog
) -> None:
    monkeypatch.setattr("pylash.stores.drivers.sqlite.NEWCOMERS", 4)
    store, ended = await durable.store(), list[str]()

    async def ask(name: str, work: Awaitable[Any]) -> None:
        await work
        ended.append(name)

    await together(
        *(ask("hog", hog(store, n)) for n in range(BURST)),
        ask("neighbour", submitted(store, new_turn("neighbour"))),
    )
    assert ended.index("neighbour") < BURST / 2  # in the order of arrival it would be the last
    assert ended.count("hog") == BURST
