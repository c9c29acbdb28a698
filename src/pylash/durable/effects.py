"""Effects: nondeterministic operations, as data.

Rule 1. A command contains everything that its outcome may depend on; the hash covers exactly that.
Rule 2. Each command has one outcome type. ``OUTCOMES`` is the table.
Rule 3. Commands and outcomes are stored: fields are only added, with defaults; tags stay.
Rule 4. Atomic commands are recorded, and their executors use no controller. Composite ones run
        again on replay; only their parts are recorded.

Values are trees, never cycles, so the garbage collector can skip them (``gc=False``): scanning them was
a third of the cost of an effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from pylash.durable.scopes import ExecutionScope, session_of, turn_of
from pylash.durable.waits import Resolution, unsigned
from pylash.values.canonical import decode, encode, encode_to_compare, refuse
from pylash.values.errors import RuntimeEffectWrongOutcome


class EffectKind(StrEnum):
    """The eleven kinds of effects."""

    LLM_CALL = "llm_call"
    DIRECT = "direct"
    TOOL_BATCH = "tool_batch"
    TOOL_ATTEMPT = "tool_attempt"
    PROCESS = "process"
    EXEC_CODE = "exec_code"
    CHECKPOINT = "checkpoint"
    SYNC_EXECUTION_ENVIRONMENT = "sync_execution_environment"
    SLEEP = "sleep"
    AWAIT_EVENT = "await_event"
    DURABLE_STEP = "durable_step"


COMPOSITE: Final = frozenset({EffectKind.TOOL_BATCH, EffectKind.EXEC_CODE, EffectKind.CHECKPOINT})
"""Kinds that are not recorded themselves: they run again on replay, and their parts are read from the record."""


# --- commands ---


class _Command(msgspec.Struct, frozen=True, gc=False, tag_field="kind"):
    """The input of an effect."""

    kind: ClassVar[EffectKind]

    def hash_input(self) -> Any:
        """Return the part of the command that the hash covers."""
        return self


class LlmCall(_Command, frozen=True, gc=False, tag="llm_call"):
    """Call the model. The request has references to messages, not their text."""

    request: Any


class Direct(_Command, frozen=True, gc=False, tag="direct"):
    """A one-shot completion outside any conversation."""

    request: Any


class ToolBatch(_Command, frozen=True, gc=False, tag="tool_batch"):
    """Run the tool calls of one model reply."""

    batch: Any


class ToolAttempt(_Command, frozen=True, gc=False, tag="tool_attempt"):
    """Run one tool call once. Each attempt has its own key, so its number is not hashed.

    ``execution_grant`` is not used and always None: the hashes of recorded attempts cover it.
    """

    call: Any
    execution_grant: Any = None
    attempt: int = 1
    max_attempts: int = 1

    def hash_input(self) -> Any:
        """Return the command without the number of the attempt."""
        return {"call": self.call, "execution_grant": self.execution_grant}


class Process(_Command, frozen=True, gc=False, tag="process"):
    """A command to the process registry: start, list, transfer, await, cancel or signal processes, submit turns, and so on."""

    command: Any

    def hash_input(self) -> Any:
        """Return the command without what does not decide about its effect, and what older versions did not record.

        That is the number of an event, the defaults of a turn, the session that asks, and of a start: the session that gets the handle, the handles
        in its arguments, its label, its tags, and the version and the types of events of its program, which a new deployment may change. A fork hashes the start of the
        process that it was forked from.
        """
        match self.command:
            case {"recorded": registration}:
                command = {name: one for name, one in self.command.items() if name != "recorded"}
                return Process({**command, "registration": registration}).hash_input()
            case {"do": "append"}:
                command = {name: one for name, one in self.command.items() if name != "number"}
            case {"do": "submit_turn"}:
                command = {name: one for name, one in self.command.items() if name != "defaults"}
            case {"by": _}:
                command = {name: one for name, one in self.command.items() if name != "by"}
            case {"registration": {"input": {"handles": _} | {"version": _}} as registration}:
                given = {
                    name: one
                    for name, one in registration["input"].items()
                    if name not in ("handles", "version")
                }
                command = self._start_of({**registration, "input": given})
            case {"registration": {"event_types": _} | {"label": _} | {"tags": _} as registration}:
                command = self._start_of({**registration})
            case {"registration": registration, "grant": {}}:
                command = self._start_of({**registration})
            case _:
                return self
        return {"kind": "process", "command": command}

    def _start_of(self, registration: dict[str, Any]) -> dict[str, Any]:
        """Return the hashed part of a start."""
        registration.pop("event_types", None)
        registration.pop("label", None)
        registration.pop("tags", None)
        return {**self.command, "registration": registration, "grant": None}


class ExecCode(_Command, frozen=True, gc=False, tag="exec_code"):
    """Run code that the model wrote."""

    language: str
    code: str


class Checkpoint(_Command, frozen=True, gc=False, tag="checkpoint"):
    """Let plugins add messages between iterations."""

    checkpoint: Any


class SyncExecutionEnvironment(_Command, frozen=True, gc=False, tag="sync_execution_environment"):
    """Refresh the prompt and the tools."""

    update_machine_config: bool = False


class Sleep(_Command, frozen=True, gc=False, tag="sleep", omit_defaults=True):
    """Wait for a time. ``retry``: it is the delay before a retry, which a new deployment may change."""

    duration_ms: int
    retry: bool = False

    def hash_input(self) -> Any:
        """Return the command, but without the duration of a delay before a retry."""
        return {"retry": True} if self.retry else self


class AwaitEvent(_Command, frozen=True, gc=False, tag="await_event"):
    """Wait until ``key`` is resolved from outside, or for ``within_ms``, after which the wait stays open.

    ``schema`` is the JSON Schema of the answer: another one is refused, and the wait stays open. It is left out of records
    without one, as those of older versions are. The other fields are only shown to people.
    """

    key: str
    wait_kind: str = "custom"
    title: str = ""
    tool: str | None = None
    arguments: Any = None
    within_ms: int | None = None
    schema: Any | msgspec.UnsetType = msgspec.UNSET

    def hash_input(self) -> Any:
        """Return the wait's name only: the key changes with the secret that signs it."""
        return {"wait": unsigned(self.key)}


