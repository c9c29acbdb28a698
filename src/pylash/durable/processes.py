"""Processes: durable work under an id, and the log that is its state.

Rule 1. A process is its registration and its log. Everything else in its row is a fold of the log.
Rule 2. The log only grows, with sequence numbers without gaps. Appends with the same key happen once.
Rule 3. A registration has references, never bodies: any worker can load the rest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from pylash.durable.runs import Fence, Instant, JournalEntry, RunState
from pylash.durable.scopes import MAX_ID_BYTES
from pylash.values.canonical import encode
from pylash.values.names import check_name, name_problem
from pylash.values.process_errors import (
    MissingProcessExecutionId,
    ProcessEventInvalid,
    ProcessOriginatorInvalid,
    SignalNameInvalid,
)
from pylash.values.schemas import schema_trouble
from pylash.values.turn_errors import SessionIdInvalid

SESSION_TURN: Final = "session_turn"
"""The target of processes that are one turn of a child session."""

LASHLANG: Final = "lashlang"
"""The target of processes whose programs are Lashlang modules."""

# --- the input of a process ---


class ToolCallInput(msgspec.Struct, frozen=True, tag_field="type", tag="tool_call"):
    """One call of a tool. ``plugin``: the plugin that has it, if the app itself does not."""

    tool: str
    arguments: dict[str, Any] = {}
    plugin: str | msgspec.UnsetType = msgspec.UNSET


class EngineInput(msgspec.Struct, frozen=True, tag_field="type", tag="engine"):
    """A program of an engine: those of ``python`` are the functions registered with ``@app.process``.

    ``later_version`` is unset for version 1, so that what was stored before there were versions means version 1. The identity
    of a start does not depend on it.
    """

    engine: str
    program: str
    arguments: dict[str, Any] = {}
    later_version: int | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="version")

    @property
    def version(self) -> int:
        """The version of the program."""
        return 1 if self.later_version is msgspec.UNSET else self.later_version

    def of_version(self, version: int) -> EngineInput:
        """Return the same input for another version of the program."""
        later = msgspec.UNSET if version == 1 else version
        return msgspec.structs.replace(self, later_version=later)


class LashlangInput(msgspec.Struct, frozen=True, tag_field="type", tag="lashlang"):
    """A process of a Lashlang module: references to stored bodies, and its arguments.

    ``handles`` are the processes whose handles are in the arguments; anything else that looks like a handle is plain
    data. Older versions did not store it, so it may be unset. The identity of a start does not depend on it.
    """

    module_ref: str
    process_ref: str
    required_surface_ref: str
    process_name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict, name="args")
    handles: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class ExternalInput(msgspec.Struct, frozen=True, tag_field="type", tag="external"):
    """Work outside pylash that the process represents."""

    metadata: Any = None


class ForkPoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The history that a child session begins with: that of a session, up to and with a turn, or all of it."""

    session_id: str
    turn_id: str | None = None


class SessionTurnInput(msgspec.Struct, frozen=True, tag_field="type", tag="session_turn"):
    """One turn of a child session; ``ask`` is its input, as plain JSON.

    ``lanes`` are the sessions that wait for it. ``fork``: the child session begins with a history; otherwise it is empty.
    """

    session_id: str
    ask: Any
    options: Any = None
    lanes: tuple[str, ...] = ()
    fork: ForkPoint | msgspec.UnsetType = msgspec.UNSET


def engine_target(engine: str, program: str, version: int = 1) -> str:
    """Return the target of a version of a program.

    The version is in the part before the colon, which has no names of users, so that no name is taken for a version.

    >>> engine_target("python", "order"), engine_target("python", "order", 2)
    ('python:order', 'python@2:order')
    """
    return f"{engine}:{program}" if version == 1 else f"{engine}@{version}:{program}"


def split_target(target: str) -> tuple[str, int]:
    """Return the target of version 1 of a program, and the version.

    >>> split_target("python@2:order"), split_target("python:order@2")
    (('python:order', 2), ('python:order@2', 1))
    """
    engine, colon, program = target.partition(":")
    engine, at, version = engine.partition("@")
    return (f"{engine}{colon}{program}", int(version)) if at else (target, 1)


