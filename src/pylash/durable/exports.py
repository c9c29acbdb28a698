"""Exports: processes and sessions as one JSON document, which other stores import (``docs/formats/export.md``).

Rule 1. The document is stored by users: fields are only added, with defaults. A change that older code would misread is a new
        ``VERSION``.
Rule 2. No signature leaves a store. The key of a wait is exported as its name, and signed again by the store that imports it.
Rule 3. Recorded values are copied as bytes, never decoded and encoded again: outcomes and messages are compared by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from pylash.durable.processes import REGISTRATIONS
from pylash.durable.runs import TERMINAL, JournalEntry, RunState
from pylash.durable.scopes import ExecutionScope, scope_from_text, scope_text
from pylash.durable.waits import WAIT_NAMES, Signer, name_in_key
from pylash.values.canonical import decode, write
from pylash.values.process_errors import ExportInvalid

FORMAT: Final = "pylash-export"
VERSION: Final = 1

NOTHING: Final = msgspec.Raw(b"null")
"""The value of a field that has none."""

_SIGNED_KEY: Final = re.compile(
    rb"v1\.[0-9a-f]{8}\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]{43}(?=([A-Za-z0-9_~-])?)"
)
# A tilde ends the name where the text after the key would continue it.
_NAMED_KEY: Final = re.compile(rb"pylash-wait-key:([A-Za-z0-9_-]+)~?")


_HASH: Final = re.compile(r"[0-9a-f]{64}")

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Hash = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]

T = TypeVar("T", bound="_Exported")


class _Exported(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of the document. Times are microseconds since 1970, in UTC."""


class ExportedEffect(_Exported, frozen=True, kw_only=True):
    """One effect of the journal. ``wait`` is what it waits for: a wait, ``signal:NAME``, ``process:ID`` or ``turn:SCOPE``."""

    key: str
    kind: str
    hash: Hash
    started: Number
    label: str | None = None
    ended: Number | None = None
    due: Number | None = None
    wait: str | None = None
    command: msgspec.Raw = NOTHING
    outcome: msgspec.Raw = NOTHING


class ExportedWait(_Exported, frozen=True, kw_only=True):
    """A wait that is answered from outside. ``name`` has its scope and identity, ``schema`` is that of its answer."""

    name: msgspec.Raw
    kind: str
    title: str
    tool: str | None = None
    opened: Number | None = None
    deadline: Number | None = None
    resolved: Number | None = None
    answered_by: str | None = None
    arguments: msgspec.Raw = NOTHING
    schema: msgspec.Raw = NOTHING
    terminal: msgspec.Raw = NOTHING


class ExportedEvent(_Exported, frozen=True, kw_only=True):
    """An event of a process. ``taken`` is 0 for a signal that was not received yet, and 1 for a received one."""

    sequence: Number
    type: str
    at: Number
    key: str | None = None
    taken: Number | None = None
    payload: msgspec.Raw = NOTHING


class ExportedHandle(_Exported, frozen=True, kw_only=True):
    """The handle of a process that a session holds."""

    session: str
    frame: str = ""
    label: str = ""


class _ExportedRun(_Exported, frozen=True, kw_only=True):
    """What processes and turns have in common. ``at`` is when a worker must look at it next."""

    id: str
    target: str
    status: RunState
    run: Number
    created: Number
    reason: str | None = None
    at: Number | None = None
    settled: Number | None = None
    cancel: Number = 0
    effects: tuple[ExportedEffect, ...] = ()


class _SessionCounts(_Exported, frozen=True, kw_only=True):
    """The numbers of a session."""

    head: Number = 0
    revision: Number = 0
    calls: Number = 0
    streak: Number = 0
    generation: Number = 0
    last_seq: Number = 0


class ExportedProcess(_ExportedRun, frozen=True, kw_only=True):
    """A process with its log and the journal of its current run.

    ``cancel`` is 1 if its cancellation was requested, and 2 if the request was
    delivered to an earlier epoch.
    """

    number: Number
    sequence: Number = 1
    epoch: Number = 0
    registration: msgspec.Raw = NOTHING
    output: msgspec.Raw = NOTHING
    events: tuple[ExportedEvent, ...] = ()
    waits: tuple[ExportedWait, ...] = ()
    handles: tuple[ExportedHandle, ...] = ()


class ExportedNode(_Exported, frozen=True, kw_only=True):
    """A message of a session at its place, the run that wrote it, and the effects that were recorded with it."""

    place: Number
    run: Number
    message: msgspec.Raw = NOTHING
    effects: tuple[ExportedEffect, ...] = ()


