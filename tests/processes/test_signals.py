"""Signals, waits and time: received in order, none lost, none twice."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from pylash import (
    InlineHost,
    Lash,
    ProcessCancelled,
    ProcessContext,
    ProcessEnded,
    ProcessFailed,
    ProcessSignalWaitCancelled,
    ProcessUnknown,
    WaitFailed,
    WaitKeyInvalid,
    WaitTimeout,
    WorkerConfig,
)
from pylash.durable.scopes import ProcessScope
from pylash.durable.waits import CustomWait, Signer
from pylash.testing import SimClock, kill
from tests.backends import EVERY_ENGINE, Backend, eventually
from tests.processes.test_branches import PARKING, parked

LIVE = WorkerConfig(park_after="1h")


@EVERY_ENGINE
@pytest.mark.proves("P12")
@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_signals_of_a_name_are_received_in_order(
    backend: Backend, config: WorkerConfig
) -> None:
    app = backend.app(worker=config)

    @app.process
    async def collect(ctx: ProcessContext[None]) -> list[int]:
        return [await ctx.wait_signal("n") for _ in range(5)]

    async with app:
        handle = await app.start(collect)
        for n in range(5):
            await handle.signal("n", n)
            await asyncio.sleep(0.003 * n)
        assert await handle.result(timeout="10s") == [0, 1, 2, 3, 4]


@EVERY_ENGINE
@pytest.mark.proves("P12")
async def test_two_signals_during_one_wait_are_both_received(backend: Backend) -> None:
    app = backend.app(worker=LIVE)

    @app.process
    async def two(ctx: ProcessContext[None]) -> list[Any]:
        first = await ctx.wait_signal("n")
        second = await ctx.wait_signal("n")
        return [first, second]

    async with app:
        handle = await app.start(two)
        await handle.signal("n", "a")
        await handle.signal("n", "b")
        assert await handle.result(timeout="10s") == ["a", "b"]


@EVERY_ENGINE
async def test_a_signal_with_an_id_arrives_once(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def one(ctx: ProcessContext[None]) -> Any:
        first = await ctx.wait_signal("n")
        return [first, await ctx.wait_signal("n", timeout="20ms", default="none")]

    async with app:
        handle = await app.start(one)
        await handle.signal("n", 1, id="same")
        await handle.signal("n", 1, id="same")
        assert await handle.result(timeout="10s") == [1, "none"]


@EVERY_ENGINE
@pytest.mark.proves("P12")
async def test_a_signal_after_a_timed_out_wait_is_for_the_next(backend: Backend) -> None:
    app = backend.app(worker=LIVE)
    late = asyncio.Event()

    @app.process
    async def patient(ctx: ProcessContext[None]) -> list[Any]:
        first = await ctx.wait_signal("n", timeout="5ms", default="late")
        late.set()
        return [first, await ctx.wait_signal("n")]

    async with app:
        handle = await app.start(patient)
        await late.wait()
        await handle.signal("n", "next")
        assert await handle.result(timeout="10s") == ["late", "next"]


@EVERY_ENGINE
async def test_a_wait_without_a_default_raises_in_time(backend: Backend) -> None:
    app = backend.app(worker=PARKING)

    @app.process
    async def strict(ctx: ProcessContext[None]) -> str:
        try:
            await ctx.wait_signal("n", timeout="30ms")
        except WaitTimeout as error:
            return error.code
        return "never"

    async with app:
        assert (
            await (await app.start(strict)).result(timeout="10s") == "process_signal_wait_timeout"
        )


@EVERY_ENGINE
@pytest.mark.proves("P8")
async def test_signals_to_nobody_are_refused(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def quick(ctx: ProcessContext[None]) -> None: ...

    async with app:
        handle = await app.start(quick)
        await handle.result(timeout="10s")
        with pytest.raises(ProcessEnded):
            await handle.signal("n")
        with pytest.raises(ProcessUnknown):
            await app.process_handle("nobody").signal("n")
        with pytest.raises(ProcessUnknown):
            await app.process_handle("nobody").cancel()
        with pytest.raises(ProcessUnknown):
            await app.process_handle("nobody").status()


@EVERY_ENGINE
@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_a_wait_is_answered_from_outside_by_its_key(
    backend: Backend, config: WorkerConfig
) -> None:
    app = backend.app(worker=config)
    keys: list[str] = []

    @app.process
    async def ask(ctx: ProcessContext[None]) -> Any:
        key = ctx.wait_key("approval")
        assert await key == key
        keys.append(key)
        return await ctx.wait(key, timeout="1h")

    async with app:
        handle = await app.start(ask)
        waits = await eventually(app.waits)
        assert (waits[0].kind, waits[0].title) == ("custom", "approval")
        assert waits[0].key == keys[0]
        if config is PARKING:
            await parked(app, handle.id)
        assert (await app.resolve(keys[0], {"yes": 1})).status == "accepted"
        assert await handle.result(timeout="10s") == {"yes": 1}
        again = await app.resolve(keys[0], False)
        assert again.status == "already_resolved"
        signer = Signer([b"the secret of another store"])
        foreign = signer.key(ProcessScope("p"), CustomWait("w"))
        assert (await app.resolve(foreign, 1)).status == "unknown_or_revoked"
        malformed = ("nonsense", "", keys[0][:-1], keys[0].removeprefix("v1."), f" {keys[0]}", 7)
        for key in malformed:
            with pytest.raises(WaitKeyInvalid, match="is not the key of a wait"):
                await app.resolve(key, 1)  # type: ignore[arg-type]


@EVERY_ENGINE
async def test_a_wait_may_be_answered_with_an_error_or_not_at_all(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def ask(ctx: ProcessContext[None]) -> list[str]:
        ends = []
        for name, timeout in (("refused", "1h"), ("late", "10ms")):
            try:
                await ctx.wait(ctx.wait_key(name), timeout=timeout)
            except (WaitFailed, WaitTimeout) as error:
                ends.append(type(error).__name__)
        return ends

    async with app:
        handle = await app.start(ask)
        waits = await eventually(app.waits)
        await app.resolve(waits[0].key, error="no")
        assert await handle.result(timeout="10s") == ["WaitFailed", "WaitTimeout"]


@EVERY_ENGINE
async def test_an_open_wait_for_a_signal_is_listed_and_its_key_sends_it(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def branchy(ctx: ProcessContext[None]) -> list[Any]:
        return await ctx.gather(ctx.wait_signal("a"), waiting(ctx))

    async def waiting(ctx: ProcessContext[None]) -> Any:
        return await ctx.wait_signal("b")

    async with app:
        handle = await app.start(branchy)
        waits = await eventually(lambda: two_waits(app))
        keys = {wait.title: wait.key for wait in waits}
        assert {wait.kind for wait in waits} == {"signal"}
        assert (await app.resolve(keys["b"], 2)).status == "accepted"
        assert (await app.resolve(keys["b"], 3)).status == "already_resolved"
        assert (await app.resolve(keys["a"], 1)).status == "accepted"
        assert await handle.result(timeout="10s") == [1, 2]


async def two_waits(app: Lash) -> list[Any]:
    waits = await app.waits()
    return waits if len(waits) == 2 else []


async def test_weeks_pass_in_milliseconds(backend: Backend) -> None:
    clock = SimClock()
    app = Lash(backend.url, clock=clock)

    @app.process
    async def patient(ctx: ProcessContext[None]) -> list[float]:
        start = ctx.now()
        ends = []
        for _ in range(4):
            await ctx.sleep("1w")
            ends.append((ctx.now() - start) / timedelta(weeks=1))
        answer = await ctx.wait_signal("never", timeout="3d", default=0.0)
        return [*ends, answer]

    async with app:
        handle = await app.start(patient)
        await clock.advance("5w")
        assert await handle.result(timeout="10s") == [1.0, 2.0, 3.0, 4.0, 0.0]


async def test_a_sleep_ends_at_its_moment_also_after_a_restart(durable: Backend) -> None:
    clock = SimClock()
    moments = {"utc": "2026-01-03", "zone": "2026-01-03T02:00+02:00", "past": "2025-12-31"}

    async def until(ctx: ProcessContext[None], moment: str) -> str:
        await ctx.sleep_until(datetime.fromisoformat(moment))
        return ctx.now().isoformat()

    async with Lash(durable.url, clock=clock) as app:
        sleeping = app.process(until)
        for name, moment in moments.items():
            await app.start(sleeping.options(id=name), moment=moment)
        await clock.advance("1d")
    app = Lash(durable.url, clock=clock)
    app.process(until)
    async with app:
        await clock.advance("23h")
        slept = {one.id for one in await app.processes(status="completed")}
        await clock.advance("1h")
        ends = [await app.process_handle(name).result(timeout="10s") for name in moments]
    assert slept == {"past"}
    assert ends == [f"2026-01-0{day}T00:00:00+00:00" for day in (3, 3, 1)]


async def test_a_delayed_process_starts_in_time(backend: Backend) -> None:
    clock = SimClock()
    app = Lash(backend.url, clock=clock)

    @app.process
    async def later(ctx: ProcessContext[None]) -> str:
        return ctx.now().isoformat()

    async with app:
        handle = await app.start(later.options(delay="2d"))
        await clock.advance("1d")
        assert await handle.status() == "queued"
        await clock.advance("1d")
        assert (await handle.result(timeout="10s")).startswith("2026-01-03")


async def test_time_and_chance_are_the_same_after_a_restart(durable: Backend) -> None:
    seen: list[tuple[str, float, str]] = []

    async def note(ctx: ProcessContext[None]) -> None:
        seen.extend((ctx.now().isoformat(), ctx.random(), ctx.uuid()) for _ in range(2))
        await ctx.wait_signal("go")

    app = Lash(durable.url, worker=PARKING)
    async with app:
        await app.start(app.process(note).options(id="p"))
        await parked(app, "p")
    again = Lash(durable.url, worker=PARKING)
    again.process(note)
    async with again:
        await again.process_handle("p").signal("go")
        await again.process_handle("p").result(timeout="10s")
    assert seen[:2] == seen[2:4]
    assert len(set(seen[:2])) == 2


@EVERY_ENGINE
async def test_a_bad_signal_name_fails_where_it_is_used(backend: Backend) -> None:
    app = backend.app()

    @app.process
    async def wrong(ctx: ProcessContext[None]) -> None:
        await ctx.wait_signal(" ")

    async with app:
        with pytest.raises(ProcessFailed) as caught:
            await (await app.start(wrong)).result(timeout="10s")
        assert caught.value.code == "signal_name_invalid"


# --- cancelled waits ---


async def waits_and_tells(ctx: ProcessContext[None], told: list[str]) -> None:
    """Wait for a signal; tell why the wait ended."""
    try:
        await ctx.wait_signal("go")
    except asyncio.CancelledError as cancel:
        told += [] if type(cancel) is asyncio.CancelledError else ["another class"]
        cause = cancel.__cause__
        told.append(cause.code if isinstance(cause, ProcessSignalWaitCancelled) else repr(cause))
        raise


CANCELLED_AT_A_SIGNAL = "process_signal_wait_cancelled"


@EVERY_ENGINE
@pytest.mark.proves("P12")
@pytest.mark.parametrize("config", [LIVE, PARKING], ids=["live", "parked"])
async def test_a_cancelled_wait_has_its_code(backend: Backend, config: WorkerConfig) -> None:
    app, told = backend.app(worker=config), list[str]()

    @app.process
    async def waits(ctx: ProcessContext[None]) -> None:
        await waits_and_tells(ctx, told)

    async with app:
        handle = await app.start(waits.options(id="p"))
        await eventually(app.waits)
        if config is PARKING:
            await parked(app, "p")
        await handle.cancel("enough")
        with pytest.raises(ProcessCancelled, match="enough"):
            await handle.result(timeout="10s")
    assert told == [CANCELLED_AT_A_SIGNAL]


@pytest.mark.proves("P12")
async def test_a_replay_is_cancelled_with_the_same_code(durable: Backend) -> None:
    told: list[str] = []

    async def tidies(ctx: ProcessContext[None]) -> None:
        try:
            await waits_and_tells(ctx, told)
        finally:
            await ctx.wait_signal("tidied")

    app = Lash(durable.url, worker=PARKING)
    app.process(tidies)
    await app.open()
    handle = await app.start(app.services.definitions["tidies"].options(id="p"))
    await parked(app, "p")
    await handle.cancel()

    async def tidying() -> bool:
        return "tidied" in [wait.title for wait in await app.waits()]

    await eventually(tidying)
    await kill(app)
    again = Lash(durable.url, worker=PARKING)
    again.process(tidies)
    async with again:
        await again.process_handle("p").signal("tidied")
        with pytest.raises(ProcessCancelled):
            await again.process_handle("p").result(timeout="10s")
    assert set(told) == {CANCELLED_AT_A_SIGNAL}
    assert len(told) >= 2


@EVERY_ENGINE
@pytest.mark.proves("P12")
async def test_the_wait_of_a_branch_that_lost_has_its_code(backend: Backend) -> None:
    app, told = backend.app(), list[str]()

    async def one() -> int:
        return 1

    @app.process
    async def races(ctx: ProcessContext[None]) -> Any:
        return await ctx.race(waits_and_tells(ctx, told), ctx.step(one))

    async with app:
        assert await (await app.start(races)).result(timeout="10s") == 1
    assert told == [CANCELLED_AT_A_SIGNAL]


@pytest.mark.proves("P12")
async def test_a_host_without_a_journal_gives_a_cancelled_wait_its_code() -> None:
    app, told = Lash("memory://", host=InlineHost()), list[str]()
    begun = asyncio.Event()

    @app.process
    async def waits(ctx: ProcessContext[None]) -> None:
        begun.set()
        await waits_and_tells(ctx, told)

    async with app:
        handle = await app.start(waits)
        await begun.wait()
        await handle.cancel()
        with pytest.raises(ProcessCancelled):
            await handle.result(timeout="10s")
    assert told == [CANCELLED_AT_A_SIGNAL]


async def test_a_wait_that_the_worker_broke_off_has_no_code() -> None:
    app, told, begun = Lash("memory://", worker=LIVE), list[str](), asyncio.Event()

    @app.process
    async def waits(ctx: ProcessContext[None]) -> str:
        begun.set()
        await waits_and_tells(ctx, told)
        return "never"

    async with app:
        await app.start(waits)
        await begun.wait()
        await eventually(app.waits)
    assert CANCELLED_AT_A_SIGNAL not in told