def carrier_target(carrier: str, target: str) -> str:
    """Return the target of runs that another engine than the workers of the store executes: no worker claims it.

    >>> carrier_target("restate", "python:order"), carrier_target("", "python:order")
    ('restate/python:order', 'python:order')
    """
    return f"{carrier}/{target}" if carrier else target


def split_carrier(target: str) -> tuple[str, str]:
    """Return the engine in a target, and the rest; "" for runs that workers of the store execute.

    >>> split_carrier("restate/python:order"), split_carrier("python:a/b")
    (('restate', 'python:order'), ('', 'python:a/b'))
    """
    carrier, slash, rest = target.partition("/")
    return (carrier, rest) if slash and ":" not in carrier else ("", target)


ProcessInput = ToolCallInput | EngineInput | LashlangInput | ExternalInput | SessionTurnInput
"""Every kind of input."""


class SessionRef(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="session"):
    """A session, or one agent's frame in it."""

    session_id: str
    frame: str | None = None


class HostRef(msgspec.Struct, frozen=True, tag_field="type", tag="host"):
    """The host program: the originator of a process that no session started."""


Originator = HostRef | SessionRef
"""The session, or the host program, that a process was started for; its children inherit it."""


class Semantics(StrEnum):
    """The effect of an event beyond its entry in the log."""

    PLAIN = "plain"
    WAKE = "wake"
    TERMINAL = "terminal"