class DurableStep(_Command, frozen=True, gc=False, tag="durable_step"):
    """Run a function of the caller.

    ``unbound`` is the input without the arguments that a partial has bound: older versions recorded it. It is not hashed.
    """

    step_id: str
    input: Any = None
    unbound: Any | msgspec.UnsetType = msgspec.UNSET

    def hash_input(self) -> Any:
        """Return the command without ``unbound``."""
        if self.unbound is msgspec.UNSET:
            return self
        return {"kind": "durable_step", "step_id": self.step_id, "input": self.input}

    def as_older_versions(self) -> DurableStep:
        """Return the command as older versions recorded it."""
        return self if self.unbound is msgspec.UNSET else DurableStep(self.step_id, self.unbound)


Command = (
    LlmCall
    | Direct
    | ToolBatch
    | ToolAttempt
    | Process
    | ExecCode
    | Checkpoint
    | SyncExecutionEnvironment
    | Sleep
    | AwaitEvent
    | DurableStep
)
"""Every command."""

_COMMANDS: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


# --- outcomes ---


class _Outcome(msgspec.Struct, frozen=True, gc=False, tag_field="kind"):
    """The result of an effect."""

    kind: ClassVar[EffectKind]


class LlmCallOutcome(_Outcome, frozen=True, gc=False, tag="llm_call", omit_defaults=True):
    """The model's reply, and whether its text was already streamed to listeners."""

    result: Any
    text_streamed: bool = False


class DirectOutcome(_Outcome, frozen=True, gc=False, tag="direct"):
    """The completion."""

    result: Any


class ToolBatchOutcome(_Outcome, frozen=True, gc=False, tag="tool_batch"):
    """The results in the order of the calls, and the trigger events that the tools emitted."""

    launches: list[Any] = []
    triggers: list[Any] = []


class ToolAttemptOutcome(_Outcome, frozen=True, gc=False, tag="tool_attempt", omit_defaults=True):
    """The result of one attempt, and the trigger events it emitted: a replay does not emit them again.

    A ``deferred`` attempt of a process has the deadline for the result in place of the result. ``stored`` are the
    references of bytes that an attempt of a process stored.
    """

    launch: Any
    triggers: list[Any] = []
    deferred: bool = False
    stored: list[str] = []


class ProcessOutcome(_Outcome, frozen=True, gc=False, tag="process"):
    """The answer of the process registry."""

    result: Any


class ExecCodeOutcome(_Outcome, frozen=True, gc=False, tag="exec_code"):
    """The output, the calls and the result of the code."""

    result: Any


class CheckpointOutcome(_Outcome, frozen=True, gc=False, tag="checkpoint"):
    """The messages that plugins added."""

    result: Any


class SyncExecutionEnvironmentOutcome(
    _Outcome, frozen=True, gc=False, tag="sync_execution_environment"
):
    """The environment that the turn continues with."""

    result: Any


class SleepOutcome(_Outcome, frozen=True, gc=False, tag="sleep"):
    """The time is over."""


