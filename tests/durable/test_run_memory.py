"""A run whose host records nothing, and one for which nothing is recorded yet, get the same answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pylash
from pylash.durable.effects import DurableStep, RuntimeScope, envelope
from pylash.durable.machines.run_state import Recorded
from pylash.durable.run_memory import NullMemory, RunMemory
from pylash.durable.runs import Attached, Instant
from pylash.durable.scopes import ProcessScope
from pylash.engine.system import SystemClock
from tests.backends import Backend

ASKED = envelope(
    DurableStep("look"), scope=RuntimeScope(), effect_id="look", replay_key="look", label="look"
)


async def memories(backend: Backend) -> list[RunMemory]:
    host = await backend.host()
    attached = await host.store.journal.attach(ProcessScope("p"), host.membership.worker)
    _, journal = host.adopt(Attached(attached.fence, attached.now), SystemClock())
    return [journal, NullMemory(SystemClock())]


async def test_nothing_is_recorded(backend: Backend) -> None:
    for memory in await memories(backend):
        for look_ahead in (memory.begun, memory.recorded):
            assert not look_ahead("look")
        assert memory.record_of("look") is Recorded.NOTHING
        assert memory.decision("look") is None
        assert not memory.is_replaying


async def test_nothing_is_under_way(backend: Backend) -> None:
    for memory in await memories(backend):
        assert not memory.is_stopping
        assert memory.open_waits() == []
        memory.wake()


async def test_an_effect_that_has_not_begun_can_be_cancelled(backend: Backend) -> None:
    for memory in await memories(backend):
        assert await memory.withdraw(ASKED)
        assert await memory.deliver("!cancel", {"cancelled": [], "groups": []}, []) == set()


async def test_a_note_is_made_when_it_is_first_asked_for(backend: Backend) -> None:
    journal, null = await memories(backend)
    numbers = iter(range(4))
    assert [journal.note("now", lambda: next(numbers)) for _ in range(2)] == [0, 0]
    assert [null.note("now", lambda: next(numbers)) for _ in range(2)] == [1, 2]


async def test_only_a_journal_has_entries_and_looks_ahead(backend: Backend) -> None:
    journal, null = await memories(backend)
    (entry,) = journal.entries_for("i0.queue", "queue", b"[1]")
    assert (entry.key, entry.kind, entry.outcome) == ("i0.queue", "queue", b"[1]")
    assert null.entries_for("i0.queue", "queue", b"[1]") == ()
    assert (journal.looks_ahead, null.looks_ahead) == (True, False)
    assert (journal.cancels_tasks, null.cancels_tasks) == (False, True)


async def test_time_passes(backend: Backend) -> None:
    for memory in await memories(backend):
        assert Instant(0) < memory.now() <= memory.now()


@pytest.mark.parametrize(
    "part", ["integrations", "workflows", "sessions", "processes", "tools", "engine", "app.py"]
)
def test_no_code_depends_on_the_host_of_a_run(part: str) -> None:
    root = Path(pylash.__file__).parent / part
    paths = [root] if root.is_file() else list(root.rglob("*.py"))
    assert paths
    for path in paths:
        asks = r"isinstance\([^()]*(Host|Controller|Memory)\)|\b(journal|memory) is (not )?None"
        assert not re.search(asks, path.read_text()), path
