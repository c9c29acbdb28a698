"""A Restate server in memory: it executes attempts of the runs of an app, and kills them at chosen moments.

Everything above the journal of an attempt is the real thing: the runner, the courier, the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from random import Random  # noqa: TID251 - seeded
from typing import Any

from restate.exceptions import SuspendedException

from pylash.durable.ports import EffectHost
from pylash.engine.hosts.journal import JournalHost
from pylash.restate import RestateHost
from pylash.restate.attempt_journal import AttemptJournal
from pylash.restate.host import RestateEffects
from pylash.restate.runner import RestateRunner
from pylash.tasks import TaskOwner
from tests.restate.fake_engine import FakeInvocation, FakeJournal

MAX_FAILURES = 100
"""An invocation whose attempts fail more often is given up, so that a test ends."""
FROZEN_SECONDS = 0.03
"""After this time a worker that was frozen notices that its attempt was given up."""


Call = Callable[[], object]


class Invocation(FakeInvocation):
    """An invocation whose timers go by real time, and whose attempts are killed after so many events.

    Every second kill freezes the attempt instead: the next one begins while it still runs.
    """

    def __init__(
        self, name: str, given: Any, random: Random, kills: list[int], calls: dict[int, Call]
    ) -> None:
        super().__init__(random, name)
        self.given = given
        self.kills = kills
        # What is called at which event.
        self.calls = calls
        self.killed = 0
        self.ticks = 0
        self.failures: list[BaseException] = []
        self.journal: FakeJournal | None = None
        self.attempt: asyncio.Task[None] | None = None
        self.is_over = False
        self.is_suspended = False
        self.may_run = asyncio.Event()
        self.may_run.set()
        self._loop = asyncio.get_running_loop()

    def start_timer(self, index: int, seconds: float) -> None:
        self._loop.call_later(seconds, self.complete, index)

    def fire_timer(self) -> bool:
        return False

    def tick(self) -> None:
        self.ticks += 1
        if (call := self.calls.pop(self.ticks, None)) is not None:
            self._loop.call_soon(call, context=Context())
        if self.kills and self.ticks >= self.kills[0]:
            self.kills.pop(0)
            self.kill_attempt()

    def kill_attempt(self) -> None:
        """End the current attempt where it is."""
        if self.journal is None or self.attempt is None or self.journal.cut.is_set():
            return
        self.killed += 1
        self.journal.cut.set()
        pause = 0.0 if self.killed % 2 else FROZEN_SECONDS
        self._loop.call_later(pause, self.attempt.cancel)


class FakeContext:
    """What the SDK gives to a handler, as far as the runner uses it."""

    def __init__(self, invocation: Invocation, journal: FakeJournal) -> None:
        self.id = invocation.name
        self.journal = journal
        self.vm = self

    def request(self) -> FakeContext:
        return self

    def key(self) -> str:
        return self.id.partition("/")[2]

    def is_replaying(self) -> bool:
        return self.journal.is_replaying


class FakeServer:
    """The server: a client of it, and what it executes."""

    def __init__(self, seed: int = 0) -> None:
        self.invocations: dict[str, Invocation] = {}
        # By the key of an invocation: at which events its attempts are killed, and what is called.
        self.kills: dict[str, list[int]] = {}
        self.calls: dict[str, dict[int, Call]] = {}
        # When bells were rung, and how many of the next ones are lost.
        self.rung: list[float] = []
        self.lost_rings = 0
        self._random = Random(seed)
        self._runners: list[RestateRunner] = []
        self._tasks = TaskOwner()

    def join(self, runner: RestateRunner) -> None:
        """Let a worker execute attempts."""
        self._runners.append(runner)

    async def close(self) -> None:
        """End everything; for a worker, as an endpoint."""
        for invocation in self.invocations.values():
            invocation.is_over = True
        await self._tasks.close()

    # --- the client ---

    async def check_ready(self) -> None:
        pass

    async def send(self, service: str, key: str, given: dict[str, Any]) -> str | None:
        name = f"{service}/{key}"
        if name in self.invocations:
            return name
        plan = self.kills.pop(key, []), self.calls.pop(key, {})
        invocation = Invocation(name, given, self._random, *plan)
        self.invocations[name] = invocation
        self._tasks.serve(self._drive(invocation))
        return None

    async def ring(self, bell: str) -> None:
        self.rung.append(asyncio.get_running_loop().time())
        if self.lost_rings:
            self.lost_rings -= 1
            return
        self.invocations[bell.rpartition("-")[0]].ring(bell)

    async def query(self, _: str, **__: str | int) -> list[dict[str, Any]]:
        return []

    async def pause(self, name: str) -> None:
        self.invocations[name].may_run.clear()

    async def resume(self, name: str) -> None:
        self.invocations[name].may_run.set()

    async def kill(self, name: str) -> None:
        self.invocations[name].is_over = True

    # --- attempts ---

    async def _drive(self, invocation: Invocation) -> None:
        taken: int | None = 0
        while taken is not None and not invocation.is_over:
            await invocation.may_run.wait()
            invocation.is_suspended = taken > 0
            while len(invocation.completions) < taken:
                invocation.changed.clear()
                await invocation.changed.wait()
            invocation.is_suspended = False
            taken = await self._execute(invocation)

    async def _execute(self, invocation: Invocation) -> int | None:
        """Execute an attempt; return how many completions the next one needs, None if there is none.

        Nothing of it is kept: a test measures what a suspended run costs.
        """
        journal = invocation.journal = FakeJournal(invocation)
        runner = self._random.choice(self._runners)
        work = runner.execute(FakeContext(invocation, journal), **invocation.given)
        attempt = invocation.attempt = self._tasks.start(work)
        cut = self._tasks.start(journal.cut.wait())
        await asyncio.wait((attempt, cut), return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        invocation.journal = invocation.attempt = None
        if journal.cut.is_set():
            self._tasks.serve(_end(attempt))
            return 0
        if attempt.cancelled() or (error := attempt.exception()) is None:
            return None
        if isinstance(error, SuspendedException):
            return journal.taken + 1
        invocation.failures.append(error)
        assert len(invocation.failures) < MAX_FAILURES, invocation.name
        await asyncio.sleep(0.001)
        return 0


async def _end(attempt: asyncio.Task[None]) -> None:
    """Wait until an attempt that was given up has noticed it."""
    with suppress(BaseException):
        await attempt


class FakeEffects(RestateEffects):
    """Effects of a server in memory: a store in memory is as durable."""

    def __init__(self, host: RestateHost, journal: JournalHost) -> None:
        super().__init__(host, journal)
        self.durability = journal.durability


class FakeHost(RestateHost):
    """A host whose server is in memory."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__(ingress="http://memory", admin="http://memory")
        self.server = server

    def __call__(self, journal: EffectHost) -> RestateEffects:
        assert isinstance(journal, JournalHost)
        return FakeEffects(self, journal)

    async def open(self, runner: RestateRunner) -> None:
        self.client: Any = self.server
        self.server.join(runner)

    async def close(self) -> None:
        pass

    def open_journal(self, context: Any, *_: Any) -> AttemptJournal:
        journal: FakeJournal = context.journal
        return journal

    async def open_endpoint(self, tasks: TaskOwner) -> Any:
        return self.server
