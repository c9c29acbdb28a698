"""The durable host: what the laws do not say in general."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from typing import Any

import pytest

from pylash.durable.effects import (
    AwaitEvent,
    AwaitEventOutcome,
    DurableStep,
    Envelope,
    ExecCode,
    ExecCodeOutcome,
    LlmCall,
    Outcome,
    Process,
    RuntimeScope,
    Sleep,
    SleepOutcome,
    SyncExecutionEnvironment,
    SyncExecutionEnvironmentOutcome,
    ToolBatch,
    envelope,
)
from pylash.durable.ports import DurabilityTier
from pylash.durable.runs import SECOND, Fence, JournalEntry, LeaseTimings, WorkerId
from pylash.durable.scopes import ProcessScope, TurnScope
from pylash.durable.waits import CustomWait, Ok, Timeout
from pylash.engine.executors import (
    any_executor,
    await_options,
    process_executor,
    sleep_executor,
    step_executor,
)
from pylash.engine.hosts import controller
from pylash.engine.hosts.journal import JournalHost
from pylash.stores.operation import Operation, Statement, Steps
from pylash.stores.ports.journal import SqlJournal
from pylash.stores.store import SqlStore
from pylash.testing import SimClock
from pylash.testing.laws.controllers import forbidden, raising, returning, step, value_of
from pylash.testing.laws.hosts import waiting
from pylash.testing.laws.suites import together
from pylash.values.errors import LashError, PluginError, StoreClosed, StoreUnavailable
from tests.backends import Backend, eventually

SCOPE = ProcessScope("p")


def asked(command: Any, name: str = "effect") -> Envelope:
    return envelope(command, scope=RuntimeScope(), effect_id=name, replay_key=name)


async def code_of(work: Any) -> str:
    with pytest.raises(LashError) as caught:
        await work
    return caught.value.code


async def test_a_host_declares_its_durability(backend: Backend) -> None:
    host = await backend.host()
    expected = DurabilityTier.DURABLE if backend.shared else DurabilityTier.INLINE
    assert host.durability is expected
    assert host.scoped(SCOPE).controller.durability is expected
    assert host.supports_durable_effects
    assert host.supports_concurrent_effects
    assert host.gives_static_scopes


async def test_an_effect_without_a_replay_key_is_refused(backend: Backend) -> None:
    host = await backend.host()
    bare = envelope(Sleep(1), scope=RuntimeScope(), effect_id="nap")
    assert await code_of(host.scoped(SCOPE).execute(bare, sleep_executor())) == "missing_replay_key"


async def test_two_scopes_with_the_same_id_do_not_share_records(backend: Backend) -> None:
    host = await backend.host()
    for session in ("s1", "s2"):
        scoped = host.scoped(TurnScope(session, "t1"))
        assert await value_of(scoped, step("who"), returning(session)) == session


@pytest.mark.proves("E10")
async def test_a_sleep_goes_on_with_the_rest_after_a_restart(backend: Backend) -> None:
    clock = AskedClock()
    store = await backend.store(clock)
    nap = asked(Sleep(2 * 86_400_000), "nap")
    host = await backend.host(store, clock=clock)
    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(host.scoped(SCOPE).controller.execute(nap, sleep_executor()))
        await eventually(lambda: _sleeps(host))
        await clock.advance("1d")
        assert not sleeping.done()
        sleeping.cancel()
    await host.close()
    host = await backend.host(store, clock=clock)
    async with asyncio.TaskGroup() as group:
        again = group.create_task(host.scoped(SCOPE).controller.execute(nap, sleep_executor()))
        await eventually(lambda: _has_a_sleeper(clock, 86_400.0))
        await clock.advance("1d")
        async with asyncio.timeout(5):
            assert await again == SleepOutcome()


class AskedClock(SimClock):
    """Keeps how long its sleepers want to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await super().sleep(seconds)


async def _has_a_sleeper(clock: AskedClock, remaining: float) -> bool:
    return remaining in clock.asked


async def _sleeps(host: Any) -> bool:
    run = await host.store.runs.get(SCOPE)
    return run is not None and await host.store.journal.entry(run.id, "nap") is not None


