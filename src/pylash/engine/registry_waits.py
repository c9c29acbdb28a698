"""Waits for something in the registry: a signal, or the end of a process or a turn."""

from __future__ import annotations

from collections.abc import Sequence

from pylash.durable.commands import Awaited, AwaitProcess, AwaitTurn, WaitSignal
from pylash.durable.runs import Fence, JournalEntry
from pylash.durable.stores import Store
from pylash.engine.records import wrapped


async def look(
    store: Store,
    fence: Fence,
    entry: JournalEntry,
    command: Awaited,
    timeout: int | None,
    notes: Sequence[JournalEntry] = (),
) -> tuple[JournalEntry, int | None]:
    """Begin to wait for a signal or an end, or end the wait; return it and how long it may last."""
    match command:
        case WaitSignal(name=name):
            taken, now = await store.processes.take_signal(
                fence, entry, name, timeout, wrapped, notes
            )
            return taken, None if taken.due is None else taken.due - now
        case AwaitProcess():
            return await store.processes.watch(fence, entry, command, wrapped, notes), None
        case AwaitTurn():
            return await store.sessions.watch(fence, entry, command, wrapped, notes), None
