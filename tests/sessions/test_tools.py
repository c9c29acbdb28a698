"""Tools in turns: called with valid arguments, retried as declared, and answered whatever happens."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from pylash import (
    EVENT,
    Lash,
    ProcessContext,
    ProcessFailed,
    Retry,
    ToolContext,
    ToolError,
    tool,
)
from pylash.testing import ScriptedModel, SimClock, call, calls, kill, say
from pylash.turn.messages import MESSAGES, ToolMessage
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.sessions.scenes import LIVE, begin, comes_to, effects_of, transcript


def asking(*replies: Any) -> ScriptedModel:
    """Return a model that asks for replies and then is content."""
    return ScriptedModel([*replies, say("Done.")])


async def result_of(app: Lash, session_id: str = "chat") -> ToolMessage:
    """Return the first result in a session."""
    session = app.session(session_id)
    result = await session.turn("go", turn_id="t1", timeout="10s")
    assert result.text == "Done."
    messages = await session.history()
    return next(message for message in messages if isinstance(message, ToolMessage))


@EVERY_ENGINE
async def test_a_tool_is_called_and_the_model_gets_its_result(backend: Backend) -> None:
    model = asking(call("lookup", order_id="7"))
    app = backend.app(model=model)

    @app.tool
    async def lookup(order_id: str) -> dict[str, Any]:
        """Find an order."""
        return {"id": order_id, "state": "sent"}

    async with app:
        session = app.session("chat")
        assert (await session.turn("Where is 7?", timeout="10s")).text == "Done."
        assert await transcript(session) == (
            "\nuser       Where is 7?"
            "\nassistant  i1.c0 lookup(order_id=7)"
            '\ntool       i1.c0 lookup: {"id":"7","state":"sent"}'
            "\nassistant  Done.\n"
        )
    shown = model.requests[0].tools[0]
    assert (shown.name, shown.description, shown.id) == ("lookup", "Find an order.", "tools.lookup")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({}, "order_id"), ({"order_id": 7.5}, "order_id"), ({"order_id": "7", "extra": 1}, "extra")],
)
async def test_arguments_that_do_not_fit_go_back_to_the_model(
    arguments: dict[str, Any], word: str
) -> None:
    app = Lash("memory://", model=asking(call("lookup", **arguments)))

    @app.tool
    async def lookup(order_id: str) -> str:
        raise AssertionError("it is not called")

    async with app:
        told = await result_of(app)
        assert told.error
        assert word in told.text


async def test_a_tool_that_is_not_there_is_an_answer_that_names_those_that_are() -> None:
    app = Lash("memory://", model=asking(call("look")))
    app.tool(lookup_order)
    async with app:
        told = await result_of(app)
        assert (told.error, told.text) == (
            True,
            "There is no tool 'look' (there are: lookup_order).",
        )


async def lookup_order(order_id: str) -> str:
    return order_id


@pytest.mark.proves("T3")
async def test_a_session_may_name_its_tools_by_id_or_give_some_of_its_own() -> None:
    model = asking(calls(call("lookup_order", order_id="7"), call("mine")))
    app = Lash("memory://", model=model)
    app.tool(lookup_order)

    @app.tool
    async def other() -> str:
        return "other"

    @tool
    async def mine() -> str:
        return "mine"

    async with app:
        session = app.session("chat", tools=["tools.lookup_order", mine])
        await session.turn("go", timeout="10s")
        assert [one.name for one in model.requests[0].tools] == ["lookup_order", "mine"]
        assert "i1.c1 mine: mine" in await transcript(session)
        await app.session("plain").turn("go", timeout="10s")
        assert [one.name for one in model.requests[-1].tools] == ["lookup_order", "other"]


async def test_the_model_gets_the_exception_of_a_tool() -> None:
    app = Lash("memory://", model=asking(call("broken")))

    @app.tool
    async def broken() -> str:
        raise LookupError("there is no shop")

    async with app:
        told = await result_of(app)
        assert told.error
        assert "there is no shop" in told.text


async def test_the_model_gets_the_message_of_a_tool_error() -> None:
    app = Lash("memory://", model=asking(call("broken")))

    @app.tool
    async def broken() -> str:
        raise ToolError("Order 7 was refunded already.")

    async with app:
        told = await result_of(app)
        assert (told.error, told.text) == (True, "Order 7 was refunded already.")


@pytest.mark.proves("T3")
async def test_each_attempt_is_recorded_and_all_have_one_key(memory: Backend) -> None:
    clock = SimClock()
    app = Lash(memory.url, model=asking(call("flaky")), clock=clock)
    tries, keys = [], set()

    @app.tool(retry=Retry(3, delay="1m"))
    async def flaky(ctx: ToolContext[None]) -> str:
        tries.append(ctx.attempt)
        keys.add((ctx.idempotency_key, ctx.session_id, ctx.turn_id, ctx.call_id))
        if ctx.attempt < 3:
            raise OSError("away")
        return "back"

    async with app, asyncio.TaskGroup() as group:
        turn = group.create_task(app.session("chat").turn("go", turn_id="t1"))
        await comes_to(app, "chat", "t1", "running")
        await clock.advance("1h")
        assert (await turn).text == "Done."
        effects = await effects_of(app, "chat", "t1")
    assert tries == [1, 2, 3]
    assert len(keys) == 1
    attempts = [entry.key for entry in effects if entry.kind == "tool_attempt"]
    assert attempts == ["i1.c0.attempt.1", "i1.c0.attempt.2", "i1.c0.attempt.3"]


async def test_the_model_gets_the_last_failure_after_the_retries() -> None:
    app = Lash("memory://", model=asking(call("flaky")))
    tries = []

    @app.tool(retry=Retry(2, delay="1ms"))
    async def flaky() -> str:
        tries.append(1)
        raise OSError(f"away {len(tries)}")

    async with app:
        assert "away 2" in (await result_of(app)).text
    assert len(tries) == 2


async def test_each_retried_attempt_of_a_tool_is_one_log_line(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    app = Lash(backend.url, model=asking(call("refund"), call("final")))

    @app.tool(retry=Retry(3, delay="1ms", jitter=False))
    async def refund() -> str:
        raise OSError("away")

    @app.tool(retry=Retry(3, on=(OSError,)))
    async def final() -> str:
        raise KeyError("7")

    @app.process
    async def asked(ctx: ProcessContext[None]) -> Any:
        return await ctx.call_tool("refund")

    with caplog.at_level(logging.WARNING, "pylash"):
        async with app:
            await result_of(app)
            with pytest.raises(ProcessFailed, match="away"):
                await (await app.start(asked.options(id="p"))).result(timeout="10s")
    assert caplog.messages[:4] == [
        "turn chat/t1: attempt 1 of 3 of tool 'refund' failed: OSError: away; next attempt in 0.001 s",
        "turn chat/t1: attempt 2 of 3 of tool 'refund' failed: OSError: away; next attempt in 0.002 s",
        "tool refund failed: away",
        "tool final failed: '7'",
    ]
    assert caplog.messages[4:] == [
        "process p: attempt 1 of 3 of tool 'refund' failed: OSError: away; next attempt in 0.001 s",
        "process p: attempt 2 of 3 of tool 'refund' failed: OSError: away; next attempt in 0.002 s",
        "process p failed",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [
        *(False, False, True, True),
        *(False, False, True),
    ]
    assert "src/pylash" not in caplog.text


async def test_only_what_is_to_be_retried_is() -> None:
    app = Lash("memory://", model=asking(call("flaky")))
    tries = []

    @app.tool(retry=Retry(5, delay="1ms", on=(OSError,)))
    async def flaky() -> str:
        tries.append(1)
        raise ValueError("wrong")

    async with app:
        assert "wrong" in (await result_of(app)).text
    assert len(tries) == 1


async def test_the_model_gets_the_timeout_of_a_tool() -> None:
    app = Lash("memory://", model=asking(call("slow")))
    ended = []

    @app.tool(timeout="20ms")
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async with app:
        told = await result_of(app)
        assert (told.error, told.text) == (True, "slow did not answer in 0.02 s.")
    assert ended == [1]


@pytest.mark.slow
async def test_a_plain_function_runs_in_a_thread_and_its_late_result_is_dropped() -> None:
    app = Lash("memory://", model=asking(call("slow")))
    go, late = threading.Event(), threading.Event()

    @app.tool(timeout="20ms")
    def slow() -> str:
        go.wait(10)
        late.set()
        return "late"

    async with app:
        told = await result_of(app)
        assert told.error
        go.set()
        assert await asyncio.to_thread(late.wait, 10)
        assert "late" not in await transcript(app.session("chat"))


@pytest.mark.proves("T3")
async def test_calls_of_a_batch_run_side_by_side_and_answer_in_order(memory: Backend) -> None:
    together = asyncio.Barrier(3)
    asked = calls(*(call("meet", n=n) for n in range(3)))
    app = Lash(memory.url, model=asking(asked))

    @app.tool
    async def meet(n: int) -> int:
        await together.wait()
        await asyncio.sleep(0.01 * (3 - n))
        return n

    async with app:
        session = app.session("chat")
        await session.turn("go", timeout="10s")
        assert await transcript(session) == (
            "\nuser       go"
            "\nassistant  i1.c0 meet(n=0), i1.c1 meet(n=1), i1.c2 meet(n=2)"
            "\ntool       i1.c0 meet: 0"
            "\ntool       i1.c1 meet: 1"
            "\ntool       i1.c2 meet: 2"
            "\nassistant  Done.\n"
        )


@pytest.mark.proves("T3")
async def test_serial_calls_wait_for_each_other_and_for_no_other() -> None:
    asked = calls(call("one", n=0), call("free"), call("one", n=1), call("two"))
    app = Lash("memory://", model=asking(asked))
    order: list[str] = []
    freed = asyncio.Event()

    @app.tool(scheduling="serial")
    async def one(n: int) -> int:
        order.append(f"one {n} begins")
        await freed.wait()
        order.append(f"one {n} ends")
        return n

    @app.tool(scheduling="serial")
    async def two() -> None:
        order.append("two")

    @app.tool
    async def free() -> None:
        freed.set()

    async with app:
        await app.session("chat").turn("go", timeout="10s")
    assert order == ["one 0 begins", "one 0 ends", "one 1 begins", "one 1 ends", "two"]


async def test_one_call_that_fails_leaves_the_others_alone() -> None:
    app = Lash("memory://", model=asking(calls(call("bad"), call("good"), call("none"))))
    failed = asyncio.Event()

    @app.tool
    async def bad() -> None:
        failed.set()
        raise ValueError("bad")

    @app.tool
    async def good() -> str:
        await failed.wait()
        return "good"

    async with app:
        session = app.session("chat")
        assert (await session.turn("go", timeout="10s")).status == "completed"
        assert "tool       i1.c1 good: good" in await transcript(session)


async def test_the_idempotency_key_survives_a_death(durable: Backend) -> None:
    keys: list[tuple[str, int]] = []
    begun = asyncio.Event()

    def make(*, dies: bool) -> Lash:
        app = Lash(durable.url, model=asking(call("pay")), worker=LIVE)

        @app.tool
        async def pay(ctx: ToolContext[None]) -> str:
            keys.append((ctx.idempotency_key, ctx.attempt))
            begun.set()
            if dies:
                await asyncio.Event().wait()
            return "paid"

        return app

    first = make(dies=True)
    await first.open()
    await begin(first.session("chat"), "go", "t1")
    await begun.wait()
    await kill(first)
    async with make(dies=False) as again:
        assert (await again.session("chat").turn("go", turn_id="t1", timeout="10s")).text == "Done."
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_what_was_recorded_does_not_run_again(sqlite: Backend) -> None:
    paid, asked = [], asyncio.Event()

    def make(*, dies: bool) -> Lash:
        async def model(request: Any) -> Any:
            if request.call_number == 0:
                return call("pay")
            if dies:
                asked.set()
                await asyncio.Event().wait()
            return say("Done.")

        app = Lash(sqlite.url, model=ScriptedModel(model), worker=LIVE)

        @app.tool
        async def pay() -> str:
            paid.append(1)
            return "paid"

        return app

    first = make(dies=True)
    await first.open()
    await begin(first.session("chat"), "go", "t1")
    await asked.wait()
    await kill(first)
    async with make(dies=False) as again:
        assert (await again.session("chat").turn("go", turn_id="t1", timeout="10s")).text == "Done."
    assert paid == [1]


async def test_what_a_tool_attaches_is_kept_and_referred_to(memory: Backend) -> None:
    app = Lash(memory.url, model=asking(call("draw")))

    @app.tool
    async def draw(ctx: ToolContext[None]) -> Any:
        return ctx.attach(b"\x89PNG", "image/png", "chart.png")

    async with app:
        told = await result_of(app)
        (made,) = told.attachments
        assert (made.media_type, made.name, made.size, made.data) == (
            "image/png",
            "chart.png",
            4,
            b"",
        )
        assert made.ref is not None
        assert made.ref in told.text
        assert await app.store.attachments.get(made.ref) == b"\x89PNG"


async def test_a_long_result_is_kept_whole_and_shown_short(memory: Backend) -> None:
    long = "".join(f"line {n}\n" for n in range(5000))
    app = Lash(memory.url, model=asking(call("read")))

    @app.tool
    async def read() -> str:
        return long

    async with app:
        told = await result_of(app)
        assert len(told.text) <= 16_000
        assert told.text.startswith("line 0\nline 1\n")
        assert told.text.endswith("line 4999\n")
        (whole,) = told.attachments
        assert whole.ref is not None
        assert whole.ref in told.text
        assert await app.store.attachments.get(whole.ref) == long.encode()


@pytest.mark.proves("T4")
async def test_a_reference_is_replaced_by_what_it_stands_for(memory: Backend) -> None:
    def model(request: Any) -> Any:
        match request.call_number:
            case 0:
                return call("read")
            case 1:
                ref = request.messages[-1].attachments[0].ref
                return calls(
                    call("count", numbers={"$ref": ref}),
                    call("count", numbers={"$ref": "ab12"}),
                    call("nobody", numbers={"$ref": "ab12"}),
                )
            case _:
                return say("Done.")

    app = Lash(memory.url, model=ScriptedModel(model))

    @app.tool
    async def read() -> list[int]:
        return list(range(9000))

    @app.tool
    async def count(numbers: list[int]) -> int:
        return len(numbers)

    async with app:
        session = app.session("chat")
        assert (await session.turn("go", timeout="10s")).text == "Done."
        shown = await transcript(session)
        assert "tool       i2.c0 count: 9000" in shown
        assert "tool       i2.c1 count error: The attachment ab12 is not in the store." in shown
        assert "tool       i2.c2 nobody error: There is no tool 'nobody'" in str(shown)


class Picky(BaseModel):
    """Arguments that fail with a text that no database stores."""

    path: str

    @field_validator("path")
    @classmethod
    def _exists(cls, path: str) -> str:
        raise ToolError(f"{path}: there is no caf\udce9.txt")


async def test_the_model_gets_the_message_of_a_validator_with_an_odd_name() -> None:
    app = Lash("memory://", model=asking(call("read", file={"path": "x"})))

    @app.tool
    async def read(file: Picky) -> str:
        return file.path

    async with app:
        result = await result_of(app)
        assert result.error
        assert r"there is no caf\udce9.txt" in result.text


@EVERY_ENGINE
async def test_an_event_of_a_tool_starts_what_is_subscribed_once(backend: Backend) -> None:
    app = backend.app(model=asking(call("pay")))
    app.trigger("order.paid")

    @app.process
    async def thank(ctx: ProcessContext[None], event: Any) -> Any:
        return event

    @app.tool
    async def pay(ctx: ToolContext[None]) -> str:
        ctx.emit("order.paid", source_key="shop", payload={"order": 7})
        return "paid"

    async with app:
        await app.triggers.register(
            "order.paid", source_key="shop", target=thank, key="thanks", inputs={"event": EVENT}
        )
        assert not (await result_of(app)).error
        await result_of(app)
        (started,) = await eventually(app.processes)
        end = await app.process_handle(started.id).result(timeout="10s")
        assert end == {"order": 7}


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(
    ("trigger", "payload", "trouble"),
    [
        ("order.pad", 7, "There is no trigger 'order.pad' (declared: order.paid)"),
        ("order.paid", "x", "trigger 'order.paid'"),
    ],
)
async def test_an_event_that_is_not_declared_is_an_error_of_the_tool(
    memory: Backend, trigger: str, payload: Any, trouble: str, threaded: bool
) -> None:
    app = Lash(memory.url, model=asking(call("pay")))
    app.trigger("order.paid", payload=int)

    if threaded:

        @app.tool(name="pay")
        def plain(ctx: ToolContext[None]) -> str:
            ctx.emit(trigger, source_key="shop", payload=payload)
            return "paid"

    else:

        @app.tool
        async def pay(ctx: ToolContext[None]) -> str:
            ctx.emit(trigger, source_key="shop", payload=payload)
            return "paid"

    async with app:
        message = await result_of(app)
        assert message.error
        assert trouble in message.text
        stored = [
            one.text for one in await stored_messages(app, "chat") if isinstance(one, ToolMessage)
        ]
        assert stored == [message.text]  # the stored result is the one that the model got


async def stored_messages(app: Lash, session_id: str) -> list[Any]:
    """Return the messages of a session as they are in the store, whatever is kept in memory."""
    record = await app.store.sessions.get(session_id)
    assert record is not None
    return [MESSAGES.decode(body) for body in await app.store.sessions.nodes(record.path[-1])]


async def test_dependencies_reach_tools() -> None:
    app = Lash("memory://", model=asking(call("ask")), deps={"shop": "open"})

    @app.tool
    async def ask(ctx: ToolContext[dict[str, str]]) -> str:
        return ctx.deps["shop"]

    async with app:
        assert (await result_of(app)).text == "open"


async def test_a_result_that_cannot_be_encoded_is_an_error() -> None:
    app = Lash("memory://", model=asking(call("odd")))

    @app.tool
    async def odd() -> Any:
        return object()

    async with app:
        assert (await result_of(app)).error


async def test_the_app_may_be_used_inside_a_tool(memory: Backend) -> None:
    def model(request: Any) -> Any:
        if request.session_id == "helper":
            return say("Helped.")
        return call("ask") if request.call_number == 0 else say("Done.")

    app = Lash(memory.url, model=ScriptedModel(model))

    @app.tool
    async def ask() -> str:
        return (await app.session("helper").turn("help", turn_id="h")).text

    async with app:
        assert (await result_of(app)).text == "Helped."


async def test_results_that_come_together_are_written_together(durable: Backend) -> None:
    model = asking(calls(*(call("wait", number=number) for number in range(5))))
    app = Lash(durable.url, model=model)
    begun, gate = 0, asyncio.Event()

    @app.tool
    async def wait(number: int) -> int:
        nonlocal begun
        begun += 1
        await gate.wait()
        return number

    async def all_begun() -> bool:
        return begun == 5

    async with app:
        written: list[int] = []
        honest = app.store.sessions.record

        def record(fence: Any, session: Any, writing: Any) -> Any:
            written.append(len(writing.entries))
            return honest(fence, session, writing)

        app.store.sessions.record = record  # type: ignore[method-assign]
        session = app.session("chat")
        await begin(session, "go", "t1")
        await eventually(all_begun)
        gate.set()
        assert (await session.turn("go", turn_id="t1", timeout="10s")).text == "Done."
        assert written == [2, 5]  # the reply with the environment, and all results
        results = [m for m in await session.history() if isinstance(m, ToolMessage)]
        assert [message.text for message in results] == list("01234")