async def test_a_wait_recorded_as_ended_is_not_waited_for_again(backend: Backend) -> None:
    host = await backend.host()
    key = await host.wait_key(SCOPE, CustomWait("go"))
    await host.resolve(key, Ok({"n": 1}), by="ann")
    for _ in range(2):
        outcome = await host.scoped(SCOPE).execute(waiting(key, "go"), await_options())
        assert outcome == AwaitEventOutcome(Ok({"n": 1}))
        host = await backend.reopened(host)


async def test_a_wait_keeps_its_first_deadline_across_restarts(backend: Backend) -> None:
    clock = SimClock()
    store = await backend.store(clock)
    host = await backend.host(store, clock=clock)
    key = await host.wait_key(SCOPE, CustomWait("go"))
    options = await_options(timeout="1h")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(host.scoped(SCOPE).controller.execute(waiting(key, "go"), options))
        await eventually(host.open_waits)
        task.cancel()
    await host.close()
    await clock.advance("2h")
    host = await backend.host(store, clock=clock)
    async with asyncio.timeout(5):
        outcome = await host.scoped(SCOPE).execute(waiting(key, "go"), options)
    assert outcome == AwaitEventOutcome(Timeout())


async def test_a_new_secret_does_not_block_a_wait_in_flight(durable: Backend) -> None:
    old, new = b"the old secret of ours", b"the new secret of ours"
    host = await durable.host(secrets=[old])
    key = await host.wait_key(SCOPE, CustomWait("go"))
    await host.resolve(key, Ok(1))
    await host.scoped(SCOPE).execute(waiting(key, "go"), await_options())
    await host.close()
    host = await durable.host(secrets=[new, old])
    rotated = await host.wait_key(SCOPE, CustomWait("go"))
    assert rotated != key
    outcome = await host.scoped(SCOPE).execute(waiting(rotated, "go"), await_options())
    assert outcome == AwaitEventOutcome(Ok(1))


async def test_composite_commands_run_again_and_only_their_parts_are_recorded(
    backend: Backend,
) -> None:
    host, runs = await backend.host(), list[str]()

    async def cell(_: Envelope) -> Outcome:
        runs.append("cell")
        part = await value_of(host.scoped(SCOPE), step("part"), step_executor(inner))
        return ExecCodeOutcome(part)

    async def inner(_: Any) -> str:
        runs.append("part")
        return "recorded"

    for _ in range(2):
        outcome = await host.scoped(SCOPE).execute(
            asked(ExecCode("python", "part()")), any_executor(cell)
        )
        assert outcome == ExecCodeOutcome("recorded")
        host = await backend.reopened(host)
    assert runs == ["cell", "part", "cell"]


async def test_the_synced_environment_is_recorded(backend: Backend) -> None:
    host = await backend.host()

    async def sync(_: Envelope) -> Outcome:
        return SyncExecutionEnvironmentOutcome({"tools": ["a"]})

    command = asked(SyncExecutionEnvironment())
    await host.scoped(SCOPE).execute(command, any_executor(sync))
    host = await backend.reopened(host)
    outcome = await host.scoped(SCOPE).execute(command, forbidden())
    assert outcome == SyncExecutionEnvironmentOutcome({"tools": ["a"]})


@pytest.mark.proves("E5")
@pytest.mark.parametrize(
    ("error", "code"),
    [(PluginError("broken"), "plugin"), (StoreUnavailable("gone"), "runtime_store")],
)
async def test_failures_of_plugins_and_stores_get_their_codes(
    backend: Backend, error: Exception, code: str
) -> None:
    host = await backend.host()

    async def fail(_: Envelope) -> Outcome:
        raise error

    scoped = host.scoped(SCOPE)
    assert await code_of(scoped.execute(asked(LlmCall({})), any_executor(fail))) == code
    assert await code_of(scoped.execute(asked(LlmCall({})), forbidden())) == code


