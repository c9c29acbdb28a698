"""Messages that were typed while a turn runs: they are shown until the model has them."""

from __future__ import annotations

import asyncio
from typing import Literal

from pylash.cli.chat.view import View
from pylash.durable.session_store import Sessions
from pylash.sessions.session import Session

When = Literal["next_turn", "now", "interrupt"]

_HINTS = {"now": "", "next_turn": " (next turn)", "interrupt": " (interrupts)"}


class Outbox:
    """The messages of this chat in the queue of its session. ``delivered`` are those that were shown as taken."""

    def __init__(self, session: Session, sessions: Sessions, view: View) -> None:
        self.delivered: list[str] = []
        self._session = session
        self._sessions = sessions
        self._view = view
        self._queued: dict[str, tuple[str, When]] = {}
        # Held while a message is on its way into the queue or out of it: otherwise it is in `_queued`
        # exactly as long as it is in the queue, or was taken and not shown yet.
        self._moving = asyncio.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether no message waits."""
        return not self._queued

    async def add(self, key: str, text: str, when: When) -> None:
        """Queue a message."""
        async with self._moving:
            await self._session.enqueue(text, when, key)
            self._queued[key] = (text, when)
        self._show()

    async def take_back(self) -> None:
        """Withdraw the messages that no turn has taken."""
        async with self._moving:
            keys = await self._sessions.take_back(self._session.id, list(self._queued))
            withdrawn = [self._queued.pop(key)[0] for key in keys]
        self._show()
        if withdrawn:
            self._view.note("Taken back before the model got it; Up finds it again:", "warn")
            self._view.note("\n".join(f"  {text}" for text in withdrawn))

    async def show_taken(self, *, begins: bool = True) -> None:
        """Show the messages that were taken meanwhile; those for the next turn when it ``begins``."""
        async with self._moving:
            if not self._queued:
                return
            waiting = await self._sessions.queued(self._session.id)
        left = {one.key for one in waiting}
        for key, (text, when) in tuple(self._queued.items()):
            if key not in left and (begins or when != "next_turn"):
                self._view.message(text)
                self.delivered.append(text)
                del self._queued[key]
        self._show()

    def _show(self) -> None:
        self._view.queued([text + _HINTS[when] for text, when in self._queued.values()])
