"""Records: how an effect ended, as it is stored and as it is raised again.

Rule 1. What a caller gets is what was decoded from the record, also the first time.
Rule 2. A failure is recorded like a result; a step's failure is always ``StepFailed``.
Rule 3. Every exception that user code raises is an outcome and is recorded. Trouble of the run itself (its store, its
        lease, its record) never is: code of ours inside an effect raises it as ``Detached``.
Rule 4. A recorded failure is never raised as a StoreError or a DurabilityError, which are about the run.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeGuard

import msgspec

from pylash.durable.effects import (
    COMPOSITE,
    OUTCOMES,
    DurableStepOutcome,
    EffectKind,
    Envelope,
    Outcome,
    ProcessOutcome,
    expect,
)
from pylash.durable.ports import LocalExecutor
from pylash.engine.user_code import current_task, is_failure
from pylash.values.canonical import check_size, encode, first_difference, refuse, round_trip, write
from pylash.values.errors import (
    DurabilityError,
    EffectFailed,
    EffectNested,
    EffectReplayMismatch,
    LashError,
    MissingReplayKey,
    PayloadTooLarge,
    Plugin,
    PluginError,
    ReplayKeyInvalid,
    RuntimeEffectLocalExecutorMismatch,
    RuntimeEffectLocalExecutorUnavailable,
    RuntimeEffectWrongOutcome,
    RuntimeStore,
    StepFailed,
    StoreError,
    ValueNotJson,
)
from pylash.values.names import check_name, storable

# The atomic effect that each task performs: it is recorded as a whole, so it asks for no others. By task and not in a
# context variable, which would cost a tenth of an effect. ``perform`` alone writes it.
_inside: dict[asyncio.Task[Any] | None, str] = {}

MAX_KEY_BYTES: Final = 1_800
"""The longest replay key: it is made of several names, escaped, and is indexed."""
# msgspec writes the tag of a struct first, so that the first bytes of a record tell its kind.
WITHDRAWN: Final = b'{"type":"cancelled"'
"""How the record of a cancelled effect begins; the ends of waits begin otherwise."""

# Mistakes of the caller. A record would make one permanent, although the next deploy may correct it.
NEVER_RECORDED = (
    EffectNested,
    MissingReplayKey,
    RuntimeEffectLocalExecutorMismatch,
    RuntimeEffectLocalExecutorUnavailable,
    RuntimeEffectWrongOutcome,
)


class FinalFailure(Exception):
    """Wraps what an effect failed with if it is not to be tried again."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


# The three kinds of records are stored: their tags and fields are never renamed, and new fields have defaults.


class Returned(msgspec.Struct, frozen=True, gc=False, tag="returned"):
    """The effect returned."""

    outcome: Outcome


class Failed(msgspec.Struct, frozen=True, gc=False, tag="failed", omit_defaults=True):
    """The effect failed."""

    code: str
    message: str
    type_name: str
    data: Any = None
    final: bool = False


class Withdrawn(msgspec.Struct, frozen=True, gc=False, tag="cancelled"):
    """The run was cancelled while the effect was pending: replay cancels it there again."""

    code: str = "cancelled"


Record = Returned | Failed | Withdrawn

_RECORDS: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class Performed(msgspec.Struct, frozen=True):
    """An effect that was performed: its record as written and as read back, and what it raised."""

    data: bytes
    record: Record
    cause: BaseException | None = None

    def answer(self, kind: EffectKind) -> Outcome:
        """Return the outcome, or raise the failure, with the traceback of its cause."""
        if self.cause is None:
            return answer(self.record, kind)
        # The cause has the traceback of user code. It is not recorded, so a replay raises the failure without it.
        try:
            return answer(self.record, kind)
        except LashError as error:
            raise error from self.cause


def check_call(envelope: Envelope, local: LocalExecutor, *, nested: bool = False) -> None:
    """Refuse a call that can never work, before anything runs or is recorded.

    ``nested``: the effect may be requested inside an atomic one, because it is no part of that.
    """
    if not hasattr(local, "execute"):
        raise RuntimeEffectLocalExecutorMismatch(local, envelope.command.kind)
    key = envelope.invocation.replay_key
    if key:
        check_name("replay key", key, limit=MAX_KEY_BYTES, error=ReplayKeyInvalid)
    if not nested:
        check_nesting(envelope.invocation.effect_id)


def check_nesting(effect_id: str) -> None:
    """Refuse an effect that is requested inside an atomic one, in the same task."""
    # The table is empty unless an atomic effect is performed, so that most calls do not ask for their task.
    if _inside and (outer := _inside.get(asyncio.current_task())) is not None:
        raise EffectNested(effect_id, outer)


def check_same(first: Envelope, second: Envelope) -> None:
    """Refuse a second effect under the key of one that is in flight, unless it is the same request."""
    old, new = first.canonical(), second.canonical()
    if old != new:
        key = first.invocation.replay_key or ""
        raise EffectReplayMismatch(key, first_difference(old, new))