class EventType(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type of event that a process declares: the JSON Schema of its payload, and its semantics."""

    name: str
    schema: Any = None
    semantics: Semantics = Semantics.PLAIN


class Slot(msgspec.Struct, frozen=True):
    """A concurrency key: at most ``limit`` of its runs execute at once."""

    key: str
    limit: int


class ForkOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that was forked, and how often it had continued as itself by then."""

    process_id: str
    epoch: int = 0


class Description(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is no part of the identity of a process's start, and never inherited.

    ``label`` is its name for people, ``tags`` are texts that lists are filtered by. ``carrier`` is the engine that executes it;
    blank for the workers of the store.
    """

    label: str | None = None
    tags: tuple[str, ...] = ()
    carrier: str = ""


class Registration(Description, frozen=True, kw_only=True, omit_defaults=True):
    """A process to start.

    ``event_types``: None accepts any event, as a plain one. ``signals``: the JSON Schemas of the accepted signals,
    by name; None accepts any. ``seed``: in a fork, the id of the process that it was forked from, because both must
    derive the same random names. ``recorded_id``: in a fork, the id of the parent in the starts of children that it took over.
    ``forked_from``: in a fork, the processes whose effects it took over, the oldest first. Forks that older versions made
    have neither.
    """

    id: str
    input: ProcessInput
    event_types: tuple[EventType, ...] | None = None
    signals: dict[str, Any] | None = None
    originator: Originator = HostRef()
    wake_target: SessionRef | None = None
    env: str | None = None
    parent: str | None = None
    attached: bool = False
    timeout: int | None = None
    slot: Slot | None = None
    seed: str | None = None
    seed_epoch: int = 0
    recorded_id: str | None = None
    forked_from: tuple[ForkOrigin, ...] = ()

    @property
    def origins(self) -> tuple[ForkOrigin, ...]:
        """The processes whose ids and wait keys may be in the effects of a fork; forks of older versions know the oldest only."""
        if self.forked_from or self.seed is None:
            return self.forked_from
        return (ForkOrigin(self.seed, self.seed_epoch),)

    @property
    def target(self) -> str:
        """The name and version of its program, and its carrier: a worker claims only runs whose targets it has."""
        if isinstance(self.input, EngineInput):
            given = self.input
            return carrier_target(
                self.carrier, engine_target(given.engine, given.program, given.version)
            )
        return carrier_target(self.carrier, self.program)

    @property
    def program(self) -> str:
        """The name of its program, without the version: recorded starts contain it."""
        match self.input:
            case EngineInput(engine=engine, program=program):
                return f"{engine}:{program}"
            case ToolCallInput(plugin=str() as plugin):
                # Which tools a plugin has depends on its options, which are in the captured environment.
                return f"plugin:{plugin}"
            case ToolCallInput(tool=tool):
                return f"tool:{tool}"
            case SessionTurnInput():
                return SESSION_TURN
            case LashlangInput():
                return LASHLANG
            case _:
                return "external"

    @property
    def plays_session(self) -> bool:
        """Whether it is one turn of the session with its id: it holds the lane of that session."""
        return isinstance(self.input, SessionTurnInput) and self.input.session_id == self.id

    @property
    def holder(self) -> SessionRef | None:
        """The session that it is started for, which gets its handle."""
        return self.originator if isinstance(self.originator, SessionRef) else None

    @property
    def digest(self) -> bytes:
        """The hash of its input. The same id with another digest is a conflict."""
        given = self.input
        if isinstance(given, LashlangInput):
            given = msgspec.structs.replace(given, handles=msgspec.UNSET)
        elif isinstance(given, EngineInput):
            given = given.of_version(1)
        return hashlib.sha256(encode(given)).digest()


REGISTRATIONS: msgspec.json.Decoder[Registration] = msgspec.json.Decoder(Registration)
"""Decodes a stored registration."""


def checked_process(process_id: str) -> str:
    """Return a process id, or raise MissingProcessExecutionId if it cannot be stored."""
    return check_name("process id", process_id, limit=MAX_ID_BYTES, error=MissingProcessExecutionId)


def check_identity(registration: Registration) -> None:
    """Raise an error if the process or its originator has a blank id: its effects could not be distinguished from others.

    Workers check stored registrations too. Nothing else about a stored id is checked: see ``names``.
    """
    if not registration.id.strip():
        raise MissingProcessExecutionId("process id", registration.id, "it must not be blank")
    match registration.originator:
        case SessionRef(session_id=session) if not session.strip():
            raise ProcessOriginatorInvalid(registration.id)


def checked_registration(registration: Registration) -> Registration:
    """Return registration, or raise an error if it has an id that is blank or cannot be stored."""
    checked_process(registration.id)
    check_identity(registration)
    for reference in (registration.originator, registration.wake_target):
        if isinstance(reference, SessionRef):
            check_name("session id", reference.session_id, error=SessionIdInvalid)
    return registration


# --- the end of a process ---


class Success(msgspec.Struct, frozen=True, tag_field="status", tag="completed"):
    """The process returned."""

    value: Any = None


class Failure(msgspec.Struct, frozen=True, tag_field="status", tag="failed"):
    """The process failed with an exception: its class, code, message and raw value."""

    failure_class: str
    code: str
    message: str
    raw: Any = None

    @property
    def payload(self) -> dict[str, Any]:
        """The failure as plain JSON: the payload of its event."""
        return {
            "class": self.failure_class,
            "code": self.code,
            "message": self.message,
            "raw": self.raw,
        }


class Aborted(msgspec.Struct, frozen=True, tag_field="status", tag="cancelled"):
    """The process was cancelled."""

    reason: str | None = None


Output = Success | Failure | Aborted
"""The result of a process."""

OUTPUTS: msgspec.json.Decoder[Output] = msgspec.json.Decoder(Output)
"""Decodes a stored output."""


def output_from(plain: dict[str, Any]) -> Output:
    """Return the output that is given as plain JSON; its value is not copied."""
    kinds: dict[str, type[Output]] = {
        "completed": Success,
        "failed": Failure,
        "cancelled": Aborted,
    }
    return msgspec.convert(plain, kinds[plain["status"]])


STATES: Final[Mapping[type, RunState]] = {
    Success: RunState.COMPLETED,
    Failure: RunState.FAILED,
    Aborted: RunState.CANCELLED,
}
"""The state of a run with such an output."""


# --- the log ---

STARTED: Final = "process.started"
CONTINUED: Final = "process.continued"
CANCEL_REQUESTED: Final = "process.cancel_requested"
WAKE: Final = "process.wake"
YIELD: Final = "process.yield"
COMPLETED: Final = "process.completed"
FAILED: Final = "process.failed"
CANCELLED: Final = "process.cancelled"
SIGNAL: Final = "signal."

_OURS: Final = ("process.", SIGNAL)


class ProcessEvent(msgspec.Struct, frozen=True):
    """One entry of a process's log."""

    sequence: int
    type: str
    payload: Any
    key: str | None
    at: Instant


class ProcessState(msgspec.Struct, frozen=True):
    """The fold of the events of a log."""

    sequence: int = 0
    status: Literal["open", "completed", "failed", "cancelled"] = "open"
    output: Output | None = None
    cancel: bool = False
    epoch: int = 0


def ending(output: Output) -> tuple[str, Any]:
    """Return the event that ends a process with output."""
    match output:
        case Success(value=value):
            return COMPLETED, {"value": value}
        case Failure():
            return FAILED, output.payload
        case Aborted(reason=reason):
            return CANCELLED, {"reason": reason}


def fold(events: Iterable[ProcessEvent], types: Iterable[EventType] | None = ()) -> ProcessState:
    """Return the state after events."""
    terminal = {kind.name for kind in types or () if kind.semantics is Semantics.TERMINAL}
    state = ProcessState()
    for event in events:
        state = _folded(state, event, terminal)
    return state


def _folded(state: ProcessState, event: ProcessEvent, terminal: set[str]) -> ProcessState:
    state = msgspec.structs.replace(state, sequence=event.sequence)
    output: Output | None = None
    payload = event.payload
    match event.type:
        case str() as kind if kind in terminal:
            output = Success(payload)
        case "process.completed":
            output = Success(payload["value"])
        case "process.failed":
            output = Failure(payload["class"], payload["code"], payload["message"], payload["raw"])
        case "process.cancelled":
            output = Aborted(payload["reason"])
        case "process.cancel_requested":
            return msgspec.structs.replace(state, cancel=True)
        case "process.continued":
            return msgspec.structs.replace(state, epoch=state.epoch + 1)
        case _:
            return state
    if output is None or state.output is not None:
        return state
    return msgspec.structs.replace(state, status=STATES[type(output)].value, output=output)


def is_reserved(kind: str) -> bool:
    """Return whether a type of event is one of the runtime's."""
    return kind.startswith(_OURS)


def semantics_of(registration: Registration, kind: str, payload: Any) -> Semantics:
    """Return the semantics of an event, or raise ProcessEventInvalid if the process does not accept it."""
    if kind == WAKE:
        if not isinstance(payload, dict):
            raise ProcessEventInvalid(
                registration.id, kind, "its payload must be an object with a text"
            )
        return Semantics.WAKE
    if kind == YIELD:
        return Semantics.PLAIN
    if (problem := name_problem(kind)) is not None:
        raise ProcessEventInvalid(registration.id, kind, problem)
    if is_reserved(kind):
        raise ProcessEventInvalid(registration.id, kind, "this name is reserved")
    if registration.event_types is None:
        return Semantics.PLAIN
    for declared in registration.event_types:
        if declared.name == kind:
            if (trouble := schema_trouble(payload, declared.schema)) is not None:
                raise ProcessEventInvalid(registration.id, kind, trouble)
            return declared.semantics
    known = ", ".join(declared.name for declared in registration.event_types) or "none"
    raise ProcessEventInvalid(registration.id, kind, f"it was not declared (declared: {known})")


def check_signal(registration: Registration, name: str, payload: Any) -> None:
    """Raise ProcessEventInvalid for a signal that the process does not accept."""
    if registration.signals is None:
        return
    if name not in registration.signals:
        known = ", ".join(registration.signals) or "none"
        trouble: str | None = f"it declares no such signal (declared: {known})"
    else:
        trouble = schema_trouble(payload, registration.signals[name])
    if trouble is not None:
        raise ProcessEventInvalid(registration.id, signal_type(name), trouble)


_CONTROL: Final = re.compile(r"[\x00-\x1f]")


def signal_type(name: str) -> str:
    """Return the event type of a signal, or raise SignalNameInvalid."""
    check_name("signal name", name, error=SignalNameInvalid)
    if _CONTROL.search(name):  # people type and read these names
        raise SignalNameInvalid("signal name", name, "it must not contain control characters")
    return SIGNAL + name


def signal_key(process_id: str, name: str, signal_id: str) -> str:
    """Return the key of a signal's event, so that the same signal is appended once."""
    return f"process:{process_id}:{signal_type(name)}:{signal_id}"


# --- rows and views ---


class ProcessRecord(msgspec.Struct, frozen=True):
    """The row of a process: its registration, the fold of its log, and the state of its run."""

    registration: Registration
    number: int
    run: int
    state: ProcessState
    run_state: RunState
    reason: str | None
    created: Instant
    settled: Instant | None
    cancel_delivered: bool = False

    @property
    def id(self) -> str:
        """The process's id."""
        return self.registration.id

    @property
    def seed(self) -> str:
        """The text that its random names are derived from."""
        return self.registration.seed or self.id

    @property
    def timeout(self) -> int | None:
        """Its time limit, in microseconds."""
        return self.registration.timeout

    @property
    def slot(self) -> Slot | None:
        """Its concurrency key."""
        return self.registration.slot


class LeasedStart(msgspec.Struct, frozen=True):
    """A process that was started and is owned by the caller, with its fence."""

    number: int
    fence: Fence
    now: Instant


class Resumed(msgspec.Struct, frozen=True):
    """The input for continuing a run: its process and everything recorded for it."""

    record: ProcessRecord
    entries: dict[str, JournalEntry]
    now: Instant


def shown_target(target: str, registration: bytes | None) -> str:
    """Return the target of a process for display: the name of its program, and for Lashlang that of its process in the module."""
    _, target = split_carrier(target)
    if target != LASHLANG or registration is None:
        return split_target(target)[0]
    given = REGISTRATIONS.decode(registration).input
    return f"{target}:{given.process_name}" if isinstance(given, LashlangInput) else target


def shown_label(registration: bytes | None) -> str | None:
    """Return the label of a process; most have none, and are not decoded."""
    if registration is None or b'"label"' not in registration:
        return None
    return REGISTRATIONS.decode(registration).label


def shown_tags(registration: bytes | None) -> tuple[str, ...]:
    """Return the tags of a process; most have none, and are not decoded."""
    if registration is None or b'"tags"' not in registration:
        return ()
    return REGISTRATIONS.decode(registration).tags


class ProcessFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which processes a list has; a field that is None, or no statuses, excludes none.

    ``name`` is that of a program, whatever its version. ``since`` and ``before`` are about the time at which a process was started in this store.
    ``after`` is the last process of the page before.
    """

    statuses: tuple[str, ...] = ()
    name: str | None = None
    tag: str | None = None
    since: Instant | None = None
    before: Instant | None = None
    after: str | None = None


def is_named(target: str, name: str) -> bool:
    """Return whether a target, as it is shown, has a name: with or without its engine.

    >>> is_named("python:order", "order"), is_named("python:order", "python:order")
    (True, True)
    """
    return name in (target, target.partition(":")[2])


class ProcessView(msgspec.Struct, frozen=True):
    """A process in a list; ``label`` is the one that it was started with, ``version`` that of its program."""

    id: str
    target: str
    status: RunState
    reason: str | None
    created: Instant
    settled: Instant | None
    label: str | None = None
    version: int = 1
    tags: tuple[str, ...] = ()


def just_started(registration: Registration, number: int, now: Instant) -> ProcessRecord:
    """Return the row of a process that was just started and is owned by the caller."""
    state = ProcessState(sequence=1)
    return ProcessRecord(registration, number, number, state, RunState.RUNNING, None, now, None)


class SignalWait(msgspec.Struct, frozen=True):
    """A process that waits for a signal."""

    process_id: str
    key: str
    wait: str
    name: str
    opened: Instant
    deadline: Instant | None
    epoch: int


class HandleGrant(msgspec.Struct, frozen=True):
    """The right of a session to use the handle of a process."""

    holder: SessionRef
    process_id: str
    label: str = ""


class HeldProcess(msgspec.Struct, frozen=True):
    """A process whose handle a session holds."""

    id: str
    status: RunState
    label: str = ""


class SessionReport(msgspec.Struct, frozen=True):
    """Counts of rows that were removed with a session."""

    handles: int = 0
    wakes: int = 0
    subscriptions: int = 0
