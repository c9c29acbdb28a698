"""Sessions as people use them: ask, listen, queue, cancel, look back, fork and delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

import msgspec

from pylash.durable import (
    DeleteReport,
    NewTurn,
    Policy,
    QueueDrainScope,
    RunState,
    SessionRecord,
    TurnRecord,
    TurnScope,
    checked_session,
    scope_text,
)
from pylash.runtime.branches import LANES
from pylash.runtime.feeds import Feed
from pylash.runtime.observation import Observed, observed
from pylash.runtime.recorded_events import Heard, recorded_events
from pylash.runtime.relays import received
from pylash.runtime.signatures import Shape
from pylash.runtime.timeline import Effect, effects_from
from pylash.runtime.turn_messages import keep, referenced
from pylash.turn import (
    MESSAGES,
    Attachment,
    Input,
    Message,
    Part,
    SessionOptions,
    TurnAsk,
    TurnEvent,
    Usage,
    parts_of,
)
from pylash.values import (
    ArgumentsInvalid,
    Duration,
    SessionLaneReentrant,
    SessionUnknown,
    TurnBlocked,
    TurnFailed,
    TurnOutputInvalid,
    TurnUnknown,
    check_name,
    seconds,
    write_payload,
)

if TYPE_CHECKING:
    from pylash.runtime.observers import Observers
    from pylash.runtime.programs import Services
    from pylash.runtime.worker import Worker

T = TypeVar("T")


class TurnResult(Generic[T]):
    """How a turn ended. Of a turn that did not complete, ``text`` and ``value`` raise TurnFailed.

    >>> result = await session.turn("Refund order 7, please")
    >>> print(result.text)
    """

    def __init__(self, turn_id: str, plain: Any, shape: Shape | None = None) -> None:
        self.turn_id = turn_id
        self.status: Literal["completed", "failed", "cancelled", "stopped"] = plain["status"]
        self.usage = msgspec.convert(plain.get("usage") or {}, Usage)
        self.error: str | None = plain.get("error")
        self.code: str | None = plain.get("code")
        made = plain.get("attachments") or ()
        self.attachments = msgspec.convert(made, tuple[Attachment, ...])
        self._plain = plain
        self._shape = shape

    def __repr__(self) -> str:
        why = "" if self.error is None else f", error={self.error!r}"
        return f"TurnResult({self.turn_id!r}, status={self.status!r}{why})"

    @property
    def text(self) -> str:
        """What the model answered."""
        self._check()
        text: str = self._plain.get("text", "")
        return text

    @property
    def value(self) -> T:
        """The answer as what was asked for with ``output=``."""
        self._check()
        plain = self._plain.get("value")
        if self._shape is None:
            return plain  # type: ignore[no-any-return]  # without output= it is None
        if self._shape.is_text:
            plain = self._plain.get("text", "")
        try:
            value: T = self._shape.load(plain)
        except ValueError as error:
            raise TurnOutputInvalid(self.turn_id, str(error).replace("\n", " ")) from None
        return value

    def _check(self) -> None:
        if self.status != "completed":
            raise TurnFailed(self.turn_id, self.status, self.error, self.code)


class TurnStream(Generic[T]):
    """A turn to listen to: leaving it never cancels the turn.

    >>> async with session.stream("And order 8?") as stream:
    ...     async for event in stream:
    ...         if event.type == "text_delta":
    ...             print(event.text, end="")
    >>> print(stream.result.usage)
    """

    def __init__(self, session: Session, given: Input, turn_id: str | None, output: Any) -> None:
        self._session = session
        self._given = (given, turn_id, output)
        self._result: TurnResult[T] | None = None

    @property
    def turn_id(self) -> str:
        """The turn's id, once the stream was entered."""
        return self._new.scope.id

    @property
    def result(self) -> TurnResult[T]:
        """How the turn ended, once every event was heard."""
        if self._result is None:
            raise ArgumentsInvalid("stream.result", "the turn has not ended: iterate to the end")
        return self._result

    async def __aenter__(self) -> Self:
        if self._session.id in LANES.get():
            raise SessionLaneReentrant(self._session.id)
        self._new, self._shape = await self._session.asked(*self._given)
        await self._session.submit(self._new)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave; the turn goes on."""

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        if not hasattr(self, "_new"):
            reason = "enter it first: async with session.stream(…) as stream"
            raise ArgumentsInvalid("session.stream", reason)
        return self._events()

    async def _events(self) -> AsyncIterator[TurnEvent]:
        async for event in self._session.events(self._new):
            yield event
        self._result = await self._session.ended(self._new, self._shape)


class Session:
    """A conversation: a handle, made by the first use.

    >>> session = app.session("chat-42")
    >>> result = await session.turn("Refund order 7, please")
    """

    def __init__(
        self,
        session_id: str,
        options: SessionOptions,
        services: Services,
        worker: Worker,
        observers: Observers,
    ) -> None:
        self.id = checked_session(session_id)
        self.options = options
        self._services = services
        self._worker = worker
        self._observers = observers

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    # --- turns ---

    @overload
    async def turn(
        self,
        input: Input,
        *,
        turn_id: str | None = None,
        output: type[T],
        timeout: Duration | None = None,
    ) -> TurnResult[T]: ...
    @overload
    async def turn(
        self,
        input: Input,
        *,
        turn_id: str | None = None,
        output: None = None,
        timeout: Duration | None = None,
    ) -> TurnResult[None]: ...
    async def turn(
        self,
        input: Input,  # noqa: A002 - the public name
        *,
        turn_id: str | None = None,
        output: Any = None,
        timeout: Duration | None = None,
    ) -> TurnResult[Any]:
        """Ask, and return how the turn ended. The same ``turn_id`` again gives the same result.

        ``output`` is what ``result.value`` shall be. ``timeout`` ends the waiting, not the turn.

        Cancellation: safe, the turn goes on.
        """
        self._services.outside("session.turn")
        if self.id in LANES.get():
            raise SessionLaneReentrant(self.id)
        new, shape = await self.asked(input, turn_id, output)
        await self.submit(new)
        if timeout is None:
            return await self.ended(new, shape)
        limit = seconds(timeout)
        try:
            async with asyncio.timeout(limit):
                return await self.ended(new, shape)
        except TimeoutError:
            await self._refuse_blocked(new)
            raise TimeoutError(f"Turn {new.scope.id!r} has not ended in {limit:g} s.") from None

    @overload
    def stream(
        self,
        input: Input,
        *,
        turn_id: str | None = None,
        output: type[T],
    ) -> TurnStream[T]: ...
    @overload
    def stream(
        self,
        input: Input,
        *,
        turn_id: str | None = None,
        output: None = None,
    ) -> TurnStream[None]: ...
    def stream(self, input: Input, *, turn_id: str | None = None, output: Any = None) -> Any:  # noqa: A002 - the public name
        """Ask, and listen to the turn while it runs; of one that ran, hear what is recorded."""
        self._services.outside("session.stream")
        return TurnStream(self, input, turn_id, output)

    async def asked(
        self, given: Input, turn_id: str | None, output: Any
    ) -> tuple[NewTurn, Shape | None]:
        """Return a question as it is submitted, and how its answer is read."""
        if turn_id is not None:
            check_name("turn id", turn_id)
        shape = None if output is None else Shape(output)
        schema = None
        if shape is not None:
            await shape.prepare("output")
            schema = shape.answer_schema()
        parts = await self._stored(parts_of(given))
        ask = TurnAsk(parts=parts, output_schema=schema)
        scope = TurnScope(self.id, self._services.new_id() if turn_id is None else turn_id)
        options = msgspec.to_builtins(self.options)
        write_payload(options, 1)
        return NewTurn(
            scope=scope, digest=ask.digest(), body=write_payload(ask, 1), options=options
        ), shape

    async def _stored(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Store the bytes of attachments, and keep references to them."""
        stored, bodies = referenced(parts)
        await keep(bodies, self._services.store.attachments)
        return stored

    async def submit(self, new: NewTurn) -> None:
        """Make a question a durable row; a worker answers it."""
        await self._worker.submit(new)

    async def ended(self, new: NewTurn, shape: Shape | None) -> TurnResult[Any]:
        """Return how a turn ended, once it has."""
        _, plain = await self._observers.end(scope_text(new.scope))
        return TurnResult(new.scope.id, plain, shape)

    async def _refuse_blocked(self, new: NewTurn) -> None:
        text = scope_text(new.scope)
        state, reason = (await self._services.store.sessions.states([text]))[text]
        if state is RunState.BLOCKED:
            raise TurnBlocked(self.id, new.scope.id, reason or "")

    # --- listening ---

    async def events(self, new: NewTurn) -> AsyncIterator[TurnEvent]:
        """Yield what a turn says, here or elsewhere; of one that ran, what is recorded of it."""
        text, heard, ended = scope_text(new.scope), Heard(), asyncio.Event()
        watching = self._services.tasks.start(self._watch(text, ended))
        try:
            async for event in self._live(new, ended, heard):
                for fresh in heard.new_of(event):
                    yield fresh
            _, plain = await self._observers.end(text)
        finally:
            watching.cancel()
        for event in await self._recorded(new, plain):
            for left in heard.left_of(event):
                yield left

    async def _live(
        self, new: NewTurn, ended: asyncio.Event, heard: Heard
    ) -> AsyncIterator[TurnEvent]:
        """Yield what a turn says while it runs, wherever it runs."""
        text, feeds, place = scope_text(new.scope), self._services.feeds, 0
        listening: Feed | None = None

        def over() -> bool:
            return ended.is_set() or self._worker.runs_here(text)

        try:
            while not ended.is_set():
                if not self._worker.runs_here(text):
                    turn = await self._services.store.sessions.turn(new.scope)
                    if turn is None or turn.settled:
                        return
                    heard.begin_again()
                    async for event in received(self._services.store, turn.run, over):
                        yield event
                    continue
                feed = feeds.open(text)
                if feed is not listening:
                    listening, place = feed, 0
                    feed.listeners += 1
                    heard.begin_again()
                async for event in feed.follow(place):
                    place += 1
                    yield event
                if feed.ended:
                    return
        finally:
            if listening is not None:
                listening.listeners -= 1
                feeds.release(text)

    async def _watch(self, text: str, ended: asyncio.Event) -> None:
        """Say when a turn has ended."""
        await self._observers.end(text)
        ended.set()
        feed = self._services.feeds.find(text)
        if feed is not None and not self._worker.runs_here(text):
            feed.end()

    async def _recorded(self, new: NewTurn, plain: Any) -> list[TurnEvent]:
        """Return the events of a turn that has ended, from what it left behind."""
        usage = msgspec.convert(plain.get("usage") or {}, Usage)
        end = TurnEvent("turn_completed", new.scope.id, status=plain["status"], usage=usage)
        # Without nodes its session was deleted.
        messages = await self._messages_of(plain["nodes"]) if "nodes" in plain else []
        return [TurnEvent("turn_started", new.scope.id), *recorded_events(messages), end]

    async def _messages_of(self, nodes: Sequence[int]) -> list[Message]:
        record = await self._record()
        first, last = nodes
        segment = msgspec.structs.replace(record.path[-1], upto=last)
        bodies = await self._services.store.sessions.nodes(segment, first - 1)
        return [MESSAGES.decode(body) for body in bodies]

    def observe(self, cursor: str | None = None) -> AsyncIterator[Observed]:
        """Yield what was said after a cursor, then what is said from now on; it can be reconnected.

        >>> async for item in session.observe(cursor):
        ...     cursor = item.cursor
        """
        self._services.outside("session.observe")
        return observed(self.id, cursor, self._services, self._worker)

    async def timeline(self, turn_id: str) -> list[Effect]:
        """Return what a turn did and when: draw it with ``draw_timeline``."""
        self._services.outside("session.timeline")
        check_name("turn id", turn_id)
        turn = await self._turn(turn_id)
        return effects_from(await self._services.store.journal.timeline(turn.run))

    async def retry(self) -> bool:
        """Let the turn that is blocked go on; False if none is."""
        self._services.outside("session.retry")
        blocked = await self._services.store.sessions.blocked(self.id)
        token = self._services.new_id()
        return blocked is not None and await self._services.store.runs.retry(blocked, token)

    # --- the queue ---

    async def enqueue(
        self,
        text: Input,
        when: Literal["next_turn", "now", "interrupt"] = "next_turn",
        key: str | None = None,
    ) -> None:
        """Say something while the session may be busy; the same ``key`` again is the same words.

        ``next_turn`` is heard by the next turn, ``now`` at the next checkpoint of this one, and
        ``interrupt`` also takes the place of the answers that the turn waits for, and stops a model that has
        begun to speak. A session that is idle begins a turn. Cancellation: atomic.
        """
        self._services.outside("session.enqueue")
        if when not in ("next_turn", "now", "interrupt"):
            known = "next_turn, now, interrupt"
            raise ArgumentsInvalid("session.enqueue", f"when={when!r} is none of {known}")
        words = self._services.new_id() if key is None else check_name("key", key)
        parts = await self._stored(parts_of(text))
        body = {"parts": msgspec.to_builtins(parts)}
        write_payload(body, 1)  # before the session is made for it
        await self._services.store.sessions.open(self.id, msgspec.to_builtins(self.options))
        await self._services.store.sessions.enqueue(self.id, words, body, Policy(when))

    async def cancel(self, reason: str = "cancelled") -> None:
        """Ask the turn that runs, waits or is blocked to end; what the model has said is kept.

        Cancellation: atomic.
        """
        self._services.outside("session.cancel")
        await self._services.store.sessions.cancel(self.id, reason)

    # --- looking back ---

    async def history(self) -> list[Message]:
        """Return everything that was said, the oldest first."""
        self._services.outside("session.history")
        record = await self._services.store.sessions.get(self.id)
        return [] if record is None else await self._services.histories.read(record)

    async def usage(self) -> Usage:
        """Return what all turns of the session used, with their subagents."""
        self._services.outside("session.usage")
        record = await self._services.store.sessions.get(self.id)
        return msgspec.convert((record.usage if record else None) or {}, Usage)

    async def fork(self, new_id: str, at: str | None = None) -> Session:
        """Return a new session that begins with this one's turns, up to and with ``at``."""
        self._services.outside("session.fork")
        checked_session(new_id)
        record = await self._record()
        head, counts = record.head, (record.revision, record.calls)
        if at is not None:
            record, head, calls = await self._place_of(record, at)
            counts = (record.revision, calls)
        await self._services.store.sessions.fork(record, new_id, head, counts)
        return Session(new_id, self.options, self._services, self._worker, self._observers)

    async def _place_of(
        self, record: SessionRecord, turn_id: str
    ) -> tuple[SessionRecord, int, int]:
        """Return the end of a turn: whose it is, where it is, and the model calls up to it."""
        told = [
            turn
            for turn in await self._services.store.sessions.turns(self.id)
            if turn.scope.id == turn_id and turn.settled and "nodes" in (turn.result or {})
        ]
        for turn in reversed(told):  # of two with one id the session's own, which came later
            head, whose = turn.result["nodes"][1], record
            if turn.scope.session_id != self.id:  # one that it began with
                origin = await self._services.store.sessions.get(turn.scope.session_id)
                if origin is None:
                    continue
                whose = msgspec.structs.replace(origin, options=record.options)
            if any(part.number == whose.number and head <= part.upto for part in record.path):
                return whose, head, turn.result["calls"]
        raise TurnUnknown(self.id, turn_id)

    async def _turn(self, turn_id: str) -> TurnRecord:
        for scope in (TurnScope(self.id, turn_id), QueueDrainScope(self.id, turn_id)):
            turn = await self._services.store.sessions.turn(scope)
            if turn is not None:
                return turn
        raise TurnUnknown(self.id, turn_id)

    async def delete(self) -> DeleteReport:
        """Remove the session: its turns, messages, waits and what is queued. Say what was removed."""
        self._services.outside("session.delete")
        record = await self._services.store.sessions.get(self.id)
        if record is not None:
            self._services.histories.forget(record.number)
        return await self._services.store.sessions.delete(self.id)

    async def _record(self) -> SessionRecord:
        record = await self._services.store.sessions.get(self.id)
        if record is None:
            raise SessionUnknown(self.id)
        return record
