"""Everything runs on a host that executes one effect at a time and has no look-ahead, as another engine may.

The host wraps the journal of the store, so that runs are parked, replayed and taken over as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pylash import (
    ArgumentsInvalid,
    InlineHost,
    Lash,
    ModelRequest,
    ProcessCancelled,
    ProcessContext,
    ProcessDefinition,
    ProcessScope,
    Retry,
    ToolContext,
    WorkerConfig,
    durable_step,
    open_host,
)
from pylash.testing import ScriptedModel, SerialHost, call, calls, crash_everywhere, kill, say
from tests.backends import Backend, eventually
from tests.sessions.scenes import begin, comes_to, open_wait, transcript

PARKING = WorkerConfig(park_after="1ms")


class Alone:
    """Notes what runs, and refuses to run two things at a time."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self._running: list[Any] = []

    async def __call__(self, name: Any) -> Any:
        self._running.append(name)
        await asyncio.sleep(0.001)
        assert self._running == [name]
        self._running.clear()
        self.ran.append(name)
        return name


def foreign(backend: Backend, model: Any = None, **options: Any) -> Lash:
    """Return an app on a serial host over the journal of its store; its runs are parked at once."""
    scripted = None if model is None else ScriptedModel(model)
    return Lash(backend.url, host=SerialHost, worker=PARKING, model=scripted, **options)


async def is_parked(app: Lash, process_id: str) -> None:
    async def look() -> bool:
        return await app.process_handle(process_id).status() == "waiting"

    await eventually(look)


# --- the host ---


async def test_an_effect_that_overlaps_another_one_of_its_run_is_refused(backend: Backend) -> None:
    controller, go = SerialHost(await backend.host()).scoped(ProcessScope("p")), asyncio.Event()
    begun = asyncio.Event()

    async def slow(name: str) -> str:
        begun.set()
        await go.wait()
        return name

    async with asyncio.TaskGroup() as group:
        first = group.create_task(durable_step(controller, "first", slow, "a"))
        await begun.wait()
        with pytest.raises(AssertionError, match="'second' began while 'first' was executed"):
            await durable_step(controller, "second", slow, "b")
        go.set()
    assert first.result() == "a"
    assert await durable_step(controller, "second", slow, "b") == "b"


async def test_it_can_wrap_a_host_that_was_opened_before(durable: Backend) -> None:
    async with open_host(durable.url) as host:
        app, alone = Lash(durable.url, host=SerialHost(host), worker=PARKING), Alone()

        @app.process
        async def fan(ctx: ProcessContext[None]) -> list[int]:
            answer = await ctx.wait_signal("go")
            return await ctx.gather(
                *[ctx.step(alone, n) for n in range(3)], ctx.step(alone, answer)
            )

        async with app:
            handle = await app.start(fan)
            await is_parked(app, handle.id)
            await handle.signal("go", 3)
            assert await handle.result(timeout="10s") == [0, 1, 2, 3]


def test_a_host_is_a_host_or_a_function_of_one() -> None:
    with pytest.raises(ArgumentsInvalid, match="host='inline' is not an EffectHost, a function"):
        Lash("memory://", host="inline")  # type: ignore[arg-type]  # the mistake under test


# --- processes ---


async def test_branches_take_turns_and_are_replayed(backend: Backend) -> None:
    app, alone = foreign(backend), Alone()

    async def branch(ctx: ProcessContext[None], n: int) -> list[Any]:
        first = await ctx.step(alone, f"{n}a")
        await ctx.sleep("5ms")
        return [first, *await ctx.gather(ctx.step(alone, f"{n}b"), ctx.step(alone, f"{n}c"))]

    @app.process
    async def fan(ctx: ProcessContext[None]) -> list[Any]:
        gathered = await ctx.gather(*[branch(ctx, n) for n in range(3)])
        async with ctx.task_group() as group:
            one = group.create_task(branch(ctx, 3))
            two = group.create_task(ctx.step(alone, "two"))
        won = await ctx.race(ctx.step(alone, "first"), ctx.step(alone, "second"))
        return [*gathered, one.result(), two.result(), won]

    async with app:
        handle = await app.start(fan)
        assert await handle.result(timeout="20s") == [
            *([f"{n}a", f"{n}b", f"{n}c"] for n in range(4)),
            "two",
            "first",
        ]
    assert sorted(alone.ran) == sorted({*alone.ran}), "a step ran twice"


