"""pylash: sessions and turns of an app, with its worker in the same process.

Rule 1. Nothing is tuned: the app is opened with its defaults.
Rule 2. Turns that came before were taken like all others.
Rule 3. A turn of which nothing is stored is taken on ``InlineHost`` with a store in memory.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

from benchmarks.agents import (
    APPROVAL_PROMPT,
    INSTRUCTIONS,
    PROMPT,
    AgentContender,
    Resume,
    Script,
)
from benchmarks.contender import Contender, Facts, timed
from benchmarks.contenders.pylash_contender import sync_settings
from benchmarks.lines import Load


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
        model = self.model()
        self._app = _app(self.script, url, model=model, migrate=True)
        self._bare = _app(self.script, "memory://", model=model, host=InlineHost())
        self._ids = (f"session-{number}" for number in itertools.count())

    def model(self) -> Any:
        """Return the script as a model of pylash."""
        from pylash.testing import ScriptedModel, call, calls, say

        def reply(request: Any) -> Any:
            last = request.messages[-1]
            said = self.script.reply(last.text if last.role == "user" else None)
            if isinstance(said, str):
                return say(said)
            asked = [call(one.tool, **one.arguments) for one in said]
            return asked[0] if len(asked) == 1 else calls(*asked)

        return ScriptedModel(reply)

    async def open(self) -> Facts:
        await self._stack.enter_async_context(self._app)
        await self._stack.enter_async_context(self._bare)
        sync = await sync_settings(self._app.effect_host, self.store)
        return {"versions": {"pylash": version("pylash")}, "sync": sync}

    async def close(self) -> None:
        await super().close()
        await self._stack.aclose()

    async def begin(self, before: int) -> str:
        session = next(self._ids)
        for _ in range(before):
            await self.turn(session, PROMPT)
        return session

    async def turn(self, session: str, prompt: str) -> str:
        return str((await self._app.session(session).turn(prompt)).text)

    async def opened(self, load: Load) -> list[float]:
        """Measure I4: milliseconds of the first turn in an app that was just opened."""
        found = []
        for session in await self._sessions(load):
            async with _app(self.script, self.url, model=self.model()) as app:
                found.append(await timed(app.session(session).turn(PROMPT)))
        return found

    async def bare_turn(self) -> str:
        return str((await self._bare.session(next(self._ids)).turn(PROMPT)).text)

    async def paused(self, session: str) -> Resume:
        turn = asyncio.create_task(self.turn(session, APPROVAL_PROMPT))
        while not (waits := await self._app.waits(session_id=session)):  # noqa: ASYNC110 - untimed
            await asyncio.sleep(0.002)

        async def resume() -> str:
            await self._app.resolve(waits[0].key, True)
            return await turn

        return resume


def _app(script: Script, url: str, **options: Any) -> Any:
    from pylash import Lash

    app: Any = Lash(url, instructions=INSTRUCTIONS, **options)
    app.tool(script.lookup)
    app.tool(script.shelf)
    app.tool(approval=True)(script.refund)
    return app
