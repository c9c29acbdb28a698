"""The model calls of a turn: what is sent, and what came of it as a message.

Rule 1. A call is one effect, recorded with its message. Of a request only its extent is recorded: it is
        everything before a place, in the recorded environment.
Rule 2. Attachments are put in right before a request is sent.
Rule 3. Words that interrupt end a call as soon as the model has said something: the text is recorded as
        the call's reply, marked as interrupted, and the turn goes on with the words. Before the first
        piece of text there is nothing to keep, and the call goes on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pylash.durable import EffectKind, Envelope, LlmCall, LlmCallOutcome, Outcome, Policy, expect
from pylash.runtime.branches import outside
from pylash.runtime.executors import Executor
from pylash.runtime.histories import has_attachments
from pylash.runtime.runs import unheard
from pylash.runtime.turn_messages import (
    llm_key,
    model_failed,
    named_answered,
    reply_message,
    with_bytes,
)
from pylash.turn import (
    NO_USAGE,
    AssistantMessage,
    Delta,
    Extent,
    Joined,
    ModelFailed,
    ModelReplied,
    ModelReply,
    ModelRequest,
    Provider,
    SystemMessage,
    Transcript,
    TurnEvent,
    final_tool,
)
from pylash.values import LashError, StoreError, TurnModelMissing

if TYPE_CHECKING:
    from pylash.runtime.turns import TurnDriver

_LLM: Final = frozenset({EffectKind.LLM_CALL})


class ModelCalls:
    """Asks the model of one turn."""

    def __init__(self, turn: TurnDriver) -> None:
        self._turn = turn
        self.trouble = ""
        """Why the last call failed."""
        self._asked_at = 0.0

    async def call(self, iteration: int, attempt: int) -> ModelReplied | ModelFailed:
        """Return what the model answered, now or when it was recorded."""
        turn = self._turn
        key, index = llm_key(iteration, attempt), len(turn.machine.messages)
        turn.note()

        async def perform(_: Envelope) -> Outcome:
            with outside():
                sent = turn.summaries.extent()
                message, bodies = await self._asked(iteration, attempt, sent)
            plain = not message.calls and not message.interrupted
            ends = plain and turn.ask.output_schema is None
            local.record = turn.writer.hold if ends else turn.writer.record
            place = turn.writer.prepare(key, index, message, bodies)
            left_out = {"left_out": sent.start} if sent.start else {}
            return LlmCallOutcome({"place": place, **left_out})

        local = Executor("turn", _LLM, perform, record=turn.writer.record)
        request = LlmCall({"upto": turn.writer.base + index - 1})
        try:
            outcome = await turn.run.effect(turn.branch, key, "model", request, local)
        except LashError as error:
            self.trouble = error.message
            return model_failed(error)
        turn.writer.landed(key)
        place = expect(outcome, LlmCallOutcome).result["place"]
        message = turn.writer.read(place)
        assert isinstance(message, AssistantMessage)
        said = llm_key(iteration, 1)  # for those who listen every attempt is the same reply
        turn.feed.replay_reply(said, message.text)
        turn.feed.say(TurnEvent("usage", said, usage=message.usage))
        return ModelReplied(message)

    async def _asked(
        self, iteration: int, attempt: int, sent: Extent
    ) -> tuple[AssistantMessage, dict[str, bytes]]:
        """Ask the model, and tell who listens what it says; return also the bytes it made."""
        turn, key = self._turn, llm_key(iteration, 1)
        turn.feed.begin_reply(key, attempt)
        interruption = _Interruption(turn)

        def listen(delta: Delta) -> None:
            kind: Any = "text_delta" if delta.kind == "text" else "reasoning_delta"
            turn.feed.say(TurnEvent(kind, key, text=delta.text))
            if delta.kind == "text":
                interruption.add(delta.text)

        catalog, begun = turn.services.catalog, iteration > 1
        with turn.run.guarded():
            request = await self._request(iteration, sent)
        if isinstance(turn.history, Transcript):
            turn.history.trouble = None
        try:
            async with interruption:
                reply = await named_answered(catalog, request, listen, self._ready, begun=begun)
        except TurnModelMissing as error:  # ours: what a provider raises is none of these
            turn.run.give_up(error)
        except LashError:
            with turn.run.guarded():
                self._check_history()
            raise
        took = turn.services.monotonic() - self._asked_at
        if interruption.happened:
            reply = ModelReply(text=interruption.text, usage=NO_USAGE)
        message, bodies = reply_message(reply, iteration, took, turn.environment.model)
        if interruption.happened:
            message = msgspec.structs.replace(message, interrupted=True)
        return message, bodies

    def _check_history(self) -> None:
        """Raise why old messages could not be read when the provider looked at them, if so."""
        history = self._turn.history
        if isinstance(history, Transcript) and history.trouble is not None:
            raise history.trouble

    async def _ready(self, provider: Provider) -> None:
        turn = self._turn
        with turn.run.guarded():
            await turn.services.histories.ready(turn.session, turn.history, provider)
        self._asked_at = turn.services.monotonic()

    async def _request(self, iteration: int, sent: Extent) -> ModelRequest:
        turn, env = self._turn, self._turn.environment
        system = [SystemMessage(part) for part in env.prompt]
        stored = turn.services.store.attachments
        messages = sent.of(turn.history, turn.machine.messages)
        if turn.services.histories.has_attachments(turn.session):
            messages = [await with_bytes(message, stored) for message in messages]
        elif any(map(has_attachments, turn.machine.messages)):
            filled = [await with_bytes(message, stored) for message in turn.machine.messages]
            messages = sent.of(turn.history, filled)
        tools = env.tools
        if turn.ask.output_schema is not None:
            tools = (*tools, final_tool(turn.ask.output_schema))
        return ModelRequest(
            messages=Joined(system, messages),
            tools=tools,
            model=env.model,
            call_number=turn.session.calls + iteration - 1,
            output_schema=turn.ask.output_schema,
            session_id=turn.session.id,
            turn_id=turn.turn_id,
        )


class _Interruption:
    """Ends the block it surrounds when words are queued that interrupt, once the model has said something.

    The queue is read only when the run is woken: a call that nobody interrupts costs nothing.
    """

    def __init__(self, turn: TurnDriver) -> None:
        self.happened = False
        self._turn = turn
        self._pieces: list[str] = []
        self._wanted = self._open = False
        self._looks: set[asyncio.Task[None]] = set()
        self._scope = asyncio.timeout(None)

    @property
    def text(self) -> str:
        """What the model has said so far."""
        return "".join(self._pieces)

    def add(self, piece: str) -> None:
        """Take a piece of the model's text."""
        self._pieces.append(piece)
        if self._wanted:
            self._stop()

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._open, run = True, self._turn.run
        run.on_wake = self._look_soon
        if run.stirred:  # since the checkpoint
            self._look_soon()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._open, self._turn.run.on_wake = False, unheard
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            self.happened = True
        return self.happened

    def _look_soon(self) -> None:
        look = self._turn.run.tasks.start(self._look())
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look(self) -> None:
        with suppress(StoreError):  # then the words are taken at the next checkpoint
            queued = await self._turn.services.store.sessions.queued(self._turn.session.id)
            if any(one.policy is Policy.INTERRUPT for one in queued):
                self._wanted = True
                self._stop()

    def _stop(self) -> None:
        if self._open and self.text.strip() and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())
