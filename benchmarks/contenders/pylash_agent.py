"""pylash: sessions and turns of an app, with its worker in the same process.

Rule 1. Nothing is tuned: the app is opened with its defaults.
Rule 2. The model is a model of pydantic-ai, behind the adapter that real models use.
Rule 3. Turns that came before were taken like all others. Sessions with thousands of them are forks of
        one that took them once, so that every round has a session of its own.
Rule 4. A turn of which nothing is stored is taken on ``InlineHost`` with a store in memory.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any, Final

from benchmarks.agents import (
    APPROVAL_PROMPT,
    INSTRUCTIONS,
    PROMPT,
    AgentContender,
    Resume,
    Script,
)
from benchmarks.contender import Contender, Facts
from benchmarks.contenders.pydantic_agent import Reader
from benchmarks.contenders.pylash_contender import sync_settings
from benchmarks.lines import Load

FORKED: Final = 1_000
"""Sessions with so many turns before them are forks."""


def contender(store: str, url: str) -> Contender:
    """Return pylash's agents on a store."""
    return PylashAgentContender(store, url)


class PylashAgentContender(AgentContender):
    """An app that stores its turns, and one that does not."""

    def __init__(self, store: str, url: str) -> None:
        from pylash import InlineHost

        super().__init__(url)
        self.store = store
        self._stack = AsyncExitStack()
        self._app = _app(self.script, url, migrate=True)
        self._bare = _app(self.script, "memory://", host=InlineHost())
        self._ids = (f"session-{number}" for number in itertools.count())
        self._long: dict[int, str] = {}
        """Sessions to fork, by how many turns they have taken."""

    async def open(self) -> Facts:
        await self._stack.enter_async_context(self._app)
        await self._stack.enter_async_context(self._bare)
        sync = await sync_settings(self._app.effect_host, self.store)
        return {"versions": {"pylash": version("pylash")}, "sync": sync}

    async def close(self) -> None:
        await super().close()
        await self._stack.aclose()

    async def begin(self, before: int) -> str:
        if before < FORKED:
            return await self._begun(before)
        if before not in self._long:
            self._long[before] = await self._begun(before)
        return str((await self._app.session(self._long[before]).fork(next(self._ids))).id)

    async def _begun(self, before: int) -> str:
        """Return a new session that has taken so many turns."""
        session = next(self._ids)
        for _ in range(before):
            await self.turn(session, PROMPT)
        return session

    async def turn(self, session: str, prompt: str) -> str:
        return await _answer(self._app, session, prompt)

    async def opened(self, load: Load) -> list[float]:
        """Measure I4: milliseconds of the first turn in an app that was just opened."""
        found = []
        for session in await self._sessions(load):
            async with _app(self.script, self.url) as app:
                found.append(await self.timed_turn(_answer(app, session, PROMPT)))
        return found

    async def bare_turn(self) -> str:
        return await _answer(self._bare, next(self._ids), PROMPT)

    async def paused(self, session: str) -> Resume:
        turn = asyncio.create_task(self.turn(session, APPROVAL_PROMPT))
        while not (waits := await self._app.waits(session_id=session)):  # noqa: ASYNC110 - untimed
            await asyncio.sleep(0.002)

        async def resume() -> str:
            await self._app.resolve(waits[0].key, True)
            return await turn

        return resume


async def _answer(app: Any, session: str, prompt: str) -> str:
    return str((await app.session(session).turn(prompt)).text)


def _app(script: Script, url: str, **options: Any) -> Any:
    from pylash import Lash

    app: Any = Lash(url, model=Reader(script), instructions=INSTRUCTIONS, **options)
    app.tool(script.lookup)
    app.tool(script.shelf)
    app.tool(approval=True)(script.refund)
    return app
