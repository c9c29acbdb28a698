"""The row of a process is the fold of its log, whatever is done to it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylash.durable.commands import (
    AppendEvent,
    CancelProcess,
    ProcessCommand,
    SignalProcess,
    StartProcess,
)
from pylash.durable.processes import (
    CANCEL_REQUESTED,
    Aborted,
    EngineInput,
    EventType,
    Failure,
    Output,
    ProcessEvent,
    Registration,
    Semantics,
    SessionRef,
    Success,
    ending,
    fold,
)
from pylash.durable.runs import SECOND, Instant, WorkerId
from pylash.stores.store import SqlStore
from pylash.testing.laws.stores.subjects import TARGET, effect, ids
from pylash.values.canonical import encode
from pylash.values.errors import LeaseLost, Misuse
from tests.backends import Backend, lockless

TYPES = (
    EventType("note"),
    EventType("alarm", semantics=Semantics.WAKE),
    EventType("over", semantics=Semantics.TERMINAL),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
OUTPUTS = st.one_of(
    st.builds(Success, JSON),
    st.builds(Failure, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), JSON),
    st.builds(Aborted, st.none() | st.text(max_size=5)),
)
KEYS = st.sampled_from([None, "a", "b"])
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(["note", "alarm", "over", "wrong"]), JSON, KEYS),
    st.tuples(st.just("emit"), st.sampled_from(["note", "alarm"]), JSON, st.sampled_from("abc")),
    st.tuples(st.just("signal"), st.sampled_from(["go", "stop"]), JSON, st.sampled_from("abc")),
    st.tuples(st.just("take"), st.sampled_from(["go", "stop"]), st.sampled_from([None, 0])),
    st.tuples(st.just("cancel"), st.none() | st.text(max_size=5), st.just(False)),
    st.tuples(st.just("cancel"), st.none() | st.text(max_size=5), st.booleans()),
    st.tuples(st.just("settle"), OUTPUTS),
    st.tuples(st.sampled_from(["continue_as", "leave", "claim", "watch"])),
)
Step = tuple[Any, ...]


class Player:
    """Does things to one process, on behalf of whoever owns it."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.processes = store.processes
        self.id = f"process-{next(ids)}"
        self.registration = Registration(
            id=self.id,
            input=EngineInput("python", "work", {}),
            event_types=TYPES,
            wake_target=SessionRef("ann"),
        )

    async def join(self) -> None:
        self.worker = WorkerId(f"worker-{next(ids)}")
        await lockless(self.store).join(self.worker, 600 * SECOND)

    async def start(self) -> None:
        await self.join()
        leased = await self.processes.start(StartProcess(self.registration), self.worker)
        assert leased is not None
        self.fence, self.number = leased.fence, leased.number

    async def append(self, kind: str, payload: Any, key: str | None) -> None:
        await self.ask(AppendEvent(self.id, kind, payload, key))

    async def emit(self, kind: str, payload: Any, key: str) -> None:
        event = AppendEvent("", kind, payload, key)
        await self.processes.perform_for(self.fence, effect(f"emit {key}"), event, encode)

    async def signal(self, name: str, payload: Any, key: str) -> None:
        await self.ask(SignalProcess(self.id, name, key, payload))

    async def take(self, name: str, timeout: int | None) -> None:
        entry = effect(f"take {next(ids)}")
        await self.processes.take_signal(self.fence, entry, name, timeout, encode)

    async def cancel(self, reason: str | None, force: bool) -> None:
        await self.ask(CancelProcess(self.id, reason, force))

    async def settle(self, output: Output) -> None:
        await self.processes.settle(self.fence, self.number, output)

    async def continue_as(self) -> None:
        await self.processes.continue_as(self.fence, self.registration)
        await self.claim()

    async def leave(self) -> None:
        await self.store.workers.leave(self.worker)
        await self.join()

    async def claim(self) -> None:
        for claim in await self.store.runs.claim(self.worker, limit=5, targets=[TARGET]):
            if claim.fence.scope.id == self.id:
                self.fence = claim.fence

    async def watch(self) -> None:
        await self.processes.observe([self.id])

    async def ask(self, command: ProcessCommand) -> None:
        await self.processes.perform(command)

    async def check(self) -> None:
        record = await self.processes.get(self.id)
        assert record is not None
        events = await self.processes.events(self.id)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert fold(events, record.registration.event_types) == record.state


@pytest.mark.proves("P2")
async def test_the_row_is_the_fold_of_the_log(backend: Backend) -> None:
    store, loop = await backend.store(), asyncio.get_running_loop()

    async def played(steps: list[Step]) -> None:
        player = Player(store)
        await player.start()
        for name, *arguments in steps:
            with suppress(Misuse, LeaseLost):
                await getattr(player, name)(*arguments)
        await player.check()

    @settings(
        max_examples=min(60, settings().max_examples),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(OPERATIONS, max_size=14))
    def check(steps: list[Step]) -> None:
        asyncio.run_coroutine_threadsafe(played(steps), loop).result(60)

    await asyncio.to_thread(check)


@given(st.lists(OUTPUTS, max_size=3), st.integers(0, 3))
def test_the_first_end_stands(ends: list[Output], cancels: int) -> None:
    kinds = [*([(CANCEL_REQUESTED, {"reason": None})] * cancels), *map(ending, ends)]
    events = [
        ProcessEvent(n, kind, payload, None, Instant(n))
        for n, (kind, payload) in enumerate(kinds, 1)
    ]
    state = fold(events)
    assert state.sequence == len(events)
    assert state.output == (ends[0] if ends else None)
    assert state.cancel is bool(cancels)


def test_a_declared_terminal_event_ends_and_an_undeclared_one_does_not() -> None:
    events = [ProcessEvent(1, "over", {"n": 1}, None, Instant(1))]
    assert fold(events).status == "open"
    assert fold(events, None).status == "open"
    assert fold(events, TYPES).output == Success({"n": 1})