class AwaitEventOutcome(_Outcome, frozen=True, gc=False, tag="await_event"):
    """How the wait ended."""

    resolution: Resolution


class DurableStepOutcome(_Outcome, frozen=True, gc=False, tag="durable_step"):
    """The result of the step, as plain JSON."""

    value: Any = None


Outcome = (
    LlmCallOutcome
    | DirectOutcome
    | ToolBatchOutcome
    | ToolAttemptOutcome
    | ProcessOutcome
    | ExecCodeOutcome
    | CheckpointOutcome
    | SyncExecutionEnvironmentOutcome
    | SleepOutcome
    | AwaitEventOutcome
    | DurableStepOutcome
)
"""Every outcome."""

OUTCOMES: Final[Mapping[type[Command], type[Outcome]]] = {
    LlmCall: LlmCallOutcome,
    Direct: DirectOutcome,
    ToolBatch: ToolBatchOutcome,
    ToolAttempt: ToolAttemptOutcome,
    Process: ProcessOutcome,
    ExecCode: ExecCodeOutcome,
    Checkpoint: CheckpointOutcome,
    SyncExecutionEnvironment: SyncExecutionEnvironmentOutcome,
    Sleep: SleepOutcome,
    AwaitEvent: AwaitEventOutcome,
    DurableStep: DurableStepOutcome,
}

for _struct in (*OUTCOMES, *OUTCOMES.values()):
    _struct.kind = EffectKind(str(_struct.__struct_config__.tag))

OutcomeT = TypeVar("OutcomeT", bound=_Outcome)


def expect(outcome: Outcome, wanted: type[OutcomeT]) -> OutcomeT:
    """Return outcome if it has the expected type, or raise RuntimeEffectWrongOutcome."""
    if isinstance(outcome, wanted):
        return outcome
    raise RuntimeEffectWrongOutcome(str(wanted.__struct_config__.tag), str(outcome.kind))


# --- the envelope ---


class RuntimeScope(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where in the runtime an effect was requested: for display and traces, not for identity."""

    session_id: str | None = None
    turn_id: str | None = None
    turn_index: int | None = None
    iteration: int | None = None

    @staticmethod
    def of(
        scope: ExecutionScope, turn_index: int | None = None, iteration: int | None = None
    ) -> RuntimeScope:
        """Return the runtime scope of an execution scope."""
        return RuntimeScope(session_of(scope), turn_of(scope), turn_index, iteration)


class Invocation(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The identity of an effect: its id (the displayed name), its replay key, and the effect that caused it."""

    scope: RuntimeScope
    effect_id: str
    kind: EffectKind
    replay_key: str | None = None
    causal_parent: str | None = None
    label: str | None = None


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An invocation and its command: the argument of a controller."""

    invocation: Invocation
    command: Command

    def canonical(self) -> bytes:
        """Return the canonical JSON that the hash covers: kind, name and the command's input.

        Not covered: scope, causal parent, attempt, label, times and turn index.
        """
        command = self.command
        covered = command.hash_input()
        text = encode_to_compare(covered)
        back = _COMMANDS.decode(text) if covered is command else decode(text)
        if back != covered:
            refuse(covered, "$.command")
        name = _encoded_name(self.invocation.effect_id)
        return b'{"command":%b,"kind":"%b","name":%b}' % (text, command.kind.encode(), name)

    def stable_hash(self) -> str:
        """Return the SHA-256 over the canonical text: same input, same hash."""
        return hashlib.sha256(self.canonical()).hexdigest()


def is_same_start(kept: bytes, canonical: bytes) -> bool:
    """Return whether two canonical texts start the same process, perhaps with another timeout or concurrency key.

    Those come from the declaration of the program, which a new version or a new deployment may change.
    """
    first, second = _start_without_limits(kept), _start_without_limits(canonical)
    return first is not None and first == second


def _start_without_limits(canonical: bytes) -> Any:
    match decode(canonical):
        case {
            "command": {"command": {"do": "start", "registration": registration} as start}
        } as all_:
            limits = ("timeout", "slot")
            rest = {name: one for name, one in registration.items() if name not in limits}
            return {**all_, "command": {**start, "registration": rest}}
        case _:
            return None


@lru_cache(maxsize=1024)
def _encoded_name(name: str) -> bytes:
    return encode(name)


def envelope(
    command: Command,
    *,
    scope: RuntimeScope,
    effect_id: str,
    replay_key: str | None = None,
    causal_parent: str | None = None,
    label: str | None = None,
) -> Envelope:
    """Return command in its envelope; the invocation's kind is the command's."""
    invocation = Invocation(scope, effect_id, command.kind, replay_key, causal_parent, label)
    return Envelope(invocation, command)
