"""The turn machine: one agent turn, without I/O.

Rule 1. Which answer may follow which question is the ``ANSWERS`` table; the code below handles legal answers.
Rule 2. The machine reads no clock, generates no ids and never awaits. Such facts arrive in answers.
Rule 3. At most one effect is outstanding, and polling does not consume it: a machine restored from
        its checkpoint asks again for exactly the effect that was lost, and nothing else.
Rule 4. When a turn has ended, every tool call has a result, however the turn ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, assert_never, get_args

import msgspec

from pylash.turn.budgets import TurnBudget, overrun, spent
from pylash.turn.messages import (
    NO_USAGE,
    ZERO,
    AssistantMessage,
    Attachment,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    open_calls,
)
from pylash.turn.outputs import FINAL_RESULT, called_answer, spoken_answer
from pylash.values.turn_errors import TurnAnswerUnexpected

MODEL_TRIES: Final = 4
"""How often a model is called before its failure becomes the turn's failure."""
FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 3_600_000
"""A provider that asks for a longer pause fails the turn."""
OUTPUT_TRIES: Final = 3
"""After how many invalid answers the turn fails."""

# --- questions ---


class SyncEnvironment(msgspec.Struct, frozen=True, tag_field="ask", tag="sync_environment"):
    """Capture the prompt, the tools and the model of this turn.

    ``iteration``: capture the prompt and the tools again, because they changed during it. None is the first capture.
    """

    iteration: int | None = None


class TakeCheckpoint(msgspec.Struct, frozen=True, tag_field="ask", tag="checkpoint"):
    """Let queued messages and plugins join the turn before the model is called."""

    iteration: int


class CallModel(msgspec.Struct, frozen=True, tag_field="ask", tag="call_model"):
    """Call the model."""

    iteration: int
    attempt: int = 1


class RunTools(msgspec.Struct, frozen=True, tag_field="ask", tag="run_tools"):
    """Run the tool calls of a reply."""

    iteration: int
    calls: tuple[ToolCall, ...]


class Pause(msgspec.Struct, frozen=True, tag_field="ask", tag="pause"):
    """Wait before the next attempt of the model call."""

    iteration: int
    attempt: int
    milliseconds: int


Ask = SyncEnvironment | TakeCheckpoint | CallModel | RunTools | Pause
"""The next effect of a turn."""

# --- answers ---


class EnvironmentSynced(msgspec.Struct, frozen=True, tag_field="tell", tag="environment_synced"):
    """The environment is captured."""


class CheckpointTaken(msgspec.Struct, frozen=True, tag_field="tell", tag="checkpoint_taken"):
    """The messages that joined the turn; ``sync``: a plugin changed the prompt or the tools."""

    messages: tuple[UserMessage, ...] = ()
    sync: bool = False


class ModelReplied(msgspec.Struct, frozen=True, tag_field="tell", tag="model_replied"):
    """The model's answer."""

    message: AssistantMessage


class ModelFailed(msgspec.Struct, frozen=True, tag_field="tell", tag="model_failed"):
    """The model gave no answer."""

    message: str
    code: str
    retryable: bool = False
    retry_after_ms: int = 0


class ToolsReturned(msgspec.Struct, frozen=True, tag_field="tell", tag="tools_returned"):
    """The results, in the order of the calls."""

    messages: tuple[ToolMessage, ...]


class Paused(msgspec.Struct, frozen=True, tag_field="tell", tag="paused"):
    """The pause is over."""


Answer = EnvironmentSynced | CheckpointTaken | ModelReplied | ModelFailed | ToolsReturned | Paused
"""The answer to a question."""

ANSWERS: Final[Mapping[type, tuple[type, ...]]] = {
    SyncEnvironment: (EnvironmentSynced,),
    TakeCheckpoint: (CheckpointTaken,),
    CallModel: (ModelReplied, ModelFailed),
    RunTools: (ToolsReturned,),
    Pause: (Paused,),
}
"""Which answers each question may get."""

