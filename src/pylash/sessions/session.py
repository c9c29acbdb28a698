"""Sessions as users see them: turns, streams, the queue, history, forks, deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, overload

import msgspec

from pylash.durable.commands import (
    CancelTurn,
    EnqueueMessage,
    GrantHandle,
    RevokeHandle,
    SubmitTurn,
)
from pylash.durable.processes import (
    ExternalInput,
    HeldProcess,
    Registration,
    SessionRef,
    checked_process,
)
from pylash.durable.runs import RunState
from pylash.durable.scopes import QueueDrainScope, TurnScope, scope_text
from pylash.durable.sessions import (
    DeleteReport,
    NewTurn,
    Policy,
    TurnRecord,
    checked_session,
)
from pylash.engine.runs.branches import ENCLOSING_SESSIONS
from pylash.models.messages import store_bodies, with_references
from pylash.processes.definition import (
    Definition,
    Prepared,
    ToolProcess,
    as_prepared,
)
from pylash.processes.environments import Environment, environment_of
from pylash.processes.handles import ProcessHandle
from pylash.processes.operations.sessions import TurnResult
from pylash.processes.timeline import Effect, effects_from, entries_of
from pylash.sessions.forks import find_fork_point
from pylash.sessions.listening import TurnListener
from pylash.sessions.observation import Observed, observe_session
from pylash.tools.catalog import tools_of_plugins
from pylash.tools.signatures import Shape
from pylash.turn.asks import SessionOptions, TurnAsk
from pylash.turn.events import TurnEvent
from pylash.turn.messages import Input, Message, Part, Usage, parts_of
from pylash.turn.views import checked_last
from pylash.values.arguments import check_list, check_text
from pylash.values.canonical import decode, write_payload
from pylash.values.durations import Duration, seconds
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid
from pylash.values.turn_errors import (
    SessionLaneReentrant,
    TurnBlocked,
    TurnUnknown,
)

if TYPE_CHECKING:
    from pylash.durable.ports import Runner
    from pylash.engine.run_results import RunResults
    from pylash.sessions.services import SessionServices

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

StartProcessFor = Callable[
    [Prepared[Any, Any], tuple[Any, ...], Mapping[str, Any], Registration, Mapping[str, Any]],
    Awaitable[ProcessHandle[Any]],
]
"""Starts a process with arguments; the registration and the plugin options are those that it inherits."""


class TurnStream(Generic[T]):
    """The event stream of a turn: leaving it never cancels the turn.

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
        """The result of the turn, once all events were iterated."""
        if self._result is None:
            raise ArgumentsInvalid("stream.result", "the turn has not ended: iterate to the end")
        return self._result

    async def __aenter__(self) -> Self:
        self._new, self._shape = await self._session.begin(*self._given)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave; the turn continues."""

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        if not hasattr(self, "_new"):
            reason = "enter it first: async with session.stream(…) as stream"
            raise ArgumentsInvalid("session.stream", reason)
        return self._events()

    async def _events(self) -> AsyncIterator[TurnEvent]:
        async for event in self._session.events(self._new):
            yield event
        self._result = await self._session.turn_result(self._new, self._shape)


class Session:
    """A handle of a conversation, which its first turn or queued message creates.

    >>> session = app.session("chat-42")
    >>> result = await session.turn("Refund order 7, please")
    """

    def __init__(
        self,
        session_id: str,
        options: SessionOptions,
        services: SessionServices,
        runner: Runner,
        results: RunResults,
        start: StartProcessFor,
    ) -> None:
        self.id = checked_session(session_id)
        self.options = options
        self._services = services
        self._runner = runner
        self._results = results
        self._start = start

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
        """Run a turn and return its result. The same ``turn_id`` again returns the same result.

        ``output`` is the type of ``result.value``. ``timeout`` ends the waiting, not the turn.

        Cancellation: safe, the turn continues.
        """
        self._services.refuse_inside_process("session.turn")
        new, shape = await self.begin(input, turn_id, output)
        limit = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit):
                return await self.turn_result(new, shape)
        except TimeoutError:
            if limit is None:
                raise
            text = scope_text(new.scope)
            state, reason = (await self._services.store.sessions.states([text]))[text]
            if state is RunState.BLOCKED:
                raise TurnBlocked(self.id, new.scope.id, reason or "") from None
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
        """Run a turn and stream its events; the recorded ones if it has ended."""
        self._services.refuse_inside_process("session.stream")
        return TurnStream(self, input, turn_id, output)

    async def begin(
        self, given: Input, turn_id: str | None, output: Any
    ) -> tuple[NewTurn, Shape | None]:
        """Submit a turn, also if the caller is cancelled meanwhile."""
        return await self._services.control.complete(self.submit(given, turn_id, output))

    async def submit(
        self, given: Input, turn_id: str | None, output: Any
    ) -> tuple[NewTurn, Shape | None]:
        """Store a turn for a worker to run; return it, and the shape of its answer."""
        if self.id in ENCLOSING_SESSIONS.get():
            raise SessionLaneReentrant(self.id)
        if turn_id is not None:
            check_name("turn id", turn_id)
        shape = schema = None
        if output is not None:
            shape = Shape(output)
            await shape.prepare("output")
            schema = shape.answer_schema()
        parts, bodies = with_references(parts_of(given))
        await store_bodies(bodies, self._services.store.attachments)
        ask = TurnAsk(parts=parts, output_schema=schema)
        options = msgspec.to_builtins(self.options)
        write_payload(options, 1)
        name = self._services.new_id() if turn_id is None else turn_id
        plain = decode(write_payload(ask, 1))
        command = SubmitTurn(self.id, name, ask.digest().hex(), plain, options)
        new = command.new_turn()
        await self._services.control.perform(command)
        return new, shape

    async def turn_result(self, new: NewTurn, shape: Shape | None) -> TurnResult[Any]:
        """Return the result of a turn, once it has ended."""
        _, plain = await self._results.wait(scope_text(new.scope))
        return TurnResult(new.scope.id, plain, shape, self.id)

    # --- processes ---

    @overload
    async def start(
        self, target: Definition[P, R] | Prepared[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ProcessHandle[R]: ...
    @overload
    async def start(self, target: str, /, **kwargs: Any) -> ProcessHandle[Any]: ...
    async def start(self, target: Any, /, *args: Any, **kwargs: Any) -> ProcessHandle[Any]:
        """Start a process for this session: it keeps the session's model and plugins, and ``ctx.wake`` reaches the session.

        Instead of a process, pass the name of a tool of the app or of the session's plugins: its call runs as a process. The
        settings are captured now; the process never reads the session. Cancellation: atomic.

        >>> handle = await session.start(report, month="May")
        >>> handle = await session.start("reindex", folder="invoices")
        """
        self._services.refuse_inside_process("session.start")
        chosen = target if isinstance(target, str) else as_prepared(target)
        return await self._services.control.complete(self._start_for(chosen, args, kwargs))

    async def _start_for(
        self, target: str | Prepared[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ProcessHandle[Any]:
        services, known = self._services, self._services.store.sessions
        record = await known.open(self.id, msgspec.to_builtins(self.options))
        options = msgspec.convert(record.options or {}, SessionOptions)
        environment = environment_of(services.catalog, options)
        chosen = target
        if isinstance(chosen, str):
            chosen = Prepared(self._tool_process(chosen, environment))
        session = SessionRef(self.id)
        inherited = Registration(
            id="",
            input=ExternalInput(),
            originator=session,
            wake_target=session,
            env=await services.environments.keep(environment),
        )
        return await self._start(chosen, args, kwargs, inherited, environment.plugins)

    def _tool_process(self, name: str, environment: Environment) -> ToolProcess:
        """Return a tool as a process: a plugin's tool comes before one of the app, as in turns."""
        catalog = self._services.catalog
        built = catalog.build_plugins(self.id, environment.plugins)
        others: set[str] = set()
        for plugin in reversed(built):
            tools = tools_of_plugins([built[plugin]])
            if name in tools:
                return ToolProcess(tools[name], plugin)
            others.update(tools)
        return ToolProcess(catalog.tool(name, others), None)

    # --- listening ---

    def events(self, new: NewTurn) -> AsyncIterator[TurnEvent]:
        """Return the events of a turn, wherever it runs; the recorded ones if it has ended."""
        return TurnListener(new.scope, self._services, self._runner, self._results).events()

    def observe(self, cursor: str | None = None) -> AsyncIterator[Observed]:
        """Yield the messages after a cursor, then new messages and events; continue from any cursor later.

        >>> async for item in session.observe(cursor):
        ...     cursor = item.cursor
        """
        self._services.refuse_inside_process("session.observe")
        return observe_session(self.id, cursor, self._services, self._runner)

    async def timeline(self, turn_id: str) -> list[Effect]:
        """Return the effects of a turn with their times: draw them with ``draw_timeline``."""
        self._services.refuse_inside_process("session.timeline")
        check_name("turn id", turn_id)
        turn = await self._turn(turn_id)
        services = self._services
        host, store = services.control.effects, services.store
        return effects_from(await entries_of(host, store, turn.scope, turn.run))

    async def retry(self) -> bool:
        """Let a blocked turn continue; False if none is blocked."""
        self._services.refuse_inside_process("session.retry")
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
        """Send a message while the session may be busy; the same ``key`` again is the same message.

        With ``next_turn`` the next turn receives it, with ``now`` the next checkpoint of this one;
        ``interrupt`` also replaces the answers that the turn waits for, and stops a model that streams its
        reply. An idle session starts a turn. Cancellation: atomic.
        """
        self._services.refuse_inside_process("session.enqueue")
        if when not in ("next_turn", "now", "interrupt"):
            known = "next_turn, now, interrupt"
            raise ArgumentsInvalid("session.enqueue", f"when={when!r} is not one of {known}")
        message_key = self._services.new_id() if key is None else check_name("key", key)
        parts, bodies = with_references(parts_of(text))
        await self._services.control.complete(
            self._enqueue(parts, bodies, message_key, Policy(when))
        )

    async def _enqueue(
        self, parts: tuple[Part, ...], bodies: Mapping[str, bytes], key: str, policy: Policy
    ) -> None:
        await store_bodies(bodies, self._services.store.attachments)
        body = {"parts": msgspec.to_builtins(parts)}
        write_payload(body, 1)  # refused before the session is created
        options = msgspec.to_builtins(self.options)
        command = EnqueueMessage(self.id, key, body, policy, options)
        await self._services.control.perform_in_call(command)

    async def cancel(self, reason: str = "cancelled") -> None:
        """Ask the turn that runs, waits or is blocked to end; the text that was streamed is kept.

        Cancellation: atomic.
        """
        self._services.refuse_inside_process("session.cancel")
        check_text("session.cancel", "reason", reason)
        await self._services.control.perform(CancelTurn(self.id, reason))

    # --- processes ---

    async def processes(
        self, mode: Literal["live", "all"] = "live", *, frame: str | None = None
    ) -> list[HeldProcess]:
        """Return the processes whose handles the session holds: those that have not ended, or ``all``.

        A session holds the handle of every process that was started for it: by its turns, its tools and its programs, or
        with ``wake=``. Each agent's ``frame`` in the session may hold further handles.

        >>> for held in await session.processes():
        ...     print(held.id, held.status)
        """
        self._services.refuse_inside_process("session.processes")
        if mode not in ("live", "all"):
            raise ArgumentsInvalid("session.processes", f"mode={mode!r} is not one of live, all")
        return await self._services.control.listed(self._holder(frame), mode)

    @overload
    def process_handle(
        self, process_id: str, *, frame: str | None = None
    ) -> ProcessHandle[Any]: ...
    @overload
    def process_handle(
        self,
        process_id: str,
        process: Definition[Any, T] | Prepared[Any, T],
        *,
        frame: str | None = None,
    ) -> ProcessHandle[T]: ...
    def process_handle(
        self, process_id: str, process: Any = None, *, frame: str | None = None
    ) -> ProcessHandle[Any]:
        """Return the handle of a process with the rights of the session.

        Its methods raise ProcessNotVisible while the session does not hold the handle. ``app.process_handle`` may use
        every process.

        >>> await session.process_handle("onboard-ann").signal("answer", "yes")
        """
        self._services.refuse_inside_process("session.process_handle")
        result = None if process is None else as_prepared(process).definition.arguments.result
        holder = self._holder(frame)
        return ProcessHandle(checked_process(process_id), self._services, result, holder)

    async def grant_process(
        self, process_id: str, label: str = "", *, frame: str | None = None
    ) -> None:
        """Give the session the handle of a process; ``label`` is shown in ``session.processes``.

        >>> await session.grant_process(handle.id, "the nightly import")
        """
        self._services.refuse_inside_process("session.grant_process")
        check_text("session.grant_process", "label", label)
        command = GrantHandle(self._holder(frame), checked_process(process_id), label)
        await self._services.control.perform(command)

    async def revoke_process(self, process_id: str, *, frame: str | None = None) -> bool:
        """Take the handle of a process from the session; False if it had none. The process continues.

        >>> await session.revoke_process("onboard-ann")
        """
        self._services.refuse_inside_process("session.revoke_process")
        command = RevokeHandle(self._holder(frame), checked_process(process_id))
        revoked: bool = await self._services.control.perform(command)
        return revoked

    async def transfer_processes(
        self,
        process_ids: Sequence[str],
        to: str,
        *,
        frame: str | None = None,
        to_frame: str | None = None,
    ) -> None:
        """Give handles of the session to another one; this session has no access to those processes afterwards.

        Raises ProcessNotVisible for a handle that the session does not hold. Without any ids it does nothing.

        >>> await session.transfer_processes(["onboard-ann"], to="support-7")
        """
        self._services.refuse_inside_process("session.transfer_processes")
        method = "session.transfer_processes"
        ids = check_list(method, "process_ids", process_ids, checked_process)
        target = _holder(to, to_frame)
        await self._services.control.transfer(self._holder(frame), target, ids)

    async def cancel_unreferenced_processes(
        self, keep: Sequence[str] = (), *, frame: str | None = None
    ) -> list[str]:
        """Release all handles except those to ``keep``, and cancel the processes whose handles no other session holds.

        Returns the ids of the processes that this call cancelled, with the reason ``requested by host``: not those that have
        ended, or were cancelled before.

        >>> await session.cancel_unreferenced_processes(keep=["onboard-ann"])
        """
        method = "session.cancel_unreferenced_processes"
        self._services.refuse_inside_process(method)
        kept = check_list(method, "keep", keep, checked_process)
        return await self._services.control.cancel_unreferenced(self._holder(frame), kept)

    def _holder(self, frame: str | None) -> SessionRef:
        return _holder(self.id, frame)

    # --- history ---

    async def history(self) -> list[Message]:
        """Return all messages, the oldest first."""
        self._services.refuse_inside_process("session.history")
        record = await self._services.store.sessions.get(self.id)
        return [] if record is None else await self._services.histories.messages(record)

    async def view(self, last: int | None = None) -> list[dict[str, Any]]:
        """Return the history as plain records for programs, the oldest first; ``last`` limits it to the newest.

        >>> [entry["text"] for entry in await session.view() if entry["kind"] == "user"]
        """
        self._services.refuse_inside_process("session.view")
        return await self._services.histories.view(self.id, checked_last("session.view", last))

    async def usage(self) -> Usage:
        """Return the usage of all turns of the session, with their subagents."""
        self._services.refuse_inside_process("session.usage")
        record = await self._services.store.sessions.get(self.id)
        return msgspec.convert((record.usage if record else None) or {}, Usage)

    async def fork(self, new_id: str, at: str | None = None) -> Session:
        """Return a new session that begins with this one's turns, up to and with ``at``."""
        self._services.refuse_inside_process("session.fork")
        checked_session(new_id)
        source, head, counts = await find_fork_point(self._services.store.sessions, self.id, at)
        await self._services.store.sessions.fork(source, new_id, head, counts)
        return Session(
            new_id, self.options, self._services, self._runner, self._results, self._start
        )

    async def _turn(self, turn_id: str) -> TurnRecord:
        for scope in (TurnScope(self.id, turn_id), QueueDrainScope(self.id, turn_id)):
            turn = await self._services.store.sessions.turn(scope)
            if turn is not None:
                return turn
        played = await self._services.store.sessions.played(self.id) if turn_id == self.id else None
        if played is None:
            raise TurnUnknown(self.id, turn_id)
        return played

    async def delete(self) -> DeleteReport:
        """Delete the session with its turns, messages, waits, queue and process handles; return what was removed.

        Cancellation: the deletion is completed.
        """
        self._services.refuse_inside_process("session.delete")
        return await self._services.control.complete(self._delete())

    async def _delete(self) -> DeleteReport:
        record = await self._services.store.sessions.get(self.id)
        if record is not None:
            self._services.histories.forget(record.number)
        return await self._services.control.delete_session(self.id)


def _holder(session_id: str, frame: str | None) -> SessionRef:
    """Return the holder of handles: a session, or the frame of an agent in it."""
    if frame is not None:
        check_name("frame", frame)
    return SessionRef(checked_session(session_id), frame)