class ExportedTurn(_ExportedRun, frozen=True, kw_only=True):
    """A turn of a session. ``lane_seq`` is its place in the order of the session's turns."""

    kind: Literal["turn", "queue_drain"]
    lane_seq: Number | None = None
    cancel_reason: str | None = None
    digest: Hash | None = None
    input: msgspec.Raw = NOTHING
    options: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING


class ExportedMessage(_Exported, frozen=True, kw_only=True):
    """A message in the queue of a session."""

    source: str
    sequence: Number
    policy: str
    at: Number
    body: msgspec.Raw = NOTHING


class ExportedKey(_Exported, frozen=True, kw_only=True):
    """The key of a message that a person sent, so that a repetition is found."""

    key: str
    at: Number


class ExportedSession(_SessionCounts, frozen=True, kw_only=True):
    """A session: its messages, its turns, and what is queued for it.

    ``head`` is the place of the last committed message. ``holder`` is the run that holds the session. ``inherited`` has the
    messages that a fork begins with, one list for each line that they come from.
    """

    id: str
    holder: Number | None = None
    usage: msgspec.Raw = NOTHING
    options: msgspec.Raw = NOTHING
    messages: tuple[ExportedNode, ...] = ()
    inherited: tuple[tuple[ExportedNode, ...], ...] = ()
    turns: tuple[ExportedTurn, ...] = ()
    queue: tuple[ExportedMessage, ...] = ()
    keys: tuple[ExportedKey, ...] = ()
    waits: tuple[ExportedWait, ...] = ()


class Export(_Exported, frozen=True, kw_only=True):
    """The document. The first process, or else the first session, is the one that was asked for.

    ``hidden`` counts the values from which something that looks like a secret was left out. ``redacted``: all values were left out.
    ``environments`` and ``attachments`` have the bodies that the rest refers to, under their hashes; attachments as base64.
    """

    format: str
    version: int
    kind: Literal["process", "session"]
    id: str
    redacted: bool = False
    hidden: int = 0
    processes: tuple[ExportedProcess, ...] = ()
    sessions: tuple[ExportedSession, ...] = ()
    environments: dict[str, str] = {}
    attachments: dict[str, str] = {}

    @property
    def runs(self) -> Iterator[ExportedProcess | ExportedTurn]:
        """The runs in the document."""
        yield from self.processes
        for session in self.sessions:
            yield from session.turns

    @property
    def waits(self) -> Iterator[ExportedWait]:
        """The waits in the document."""
        for process in self.processes:
            yield from process.waits
        for session in self.sessions:
            yield from session.waits

    @property
    def is_open(self) -> bool:
        """Whether anything in it goes on when it is imported."""
        return any(run.settled is None for run in self.runs)

    def to_json(self) -> bytes:
        """Return the document as indented JSON."""
        return msgspec.json.format(_unsigned(msgspec.json.encode(self)), indent=1) + b"\n"


class _Header(msgspec.Struct):
    format: str = ""
    version: int = 0