async def test_a_run_is_parked_while_effects_queue_behind_a_wait(backend: Backend) -> None:
    app, alone = foreign(backend), Alone()

    @app.process
    async def waiting(ctx: ProcessContext[None]) -> list[Any]:
        key = ctx.wait_key("answer")
        return await ctx.gather(ctx.wait(key), ctx.wait_signal("go"), ctx.step(alone, "last"))

    async with app:
        handle = await app.start(waiting)
        await is_parked(app, handle.id)
        (wait,) = await app.waits()
        assert (wait.kind, wait.title) == ("custom", "answer")
        assert (await app.resolve(wait.key, "yes")).status == "accepted"

        async def signal_wait() -> Any:
            return next((one for one in await app.waits() if one.kind == "signal"), None)

        await app.resolve((await eventually(signal_wait)).key, "went")
        assert await handle.result(timeout="10s") == ["yes", "went", "last"]
    assert alone.ran == ["last"]


async def test_a_recorded_effect_is_not_replayed_beside_another_one(backend: Backend) -> None:
    app, alone, begun = foreign(backend), Alone(), list[int]()

    async def slow() -> None:
        await asyncio.sleep(0.05)

    async def early(ctx: ProcessContext[None]) -> Any:
        await ctx.step(slow)
        return await ctx.wait_signal("go")

    async def late(ctx: ProcessContext[None]) -> Any:
        await asyncio.sleep(0.02)  # on a replay the other branch waits by then
        return await ctx.step(alone, "late")

    @app.process
    async def both(ctx: ProcessContext[None]) -> list[Any]:
        begun.append(1)
        return await ctx.gather(early(ctx), late(ctx))

    async with app:
        handle = await app.start(both)
        await is_parked(app, handle.id)
        await handle.signal("other")  # it wakes the process, which is replayed and waits again

        async def is_replayed() -> bool:
            return len(begun) == 2

        await eventually(is_replayed)
        await is_parked(app, handle.id)
        await handle.signal("go", "on")
        assert await handle.result(timeout="10s") == ["on", "late"]
    assert alone.ran == ["late"]


async def test_children_and_sessions_of_a_process(backend: Backend) -> None:
    app = foreign(backend, [say("Hello.")])
    alone = Alone()

    @app.process
    async def child(ctx: ProcessContext[None], n: int) -> int:
        return n + int(await ctx.wait_signal("go"))

    @app.process
    async def parent(ctx: ProcessContext[None]) -> list[Any]:
        handles = await ctx.gather(*[ctx.start(child, n=n) for n in (1, 2)])
        await ctx.gather(*[handle.signal("go", 10) for handle in handles])
        results = await ctx.gather(*[handle.result() for handle in handles])
        asked = await ctx.session("chat").turn("hi")
        return [*results, asked.text, await ctx.step(alone, "done")]

    async with app:
        handle = await app.start(parent)
        assert await handle.result(timeout="10s") == [11, 12, "Hello.", "done"]


async def test_a_cancel_is_delivered_once_and_cleaned_up_after(backend: Backend) -> None:
    app, alone = foreign(backend), Alone()

    async def branch(ctx: ProcessContext[None], n: int) -> None:
        await ctx.step(alone, n)
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step(alone, f"clean {n}")

    @app.process
    async def work(ctx: ProcessContext[None]) -> None:
        await ctx.gather(*[branch(ctx, n) for n in range(2)])

    async with app:
        handle = await app.start(work)
        await is_parked(app, handle.id)
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")
    assert sorted(map(str, alone.ran)) == ["0", "1", "clean 0", "clean 1"]


