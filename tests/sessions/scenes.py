"""Helpers for tests of sessions: transcripts, waits, and apps that are reopened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pylash import Delta, Lash, ModelReply, OpenWait, Session, WorkerConfig
from pylash.durable.scopes import TurnScope, scope_text
from pylash.testing import say
from pylash.turn.messages import Message
from pylash.turn.requests import ModelRequest
from tests.backends import eventually
from tests.turn.provider_rules import refusal
from tests.turn.scenario import shown_message

LIVE = WorkerConfig(park_after="1h")
PARKING = WorkerConfig(park_after="1ms")


class Slow:
    """A scripted model that reports each call, and blocks until it may continue."""

    def __init__(self, reply: Callable[[ModelRequest], Any] | None = None) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self._reply = reply

    async def __call__(self, request: ModelRequest) -> Any:
        self.asked.set()
        await self.go.wait()
        assert self._reply is not None, "nobody lets it go on"
        return self._reply(request)


class Telling:
    """A model that streams pieces and then blocks forever, unless the question has an answer."""

    def __init__(self, *pieces: str, **answers: str | ModelReply) -> None:
        self.pieces, self.answers = pieces, answers
        self.said = asyncio.Event()
        self.requests: list[ModelRequest] = []

    async def respond(self, request: ModelRequest, listen: Any) -> Any:
        self.requests.append(request)
        if answer := self.answers.get(request.messages[-1].text):
            return say(answer) if isinstance(answer, str) else answer
        for piece in self.pieces:
            listen(Delta(piece))
        self.said.set()
        return await asyncio.Event().wait()


async def transcript(session: Session) -> str:
    """Return everything that was said in a session, a line a message."""
    return told(await session.history())


def told(messages: Sequence[Message]) -> str:
    """Return messages as lines, after a check that every provider would accept them."""
    if messages:
        assert refusal(list(messages)) is None
    return "\n" + "".join(f"{shown_message(message)}\n" for message in messages)


async def open_wait(app: Lash, number: int = 0, session_id: str | None = None) -> OpenWait:
    """Return an open wait, once there are enough."""

    async def look() -> OpenWait | None:
        waits = await app.waits(session_id=session_id)
        return waits[number] if len(waits) > number else None

    return await eventually(look)


async def begin(session: Session, text: str, turn_id: str) -> None:
    """Ask, and do not wait for the answer."""
    async with session.stream(text, turn_id=turn_id):
        """Leaving never cancels."""


async def state_of(app: Lash, session: str, turn: str) -> str:
    """Return the state of a turn in the store."""
    text = _scope(session, turn)
    states = await app.store.sessions.states([text])
    return str(states[text][0]) if text in states else "unknown"


async def comes_to(app: Lash, session: str, turn: str, state: str) -> None:
    """Return once a turn has the given state."""

    async def look() -> bool:
        return await state_of(app, session, turn) == state

    await eventually(look)


async def effects_of(app: Lash, session: str, turn: str) -> list[Any]:
    """Return what a turn recorded, in the order of its beginnings."""
    record = await app.store.sessions.turn(TurnScope(session, turn))
    assert record is not None
    return await app.store.journal.timeline(record.run)


def _scope(session: str, turn: str) -> str:
    return scope_text(TurnScope(session, turn))
