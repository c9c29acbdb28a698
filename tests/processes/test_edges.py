"""Edges: what goes wrong only sometimes, or only with odd code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any, NoReturn, Protocol

import pytest
from msgspec.structs import replace

from pylash import (
    EVENT,
    AppNotOpen,
    ArgumentsInvalid,
    Lash,
    NameInvalid,
    NotAProcess,
    ProcessCancelled,
    ProcessContext,
    ProcessContextMissing,
    ProcessFailed,
    WorkerConfig,
)
from pylash.durable.processes import SessionRef
from pylash.durable.scopes import ProcessScope, scope_text
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.store import SqlStore
from pylash.values.canonical import encode
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_branches import PARKING, parked, value
from tests.processes.test_signals import two_waits

AT_ONCE = WorkerConfig(park_after="0s")


async def execute(app: Lash, sql: str, *parameters: Any) -> None:
    def steps() -> Steps[None]:
        yield Statement(sql, parameters)

    assert isinstance(app.store, SqlStore)
    await app.store.driver.run(Operation("test", steps))


@EVERY_ENGINE
async def test_nothing_is_parked_between_an_end_and_its_delivery(backend: Backend) -> None:
    app = backend.app(worker=AT_ONCE)

    async def work(ctx: ProcessContext[None]) -> str:
        await ctx.sleep("10ms")
        await ctx.step(value, 1)
        return "worked"

    @app.process
    async def contest(ctx: ProcessContext[None]) -> Any:
        return await ctx.race(ctx.wait_signal("never"), work(ctx))

    @app.process
    async def timed(ctx: ProcessContext[None]) -> Any:
        return await ctx.race(ctx.wait_signal("never"), ctx.sleep("10ms"))

    async with app:
        handles = [await app.start(process) for process in (contest, timed) * 10]
        results = [await handle.result(timeout="20s") for handle in handles]
    assert results == ["worked", None] * 10


class Odd(BaseException):
    """Not an Exception."""


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_odd_exceptions_end_a_process_like_others(backend: Backend) -> None:
    app = Lash(backend.url, worker=WorkerConfig(concurrency=1))

    def leave() -> NoReturn:
        sys.exit(3)

    @app.process
    async def odd(ctx: ProcessContext[None], n: int) -> None:
        if n == 3:
            await ctx.step(leave)
        raise (Odd("base"), Mute(), ValueError("\ud800 half"))[n]

    async with app:
        for n, name in enumerate(("Odd", "Mute", "ValueError", "SystemExit")):
            with pytest.raises(ProcessFailed) as caught:
                await (await app.start(odd, n=n)).result(timeout="10s")
            assert caught.value.failure.failure_class == name


@EVERY_ENGINE
async def test_a_process_may_go_on_afresh_from_a_branch(backend: Backend) -> None:
    app = backend.app()

    async def again(ctx: ProcessContext[None]) -> None:
        ctx.continue_as(n=1)

    @app.process
    async def loop(ctx: ProcessContext[None], n: int) -> int:
        if n == 0:
            async with ctx.task_group() as group:
                group.create_task(again(ctx))
        return n

    async with app:
        assert await (await app.start(loop, n=0)).result(timeout="10s") == 1


@pytest.mark.slow
async def test_many_attached_children_end_with_their_parent(backend: Backend) -> None:
    app = backend.app(worker=PARKING)

    @app.process
    async def child(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    @app.process
    async def parent(ctx: ProcessContext[None]) -> None:
        for n in range(120):
            name = f"{ctx.id} with a name that takes its place {n}"
            await ctx.start(child.options(id=name, attached=True))

    async with app:
        handle = await app.start(parent.options(id="mother of many"))
        await handle.result(timeout="30s")
        last = app.process_handle("mother of many with a name that takes its place 119")
        with pytest.raises(ProcessCancelled):
            await last.result(timeout="30s")


@EVERY_ENGINE
async def test_a_start_whose_caller_leaves_is_executed(backend: Backend) -> None:
    app, ran = backend.app(), asyncio.Event()

    async def note() -> None:
        ran.set()

    @app.process
    async def noted(ctx: ProcessContext[None]) -> None:
        await ctx.step(note)

    async with app:
        for turns in range(1, 5):
            for process in (noted, noted.options(id=f"p{turns}")):
                async with asyncio.TaskGroup() as group:
                    starting = group.create_task(_ignored(app.start(process)))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    starting.cancel()
        await app.start(noted.options(id="last"))
        await asyncio.wait_for(ran.wait(), 10)
        for view in await app.processes():
            await app.process_handle(view.id).result(timeout="10s")


async def _ignored(work: Any) -> None:
    await work


async def test_one_unreadable_row_stops_no_other(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def fine(ctx: ProcessContext[None]) -> int:
        return 1

    async with app:
        await app.start(fine.options(id="odd", delay="200ms"))
        broken = "update pylash_processes set registration = cast('{}' as {blob}) where id = 'odd'"
        await execute(app, broken)
        scope = scope_text(ProcessScope("none"))
        await execute(
            app,
            f"""insert into pylash_runs(id, scope, kind, target, state, at, created)
            values (7, '{scope}', 'process', 'python:fine', 'queued', {{now}}, {{now}})""",
        )
        await eventually(lambda: _blocked(app, "odd"))
        assert await (await app.start(fine.options(id="other"))).result(timeout="10s") == 1
        assert await (await app.start(fine.options(delay="10ms"))).result(timeout="10s") == 1


async def _blocked(app: Lash, process_id: str) -> bool:
    run = await app.store.runs.get(ProcessScope(process_id))
    return run is not None and run.state == "blocked"


@pytest.mark.proves("P10")
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"id": " "}, "missing_process_execution_id"),
        ({"originator": SessionRef(" ")}, "process_originator_invalid"),
    ],
)
async def test_a_row_with_a_blank_id_or_originator_is_not_executed(
    durable: Backend, changed: dict[str, Any], code: str
) -> None:
    client, app, runs = Lash(durable.url, worker=None), Lash(durable.url), list[str]()

    async def note(ctx: ProcessContext[None]) -> None:
        runs.append("ran")

    async with client:
        handle = await client.start(client.process(note).options(id="odd"))
        record = await client.store.processes.get("odd")
        assert record is not None
        body = encode(replace(record.registration, **changed))
        await execute(client, "update pylash_processes set registration = ?", body)
        app.process(note)
        async with app:
            with pytest.raises(ProcessFailed) as caught:
                await handle.result(timeout="10s")
    assert caught.value.code == code
    assert runs == []


@EVERY_ENGINE
async def test_a_cancel_reaches_delayed_and_blocked_processes(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def waits(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    async with app:
        delayed = await app.start(waits.options(delay="1h"))
        await delayed.cancel()
        with pytest.raises(ProcessCancelled):
            await delayed.result(timeout="10s")
        blocked = await app.start(waits.options(id="b", delay="1h"))
        await execute(
            app, "update pylash_runs set state = 'blocked', at = null where state = 'queued'"
        )
        await blocked.cancel()
        with pytest.raises(ProcessCancelled):
            await blocked.result(timeout="10s")


@EVERY_ENGINE
async def test_a_cancel_is_delivered_once_in_all_epochs(backend: Backend) -> None:
    app, heard = backend.app(worker=PARKING), []

    @app.process
    async def stubborn(ctx: ProcessContext[None], n: int) -> int:
        try:
            await ctx.sleep("1h" if n == 0 else "5ms")
        except asyncio.CancelledError:
            heard.append(n)
        if n == 2:
            return n
        return ctx.continue_as(n=n + 1)

    async with app:
        handle = await app.start(stubborn, n=0)
        await parked(app, handle.id)
        await handle.cancel()
        assert await handle.result(timeout="10s") == 2
    assert heard == [0]


async def test_triggered_processes_keep_their_concurrency_key(backend: Backend) -> None:
    app = Lash(backend.url)
    app.trigger("tick")
    running, most = [0], [0]

    async def work() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.01)
        running[0] -= 1

    @app.process(concurrency=1, key="{user}")
    async def limited(ctx: ProcessContext[None], user: str) -> None:
        await ctx.step(work)

    @app.process(concurrency=1, key=str.upper)
    async def odd(ctx: ProcessContext[None], user: str) -> None: ...

    async with app:
        register = app.triggers.register
        await register("tick", source_key="s", target=limited, key="k", inputs={"user": "ann"})
        with pytest.raises(ArgumentsInvalid, match="needs a string"):
            await register("tick", source_key="s", target=odd, key="o", inputs={"user": EVENT})
        for _ in range(4):
            await app.triggers.emit("tick", source_key="s")
        for view in await app.processes():
            await app.process_handle(view.id).result(timeout="20s")
    assert most == [1]


@EVERY_ENGINE
async def test_an_answered_wait_for_a_signal_takes_no_second_answer(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def twice(ctx: ProcessContext[None]) -> list[Any]:
        first = await ctx.wait_signal("a")
        return [first, *(await ctx.gather(ctx.wait_signal("a"), ctx.wait_signal("b")))]

    async with app:
        handle = await app.start(twice)
        (wait,) = await eventually(app.waits)
        await handle.signal("a", "by hand")
        await eventually(lambda: two_waits(app))
        assert (await app.resolve(wait.key, "late")).status == "already_resolved"
        with pytest.raises(ArgumentsInvalid):
            await app.resolve(wait.key, error="no")
        await handle.signal("a", 1)
        await handle.signal("b", 2)
        assert await handle.result(timeout="10s") == ["by hand", 1, 2]


@EVERY_ENGINE
async def test_a_waiter_for_a_result_gets_an_error_when_the_app_closes(backend: Backend) -> None:
    app = backend.app(worker=PARKING)

    @app.process
    async def endless(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    await app.open()
    handle = await app.start(endless)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_told(handle))
        await parked(app, handle.id)
        await app.close()
    assert waiting.result()


@EVERY_ENGINE
async def test_followers_of_a_log_get_an_error_when_the_app_closes(backend: Backend) -> None:
    app = backend.app(worker=PARKING)

    @app.process
    async def endless(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal("never")

    async def follow(items: AsyncIterator[Any]) -> None:
        with pytest.raises(AppNotOpen):
            _ = [item async for item in items]

    await app.open()
    handle = await app.start(endless)
    async with asyncio.timeout(4), asyncio.TaskGroup() as group:  # sooner than the next look
        group.create_task(follow(handle.events(follow=True)))
        group.create_task(follow(app.session("s").observe()))
        await parked(app, handle.id)
        await app.close()


async def _told(handle: Any) -> bool:
    try:
        await handle.result()
    except AppNotOpen:
        return True
    return False


def test_a_function_without_a_context_is_refused_at_its_declaration() -> None:
    app = Lash("memory://")

    async def nothing() -> None: ...

    async def only_data(user: str) -> None: ...

    async def by_name(*, ctx: ProcessContext[None]) -> None: ...

    async def generic(items: list[str], ctx: ProcessContext[None]) -> None: ...

    for function, found in (
        (nothing, "it has no parameters"),
        (only_data, "'user' is a str"),
        (by_name, "'ctx' is passed by name"),
        (generic, "'items' is a list"),
    ):
        with pytest.raises(ProcessContextMissing, match=found) as caught:
            app.process(function)  # type: ignore[arg-type]
        assert "make its first parameter a ProcessContext" in caught.value.message


def test_a_context_may_be_declared_in_many_ways() -> None:
    app = Lash("memory://")

    class HasLog(Protocol):
        log: Any

    class Own(ProcessContext[int]): ...

    async def bare(ctx, user) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001

    async def plain(ctx: ProcessContext) -> None: ...  # type: ignore[type-arg]

    async def anything(ctx: Any) -> None: ...

    async def unknown(ctx: Missing[None]) -> None: ...  # type: ignore[name-defined] # noqa: F821

    async def marked(ctx: Annotated[ProcessContext[None], "x"]) -> None: ...

    async def protocol(ctx: HasLog) -> None: ...

    async def narrower(ctx: Own) -> None: ...

    async def starred(*args: Any) -> None: ...

    for function in (bare, plain, anything, unknown, marked, protocol, narrower, starred):
        assert app.process(function).name == function.__name__  # type: ignore[arg-type]


class Plain:
    """A class that nobody can write as JSON."""


async def test_mistakes_are_raised_at_the_call(backend: Backend) -> None:
    app = Lash(backend.url)
    with pytest.raises(NotAProcess):
        app.process(lambda _ctx: 1)  # type: ignore[arg-type, return-value]

    @app.process(concurrency=1, key="{user}")
    async def keyed(ctx: ProcessContext[None], /, **rest: str) -> None: ...

    with pytest.raises(NameInvalid, match="it must be a string, not int"):
        keyed.options(id=5)  # type: ignore[arg-type]

    async def odd() -> Plain:
        return Plain()

    @app.process(block_on=())
    async def steps(ctx: ProcessContext[None], what: str) -> None:
        if what == "result":
            await ctx.step(odd)
        if what == "call":
            await ctx.step(value(1))  # type: ignore[call-overload]
        if what == "nested":

            async def nested() -> None:
                await ctx.sleep(1)

            await ctx.step(nested)

    async with app:
        with pytest.raises(ArgumentsInvalid, match="needs the argument 'user'"):
            await app.start(keyed)
        with pytest.raises(ArgumentsInvalid, match="no status 'bogus'"):
            await app.processes(status="bogus")
        wanted = {
            "result": "step 'odd'",
            "call": "not the result of calling it",
            "nested": "inside effect",
        }
        for what, message in wanted.items():
            with pytest.raises(ProcessFailed, match=message):
                await (await app.start(steps, what=what)).result(timeout="10s")

    @app.process
    async def unknown(ctx: ProcessContext[None], given: Plain) -> None: ...

    with pytest.raises(ArgumentsInvalid, match="process 'unknown' do not fit: given"):
        await app.open()


async def test_a_failure_is_logged_where_it_happened(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    app = Lash(backend.url)

    async def boom() -> None:
        raise KeyError("x")

    @app.process
    async def failing(ctx: ProcessContext[None]) -> None:
        await ctx.step(boom)

    async with app:
        with pytest.raises(ProcessFailed, match="failed with KeyError: 'x'"):
            await (await app.start(failing)).result(timeout="10s")
    assert 'raise KeyError("x")' in caplog.text