async def test_a_run_that_was_killed_goes_on_elsewhere(durable: Backend) -> None:
    alone = Alone()

    @ProcessDefinition
    async def story(ctx: ProcessContext[None]) -> list[Any]:
        before = await ctx.gather(ctx.step(alone, 1), ctx.step(alone, 2))
        after = await ctx.wait_signal("go")
        return [*before, after, *await ctx.gather(ctx.step(alone, 3), ctx.step(alone, 4))]

    for number in range(2):
        app = foreign(durable)
        app.process(story)
        await app.open()
        await app.start(story.options(id="story"))
        await is_parked(app, "story")
        if number == 0:
            await kill(app)
    await app.process_handle("story").signal("go", "on")
    assert await app.process_handle("story").result(timeout="20s") == [1, 2, "on", 3, 4]
    await app.close()
    assert alone.ran == [1, 2, 3, 4]


# --- turns ---


async def test_the_tools_of_one_reply_take_turns(backend: Backend) -> None:
    app = foreign(
        backend,
        [calls(call("look", n=1), call("flaky"), call("pay", cents=5), call("ask")), say("Done.")],
    )
    alone = Alone()

    @app.tool
    async def look(n: int) -> str:
        return f"order {await alone(n)}"

    @app.tool(retry=Retry(2, delay="1ms"))
    async def flaky(ctx: ToolContext[None]) -> str:
        await alone(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise OSError("away")
        return "back"

    @app.tool(approval=True)
    async def pay(cents: int) -> str:
        return f"paid {await alone(cents)}"

    @app.tool
    async def ask(ctx: ToolContext[None]) -> Any:
        return ctx.defer()

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(app)
        assert wait.kind == "approval"
        await comes_to(app, "chat", "t1", "waiting")
        await app.resolve(wait.key, True)

        async def deferred() -> Any:
            return next((one for one in await app.waits() if one.kind == "deferred"), None)

        await app.resolve((await eventually(deferred)).key, "Monday")
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  i1.c0 look(n=1), i1.c1 flaky(), i1.c2 pay(cents=5), i1.c3 ask()"
            "\ntool       i1.c0 look: order 1"
            "\ntool       i1.c1 flaky: back"
            "\ntool       i1.c2 pay: paid 5"
            "\ntool       i1.c3 ask: Monday"
            "\nassistant  Done.\n"
        )
    assert alone.ran == [1, "attempt 1", 5, "attempt 2"]


@pytest.mark.parametrize("inline", [False, True])
async def test_subagents_of_one_reply(backend: Backend, inline: bool) -> None:
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if request.messages[0].text == "Find sources.":
            return say(last.text.upper())
        if last.role == "user":
            return calls(*(call("spawn_agent", agent="researcher", task=t) for t in "ab"))
        return say(" ".join(m.text for m in request.messages if m.role == "tool"))

    host = SerialHost(InlineHost()) if inline else SerialHost
    app = Lash(backend.url, host=host, worker=PARKING, model=ScriptedModel(reply))
    app.agent("researcher", instructions="Find sources.", tools=[])
    app.subagents("researcher")
    async with app:
        result = await app.session("chat").turn("go", timeout="10s")
        assert (result.text, result.usage.requests) == ("A B", 4)


async def test_messages_that_come_while_a_turn_is_parked_do_not_change_what_it_replays(
    backend: Backend,
) -> None:
    app = foreign(
        backend,
        lambda r: say(f"Heard {r.messages[-1].text}.") if r.call_number > 1 else call("pay"),
    )

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        wait = await open_wait(app)
        await comes_to(app, "chat", "t1", "waiting")
        await session.enqueue("hurry", when="now")
        await app.resolve(wait.key, True)
        second = await eventually(lambda: _other_wait(app, wait.key))
        await app.resolve(second, True)
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Heard paid."
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  i1.c0 pay()"
            "\ntool       i1.c0 pay: paid"
            "\nuser       hurry"
            "\nassistant  i2.c0 pay()"
            "\ntool       i2.c0 pay: paid"
            "\nassistant  Heard paid.\n"
        )


async def _other_wait(app: Lash, key: str) -> str | None:
    return next((one.key for one in await app.waits() if one.key != key), None)


