"""An engine that replays by position, in memory: the journal of one invocation, and its attempts.

It refuses what Restate refuses: entries in another order, by kind or name. Completions are numbered, and every attempt
gets them in that order. Timers are due when nothing else can happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random  # noqa: TID251 - seeded
from typing import NamedTuple

from pylash.restate.attempt_journal import (
    Action,
    Bell,
    EngineRefused,
    RecordedName,
    Suspended,
    Ticket,
)


class Entry(NamedTuple):
    """An entry of a journal."""

    kind: str
    name: str
    seconds: float = 0.0


def action(value: str) -> Action:
    """Return an action with a result."""

    async def perform() -> bytes:
        return value.encode()

    return perform


class Killed(Exception):
    """The worker of an attempt was killed."""


class FakeInvocation:
    """The journal of an invocation, which outlives its attempts."""

    def __init__(self, random: Random | None = None) -> None:
        self.entries: list[Entry] = []
        self.completions: list[tuple[int, bytes]] = []
        self.completed: set[int] = set()
        self.random = random or Random(0)
        # How many completions an attempt may take before it is killed; None for all.
        self.kill_after: int | None = None
        self.time = 0.0
        self.due: dict[int, float] = {}
        self.changed = asyncio.Event()
        # Set while an attempt runs: suspended attempts continue only after a completion.
        self.attempts = 0

    def complete(self, index: int, result: bytes = b"null") -> None:
        """Complete an entry, once."""
        if index not in self.completed:
            self.completed.add(index)
            self.completions.append((index, result))
            self.changed.set()

    def ring(self, bell: str) -> None:
        """Complete the entry of a bell."""
        self.complete(int(bell.removeprefix("bell-")))

    def fire_timer(self) -> bool:
        """Complete the timer that is due next; return whether there is one."""
        pending = [(due, index) for index, due in self.due.items() if index not in self.completed]
        if not pending:
            return False
        due, index = min(pending)
        self.time = max(self.time, due)
        self.complete(index)
        return True


class FakeJournal:
    """The journal of one attempt."""

    may_suspend = True

    def __init__(self, invocation: FakeInvocation) -> None:
        invocation.attempts += 1
        self._invocation = invocation
        self._position = 0
        self._taken = 0
        self._ready: dict[int, bytes] = {}
        self._actions: dict[int, Action] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._prepare: Callable[[], Awaitable[bool]] | None = None
        self._refusal: str | None = None

    @property
    def is_replaying(self) -> bool:
        return self._position < len(self._invocation.entries)

    @property
    def position(self) -> int:
        return self._position

    async def recorded(self) -> Sequence[RecordedName]:
        return [RecordedName(one.name, 0) for one in self._invocation.entries]

    def _add(self, entry: Entry) -> Ticket:
        index, known = self._position, self._invocation.entries
        self._position += 1
        if index < len(known):
            if known[index][:2] != entry[:2]:
                self._refusal = f"entry {index} is {known[index][:2]}, and not {entry[:2]}"
        else:
            known.append(entry)
            if entry.kind == "sleep":
                self._invocation.due[index] = self._invocation.time + entry.seconds
        return Ticket(entry.name, index)

    def run(self, name: str, action: Action) -> Ticket:
        ticket = self._add(Entry("run", name))
        self._actions[int(str(ticket.engine_future))] = action
        return ticket

    def sleep(self, name: str, seconds: float) -> Ticket:
        return self._add(Entry("sleep", name, seconds))

    def bell(self) -> Bell:
        ticket = self._add(Entry("bell", "bell"))
        return Bell(f"bell-{ticket.engine_future}", ticket)

    def suspend(self, prepare: Callable[[], Awaitable[bool]]) -> None:
        self._prepare = prepare

    def resume(self) -> None:
        self._prepare = None

    async def next_completed(self, tickets: Collection[Ticket]) -> tuple[Ticket, bytes]:
        if self._refusal is not None:
            raise EngineRefused(self._refusal)
        by_index = {int(str(ticket.engine_future)): ticket for ticket in tickets}
        while True:
            for index in tuple(self._ready):
                if index in by_index:
                    return by_index[index], self._ready.pop(index)
            if not self._take_completion():
                self._invocation.changed.clear()
                self._start_actions(by_index)
                await self._wait()

    def _take_completion(self) -> bool:
        """Make the next completion ready; return whether there is one."""
        known = self._invocation
        if self._taken >= len(known.completions):
            return False
        if known.kill_after is not None and self._taken >= known.kill_after:
            raise Killed
        index, result = known.completions[self._taken]
        self._taken += 1
        self._ready[index] = result
        return True

    def _start_actions(self, awaited: Collection[int]) -> None:
        for index in awaited:
            is_pending = index in self._actions and index not in self._invocation.completed
            if is_pending and index not in self._running:
                work = self._execute(index, self._actions[index])
                self._running[index] = asyncio.create_task(work)  # noqa: TID251 - ended by ``stop``

    async def _wait(self) -> None:
        """Wait for a completion. If no action works, the attempt is suspended, or a timer is due."""
        working = [task for task in self._running.values() if not task.done()]
        if working:
            await asyncio.wait(working, timeout=0.002, return_when=asyncio.FIRST_COMPLETED)
        elif self._prepare is not None and await self._prepare():
            raise Suspended
        known = self._invocation
        if not (known.changed.is_set() or known.fire_timer()):
            await known.changed.wait()

    async def _execute(self, index: int, action: Action) -> None:
        for _ in range(self._invocation.random.randrange(4)):
            await asyncio.sleep(0)
        self._invocation.complete(index, await action())

    async def stop(self) -> None:
        """End the attempt: its actions are gone with its worker."""
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values())