async def perform(envelope: Envelope, local: LocalExecutor) -> Performed:
    """Run the effect and return its record, a result or a failure."""
    kind, task = envelope.command.kind, current_task()
    if kind not in COMPOSITE:
        _inside[task] = envelope.invocation.effect_id
    try:
        outcome = await local.execute(envelope)
        # Encoded within the try: a result that cannot be recorded is a failure of the effect.
        return returned(expect(outcome, OUTCOMES[type(envelope.command)]))
    except NEVER_RECORDED:
        raise
    except BaseException as error:
        # A composite effect performs others, at which a cancel of the run is raised without cancelling a task.
        is_cancel = kind in COMPOSITE and isinstance(error, asyncio.CancelledError)
        if is_cancel or not is_failure(error, task):
            raise
        return failed(error, kind)
    finally:
        # A task performs one atomic effect at a time, so there is no outer one to restore.
        _inside.pop(task, None)


def returned(outcome: Outcome, records: int = 1) -> Performed:
    """Return the record of an outcome, or refuse one that would not come back as it is, or is too large."""
    record = Returned(outcome)
    try:
        data = write(record)
    except ValueNotJson:
        _refuse(outcome)
        raise
    check_size(data, records)
    # The decoded record is kept as the answer, so that the first execution cannot see more than a replay.
    back = _RECORDS.decode(data)
    if back != record:
        _refuse(outcome)
        raise ValueNotJson("$", "it changes when it is encoded as JSON and decoded again")
    return Performed(data, back)


def _refuse(outcome: Outcome) -> None:
    """Refuse the first part that would change. The path begins at a step's value, which is all that its author sees."""
    for field in outcome.__struct_fields__:
        path = "$" if isinstance(outcome, DurableStepOutcome) else f"$.{field}"
        refuse(getattr(outcome, field), path)


def failed(error: BaseException, kind: EffectKind) -> Performed:
    """Return the record of a failure."""
    is_final = isinstance(error, FinalFailure)
    if isinstance(error, FinalFailure):
        error = error.error
    failure = Failed(
        _code(error, kind),
        message_of(error),
        storable(type(error).__name__),
        _data(error),
        is_final,
    )
    data = encode(failure)
    # The refusal is short, so that the recursion ends with it.
    try:
        check_size(data, 1)
    except PayloadTooLarge as refusal:
        return failed(refusal, kind)
    return Performed(data, failure, error)


def withdrawn(code: str) -> bytes:
    """Return the record of an effect that was cancelled while it was pending."""
    return write(Withdrawn(code))


def wrapped(result: Any) -> bytes:
    """Return the record of a process command's result."""
    return returned(ProcessOutcome(result), records=3).data  # it holds what is recorded elsewhere


def answer(record: Record | bytes, kind: EffectKind) -> Outcome:
    """Return the outcome in a record, or raise the failure in it."""
    if isinstance(record, bytes):
        record = _RECORDS.decode(record)
    if isinstance(record, Returned):
        return record.outcome
    if isinstance(record, Withdrawn):
        raise asyncio.CancelledError
    if kind is EffectKind.DURABLE_STEP:
        error = StepFailed(record.code, record.message, record.type_name, record.data)
        error.final = record.final
        raise error
    restored = LashError.restore(record.code, record.message, record.data)
    # User code may have chosen the code of such an error. Raised as its class, it would detach the run (rule 4).
    if isinstance(restored, DurabilityError | StoreError):
        restored = LashError(record.message, code=record.code, data=record.data)
    restored.final = record.final
    raise restored


def _code(error: BaseException, kind: EffectKind) -> str:
    match error:
        # Raised by user code, so about another store or run than this one; trouble of our own never gets here (rule 3).
        case StoreError() | DurabilityError():
            return RuntimeStore.default_code
        case LashError():
            return storable(str(getattr(error, "code", error.default_code)))
        case PluginError():
            return Plugin.default_code
        case _ if kind is EffectKind.DURABLE_STEP:
            return StepFailed.default_code
        case _:
            return EffectFailed.default_code


def is_outcome(error: BaseException) -> TypeGuard[LashError]:
    """Return whether what user code raised is an error of ours that callers may get as it is.

    One about a store or a run is not: it is about some other store or run than the caller's.
    """
    # A subclass in user code that does not call our ``__init__`` has no message.
    trouble = isinstance(error, DurabilityError | StoreError)
    return isinstance(error, LashError) and not trouble and hasattr(error, "message")


def message_of(error: BaseException) -> str:
    """Return the message of an exception, as it can be stored."""
    try:
        said = error.message if isinstance(error, LashError) else error
        return storable(str(said)) or type(error).__name__
    except BaseException:  # noqa: BLE001 - str() of an exception may raise anything
        return type(error).__name__


def _data(error: BaseException) -> Any:
    """Return the data of the failure, if it will be the same when it is read back."""
    try:
        return round_trip(getattr(error, "data", None)) if isinstance(error, LashError) else None
    except ValueNotJson:
        return None
