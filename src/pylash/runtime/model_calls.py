"""The model calls of a turn: what is sent, and what came of it as a message.

Rule 1. A call is one effect, recorded with its message. Of a request only its extent is recorded: it is
        everything before a place, in the recorded environment.
Rule 2. Attachments are put in right before a request is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pylash.durable import EffectKind, Envelope, LlmCall, LlmCallOutcome, Outcome, expect
from pylash.runtime.branches import outside
from pylash.runtime.executors import Executor
from pylash.runtime.histories import has_attachments
from pylash.runtime.turn_messages import (
    llm_key,
    model_failed,
    named_answered,
    reply_message,
    with_bytes,
)
from pylash.turn import (
    AssistantMessage,
    Delta,
    Extent,
    Joined,
    ModelFailed,
    ModelReplied,
    ModelRequest,
    Provider,
    SystemMessage,
    TurnEvent,
    final_tool,
)
from pylash.values import LashError, StoreError

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
            ends = not message.calls and turn.ask.output_schema is None
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

        def listen(delta: Delta) -> None:
            kind: Any = "text_delta" if delta.kind == "text" else "reasoning_delta"
            turn.feed.say(TurnEvent(kind, key, text=delta.text))

        catalog, begun = turn.services.catalog, iteration > 1
        try:
            request = await self._request(iteration, sent)
            reply = await named_answered(catalog, request, listen, self._ready, begun=begun)
        except StoreError as error:  # also of old messages that the model looked at
            turn.run.give_up(error)
        took = turn.services.monotonic() - self._asked_at
        return reply_message(reply, iteration, took, turn.environment.model)

    async def _ready(self, provider: Provider) -> None:
        turn = self._turn
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