async def test_a_cancelled_turn_keeps_what_was_recorded_before_it_was_parked(
    backend: Backend,
) -> None:
    app = foreign(backend, [call("look"), call("pay")])

    @app.tool
    async def look() -> str:
        return "looked"

    @app.tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with app:
        session = app.session("chat")
        await begin(session, "go", "t1")
        await open_wait(app)
        await comes_to(app, "chat", "t1", "waiting")
        await session.cancel("enough")
        result = await session.turn("go", turn_id="t1", timeout="10s")
        assert (result.status, result.error) == ("cancelled", "enough")
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  i1.c0 look()"
            "\ntool       i1.c0 look: looked"
            "\nassistant  i2.c0 pay()"
            "\ntool       i2.c0 pay error: Not run: the turn was cancelled.\n"
        )


# --- programs ---

SOURCE = """
process main() signals { answer: int } {
  both = await [tools.note({ text: "left" })?, tools.note({ text: "right" })?]
  h = start child(n: 20)
  sleep for 1
  first = wait signal answer
  signal run h go with first
  finish [both, first, await h]
}
process child(n: int) signals { go: int } { finish n + wait signal go }
"""


async def test_a_lashlang_program(backend: Backend) -> None:
    app, alone = foreign(backend), Alone()

    @app.tool
    async def note(text: str) -> str:
        """Note a text."""
        return str(await alone(text))

    async with app:
        module = await app.lashlang(SOURCE)
        handle = await app.start(module["main"].options(id="p"))
        await is_parked(app, "p")
        await handle.signal("answer", 22)
        ended = await handle.result(timeout="10s")
    assert ended == [["left", "right"], 22, {"ok": True, "value": 42}]
    assert alone.ran == ["left", "right"]


# --- crashes ---


async def value(n: int) -> int:
    return n


@ProcessDefinition
async def mixed(ctx: ProcessContext[None]) -> list[Any]:
    both = await ctx.gather(ctx.step(value, 1), ctx.step(value, 2))
    asked = await ctx.session("chat").turn("go")
    return [*both, await ctx.wait_signal("go"), asked.text]


def make_app(store: str) -> Lash:
    model = ScriptedModel([calls(call("look", n=1), call("look", n=2)), say("Done.")])
    app = Lash(store, host=SerialHost, model=model, worker=PARKING)
    app.process(mixed)

    @app.tool
    async def look(n: int) -> str:
        await app.session("chat").enqueue("hurry", when="now", key="k")
        return f"order {n}"

    return app


async def process_story(app: Lash) -> Any:
    handle = await app.start(mixed.options(id="mixed"))
    await handle.signal("go", "on", id="go")
    return await handle.result(timeout="20s")


async def turn_story(app: Lash) -> Any:
    session = app.session("chat")
    result = await session.turn("go", turn_id="t1", timeout="20s")
    return [result.text, await transcript(session)]


@pytest.mark.parametrize("story", [process_story, turn_story])
def test_it_ends_the_same_wherever_it_dies(story: Callable[[Lash], Any]) -> None:
    report = crash_everywhere(make_app, story)
    assert report.outcome[0] in (1, "Done.")
    assert len(report.points) > 10


@pytest.mark.proves("P3")
async def test_forks_triggers_and_messages_go_through_the_host(durable: Backend) -> None:
    app = foreign(durable, lambda request: say(f"Read: {request.messages[-1].text}"))
    app.trigger("tick")

    @app.process
    async def waits(ctx: ProcessContext[None], n: int) -> list[Any]:
        return [await ctx.step(lambda: 2 * n), await ctx.wait_signal("go")]

    async with app:
        await app.start(waits.options(id="p"), n=2)
        await is_parked(app, "p")
        await app.fork_process("p", id="fork")
        await app.triggers.register("tick", source_key="s", target=waits, key="k", inputs={"n": 5})
        (ticked,) = await app.triggers.emit("tick", source_key="s")
        for process_id, doubled in (("p", 4), ("fork", 4), (ticked.process_id, 10)):
            handle = app.process_handle(process_id)
            await handle.signal("go", 1)
            assert await handle.result(timeout="10s") == [doubled, 1]
        session = app.session("chat")
        assert (await session.turn("one", timeout="10s")).text == "Read: one"
        await session.enqueue("two")

        async def answered() -> bool:
            return [message.text for message in await session.history()][-1] == "Read: two"

        await eventually(answered)
