"""The writer of a turn: which effects and messages share a write, and how a failed or the last write ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pylash.durable.runs import Fence, JournalEntry
from pylash.durable.scopes import TurnScope
from pylash.durable.sessions import SessionRecord, Writing
from pylash.sessions.writer import TurnWriter
from pylash.tasks import TaskOwner
from pylash.turn.messages import AssistantMessage, Message, Text, UserMessage
from pylash.values.errors import StoreUnavailable

FENCE = Fence(1, 1, TurnScope("chat", "t1"))
SESSION = SessionRecord("chat", 1, head=4)
TASKS = TaskOwner()
QUESTION = UserMessage((Text("Where is it?"),))


class Sessions:
    """Keeps writes open until they are ended; only ``record`` is called by a writer."""

    def __init__(self) -> None:
        self.writes: list[tuple[Writing, asyncio.Future[None]]] = []

    def record(self, _: Fence, __: SessionRecord, writing: Writing) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writes.append((writing, future))
        return future

    def keys(self) -> list[list[str]]:
        return [[entry.key for entry in writing.entries] for writing, _ in self.writes]


def writer_of(nodes: dict[int, bytes] | None = None) -> tuple[TurnWriter, Sessions]:
    sessions: Any = Sessions()
    store: Any = SimpleNamespace(sessions=sessions)
    return TurnWriter(store, SESSION, nodes or {}), sessions


def entry(key: str) -> JournalEntry:
    return JournalEntry(key, "llm_call", b"")


async def started(*works: Any) -> list[asyncio.Task[Any]]:
    """Start works and let each run until it waits for its write."""
    tasks = [TASKS.start(work) for work in works]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def prepared(writer: TurnWriter, key: str, index: int) -> Message:
    message = AssistantMessage(key)
    writer.prepare(key, index, message)
    return message


async def test_effects_that_end_in_the_same_cycle_of_the_loop_share_a_write() -> None:
    writer, sessions = writer_of()
    writer.add_messages([QUESTION])
    first, second = prepared(writer, "a", 1), prepared(writer, "b", 2)
    tasks = await started(writer.record(FENCE, entry("a")), writer.record(FENCE, entry("b")))
    later = await started(writer.record(FENCE, entry("c")))
    assert sessions.keys() == [["a", "b"], ["c"]]
    assert [place for place, _ in sessions.writes[0][0].nodes] == [5, 6, 7]
    assert (writer.read(6), writer.read(7), writer.read(8)) == (first, second, None)
    assert not any(task.done() for task in (*tasks, *later))
    for _, written in sessions.writes:
        written.set_result(None)
    assert [(await task).key for task in (*tasks, *later)] == ["a", "b", "c"]


async def test_all_effects_of_a_write_that_fails_fail() -> None:
    writer, sessions = writer_of()
    tasks = await started(writer.record(FENCE, entry("a")), writer.record(FENCE, entry("b")))
    sessions.writes[0][1].set_exception(StoreUnavailable("gone"))
    for task in tasks:
        with pytest.raises(StoreUnavailable):
            await task


async def test_an_effect_that_is_cancelled_leaves_the_others_of_its_write() -> None:
    writer, sessions = writer_of()
    one, other = await started(writer.record(FENCE, entry("a")), writer.record(FENCE, entry("b")))
    one.cancel()
    await asyncio.wait([one])
    sessions.writes[0][1].set_result(None)
    assert (await other).key == "b"


async def test_an_effect_that_is_held_is_written_with_the_next_or_with_the_commit() -> None:
    writer, sessions = writer_of()
    prepared(writer, "a", 0)
    await writer.hold(FENCE, entry("a"))
    await started(writer.record(FENCE, entry("b")))
    await writer.hold(FENCE, entry("c"))
    assert sessions.keys() == [["a", "b"]]
    last, is_fresh = writer.finish([AssistantMessage("a")])
    assert ([one.key for one in last.entries], last.nodes, is_fresh) == (["c"], (), False)


async def test_gathered_effects_are_sent_before_the_commit_is_made() -> None:
    writer, sessions = writer_of()
    task = TASKS.start(writer.record(FENCE, entry("a")))
    await asyncio.sleep(0)  # it has asked for a write in the next cycle
    last, _ = writer.finish([QUESTION])
    assert (sessions.keys(), last.entries) == ([["a"]], ())
    sessions.writes[0][1].set_result(None)
    assert (await task).key == "a"
    assert len(sessions.writes) == 1


async def test_a_turn_that_leaves_a_written_message_out_writes_all_its_messages_again() -> None:
    writer, _ = writer_of({5: b'{"role":"user","parts":[]}', 6: b'{"role":"assistant"}'})
    last, is_fresh = writer.finish([QUESTION])
    assert ([place for place, _ in last.nodes], is_fresh) == ([5], True)


async def test_the_writes_of_a_store_may_be_plain_coroutines() -> None:
    written: list[list[str]] = []

    class Plain:
        async def record(self, _: Fence, __: SessionRecord, writing: Writing) -> None:
            await asyncio.sleep(0)
            written.append([entry.key for entry in writing.entries])
            if len(written) == 2:
                raise StoreUnavailable("away")

    store: Any = SimpleNamespace(sessions=Plain())
    writer = TurnWriter(store, SESSION, {})
    assert (await writer.record(FENCE, entry("one"))).key == "one"
    with pytest.raises(StoreUnavailable):
        await writer.record(FENCE, entry("two"))
    assert written == [["one"], ["two"]]
