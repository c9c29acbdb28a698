"""The stage: code on it asks for the same entries in the same order in every attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - seeded
from typing import Any

import pytest

from pylash.restate.attempt_journal import EngineRefused, Suspended
from pylash.restate.stage import Stage, new_stage
from pylash.values.process_errors import EffectOutsideStep
from tests.restate.fake_engine import FakeInvocation, FakeJournal, Killed, action
from tests.restate.programs import random_program

Program = Callable[[Stage], Awaitable[Any]]


async def attempt(invocation: FakeInvocation, program: Program) -> Any:
    """Execute one attempt of a program."""
    journal = FakeJournal(invocation)
    stage = new_stage(journal)

    async def main() -> Any:
        return await program(stage)

    try:
        return await stage.drive(main(), lambda: None)
    finally:
        journal.stop()


async def to_its_end(invocation: FakeInvocation, program: Program) -> Any:
    """Execute attempts until one returns; a suspended one continues when a timer is due."""
    for _ in range(100):
        try:
            return await attempt(invocation, program)
        except Killed:
            invocation.kill_after = None
        except Suspended:
            invocation.fire_timer()
    raise AssertionError("it does not end")


async def test_a_result_is_recorded_and_not_made_again() -> None:
    invocation, made = FakeInvocation(), list[int]()

    async def make() -> bytes:
        made.append(1)
        return b"made"

    async def program(stage: Stage) -> bytes:
        return await stage.run("a", make)

    assert await attempt(invocation, program) == b"made"
    assert await attempt(invocation, program) == b"made"
    assert made == [1]


async def test_other_entries_than_the_recorded_ones_are_refused() -> None:
    invocation = FakeInvocation()
    await attempt(invocation, lambda stage: stage.run("a", action("x")))
    with pytest.raises(EngineRefused, match="entry 0"):
        await attempt(invocation, lambda stage: stage.run("b", action("x")))


async def test_plain_timers_of_asyncio_are_timers_of_the_engine() -> None:
    invocation = FakeInvocation()

    async def program(stage: Stage) -> float:
        await asyncio.sleep(1000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(500):
                await asyncio.sleep(9000)
        return stage.time()

    assert await attempt(invocation, program) == 1500.0
    assert [entry.kind for entry in invocation.entries] == ["sleep"] * 3


async def test_a_call_outside_holds_everything_else() -> None:
    invocation, order = FakeInvocation(), list[str]()

    async def program(stage: Stage) -> None:
        async def read() -> None:
            await asyncio.sleep(0.02)  # on the real loop
            order.append("read")

        async def step() -> None:
            await stage.run("a", action("x"))
            order.append("step")

        async with asyncio.TaskGroup() as group:
            group.create_task(step())
            group.create_task(stage.outside(read))

    for _ in range(2):
        order.clear()
        await attempt(invocation, program)
        assert order == ["read", "step"]


async def test_the_network_is_refused_between_effects() -> None:
    async def program(_: Stage) -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    with pytest.raises(EffectOutsideStep):
        await attempt(FakeInvocation(), program)


async def test_threads_are_calls_outside() -> None:
    async def program(_: Stage) -> int:
        return await asyncio.to_thread(sum, [1, 2])

    assert await attempt(FakeInvocation(), program) == 3


async def test_code_of_an_attempt_that_has_ended_is_closed_and_asks_for_nothing() -> None:
    invocation, left = FakeInvocation(), list[str]()

    async def program(stage: Stage) -> None:
        try:
            await stage.run("a", action("x"))
            await stage.run("b", action("y"))
        finally:
            left.append("cleaned up")

    invocation.kill_after = 1
    with pytest.raises(Killed):
        await attempt(invocation, program)
    assert left == ["cleaned up"]
    assert len(invocation.entries) == 2


@pytest.mark.parametrize("start", range(0, 200, 20))
async def test_random_programs_never_diverge(start: int) -> None:
    for seed in range(start, start + 20):
        invocation = FakeInvocation(Random(seed))
        expected = await to_its_end(invocation, random_program(seed))
        entries, completions = list(invocation.entries), len(invocation.completions)
        # Every attempt that gets the same completions sees the same, wherever it is killed.
        for killed_after in {0, completions // 3, completions // 2, completions - 1}:
            invocation.kill_after = killed_after
            assert await to_its_end(invocation, random_program(seed)) == expected, seed
        assert invocation.entries == entries, seed


@pytest.mark.parametrize("start", range(0, 100, 20))
async def test_random_programs_that_are_killed_on_their_way_end_without_divergence(
    start: int,
) -> None:
    for seed in range(start, start + 20):
        random = Random(seed)
        invocation = FakeInvocation(Random(seed))
        for _ in range(5):
            invocation.kill_after = len(invocation.completions) + random.randrange(4)
            await to_its_end(invocation, random_program(seed))
