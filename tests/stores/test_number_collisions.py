"""Run numbers that collide: another number is drawn, and nothing is lost or done twice.

Numbers have 10 random bits here and count seconds, so that a few hundred runs collide again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

import pylash.app
from pylash import Lash, ModelRequest, ProcessContext, Session
from pylash.durable.commands import StartProcess
from pylash.durable.runs import SECOND, Instant, WorkerId
from pylash.durable.scopes import ProcessScope
from pylash.durable.sessions import Policy
from pylash.durable.triggers import Occurrence
from pylash.engine.system import SystemClock, system_entropy
from pylash.stores.operation import Operation
from pylash.stores.store import SqlStore, open_store
from pylash.testing import ScriptedModel, SimClock, call, say
from pylash.testing.laws.controllers import returning, step, value_of
from pylash.testing.laws.stores.subjects import new_turn, submitted, work
from pylash.testing.laws.suites import together
from pylash.values.errors import StoreBusy
from pylash.values.process_errors import ProcessConflict
from tests.backends import Backend, eventually

T = TypeVar("T")

BITS = 10


class SecondsClock(SystemClock):
    """The machine's clock, in whole seconds."""

    def now(self) -> Instant:
        return Instant(super().now() // SECOND * SECOND)


def few_bits(size: int) -> bytes:
    """Return random bytes; the three that a run number takes have few random bits."""
    if size != 3:
        return system_entropy(size)
    return (int.from_bytes(system_entropy(2)) % (1 << BITS) << 2).to_bytes(3)


@pytest.fixture
def few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let apps draw the numbers of runs from 1,024 a second."""
    monkeypatch.setattr(pylash.app, "system_entropy", few_bits)
    monkeypatch.setattr(pylash.app, "SystemClock", SecondsClock)


async def in_time(*works: Coroutine[Any, Any, T]) -> list[T]:
    async with asyncio.timeout(30):
        return await together(*works)


def app_with_double(url: str) -> tuple[Lash, Any]:
    app = Lash(url)

    @app.process
    async def double(ctx: ProcessContext[None], n: int) -> int:
        return n * 2

    return app, double


@pytest.mark.slow
@pytest.mark.usefixtures("few_numbers")
@pytest.mark.parametrize("kind", ["named", "unnamed", "queued"])
async def test_every_start_starts_a_process(durable: Backend, kind: str) -> None:
    app, double = app_with_double(durable.url)
    delay = "1h" if kind == "queued" else None

    async def start(n: int) -> Any:
        name = None if kind == "unnamed" else f"p{n}"
        handle = await app.start(double.options(id=name, delay=delay), n)
        return None if kind == "queued" else await handle.result()

    async with app:
        results = await in_time(*(start(n) for n in range(300)))
        assert kind == "queued" or results == [n * 2 for n in range(300)]
        assert len({one.id for one in await app.processes(limit=1000)}) == 300


@pytest.mark.usefixtures("few_numbers")
async def test_the_same_start_again_starts_nothing(durable: Backend) -> None:
    app, double = app_with_double(durable.url)

    async def result(n: int) -> Any:
        return await (await app.start(double.options(id=f"p{n}"), n)).result()

    async with app:
        numbers = [n % 60 for n in range(180)]
        assert await in_time(*map(result, numbers)) == [n * 2 for n in numbers]
        assert len(await app.processes(limit=1000)) == 60
        with pytest.raises(ProcessConflict):
            await app.start(double.options(id="p1"), 2)


@pytest.mark.slow
@pytest.mark.usefixtures("few_numbers")
async def test_every_delivery_of_an_event_starts_a_process(durable: Backend) -> None:
    app, double = app_with_double(durable.url)
    app.trigger("tick")

    async def subscribe(n: int) -> None:
        await app.triggers.register(
            "tick", source_key="s", target=double.options(delay="1h"), key=f"{n}", inputs={"n": n}
        )

    async with app:
        await in_time(*map(subscribe, range(250)))
        emits = (app.triggers.emit("tick", source_key="s") for _ in range(2))
        deliveries = [one.process_id for some in await in_time(*emits) for one in some]
        started = {one.id for one in await app.processes(limit=1000)}
    assert (len(deliveries), set(deliveries)) == (500, started)


async def test_an_event_does_not_take_another_process_for_its_delivery(durable: Backend) -> None:
    app, double = app_with_double(durable.url)
    app.trigger("tick")
    occurrence = Occurrence(type="tick", source="s", payload=None, idempotency_key="a")
    async with app:
        await app.triggers.register("tick", source_key="s", target=double, key="k", inputs={"n": 1})
        await app.start(double.options(id=f"trigger:k:{occurrence.id}"), 2)
        with pytest.raises(ProcessConflict):
            await app.triggers.emit("tick", source_key="s", idempotency_key="a")
        assert len(await app.triggers.emit("tick", source_key="s", idempotency_key="b")) == 1


@pytest.mark.usefixtures("few_numbers")
async def test_every_continuation_goes_on(durable: Backend) -> None:
    app = Lash(durable.url)

    @app.process
    async def count(ctx: ProcessContext[None], n: int, seen: int) -> int:
        return seen if n == 0 else ctx.continue_as(n=n - 1, seen=seen + 1)

    async def result() -> int:
        return await (await app.start(count, 2, 0)).result()

    async with app:
        assert await in_time(*(result() for _ in range(60))) == [2] * 60


@pytest.mark.slow
@pytest.mark.usefixtures("few_numbers")
async def test_every_fork_has_what_its_source_recorded(durable: Backend) -> None:
    app, ran = Lash(durable.url), list[int]()

    async def once() -> int:
        ran.append(1)
        return len(ran)

    @app.process
    async def work(ctx: ProcessContext[None]) -> int:
        return await ctx.step(once)

    async with app:
        source = await app.start(work)
        assert await source.result() == 1

        async def fork() -> Any:
            return await (await app.fork_process(source.id)).result()

        assert await in_time(*(fork() for _ in range(100))) == [1] * 100
        assert len(await app.processes(limit=1000)) == 101


@pytest.mark.slow
@pytest.mark.usefixtures("few_numbers")
async def test_every_turn_and_every_queued_message_is_answered(durable: Backend) -> None:
    app = Lash(durable.url, model=ScriptedModel(lambda _: say("Yes.")))

    async def talk(session: Session) -> None:
        assert (await session.turn("Well?")).text == "Yes."
        await session.enqueue("And?")

        async def answered() -> bool:
            return len(await session.history()) == 4

        await eventually(answered, 30)
        forked = await session.fork(f"{session.id}-fork")
        assert (await forked.turn("Sure?")).text == "Yes."

    async with app:
        await in_time(*(talk(app.session(f"s{n}")) for n in range(50)))


@pytest.mark.slow
@pytest.mark.usefixtures("few_numbers")
async def test_children_subagents_and_turns_of_processes_are_started(durable: Backend) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.messages[-1].text == "Ask.":
            return call("spawn_agent", agent="helper", task="Answer.")
        return say("Yes.")

    app = Lash(durable.url, model=ScriptedModel(reply))
    app.agent("helper", instructions="Help.", tools=[], description="helps")
    app.subagents("helper")

    @app.process
    async def child(ctx: ProcessContext[None], n: int) -> int:
        return n

    @app.process
    async def parent(ctx: ProcessContext[None], n: int) -> str:
        started = await ctx.start(child, n)
        answer = await ctx.session(f"s{n}").turn("Ask.")
        return f"{await started.result()} {answer.text}"

    async def result(n: int) -> str:
        return await (await app.start(parent, n)).result()

    async with app:
        assert await in_time(*map(result, range(40))) == [f"{n} Yes." for n in range(40)]


@pytest.mark.usefixtures("few_numbers")
async def test_every_scope_has_a_run_of_its_own(durable: Backend) -> None:
    async with pylash.app.open_host(durable.url) as host:

        async def value(n: int) -> Any:
            return await value_of(host.scoped(ProcessScope(f"p{n}")), step("s"), returning(n))

        assert await in_time(*map(value, range(200))) == list(range(200))


@pytest.fixture
async def one_number(durable: Backend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqlStore]:
    """Give a store whose runs all draw the same number."""
    monkeypatch.setattr("pylash.stores.drivers.postgres.REPEAT_SECONDS", 0)

    def entropy(size: int) -> bytes:
        return bytes(3) if size == 3 else system_entropy(size)

    store = await open_store(durable.url, clock=SimClock(), entropy=entropy, simulated=True)
    yield store
    await store.close()


async def test_an_operation_that_finds_no_free_number_fails_after_a_while(
    one_number: SqlStore,
) -> None:
    processes, worker = one_number.processes, WorkerId("w")
    await one_number.workers.join(worker, 60 * SECOND)
    await processes.start(StartProcess(work("first")), worker)
    operations: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: processes.start(StartProcess(work())),
        lambda: processes.start(StartProcess(work()), worker),
        lambda: processes.perform(StartProcess(work())),
        lambda: processes.fork("first", work(), []),
        lambda: submitted(one_number, new_turn()),
        lambda: one_number.sessions.enqueue("s", "k", "Well?", Policy.NOW),
        lambda: one_number.journal.attach(ProcessScope("p"), worker),
    )
    for attempt in operations:
        with pytest.raises(StoreBusy, match="100 times in a row"):
            await attempt()
    again = await processes.start(StartProcess(work("first")), worker)
    assert again is None  # its id is found, whatever number was drawn


async def test_a_start_repeated_after_a_lost_answer_keeps_the_number_it_was_given(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = iter([*[b"\1\1\1"] * 4, b"\2\2\2", b"\3\3\3"])

    def entropy(size: int) -> bytes:
        return next(bits) if size == 3 else system_entropy(size)

    store = await open_store(durable.url, clock=SimClock(), entropy=entropy, simulated=True)
    worker, run, asked = WorkerId("w"), store.driver.run, list[Operation[Any]]()

    def remember(operation: Operation[Any]) -> Awaitable[Any]:
        asked.append(operation)
        return run(operation)

    await store.workers.join(worker, 60 * SECOND)
    first = await store.processes.start(StartProcess(work("a")), worker)
    monkeypatch.setattr(store.driver, "run", remember)
    second = await store.processes.start(StartProcess(work("b")), worker)
    assert first is not None
    assert second is not None
    assert first.fence.run != second.fence.run
    again = await run(Operation("start", asked[0].steps))
    assert (again.number, again.fence) == (second.number, second.fence)
    await store.close()
