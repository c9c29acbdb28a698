"""ToolContext: the operations of a tool while it runs.

Rule 1. A context does no I/O except for completions: it collects attachments and triggers, which the caller stores.
Rule 2. It may be used from a thread: plain functions run in one, so listeners are called there.
Rule 3. Reporting progress never fails a tool.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

import msgspec

from pylash.turn.messages import Attachment, Input
from pylash.values.durations import Duration, micros
from pylash.values.names import check_name
from pylash.values.process_errors import ArgumentsInvalid
from pylash.values.turn_errors import ModelMissing

D = TypeVar("D")
T = TypeVar("T")

_log = logging.getLogger("pylash")


class CallInfo(msgspec.Struct, frozen=True):
    """The ids of one attempt. The idempotency key is the same for every attempt of a call."""

    session_id: str
    turn_id: str
    call_id: str
    attempt: int
    idempotency_key: str


class Deferred(msgspec.Struct, frozen=True):
    """Returned by a tool whose result comes later, from outside; ``deadline`` is in microseconds."""

    deadline: int | None = None


class Emitted(msgspec.Struct, frozen=True):
    """A trigger that is emitted once the tool has succeeded."""

    trigger: str
    source_key: str
    payload: Any = None


Progress = Callable[[str, float | None], None]
"""Takes a text and how much is done, from 0 to 1 or None. It may be called from a thread."""

Check = Callable[[str, Any], Any]
"""Takes the name of a trigger and a payload; returns the payload as plain JSON, or refuses it."""

Complete = Callable[[Input, Any, str | None], Awaitable[Any]]
"""Calls a model: takes the prompt, the type of the answer, and the model's name."""


async def _no_model(given: Input, output: Any, model: str | None) -> Any:  # noqa: ARG001 - there is no model
    raise ModelMissing


class ToolContext(Generic[D]):
    """The operations of a tool. A parameter annotated with it is passed by the runtime and hidden from the model.

    >>> @app.tool
    ... async def report(ctx: ToolContext[Deps], month: str) -> str:
    ...     ctx.progress("Reading orders", 0.1)
    ...     return await ctx.deps.orders.report(month)
    """

    def __init__(
        self,
        call: CallInfo,
        deps: D,
        listen: Progress = lambda *_: None,
        check: Check = lambda _, payload: payload,
        complete: Complete = _no_model,
    ) -> None:
        self.call = call
        self.session_id = call.session_id
        """The session whose model called; empty in a process."""
        self.turn_id = call.turn_id
        """The turn or process in which it was called."""
        self.call_id = call.call_id
        """The call."""
        self.attempt = call.attempt
        """The number of this attempt; the first is 1."""
        self.idempotency_key = call.idempotency_key
        """A text that is the same for every attempt of this call, and for no other call."""
        self.deps = deps
        self.attached: dict[str, bytes] = {}
        self.emitted: list[Emitted] = []
        self.syncs = False
        self._listen = listen
        self._check = check
        self._complete = complete

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that notes session, turn and call."""
        extra = {"session": self.session_id, "turn": self.turn_id, "call": self.call_id}
        return logging.LoggerAdapter(logging.getLogger("pylash.tool"), extra)

    def progress(self, text: str, fraction: float | None = None) -> None:
        """Report the progress of the tool to listeners; never fails.

        >>> ctx.progress("Reading orders", 0.5)
        """
        try:
            done = None if fraction is None else min(max(float(fraction), 0.0), 1.0)
            self._listen(str(text), done)
        except Exception:  # noqa: BLE001 - listeners are user code, and best effort
            _log.debug("a listener of tool progress failed", exc_info=True)

    @overload
    async def complete(self, prompt: Input, *, output: type[T], model: str | None = None) -> T: ...
    @overload
    async def complete(
        self, prompt: Input, *, output: None = None, model: str | None = None
    ) -> str: ...
    async def complete(self, prompt: Input, *, output: Any = None, model: str | None = None) -> Any:
        """Ask a model outside the conversation: return its text, or its answer as ``output``.

        It belongs to this attempt: it is repeated with the attempt, and its usage counts
        for the turn. A plain function, which cannot await, may return it. Raises ProviderError, or
        TurnOutputInvalid if no answer fits. Cancellation: safe, nothing is recorded.

        >>> short = await ctx.complete(f"In one sentence: {page}", model="fast")
        """
        return await self._complete(prompt, output, model)

    def attach(
        self,
        data: bytes | bytearray | memoryview,
        media_type: str = "application/octet-stream",
        name: str | None = None,
    ) -> Attachment:
        """Return a reference to bytes that are stored with the tool's result.

        >>> return ctx.attach(chart, "image/png", "sales.png")
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ArgumentsInvalid("ctx.attach", f"it takes bytes, not {type(data).__name__}")
        body = bytes(data)
        ref = hashlib.sha256(body).hexdigest()
        self.attached[ref] = body
        return Attachment(media_type=media_type, name=name, ref=ref, size=len(body))

    def defer(self, deadline: Duration | None = None) -> Deferred:
        """Return a value for the tool to return if its result comes later, from outside.

        >>> return ctx.defer(deadline="2d")
        """
        return Deferred(None if deadline is None else micros(deadline))

    def emit(self, trigger: str, *, source_key: str, payload: Any = None) -> None:
        """Emit an event once the tool has succeeded; a trigger that is not declared is refused.

        >>> ctx.emit("order.refunded", source_key=order_id, payload={"cents": 500})
        """
        check_name("source key", source_key)
        self.emitted.append(Emitted(trigger, source_key, self._check(trigger, payload)))

    def sync_environment(self) -> None:
        """Have the prompt and the tools of the turn captured again, with the tool's result: a plugin changed them.

        The model's next call has the new ones. In a process it does nothing.

        >>> ctx.sync_environment()
        """
        self.syncs = True
