"""One session as a person follows it: its turns, its open questions, and queued messages.

Rule 1. Every turn of the session is shown once, wherever it was started: a running turn live, an ended
        one from its record.
Rule 2. Messages typed while a turn runs are shown as delivered when they have left the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Any, Final, assert_never

from pylash.app import Lash
from pylash.cli.chat.outbox import Outbox, When
from pylash.cli.chat.questions import Questions
from pylash.cli.chat.subagents import Subagents
from pylash.cli.chat.view import View
from pylash.cli.queued_messages import queued_text, starting_messages
from pylash.durable.runs import RunState
from pylash.durable.scopes import TurnScope
from pylash.durable.sessions import NewTurn, TurnRecord
from pylash.engine.hub import wait_for_hint
from pylash.processes.operations.sessions import TurnResult
from pylash.sessions.session import Session
from pylash.turn.asks import ASKS
from pylash.turn.events import TurnEvent
from pylash.turn.messages import (
    AssistantMessage,
    Attachment,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pylash.values.errors import LashError, StoreError

NET_SECONDS: Final = 2.0
"""The interval at which everything is checked even without a hint."""

RETRY_SECONDS: Final = 0.5
RECENT: Final = 3
"""How many questions of a resumed session are shown, with their answers."""


AFTER_TAKING: Final = frozenset({"turn_started", "text_delta", "reasoning_delta", "tool_started"})
"""The events before which a turn may have taken queued messages."""


class FollowedSession:
    """A followed session. ``settled`` is set while it only waits for input."""

    def __init__(self, app: Lash, session: Session, view: View) -> None:
        self.app = app
        self.session = session
        self.turn: TurnRecord | None = None
        self.cancelling = False
        """Whether the person cancelled the current turn."""
        self.failed = False
        self.settled = asyncio.Event()
        self.questions = Questions(app, session.id, view, self.settled)
        self._view = view
        self._seen: set[int] = set()
        self._head = 0
        self._mine: set[str] = set()
        self._outbox = Outbox(session, app.store.sessions, view)
        self._subagents = Subagents(app, session.id, self.questions, view)
        self._hint = asyncio.Event()
        self._blocked = False

    # --- input ---

    async def send(self, text: str, when: When = "now") -> None:
        """Start a turn if none runs; otherwise steer, queue or interrupt the current one."""
        key = self.app.services.new_id()
        if self.turn is None and self._outbox.is_empty and not self._mine:
            self._mine.add(key)
            self.cancelling = False
            try:
                async with self.session.stream(text, turn_id=key):
                    """The turn continues; ``follow`` shows it."""
            except LashError:
                self._mine.discard(key)
                raise
        else:
            await self._outbox.add(key, text, when)
        self.settled.clear()
        self._hint.set()

    async def cancel(self) -> bool:
        """Cancel the turn, and withdraw the messages queued after it; return False if there is no turn."""
        if self.turn is None and self._outbox.is_empty and not self._mine:
            return False
        self.cancelling = True
        if self.turn is not None:
            self._view.busy("cancelling")
        await self._outbox.take_back()  # before the turn ends: queued messages would start another
        self._hint.set()
        await self.session.cancel()
        return True

    async def queued(self) -> list[str]:
        """Return all queued messages, wherever they came from."""
        waiting = await self.app.store.sessions.queued(self.session.id)
        return [f"{queued_text(one)} ({one.policy.replace('_', ' ')})" for one in waiting]

    # --- following ---

    async def resume(self) -> None:
        """Show the last messages of a resumed session; existing messages are not shown again."""
        sessions = self.app.store.sessions
        record = await sessions.get(self.session.id)
        if record is None:
            return
        self._head = record.head
        self._seen = {turn.run for turn in await sessions.turns(self.session.id)}
        if (
            not self._view.interactive
        ):  # a program that pipes questions does not need to see them again
            return
        messages, ends = await self.past()
        self._view.remember([one.text for one in messages if isinstance(one, UserMessage)])
        asked = [place for place, one in enumerate(messages) if isinstance(one, UserMessage)]
        first = asked[-RECENT] if len(asked) > RECENT else 0
        if first:
            self._view.note(f"… {first} earlier messages: /history")
        self.show(messages[first:], ends[first:])

    async def past(self) -> tuple[list[Message], list[TurnResult[Any] | None]]:
        """Return all messages, and for the last message of each turn how the turn ended."""
        sessions = self.app.store.sessions
        messages, record = await self.session.history(), await sessions.get(self.session.id)
        ends: list[TurnResult[Any] | None] = [None] * len(messages)
        before = 0 if record is None else sum(segment.upto for segment in record.path[:-1])
        for turn in await sessions.turns(self.session.id):
            place = (turn.result or {}).get("nodes", [0, 0])[1] + before
            if turn.scope.session_id == self.session.id and before < place <= len(ends):
                ends[place - 1] = TurnResult(
                    turn.scope.id, turn.result, None, turn.scope.session_id
                )
        return messages, ends

    def show(
        self, messages: Sequence[Message], ends: Sequence[TurnResult[Any] | None] = ()
    ) -> None:
        """Show messages, and the ends of turns that did not complete."""
        calls: dict[str, ToolCall] = {}
        for message, end in zip(messages, ends or [None] * len(messages), strict=True):
            match message:
                case UserMessage(source="user"):
                    self._view.message(message.text)
                case UserMessage():
                    self._view.note(f"{message.source}: {message.text}")
                case ToolMessage():
                    self._view.event(_completion_event(message, calls.get(message.call_id)))
                case AssistantMessage():
                    calls = {call.id: call for call in message.calls}
                    if message.text:
                        self._view.text(message.text)
                    if message.interrupted and (end is None or end.status == "completed"):
                        self._view.note("■ interrupted", "warn")
                    self._show_files(message.attachments)
                case _:
                    assert_never(message)
            if end is not None:
                self._show_end(end)

    async def follow(self) -> None:
        """Show every turn of the session, without end."""
        services = self.app.services
        topics = f"session:{self.session.id}", f"queue:{self.session.id}", "runs"
        # ``on_start`` is called in the context of the task that starts a run.
        context = copy_context()
        async with asyncio.TaskGroup() as tasks:

            def on_start(run: str) -> None:
                self._hint.set()
                feed = services.feeds.find(run)
                if feed is not None and self._subagents.is_new(run):
                    tasks.create_task(self._subagents.follow(run, feed), context=context.copy())

            stops = [
                services.hub.subscribe(lambda _: self._hint.set(), *topics),
                services.feeds.watch(on_start),
            ]
            try:
                tasks.create_task(_repeat(self._watch, self._view))
                await _repeat(self._follow_next, self._view)
            finally:
                for stop in stops:
                    stop()

    async def _follow_next(self) -> None:
        turn = await self._next()
        if turn is not None:
            await self._follow(turn)
            return
        await self._outbox.show_taken()
        if self._outbox.is_empty and not self._mine:
            self.settled.set()
        await wait_for_hint(self._hint, NET_SECONDS)

    async def _next(self) -> TurnRecord | None:
        """Return the oldest turn that was not shown: a turn that ended meanwhile, or the current one."""
        sessions, session_id = self.app.store.sessions, self.session.id
        for turn_id in tuple(self._mine):
            turn = await sessions.turn(TurnScope(session_id, turn_id))
            if turn is not None and turn.settled:
                return turn
        record = await sessions.get(session_id)
        if record is not None and record.head != self._head:
            for turn in await sessions.turns(session_id):
                if turn.run not in self._seen:
                    return turn
            self._head = record.head
        return await sessions.current(session_id)

    async def _follow(self, turn: TurnRecord) -> None:
        self.turn, self._blocked = turn, False
        self.settled.clear()
        self._view.busy("working")
        self._show_question_of(turn)
        new = NewTurn(scope=turn.scope, digest=b"", body=turn.body)
        last, is_start = "", True
        try:
            async for event in self.session.events(new):
                if event.type in AFTER_TAKING and event.correlation_id != last:
                    last = event.correlation_id
                    await self._outbox.show_taken(begins=is_start)
                    if is_start and event.type != "turn_started":
                        is_start = False
                        await self._show_starting_messages(turn)
                self._view.event(event)
                if event.type == "wait_opened":
                    await self.questions.refresh()
            result = await self.session.turn_result(new, None)
        finally:
            self.turn, self.cancelling = None, False
            self._view.busy(None)
        self._seen.add(turn.run)
        self._mine.discard(turn.scope.id)
        self.failed = result.status != "completed"
        self._show_files(result.attachments)
        self._show_end(result)
        await self.questions.refresh()

    def _show_question_of(self, turn: TurnRecord) -> None:
        """Show the question of a turn, wherever it was asked."""
        if isinstance(turn.scope, TurnScope):
            parts = ASKS.decode(turn.body).parts
            self._view.message("\n".join(part.text for part in parts if isinstance(part, Text)))

    async def _show_starting_messages(self, turn: TurnRecord) -> None:
        """Show the queued messages that started a turn without a question, except those already shown."""
        sessions = self.app.store.sessions
        now = await sessions.turn(turn.scope)
        if isinstance(turn.scope, TurnScope) or now is None:
            return
        for message in await starting_messages(sessions, now):
            if message.text in self._outbox.delivered:
                self._outbox.delivered.remove(message.text)
            else:
                self.show([message])
        self._outbox.delivered.clear()

    def _show_files(self, made: Sequence[Attachment]) -> None:
        """Mention the files that the model made."""
        for one in made:
            self._view.note(f"{one.media_type}, {one.size:,} bytes: {one.ref}")

    def _show_end(self, end: TurnResult[Any]) -> None:
        if end.status == "completed":
            return
        if end.status == "cancelled":
            self._view.note("■ cancelled", "warn")
            return
        known = f" [{end.code}]" if end.code else ""
        self._view.note(f"✗ {end.status}: {end.error or 'no reason was given'}{known}", "bad")

    # --- polling ---

    async def _watch(self) -> None:
        """Check for changes that come without a hint."""
        if self.turn is not None or self.questions.waits:
            await self.questions.refresh()
        if (turn := self.turn) is not None and not self._blocked:
            current = await self.app.store.sessions.turn(turn.scope)
            if current is not None and current.state is RunState.BLOCKED:
                self._blocked = True
                self._view.note(f"⚠ The turn is blocked: {current.reason}", "warn")
                self._view.note("/retry continues it, /cancel ends it.")
        await asyncio.sleep(NET_SECONDS)


async def _repeat(once: Callable[[], Awaitable[None]], view: View) -> None:
    """Call a function again and again, also while the store is unreachable."""
    is_away = False
    while True:
        try:
            await once()
            is_away = False
        except StoreError as error:
            if not is_away:
                view.note(f"{error.message} Trying again.", "bad")
            is_away = True
            await asyncio.sleep(RETRY_SECONDS)


def _completion_event(message: ToolMessage, call: ToolCall | None) -> TurnEvent:
    """Return the event of a completed call."""
    status = "failed" if message.error else "completed"
    given = None if call is None else call.arguments
    return TurnEvent("tool_completed", "", message.text, message.tool, given, status)
