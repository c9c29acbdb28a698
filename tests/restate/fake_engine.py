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
    ActionFailed,
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

    def __init__(self, random: Random | None = None, name: str = "bell") -> None:
        self.name = name
        self.entries: list[Entry] = []
        # For each entry, after how many completions it was asked for.
        self.asked_after: list[int] = []
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
        self.complete(int(bell.rpartition("-")[2]))

    def tick(self) -> None:
        """Note that something happens in an attempt: it may be the moment in which it is killed."""

    def start_timer(self, index: int, seconds: float) -> None:
        """Note when a timer is due."""
        self.due[index] = self.time + seconds

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
        # How many completions the attempt has got.
        self.taken = 0
        self._ready: dict[int, bytes] = {}
        self._actions: dict[int, Action] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._prepare: Callable[[], Awaitable[bool]] | None = None
        self._refusal: str | None = None
        # Why an action failed, which ends the attempt.
        self._failure: Exception | None = None
        # Set when the engine has given the attempt up: it hears nothing more, and its results are not recorded.
        self.cut = asyncio.Event()

    @property
    def is_replaying(self) -> bool:
        return self._position < len(self._invocation.entries)

    @property
    def position(self) -> int:
        return self._position

    async def recorded(self) -> Sequence[RecordedName]:
        names = ["!bell" if one.kind == "bell" else one.name for one in self._invocation.entries]
        return [RecordedName(name, 0) for name in names]

    def _add(self, entry: Entry) -> Ticket:
        index, known = self._position, self._invocation.entries
        self._position += 1
        if self.cut.is_set():
            return Ticket(entry.name, index)
        if index < len(known):
            if known[index][:2] != entry[:2]:
                self._refusal = f"entry {index} is {known[index][:2]}, and not {entry[:2]}"
        else:
            known.append(entry)
            self._invocation.asked_after.append(self.taken)
            if entry.kind == "sleep":
                self._invocation.start_timer(index, entry.seconds)
        self._invocation.tick()
        return Ticket(entry.name, index)

    def run(self, name: str, action: Action) -> Ticket:
        ticket = self._add(Entry("run", name))
        self._actions[int(str(ticket.engine_future))] = action
        return ticket

    def sleep(self, name: str, seconds: float) -> Ticket:
        return self._add(Entry("sleep", name, seconds))

    def bell(self) -> Bell:
        ticket = self._add(Entry("bell", "bell"))
        return Bell(f"{self._invocation.name}-{ticket.engine_future}", ticket)

    def suspend(self, prepare: Callable[[], Awaitable[bool]]) -> None:
        self._prepare = prepare

    def resume(self) -> None:
        self._prepare = None

    async def next_completed(self, tickets: Collection[Ticket]) -> tuple[Ticket, bytes]:
        if self._refusal is not None:
            raise EngineRefused(self._refusal)
        by_index = {int(str(ticket.engine_future)): ticket for ticket in tickets}
        while True:
            if self._failure is not None:
                raise ActionFailed from self._failure
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
        if self.cut.is_set() or self.taken >= len(known.completions):
            return False
        if known.kill_after is not None and self.taken >= known.kill_after:
            raise Killed
        index, result = known.completions[self.taken]
        self.taken += 1
        self._ready[index] = result
        known.tick()
        return True

    def _start_actions(self, awaited: Collection[int]) -> None:
        for index in awaited:
            is_pending = index in self._actions and index not in self._invocation.completed
            if is_pending and index not in self._running:
                work = self._execute(index, self._actions[index])
                self._running[index] = asyncio.create_task(work)  # noqa: TID251 - ended by ``stop``

    async def _wait(self) -> None:
        """Wait for a completion. If no action works, the attempt is suspended, or a timer is due."""
        known = self._invocation
        if self.cut.is_set():
            await asyncio.Event().wait()
        if not known.changed.is_set() and not self._working and self._prepare is not None:
            known.tick()
            if await self._prepare():
                known.tick()
                raise Suspended
        if known.changed.is_set() or (not self._working and known.fire_timer()):
            return
        # Until something is completed, or an action ends without a result.
        changed = asyncio.create_task(known.changed.wait())  # noqa: TID251 - ended below
        try:
            await asyncio.wait((changed, *self._working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    @property
    def _working(self) -> list[asyncio.Task[None]]:
        return [task for task in self._running.values() if not task.done()]

    async def _execute(self, index: int, action: Action) -> None:
        known = self._invocation
        for _ in range(known.random.randrange(4)):
            await asyncio.sleep(0)
        try:
            result = await action()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return  # the effect was cancelled
        except Exception as error:  # noqa: BLE001 - it ends the attempt
            self._failure = error
            known.changed.set()
            return
        known.tick()
        if not self.cut.is_set():
            known.complete(index, result)
            known.tick()

    def stop(self) -> None:
        """End the attempt: its actions are gone with its worker."""
        for task in self._running.values():
            task.cancel()
