"""The model calls of a turn: their requests, and their replies as messages.

Rule 1. A call is one effect, recorded with its message. Of a request only its extent is recorded: a request is
        everything before a place, in the recorded environment.
Rule 2. The bytes of attachments are added right before a request is sent.
Rule 3. A queued message that interrupts ends a call as soon as the model has streamed some text: the text is
        recorded as the call's reply, marked as interrupted, and the turn continues with the message. Before
        the first piece of text there is nothing to keep, and the call continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from pylash.durable.effects import Envelope, LlmCall, LlmCallOutcome, Outcome, expect
from pylash.durable.sessions import Policy
from pylash.engine.executors import turn_executor
from pylash.engine.runs.branches import outside
from pylash.models.messages import llm_key, model_failed, reply_message, with_bytes
from pylash.tools.catalog import MODEL_UNAVAILABLE, call_model
from pylash.turn.events import TurnEvent
from pylash.turn.histories import Extent
from pylash.turn.machine import ModelFailed, ModelReplied
from pylash.turn.messages import (
    NO_USAGE,
    AssistantMessage,
    Message,
    SystemMessage,
    has_attachments,
)
from pylash.turn.outputs import final_tool
from pylash.turn.requests import Delta, ModelReply, ModelRequest
from pylash.values.errors import LashError, StoreError
from pylash.values.turn_errors import TurnModelMissing

if TYPE_CHECKING:
    from pylash.sessions.driver import TurnDriver


class ModelCalls:
    """Calls the model of one turn."""

    def __init__(self, turn: TurnDriver) -> None:
        self._turn = turn
        self.last_error = ""
        """The message of the last call that failed."""

    async def call(self, iteration: int, attempt: int) -> ModelReplied | ModelFailed:
        """Return the model's reply, recorded or new."""
        turn = self._turn
        key, index = llm_key(iteration, attempt), len(turn.machine.messages)
        reply_id = llm_key(iteration, 1)  # for listeners all attempts are the same reply
        turn.writer.add_messages(turn.machine.messages)

        async def perform(_: Envelope) -> Outcome:
            sent = Extent() if turn.summaries is None else turn.summaries.extent()
            with outside():
                turn.feed.begin_reply(reply_id, attempt)
                stream = _Stream(turn, reply_id)
                message, bodies = await self._reply(iteration, sent, stream)
            ends = not message.calls and not message.interrupted and turn.ask.output_schema is None
            # The last reply is written with the commit: nothing outside happens between them.
            local.record = turn.writer.hold if ends else turn.writer.record
            place = turn.writer.prepare(key, index, message, bodies)
            left_out = {"left_out": sent.start} if sent.start else {}
            return LlmCallOutcome({"place": place, **left_out}, text_streamed=bool(stream.text))

        local = turn_executor(perform, record=turn.writer.record, messages=turn.writer)
        request = LlmCall({"upto": turn.writer.base + index - 1})
        try:
            outcome = await turn.run.effect(turn.run.root, key, "model", request, local)
        except LashError as error:
            self.last_error = error.message
            return model_failed(error)
        turn.writer.complete(key)
        message = turn.writer.read(expect(outcome, LlmCallOutcome).result["place"])
        assert isinstance(message, AssistantMessage)
        turn.feed.replay_reply(reply_id, message.text)
        turn.feed.add(TurnEvent("usage", reply_id, usage=message.usage))
        return ModelReplied(message)

    async def _reply(
        self, iteration: int, sent: Extent, stream: _Stream
    ) -> tuple[AssistantMessage, dict[str, bytes]]:
        """Call the model; return its reply as a message, and the bytes of its attachments."""
        turn, clock = self._turn, self._turn.services.clock
        with turn.run.guarded():
            request = await self._request(iteration, sent)
        started = clock.monotonic()
        try:
            async with stream:
                provider = turn.services.catalog.provider(request.model)
                reply = await call_model(provider, request, stream.listen)
        except MODEL_UNAVAILABLE as error:
            if iteration == 1:
                raise
            # A turn that has recorded work is not lost because this worker lacks its model.
            turn.run.give_up(TurnModelMissing(turn.turn_id, error.message, turn.retry_call))
        if stream.interrupted:
            reply = ModelReply(text=stream.text, usage=NO_USAGE)
        took = clock.monotonic() - started
        message, bodies = reply_message(reply, iteration, took, turn.environment.model)
        if stream.interrupted:
            message = msgspec.structs.replace(message, interrupted=True)
        return message, bodies

    async def _request(self, iteration: int, sent: Extent) -> ModelRequest:
        turn, env = self._turn, self._turn.environment
        system = [*map(SystemMessage, env.prompt)]
        messages: Sequence[SystemMessage | Message] = sent.of(
            turn.history, turn.machine.messages, system
        )
        if turn.history.has_attachments or any(map(has_attachments, turn.machine.messages)):
            stored = turn.services.store.attachments
            messages = [
                one if isinstance(one, SystemMessage) else await with_bytes(one, stored)
                for one in messages
            ]
        tools = env.tools
        if turn.ask.output_schema is not None:
            tools = (*tools, final_tool(turn.ask.output_schema))
        return ModelRequest(
            messages=messages,
            tools=tools,
            model=env.model,
            call_number=turn.session.calls + iteration - 1,
            output_schema=turn.ask.output_schema,
            session_id=turn.session.id,
            turn_id=turn.turn_id,
        )


class _Stream:
    """Streams a reply to the feed, and ends the block it surrounds when a queued message interrupts.

    The queue is read only when the run is woken: a call without an interruption costs nothing.
    """

    def __init__(self, turn: TurnDriver, reply_id: str) -> None:
        self.interrupted = False
        self._turn = turn
        self._reply_id = reply_id
        self._pieces: list[str] = []
        # The block is ended by letting its timeout expire. ``_requested``: an interruption is queued, and waits for
        # the first text. ``_open``: the block runs; outside of it the timeout must not be rescheduled, because it
        # would cancel whatever the caller awaits next.
        self._requested = self._open = False
        self._scope = asyncio.timeout(None)
        # Reads of the queue in flight: the event loop itself keeps only weak references to tasks.
        self._reads: set[asyncio.Task[None]] = set()

    @property
    def text(self) -> str:
        """The text that was streamed so far."""
        return "".join(self._pieces)

    def listen(self, delta: Delta) -> None:
        """Receive a piece of the reply."""
        kind: Any = "text_delta" if delta.kind == "text" else "reasoning_delta"
        self._turn.feed.add(TurnEvent(kind, self._reply_id, text=delta.text))
        if delta.kind == "text":
            self._pieces.append(delta.text)
            if self._requested:
                self._stop()

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._open, run = True, self._turn.run
        # A wake-up between the checkpoint and now found no callback: ``stirred`` is set if there was one.
        run.driver.on_wake.append(self._read_soon)
        if run.machine.stirred:
            self._read_soon()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._open = False
        self._turn.run.driver.on_wake.remove(self._read_soon)
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            self.interrupted = True
        return self.interrupted

    def _read_soon(self) -> None:
        reading = self._turn.run.outside.start(self._read_queue())
        self._reads.add(reading)
        reading.add_done_callback(self._reads.discard)

    async def _read_queue(self) -> None:
        with suppress(StoreError):  # then the messages are taken at the next checkpoint
            queued = await self._turn.services.store.sessions.queued(self._turn.session.id)
            if any(one.policy is Policy.INTERRUPT for one in queued):
                self._requested = True
                self._stop()

    def _stop(self) -> None:
        if self._open and self.text.strip() and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())
