"""One session, as a person follows it: its turns, its open questions, and words on their way.

Rule 1. Every turn of the session is shown once, whoever began it: the one that runs, live; one that
        ran before we looked, as it is recorded.
Rule 2. Words that were typed while a turn runs are shown as heard when the queue has given them up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, Literal, assert_never

from pylash.app import Lash
from pylash.cli.chat_questions import Questions
from pylash.cli.chat_view import View
from pylash.cli.words import queued_text, words_of
from pylash.durable import (
    NewTurn,
    RunState,
    SessionTurnInput,
    TurnRecord,
    TurnScope,
)
from pylash.runtime import Feed, Session, TurnResult
from pylash.turn import (
    ASKS,
    AssistantMessage,
    Attachment,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    TurnEvent,
    UserMessage,
)
from pylash.values import LashError, StoreError

NET_SECONDS: Final = 2.0
"""How often everything is looked at, whether somebody rang or not."""

AGAIN_SECONDS: Final = 0.5
RECENT: Final = 3
"""How many questions of an earlier session are shown, with their answers, when it is resumed."""


BEGINNINGS: Final = frozenset({"turn_started", "text_delta", "reasoning_delta", "tool_started"})
"""The events before which a turn may have heard something."""

When = Literal["next_turn", "now", "interrupt"]


class Talk:
    """A session that is being followed. ``settled`` is set while it has nothing to do but wait for us."""

    def __init__(self, app: Lash, session: Session, view: View) -> None:
        self.app = app
        self.session = session
        self.turn: TurnRecord | None = None
        self.cancelling = False
        """Whether the person asked the turn that runs to end."""
        self.failed = False
        self.settled = asyncio.Event()
        self.questions = Questions(app, session.id, view, self.settled)
        self._view = view
        self._seen: set[int] = set()
        self._head = 0
        self._mine: set[str] = set()
        self._words: dict[str, tuple[str, When]] = {}
        self._shown: list[str] = []
        """Words that were shown as heard: the turn that they began does not show them again."""
        self._bell = asyncio.Event()
        self._saying = asyncio.Lock()
        self._blocked = False
        self._overheard: set[str] = set()
        self._done: set[tuple[str, str, str]] = set()

    # --- saying ---

    async def say(self, text: str, when: When = "now") -> None:
        """Ask, if nothing runs; else steer, queue or interrupt what does."""
        key = self.app.services.new_id()
        if self.turn is None and not self._words and not self._mine:
            self._mine.add(key)
            self.cancelling = False
            try:
                async with self.session.stream(text, turn_id=key):
                    """It goes on by itself; whoever follows the session shows it."""
            except LashError:
                self._mine.discard(key)
                raise
        else:
            async with self._saying:
                await self.session.enqueue(text, when, key)
                self._words[key] = (text, when)
            self._show_words()
        self.settled.clear()
        self._bell.set()

    async def cancel(self) -> bool:
        """Ask the turn to end, and take back what was said for after it; False if there is nothing."""
        if self.turn is None and not self._words and not self._mine:
            return False
        self.cancelling = True
        if self.turn is not None:
            self._view.busy("cancelling")
        await self._take_back()  # before the turn ends: what waits would begin another
        await self.session.cancel()
        return True

    async def _take_back(self) -> None:
        """Take back the words of this chat that no turn has heard."""
        async with self._saying:
            keys = await self.app.store.sessions.take_back(self.session.id, list(self._words))
            unsaid = [self._words.pop(key)[0] for key in keys]
        self._show_words()
        self._bell.set()
        if unsaid:
            self._view.note("Taken back, nobody heard it; Up finds it again:", "warn")
            self._view.note("\n".join(f"  {text}" for text in unsaid))

    async def queued(self) -> list[str]:
        """Return the words that wait, from wherever they came."""
        waiting = await self.app.store.sessions.queued(self.session.id)
        return [f"{queued_text(one)} ({one.policy.replace('_', ' ')})" for one in waiting]

    def _show_words(self) -> None:
        hints = {"now": "", "next_turn": " (next turn)", "interrupt": " (interrupts)"}
        self._view.words([text + hints[when] for text, when in self._words.values()])

    # --- following ---

    async def resume(self) -> None:
        """Show the last messages of an earlier time; what is there already is not shown again."""
        sessions = self.app.store.sessions
        record = await sessions.get(self.session.id)
        if record is None:
            return
        self._head = record.head
        self._seen = {turn.run for turn in await sessions.turns(self.session.id)}
        if not self._view.interactive:  # a program knows what it asked before
            return
        messages, ends = await self.past()
        self._view.remember([one.text for one in messages if isinstance(one, UserMessage)])
        asked = [place for place, one in enumerate(messages) if isinstance(one, UserMessage)]
        first = asked[-RECENT] if len(asked) > RECENT else 0
        if first:
            self._view.note(f"… {first} earlier messages: /history")
        self.show(messages[first:], ends[first:])

    async def past(self) -> tuple[list[Message], list[TurnResult[Any] | None]]:
        """Return everything that was said, and beside the last message of a turn how it ended."""
        sessions = self.app.store.sessions
        messages, record = await self.session.history(), await sessions.get(self.session.id)
        ends: list[TurnResult[Any] | None] = [None] * len(messages)
        before = 0 if record is None else sum(segment.upto for segment in record.path[:-1])
        for turn in await sessions.turns(self.session.id):
            place = (turn.result or {}).get("nodes", [0, 0])[1] + before
            if turn.scope.session_id == self.session.id and before < place <= len(ends):
                ends[place - 1] = TurnResult(turn.scope.id, turn.result)
        return messages, ends

    def show(
        self, messages: Sequence[Message], ends: Sequence[TurnResult[Any] | None] = ()
    ) -> None:
        """Show messages as they were said, and how turns ended that did not just answer."""
        calls: dict[str, ToolCall] = {}
        for message, end in zip(messages, ends or [None] * len(messages), strict=True):
            match message:
                case UserMessage(source="user"):
                    self._view.said(message.text)
                case UserMessage():
                    self._view.note(f"{message.source}: {message.text}")
                case ToolMessage():
                    self._view.event(_completed(message, calls.get(message.call_id)))
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
                self._say_end(end)

    async def follow(self) -> None:
        """Show every turn of the session, for ever."""
        services, store = self.app.services, self.app.store
        mine = {"", f"session:{self.session.id}", f"queue:{self.session.id}"}
        ours = copy_context()  # whoever begins to run something tells us within its own
        async with asyncio.TaskGroup() as tasks:

            def begun(run: str) -> None:
                self._bell.set()
                feed = services.feeds.find(run)
                if feed is not None and not run.startswith("{") and run not in self._overheard:
                    self._overheard.add(run)
                    tasks.create_task(self._overhear(run, feed), context=ours.copy())

            stops = [
                store.subscribe(
                    lambda topic: (
                        self._bell.set() if topic in mine or topic.startswith("runs") else None
                    )
                ),
                services.feeds.watch(begun),
            ]
            try:
                tasks.create_task(_for_ever(self._watch, self._view))
                await _for_ever(self._follow_next, self._view)
            finally:
                for stop in stops:
                    stop()

    async def _follow_next(self) -> None:
        self._bell.clear()
        turn = await self._next()
        if turn is not None:
            await self._follow(turn)
            return
        await self._look_at_words()
        if not self._words and not self._mine:
            self.settled.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(NET_SECONDS):
                await self._bell.wait()

    async def _next(self) -> TurnRecord | None:
        """Return the oldest turn that was not shown: one that ended unseen, or the one that runs."""
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
        begun, begins = "", True
        try:
            async for event in self.session.events(new):
                if event.type in BEGINNINGS and event.correlation_id != begun:
                    begun = event.correlation_id
                    await self._look_at_words(begins=begins)
                    if begins and event.type != "turn_started":
                        begins = False
                        await self._show_words_of(turn)
                self._view.event(event)
                if event.type == "wait_opened":
                    await self.questions.look()
            result = await self.session.ended(new, None)
        finally:
            self.turn, self.cancelling = None, False
            self._view.busy(None)
        self._seen.add(turn.run)
        self._mine.discard(turn.scope.id)
        self.failed = result.status != "completed"
        self._show_files(result.attachments)
        self._say_end(result)
        await self.questions.look()

    async def _overhear(self, process_id: str, feed: Feed) -> None:
        """Show what a subagent of this session does while it runs here."""
        try:
            record = await self.app.store.processes.get(process_id)
            given = None if record is None else record.registration.input
            if not isinstance(given, SessionTurnInput) or self.session.id not in given.lanes:
                return
            async for event in feed.follow():
                said = (process_id, event.type, event.correlation_id)
                if event.type in ("tool_started", "tool_completed") and said in self._done:
                    continue  # it was parked meanwhile, and says it again
                self._done.add(said)
                self._view.event(event, process_id)
                if event.type == "wait_opened":
                    await self.questions.look()
        except StoreError:
            """What subagents do is shown as far as it can be."""
        finally:
            self._overheard.discard(process_id)

    def _show_question_of(self, turn: TurnRecord) -> None:
        """Show what a turn was asked, here or elsewhere."""
        if isinstance(turn.scope, TurnScope):
            parts = ASKS.decode(turn.body).parts
            self._view.said("\n".join(part.text for part in parts if isinstance(part, Text)))

    async def _show_words_of(self, turn: TurnRecord) -> None:
        """Show what began a turn that nobody asked for: queued words, except those that were shown."""
        sessions = self.app.store.sessions
        now = await sessions.turn(turn.scope)
        if isinstance(turn.scope, TurnScope) or now is None:
            return
        for message in await words_of(sessions, now):
            if message.text in self._shown:
                self._shown.remove(message.text)
            else:
                self.show([message])
        self._shown.clear()

    def _show_files(self, made: Sequence[Attachment]) -> None:
        """Tell of what the model made that is no text."""
        for one in made:
            self._view.note(f"{one.media_type}, {one.size:,} bytes: {one.ref}")

    def _say_end(self, end: TurnResult[Any]) -> None:
        if end.status == "completed":
            return
        if end.status == "cancelled":
            self._view.note("■ cancelled", "warn")
            return
        known = f" [{end.code}]" if end.code else ""
        self._view.note(f"✗ {end.status}: {end.error or 'no reason was given'}{known}", "bad")

    # --- looking ---

    async def _watch(self) -> None:
        """Look at what changes without telling us."""
        if self.turn is not None or self.questions.waits:
            await self.questions.look()
        if (turn := self.turn) is not None and not self._blocked:
            current = await self.app.store.sessions.turn(turn.scope)
            if current is not None and current.state is RunState.BLOCKED:
                self._blocked = True
                self._view.note(f"⚠ The turn is blocked: {current.reason}", "warn")
                self._view.note("/retry lets it go on, /cancel ends it.")
        await asyncio.sleep(NET_SECONDS)

    async def _look_at_words(self, *, begins: bool = True) -> None:
        """Show the words that were heard meanwhile; those for the next turn when it ``begins``."""
        async with (
            self._saying
        ):  # what is said or taken back this moment is queued and ours, or not
            if not self._words:
                return
            waiting = await self.app.store.sessions.queued(self.session.id)
        left = {one.key for one in waiting}
        for key, (text, when) in tuple(self._words.items()):
            if key not in left and (begins or when != "next_turn"):
                self._view.said(text)
                self._shown.append(text)
                del self._words[key]
        self._show_words()


async def _for_ever(once: Callable[[], Awaitable[None]], view: View) -> None:
    """Do something again and again, also when the store is away for a while."""
    away = False
    while True:
        try:
            await once()
            away = False
        except StoreError as error:
            if not away:
                view.note(f"{error.message} Trying again.", "bad")
            away = True
            await asyncio.sleep(AGAIN_SECONDS)


def _completed(message: ToolMessage, call: ToolCall | None) -> TurnEvent:
    """Return what is said of a call that is over."""
    status = "failed" if message.error else "completed"
    given = None if call is None else call.arguments
    return TurnEvent("tool_completed", "", message.text, message.tool, given, status)
