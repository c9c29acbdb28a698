"""Measures I to L: the same agent in every framework, and what is timed about it.

Rule 1. A turn is: the user's text, a reply that asks for a tool, its result, an answer. Every
        turn is checked: it must end with the answer that the script gives.
Rule 2. The model is a script inside the process, at the place where the framework has its own
        models. It reads every message that it is given, as a real one does to send it; the time of
        that loop is not counted. No request leaves the process, and a reply takes no time.
Rule 3. A session with turns before it is new in every round, so that no round finds a longer one
        than the others did.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.contender import BETWEEN_WAKES, PAYLOAD_TEXT, Contender, timed
from benchmarks.lines import Load
from benchmarks.written import Written

INSTRUCTIONS: Final = "You help the customers of a small shop."
PROMPT: Final = (
    "Good morning! I ordered a pair of running shoes last week, it is order number 7, and I have "
    "heard nothing since. Could you look up when it will be sent?"
)
MANY_PROMPT: Final = "Please look at all the shelves at once."
APPROVAL_PROMPT: Final = "Please refund order 7."
ANSWER: Final = (
    "Your order was packed this morning and leaves our warehouse today. It should be with you in "
    "two days; the parcel service will write to you before."
)
FOUND: Final = PAYLOAD_TEXT
"""What the tool returns."""

TOOLS: Final = 20
TOOL_SECONDS: Final = 0.05

Resume = Callable[[], Awaitable[str]]
"""Approves what a turn waits for, and returns the answer of the turn."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call the model asks for."""

    id: str
    tool: str
    arguments: dict[str, Any]


class Script:
    """The model, and when it was asked and the tools began."""

    def __init__(self) -> None:
        self._ids = (f"call-{number}" for number in itertools.count())
        self.read_seconds = 0.0
        """How long the model has read messages, over the whole run."""
        self.asked = 0.0
        """When the model was asked last."""
        self.called = 0.0
        """When it last asked for tools."""
        self.refunding = 0.0
        """When the tool that needs an approval began last."""

    def read(self, messages: Iterable[Any]) -> None:
        """Read what the model is given, to the end."""
        started = time.perf_counter()
        for _ in messages:
            pass
        self.read_seconds += time.perf_counter() - started

    def reply(self, prompt: str | None) -> str | list[Call]:
        """Answer, or ask for tools if the last message is the user's ``prompt``."""
        self.asked = time.perf_counter()
        if prompt is None:
            return ANSWER
        asked = {
            PROMPT: [("lookup", {"order_id": "7"})],
            MANY_PROMPT: [("shelf", {"number": number}) for number in range(TOOLS)],
            APPROVAL_PROMPT: [("refund", {"order_id": "7"})],
        }[prompt]
        calls = [Call(next(self._ids), tool, arguments) for tool, arguments in asked]
        self.called = time.perf_counter()
        return calls

    async def lookup(self, order_id: str) -> str:
        """Find an order."""
        assert order_id == "7"
        return FOUND

    async def shelf(self, number: int) -> str:
        """Look at a shelf."""
        await asyncio.sleep(TOOL_SECONDS)
        return f"shelf {number} is full"

    async def refund(self, order_id: str) -> str:
        """Refund an order."""
        self.refunding = time.perf_counter()
        return f"order {order_id} is refunded"


class AgentContender(Contender):
    """An agent framework with its own storage, or the one an app would give it, in an SQLite file.

    A framework says how it begins a session, takes a turn, and pauses for an approval.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.script = Script()
        self._written: Written | None = None

    async def begin(self, before: int) -> Any:
        """Return a new stored session with so many turns in it; with none, write nothing yet."""
        raise NotImplementedError

    async def turn(self, session: Any, prompt: str) -> str:
        """Take a turn that is stored; return its answer."""
        raise NotImplementedError

    async def end(self, session: Any) -> None:
        """Let go of a session."""

    async def bare_turn(self) -> str:
        """Take a first turn of which nothing is stored; return its answer."""
        raise NotImplementedError

    async def paused(self, session: Any) -> Resume:
        """Take a turn until it waits for an approval; return what approves and goes on."""
        raise NotImplementedError

    async def turns(self, load: Load) -> list[float]:
        """Measure I1: milliseconds of each turn, after ``load.scopes`` turns."""
        sessions = await self._sessions(load)
        found = [await self.timed_turn(self.turn(one, PROMPT)) for one in sessions]
        await self._end(sessions)
        return found

    async def opened(self, load: Load) -> list[float]:
        """Measure I4: milliseconds of the first turn in an app that was just opened.

        A framework that keeps nothing of a session in memory reads it at every turn, so that any turn will do.
        """
        return await self.turns(load)

    async def turn_bytes(self, load: Load) -> list[float]:
        """Measure I2: kilobytes that a turn writes, on the average of ``load.steps``."""
        return [await self._grown(load, self._settled_bytes) / 1024]

    async def turn_commits(self, load: Load) -> list[float]:
        """Measure I3: commits of a turn, on the average of ``load.steps``."""
        return [await self._grown(load, self._counters.commits)]

    async def parallel_tools(self, load: Load) -> list[float]:
        """Measure J: milliseconds from a reply with 20 tool calls to the next model call."""
        found = []
        for _ in range(load.steps):
            session = await self.begin(0)
            await self._checked(self.turn(session, MANY_PROMPT))
            found.append((self.script.asked - self.script.called) * 1_000)
            await self.end(session)
        return found

    async def approval(self, load: Load) -> list[float]:
        """Measure K: milliseconds from an approval to the start of the tool that waited for it."""
        found = []
        for _ in range(load.steps):
            session = await self.begin(0)
            resume = await self.paused(session)
            await asyncio.sleep(random.uniform(*BETWEEN_WAKES))
            approved = time.perf_counter()
            await self._checked(resume())
            found.append((self.script.refunding - approved) * 1_000)
            await self.end(session)
        return found

    async def bare(self, load: Load) -> list[float]:
        """Measure L: milliseconds of a first turn of which nothing is stored."""
        return [await timed(self._checked(self.bare_turn())) for _ in range(load.steps)]

    async def timed_turn(self, answer: Awaitable[str]) -> float:
        """Return how many milliseconds a turn takes, without what the model spends on reading."""
        before = self.script.read_seconds
        took = await timed(self._checked(answer))
        return took - (self.script.read_seconds - before) * 1_000

    async def close(self) -> None:
        if self._written is not None:
            self._written.close()

    @property
    def _counters(self) -> Written:
        if self._written is None:
            self._written = Written(self.file)
        return self._written

    def _settled_bytes(self) -> int:
        self._counters.settle()
        return self._counters.bytes()

    async def _grown(self, load: Load, count: Callable[[], int]) -> float:
        """Return by how much a counter grows with a turn."""
        sessions = await self._sessions(load)
        before = count()
        for session in sessions:
            await self._checked(self.turn(session, PROMPT))
        grown = count() - before
        await self._end(sessions)
        return grown / load.steps

    async def _sessions(self, load: Load) -> list[Any]:
        """Return a session for each turn: the same one, or new ones for turns that come first."""
        if load.scopes:
            return [await self.begin(load.scopes)] * load.steps
        return [await self.begin(0) for _ in range(load.steps)]

    async def _end(self, sessions: list[Any]) -> None:
        for session in {id(session): session for session in sessions}.values():
            await self.end(session)

    async def _checked(self, answer: Awaitable[str]) -> None:
        said = await answer
        if said != ANSWER:
            raise AssertionError(f"the turn ended with {said!r}")
