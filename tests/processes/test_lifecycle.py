"""The life of processes: children, restarts, blocked ones, long ones, and closing the app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pylash import (
    AppInsideProcess,
    AppNotOpen,
    ForkInvalid,
    InlineHost,
    Lash,
    NotAProcess,
    NotBlocked,
    Observed,
    Ok,
    ProcessBlocked,
    ProcessCancelled,
    ProcessConflict,
    ProcessContext,
    ProcessFailed,
    ProcessUnknown,
    Retention,
    ToolUnknown,
    UserMessage,
    WorkerConfig,
)
from pylash.durable.commands import StartProcess
from pylash.durable.ports import EffectHost
from pylash.durable.processes import (
    ExternalInput,
    ProcessEvent,
    Registration,
    SessionRef,
    ToolCallInput,
)
from pylash.engine.hosts.journal import JournalHost
from pylash.engine.system import SystemClock
from pylash.engine.worker import pruning
from pylash.stores.ports.processes import SqlProcesses
from pylash.testing import ScriptedModel, SerialHost, SimClock, say
from tests.backends import EVERY_ENGINE, Backend, PostgresBackend, eventually
from tests.processes.test_branches import PARKING, parked, value
from tests.processes.test_steps import effects

# --- starting ---


async def test_a_start_during_a_claim_takes_a_slot_that_the_claim_gives_back(
    backend: Backend,
) -> None:
    app = Lash(backend.url, worker=WorkerConfig(concurrency=1))
    out, go_on = asyncio.Event(), asyncio.Event()
    claimed = list[int]()

    @app.process
    async def nothing(ctx: ProcessContext[None]) -> int:
        return 1

    async with app:
        honest = app.store.runs.claim

        async def slow(*args: Any, **options: Any) -> list[Any]:
            out.set()
            await go_on.wait()
            claims = await honest(*args, **options)
            claimed.append(len(claims))
            return claims

        app.store.runs.claim = slow  # type: ignore[method-assign]
        app.store.driver.publish("runs")  # type: ignore[attr-defined]  # so that it looks
        await out.wait()
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(app.start(nothing))
            await asyncio.sleep(0)  # it finds no room
            go_on.set()
        assert await starting.result().result(timeout="10s") == 1
        assert set(claimed) == {0}


def scheduled(app: Lash) -> asyncio.Event:
    """Return an event that is set once the scheduler has seen a run that is ready and found no room for it."""
    honest, seen = app.store.runs.next_due, asyncio.Event()

    async def next_due(targets: Sequence[str]) -> tuple[int | None, bool]:
        due, suspect = await honest(targets)
        if due is not None and due <= 0:
            asyncio.get_running_loop().call_soon(seen.set)
        return due, suspect

    app.store.runs.next_due = next_due  # type: ignore[method-assign]
    return seen


async def test_what_is_queued_comes_before_what_is_started_later(backend: Backend) -> None:
    app = Lash(backend.url, worker=WorkerConfig(concurrency=1))
    go_on, order = asyncio.Event(), list[str]()

    @app.process
    async def noted(ctx: ProcessContext[None]) -> None:
        await go_on.wait()
        order.append(ctx.id)

    async with app:
        seen = scheduled(app)
        first = await app.start(noted.options(id="first"))
        queued = [await app.start(noted.options(id=f"queued-{n}")) for n in range(2)]
        await seen.wait()
        go_on.set()
        await first.result(timeout="10s")
        last = await app.start(noted.options(id="last"))
        for handle in (*queued, last):
            await handle.result(timeout="10s")
    assert order == ["first", "queued-0", "queued-1", "last"]


@EVERY_ENGINE
@pytest.mark.proves("P1")
async def test_the_same_id_with_the_same_input_is_the_same_process(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def greet(ctx: ProcessContext[None], name: str) -> str:
        return f"Hello {name}"

    async with app:
        first = await app.start(greet.options(id="g"), name="Ann")
        second = await app.start(greet.options(id="g"), name="Ann")
        assert (
            await first.result(timeout="10s") == await second.result(timeout="10s") == "Hello Ann"
        )
        with pytest.raises(ProcessConflict):
            await app.start(greet.options(id="g"), name="Bob")
        assert len(await app.processes()) == 1
        assert [one.id for one in await app.processes(status="completed")] == ["g"]
        assert await app.processes(status="queued") == []


async def test_another_app_may_start_what_this_one_runs(durable: Backend) -> None:
    app, client = Lash(durable.url), Lash(durable.url, worker=None)

    @app.process
    async def greet(ctx: ProcessContext[None], name: str) -> str:
        return f"Hello {name}"

    async with app, client:
        handle = await client.start(greet, name="Ann")
        assert await handle.result(timeout="10s") == "Hello Ann"


@EVERY_ENGINE
async def test_wrong_uses_get_one_clear_sentence(backend: Backend) -> None:
    app = backend.app()

    async def plain(ctx: ProcessContext[None]) -> None: ...

    @app.process
    async def inside(ctx: ProcessContext[None]) -> None:
        await app.start(inside)

    @app.process
    async def handle_inside(ctx: ProcessContext[None]) -> None:
        await app.process_handle("x").status()

    with pytest.raises(AppNotOpen):
        await app.start(inside)
    async with app:
        with pytest.raises(NotAProcess):
            await app.start(plain)  # type: ignore[arg-type]
        for process in (inside, handle_inside):
            with pytest.raises(ProcessFailed, match="inside a process") as caught:
                await (await app.start(process)).result(timeout="10s")
            assert caught.value.code == AppInsideProcess.default_code


@EVERY_ENGINE
async def test_the_app_may_be_used_inside_a_step(backend: Backend) -> None:
    app = backend.app()

    async def look() -> int:
        return len(await app.processes())

    @app.process
    async def counting(ctx: ProcessContext[None]) -> int:
        return await ctx.step(look)

    async with app:
        assert await (await app.start(counting)).result(timeout="10s") == 1


@EVERY_ENGINE
async def test_dependencies_are_made_on_each_worker(backend: Backend) -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def deps() -> AsyncIterator[dict[str, str]]:
        opened.append("open")
        yield {"db": "connection"}
        opened.append("close")

    app = backend.app(deps=deps)

    @app.process
    async def use(ctx: ProcessContext[dict[str, str]]) -> str:
        return ctx.deps["db"]

    async with app:
        assert await (await app.start(use)).result(timeout="10s") == "connection"
    assert opened == ["open", "close"]


async def test_logging_is_silent_during_replay(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = Lash(backend.url, worker=PARKING)

    @app.process
    async def chatty(ctx: ProcessContext[None]) -> None:
        ctx.log.info("begins")
        await ctx.step(value, 1)
        ctx.log.info("stepped")
        await ctx.wait_signal("go")
        ctx.log.info("ends")

    async with app:
        handle = await app.start(chatty)
        await parked(app, handle.id)
        await handle.signal("go")
        await handle.result(timeout="10s")
    said = [one.message for one in caplog.records if one.name == "pylash.process"]
    assert said == ["begins", "stepped", "ends"]


# --- children ---


@pytest.mark.proves("P7")
async def test_a_parent_never_holds_a_slot_its_child_needs(backend: Backend) -> None:
    app = Lash(backend.url, worker=WorkerConfig(concurrency=1, park_after="1h"))

    @app.process
    async def nested(ctx: ProcessContext[None], depth: int) -> int:
        if depth == 0:
            return 0
        child = await ctx.start(nested, depth=depth - 1)
        return 1 + await child.result()

    async with app:
        assert await (await app.start(nested, depth=8)).result(timeout="20s") == 8


@EVERY_ENGINE
async def test_a_childs_failure_is_its_parents_to_handle(backend: Backend) -> None:
    app = backend.app(worker=PARKING)

    @app.process
    async def child(ctx: ProcessContext[None]) -> None:
        await ctx.sleep("20ms")
        raise ValueError("broken")

    @app.process
    async def parent(ctx: ProcessContext[None]) -> str:
        handle = await ctx.start(child)
        try:
            await handle.result()
        except ProcessFailed as error:
            return str(error.failure.failure_class)
        return "never"

    async with app:
        assert await (await app.start(parent)).result(timeout="10s") == "ValueError"


async def until(items: AsyncIterator[Observed], text: str) -> AsyncIterator[Observed]:
    """Yield what is seen of a session up to a text."""
    async for item in items:
        yield item
        if item.message is not None and item.message.text == text:
            return


@pytest.mark.proves("P11", "P13")
async def test_a_child_inherits_originator_wake_target_and_environment(backend: Backend) -> None:
    app = Lash(backend.url, model=ScriptedModel(lambda _: say("Fine.")))

    @app.process
    async def child(ctx: ProcessContext[None]) -> None:
        await ctx.wake("child is ready")

    @app.process
    async def parent(ctx: ProcessContext[None]) -> None:
        handle = await ctx.start(child.options(id="child"))
        await handle.result()
        await ctx.wake("parent is ready")

    async with app:
        handle = await app.start(parent.options(id="parent", wake="chat-1"))
        await handle.result(timeout="10s")
        mother = await app.store.processes.get("parent")
        found = await app.store.processes.get("child")
        heard = [
            item.message.text
            async for item in until(app.session("chat-1").observe(), "parent is ready")
            if isinstance(item.message, UserMessage)
        ]
        events = [event async for event in handle.events()]
    assert mother is not None
    assert found is not None
    assert found.registration.originator == mother.registration.originator == SessionRef("chat-1")
    assert found.registration.wake_target == SessionRef("chat-1")
    assert found.registration.env == mother.registration.env
    assert found.registration.env is not None
    assert heard == ["child is ready", "parent is ready"]
    assert [event.type for event in events] == [
        "process.started",
        "process.wake",
        "process.completed",
    ]
    assert events[1].key == "process:parent:event:0"


@pytest.mark.proves("P13")
@pytest.mark.parametrize("host", [None, InlineHost()], ids=["journal", "inline"])
async def test_wakes_and_events_are_numbered_in_the_order_of_the_code(
    backend: Backend, host: EffectHost | None
) -> None:
    app = Lash(backend.url, host=host)

    async def both(ctx: ProcessContext[None]) -> None:
        await ctx.wake("from a branch")
        await ctx.emit("done")

    @app.process
    async def work(ctx: ProcessContext[None], epoch: int = 0) -> None:
        await ctx.wake("one")
        await ctx.emit("note", epoch)
        await ctx.gather(both(ctx))
        await ctx.wake("two")
        if epoch == 0:
            ctx.continue_as(epoch=1)

    async with app:
        handle = await app.start(work.options(id="p"))
        await handle.result(timeout="10s")
        events = [event async for event in handle.events()]
    numbered = ["0", "1", "gather.0/0", "gather.0/1", "2"]
    keys = [f"process:p:event:{n}" for n in (*numbered, *(f"1:{n}" for n in numbered))]
    assert [event.key for event in events if event.key is not None] == keys
    assert events[-1].type == "process.completed"


@EVERY_ENGINE
@pytest.mark.proves("P3")
async def test_a_process_signals_and_cancels_others(backend: Backend) -> None:
    app = backend.app(worker=PARKING)

    @app.process
    async def child(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("value")

    @app.process
    async def parent(ctx: ProcessContext[None]) -> list[Any]:
        first, second = await ctx.start(child), await ctx.start(child)
        await first.signal("value", 7)
        await second.cancel("not needed")
        results: list[Any] = [await first.result()]
        try:
            await second.result()
        except Exception as error:  # noqa: BLE001 - any end counts
            results.append(type(error).__name__)
        return results

    async with app:
        assert await (await app.start(parent)).result(timeout="10s") == [7, "ProcessCancelled"]


# --- long lives ---


async def test_a_process_goes_on_with_a_fresh_journal(backend: Backend) -> None:
    app = Lash(backend.url, worker=PARKING)

    @app.process
    async def loop(ctx: ProcessContext[None], n: int, seen: list[str]) -> list[str]:
        word = await ctx.wait_signal("word")
        await ctx.emit("seen", {"word": word})
        if n == 1:
            return [*seen, word]
        return ctx.continue_as(n=n - 1, seen=[*seen, word])

    async with app:
        handle = await app.start(loop, n=3, seen=[])
        for word in "abc":
            await handle.signal("word", word)
        assert await handle.result(timeout="10s") == ["a", "b", "c"]
        types = [event.type async for event in handle.events()]
        assert len(await effects(app, handle.id)) == 2
    assert types.count("process.continued") == 2
    assert types.count("seen") == 3


@EVERY_ENGINE
@pytest.mark.proves("P2")
async def test_a_log_can_be_followed_until_the_end(backend: Backend) -> None:
    app = backend.app(worker=PARKING)

    @app.process
    async def slow(ctx: ProcessContext[None]) -> None:
        for n in range(3):
            await ctx.wait_signal("next")
            await ctx.emit("step", n)

    async with app:
        handle = await app.start(slow)
        seen = []
        async with asyncio.timeout(20):
            async for event in handle.events(follow=True):
                seen.append(event.type)
                if event.type in ("process.started", "step"):
                    await handle.signal("next") if seen.count("step") < 3 else None
        after = [event.type async for event in handle.events(after=len(seen) - 1)]
    assert [kind for kind in seen if kind == "step"] == ["step"] * 3
    assert seen[-1] == "process.completed"
    assert after == ["process.completed"]


@EVERY_ENGINE
async def test_the_next_event_of_a_type_behind_a_sequence_can_be_awaited(backend: Backend) -> None:
    app = backend.app(worker=PARKING)

    @app.process
    async def slow(ctx: ProcessContext[None]) -> None:
        for n in range(2):
            await ctx.emit("step", n)
            await ctx.wait_signal("next")

    async with app:
        handle = await app.start(slow)

        async def step_after(sequence: int) -> ProcessEvent:
            async with asyncio.timeout(20):
                async for event in handle.events(after=sequence, follow=True):
                    if event.type == "step":
                        return event
            raise AssertionError("it ended without another step")

        first = await step_after(0)
        await handle.signal("next")  # an event of another type comes between
        second = await step_after(first.sequence)
    assert [first.payload, second.payload] == [0, 1]


# --- blocked ---


async def test_a_diverged_replay_is_blocked_with_its_reason_and_goes_on_when_mended(
    durable: Backend,
) -> None:
    async def original(ctx: ProcessContext[None]) -> int:
        first = await ctx.step(value, 1)
        await ctx.wait_signal("go")
        return first

    async def edited(ctx: ProcessContext[None]) -> int:
        try:
            first = await ctx.step(value, 2)
        except Exception:  # noqa: BLE001 - not theirs to catch
            first = -1
        await ctx.wait_signal("go")
        return first

    app = Lash(durable.url, worker=PARKING)
    async with app:
        await app.start(app.process(name="p")(original).options(id="p"))
        await parked(app, "p")
    wrong = Lash(durable.url, worker=PARKING)
    wrong.process(name="p")(edited)
    async with wrong:
        handle = wrong.process_handle("p")
        await handle.signal("go")
        await eventually(lambda: _is(handle, "blocked"))
        (view,) = await wrong.processes(status="blocked")
        assert str(view.reason).startswith("effect_replay_mismatch")
        with pytest.raises(ProcessBlocked, match="effect_replay_mismatch"):
            await handle.result(timeout="10ms")
    right = Lash(durable.url, worker=PARKING)
    right.process(name="p")(original)
    async with right:
        await right.retry("p")
        assert await right.process_handle("p").result(timeout="10s") == 1
        with pytest.raises(NotBlocked):
            await right.retry("p")
        with pytest.raises(ProcessUnknown):
            await right.retry("nobody")


async def _is(handle: Any, *states: str) -> bool:
    return await handle.status() in states


@pytest.mark.slow
async def test_a_process_of_an_unknown_program_shows_as_blocked_until_a_worker_has_it(
    durable: Backend,
) -> None:
    other, app = Lash(durable.url, worker=None), Lash(durable.url)

    @other.process
    async def unknown(ctx: ProcessContext[None]) -> int:
        return 1

    async with other, app:
        handle = await other.start(unknown)
        assert await handle.status() == "blocked"
        (view,) = await other.processes(status="blocked")
        assert view.reason == "unknown_target"
        app.process(unknown)
        assert await handle.result(timeout="10s") == 1


async def test_a_client_warns_that_no_worker_is_running(
    durable: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async with Lash(durable.url, worker=None):
        assert caplog.messages[0].startswith("no worker is running on this store")
        caplog.clear()
    async with Lash(durable.url), Lash(durable.url, worker=None):
        assert caplog.messages == []


@pytest.mark.proves("P6", "P9")
async def test_what_can_never_run_fails_with_its_code(backend: Backend) -> None:
    async with Lash(backend.url, tools=[value]) as app:
        for ref, reason in ((None, "has no captured"), ("0" * 64, "is not in the store")):
            given = Registration(id=f"p-{ref}", input=ToolCallInput("value", {"n": 1}), env=ref)
            await app.store.processes.start(StartProcess(given))
            with pytest.raises(ProcessFailed, match=reason) as caught:
                await app.process_handle(given.id).result(timeout="10s")
            assert caught.value.code == "process_recovery_failed"


# --- other inputs ---


@pytest.mark.proves("P10")
async def test_external_processes_complete_with_their_metadata(backend: Backend) -> None:
    async with Lash(backend.url) as app:
        given = Registration(id="outside", input=ExternalInput({"ticket": 7}))
        await app.store.processes.start(StartProcess(given))
        result = await app.process_handle("outside").result(timeout="10s")
    assert result == {"metadata": {"ticket": 7}}


async def test_a_tool_call_runs_as_a_process_and_inside_one(backend: Backend) -> None:
    app = Lash(backend.url, tools=[value])

    @app.process
    async def using(ctx: ProcessContext[None]) -> Any:
        return await ctx.call_tool("value", n=3)

    @app.process
    async def wrong(ctx: ProcessContext[None]) -> Any:
        return await ctx.call_tool("nothing")

    async with app:
        given = Registration(id="t", input=ToolCallInput("value", {"n": 5}), env=app.template.env)
        await app.store.processes.start(StartProcess(given))
        assert await app.process_handle("t").result(timeout="10s") == 5
        assert await (await app.start(using)).result(timeout="10s") == 3
        with pytest.raises(ProcessFailed, match="known: value") as caught:
            await (await app.start(wrong)).result(timeout="10s")
        assert caught.value.code == ToolUnknown.default_code


async def test_an_inline_host_runs_processes_and_records_nothing(backend: Backend) -> None:
    app = Lash(backend.url, host=InlineHost())

    @app.process
    async def child(ctx: ProcessContext[None]) -> int:
        return await ctx.step(value, 2)

    @app.process
    async def parent(ctx: ProcessContext[None]) -> list[Any]:
        handle = await ctx.start(child)
        key = ctx.wait_key("answer")
        answer = ctx.wait(key)
        await app.effect_host.resolve(key, Ok(1))
        return [await handle.result(), await ctx.wait_signal("go"), await answer]

    async with app:
        handle = await app.start(parent)
        await handle.signal("go", 3)
        assert await handle.result(timeout="10s") == [2, 3, 1]
        assert "value" not in await effects(app, handle.id)


@pytest.mark.parametrize("host", [None, InlineHost])
async def test_a_timeout_counts_from_the_creation_on_every_host(
    backend: Backend, host: type[InlineHost] | None
) -> None:
    app = Lash(backend.url, host=None if host is None else host())

    @app.process(timeout="10s")
    async def short(ctx: ProcessContext[None]) -> int:
        await ctx.sleep("20ms")
        return 1

    @app.process(timeout="50ms")
    async def long(ctx: ProcessContext[None]) -> None:
        await ctx.sleep("1h")

    async with app:
        assert await (await app.start(short)).result(timeout="10s") == 1
        with pytest.raises(ProcessFailed, match="took longer"):
            await (await app.start(long)).result(timeout="10s")


@pytest.mark.parametrize("host", [None, InlineHost])
async def test_a_cancel_before_the_first_line_reaches_branches_on_every_host(
    backend: Backend, host: type[InlineHost] | None
) -> None:
    app, performed = Lash(backend.url, host=None if host is None else host()), list[int]()

    @app.process
    async def fan(ctx: ProcessContext[None]) -> None:
        await ctx.gather(*[ctx.step(performed.append, n) for n in range(3)])

    async with app:
        handle = await app.start(fan.options(delay="1h"))
        await handle.cancel("not needed")
        with pytest.raises(ProcessCancelled, match="not needed"):
            await handle.result(timeout="10s")
        assert performed == []


@pytest.mark.parametrize("host", [InlineHost, lambda: SerialHost(InlineHost())])
async def test_waits_belong_to_the_host_that_was_given(
    backend: Backend, host: Callable[[], EffectHost]
) -> None:
    app = Lash(backend.url, host=host())

    @app.process
    async def asking(ctx: ProcessContext[None], before: tuple[str, ...] = ()) -> list[str]:
        answers = (*before, await ctx.wait(ctx.wait_key("answer")))
        if len(answers) < 2:
            await ctx.continue_as(before=answers)
        return list(answers)

    async with app:
        handle, answered = await app.start(asking), set[str]()

        async def open_key() -> str | None:
            return next((one.key for one in await app.waits() if one.key not in answered), None)

        for answer in ("first", "second"):
            key = await eventually(open_key)
            answered.add(key)
            assert (await app.resolve(key, answer)).status == "accepted"
        assert await handle.result(timeout="10s") == ["first", "second"]


# --- forks ---


@EVERY_ENGINE
async def test_a_fork_goes_on_from_what_was_recorded(backend: Backend) -> None:
    calls: list[int] = []

    async def count(n: int) -> int:
        calls.append(n)
        return n

    app = backend.app()

    @app.process
    async def three(ctx: ProcessContext[None]) -> list[int]:
        return [await ctx.step(count, n) for n in range(3)]

    async with app:
        first = await app.start(three.options(id="first"))
        await first.result(timeout="10s")
        fork = await app.fork_process("first", from_effect="count#3")
        assert await fork.result(timeout="10s") == [0, 1, 2]
        assert calls == [0, 1, 2, 2]
        with pytest.raises(ForkInvalid):
            await app.fork_process("first", from_effect="nothing")


# --- limits and closing ---


async def test_a_concurrency_key_limits_what_executes_and_not_what_waits(backend: Backend) -> None:
    app = Lash(backend.url, worker=PARKING)
    running: dict[str, int] = {"ann": 0, "bob": 0}
    most: dict[str, int] = {"ann": 0, "bob": 0}

    async def work(user: str) -> None:
        running[user] += 1
        most[user] = max(most[user], running[user])
        await asyncio.sleep(0.01)
        running[user] -= 1

    @app.process(concurrency=1, key="{user}")
    async def limited(ctx: ProcessContext[None], user: str, wait: bool = False) -> None:
        if wait:
            await ctx.wait_signal("go")
        await ctx.step(work, user)

    async with app:
        waiting = await app.start(limited, user="ann", wait=True)
        await parked(app, waiting.id)
        handles = [await app.start(limited, user=user) for user in ("ann", "bob") * 4]
        for handle in handles:
            await handle.result(timeout="20s")
        await waiting.signal("go")
        await waiting.result(timeout="10s")
    assert most == {"ann": 1, "bob": 1}


async def test_closing_waits_the_grace_and_loses_nothing(durable: Backend) -> None:
    begun, calls = asyncio.Event(), []

    async def slow(n: int) -> int:
        calls.append(n)
        begun.set()
        await asyncio.sleep(0.1)
        return n

    async def two(ctx: ProcessContext[None]) -> int:
        await ctx.step(slow, 1)
        await ctx.wait_signal("go")
        return await ctx.step(slow, 2)

    app = Lash(durable.url, worker=WorkerConfig(park_after="1h", grace="5s"))
    async with app:
        await app.start(app.process(two).options(id="p"))
        await begun.wait()
    again = Lash(durable.url)
    again.process(two)
    async with again:
        await again.process_handle("p").signal("go")
        assert await again.process_handle("p").result(timeout="10s") == 2
    assert calls == [1, 2]


async def test_closing_waits_for_what_is_being_started(
    durable: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, written, answer = SqlProcesses.start, asyncio.Event(), asyncio.Event()

    def late(*given: Any) -> Any:
        async def told() -> Any:
            leased = await start(*given)
            written.set()
            await answer.wait()
            return leased

        return told()

    monkeypatch.setattr(SqlProcesses, "start", late)
    app = Lash(durable.url, worker=WorkerConfig(grace="0s"))

    @app.process
    async def quick(ctx: ProcessContext[None]) -> str:
        return "done"

    async with app:
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(app.start(quick.options(id="p")))
            await written.wait()
            closing = group.create_task(app.close())
            ended, _ = await asyncio.wait((starting, closing), timeout=0.2)
            assert not ended
            answer.set()
        assert (starting.result().id, closing.done()) == ("p", True)
    again = Lash(durable.url)
    again.process(quick)
    async with again:
        assert await again.process_handle("p").result(timeout="10s") == "done"


@pytest.mark.proves("P6")
async def test_what_is_over_the_grace_is_released_and_counts_as_no_attempt(
    durable: Backend,
) -> None:
    begun = asyncio.Event()
    over: list[str] = []

    async def endless() -> str:
        begun.set()
        if over:
            return "done"
        await asyncio.sleep(60)
        return "never"

    async def stuck(ctx: ProcessContext[None]) -> str:
        return await ctx.step(endless)

    app = Lash(durable.url, worker=WorkerConfig(grace="50ms"))
    async with app:
        await app.start(app.process(stuck).options(id="p"))
        await begun.wait()
    over.append("now")
    again = Lash(durable.url)
    again.process(stuck)
    async with again:
        assert await again.process_handle("p").result(timeout="10s") == "done"


@pytest.mark.proves("P7")
async def test_workers_with_shifted_clocks_share_work_without_running_anything_twice(
    postgres: str,
) -> None:
    """Times are the database's: a client whose own clock is wrong by an hour does no harm."""
    runs: list[int] = []

    async def once(n: int) -> int:
        runs.append(n)
        return n

    async def body(ctx: ProcessContext[None], n: int) -> int:
        await ctx.sleep("30ms")
        return await ctx.step(once, n)

    class Shifted(SystemClock):
        def now(self) -> Any:
            return super().now() + 3_600_000_000

    async with PostgresBackend(postgres) as backend:
        first, second = Lash(backend.url, worker=PARKING), Lash(backend.url, worker=PARKING)
        process = first.process(body)
        second.process(body)
        async with first, second:
            assert isinstance(second.effect_host, JournalHost)
            second.effect_host.clock = Shifted()
            apps = (first, second)
            handles = [await apps[n % 2].start(process, n=n) for n in range(40)]
            results = [await handle.result(timeout="30s") for handle in handles]
    assert results == list(range(40))
    assert sorted(runs) == list(range(40))


async def test_old_journals_are_forgotten_and_nothing_else(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PRUNE_SECONDS", 0.01)
    clock = SimClock()
    app = Lash(backend.url, clock=clock, retention=Retention(journal="2d"))

    @app.process
    async def stepping(ctx: ProcessContext[None], wait: bool) -> int:
        done = await ctx.step(value, 1)
        if wait:
            await ctx.wait_signal("go")
        return done

    async with app:
        ended = await app.start(stepping, wait=False)
        waiting = await app.start(stepping, wait=True)
        await ended.result(timeout="10s")
        await clock.advance("1d")
        assert len(await effects(app, ended.id)) == 1
        await clock.advance("2d")
        await eventually(lambda: _forgotten(app, ended.id))
        assert await ended.result(timeout="10s") == 1
        assert len([event async for event in ended.events()]) == 2
        assert len(await effects(app, waiting.id)) == 2


async def _forgotten(app: Lash, process_id: str) -> bool:
    return not await effects(app, process_id)
