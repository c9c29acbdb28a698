"""Long chats: the part of a session's history that a turn sends, and the summary of the rest.

Rule 1. A summary is made at a checkpoint, as effects, and is a message of the turn: later turns use it,
        a fork has it too, and a replay gets it again.
Rule 2. A model that cannot summarise fails no turn: messages that do not fit are left out of the request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from pylash.durable.effects import Direct, DirectOutcome, Envelope, Outcome, expect
from pylash.engine.executors import direct_executor
from pylash.engine.runs.branches import outside
from pylash.models.messages import llm_key
from pylash.processes.operations.completions import model_reply, run_completion_as_effects
from pylash.turn.budgets import remaining, spent
from pylash.turn.histories import (
    SUMMARY,
    Extent,
    History,
    Summarise,
    extent,
    last_summary,
    piece_of,
    shorten,
    summary_prompt,
    to_summarise,
    tokens_of,
)
from pylash.turn.machine import CallModel, TurnEnd, TurnMachine
from pylash.turn.messages import (
    AssistantMessage,
    Message,
    Summary,
    SystemMessage,
    Text,
    UserMessage,
)
from pylash.values.canonical import decode, write
from pylash.values.turn_errors import ProviderError

if TYPE_CHECKING:
    from pylash.sessions.driver import TurnDriver

_log = logging.getLogger("pylash")


class Summaries:
    """Keeps the requests of one turn within the limit of its session's history."""

    def __init__(self, turn: TurnDriver, limit: History) -> None:
        self._turn = turn
        self._limit = limit

    def extent(self) -> Extent:
        """Return the part of the history that is sent now."""
        turn = self._turn
        current = turn.machine.messages
        return extent(self._limit, turn.history, current, self._last, prompt=self._prompt_tokens())

    async def make(self, iteration: int, joining: Sequence[Message]) -> list[UserMessage]:
        """Return a summary, if one is needed before the model is called; ``joining`` comes before it."""
        turn, option = self._turn, self._limit
        if not isinstance(option, Summarise):
            return []
        known, current = self._last, (*turn.machine.messages, *joining)
        span = to_summarise(option, turn.history, current, known, prompt=self._prompt_tokens())
        text = "" if known is None else known.text.removeprefix(SUMMARY)
        made, number = Summary(0), 1
        while self._has_more(iteration, number, span):
            piece = _Piece(turn, option, _key(iteration, number), span or range(0), text)
            end = await piece.summarise()
            if end.status != "completed":
                session = turn.session.id
                _log.warning("session %s continues without a new summary: %s", session, end.error)
                break
            text = shorten(end.text, option.share)
            made = Summary(piece.upto, made.usage + end.usage, made.seconds + end.seconds)
            span = range(piece.upto, piece.span.stop)
            number += 1
        if not made.covers:
            return []
        return [UserMessage((Text(SUMMARY + text),), source="runtime", summary=made)]

    def _has_more(self, iteration: int, number: int, span: range | None) -> bool:
        """Return whether there is more to summarise; once the model was called, only recorded summaries count."""
        memory = self._turn.run.memory
        if memory.recorded(_key(iteration, number)):
            return True
        return bool(span) and not memory.recorded(llm_key(iteration + 1, 1))

    @cached_property
    def _last(self) -> UserMessage | None:
        """The newest summary in the history, which stays as it is while the turn runs."""
        return last_summary(self._limit, self._turn.history)

    def _prompt_tokens(self) -> int:
        return tokens_of(map(SystemMessage, self._turn.environment.prompt))


class _Piece:
    """A piece of a history, to be summarised after the pieces before it."""

    def __init__(
        self, turn: TurnDriver, option: Summarise, key: str, span: range, before: str
    ) -> None:
        self.span = span
        self._turn = turn
        self._key = key
        self._model = option.model or turn.environment.model
        text, self.upto = piece_of(turn.history, span, option.tokens)
        self._machine = TurnMachine(
            [UserMessage((Text(summary_prompt(option, before, text)),))],
            budget=remaining(turn.machine.budget, spent(turn.machine.messages)),
        )

    async def summarise(self) -> TurnEnd:
        """Summarise the piece; return how that ended. ``upto`` is then the recorded end of the piece."""
        turn = self._turn
        return await run_completion_as_effects(
            turn.run, turn.run.root, self._key, "summary", self._machine, self._call
        )

    async def _call(self, _: CallModel, key: str) -> AssistantMessage:
        turn, machine = self._turn, self._machine

        async def perform(_: Envelope) -> Outcome:
            if not self.span:  # the summary was recorded by code that estimates tokens differently
                raise ProviderError("There is nothing to summarise any more.")
            with outside():
                message = await model_reply(
                    turn.services,
                    machine,
                    self._model,
                    number=0,
                    turn_id=turn.turn_id,
                    run=turn.run,
                )
            return DirectOutcome({"message": decode(write(message)), "upto": self.upto})

        local = direct_executor(perform)
        local.record = turn.writer.record
        # The command is a reference, as in model calls: the turn defines the span, and the outcome its end.
        command = Direct({"summary": self._key})
        outcome = await turn.run.effect(turn.run.root, key, "summary", command, local)
        result = expect(outcome, DirectOutcome).result
        self.upto = result["upto"]
        return msgspec.convert(result["message"], AssistantMessage)


def _key(iteration: int, number: int) -> str:
    return f"i{iteration}.summary" if number == 1 else f"i{iteration}.summary.{number}"