assert set(ANSWERS) == set(get_args(Ask))

# --- the end ---

TurnStatus = Literal["completed", "failed", "cancelled", "stopped"]


class TurnEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a turn ended."""

    status: TurnStatus
    text: str = ""
    value: Any = None
    usage: Usage = NO_USAGE
    error: str | None = None
    code: str | None = None
    seconds: float = ZERO
    attachments: tuple[Attachment, ...] = ()


class TurnMachine(msgspec.Struct):
    """A turn in progress. The struct *is* its checkpoint.

    ``messages`` are those of this turn, the input first. ``is_stale``: the prompt or the tools changed since the
    environment was captured.
    """

    messages: list[Message]
    output_schema: Any = None
    budget: TurnBudget | None = None
    iteration: int = 0
    misfits: int = 0
    is_stale: bool = False
    outstanding: Ask | None = SyncEnvironment()
    end: TurnEnd | None = None

    def poll_effect(self) -> Ask | None:
        """Return the next effect of the turn, or None once it has ended."""
        return self.outstanding

    def handle_response(self, answer: Answer) -> None:
        """Handle the answer to the outstanding question."""
        asked = self.outstanding
        if asked is None or not isinstance(answer, ANSWERS[type(asked)]):
            raise TurnAnswerUnexpected(_name_of(answer), _name_of(asked))
        if isinstance(asked, RunTools) and isinstance(answer, ToolsReturned):
            wanted, given = [c.id for c in asked.calls], [m.call_id for m in answer.messages]
            if given != wanted:
                raise TurnAnswerUnexpected(f"the results of {given}", f"the calls {wanted}")
        match answer:
            case EnvironmentSynced():
                assert isinstance(asked, SyncEnvironment)
                self._synced(asked)
            case CheckpointTaken(messages=messages, sync=sync):
                self.messages.extend(messages)
                self.is_stale = self.is_stale or sync
                self._ask_model()
            case ModelReplied(message=message):
                self._reply(message)
            case ModelFailed():
                self._fail_model(answer)
            case ToolsReturned(messages=messages):
                self.messages.extend(messages)
                self.is_stale = self.is_stale or any(message.sync for message in messages)
                self.outstanding = TakeCheckpoint(self.iteration)
            case Paused():
                assert isinstance(asked, Pause)
                self.outstanding = CallModel(self.iteration, asked.attempt + 1)
            case _:
                assert_never(answer)

    def cancel(self, reason: str = "cancelled", streamed: str = "") -> None:
        """End the turn on request; a turn that has ended stays as it is.

        ``streamed`` is the text of an answer that was being streamed: it is kept as an interrupted answer.
        """
        # Before the first model call, and while tools run, there is no answer to keep.
        kept = bool(streamed.strip() and self.messages) and not isinstance(
            self.outstanding, RunTools
        )
        if kept and self.end is None:
            self.messages.append(AssistantMessage(streamed, interrupted=True))
        text = streamed if kept else ""
        self._finish("cancelled", text=text, error=reason, code="turn_cancelled", closing=reason)

    def fail(self, message: str, code: str) -> None:
        """End the turn because it cannot continue; a turn that has ended stays as it is."""
        self._finish("failed", error=message, code=code, closing=message)

    @property
    def usage(self) -> Usage:
        """The usage so far, including that of subagents."""
        return spent(self.messages).usage

    # --- handling of legal answers ---

    def _synced(self, asked: SyncEnvironment) -> None:
        self.is_stale = False
        if asked.iteration is None:
            self.outstanding = TakeCheckpoint(self.iteration)
        else:
            self._ask_model()

    def _ask_model(self) -> None:
        reason = None if self.budget is None else overrun(self.budget, spent(self.messages))
        if reason is not None:
            self._finish("stopped", error=reason, code="turn_stopped", closing=reason)
            return
        if self.is_stale:
            self.outstanding = SyncEnvironment(self.iteration)
            return
        self.iteration += 1
        self.outstanding = CallModel(self.iteration)

    def _reply(self, message: AssistantMessage) -> None:
        self.messages.append(message)
        if message.interrupted:  # by queued messages, which the checkpoint takes
            self.outstanding = TakeCheckpoint(self.iteration)
            return
        final = None
        if self.output_schema is not None:
            final = next((call for call in message.calls if call.tool == FINAL_RESULT), None)
        if final is not None:
            self._structured_call(final)
        elif message.calls:
            self.outstanding = RunTools(self.iteration, message.calls)
        elif self.output_schema is not None:
            self._structured_text(message.text)
        else:
            self._finish("completed", text=message.text)

    def _structured_call(self, call: ToolCall) -> None:
        """Handle an answer that was given as a call; the other calls of the reply are not run."""
        value, trouble = called_answer(call.arguments, self.output_schema)
        if trouble is None:
            self._close_calls("The answer was taken; this was not run.", call)
            self._finish("completed", text="", value=value)
            return
        self._close_calls(
            "This was not run: the answer did not fit.", call, f"It does not fit: {trouble}"
        )
        self._misfit(trouble)

    def _structured_text(self, text: str) -> None:
        value, trouble = spoken_answer(text, self.output_schema)
        if trouble is None:
            self._finish("completed", text=text, value=value)
            return
        self._misfit(trouble)
        if self.end is None:
            asked = f"Answer again, with JSON that fits the schema and nothing else: {trouble}."
            self.messages.append(UserMessage((Text(asked),), source="runtime"))

    def _misfit(self, trouble: str) -> None:
        self.misfits += 1
        if self.misfits >= OUTPUT_TRIES:
            message = f"The model's answer did not fit {self.misfits} times: {trouble}"
            self._finish("failed", error=message, code="turn_output_invalid", closing=message)
        else:
            self.outstanding = TakeCheckpoint(self.iteration)

    def _fail_model(self, failure: ModelFailed) -> None:
        asked = self.outstanding
        assert isinstance(asked, CallModel)
        pause = max(FIRST_PAUSE_MS * 2 ** (asked.attempt - 1), failure.retry_after_ms)
        if failure.retryable and asked.attempt < MODEL_TRIES and pause <= LONGEST_PAUSE_MS:
            self.outstanding = Pause(asked.iteration, asked.attempt, pause)
        else:
            self.fail(failure.message, failure.code)

    # --- ending ---

    def _close_calls(
        self, text: str, special: ToolCall | None = None, special_text: str = "Taken."
    ) -> None:
        """Add a result for every call without one, because providers refuse a transcript with an open call."""
        for call in open_calls(self.messages):
            mine = call is special
            result = ToolMessage(
                call.id,
                call.tool,
                special_text if mine else text,
                error=not mine or special_text != "Taken.",
                provider_id=call.provider_id,
            )
            self.messages.append(result)

    def _finish(
        self,
        status: TurnStatus,
        *,
        text: str = "",
        value: Any = None,
        error: str | None = None,
        code: str | None = None,
        closing: str = "",
    ) -> None:
        if self.end is not None:
            return
        # When a turn ends while its tools run, it is unknown how far they got.
        self._close_calls(f"No result: {closing.rstrip('.')}. It may have run.")
        if status == "stopped":
            self.messages.append(AssistantMessage(f"[Stopped: {error}.]", source="runtime"))
        self.outstanding = None
        used = spent(self.messages)
        seconds = round(used.seconds, 3) or ZERO
        attachments: list[Attachment] = []
        for message in self.messages:
            if isinstance(message, AssistantMessage):
                attachments += message.attachments
        self.end = TurnEnd(
            status, text, value, used.usage, error, code, seconds, tuple(attachments)
        )


def _name_of(thing: Ask | Answer | None) -> str:
    return "nothing" if thing is None else type(thing).__name__