@pytest.mark.proves("E3")
async def test_an_outcome_of_another_kind_is_refused_and_not_recorded(backend: Backend) -> None:
    host = await backend.host()

    async def wrong(_: Envelope) -> Outcome:
        return SleepOutcome()

    scoped = host.scoped(SCOPE)
    asked_twice = asked(LlmCall({}))
    code = await code_of(scoped.execute(asked_twice, any_executor(wrong)))
    assert code == "runtime_effect_wrong_outcome"
    assert await code_of(scoped.execute(asked(ToolBatch([])), any_executor(wrong))) == code
    assert await code_of(scoped.execute(asked_twice, any_executor(wrong))) == code


async def test_process_commands_are_refused_until_there_is_a_registry(backend: Backend) -> None:
    host = await backend.host()
    work = host.scoped(SCOPE).execute(asked(Process({})), process_executor())
    assert await code_of(work) == "runtime_effect_local_executor_unavailable"


async def test_a_journal_that_is_too_long_is_refused(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MAX_ENTRIES", 3)
    scoped = (await backend.host()).scoped(SCOPE)
    for n in range(3):
        await value_of(scoped, step(f"s{n}"), returning(n))
    assert await code_of(scoped.execute(step("s3"), returning(3))) == "journal_full"
    assert await value_of(scoped, step("s1"), forbidden()) == 1


async def test_a_payload_over_the_limit_is_refused_and_stays_refused(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.values.canonical.MAX_PAYLOAD_BYTES", 1_000)
    scoped = (await backend.host()).scoped(SCOPE)
    work = scoped.execute(step("large"), returning("x" * 2_000))
    assert await code_of(work) == "payload_too_large"
    assert await code_of(scoped.execute(step("large"), forbidden())) == "payload_too_large"


async def test_large_outcomes_are_replayed(backend: Backend) -> None:
    host = await backend.host()
    for name, size in (("large", 10_000), ("huge", 2_000_000)):
        await value_of(host.scoped(SCOPE), step(name), returning("x" * size))
    host = await backend.reopened(host)
    for name, size in (("large", 10_000), ("huge", 2_000_000)):
        assert await value_of(host.scoped(SCOPE), step(name), forbidden()) == "x" * size


async def test_a_controller_that_lost_its_run_is_replaced(durable: Backend) -> None:
    first = await durable.host(timings=LeaseTimings(ttl=2, renew_every=1))
    lost = first.scoped(SCOPE)
    await value_of(lost, step("one"), returning(1))
    second = await durable.host()
    await value_of(second.scoped(SCOPE), step("two"), returning(2))
    assert await code_of(lost.execute(step("three"), returning(3))) == "lease_lost"
    del lost
    gc.collect()
    # Its lease is over again before it has joined, or is not: the run is another's either way.
    refused = await code_of(first.scoped(SCOPE).execute(step("four"), returning(4)))
    assert refused in ("lease_held", "lease_lost")
    await second.close()
    assert await value_of(first.scoped(SCOPE), step("two"), forbidden()) == 2


async def test_a_worker_whose_lease_is_over_renews_before_it_starts_anything(
    backend: Backend,
) -> None:
    clock = SimClock()
    host = await backend.host(await backend.store(clock), clock=clock)
    scoped = host.scoped(SCOPE)
    await value_of(scoped, step("one"), returning(1))
    clock.set_time(
        clock.now() + 3_600 * SECOND
    )  # nobody noticed: as after a pause of the whole process
    assert host.membership.lease_is_over
    assert await value_of(scoped, step("two"), returning(2)) == 2
    assert not host.membership.lease_is_over


async def test_callers_in_many_scopes_are_served_together(backend: Backend) -> None:
    host = await backend.host()

    async def scope(n: int) -> list[Any]:
        scoped = host.scoped(ProcessScope(f"p{n}"))
        return [await value_of(scoped, step(f"s{i}"), returning(n * i)) for i in range(5)]

    results = await together(*(scope(n) for n in range(50)))
    assert results == [[n * i for i in range(5)] for n in range(50)]


async def test_a_cancelled_caller_does_not_undo_a_record_being_written(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await backend.host()
    scoped, honest = host.scoped(SCOPE), host.store.journal.record
    writing = asyncio.Event()

    def record(fence: Fence, entry: JournalEntry, notes: Any) -> Awaitable[JournalEntry]:
        writing.set()
        return honest(fence, entry, notes)

    monkeypatch.setattr(host.store.journal, "record", record)
    async with asyncio.TaskGroup() as group:
        caller = group.create_task(scoped.controller.execute(step("written"), returning(1)))
        await writing.wait()
        caller.cancel()
    assert await value_of(scoped, step("written"), forbidden()) == 1


async def test_a_wait_shows_what_it_is_about(backend: Backend) -> None:
    host = await backend.host()
    turn = TurnScope("chat-42", "t1")
    key = await host.wait_key(turn, CustomWait("approve"))
    command = AwaitEvent(
        key, wait_kind="approval", title="Refund 5?", tool="refund", arguments={"cents": 500}
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            host.scoped(turn).controller.execute(asked(command), await_options())
        )
        (wait,) = await eventually(lambda: host.open_waits("chat-42"))
        assert (wait.kind, wait.title, wait.tool) == ("approval", "Refund 5?", "refund")
        assert (wait.arguments, wait.key) == ({"cents": 500}, key)
        await host.resolve(wait.key, Ok(True))
        assert await task == AwaitEventOutcome(Ok(True))


async def test_a_sleep_that_is_over_cannot_be_cancelled_any_more(backend: Backend) -> None:
    host, cancel = await backend.host(), asyncio.Event()
    await host.scoped(SCOPE).execute(asked(Sleep(1), "nap"), sleep_executor())
    host = await backend.reopened(host)
    cancel.set()
    await asyncio.sleep(0.01)
    outcome = await host.scoped(SCOPE).execute(asked(Sleep(1), "nap"), sleep_executor(cancel))
    assert outcome == SleepOutcome()


async def test_a_wait_that_ended_is_replayed_after_its_session_was_revoked(
    backend: Backend,
) -> None:
    host, turn = await backend.host(), TurnScope("chat-42", "t1")
    for _ in range(2):
        key = await host.wait_key(turn, CustomWait("go"))
        await host.resolve(key, Ok("yes"))
        outcome = await host.scoped(turn).execute(waiting(key, "go"), await_options())
        assert outcome == AwaitEventOutcome(Ok("yes"))
        await host.revoke_waits("chat-42")
        host = await backend.reopened(host)


async def test_closing_a_host_lets_every_caller_go(backend: Backend) -> None:
    host = await backend.host()
    await value_of(host.scoped(SCOPE), step("one"), returning(1))

    async def forever(_: Any) -> None:
        await asyncio.Event().wait()

    async def call(scoped: Any, name: str) -> str:
        try:
            await scoped.execute(step(name), step_executor(forever))
        except (asyncio.CancelledError, StoreClosed):
            return "let go"
        return "?"

    attached, fresh = host.scoped(SCOPE), host.scoped(ProcessScope("q"))
    await value_of(attached, step("two"), returning(2))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        calls = [group.create_task(call(attached, f"s{n}")) for n in range(3)]
        calls.append(group.create_task(call(fresh, "late")))
        await asyncio.sleep(0)
        await host.close()
    assert [task.result() for task in calls] == ["let go"] * 4


async def test_who_comes_while_an_effect_is_being_cancelled_starts_it_again(
    backend: Backend,
) -> None:
    scoped, inside, go = (await backend.host()).scoped(SCOPE), asyncio.Event(), asyncio.Event()

    async def slow_to_end(_: Any) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await go.wait()

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        first = group.create_task(value_of(scoped, step("s"), step_executor(slow_to_end)))
        await inside.wait()
        first.cancel()
        await asyncio.sleep(0)
        second = group.create_task(value_of(scoped, step("s"), returning("again")))
        await asyncio.sleep(0)
        go.set()
    assert second.result() == "again"


async def test_a_controller_without_its_run_performs_nothing(durable: Backend) -> None:
    first = await durable.host(timings=LeaseTimings(ttl=2, renew_every=1))
    lost, ran = first.scoped(SCOPE), list[str]()
    await value_of(lost, step("one"), returning(1))
    second = await durable.host()
    await value_of(second.scoped(SCOPE), step("two"), returning(2))

    async def run(_: Any) -> None:
        ran.append("three")

    for _ in range(3):
        assert await code_of(lost.execute(step("three"), step_executor(run))) == "lease_lost"
    assert len(ran) <= 1
    assert await value_of(lost, step("one"), forbidden()) == 1


async def _settle_runs(host: JournalHost) -> None:
    """End every run, as an engine does that ends its own scopes."""

    def steps() -> Steps[None]:
        yield Statement("""update pylash_runs set state = 'completed', settled = {now}, at = null, owner = null,
            fence = fence + 1, token = 'settled:1'""")

    assert isinstance(host.store, SqlStore)
    await host.store.driver.run(Operation("settle", steps))


async def test_a_run_that_has_ended_can_be_read_and_starts_nothing(backend: Backend) -> None:
    host = await backend.host()
    scoped = host.scoped(SCOPE)
    await value_of(scoped, step("one"), returning(1))
    await _settle_runs(host)
    host = await backend.reopened(host)
    assert await value_of(host.scoped(SCOPE), step("one"), forbidden()) == 1
    assert await code_of(host.scoped(SCOPE).execute(step("two"), forbidden())) == "run_settled"


@pytest.mark.parametrize("key", ["nul\0", "\ud800", "x" * 2_000])
async def test_a_key_that_no_database_holds_is_refused_before_anything_runs(
    backend: Backend, key: str
) -> None:
    scoped = (await backend.host()).scoped(SCOPE)
    bad = envelope(DurableStep("s"), scope=RuntimeScope(), effect_id="s", replay_key=key)
    assert await code_of(scoped.execute(bad, forbidden())) == "replay_key_invalid"


async def test_a_label_that_no_database_holds_is_shown_as_far_as_it_can(backend: Backend) -> None:
    scoped = (await backend.host()).scoped(SCOPE)
    odd = envelope(
        DurableStep("s"), scope=RuntimeScope(), effect_id="s", replay_key="s", label="a\0\ud800é"
    )
    assert await value_of(scoped, odd, returning(1)) == 1


class Mute(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "error",
    [
        LashError("odd data", code="odd", data=(1, {2})),
        LashError("odd code", code=7),  # type: ignore[arg-type]
        LashError("\ud800", code="\ud800"),
        Mute(),
    ],
)
async def test_an_odd_failure_is_recorded_and_replayed_the_same(
    backend: Backend, error: Exception
) -> None:
    host = await backend.host()
    with pytest.raises(LashError) as live:
        await host.scoped(SCOPE).execute(step("odd"), raising(error))
    host = await backend.reopened(host)
    with pytest.raises(LashError) as again:
        await host.scoped(SCOPE).execute(step("odd"), forbidden())
    assert (live.value.code, live.value.message) == (again.value.code, again.value.message)
    assert live.value.data == again.value.data


async def test_a_struct_is_no_plain_value(backend: Backend) -> None:
    scoped = (await backend.host()).scoped(SCOPE)
    work = scoped.execute(step("struct"), returning({"sleep": Sleep(1)}))
    assert await code_of(work) == "value_not_json"


async def test_a_run_id_that_is_taken_is_not_used_twice(backend: Backend) -> None:
    clock = SimClock()
    store = await backend.store(clock)
    bits = iter([b"\1\1\1", b"\1\1\1", b"\2\2\2"])
    store.journal = SqlJournal(store.driver, clock, lambda _: next(bits))
    await store.workers.join(WorkerId("w"), SECOND)
    runs = {
        (await store.journal.attach(ProcessScope(name), WorkerId("w"))).fence.run for name in "ab"
    }
    assert len(runs) == 2


async def test_a_step_that_ignores_being_cancelled_does_not_hold_up_closing(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylash.tasks.GRACE_SECONDS", 0.05)
    host = await backend.host()
    inside, end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(_: Any) -> None:
        inside.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async def call() -> str:
        try:
            await host.scoped(SCOPE).execute(step("stubborn"), step_executor(stubborn))
        except (asyncio.CancelledError, StoreClosed):
            return "let go"
        return "?"

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        caller = group.create_task(call())
        await inside.wait()
        await host.close()
        end.set()
        await ended.wait()  # by itself: nobody tore it down
    assert caller.result() == "let go"
