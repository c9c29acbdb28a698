"""Long chats of a turn: what is sent of its session's history, and the summary of the rest.

Rule 1. A summary is made at a checkpoint, as effects, and is a message of the turn: what comes later uses
        it, a fork has it too, and a replay hears it again.
Rule 2. A model that cannot summarise fails no turn: what does not fit is left out of the request.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from pylash.durable import Direct, DirectOutcome, Envelope, Outcome, Sleep, expect
from pylash.runtime.branches import outside
from pylash.runtime.completions import call_key, completed, model_reply, pause_key
from pylash.runtime.executors import direct_executor, sleep_executor
from pylash.runtime.turn_messages import llm_key
from pylash.turn import (
    SUMMARY,
    AssistantMessage,
    CallModel,
    Extent,
    Message,
    Pause,
    Summarise,
    Summary,
    SystemMessage,
    Text,
    TurnEnd,
    TurnMachine,
    UserMessage,
    extent,
    last_summary,
    piece_of,
    remaining,
    shortened,
    spent,
    summary_prompt,
    to_summarise,
    tokens_of,
)
from pylash.values import ProviderError, decode, write

if TYPE_CHECKING:
    from pylash.runtime.turns import TurnDriver

_log = logging.getLogger("pylash")


class Summaries:
    """Keeps short what one turn sends."""

    def __init__(self, turn: TurnDriver) -> None:
        self._turn = turn
        self._option = turn.ask.options.history
        self._looked = False
        self._last: UserMessage | None = None

    def extent(self) -> Extent:
        """Return what of the history is sent now."""
        if self._option is None:
            return Extent()
        turn = self._turn
        said, known = turn.machine.messages, self._known()
        return extent(self._option, turn.history, said, known, prompt=self._prompt())

    async def made(self, iteration: int, heard: tuple[Message, ...]) -> list[UserMessage]:
        """Return a summary, if one is needed before the model is asked; ``heard`` comes before it."""
        turn, option = self._turn, self._option
        if not isinstance(option, Summarise):
            return []
        known, said = self._known(), (*turn.machine.messages, *heard)
        span = to_summarise(option, turn.history, said, known, prompt=self._prompt())
        text = "" if known is None else known.text.removeprefix(SUMMARY)
        made, number = Summary(0), 1
        while self._goes_on(iteration, number, span):
            piece = _Piece(turn, option, _key(iteration, number), span or range(0), text)
            end = await piece.summarised()
            if end.status != "completed":
                _tolerate(turn.session.id, end)
                break
            text = shortened(end.text, option.share)
            made = Summary(piece.upto, made.usage + end.usage, made.seconds + end.seconds)
            span = range(piece.upto, piece.span.stop)
            number += 1
        if not made.covers:
            return []
        return [UserMessage((Text(SUMMARY + text),), source="runtime", summary=made)]

    def _goes_on(self, iteration: int, number: int, span: range | None) -> bool:
        """Return whether there is more to summarise; once the model was asked, only what is recorded."""
        journal = self._turn.run.journal
        if journal is not None and journal.recorded(_key(iteration, number)):
            return True
        return bool(span) and (journal is None or not journal.recorded(llm_key(iteration + 1, 1)))

    def _known(self) -> UserMessage | None:
        """Return the newest summary of the history, which stays as it is while the turn runs."""
        if not self._looked:
            self._last = last_summary(self._option, self._turn.history)
            self._looked = True
        return self._last

    def _prompt(self) -> int:
        return tokens_of(map(SystemMessage, self._turn.environment.prompt))


class _Piece:
    """A piece of a history, to be summarised after what came before it."""

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

    async def summarised(self) -> TurnEnd:
        """Return what came of it; ``upto`` is what was recorded, once it was."""
        return await completed(self._machine, self._call, self._pause)

    async def _call(self, wanted: CallModel) -> AssistantMessage:
        turn, machine = self._turn, self._machine

        async def perform(_: Envelope) -> Outcome:
            if not self.span:  # code that estimates otherwise began this
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
        # A reference, as in model calls: the turn says what is summarised, and the outcome up to where.
        command = Direct({"summary": self._key})
        key = call_key(self._key, wanted.iteration, wanted.attempt)
        outcome = await turn.run.effect(turn.branch, key, "summary", command, local)
        result = expect(outcome, DirectOutcome).result
        self.upto = result["upto"]
        return msgspec.convert(result["message"], AssistantMessage)

    async def _pause(self, wanted: Pause) -> None:
        turn = self._turn
        key = pause_key(self._key, wanted.iteration, wanted.attempt)
        command = Sleep(wanted.milliseconds, retry=True)
        await turn.run.effect(turn.branch, key, "summary again", command, sleep_executor())


def _key(iteration: int, number: int) -> str:
    return f"i{iteration}.summary" if number == 1 else f"i{iteration}.summary.{number}"


def _tolerate(session_id: str, end: TurnEnd) -> None:
    """Go on without a summary if the model gave none, whatever the reason is."""
    _log.warning("session %s goes on without a new summary: %s", session_id, end.error)
