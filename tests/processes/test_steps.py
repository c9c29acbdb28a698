"""Steps: recorded once, tried again, limited, checked."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from pylash import (
    ArgumentsInvalid,
    Lash,
    ProcessContext,
    ProcessFailed,
    Retry,
    StepFailed,
    ValueNotJson,
    WorkerConfig,
)
from tests.backends import EVERY_ENGINE, Backend, eventually

QUICK = Retry(3, delay="1ms")


class Profile(BaseModel):
    """A typed value."""

    name: str
    born: datetime


async def opened_three(app: Lash) -> bool:
    return len(await effects(app, "p")) == 3


async def effects(app: Lash, process_id: str) -> list[str]:
    """Return the keys of what a process recorded, in order."""
    record = await app.store.processes.get(process_id)
    assert record is not None
    return [entry.key for entry in await app.store.journal.timeline(record.run)]


async def test_a_step_runs_once_and_is_replayed_after_a_restart(durable: Backend) -> None:
    calls: list[int] = []

    async def count(n: int) -> int:
        calls.append(n)
        return n + 1

    async def body(ctx: ProcessContext[None], n: int) -> int:
        first = await ctx.step(count, n)
        second = await ctx.step(count, first)
        await ctx.wait_signal("go")
        return second

    async with Lash(durable.url) as app:
        await app.start(app.process(body).options(id="p"), n=1)
        await eventually(lambda: opened_three(app))
    assert calls == [1, 2]
    async with Lash(durable.url) as app:
        app.process(body)
        handle = app.process_handle("p")
        await handle.signal("go")
        assert await handle.result(timeout="10s") == 3
        keys = await effects(app, "p")
    assert calls == [1, 2]
    assert keys == ["count", "count#2", "root:process:wait_signal:go"]


async def test_steps_of_one_name_are_numbered(backend: Backend) -> None:
    async def fetch(n: int) -> int:
        return n

    app = Lash(backend.url)

    @app.process
    async def loop(ctx: ProcessContext[None]) -> int:
        return sum([await ctx.step(fetch, n) for n in range(3)])

    async with app:
        handle = await app.start(loop)
        assert await handle.result(timeout="10s") == 3
        assert await effects(app, handle.id) == ["fetch", "fetch#2", "fetch#3"]


@EVERY_ENGINE
async def test_a_plain_function_runs_in_a_thread(backend: Backend) -> None:
    def where() -> str:
        return threading.current_thread().name

    app = backend.app()

    @app.process
    async def threaded(ctx: ProcessContext[None]) -> str:
        return await ctx.step(where)

    async with app:
        name = await (await app.start(threaded)).result(timeout="10s")
    assert name != threading.main_thread().name


async def test_every_failed_attempt_and_every_delay_is_recorded(backend: Backend) -> None:
    tries: list[int] = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("away")
        return "there"

    app = Lash(backend.url)

    @app.process
    async def patient(ctx: ProcessContext[None]) -> str:
        return await ctx.options(retry=QUICK).step(flaky)

    async with app:
        handle = await app.start(patient)
        assert await handle.result(timeout="10s") == "there"
        keys = await effects(app, handle.id)
    assert keys == ["flaky", "flaky/delay.1", "flaky/attempt.2", "flaky/delay.2", "flaky/attempt.3"]


async def test_each_retried_attempt_is_one_log_line_and_the_last_has_the_traceback(
    durable: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async def charge() -> None:
        raise ConnectionError("the bank\nis away")

    async def order(ctx: ProcessContext[None]) -> None:
        await ctx.options(retry=Retry(3, delay="300ms", jitter=False)).step(charge)

    caplog.set_level(logging.WARNING, "pylash")

    async def is_logged() -> bool:
        return bool(caplog.messages)

    async with Lash(durable.url) as app:
        await app.start(app.process(order).options(id="order-7"))
        await eventually(is_logged)
    async with Lash(durable.url) as app:  # replays the first attempt
        app.process(order)
        with pytest.raises(ProcessFailed, match="the bank"):
            await app.process_handle("order-7").result(timeout="10s")
    failed = "failed: ConnectionError: the bank is away; next attempt in"
    assert caplog.messages == [
        f"process order-7: attempt 1 of 3 of step 'charge' {failed} 0.3 s",
        f"process order-7: attempt 2 of 3 of step 'charge' {failed} 0.6 s",
        "process order-7 failed",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, False, True]
    assert 'raise ConnectionError("the bank' in caplog.text
    assert "await ctx.options(retry=Retry(3" in caplog.text
    assert "src/pylash" not in caplog.text


async def test_the_last_failure_is_the_steps_failure(backend: Backend) -> None:
    async def hopeless() -> None:
        raise ConnectionError("away")

    app = Lash(backend.url)

    @app.process
    async def patient(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.options(retry=QUICK).step(hopeless)
        except StepFailed as error:
            return f"{error.type_name}: {error.message}"
        return "never"

    async with app:
        handle = await app.start(patient)
        assert await handle.result(timeout="10s") == "ConnectionError: away"
        assert len(await effects(app, handle.id)) == 5


@EVERY_ENGINE
async def test_what_is_not_to_be_tried_again_is_not(backend: Backend) -> None:
    tries: list[int] = []

    async def wrong() -> None:
        tries.append(1)
        raise ValueError("no")

    app = backend.app()

    @app.process
    async def picky(ctx: ProcessContext[None]) -> None:
        await ctx.options(retry=Retry(5, delay="1ms", on=(ConnectionError,))).step(wrong)

    async with app:
        with pytest.raises(ProcessFailed, match="no"):
            await (await app.start(picky)).result(timeout="10s")
    assert tries == [1]


@EVERY_ENGINE
async def test_a_step_that_takes_too_long_is_ended(backend: Backend) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    app = backend.app()

    @app.process
    async def hasty(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.options(timeout="20ms").step(slow)
        except StepFailed as error:
            return error.code
        return "never"

    async with app:
        assert await (await app.start(hasty)).result(timeout="10s") == "step_timeout"


@EVERY_ENGINE
async def test_values_come_back_as_their_annotations_say(backend: Backend) -> None:
    born = datetime(1990, 1, 2, tzinfo=UTC)

    async def load(name: str) -> Profile:
        return Profile(name=name, born=born)

    app = backend.app()

    @app.process
    async def typed(ctx: ProcessContext[None], given: Profile) -> Profile:
        assert isinstance(given, Profile)
        found = await ctx.step(load, given.name)
        assert isinstance(found, Profile)
        return found

    async with app:
        handle = await app.start(typed, given=Profile(name="Ann", born=born))
        assert await handle.result(timeout="10s") == Profile(name="Ann", born=born)


@EVERY_ENGINE
async def test_arguments_are_checked_where_they_are_given(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def typed(ctx: ProcessContext[None], user: str, age: int = 7) -> str:
        return user * age

    async with app:
        with pytest.raises(ArgumentsInvalid, match="missing a required argument: 'user'"):
            await app.start(typed)  # type: ignore[call-arg]
        with pytest.raises(ArgumentsInvalid, match=r"age: Input should be a valid integer"):
            await app.start(typed, user="ann", age="old")  # type: ignore[arg-type]
        with pytest.raises(ArgumentsInvalid, match="unexpected keyword argument"):
            await app.start(typed, user="ann", size=1)  # type: ignore[call-arg]
        assert await app.processes() == []


@EVERY_ENGINE
async def test_what_would_not_come_back_is_refused_with_its_path(backend: Backend) -> None:
    app = backend.app()

    async def take(value: Any) -> None: ...

    @app.process
    async def untyped(ctx: ProcessContext[None], given) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        await ctx.step(take, {"deep": [object()]})

    async with app:
        with pytest.raises(ValueNotJson, match=r"\$\.given\.a\[0\]"):
            await app.start(untyped, given={"a": [{1, 2}]})
        with pytest.raises(ProcessFailed, match=r"\$\[0\]\.deep\[0\]") as caught:
            await (await app.start(untyped, given=1)).result(timeout="10s")
        assert caught.value.code == "value_not_json"


async def test_a_result_that_is_not_what_was_declared_fails_the_process(backend: Backend) -> None:
    app = Lash(backend.url, worker=WorkerConfig(concurrency=1))

    @app.process
    async def liar(ctx: ProcessContext[None]) -> int:
        return "many"  # type: ignore[return-value]

    async with app:
        with pytest.raises(ProcessFailed) as caught:
            await (await app.start(liar)).result(timeout="10s")
        assert caught.value.code == "result_invalid"
