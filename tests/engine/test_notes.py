"""The memory of a run: its notes, which effects write and wait for them, and its time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pylash.durable.runs import Attached, Fence, JournalEntry
from pylash.durable.scopes import TurnScope
from pylash.engine.hosts.journal_memory import JournalMemory
from pylash.testing import SimClock
from pylash.values.errors import StoreUnavailable
from tests.backends import Backend


async def memory_of(backend: Backend) -> JournalMemory:
    host = await backend.host()
    return JournalMemory(host.store.journal, host.clock, host.tasks)


async def keys(notes: Sequence[JournalEntry]) -> list[str]:
    """Write notes: return their keys."""
    return [note.key for note in notes]


async def test_notes_are_written_once_and_in_order(backend: Backend) -> None:
    memory = await memory_of(backend)
    for key in ("one", "two"):
        memory.note(key, lambda: 1)
    assert await memory.write_with_notes(keys) == ["one", "two"]
    assert await memory.write_with_notes(keys) == []


async def test_an_effect_waits_for_notes_that_another_one_writes(backend: Backend) -> None:
    memory = await memory_of(backend)
    memory.note("one", lambda: 1)
    begun, may_end, order = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow(notes: Sequence[JournalEntry]) -> None:
        begun.set()
        await may_end.wait()
        order.append("slow")

    async def quick(notes: Sequence[JournalEntry]) -> list[str]:
        order.append("quick")
        return await keys(notes)

    async with asyncio.TaskGroup() as group:
        group.create_task(memory.write_with_notes(slow))
        await begun.wait()
        memory.note("two", lambda: 2)
        others = [group.create_task(memory.write_with_notes(quick)) for _ in range(2)]
        asyncio.get_running_loop().call_later(0.01, may_end.set)
    assert order == ["slow", "quick", "quick"]
    assert [other.result() for other in others] == [["two"], []]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), asyncio.CancelledError()])
async def test_notes_of_a_write_that_failed_are_written_with_the_next_one(
    backend: Backend, error: BaseException
) -> None:
    memory = await memory_of(backend)
    memory.note("one", lambda: 1)

    async def fail(_: Sequence[JournalEntry]) -> None:
        memory.note("two", lambda: 2)
        raise error

    with pytest.raises(type(error)):
        await memory.write_with_notes(fail)
    assert await memory.write_with_notes(keys) == ["one", "two"]


async def test_the_time_of_a_run_is_exact_to_the_microsecond(backend: Backend) -> None:
    """Its clock gives seconds as floats, and 1.001 - 0.001 is a little less than 1."""
    host, clock = await backend.host(), SimClock()
    memory = JournalMemory(host.store.journal, clock, host.tasks)
    await clock.advance("1ms")
    memory.attach(Attached(Fence(1, 1, TurnScope("s", "t")), clock.now()))
    await clock.advance("1s")
    assert memory.now() == clock.now()