def read_export(data: bytes, name: str) -> Export:
    """Return the export in a file of this name. Raises ExportInvalid."""
    try:
        header = msgspec.json.decode(data, type=_Header)
        if header.format != FORMAT:
            raise ExportInvalid(name, "it is not a file of pylash export: check the path")
        if header.version != VERSION:
            reason = (
                f"its format is version {header.version} and this pylash reads version {VERSION}: export it again "
                "with this version of pylash"
            )
            raise ExportInvalid(name, reason)
        export = msgspec.json.decode(data, type=Export)
        if export.redacted:
            reason = "it was exported with --redact, so its values are missing: export it without"
            raise ExportInvalid(name, reason)
        problem = next(_problems(export), None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ExportInvalid(name, f"it is damaged ({error}): export it again") from error
    if problem is not None:
        raise ExportInvalid(name, f"it is damaged ({problem}): export it again")
    return export


def _problems(export: Export) -> Iterator[str]:
    """Yield what is wrong with a document whose fields have the right types."""
    asked = export.processes if export.kind == "process" else export.sessions
    if export.id not in [one.id for one in asked]:
        yield f"{export.kind} {export.id!r} is missing"
    numbers = (f"run {run.run}" for run in export.runs)
    sessions = (f"session {session.id!r}" for session in export.sessions)
    for what, times in Counter([*scopes_of(export), *sessions, *numbers]).items():
        if times > 1:
            yield f"{what} occurs {times} times"
    for run in export.runs:
        if (run.settled is not None) != (run.status in TERMINAL):
            yield f"{run.id!r} is {run.status.value}, and its time of settlement says otherwise"
    for process in export.processes:
        if REGISTRATIONS.decode(bytes(process.registration)).id != process.id:
            yield f"the registration of {process.id!r} is that of another process"
    for wait in export.waits:
        WAIT_NAMES.decode(bytes(wait.name))
    yield from () if export.hidden else _forged_bodies(export)


def _forged_bodies(export: Export) -> Iterator[str]:
    """Yield the bodies that do not have the hash that they would be stored under, where other runs would find them."""
    for ref, text in export.environments.items():
        if _HASH.fullmatch(ref) and hashlib.sha256(text.encode()).hexdigest() != ref:
            yield f"environment {ref} has other content"
    for digest, body in export.attachments.items():
        try:
            found = hashlib.sha256(base64.b64decode(body, validate=True)).hexdigest()
        except ValueError:
            found = ""
        if found != digest:
            yield f"attachment {digest} has other content"


def signed_again(data: bytes, export: Export, signer: Signer) -> bytes:
    """Return a document with keys for another store, for the waits of its own runs."""
    scopes = set(scopes_of(export))

    def sign(found: re.Match[bytes]) -> bytes:
        name = name_in_key(found[1].decode())
        is_own = name is not None and scope_text(name.scope) in scopes
        return signer.sign(name).encode() if name is not None and is_own else found[0]

    return _NAMED_KEY.sub(sign, data)


def scopes_of(export: Export) -> Iterator[str]:
    """Yield the texts of the scopes of all runs in an export."""
    for process in export.processes:
        yield _text("process", process_id=process.id)
    for session in export.sessions:
        for turn in session.turns:
            yield turn_scope(session.id, turn)


def turn_scope(session_id: str, turn: ExportedTurn) -> str:
    """Return the text of the scope of a turn."""
    own = "turn_id" if turn.kind == "turn" else "drain_id"
    return _text(turn.kind, session_id=session_id, **{own: turn.id})


def _text(kind: str, **ids: str) -> str:
    scope: ExecutionScope = scope_from_text(write({"type": kind, **ids}).decode())
    return scope_text(scope)


# --- values ---


def raw(column: bytes | None) -> msgspec.Raw:
    """Return the JSON of a column, with the names of waits instead of their keys."""
    return NOTHING if column is None else msgspec.Raw(_unsigned(bytes(column)))


def _unsigned(data: bytes) -> bytes:
    return _SIGNED_KEY.sub(_unsigned_key, data)


def _unsigned_key(found: re.Match[bytes]) -> bytes:
    if found[2] is None:
        return b"pylash-wait-key:" + found[1]
    # Followed by more: only a text with a name of ours is a key.
    is_key = name_in_key(found[1].decode()) is not None
    return b"pylash-wait-key:" + found[1] + b"~" if is_key else found[0]


def column(value: msgspec.Raw) -> bytes | None:
    """Return the column of a JSON value: without the indentation of the document."""
    body = msgspec.json.format(bytes(value), indent=-1)
    return None if body == b"null" else body


def exported_effect(entry: JournalEntry) -> ExportedEffect:
    """Return an effect for the document. Signals are named without the number of the process, which other stores may change."""
    wait = entry.wait
    if wait is not None and wait.startswith("signal:"):
        wait = f"signal:{wait.split(':', 2)[2]}"
    command = raw(entry.command)
    is_signed = entry.command is not None and bytes(command) != bytes(entry.command)
    return ExportedEffect(
        key=entry.key,
        kind=entry.kind,
        hash=_hash(command) if is_signed else bytes(entry.hash).hex(),
        label=entry.label,
        started=entry.started,
        ended=entry.ended,
        due=entry.due,
        wait=wait,
        command=command,
        outcome=raw(entry.outcome),
    )


def _hash(command: msgspec.Raw) -> str:
    """Return the hash of a command that has keys of waits, which depends on their signatures."""
    return hashlib.sha256(column(command) or b"").hexdigest()


def imported_entry(effect: ExportedEffect, process: int = 0) -> JournalEntry:
    """Return an effect of the document as an entry of the journal; ``process`` is the number of its process."""
    outcome, wait = column(effect.outcome), effect.wait
    is_signed = _SIGNED_KEY.search(bytes(effect.command)) is not None
    if wait is not None and wait.startswith("signal:"):
        wait = f"signal:{process}:{wait.partition(':')[2]}"
    return JournalEntry(
        key=effect.key,
        kind=effect.kind,
        hash=bytes.fromhex(_hash(effect.command) if is_signed else effect.hash),
        command=column(effect.command),
        outcome=outcome,
        size=len(outcome or b""),
        due=effect.due,
        wait=wait,
        started=effect.started,
        ended=effect.ended,
        label=effect.label,
    )


# --- secrets ---


def without_values(export: Export) -> Export:
    """Return an export without recorded values: names, keys, hashes, kinds and times are left."""
    bare = _mapped(export, lambda _: NOTHING)
    return msgspec.structs.replace(bare, redacted=True, hidden=0, environments={}, attachments={})


def without_secrets(export: Export, hide: Callable[[str], str]) -> Export:
    """Return an export in which ``hide`` was called for each text in a value, and count the changed values."""
    hidden = 0

    def hide_in(value: msgspec.Raw) -> msgspec.Raw:
        nonlocal hidden
        before = decode(bytes(value))
        after = _hidden(before, hide)
        if after == before:
            return value
        hidden += 1
        return msgspec.Raw(write(after))

    searched = _mapped(export, hide_in)
    environments = {ref: hide(body) for ref, body in export.environments.items()}
    hidden += sum(body != export.environments[ref] for ref, body in environments.items())
    return msgspec.structs.replace(searched, environments=environments, hidden=hidden)


def _hidden(value: Any, hide: Callable[[str], str]) -> Any:
    match value:
        case str():
            return hide(value)
        case list():
            return [_hidden(one, hide) for one in value]
        case dict():
            return {key: _hidden(one, hide) for key, one in value.items()}
        case _:
            return value


# Values that name things: without them the document could not be read at all.
_NAMES: Final = frozenset({"name"})
_FREE_TEXTS: Final = frozenset({"reason", "cancel_reason", "title", "answered_by"})


def _mapped(part: T, change: Callable[[msgspec.Raw], msgspec.Raw]) -> T:
    """Return a part of an export with every value changed, and with texts of people changed as values are."""
    fields: dict[str, Any] = {}
    for field in part.__struct_fields__:
        given = getattr(part, field)
        if isinstance(given, msgspec.Raw) and field not in _NAMES and given is not NOTHING:
            fields[field] = change(given)
        elif isinstance(given, str) and field in _FREE_TEXTS:
            after = decode(bytes(change(msgspec.Raw(write(given)))))
            fields[field] = after if after is not None else _hidden_text(field, given)
        elif isinstance(given, tuple):
            fields[field] = tuple(_mapped_item(one, change) for one in given)
    return msgspec.structs.replace(part, **fields)


def _hidden_text(field: str, given: str) -> str | None:
    """Return what is left of a text without values: the code of a reason, or nothing."""
    match field:
        case "reason":
            return given.partition(":")[0]
        case "title":
            return ""
        case _:
            return None


def _mapped_item(item: Any, change: Callable[[msgspec.Raw], msgspec.Raw]) -> Any:
    if isinstance(item, tuple):
        return tuple(_mapped(one, change) for one in item)
    return _mapped(item, change)


def started_by(effects: Iterable[JournalEntry]) -> Iterator[str]:
    """Yield the ids of the processes that effects started."""
    for entry in effects:
        if entry.kind == "process" and _START.search(entry.key):
            child = _result_of(entry).get("id")
            if isinstance(child, str):
                yield child


def needed_outside(export: Export) -> Iterator[tuple[str, str]]:
    """Yield the runs of an export that need what is not in it: ``process:ID`` or ``turn:SCOPE``.

    That is what they wait for, and each process that they started and whose result they have not recorded.
    """
    inside = {f"process:{one.id}" for one in export.processes}
    inside |= {f"turn:{scope}" for scope in scopes_of(export)}
    for run in export.runs:
        if run.settled is not None:
            continue
        effects = [imported_entry(effect) for effect in run.effects]
        awaited = [one for one in effects if one.wait is not None and _AWAITED.match(one.wait)]
        ended = {one.wait for one in awaited if "output" in _result_of(one)}
        needed = {f"process:{child}" for child in started_by(effects)} - ended
        needed |= {str(one.wait) for one in awaited if one.outcome is None}
        for one in sorted(needed - inside):
            yield run.id, one


def _result_of(entry: JournalEntry) -> dict[str, Any]:
    """Return the recorded answer of the process registry; an empty one if there is none."""
    record = None if entry.outcome is None else decode(entry.outcome)
    outcome = record.get("outcome") if isinstance(record, dict) else None
    result = outcome.get("result") if isinstance(outcome, dict) else None
    return result if isinstance(result, dict) else {}


_START: Final = re.compile(r"(^|:)start:")
_AWAITED: Final = re.compile(r"process:|turn:")
